/* Reads and writes RUN/run.json. Owns nothing but what it returns. Called when a run starts, and by `smelt show`. */
#include "train/lineage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/version.h"
#include "ckpt/ckpt.h"
#include "train/identity_internal.h"
#include "train/run.h"

enum { RECORD_LIMIT = 64 << 20 };

json_t *lineage_newest(const char *where, int64_t *step, Error *error) {
    SCOPED_FREE int64_t *steps = NULL;
    size_t count = 0;
    *step = 0;
    if (!checkpoint_list(where, &steps, &count, error)) return NULL;
    json_t *metadata = count ? NULL : json_object();
    for (size_t i = 0; i < count && !metadata; i++) {
        metadata = checkpoint_metadata(where, steps[i], error);
        *step = steps[i];
    }
    return metadata;
}

json_t *lineage_read(const char *run, Error *error) {
    json_error_t reason;
    SCOPED_FREE char *path = memory_format("%s/run.json", run);
    SCOPED_FREE char *text = file_read(path, RECORD_LIMIT, NULL, error);
    json_t *record = text ? json_loads(text, JSON_REJECT_DUPLICATES, &reason) : NULL;
    if (text && !record)
        error_set(error, ERROR_CHECKPOINT, "%s:%d: %s; remove it, and a new one is written when the run continues", path, reason.line,
            reason.text);
    return record;
}

const char *lineage_number(const json_t *identity) {
    const char *number = json_string_value(json_object_get(identity, "run"));
    return number ? number : "";
}

/* -- A start ------------------------------------------------------------------------------------------------------- */

static bool draw_number(char number[RUN_NUMBER_DIGITS + 1], Error *error) {
    unsigned char bytes[RUN_NUMBER_DIGITS / 2];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
        return error_set(error, ERROR_INTERNAL, "no random number for the run: %s", strerror(errno));
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(number + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

static bool compare_settings(const Config *config, const json_t *newest, Error *error) {
    json_auto_t *saved = identity_saved_settings(json_object_get(newest, "identity")), *changes = json_array();
    json_auto_t *now = identity_settings(config, false);
    return identity_check(config->run, saved, now, config->resume.accept, changes, error);
}

/* A folder that has lost run.json takes the number of the checkpoints inside it; those of a store elsewhere may be another
 * run's. */
bool lineage_find(const Config *config, Origin *origin, Error *error) {
    Error absent = {0};
    json_auto_t *newest = lineage_newest(run_checkpoints(config->run, config), &origin->step, error);
    json_auto_t *record = lineage_read(config->run, &absent);
    const char *known = lineage_number(json_object_get(record, "identity"));
    if (!newest || (origin->step && !compare_settings(config, newest, error))) return false;
    if (!*known && !config->checkpoint.store[0]) known = lineage_number(json_object_get(newest, "identity"));
    if (strlen(known) != RUN_NUMBER_DIGITS) return draw_number(origin->number, error);
    memcpy(origin->number, known, RUN_NUMBER_DIGITS + 1);
    return true;
}

static json_t *describe_start(int64_t step, json_t *changes) {
    char text[32];
    time_t now = time(NULL);
    struct tm parts;
    SCOPED_FREE char *machine = run_describe_machine();
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
    return json_pack("{s:s, s:I, s:s, s:s, s:O}", "time", text, "step", (json_int_t)step, "version", SMELT_VERSION, "machine", machine,
        "changes", changes);
}

static bool write_record(const char *run, const json_t *identity, json_t *start, Error *error) {
    Error absent = {0};
    json_auto_t *record = lineage_read(run, &absent);
    json_t *known = json_object_get(record, "history"), *history = json_is_array(known) ? json_incref(known) : json_array();
    json_array_append_new(history, start);
    json_auto_t *content = json_pack("{s:O, s:o}", "identity", identity, "history", history);
    SCOPED_FREE char *text = json_dumps(content, JSON_INDENT(1)), *path = memory_format("%s/run.json", run);
    return file_write(path, text, (int64_t)strlen(text), error);
}

/* The weights of init= are read by the first start alone, so later ones know them from the checkpoint. */
bool lineage_compare(const Config *config, const Origin *origin, json_t *identity, json_t *changes, Error *error) {
    int64_t step;
    if (!origin->step) return true;
    json_auto_t *newest = lineage_newest(run_checkpoints(config->run, config), &step, error);
    json_t *saved = json_object_get(newest, "identity"), *init = json_object_get(saved, "init.content");
    if (init && !json_object_get(identity, "init.content")) json_object_set(identity, "init.content", init);
    return newest && identity_check(config->run, saved, identity, config->resume.accept, changes, error);
}

bool lineage_write(const Config *config, const Origin *origin, const json_t *identity, json_t *changes, Error *error) {
    SCOPED_FREE char *settings = memory_format("%s/config.yaml", config->run);
    for (size_t i = 0; i < json_array_size(changes); i++)
        log_warn("resume.accept allows another %s", json_string_value(json_array_get(changes, i)));
    if ((config->resume.accept[0] || !file_exists(settings)) && !run_write_config(config, error)) return false;
    return write_record(config->run, identity, describe_start(origin->step, changes), error);
}

/* -- Reading a run ------------------------------------------------------------------------------------------------- */

bool lineage_check_weights(const char *run, const json_t *metadata, const Config *config, Error *error) {
    Error absent = {0};
    json_auto_t *record = lineage_read(run, &absent);
    const json_t *saved = json_object_get(metadata, "identity");
    const char *own = lineage_number(json_object_get(record, "identity")), *theirs = lineage_number(saved);
    if (*own && *theirs && strcmp(own, theirs))
        return error_set(error, ERROR_CHECKPOINT, "%s is run %s, but the newest checkpoint in %s is of run %s: give the folder of that run",
            run, own, run_checkpoints(run, config), theirs);
    return identity_check_model(run, saved, config, error);
}

bool lineage_check_base(const char *run, const Config *config, Error *error) {
    int64_t step;
    json_auto_t *newest = lineage_newest(run_checkpoints(run, config), &step, error),
                *now = newest ? identity_of_source(config->init, error) : NULL;
    const char *then = json_string_value(json_object_get(json_object_get(newest, "identity"), "init.content"));
    if (!now) return false;
    return !then || !strcmp(then, json_string_value(now)) ||
           error_set(error, ERROR_CHECKPOINT,
               "the adapters of %s were trained beside init=%s as %s, and it is %s now: bring the former back", run, config->init, then,
               json_string_value(now));
}
