/* The data of one run folder for the pages: its records (RUN/metrics.jsonl), its settings
 * (RUN/config.yaml) and its data (RUN/run.json). A view follows a run that is being written. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "config/config.h"
#include "report/history_internal.h"
#include "run/run_state.h"

typedef struct RunView {
    char *folder, *name; /* name: last part of the real path, so that "." has one too */
    History *history;
    char *config;              /* text of config.yaml; NULL: none */
    char *log;                 /* the end of log.txt; NULL: none */
    Config settings, defaults; /* `settings`: known settings only */
    OptionStrings strings;
    json_t *record; /* run.json; NULL: missing or damaged */
    int64_t *kept;  /* steps of the checkpoints that exist; [kept_count] */
    size_t kept_count;
    bool knows_kept; /* false: the store is a bucket, or could not be listed */
    RunState state;
    char state_text[RUN_STATE_TEXT]; /* the state in words */
    Error trouble;                   /* why the files could not be read the last time; code 0: no error */
    Error unreadable;                /* why config.yaml is not a valid configuration of this version; code 0: it is valid */
} RunView;

/* `view` is zeroed. Reads nothing. Returns false with ERROR_USAGE if `folder` is not a folder.
 * view_free releases the view, also after false. */
bool view_open(RunView *view, const char *folder, Error *error);
/* Reads new data. Returns whether the page may have changed; a change of `trouble` counts. */
bool view_update(RunView *view);
void view_free(RunView *view);
/* Returns the origin of a fork, from run.json: "/runs/a after step 20"; NULL: not a fork. The
 * caller frees it. */
char *view_origin(const RunView *view);
/* Returns the changes of settings from run.json: [{"first": 21, "time": "2026-01-31T12:00:00Z",
 * "change": "optimizer.lr: 0.001 -> 0.0005"}, ...]. `first` is the first step with the change; the
 * newest start comes first. The caller owns the reference. */
json_t *view_changes(const RunView *view);
static inline bool view_knows_settings(const RunView *view) { return view->config && !view->unreadable.code; }
