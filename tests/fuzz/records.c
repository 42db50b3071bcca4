/* A libFuzzer entry for what a run's folder holds as text: metrics.jsonl, as a run that continues reads it and as the
 * report does, and run.json. Later records are dropped, and what stays is read as the same history again. Owns the
 * entries' folder, which is the run. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "fuzz.h"
#include "report/history_internal.h"
#include "run/lineage.h"
#include "run/metrics.h"

static void require_same_history(const char *path, int64_t lines) {
    Error error = {0};
    History *history = history_new(path);
    int64_t steps;
    bool first = false, again = false;
    require(history_update(history, &first, &error) && history_update(history, &again, &error) && !again);
    require(history->lines <= lines && history->ignored <= history->lines);
    require(!isinf(history_recent_loss(history, &steps)) && steps <= HISTORY_RECENT);
    sample_median(&history->speed);
    history_free(history);
}

/* What the scanner of steps accepts, it reads as jansson does. */
static void require_same_step(const char *line, size_t length) {
    StepRecord scanned;
    if (!step_record_scan(line, length, &scanned)) return;
    json_auto_t *record = json_loadb(line, length, 0, NULL);
    require(json_is_object(record) && !strcmp(json_string_value(json_object_get(record, "kind")), "step"));
    const StepRecord step = step_record_of(record);
    for (int i = 0; i < STEP_FIELDS; i++)
        require(step.numbers[i] == scanned.numbers[i] || (isnan(step.numbers[i]) && isnan(scanned.numbers[i])));
    require(step.skipped == scanned.skipped);
}

FUZZ(records) {
    SCOPED_FREE char *line = memory_format("%.*s", (int)size, (const char *)data);
    require_same_step(line, strlen(line));
    Error error = {0};
    const char *path = fuzz_file("metrics.jsonl", data, size), *run = fuzz_folder();
    require_same_history(path, (int64_t)size + 1);
    Metrics *metrics = metrics_open(run, (int64_t)size % 5, size % 2, false, &error);
    require(metrics != NULL);
    metrics_close(metrics);
    require_same_history(path, (int64_t)size + 1);
    fuzz_file("run.json", data, size);
    json_t *record = lineage_read(run, &error);
    if (!record) require_line(&error);
    lineage_number(json_object_get(record, "identity"));
    json_decref(record);
}
