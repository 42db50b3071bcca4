/* Reads a run folder for the pages. Its author is not trusted: texts are stored unchanged and
 * escaped when they are printed. A RunView owns everything that it points to. Called by
 * report.c. */
#include "report/view_internal.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "run/lineage.h"
#include "run/run.h"
#include "run/source.h"

enum { CONFIG_LIMIT = 1 << 20 }; /* bytes, as in base/options.h */

bool view_open(RunView *view, const char *folder, Error *error) {
    SCOPED_FREE char *real = realpath(folder, NULL), *metrics = memory_format("%s/metrics.jsonl", folder);
    const char *slash = real ? strrchr(real, '/') : NULL;
    view->folder = memory_copy_string(folder);
    view->name = memory_copy_string(slash && slash[1] ? slash + 1 : folder);
    view->history = history_new(metrics);
    options_defaults(&config_table, &view->defaults, &view->strings);
    SCOPED(run_point_free) RunPoint point = run_point(folder);
    if (point.step != RUN_NEWEST && source_is_run(point.run))
        return error_set(error, ERROR_USAGE, "%s is a checkpoint, but a report covers a whole run: use %s", folder, point.run);
    FileKind kind = file_kind(folder, NULL);
    if (kind == FILE_UNREADABLE) return file_fail(error, "look at", folder);
    return kind == FILE_FOLDER ||
           error_set(error, ERROR_CHECKPOINT, "%s does not exist: give the folder of a run, as in run=FOLDER of smelt train", metrics);
}

/* Takes ownership of `text`, of `bytes` bytes. */
static void set_config(RunView *view, char *text, int64_t bytes) {
    free(view->config);
    options_free_strings(&view->strings);
    view->config = text;
    view->unreadable = (Error){0};
    options_defaults(&config_table, &view->defaults, &view->strings);
    options_defaults(&config_table, &view->settings, &view->strings);
    if (text) options_parse_yaml(&config_table, &view->settings, &view->strings, text, (size_t)bytes, "config.yaml", &view->unreadable);
}

static bool update_config(RunView *view, bool *changed, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/config.yaml", view->folder);
    int64_t bytes = 0;
    char *text = file_read(path, CONFIG_LIMIT, &bytes, error);
    if (!text && error->finding != FINDING_ABSENT) return error_recode(error, ERROR_INTERNAL);
    *error = (Error){0};
    bool same = text && view->config && strcmp(text, view->config) == 0;
    if (same || (!text && !view->config)) {
        free(text);
        return true;
    }
    *changed = true;
    set_config(view, text, bytes);
    return true;
}

/* Returns whether the state reads differently from before. */
static bool update_state(RunView *view) {
    char state_text[RUN_STATE_TEXT];
    double now = log_unix_seconds();
    RunState state = run_state_read(view->folder, view_knows_settings(view) ? &view->settings : NULL, now);
    run_state_free(&view->state);
    view->state = state;
    run_state_describe(&view->state, now, state_text);
    bool same = strcmp(state_text, view->state_text) == 0;
    memcpy(view->state_text, state_text, sizeof state_text);
    return !same;
}

/* Returns whether the end of the log is another one. */
static bool update_log(RunView *view) {
    enum { LOG_BYTES = 1 << 12 };
    SCOPED_FREE char *path = memory_format("%s/log.txt", view->folder);
    bool whole;
    char *log = run_read_tail(path, LOG_BYTES, &whole);
    bool same = log && view->log ? strcmp(log, view->log) == 0 : log == view->log;
    free(view->log);
    view->log = log;
    return !same;
}

/* Lists the checkpoints that exist, unless they are in a bucket. */
static void update_kept(RunView *view) {
    const char *where = view_knows_settings(view) ? run_checkpoints(view->folder, &view->settings) : "";
    Error unlisted = {0};
    free(view->kept);
    view->kept = NULL;
    view->kept_count = 0;
    view->knows_kept = file_kind(where, NULL) == FILE_FOLDER && checkpoint_list(where, &view->kept, &view->kept_count, &unlisted);
}

bool view_update(RunView *view) {
    bool changed = false;
    Error error = {0};
    if (history_update(view->history, &changed, &error)) update_config(view, &changed, &error);
    if (strcmp(error.message, view->trouble.message) != 0) changed = true;
    view->trouble = error;
    if (update_state(view)) changed = true;
    if (update_log(view)) changed = true;
    if (changed) {
        update_kept(view);
        Error unread = {0}; /* runs of other versions may have no record */
        json_t *record = lineage_read(view->folder, &unread);
        if (record || unread.finding != FINDING_UNREADABLE) {
            json_decref(view->record);
            view->record = record;
        }
    }
    return changed;
}

char *view_origin(const RunView *view) {
    const json_t *fork = json_object_get(view->record, "fork");
    const char *folder = json_string_value(json_object_get(fork, "folder"));
    return folder ? memory_format("%s after step %lld", folder, (long long)json_integer_value(json_object_get(fork, "step"))) : NULL;
}

/* Lists the changes of settings. A start continues from `step`; later steps of earlier starts are
 * no longer in the run, because they were repeated. */
json_t *view_changes(const RunView *view) {
    const json_t *history = json_object_get(view->record, "history");
    json_t *all = json_array(), *change;
    json_int_t replaced = INT64_MAX;
    for (size_t i = json_array_size(history); i-- > 0;) {
        json_t *start = json_array_get(history, i);
        json_int_t step = json_integer_value(json_object_get(start, "step"));
        size_t line;
        if (step < 0 || step >= replaced) continue;
        replaced = step;
        json_array_foreach(json_object_get(start, "changes"), line, change) if (json_is_string(change)) json_array_append_new(
            all, json_pack("{s:I, s:O*, s:O}", "first", step + 1, "time", json_object_get(start, "time"), "change", change));
    }
    return all;
}

void view_free(RunView *view) {
    free(view->folder);
    free(view->name);
    history_free(view->history);
    free(view->config);
    free(view->log);
    free(view->kept);
    options_free_strings(&view->strings);
    json_decref(view->record);
    run_state_free(&view->state);
}
