/* Output for users. Lines go to stderr (logs, progress); commands print results to stdout. Color
 * and the progress line that rewrites itself appear only on a terminal; NO_COLOR disables color.
 * Otherwise progress prints a plain line at most every ten seconds. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* One line of at most 8 KiB (cut with "..."), written at once; control characters other than tab and newline become
 * '?'. Warnings and errors open with "warning: " and "error: ". No newline at the end of `format`. */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));
void log_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Makes `copy` receive each later line too, without color and newline, on the thread that logs it.
 * Only src/app sets it. NULL: no receiver. */
typedef void LogCopy(void *context, const char *line);
void log_copy(LogCopy *copy, void *context);

/* Suppresses infos, warnings and progress from now on, when one of many equal processes prints for
 * all. Only src/app sets it. */
void log_only_errors(void);

/* On a terminal: returns to the start of the line and clears it. */
#define LOG_CLEAR_LINE "\r\033[K"

/* Progress of a task that may take over two seconds. Prints nothing before that, then done/total,
 * rate, time left. `total` 0: unknown. label and unit ("tokens") must outlive it. Updates are
 * cheap: make one per item of work. */
typedef struct Progress {
    const char *label, *unit;
    int64_t total, done;
    const char *made_unit; /* unit of the task's product, or NULL */
    int64_t made;
    double start, last; /* log_seconds() of the start and of the last print */
    bool shown;
} Progress;
Progress progress_start(const char *label, const char *unit, int64_t total);
/* Sets the quantity that the task has produced; its rate is also shown. */
void progress_made(Progress *progress, const char *unit, int64_t made);
void progress_update(Progress *progress, int64_t done);
void progress_finish(Progress *progress);

double log_seconds(void);      /* monotonic clock */
double log_unix_seconds(void); /* since 1970, in whole milliseconds */
/* For reading, not for parsing; "unknown" if not finite or absurd. */
/* Like log_format_duration, but in words from 100 days on: "220 days", "6.1 years". */
void log_format_long_duration(double seconds, char text[32]);
void log_format_duration(double seconds, char text[32]); /* "3d04h", "2h03m", "4m10s", "12.3s" */
void log_format_bytes(double bytes, char text[32]);      /* "1.50 GiB" */
void log_format_count(double count, char text[32]);      /* "8.84B", "12.3k" */
