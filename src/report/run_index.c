/* Lists the runs in a folder. A RunIndex owns its entries. Called by report.c. */
#include "report/run_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "run/run.h"

static bool is_run_folder(const char *folder) {
    SCOPED_FREE char *config = memory_format("%s/config.yaml", folder), *records = memory_format("%s/metrics.jsonl", folder);
    return file_kind(config, NULL) == FILE_REGULAR || file_kind(records, NULL) == FILE_REGULAR;
}

static void free_run(IndexedRun *run) {
    free(run->name);
    free(run->folder);
    run_state_free(&run->state);
    options_free_strings(&run->strings);
}

static void free_runs(RunIndex *index) {
    for (size_t i = 0; i < index->count; i++) free_run(&index->runs[i]);
    free(index->runs);
    index->runs = NULL;
    index->count = 0;
}

static void read_times(const IndexedRun *run, int64_t modified[RUN_FILES]) {
    static const char *const names[RUN_FILES] = {"config.yaml", "metrics.jsonl", "log.txt", "lease.json"};
    for (int i = 0; i < RUN_FILES; i++) {
        bool lease = i == RUN_FILES - 1;
        SCOPED_FREE char *path = memory_format("%s/%s", lease ? run_checkpoints(run->folder, &run->settings) : run->folder, names[i]);
        modified[i] = file_modified(path);
    }
}

/* Returns whether nothing can have changed: a run that has ended says nothing more until its files change. */
static bool is_settled(const IndexedRun *run) {
    int64_t modified[RUN_FILES];
    bool open = run->state.status == RUN_IS_WAITING || run->state.status == RUN_IS_TRAINING || run->state.status == RUN_IS_SILENT;
    if (open) return false;
    read_times(run, modified);
    return memcmp(modified, run->modified, sizeof modified) == 0;
}

static void add_run(RunIndex *index, const char *name, char *folder) {
    enum { CONFIG_BYTES = 1 << 20 };
    IndexedRun run = {.name = memory_copy_string(name), .folder = folder};
    SCOPED_FREE char *path = memory_format("%s/config.yaml", folder);
    Error unread = {0};
    int64_t bytes;
    options_defaults(&config_table, &run.settings, &run.strings);
    SCOPED_FREE char *text = file_read(path, CONFIG_BYTES, &bytes, &unread);
    bool known = text && options_parse_yaml(&config_table, &run.settings, &run.strings, text, (size_t)bytes, path, &unread);
    read_times(&run, run.modified); /* before the records: a later change is then seen */
    run.state = run_state_read(folder, known ? &run.settings : NULL, log_unix_seconds());
    array_append(index->runs, index->count, run);
}

void run_index_update(RunIndex *index) {
    SCOPED(file_list_free) FileList list = {0};
    Error unread = {0};
    RunIndex before = *index;
    size_t next = 0; /* the first of `before` that is not done: both are in one order */
    index->runs = NULL;
    index->count = 0;
    if (!file_list(index->folder, &list, &unread)) list.count = 0;
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.entries[i].name;
        size_t at = next;
        while (at < before.count && strcmp(before.runs[at].name, name) != 0) at++;
        IndexedRun *known = at < before.count ? &before.runs[at] : NULL;
        while (known && next < at) free_run(&before.runs[next++]);
        char *folder = memory_format("%s/%s", index->folder, name);
        if (file_kind(folder, NULL) != FILE_FOLDER || !is_run_folder(folder)) {
            free(folder);
        } else if (known && is_settled(known)) {
            free(folder);
            array_append(index->runs, index->count, *known);
            next++;
        } else {
            add_run(index, name, folder);
        }
    }
    while (next < before.count) free_run(&before.runs[next++]);
    free(before.runs);
}

bool run_index_is_folder(const char *folder) {
    SCOPED(file_list_free) FileList list = {0};
    Error unread = {0};
    bool holds = false;
    if (is_run_folder(folder) || file_kind(folder, NULL) != FILE_FOLDER || !file_list(folder, &list, &unread)) return false;
    for (size_t i = 0; i < list.count && !holds; i++) {
        SCOPED_FREE char *inner = memory_format("%s/%s", folder, list.entries[i].name);
        holds = is_run_folder(inner);
    }
    return holds;
}

const IndexedRun *run_index_find(const RunIndex *index, const char *name) {
    for (size_t i = 0; i < index->count; i++)
        if (!strcmp(index->runs[i].name, name)) return &index->runs[i];
    return NULL;
}

void run_index_free(RunIndex *index) {
    free_runs(index);
    free(index->folder);
}
