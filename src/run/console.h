/* The output of a training for people. Steps, validation and checkpoints are lines on stdout, in
 * columns that fit the terminal; below them a terminal has a status line. Warnings and errors go to
 * stderr (base/log.h). RUN/log.txt gets all of these lines, including every step. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct StepMetrics StepMetrics; /* metrics.h */

/* Lines of base/log.h may come from any thread; all other calls must come from one thread. */
typedef struct Console Console;

/* Prints a line for every `every` steps; 0: for each step, but on a terminal at most one per
 * second. */
Console *console_create(int64_t every);
/* For log_copy: appends a line of base/log.h to RUN/log.txt. `console` is the Console. */
void console_take(void *console, const char *line);
/* Returns the oldest warning that no earlier call has returned, without its label; the caller frees. NULL: none. */
char *console_next_warning(Console *console);
/* Appends lines to RUN/log.txt from now on, after the earlier ones. A failure is a warning. */
void console_open_log(Console *console, const char *run);
/* Prints a line on stdout and in the log; control characters become '?'. */
void console_print(Console *console, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes the start of a text, at most `most` characters of UTF-8, for console_print. Line ends and
 * tabs are written as in C, direction changes become "?", and "..." marks a cut. `shown` has room
 * for 4 * most + 4 bytes. */
void console_shorten(const char *text, size_t most, char *shown);
/* Prints a step's line if it is due, and draws the status line. */
void console_step(Console *console, const StepMetrics *step);
/* The loss of the latest step, and smoothed over the last `steps` steps of this process, at most
 * about ten; 0: none. */
typedef struct ConsoleLoss {
    double last, smooth;
    int64_t steps;
} ConsoleLoss;
ConsoleLoss console_loss(const Console *console);
/* Ends the steps: removes the status line. */
void console_end_steps(Console *console);
void console_close(Console *console);
