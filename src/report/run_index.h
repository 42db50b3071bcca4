/* The runs in a folder: what the first page of `smelt watch FOLDER` lists. */
#pragma once

#include "config/config.h"
#include "run/run_state.h"

typedef struct IndexedRun {
    char *name, *folder;
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
/* Lists the runs in index->folder and reads their states. A folder that cannot be read has none. */
void run_index_update(RunIndex *index);
const IndexedRun *run_index_find(const RunIndex *index, const char *name);
void run_index_free(RunIndex *index);
