/* The runs in a folder: what the first page of `smelt watch FOLDER` lists. */
#pragma once

#include "config/config.h"
#include "run/run_state.h"

enum { RUN_FILES = 4 /* config.yaml, metrics.jsonl, log.txt, and the lease of the store */ };

typedef struct IndexedRun {
    char *name, *folder;
    int64_t modified[RUN_FILES]; /* file_modified before they were read */
    RunState state;
    Config settings; /* defaults if config.yaml is not readable */
    OptionStrings strings;
} IndexedRun;

typedef struct RunIndex {
    char *folder;
    IndexedRun *runs; /* by name */
    size_t count;
} RunIndex;

/* Returns whether a folder holds runs and is none itself. */
bool run_index_is_folder(const char *folder);
/* Lists the runs in index->folder and reads their states: of a run that has ended only if a file has changed. A folder that cannot be
 * read has none. */
void run_index_update(RunIndex *index);
const IndexedRun *run_index_find(const RunIndex *index, const char *name);
void run_index_free(RunIndex *index);
