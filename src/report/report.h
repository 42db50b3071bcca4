/* The page of one run, or of several runs side by side: one self-contained HTML file for any
 * browser, without network or scripts. watch.h serves the same page live while the run is written.
 * chart_escape escapes all text that comes from a run. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "run/export.h"

enum { REPORT_RUNS = 8 }; /* maximum, because readers cannot distinguish more curves */

/* The content between <div id="ID"> and </div>. */
typedef struct ReportPart {
    const char *id;
    char *html;
    int64_t version; /* version of the page when this part last changed */
} ReportPart;

typedef struct Report Report;

/* Opens a report without reading anything. Returns NULL with ERROR_USAGE if one of the `count`
 * folders is not a folder. */
Report *report_open(const char *const *runs, int count, Error *error);
/* Opens a report of all runs in a folder: a table with links. */
Report *report_open_folder(const char *folder);
/* Returns the folder of the run `name` among them, valid until the next update; NULL: none. */
const char *report_find_run(const Report *report, const char *name);
void report_close(Report *report);
/* Reads new data and prints the parts. Returns whether a part changed. A new version is higher than
 * all earlier ones, even those of other processes. Read errors appear on the page and in
 * report_trouble. */
bool report_update(Report *report);
/* Returns why a run could not be read at the last update; NULL: all runs could be read. */
const Error *report_trouble(const Report *report);
/* Sets `run` to run number `index`, valid until the next update; returns whether there is one. */
bool report_run(const Report *report, int index, ExportedRun *run);
int64_t report_version(const Report *report);
/* Owned by the report, valid until the next update. */
const ReportPart *report_parts(const Report *report, int *count);
/* Prints the numbers of the curves from step `from` to `to`, with more points than the page has. */
void report_print_points(const Report *report, int64_t from, int64_t to, FILE *out);
/* Prints the page. `head` is HTML for its <head>; `inner_script` stands in the page, "": nothing. */
void report_print(const Report *report, const char *head, const char *inner_script, FILE *out);

typedef struct ReportResult {
    int64_t bytes;                /* of the page */
    int64_t ignored[REPORT_RUNS]; /* lines of each run's metrics.jsonl that were ignored */
} ReportResult;

/* Writes the page of these runs, replacing `output` atomically. Equal runs give equal bytes.
 * ERROR_USAGE if a folder is not a run. */
bool report_write(const char *const *runs, int count, const char *output, ReportResult *result, Error *error);
