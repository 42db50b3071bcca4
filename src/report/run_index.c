/* Lists the runs in a folder. A RunIndex owns its entries. Called by report.c. */
#include "report/run_index.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"

static bool is_run_folder(const char *folder) {
    SCOPED_FREE char *config = memory_format("%s/config.yaml", folder), *records = memory_format("%s/metrics.jsonl", folder);
    return file_kind(config, NULL) == FILE_REGULAR || file_kind(records, NULL) == FILE_REGULAR;
}

static void clear_runs(RunIndex *index) {
    for (size_t i = 0; i < index->count; i++) {
        free(index->runs[i].name);
        free(index->runs[i].folder);
        run_state_free(&index->runs[i].state);
        options_free_strings(&index->runs[i].strings);
    }
    free(index->runs);
    index->runs = NULL;
    index->count = 0;
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
    run.state = run_state_read(folder, known ? &run.settings : NULL, log_unix_seconds());
    array_append(index->runs, index->count, run);
}

void run_index_update(RunIndex *index) {
    SCOPED(file_list_free) FileList list = {0};
    Error unread = {0};
    clear_runs(index);
    if (!file_list(index->folder, &list, &unread)) return;
    for (size_t i = 0; i < list.count; i++) {
        char *folder = memory_format("%s/%s", index->folder, list.entries[i].name);
        if (file_kind(folder, NULL) == FILE_FOLDER && is_run_folder(folder)) add_run(index, list.entries[i].name, folder);
        else free(folder);
    }
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
    clear_runs(index);
    free(index->folder);
}
