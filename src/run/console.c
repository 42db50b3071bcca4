/* The console of a training. Steps have one table of columns. A terminal gets the columns that fit
 * its width, now 80, 120 or more characters; other outputs, and RUN/log.txt, always get the same
 * columns, for scripts. A pipe to `smelt launch` counts as the launcher's terminal. Other lines are
 * broken at blanks at the terminal's width. Owns the log file. Called by the training loop. */
#include "run/console.h"

#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/wrap.h"
#include "run/metrics.h"

enum { MOST_LINE = 8192, MOST_EARLY = 1 << 16, HEADER_EVERY = 24, SMOOTH_STEPS = 10 };
static const double line_seconds = 1, status_seconds = 0.1;

enum { MOST_WARNINGS = 16 /* at once */, WARNINGS_OF_PROCESS = 100 };

struct Console {
    int64_t every;
    bool terminal, status; /* terminal: wrap lines for a terminal; status: stdout is one and gets a status line */
    bool drawn;            /* the status line is visible */
    unsigned columns;      /* of the latest header, one bit each; 0: no header yet */
    int below;             /* lines since that header */
    double printed, drew;  /* log_seconds() of the last step line and status line */
    double last, smooth;   /* loss of the latest step, and smoothed over about ten steps */
    int64_t smoothed;      /* steps of this process with a finite loss */
    /* Used by any thread: */
    atomic_bool logged_header;
    pthread_mutex_t lock;
    File log;
    bool open, failed, removed; /* removed: the log is a new file, which was not yet reported */
    char *early;                /* lines from before the log was open; beyond MOST_EARLY bytes they are dropped */
    size_t early_bytes;
    char *warnings[MOST_WARNINGS]; /* not taken yet, oldest first */
    int waiting, taken;
};

/* -- RUN/log.txt --------------------------------------------------------------------------------------------------- */

/* If the log was removed, lines continue in a new file. */
static bool append_to_file(Console *console, const char *text, size_t bytes, Error *error) {
    bool lost;
    if (!file_follow_name(&console->log, &lost, error)) return false;
    if (lost) console->logged_header = false;
    console->removed |= lost;
    return file_append(&console->log, text, (int64_t)bytes, error);
}

static bool append_log(Console *console, const char *text, size_t bytes, Error *error) {
    if (console->open) return append_to_file(console, text, bytes, error);
    if (console->early_bytes + bytes > MOST_EARLY) return true;
    console->early = memory_resize(console->early, console->early_bytes + bytes);
    memcpy(console->early + console->early_bytes, text, bytes);
    console->early_bytes += bytes;
    return true;
}

/* Notes a failure: a full disk costs lines of the log, and one warning. Releases the lock. */
static void note_failure(Console *console, bool failed, const Error *error) {
    bool first = failed && !console->failed, removed = console->removed;
    console->failed |= failed;
    console->removed = false;
    pthread_mutex_unlock(&console->lock);
    if (removed) log_warn("%s was removed or replaced during training: its earlier lines are lost", console->log.path);
    if (first) log_warn("%s; training continues, but this log is missing lines", error->message);
}

/* Keeps a warning for console_next_warning; the caller holds the lock. Warnings above the limits are only in the log. */
static void keep_warning(Console *console, const char *line) {
    static const char label[] = "warning: ";
    if (!starts_with(line, label) || console->waiting == MOST_WARNINGS || console->taken == WARNINGS_OF_PROCESS) return;
    console->warnings[console->waiting++] = memory_copy_string(line + strlen(label));
    console->taken++;
}

static void log_line(Console *console, const char *line) {
    char stamp[32];
    Error error = {0};
    time_t now = time(NULL);
    struct tm calendar;
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &calendar));
    SCOPED_FREE char *text = memory_format("%s %s\n", stamp, line);
    pthread_mutex_lock(&console->lock);
    keep_warning(console, line);
    note_failure(console, !append_log(console, text, strlen(text), &error), &error);
}

void console_take(void *console, const char *line) { log_line(console, line); }

char *console_next_warning(Console *console) {
    pthread_mutex_lock(&console->lock);
    char *first = console->waiting ? console->warnings[0] : NULL;
    if (first) memmove(console->warnings, console->warnings + 1, (size_t)--console->waiting * sizeof *console->warnings);
    pthread_mutex_unlock(&console->lock);
    return first;
}

void console_open_log(Console *console, const char *run) {
    Error error = {0};
    SCOPED_FREE char *path = memory_format("%s/log.txt", run);
    pthread_mutex_lock(&console->lock);
    console->open = file_open_journal(&console->log, path, &error);
    bool good = console->open && (console->early_bytes == 0 || append_log(console, console->early, console->early_bytes, &error));
    note_failure(console, !good, &error);
}

/* -- Columns ------------------------------------------------------------------------------------------------------- */

enum {
    STEP,
    LOSS,
    SMOOTH,
    REWARD,
    LENGTH,
    MARGIN,
    ACCURACY,
    NORM,
    LR,
    MILLISECONDS,
    SPEED,
    IMAGES,
    FLOPS,
    PEAK,
    BEST,
    MEMORY,
    TOKENS,
    LEFT,
    COLUMNS
};

typedef struct Column {
    const char *name; /* one word, so that scripts can split lines at blanks */
    int width;
    int least; /* minimum terminal width for this column */
} Column;

enum { FIXED_WIDTH = 120 /* width without a terminal */, MARK = 8 /* " skipped" */ };
static const Column columns[COLUMNS] = {
    [STEP] = {"step/steps", 15, 0},
    [LOSS] = {"loss", 9, 0},
    [SMOOTH] = {"smooth", 9, 140},
    [REWARD] = {"reward", 8, 0},
    [LENGTH] = {"length", 7, 0},
    [MARGIN] = {"margin", 8, 0},
    [ACCURACY] = {"accuracy", 8, 0},
    [NORM] = {"grad_norm", 9, 0},
    [LR] = {"lr", 9, 0},
    [MILLISECONDS] = {"ms", 9, 120},
    [SPEED] = {"tok/s", 9, 0},
    [IMAGES] = {"img/s", 9, 0},
    [FLOPS] = {"TFLOP/s", 9, 120},
    [PEAK] = {"%peak", 7, 120},
    [BEST] = {"%best", 7, 120},
    [MEMORY] = {"GiB", 7, 0},
    [TOKENS] = {"tokens", 8, 140},
    [LEFT] = {"left", 7, 0},
};

static int column_width(int column, int64_t steps) {
    return column == STEP && steps >= 10000000 ? 2 * snprintf(NULL, 0, "%lld", (long long)steps) + 1 : columns[column].width;
}

/* Returns whether a column is shown. Runs on preference pairs and of reinforcement learning have two
 * more columns, which replace others; in runs on images, images per second replace tokens per second. */
static bool is_shown(int column, const StepMetrics *step, bool peak) {
    bool of_pairs = column == MARGIN || column == ACCURACY, of_policy = column == REWARD || column == LENGTH;
    bool gives_way = column == FLOPS || column == PEAK || column == MEMORY;
    if ((of_pairs && !step->rewards.pairs) || (of_policy && !step->policy.samples)) return false;
    return !(gives_way && (step->rewards.pairs || step->policy.samples)) && (column != PEAK || peak) &&
           column != (step->images ? SPEED : IMAGES);
}

/* Chooses the columns for lines of `width` characters. */
static unsigned choose_columns(int width, const StepMetrics *step, bool peak) {
    unsigned chosen = 0;
    int used = MARK;
    for (int i = 0; i < COLUMNS; i++) {
        int more = column_width(i, step->steps) + (i > 0);
        if (columns[i].least > width || used + more > width || !is_shown(i, step, peak)) continue;
        chosen |= 1u << i;
        used += more;
    }
    return chosen;
}

/* Formats with as many of the decimals as fit the width. NaN has no sign, unlike printf's. */
static void format_number(char text[32], int width, int decimals, double value, bool known) {
    int length = width + 1;
    if (!known) snprintf(text, 32, "unknown");
    else if (isnan(value)) snprintf(text, 32, "nan");
    else {
        for (; length > width && decimals >= 0; decimals--) length = snprintf(text, 32, "%.*f", decimals, value);
        if (length > width) snprintf(text, 32, "%.*e", width > 8 ? 2 : 0, value);
    }
}

static void format_cell(const Console *console, const StepMetrics *step, int column, char text[48]) {
    int width = columns[column].width;
    StepRates rates = metrics_rates(step);
    switch (column) {
    case STEP: snprintf(text, 48, "%lld/%lld", (long long)step->step, (long long)step->steps); break;
    case LOSS: format_number(text, width, 5, step->loss, true); break;
    case SMOOTH: format_number(text, width, 5, console->smooth, console->smoothed > 0); break;
    case REWARD: format_number(text, width, 4, step->policy.reward, true); break;
    case LENGTH: format_number(text, width, 1, step->policy.length, true); break;
    case MARGIN: format_number(text, width, 4, step->rewards.chosen - step->rewards.rejected, true); break;
    case ACCURACY: format_number(text, width, 4, step->rewards.accuracy, true); break;
    case NORM: format_number(text, width, 4, step->gradient_norm, true); break;
    case LR: snprintf(text, 48, "%.3e", step->lr); break;
    case MILLISECONDS: format_number(text, width, 1, step->seconds * 1e3, step->seconds > 0); break;
    case SPEED: format_number(text, width, 0, rates.tokens_per_second, !isnan(rates.tokens_per_second)); break;
    case IMAGES: format_number(text, width, 3, rates.images_per_second, !isnan(rates.images_per_second)); break;
    case FLOPS: format_number(text, width, 3, rates.tflops, !isnan(rates.tflops)); break;
    case PEAK: format_number(text, width, 1, rates.peak_percent, !isnan(rates.peak_percent)); break;
    case BEST: format_number(text, width, 1, rates.best_percent, !isnan(rates.best_percent)); break;
    case MEMORY: format_number(text, width, 2, (double)step->memory / 0x1p30, step->memory > 0); break;
    case TOKENS: log_format_count((double)step->tokens_seen, text); break;
    case LEFT: log_format_duration(step->seconds_left, text); break;
    default: text[0] = '\0';
    }
}

/* Formats the header if `console` is NULL. */
static void format_line(const Console *console, const StepMetrics *step, unsigned chosen, char *line, size_t size) {
    size_t length = 0;
    for (int i = 0; i < COLUMNS; i++) {
        char text[48];
        if (!(chosen & 1u << i)) continue;
        if (console) format_cell(console, step, i, text);
        length += (size_t)snprintf(
            line + length, size - length, "%s%*s", i > 0 ? " " : "", column_width(i, step->steps), console ? text : columns[i].name);
    }
    if (console && step->skipped) snprintf(line + length, size - length, " skipped");
}

/* -- The terminal -------------------------------------------------------------------------------------------------- */

/* Prints the line with one write, so that lines of several processes do not mix. */
static void show_line(Console *console, const char *line) {
    if (console->status) printf(LOG_CLEAR_LINE);
    wrap_lines(stdout, line, wrap_columns(STDOUT_FILENO));
    printf("\n");
    fflush(stdout);
    console->drawn = false;
}

static void show_step(Console *console, const StepMetrics *step) {
    char line[512];
    unsigned chosen =
        choose_columns(console->terminal ? wrap_columns(STDOUT_FILENO) : FIXED_WIDTH, step, !console->terminal || step->peak_flops > 0);
    bool header = chosen != console->columns || (console->terminal && console->below >= HEADER_EVERY);
    if (header) {
        format_line(NULL, step, chosen, line, sizeof line);
        show_line(console, line);
        console->columns = chosen;
        console->below = 0;
    }
    format_line(console, step, chosen, line, sizeof line);
    show_line(console, line);
    console->below++;
}

/* Draws "[#####.....]  50%  loss 2.4135  12.3k tok/s  4m10s left", without a newline. */
static void draw_status(Console *console, const StepMetrics *step) {
    enum { LEAST_BAR = 10, MOST_BAR = 50 };
    char speed[32], left[32], loss[32], text[256], bar[MOST_BAR + 1];
    int width = wrap_columns(STDOUT_FILENO) - 1;
    double part = (double)step->step / (double)step->steps;
    StepRates rates = metrics_rates(step);
    log_format_count(step->images ? rates.images_per_second : rates.tokens_per_second, speed);
    log_format_duration(step->seconds_left, left);
    format_number(loss, 9, 4, console->smooth, console->smoothed > 0);
    int length = snprintf(
        text, sizeof text, " %3d%%  loss %s  %s %s/s  %s left", (int)(100 * part), loss, speed, step->images ? "img" : "tok", left);
    int cells = width - length - 2 < MOST_BAR ? width - length - 2 : MOST_BAR;
    for (int i = 0; i < cells; i++) bar[i] = i < (int)(part * cells) ? '#' : '.';
    bar[cells > 0 ? cells : 0] = '\0';
    if (cells >= LEAST_BAR) printf(LOG_CLEAR_LINE "[%s]%s", bar, text);
    else printf(LOG_CLEAR_LINE "%.*s", width > 0 ? width : 0, text);
    fflush(stdout);
    console->drawn = true;
}

/* -- Lines --------------------------------------------------------------------------------------------------------- */

static void smooth_loss(Console *console, double loss) {
    console->last = loss;
    if (!isfinite(loss)) return;
    console->smooth += (loss - console->smooth) * fmax(1.0 / SMOOTH_STEPS, 1.0 / (double)++console->smoothed);
}

ConsoleLoss console_loss(const Console *console) {
    return (ConsoleLoss){console->last, console->smooth, int_min(console->smoothed, SMOOTH_STEPS)};
}

static bool step_due(const Console *console, const StepMetrics *step, double now) {
    if (step->skipped || step->step == step->steps || console->columns == 0) return true;
    if (console->every > 0) return step->step % console->every == 0;
    return !console->terminal || now - console->printed >= line_seconds;
}

static void log_step(Console *console, const StepMetrics *step) {
    char line[512];
    unsigned chosen = choose_columns(FIXED_WIDTH, step, true);
    for (int i = console->logged_header; i < 2; i++) {
        format_line(i ? console : NULL, step, chosen, line, sizeof line);
        log_line(console, line);
    }
    console->logged_header = true;
}

void console_step(Console *console, const StepMetrics *step) {
    double now = log_seconds();
    smooth_loss(console, step->loss);
    log_step(console, step);
    if (step_due(console, step, now)) {
        show_step(console, step);
        console->printed = now;
    } else if (!console->status || (console->drawn && now - console->drew < status_seconds)) {
        return;
    }
    if (!console->status) return;
    draw_status(console, step);
    console->drew = now;
}

void console_end_steps(Console *console) {
    if (console->drawn) printf(LOG_CLEAR_LINE);
    fflush(stdout);
    console->drawn = false;
}

void console_print(Console *console, const char *format, ...) {
    char line[MOST_LINE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    blank_controls(line, '?', false);
    show_line(console, line);
    log_line(console, line);
}

/* Returns whether a character changes the direction of text: U+200E, U+200F, U+202A to U+202E,
 * U+2066 to U+2069. */
static bool turns_text(const char *at) {
    const unsigned char *c = (const unsigned char *)at;
    if (c[0] != 0xe2 || (c[1] != 0x80 && c[1] != 0x81)) return false;
    return c[1] == 0x80 ? c[2] == 0x8e || c[2] == 0x8f || (c[2] >= 0xaa && c[2] <= 0xae) : c[2] >= 0xa6 && c[2] <= 0xa9;
}

void console_shorten(const char *text, size_t most, char *shown) {
    size_t characters = 0;
    const char *at = text;
    while (*at && characters++ < most) {
        const char *escape = *at == '\n' ? "\\n" : *at == '\t' ? "\\t" : *at == '\r' ? "\\r" : NULL;
        if (escape) shown = stpcpy(shown, escape), at++;
        else if (turns_text(at)) *shown++ = '?', at += 3;
        else do
                *shown++ = *at++;
            while ((*at & 0xC0) == 0x80);
    }
    strcpy(shown, *at ? "..." : "");
}

/* -- Opening and closing ------------------------------------------------------------------------------------------- */

Console *console_create(int64_t every) {
    Console *console = memory_allocate(sizeof *console);
    const char *kind = getenv("TERM");
    console->every = every;
    console->terminal = wrap_columns(STDOUT_FILENO) > 0;
    console->status = isatty(STDOUT_FILENO) && !(kind && strcmp(kind, "dumb") == 0);
    pthread_mutex_init(&console->lock, NULL);
    return console;
}

void console_close(Console *console) {
    if (!console) return;
    console_end_steps(console);
    file_close(&console->log);
    pthread_mutex_destroy(&console->lock);
    for (int i = 0; i < console->waiting; i++) free(console->warnings[i]);
    free(console->early);
    free(console);
}
