/* The run folder and its configuration. Owns only the lock from run_lock. Called by the training
 * loop and all readers of runs. */
#include "run/run.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/ckpt.h"
#include "run/identity.h"
#include "run/lineage.h"

/* The first line of a config.yaml that a start without checkpoints may replace. A file without this
 * line was written by someone else. */
static const char mark[] = "# Written by smelt train; it changes with the command. `smelt train` and this folder continue the run.\n";

bool run_lock(const char *run, int *lock, Error *error) {
    if (run[0] == '\0') return error_set(error, ERROR_USAGE, "run is not set: set it to a folder, such as run=runs/first");
    if (!file_make_folder(run, error)) return false;
    if (file_lock(run, lock)) return true;
    return errno != EWOULDBLOCK
               ? file_fail(error, "lock", run)
               : error_set(error, ERROR_USAGE, "another process is training in %s: wait for it, stop it, or use another run folder", run);
}

const char *run_checkpoints(const char *run, const Config *config) { return config->checkpoint.store[0] ? config->checkpoint.store : run; }

/* Returns whether there is a checkpoint, good or not. Before the first one a run is not bound to its
 * settings or its packed text. */
static bool has_checkpoint(const Config *config, bool *started, Error *error) {
    SCOPED_FREE int64_t *steps = NULL;
    size_t count = 0;
    bool listed = checkpoint_list(run_checkpoints(config->run, config), &steps, &count, error);
    *started = count > 0;
    return listed;
}

static bool is_marked(const char *path) {
    char start[sizeof mark];
    return file_read_start(path, start, sizeof start) > 0 && !strcmp(start, mark);
}

bool run_write_config(const Config *config, Error *error) {
    SCOPED_FREE char *text = NULL, *path = memory_format("%s/config.yaml", config->run);
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    if (!stream) return error_set(error, ERROR_INTERNAL, "open_memstream: %s", strerror(errno));
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Config remembered = *config;
    options_remember(&config_table, &remembered, &strings);
    fputs(mark, stream);
    options_write_yaml(&config_table, &remembered, stream);
    fclose(stream);
    return file_write(path, text, (int64_t)length, error);
}

/* -- Formats -------------------------------------------------------------------------------------------------------- */

/* Returns the format that RUN/run.json names. Old builds wrote none: format 0. */
static int64_t format_of(const json_t *record) { return json_integer_value(json_object_get(record, "format")); }

static bool check_format(const char *run, const json_t *record, Error *error) {
    int64_t format = format_of(record);
    return format <= RUN_FORMAT ||
           error_set(error, ERROR_CHECKPOINT,
               "%s has run format %lld, but this build reads only formats up to %d: use the newer build that wrote it", run,
               (long long)format, RUN_FORMAT);
}

/* Adds remedies to the error of an older build's config.yaml. */
static bool explain_format(const char *run, const json_t *record, Error *error) {
    const json_t *history = json_object_get(record, "history"), *last = json_array_get(history, json_array_size(history) - 1);
    const char *version = json_string_value(json_object_get(last, "version")), *time = json_string_value(json_object_get(last, "time"));
    Error reason = *error;
    return error_set(error, ERROR_CHECKPOINT,
        "%s has run format %lld of smelt %s%s%s, and this build (run format %d) does not know one of its settings (%s): continue with the "
        "build that wrote it, or export its weights with that build (smelt convert %s FOLDER) and start from them (init=FOLDER)",
        run, (long long)format_of(record), version ? version : "of an unknown version", time ? ", started at " : "", time ? time : "",
        RUN_FORMAT, reason.message, run);
}

/* Reads the settings of RUN/config.yaml over the present values. */
static bool read_settings(const char *run, Config *config, OptionStrings *strings, Error *error) {
    Error unread = {0};
    SCOPED_FREE char *path = memory_format("%s/config.yaml", run);
    json_auto_t *record = lineage_record(run, &unread);
    if (!record && unread.finding == FINDING_UNREADABLE) {
        *error = unread;
        return error_context(error, "cannot determine the format of the run");
    }
    if (!check_format(run, record, error)) return false;
    return options_read_yaml(&config_table, config, strings, path, error) ||
           (format_of(record) < RUN_FORMAT && explain_format(run, record, error));
}

static bool same_run(const char *path, const Config *config, Error *error) {
    Config saved;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    options_defaults(&config_table, &saved, &strings);
    if (!read_settings(config->run, &saved, &strings, error) || !config_check(&saved, error))
        return error_recode(error, ERROR_CHECKPOINT) || error_context(error, "%s", path);
    json_auto_t *before = identity_settings(&saved, false), *now = identity_settings(config, false), *changes = json_array();
    return identity_check(config->run, before, now, config->resume.accept, changes, error);
}

/* Returns whether a new start loses nothing: there are no checkpoints at the location of its saved
 * configuration either. */
static bool may_start_anew(const Config *config, Error *error) {
    Config saved;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    bool started;
    options_defaults(&config_table, &saved, &strings);
    if (!read_settings(config->run, &saved, &strings, error)) return false;
    if (!strcmp(saved.checkpoint.store, config->checkpoint.store)) return true;
    saved.run = config->run;
    if (!has_checkpoint(&saved, &started, error)) return false;
    return !started ||
           error_set(error, ERROR_USAGE,
               "%s has checkpoints in %s, but %s has none: move the checkpoints, or set checkpoint.store as when the run was started",
               config->run, run_checkpoints(config->run, &saved), run_checkpoints(config->run, config));
}

/* Removes leftovers of the files that only a training writes; their lock is held. */
static void remove_run_leftovers(const char *run) {
    static const char *const names[] = {"config.yaml", "run.json", "metrics.jsonl", "lease.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) file_remove_partials(run, names[i], NULL);
}

bool run_is_ours(const char *run) {
    static const char *const names[] = {"config.yaml", "run.json", "metrics.jsonl", "lease.json", "log.txt", "report.html", "checkpoints",
        "data", "tokenizer", "tensorboard"};
    SCOPED(file_list_free) FileList list = {0};
    Error ignored = {0};
    if (file_kind(run, NULL) != FILE_FOLDER || !file_list(run, &list, &ignored)) return true; /* locking reports the reason */
    for (size_t i = 0; i < list.count; i++) {
        bool known = false;
        for (size_t j = 0; j < sizeof names / sizeof *names; j++)
            known |= starts_with(list.entries[i].name, names[j]); /* including partial ones */
        if (!known && *list.entries[i].name != '.') return false;
    }
    return true;
}

bool run_open(const Config *config, Error *error) {
    bool started;
    remove_run_leftovers(config->run);
    if (!file_make_folder(config->run, error) || !has_checkpoint(config, &started, error)) return false;
    SCOPED_FREE char *path = memory_format("%s/config.yaml", config->run);
    bool exists = file_exists(path), replaced = exists && !started && is_marked(path);
    if (exists && !replaced) return same_run(path, config, error);
    bool later = started || config->fork[0]; /* a fork becomes a run once its record says so */
    return later || ((!replaced || may_start_anew(config, error)) && run_write_config(config, error));
}

bool run_read_config(const char *run, Config *config, OptionStrings *strings, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/config.yaml", run);
    options_defaults(&config_table, config, strings);
    SCOPED(run_point_free) RunPoint point = run_point(run);
    if (point.step != RUN_NEWEST)
        return error_set(error, ERROR_CHECKPOINT, "%s is a checkpoint, but a run is needed: use %s", run, point.run);
    if (!file_exists(path)) return error_set(error, ERROR_CHECKPOINT, "%s is not a run folder: it has no config.yaml", run);
    if (!read_settings(run, config, strings, error)) return false;
    options_remember(&config_table, config, strings);
    return config_check(config, error);
}

/* -- Naming a checkpoint ------------------------------------------------------------------------------------------- */

static bool is_run(const char *folder) {
    SCOPED_FREE char *path = memory_format("%s/config.yaml", folder);
    return file_exists(path);
}

/* Returns the step in a text of digits; 0: not a step. */
static int64_t read_step(const char *digits, size_t length) {
    return length && length < 18 && strspn(digits, "0123456789") >= length ? strtoll(digits, NULL, 10) : 0;
}

/* Splits RUN@STEP and RUN@best. */
static bool split_at(const char *name, RunPoint *point) {
    const char *at = strrchr(name, '@'), *which = at ? at + 1 : "";
    int64_t step = !strcmp(which, "best") ? RUN_BEST : read_step(which, strlen(which));
    if (step == RUN_NEWEST) return false;
    *point = (RunPoint){memory_format("%.*s", (int)(at - name), name), step};
    return true;
}

/* Splits RUN/checkpoints/step-00000040, or checkpoints/step-00000040 inside RUN. */
static bool split_path(const char *name, RunPoint *point) {
    static const char inner[] = "checkpoints/step-";
    const char *end = name + path_length(name), *digits = end;
    while (digits > name && digits[-1] >= '0' && digits[-1] <= '9') digits--;
    const char *begin = digits - name >= (ptrdiff_t)(sizeof inner - 1) ? digits - (sizeof inner - 1) : name;
    int64_t step = read_step(digits, (size_t)(end - digits));
    if (!step || strncmp(begin, inner, sizeof inner - 1) || (begin > name && begin[-1] != '/')) return false;
    *point = (RunPoint){begin == name ? memory_copy_string(".") : memory_format("%.*s", (int)(begin - name - 1), name), step};
    return true;
}

RunPoint run_point(const char *name) {
    RunPoint point = {0};
    bool chosen = !is_run(name) && (split_at(name, &point) || split_path(name, &point));
    if (chosen && is_run(point.run)) return point;
    run_point_free(&point);
    return (RunPoint){memory_copy_string(name), RUN_NEWEST};
}

void run_point_free(RunPoint *point) {
    free(point->run);
    *point = (RunPoint){0};
}

char *run_describe_machine(void) {
    char info[4096]; /* enough for the first CPU */
    file_read_start("/proc/cpuinfo", info, sizeof info);
    char *line = strstr(info, "model name"), *model = line ? strchr(line, ':') : NULL;
    if (model) model += strspn(model, ": ");
    return memory_format(
        "%.*s, %ld cores", model ? (int)strcspn(model, "\n") : 11, model ? model : "unknown CPU", sysconf(_SC_NPROCESSORS_ONLN));
}
