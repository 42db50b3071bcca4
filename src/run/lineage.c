/* Reads and writes RUN/run.json. The caller owns the results. Called when a run starts, and by
 * `smelt show`. */
#include "run/lineage.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"
#include "base/version.h"
#include "ckpt/ckpt.h"
#include "data/remote.h"
#include "optim/optim.h"
#include "run/corpus.h"
#include "run/identity.h"
#include "run/metrics.h"
#include "run/run.h"
#include "run/source.h"

enum { RECORD_LIMIT = 64 << 20 };

json_t *lineage_read(const char *run, Error *error) {
    json_error_t reason;
    SCOPED_FREE char *path = memory_format("%s/run.json", run);
    SCOPED_FREE char *text = file_read(path, RECORD_LIMIT, NULL, error);
    json_t *record = text ? json_loads(text, JSON_REJECT_DUPLICATES, &reason) : NULL;
    if (!text || record) return record;
    error_set(error, ERROR_CHECKPOINT, "%s:%d: %s; remove the file: the run writes a new one when it continues", path, reason.line,
        one_line(reason.text));
    error_find(error, FINDING_DAMAGED);
    return NULL;
}

json_t *lineage_record(const char *run, Error *error) {
    json_t *record;
    for (int attempts = 0; !(record = lineage_read(run, error)) && thread_try_again(error, &attempts);) {}
    if (record || error->finding != FINDING_ABSENT) return record;
    *error = (Error){0};
    return json_object();
}

/* Reads the metadata of a listed checkpoint. Retries a failed read; after that, the error says that
 * the checkpoint is not readable at the moment. */
static json_t *read_checkpoint(const char *where, int64_t step, Error *error) {
    json_t *metadata;
    for (int attempts = 0; !(metadata = checkpoint_metadata(where, step, error));)
        if (!thread_try_again(error, &attempts)) break;
    if (!metadata && error->finding == FINDING_UNREADABLE)
        error_context(error, "the checkpoint of step %lld is not readable at the moment", (long long)step);
    return metadata;
}

/* Returns the metadata of the newest checkpoint that is neither damaged nor removed meanwhile.
 * *newest: the first step of the list, or 0. */
static json_t *read_newest(const char *where, int64_t *newest, int64_t *step, Error *error) {
    SCOPED_FREE int64_t *steps = NULL;
    size_t count = 0;
    *newest = *step = 0;
    if (!checkpoint_list(where, &steps, &count, error)) return NULL;
    json_t *metadata = count ? NULL : json_object();
    bool going = true;
    for (size_t i = 0; i < count && !metadata && going; i++) {
        metadata = read_checkpoint(where, steps[i], error);
        going = error->finding != FINDING_UNREADABLE;
        *step = steps[i];
    }
    if (count) *newest = steps[0];
    return metadata;
}

/* During a training, all listed checkpoints may be replaced by newer ones before they are read. */
json_t *lineage_newest(const char *where, int64_t *step, Error *error) {
    int64_t newest, before = 0;
    json_t *metadata = read_newest(where, &newest, step, error);
    for (; !metadata && newest > before && error->finding != FINDING_UNREADABLE; metadata = read_newest(where, &newest, step, error))
        before = newest;
    return metadata;
}

/* A mixture counts samples phase by phase, each in its own length. */
Position lineage_position(const json_t *metadata, const Config *config) {
    const json_t *phase = json_object_get(metadata, "phase");
    const char *text = json_string_value(json_object_get(json_object_get(metadata, "identity"), "data.length"));
    int64_t length = text ? strtoll(text, NULL, 10) : 0, samples = json_integer_value(json_object_get(metadata, "samples"));
    if (!phase && length > 0) samples = samples * length / config->data.length;
    return (Position){.step = json_integer_value(json_object_get(metadata, "step")),
        .samples = samples,
        .phase_step = json_integer_value(json_object_get(phase, "step"))};
}

/* -- Checkpoints that are gone ------------------------------------------------------------------------------------- */

/* Finds the newest saved step in the run's own records: a checkpoint's record, or a start that
 * continued from one; 0: none. */
static bool known_step(const char *run, int64_t *step, Error *error) {
    json_auto_t *record = lineage_record(run, error);
    const json_t *history = json_object_get(record, "history");
    if (!record || !metrics_last_checkpoint(run, step, error)) return false;
    for (size_t i = 0; i < json_array_size(history); i++) {
        int64_t start = json_integer_value(json_object_get(json_array_get(history, i), "step"));
        if (start > *step) *step = start;
    }
    return true;
}

bool lineage_check_never_saved(const char *run, const Config *config, Error *error) {
    int64_t step = 0;
    if (!known_step(run, &step, error)) return false;
    return !step ||
           error_set(error, ERROR_CHECKPOINT,
               "the records of %s show a checkpoint of step %lld, but %s has none: mount its disk, or restore the folder", run,
               (long long)step, run_checkpoints(run, config)) ||
           error_find(error, FINDING_ABSENT);
}

/* -- Choosing a checkpoint ----------------------------------------------------------------------------------------- */

double lineage_loss(const json_t *metadata) {
    const json_t *validation = json_object_get(metadata, "validation"), *loss = json_object_get(validation, "loss");
    bool own = json_is_real(loss) && json_equal(json_object_get(validation, "step"), json_object_get(metadata, "step"));
    return own ? json_real_value(loss) : NAN;
}

/* Returns whether the losses of two checkpoints were measured over the same targets. */
static bool is_comparable(const json_t *a, const json_t *b) {
    static const char content[] = "data.valid.content";
    const json_t *one = json_object_get(a, "validation"), *other = json_object_get(b, "validation");
    return json_equal(json_object_get(one, "tokens"), json_object_get(other, "tokens")) &&
           json_integer_value(json_object_get(one, "length")) == json_integer_value(json_object_get(other, "length")) &&
           json_equal(json_object_get(json_object_get(a, "identity"), content), json_object_get(json_object_get(b, "identity"), content));
}

/* Returns NULL with FINDING_UNREADABLE if a checkpoint, which may be the best, cannot be read
 * now. */
static json_t *find_best(const char *where, const int64_t *steps, size_t count, int64_t *step, Error *error) {
    json_t *best = NULL;
    json_auto_t *first = NULL;
    for (size_t i = 0; i < count; i++) {
        json_auto_t *metadata = read_checkpoint(where, steps[i], error);
        if (!metadata && error->finding == FINDING_UNREADABLE) {
            json_decref(best);
            return NULL;
        }
        if (isnan(lineage_loss(metadata)) || (first && !is_comparable(first, metadata))) continue;
        if (!first) first = json_incref(metadata);
        if (best && lineage_loss(metadata) > lineage_loss(best)) continue;
        json_decref(best);
        best = json_incref(metadata);
        *step = steps[i];
    }
    return best;
}

static json_t *find_step(const char *where, const int64_t *steps, size_t count, int64_t step, Error *error) {
    for (size_t i = 0; i < count; i++)
        if (steps[i] == step) return read_checkpoint(where, step, error);
    error_set(error, ERROR_CHECKPOINT, "no checkpoint of step %lld exists", (long long)step);
    error_find(error, FINDING_ABSENT);
    return NULL;
}

static void steps_text(const int64_t *steps, size_t count, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, count ? "existing steps: " : "no checkpoint exists");
    for (size_t i = 0; i < count && i < 10; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)steps[i]);
    if (count > 10) snprintf(text + used, size - used, ", and %zu older", count - 10);
}

json_t *lineage_at(const RunPoint *point, const Config *config, int64_t *step, Error *error) {
    const char *where = run_checkpoints(point->run, config);
    SCOPED_FREE int64_t *steps = NULL;
    size_t count = 0;
    char known[256];
    if (point->step == RUN_NEWEST) return lineage_newest(where, step, error);
    if (!checkpoint_list(where, &steps, &count, error)) return NULL;
    *step = point->step;
    if (!count && !lineage_check_never_saved(point->run, config, error)) return NULL;
    json_t *metadata = point->step == RUN_BEST ? find_best(where, steps, count, step, error) : find_step(where, steps, count, *step, error);
    if (metadata || (error->code && error->finding == FINDING_UNREADABLE)) return metadata;
    steps_text(steps, count, known, sizeof known);
    if (point->step == RUN_BEST)
        error_set(error, ERROR_CHECKPOINT,
            "%s has no checkpoint with a validation loss, so the best one is not known: train with eval.every and "
            "checkpoint.keep_best=true, or choose another checkpoint (%s)",
            point->run, known);
    else
        error_set(error, ERROR_CHECKPOINT, "%s@%lld: %s (%s)%s", point->run, (long long)point->step, error->message, known,
            count && point->step < steps[0] ? "; checkpoint.keep and checkpoint.keep_every decide which ones are kept" : "");
    return NULL;
}

bool lineage_settings(const RunPoint *point, Config *config, OptionStrings *strings, Error *error) {
    int64_t step;
    json_auto_t *record = lineage_record(point->run, error), *chosen = record ? lineage_at(point, config, &step, error) : NULL;
    return chosen && identity_restore(json_object_get(chosen, "identity"), json_object_get(record, "identity"), config, strings, error);
}

bool lineage_phase(const RunPoint *point, Config *config, OptionStrings *strings, Error *error) {
    int64_t step;
    const char *name;
    json_t *value;
    json_auto_t *chosen = lineage_at(point, config, &step, error);
    json_object_foreach(json_object_get(json_object_get(chosen, "phase"), "settings"), name, value) {
        SCOPED_FREE char *setting = memory_format("%s=%s", name, json_string_value(value));
        if (!options_set(&config_table, config, strings, setting, error)) return false;
    }
    return chosen && config_check(config, error);
}

const char *lineage_number(const json_t *identity) {
    const char *number = json_string_value(json_object_get(identity, "run"));
    return number ? number : "";
}

/* -- A start ------------------------------------------------------------------------------------------------------- */

static bool draw_number(char number[RUN_NUMBER_DIGITS + 1], Error *error) {
    unsigned char bytes[RUN_NUMBER_DIGITS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return error_set(error, ERROR_INTERNAL, "cannot draw a random run number: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(number + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

/* Called before the lease of the store is taken, so that a start of another run never takes it. */
static bool compare_settings(const Config *config, const Origin *origin, const json_t *newest, Error *error) {
    const json_t *identity = json_object_get(newest, "identity");
    json_auto_t *saved = identity_saved_settings(identity), *changes = json_array();
    json_auto_t *now = identity_settings(config, false);
    if (!origin->forked && json_object_get(identity, "run")) {
        json_object_set(saved, "run", json_object_get(identity, "run"));
        json_object_set_new(now, "run", json_string(origin->number));
    }
    return identity_check(config->run, saved, now, config->resume.accept, changes, error);
}

/* Returns the metadata of the checkpoint that a start continues from: the run's newest or, for a
 * fork without checkpoints, the chosen one of its origin; {} for a new run. NULL on failure. */
static json_t *find_start(const Config *config, Origin *origin, Error *error) {
    Config base;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    RunPoint point = {(char *)config->fork, origin->forked ? origin->step : config->from};
    json_auto_t *newest = origin->forked ? NULL : lineage_newest(run_checkpoints(config->run, config), &origin->step, error);
    if (!origin->forked && (!newest || origin->step || !config->fork[0])) return json_incref(newest);
    origin->forked = true;
    if (!run_read_config(config->fork, &base, &strings, error)) return NULL;
    json_t *chosen = lineage_at(&point, &base, &origin->step, error);
    snprintf(origin->base, sizeof origin->base, "%s", lineage_number(json_object_get(chosen, "identity")));
    if (origin->step || !chosen) return chosen;
    json_decref(chosen);
    error_set(error, ERROR_CHECKPOINT, "%s has no checkpoint to fork from: train it first", config->fork);
    return NULL;
}

/* A started run is continued by the command that forked it, and by no other fork=. */
static bool check_fork(const Config *config, const json_t *record, const Origin *origin, Error *error) {
    const json_t *fork = json_object_get(record, "fork");
    const char *folder = json_string_value(json_object_get(fork, "folder")), *number = json_string_value(json_object_get(fork, "run"));
    int64_t from = json_integer_value(json_object_get(fork, "step"));
    if (!config->fork[0] && fork && !origin->step)
        return error_set(error, ERROR_USAGE, "%s is a fork without a checkpoint: repeat smelt train %s fork=%s from=%lld", config->run,
            folder, config->run, (long long)from);
    if (!config->fork[0] || origin->forked) return true;
    json_auto_t *base = lineage_record(config->fork, error);
    if (!base) return false;
    bool same = number && !strcmp(number, lineage_number(json_object_get(base, "identity"))) && (config->from <= 0 || config->from == from);
    return same || error_set(error, ERROR_USAGE,
                       "%s is already a run, but not a fork of %s at this step: continue it with smelt train %s, or fork into a new folder",
                       config->run, config->fork, config->run);
}

/* If a packed copy is missing, the text is repacked and must equal the copy's source. Other
 * validation text may come under another path. */
static bool check_copy(const Config *config, const char *run, const json_t *saved, bool valid, Error *error) {
    const char *setting = valid ? "data.valid" : "data.train", *path = valid ? config->data.valid : config->data.train;
    SCOPED_FREE char *name = memory_format("%s.text", setting), *absolute = options_absolute_path(path);
    const json_t *before = json_object_get(saved, name);
    const char *known = json_string_value(json_object_get(saved, setting));
    bool other = valid && known && strcmp(known, absolute) != 0;
    if (!before || other || shard_set_exists(path) || !file_exists(path) || identity_accepts(config->resume.accept, name)) return true;
    if (corpus_keeps(run, valid ? absolute : NULL)) return true;
    json_auto_t *now = identity_of_text(path, valid, error);
    return now && (json_equal(now, before) || error_set(error, ERROR_USAGE,
                                                  "%s=%s is not the text that %s was started with, and the packed copy in %s/data is "
                                                  "missing: restore one of them, or set resume.accept=%s to pack the current text",
                                                  setting, path, run, run, setting));
}

static bool check_store_copies(const Config *config, const Origin *origin, const json_t *newest, Error *error) {
    const json_t *saved = json_object_get(newest, "identity");
    const char *run = origin->forked ? config->fork : config->run;
    return check_copy(config, run, saved, false, error) && check_copy(config, run, saved, true, error);
}

static bool is_there(const char *path) { return file_exists(path) || source_is_run(path) || adapter_is_folder(path); }

/* Refuses a given path that names nothing, if neither the checkpoint nor the last start had it: the
 * run would continue with its copy as if the path were used. */
static bool check_given(const Config *config, const Origin *origin, const json_t *saved, Error *error) {
    json_auto_t *now = identity_settings(config, false);
    json_auto_t *record = lineage_record(origin->forked ? config->fork : config->run, error);
    if (!record) return false;
    const json_t *last = json_object_get(record, "identity");
    for (const Option *option = config_table.rows; option < config_table.rows + config_table.count; option++) {
        const json_t *path = option->path ? json_object_get(now, option->name) : NULL;
        const char *given = json_string_value(path);
        if (!given || !*given || !strcmp(given, NO_TOKENIZER) || is_there(given) || remote_is(given) || shard_set_exists(given)) continue;
        if (!json_equal(path, json_object_get(saved, option->name)) && !json_equal(path, json_object_get(last, option->name)))
            return error_set(error, strcmp(option->name, "init") ? ERROR_DATA : ERROR_CHECKPOINT,
                "%s=%s does not exist: correct the path, or remove the setting to continue with the copy in %s", option->name, given,
                config->run);
    }
    return true;
}

/* Checks that a start without a checkpoint loses nothing: the run never had a checkpoint. */
static bool may_begin(const Config *config, Error *error) {
    if (identity_accepts(config->resume.accept, "checkpoints") || lineage_check_never_saved(config->run, config, error)) return true;
    return error->finding == FINDING_ABSENT &&
           error_set(error, error->code,
               "%s; to start again at step 0, set resume.accept=checkpoints; to start another run, set another run=FOLDER", error->message);
}

/* If run.json is missing, a folder takes the number of the checkpoints inside it; the checkpoints
 * of an external store may be another run's. */
bool lineage_find(const Config *config, Origin *origin, Error *error) {
    json_auto_t *newest = find_start(config, origin, error);
    json_auto_t *record = newest ? lineage_record(config->run, error) : NULL;
    const char *known = lineage_number(json_object_get(record, "identity"));
    if (!record || !check_fork(config, record, origin, error)) return false;
    if (!origin->step && !may_begin(config, error)) return false;
    const json_t *saved = json_object_get(newest, "identity");
    origin->at = lineage_position(newest, config);
    if (!*known && !config->checkpoint.store[0] && !origin->forked) known = lineage_number(saved);
    if (strlen(known) == RUN_NUMBER_DIGITS) memcpy(origin->number, known, RUN_NUMBER_DIGITS + 1);
    else if (!draw_number(origin->number, error)) return false;
    return !origin->step || (compare_settings(config, origin, newest, error) && check_given(config, origin, saved, error) &&
                                check_store_copies(config, origin, newest, error));
}

char *lineage_store(const Config *config, const Origin *origin, Error *error) {
    Config base;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    if (!origin->forked) return memory_copy_string(run_checkpoints(config->run, config));
    return run_read_config(config->fork, &base, &strings, error) ? memory_copy_string(run_checkpoints(config->fork, &base)) : NULL;
}

static json_t *describe_start(int64_t step, const Computer *computer, json_t *changes) {
    char text[32];
    time_t now = time(NULL);
    struct tm parts;
    SCOPED_FREE char *machine = run_describe_machine();
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    return json_pack("{s:s, s:I, s:s, s:s, s:i, s:s, s:O}", "time", text, "step", (json_int_t)step, "version", SMELT_VERSION, "machine",
        machine, "ranks", computer->ranks, "device", computer->device, "changes", changes);
}

/* Returns run.json's description of a fork; NULL for other runs. */
static json_t *describe_fork(const Config *config, const Origin *origin, const json_t *record) {
    if (!origin->forked) return json_incref(json_object_get(record, "fork"));
    SCOPED_FREE char *folder = options_absolute_path(config->fork);
    return json_pack("{s:s, s:s, s:I}", "run", origin->base, "folder", folder, "step", (json_int_t)origin->step);
}

/* Other ranks sum in another order, and other kernels and libraries round differently. */
static void warn_of_other_bits(const json_t *before, const json_t *start) {
    const char *device = json_string_value(json_object_get(before, "device")), *now = json_string_value(json_object_get(start, "device"));
    json_int_t ranks = json_integer_value(json_object_get(before, "ranks")), here = json_integer_value(json_object_get(start, "ranks"));
    json_int_t step = json_integer_value(json_object_get(start, "step"));
    if (step && device && (strcmp(device, now) || ranks != here))
        log_warn("bits may differ from step %lld on: %lld rank%s of %s before, %lld of %s now", (long long)step, (long long)ranks,
            plural(ranks), device, (long long)here, now);
}

static bool write_run_record(const Config *config, const Origin *origin, const json_t *identity, json_t *start, Error *error) {
    json_auto_t *record = lineage_record(config->run, error);
    if (!record) {
        json_decref(start);
        return false;
    }
    json_t *known = json_object_get(record, "history"), *history = json_is_array(known) ? json_incref(known) : json_array();
    size_t count = json_array_size(history);
    if (count > 0) warn_of_other_bits(json_array_get(history, count - 1), start);
    json_array_append_new(history, start);
    json_auto_t *content = json_pack("{s:i, s:O, s:o*, s:o}", "format", RUN_FORMAT, "identity", identity, "fork",
        describe_fork(config, origin, record), "history", history);
    SCOPED_FREE char *text = json_dumps(content, JSON_INDENT(1)), *path = memory_format("%s/run.json", config->run);
    return file_write(path, text, (int64_t)strlen(text), error);
}

/* A setting whose path a started run does not read: it continues with its copy. */
typedef struct KeptIdentity {
    const char *setting, *path; /* "data.train" and its present value */
    const char *content;        /* the identity's name of its content */
    const char *copy;           /* the copy, for messages */
} KeptIdentity;

/* Settles the content of `kept` in `identity`. It is the saved content, unless the path is another
 * one with other content: then it is `there` (NULL: missing), for the comparison that follows. */
static void settle(const KeptIdentity *kept, const json_t *saved, json_t *identity, json_t *there) {
    json_t *before = json_object_get(saved, kept->content), *path = json_object_get(saved, kept->setting);
    bool same_path = json_equal(path, json_object_get(identity, kept->setting)), changed = there && before && !json_equal(there, before);
    if (before && !there) log_info("%s=%s is missing: using %s", kept->setting, kept->path, kept->copy);
    if (changed && same_path)
        log_warn("%s=%s has changed since the run was started: still using %s; resume.accept=%s takes the new content", kept->setting,
            kept->path, kept->copy, kept->setting);
    if (!before) json_object_del(identity, kept->content);
    else json_object_set(identity, kept->content, changed && !same_path ? there : before);
}

/* Settles the text of `setting`. The text is read again only for comparison. `saved` is NULL for a
 * run that has not started. */
static bool settle_text(const Config *config, const char *setting, const char *path, const json_t *saved, json_t *identity, Error *error) {
    SCOPED_FREE char *copy = memory_format("the packed copy in %s/data", config->run), *name = memory_format("%s.text", setting);
    bool text = *path && corpus_is_text(config, path), read = text && (remote_is(path) || is_there(path));
    json_auto_t *there = read ? corpus_identify_text(config, path, !strcmp(setting, "data.valid"), error) : NULL;
    json_t *before = json_object_get(saved, name);
    if (read && !there) return false;
    if (text && saved && !identity_accepts(config->resume.accept, name))
        settle(&(KeptIdentity){setting, path, name, copy}, saved, identity, there);
    else if (there || before) json_object_set(identity, name, there ? there : before); /* if a shard replaces text, the content decides */
    return true;
}

/* A source that is new to the run has nothing to compare. */
static bool settle_source(const Config *config, const MixtureSource *source, const json_t *saved, json_t *identity, Error *error) {
    SCOPED_FREE char *setting = memory_format("data.train.source.%s", source->name), *name = memory_format("%s.text", setting);
    const json_t *known = json_object_get(saved, name) ? saved : NULL;
    return settle_text(config, setting, source->path, known, identity, error);
}

static bool settle_texts(const Config *config, const Phases *phases, const json_t *saved, json_t *identity, Error *error) {
    const Mixture *mixture = &phases->mixture;
    if (model_makes_images(&config->model) || config->model.policy.loss) return true; /* images and prompts are read in place */
    bool settled = settle_text(config, "data.valid", config->data.valid, saved, identity, error);
    if (!mixture_is(config->data.train)) return settled && settle_text(config, "data.train", config->data.train, saved, identity, error);
    for (int i = 0; i < mixture->source_count; i++)
        settled = settled && settle_source(config, &mixture->sources[i], saved, identity, error);
    return settled;
}

static bool settle_tokenizer(const Config *config, const json_t *saved, json_t *identity, Error *error) {
    const char *path = config->data.tokenizer;
    SCOPED_FREE char *copy = memory_format("%s/tokenizer", config->run);
    json_t *now = json_object_get(identity, "data.tokenizer.content");
    if (!*path || !strcmp(path, NO_TOKENIZER) || identity_accepts(config->resume.accept, "data.tokenizer")) return true;
    bool differs = false, given = is_there(path);
    if (given && !tokenizer_differs(path, copy, &differs, error)) return false;
    json_auto_t *there = !given ? NULL : differs ? json_sprintf("that of %s", path) : json_incref(now);
    settle(&(KeptIdentity){"data.tokenizer", path, "data.tokenizer.content", copy}, saved, identity, there);
    return true;
}

/* Adapters train on the present base, which identity_create has described. */
static bool settle_init(const Config *config, const json_t *saved, json_t *identity, Error *error) {
    const char *path = config->init;
    if (config->lora.rank || !*path || identity_accepts(config->resume.accept, "init")) return true;
    bool same_path = json_equal(json_object_get(saved, "init"), json_object_get(identity, "init"));
    json_t *before = json_object_get(saved, "init.content");
    bool exists = is_there(path);
    json_auto_t *there = !exists ? NULL : same_path ? json_incref(before) : identity_of_source(path, error);
    if (exists && !same_path && !there) return false;
    settle(&(KeptIdentity){"init", path, "init.content", "the weights of the newest checkpoint"}, saved, identity, there);
    return true;
}

/* Reports a jump of the learning rate from the last step to the next one. */
static void note_rate(const Config *config, const json_t *saved, int64_t step, json_t *changes) {
    Config before = *config;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Error invalid = {0};
    if (step >= config->steps || !identity_restore(saved, NULL, &before, &strings, &invalid)) return;
    double last = schedule_lr(&before.schedule, before.optimizer.lr, step, before.steps);
    double as_before = schedule_lr(&before.schedule, before.optimizer.lr, step + 1, before.steps);
    double next = schedule_lr(&config->schedule, config->optimizer.lr, step + 1, config->steps);
    if (as_before != next) json_array_append_new(changes, json_sprintf("the learning rate: %.3g -> %.3g", last, next));
}

/* Reads the checkpoint again, because another run may have saved before this one took the store. */
bool lineage_compare(const Config *config, const Phases *phases, const Origin *origin, json_t *identity, json_t *changes, Error *error) {
    Origin again = *origin;
    if (!origin->step) return settle_texts(config, phases, NULL, identity, error);
    json_auto_t *newest = find_start(config, &again, error);
    json_t *saved = json_object_get(newest, "identity");
    if (origin->forked) json_object_set(saved, "run", json_object_get(identity, "run"));
    if (!newest || !settle_texts(config, phases, saved, identity, error) || !settle_init(config, saved, identity, error) ||
        !settle_tokenizer(config, saved, identity, error))
        return false;
    int begun = (int)json_integer_value(json_object_get(json_object_get(newest, "phase"), "begun"));
    if (begun) identity_settle_mixture(saved, identity, phases, begun, changes);
    if (!identity_check(config->run, saved, identity, config->resume.accept, changes, error)) return false;
    note_rate(config, saved, origin->step, changes);
    return true;
}

/* Returns whether RUN/config.yaml has the settings of this start. */
static bool is_remembered(const Config *config) {
    Config saved, now = *config;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Error absent = {0};
    if (!run_read_config(config->run, &saved, &strings, &absent)) return false;
    options_remember(&config_table, &now, &strings);
    return options_difference(&config_table, &saved, &now, NULL, 0) == 0;
}

bool lineage_write(
    const Config *config, const Origin *origin, const Computer *computer, const json_t *identity, json_t *changes, Error *error) {
    char when[64] = " once the run continues"; /* the run is finished */
    if (origin->step < config->steps) snprintf(when, sizeof when, " from step %lld on", (long long)origin->step + 1);
    for (size_t i = 0; i < json_array_size(changes); i++) log_info("%s%s", json_string_value(json_array_get(changes, i)), when);
    return write_run_record(config, origin, identity, describe_start(origin->step, computer, changes), error) &&
           (is_remembered(config) || run_write_config(config, error));
}

/* -- Reading a run ------------------------------------------------------------------------------------------------- */

/* Settings that phases change are not differences. */
bool lineage_check_weights(const char *run, const json_t *metadata, const Config *config, Error *error) {
    const char *name;
    json_t *value;
    json_auto_t *record = lineage_record(run, error), *saved = json_copy(json_object_get(metadata, "identity"));
    json_object_foreach(json_object_get(json_object_get(metadata, "phase"), "settings"), name, value) json_object_del(saved, name);
    if (!record) return false;
    const char *own = lineage_number(json_object_get(record, "identity")), *theirs = lineage_number(saved);
    if (*own && *theirs && strcmp(own, theirs))
        return error_set(error, ERROR_CHECKPOINT,
            "%s is run %s, but the newest checkpoint in %s belongs to run %s: use the folder of that run", run, own,
            run_checkpoints(run, config), theirs);
    return identity_check_model(run, saved, config, error);
}

bool lineage_check_base(const char *run, const Config *config, const char *base, Error *error) {
    int64_t step;
    SCOPED(run_point_free) RunPoint point = run_point(run);
    json_auto_t *newest = lineage_at(&point, config, &step, error), *now = newest ? identity_of_base(base, point.run, false, error) : NULL;
    const char *then = json_string_value(json_object_get(json_object_get(newest, "identity"), "init.content"));
    if (!now) return false;
    if (!then || identity_same_content(then, json_string_value(now))) return true;
    return strcmp(base, config->init) != 0
               ? error_set(error, ERROR_CHECKPOINT,
                     "the adapters of %s were trained with init=%s as %s, but the content of %s is %s: use the model that they were "
                     "trained "
                     "with",
                     run, config->init, then, base, json_string_value(now))
               : error_set(error, ERROR_CHECKPOINT,
                     "the adapters of %s were trained with init=%s as %s, but its content is now %s: restore the earlier base", run,
                     config->init, then, json_string_value(now));
}
