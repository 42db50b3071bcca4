/* The page of a run, or of several runs beside each other: one HTML file with everything in it, for any browser, without
 * network or scripts; and the same page kept up to date while the run is written (watch.h). Every text that comes from a
 * run is escaped by chart_escape. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

enum { REPORT_RUNS = 8 }; /* at most: as many curves as one can tell apart */

/* What is between <div id="ID"> and </div>. */
typedef struct ReportPart {
    const char *id;
    char *html;
    int64_t version; /* of the page, when this part became another one */
} ReportPart;

typedef struct Report Report;

/* Reads nothing yet. ERROR_USAGE when one of the `count` folders is none; NULL. */
Report *report_open(const char *const *runs, int count, Error *error);
void report_close(Report *report);
/* Reads what is new and prints the parts. Returns whether one became another one; their version is then higher than any
 * before, also than those of another process. What could not be read stands on the page and in report_trouble. */
bool report_update(Report *report);
/* Why a run could not be read at the last update; NULL: all could. */
const Error *report_trouble(const Report *report);
int64_t report_version(const Report *report);
/* Of the report, until the next update. */
const ReportPart *report_parts(const Report *report, int *count);
/* The page. `head` is HTML for its <head>. */
void report_print(const Report *report, const char *head, FILE *out);

typedef struct ReportResult {
    int64_t bytes;                /* of the page */
    int64_t ignored[REPORT_RUNS]; /* lines of each run's metrics.jsonl that could not be read */
} ReportResult;

/* Writes the page of these runs, replacing `output` atomically. The same runs give the same bytes. ERROR_USAGE when one
 * is not a run. */
bool report_write(const char *const *runs, int count, const char *output, ReportResult *result, Error *error);
