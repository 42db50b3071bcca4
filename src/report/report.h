/* The report page of a run: one HTML file with everything in it, for any browser, without network or scripts. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct ReportResult {
    int64_t bytes;   /* of the page */
    int64_t ignored; /* lines of metrics.jsonl that could not be read */
} ReportResult;

/* Reads RUN/metrics.jsonl and, if there is one, RUN/config.yaml, and replaces `output` atomically. The same run
 * gives the same bytes. ERROR_USAGE when RUN is not a run. */
bool report_write(const char *run, const char *output, ReportResult *result, Error *error);
