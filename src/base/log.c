/* Output on stderr: log lines, progress, and readable numbers. Keeps two settings for the whole
 * process: the receiver of a copy of the lines, and whether only errors are printed. Each line
 * checks whether stderr is a terminal. Called from everywhere. */
#include "base/log.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/wrap.h"

static const double progress_delay_seconds = 2.0;
static const double progress_terminal_seconds = 0.1;
static const double progress_plain_seconds = 10.0;

static LogCopy *copy_line;
static void *copy_context;
static bool only_errors;

void log_copy(LogCopy *copy, void *context) {
    copy_line = copy;
    copy_context = context;
}

void log_only_errors(void) { only_errors = true; }

static bool on_terminal(void) { return isatty(STDERR_FILENO); }

static bool in_color(void) {
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    return on_terminal() && !(no_color && *no_color) && !(terminal && strcmp(terminal, "dumb") == 0);
}

/* Replaces control characters, because file names and values in a message may be hostile and must
 * not control the terminal. */
static void neutralise_controls(char *text) {
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if ((*c < 0x20 && *c != '\n' && *c != '\t') || *c == 0x7f) *c = '?';
}

/* Prints each line with one write, so that lines of several processes do not mix; its first `label`
 * bytes are colored. On a terminal a line first clears a progress line; the next update draws it
 * again. */
static void print_whole(const char *line, const char *color, size_t label) {
    char *text = NULL;
    size_t size;
    FILE *whole = open_memstream(&text, &size);
    if (!whole) return;
    wrap_lines(whole, line, wrap_columns(STDERR_FILENO));
    fclose(whole);
    fprintf(stderr, "%s%s%.*s%s%s\n", on_terminal() ? LOG_CLEAR_LINE : "", color, (int)label, text, *color ? "\033[0m" : "", text + label);
    free(text);
}

static void print_log_line(const char *label, const char *color, const char *format, va_list arguments) {
    char message[8192], line[sizeof message + 64];
    int needed = vsnprintf(message, sizeof message, format, arguments);
    if (needed >= (int)sizeof message) memcpy(message + sizeof message - 4, "...", 4);
    neutralise_controls(message);
    snprintf(line, sizeof line, "%s%s", label, message);
    print_whole(line, in_color() ? color : "", strlen(label));
    if (copy_line) copy_line(copy_context, line);
}

#define LOG_FUNCTION(NAME, LABEL, COLOR, SHOWN)        \
    void NAME(const char *format, ...) {                \
        va_list arguments;                              \
        if (!(SHOWN)) return;                           \
        va_start(arguments, format);                    \
        print_log_line(LABEL, COLOR, format, arguments);   \
        va_end(arguments);                              \
    }
LOG_FUNCTION(log_info, "", "", !only_errors)
LOG_FUNCTION(log_warn, "warning: ", "\033[33m", !only_errors)
LOG_FUNCTION(log_error, "error: ", "\033[31m", true)

Progress progress_start(const char *label, const char *unit, int64_t total) {
    double now = log_seconds();
    return (Progress){.label = label, .unit = unit, .total = total, .start = now, .last = now};
}

static void progress_print(Progress *progress, double now, bool finished) {
    char done[32], total[40] = "", rate[32], made[64] = "", left[48] = "", number[32];
    double elapsed = now - progress->start;
    if (only_errors) return;
    double per_second = elapsed > 0 ? (double)progress->done / elapsed : 0;
    log_format_count((double)progress->done, done);
    log_format_count(per_second, rate);
    if (progress->made_unit) {
        log_format_count(elapsed > 0 ? (double)progress->made / elapsed : 0, number);
        snprintf(made, sizeof made, ", %s %s/s", number, progress->made_unit);
    }
    if (finished) {
        log_format_duration(elapsed, number);
        snprintf(left, sizeof left, ", took %s", number);
    } else if (progress->total > 0) {
        log_format_count((double)progress->total, number);
        snprintf(total, sizeof total, "/%s", number);
        log_format_duration(per_second > 0 ? (double)(progress->total - progress->done) / per_second : NAN, number);
        snprintf(left, sizeof left, ", %s left", number);
    }
    bool terminal = on_terminal();
    fprintf(stderr, "%s%s: %s%s %s, %s %s/s%s%s%s", terminal ? LOG_CLEAR_LINE : "", progress->label, done, total, progress->unit, rate,
        progress->unit, made, left, terminal && !finished ? "" : "\n");
    progress->last = now;
    progress->shown = true;
}

void progress_made(Progress *progress, const char *unit, int64_t made) {
    progress->made_unit = unit;
    progress->made = made;
}

void progress_update(Progress *progress, int64_t done) {
    progress->done = done;
    double now = log_seconds();
    double quiet = now - (progress->shown ? progress->last : progress->start);
    double wanted = !progress->shown ? progress_delay_seconds : progress_terminal_seconds;
    if (quiet < wanted || (progress->shown && quiet < progress_plain_seconds && !on_terminal())) return;
    progress_print(progress, now, false);
}

void progress_finish(Progress *progress) {
    if (progress->shown) progress_print(progress, log_seconds(), true);
    progress->shown = false;
}

double log_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double log_unix_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)(now.tv_nsec / 1000000) * 1e-3;
}

/* The thresholds are the values at which rounding would carry into the next unit: 59.96 s is
 * "1m00s", not "60.0s". */
void log_format_duration(double seconds, char text[32]) {
    if (!(seconds >= 0) || seconds > 1e12) {
        snprintf(text, 32, "unknown");
        return;
    }
    long long whole = llround(seconds), minutes = llround(seconds / 60), hours = llround(seconds / 3600);
    if (seconds < 59.95) snprintf(text, 32, "%.1fs", seconds);
    else if (whole < 3600) snprintf(text, 32, "%lldm%02llds", whole / 60, whole % 60);
    else if (minutes < 24 * 60) snprintf(text, 32, "%lldh%02lldm", minutes / 60, minutes % 60);
    else snprintf(text, 32, "%lldd%02lldh", hours / 24, hours % 24);
}

void log_format_long_duration(double seconds, char text[32]) {
    const double day = 86400, year = 365.25 * day;
    if (seconds >= 1e5 * year && isfinite(seconds)) snprintf(text, 32, "%.1e years", seconds / year);
    else if (seconds >= 2 * year && isfinite(seconds)) snprintf(text, 32, "%.*f years", seconds < 100 * year, seconds / year);
    else if (seconds >= 100 * day && isfinite(seconds)) snprintf(text, 32, "%.0f days", seconds / day);
    else log_format_duration(seconds, text);
}

void log_format_bytes(double bytes, char text[32]) {
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (!(fabs(bytes) < 0x1p80)) {
        snprintf(text, 32, "unknown");
        return;
    }
    if (fabs(bytes) < 1023.5) {
        snprintf(text, 32, "%.0f B", bytes);
        return;
    }
    int unit = 0;
    for (bytes /= 1024; fabs(bytes) >= 1023.995 && unit < 5; unit++) bytes /= 1024;
    snprintf(text, 32, "%.2f %s", bytes, units[unit]);
}

void log_format_count(double count, char text[32]) {
    static const char *const suffixes[] = {"", "k", "M", "B", "T"};
    if (!(fabs(count) < 1e18)) {
        snprintf(text, 32, "unknown");
        return;
    }
    int suffix = 0;
    for (; fabs(count) >= 999.5 && suffix < 4; suffix++) count /= 1000;
    double size = fabs(count);
    bool exact = suffix == 0 && count == floor(count);
    int decimals = exact || size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2;
    snprintf(text, 32, "%.*f%s", decimals, count, suffixes[suffix]);
}
