/* Reads the file of a mixture. Sources are read first, because the weights of a phase are named
 * after them: each source adds a row to the table of a phase's settings. The messages of options
 * therefore report unknown keys, the nearest known one, and ranges. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/mixture.h"

enum { NAME_LIMIT = 64 };
#define MOST_TOKENS 1e15

static const char *const keys[] = {"sources", "phases", NULL};

#define FIELD(path) offsetof(MixtureSource, path)
static const Option source_rows[] = {
    STRING_OPTION(name, "", "", "name of the source, used in the weights of phases"),
    STRING_OPTION(path, "", "", "a token shard, a folder of shards, or text; relative to the folder of this file", .path = true),
    REAL_OPTION(epochs, "1", 1e-6, 1e6, "", "maximum number of passes over the source"),
};
#undef FIELD
static const OptionTable source_table = OPTION_TABLE(source_rows);

#define FIELD(path) offsetof(MixturePhase, path)
static const Option phase_rows[] = {
    STRING_OPTION(name, "", "", "name of the phase; empty: its number"),
    INT_OPTION(tokens, "0", 0, MOST_TOKENS, "tokens", "tokens of the phase; 0 (last phase only): until the run ends"),
    INT_OPTION(length, "0", 0, 1 << 24, "tokens", "sequence length; 0: data.length"),
    REAL_OPTION(rope_theta, "0", 0, 1e12, "", "base of RoPE; 0: model.rope_theta"),
    {"batch.tokens", OPTION_INT, FIELD(batch_tokens), "0", 0, MOST_TOKENS, NULL, "tokens", "tokens per step; 0: batch.tokens"},
    {"batch.sequences", OPTION_INT, FIELD(sequences), "0", 0, 1 << 24, NULL, "sequences",
        "sequences per microbatch; 0: as many as keep the tokens of batch.sequences, at least one"},
    {"batch.ramp_tokens", OPTION_INT, FIELD(ramp_tokens), "0", 0, MOST_TOKENS, NULL, "tokens",
        "tokens of the first step of the phase; 0: no ramp"},
    {"batch.ramp_steps", OPTION_INT, FIELD(ramp_steps), "0", 0, MOST_TOKENS, NULL, "steps",
        "steps in which the batch grows to batch.tokens"},
};
#undef FIELD
static const OptionTable phase_table = OPTION_TABLE(phase_rows);
enum { PHASE_ROWS = sizeof phase_rows / sizeof *phase_rows };

bool mixture_is(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot && (!strcmp(dot, ".yaml") || !strcmp(dot, ".yml"));
}

bool mixture_refuse(const char *path, Error *error) {
    enum { MOST_BYTES = 1 << 24 };
    bool may = mixture_is(path) && file_kind(path, NULL) == FILE_REGULAR;
    SCOPED_FREE char *text = may ? file_read(path, MOST_BYTES, NULL, error) : NULL;
    if (may && !text) return error_recode(error, ERROR_DATA);
    return !text || !strstr(text, keys[0]) || !strstr(text, keys[1]) ||
           error_set(
               error, ERROR_USAGE, "%s is a mixture, which only data.train reads: use a token shard, a folder of shards, or text", path);
}

/* -- Sources ----------------------------------------------------------------------------------------------------- */

/* Checks the name of a source or a phase, which appears in messages and records. */
static bool check_name(const char *kind, int index, const char *name, const char *path, Error *error) {
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    size_t length = strlen(name);
    return (length > 0 && length <= NAME_LIMIT && strspn(name, allowed) == length) ||
           error_set(
               error, ERROR_USAGE, "%s: the name of %s %d is not 1 to %d letters, digits, '_' or '-'", path, kind, index + 1, NAME_LIMIT);
}

static bool check_source(const Mixture *mixture, int index, const char *path, Error *error) {
    const MixtureSource *source = &mixture->sources[index];
    if (!check_name("source", index, source->name, path, error)) return false;
    for (int i = 0; i < index; i++)
        if (!strcmp(mixture->sources[i].name, source->name))
            return error_set(
                error, ERROR_USAGE, "%s: sources %d and %d have the same name %s: rename one", path, i + 1, index + 1, source->name);
    return *source->path || error_set(error, ERROR_USAGE,
                                "%s: source %s has no path: set path to a token shard, a folder of shards, or text", path, source->name);
}

/* Converts a path that is relative to the folder of `file` to an absolute one; the caller frees.
 * The folder is resolved with realpath, so that a source has one path however the file is named. */
static char *path_from(const char *file, const char *path) {
    const char *slash = strrchr(file, '/');
    SCOPED_FREE char *named = slash ? memory_format("%.*s", (int)(slash - file) + 1, file) : memory_copy_string(".");
    SCOPED_FREE char *folder = realpath(named, NULL);
    if (!folder || *path == '/' || strstr(path, "://")) return memory_copy_string(path);
    for (bool up; (up = starts_with(path, "../")) || starts_with(path, "./"); path += strspn(path, "/")) {
        if (up) *strrchr(folder, '/') = '\0';
        if (up && !*folder) strcpy(folder, "/"); /* the parent of the root is the root */
        path += up ? 3 : 2;
    }
    return memory_format("%s/%s", strcmp(folder, "/") ? folder : "", path);
}

static bool place_source(Mixture *mixture, MixtureSource *source, const char *file, Error *error) {
    SCOPED_FREE char *path = path_from(file, source->path), *setting = memory_format("path=%s", path);
    if (!options_set(&source_table, source, &mixture->strings, setting, error)) return error_context(error, "%s", file);
    options_remember(&source_table, source, &mixture->strings);
    return true;
}

static bool read_sources(Mixture *mixture, const char *path, Error *error) {
    mixture->sources = memory_allocate(MIXTURE_MOST_SOURCES * sizeof *mixture->sources);
    OptionList list = {.keys = keys,
        .key = "sources",
        .table = &source_table,
        .items = mixture->sources,
        .item_size = sizeof *mixture->sources,
        .most = MIXTURE_MOST_SOURCES};
    if (!options_read_yaml_list(&list, &mixture->strings, path, error)) return false;
    mixture->source_count = list.count;
    if (list.count == 0) return error_set(error, ERROR_USAGE, "%s has no sources: write 'sources: [{name: ..., path: ...}]'", path);
    for (int i = 0; i < list.count; i++)
        if (!check_source(mixture, i, path, error) || !place_source(mixture, &mixture->sources[i], path, error)) return false;
    return true;
}

/* -- Phases ------------------------------------------------------------------------------------------------------ */

/* Makes the rows for the settings of a phase and a weight per source. The caller frees the names of
 * the weights. */
static void make_rows(const Mixture *mixture, Option *rows) {
    memcpy(rows, phase_rows, sizeof phase_rows);
    for (int i = 0; i < mixture->source_count; i++)
        rows[PHASE_ROWS + i] = (Option){.name = memory_format("weights.%s", mixture->sources[i].name),
            .type = OPTION_REAL,
            .offset = offsetof(MixturePhase, weights) + (size_t)i * sizeof(double),
            .initial = "0",
            .maximum = 1e15,
            .unit = "",
            .help = ""};
}

static bool check_source_weights(const Mixture *mixture, const MixturePhase *phase, const char *path, Error *error) {
    double sum = 0;
    for (int i = 0; i < mixture->source_count; i++) sum += phase->weights[i];
    if (!(sum > 0))
        return error_set(error, ERROR_USAGE, "%s: phase %s has no weight above 0: write 'weights: {%s: 1}'", path, phase->name,
            mixture->sources[0].name);
    for (int i = 0; i < mixture->source_count; i++) {
        double share = phase->weights[i] / sum;
        if (share > 0 && share * ORDER_BLOCK < 1)
            return error_set(error, ERROR_USAGE,
                "%s: weights.%s=%g of phase %s is %.2g of its tokens, less than one sample in %d: use at least %.3g, or omit the source",
                path, mixture->sources[i].name, phase->weights[i], phase->name, share, ORDER_BLOCK, sum / ORDER_BLOCK * 1.01);
    }
    return true;
}

static bool check_mixture_phase(Mixture *mixture, int index, const char *path, Error *error) {
    MixturePhase *phase = &mixture->phases[index];
    SCOPED_FREE char *number = memory_format("name=%d", index + 1);
    if (!*phase->name && !options_set(&phase_table, phase, &mixture->strings, number, error)) return false;
    if (!check_name("phase", index, phase->name, path, error)) return false;
    if (phase->tokens == 0 && index < mixture->phase_count - 1)
        return error_set(error, ERROR_USAGE,
            "%s: phase %s has no tokens: set tokens. Only the last phase may omit it, and then ends with the run", path, phase->name);
    if (phase->tokens > 0 && phase->tokens < phase->length)
        return error_set(error, ERROR_USAGE, "%s: phase %s has tokens: %" PRId64 ", fewer than one sequence of length: %" PRId64, path,
            phase->name, phase->tokens, phase->length);
    if ((phase->ramp_tokens > 0) != (phase->ramp_steps > 0))
        return error_set(error, ERROR_USAGE, "%s: phase %s sets only one of batch.ramp_tokens and batch.ramp_steps: set both or neither",
            path, phase->name);
    return check_source_weights(mixture, phase, path, error);
}

static bool read_phases(Mixture *mixture, const char *path, Error *error) {
    Option rows[PHASE_ROWS + MIXTURE_MOST_SOURCES];
    OptionTable table = {rows, PHASE_ROWS + (size_t)mixture->source_count};
    mixture->phases = memory_allocate(MIXTURE_MOST_PHASES * sizeof *mixture->phases);
    OptionList list = {.keys = keys,
        .key = "phases",
        .table = &table,
        .items = mixture->phases,
        .item_size = sizeof *mixture->phases,
        .most = MIXTURE_MOST_PHASES};
    make_rows(mixture, rows);
    bool good = options_read_yaml_list(&list, &mixture->strings, path, error);
    for (size_t i = PHASE_ROWS; i < table.count; i++) free((void *)rows[i].name);
    mixture->phase_count = list.count;
    if (good && list.count == 0)
        return error_set(error, ERROR_USAGE, "%s has no phases: write 'phases: [{weights: {%s: 1}}]'", path, mixture->sources[0].name);
    for (int i = 0; good && i < list.count; i++) good = check_mixture_phase(mixture, i, path, error);
    return good;
}

bool mixture_read(Mixture *mixture, const char *path, Error *error) {
    *mixture = (Mixture){0};
    if (read_sources(mixture, path, error) && read_phases(mixture, path, error)) return true;
    mixture_free(mixture);
    return false;
}

void mixture_free(Mixture *mixture) {
    free(mixture->sources);
    free(mixture->phases);
    options_free_strings(&mixture->strings);
    *mixture = (Mixture){0};
}
