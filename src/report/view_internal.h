/* What the pages tell of one run folder: its records (RUN/metrics.jsonl), its settings (RUN/config.yaml)
 * and what its data is (RUN/run.json). It follows a
 * run that is being written. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "config/config.h"
#include "report/history_internal.h"

typedef struct RunView {
    char *folder, *name; /* the name is the last part of the real path, so that "." has one too */
    History *history;
    char *config;              /* the text of config.yaml; NULL: there is none */
    Config settings, defaults; /* `settings`: as far as they are known */
    OptionStrings strings;
    json_t *record;   /* run.json; NULL: there is none, or it is damaged */
    Error trouble;    /* why the files could not be read the last time; code 0: they could */
    Error unreadable; /* why config.yaml is no configuration of this version; code 0: it is one */
} RunView;

/* `view` is zeroed. view_free releases it, also after false: `folder` is no folder (ERROR_USAGE). Nothing is read. */
bool view_open(RunView *view, const char *folder, Error *error);
/* Reads what is new. Returns whether the page may be another one now, a change of `trouble` included. */
bool view_update(RunView *view);
void view_free(RunView *view);
/* "/runs/a after step 20": what the run was forked from, by run.json; NULL: it is no fork. The caller frees. */
char *view_origin(const RunView *view);
/* [{"first": 21, "time": "2026-01-31T12:00:00Z", "change": "optimizer.lr: 0.001 -> 0.0005"}, ...]: the changes of
 * settings by run.json, with the first step that each holds for, newest start first. The caller owns the reference. */
json_t *view_changes(const RunView *view);
static inline bool view_knows_settings(const RunView *view) { return view->config && !view->unreadable.code; }
