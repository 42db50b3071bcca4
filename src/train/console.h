/* What a training shows, and keeps for people. Steps, validation and checkpoints are lines on stdout, in columns that
 * fit the terminal; below them a terminal has a status line. Warnings and errors go to stderr (base/log.h). RUN/log.txt
 * gets all of these lines, every step among them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef struct StepMetrics StepMetrics; /* metrics_internal.h */

/* Lines of base/log.h may come from any thread; all other calls are of one thread. */
typedef struct Console Console;

/* A line for every `every` steps; 0: for each, on a terminal for one a second at most. */
Console *console_create(int64_t every);
/* For log_copy: keeps a line of base/log.h for RUN/log.txt. `console` is the Console. */
void console_take(void *console, const char *line);
/* From now on lines are appended to RUN/log.txt, first those that came before. A failure is a warning. */
void console_open_log(Console *console, const char *run);
/* Prints a line on stdout and in the log; control characters become '?'. */
void console_print(Console *console, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The beginning of a text, at most `most` characters of UTF-8, for console_print: line ends and tabs are written as in C,
 * "?" stands for what turns the direction of a text, and "..." for what was cut. `shown` has room for 4 * most + 4
 * bytes. */
void console_shorten(const char *text, size_t most, char *shown);
/* Prints a step's line, when it is due, and draws the status line. */
void console_step(Console *console, const StepMetrics *step);
/* The loss of the last step, and smoothed over the last `steps` of this process, some ten at most; 0: there is none. */
typedef struct ConsoleLoss {
    double last, smooth;
    int64_t steps;
} ConsoleLoss;
ConsoleLoss console_loss(const Console *console);
/* Ends the steps: the status line goes. */
void console_end_steps(Console *console);
void console_close(Console *console);
