/* Starting the ranks of this node and keeping the run alive: `smelt launch`. Each rank is a process of its own with
 * the torchrun variables in its environment; the supervisor shows output, forwards signals, watches progress and
 * counters, and starts all ranks again from the newest good checkpoint, which the command itself finds, as its rules
 * say. */
#pragma once

#include "base/options.h"
#include "base/stop.h"

typedef enum LaunchOutput { LAUNCH_OUTPUT_FIRST, LAUNCH_OUTPUT_ALL } LaunchOutput;
typedef enum LaunchNan { LAUNCH_NAN_STOP, LAUNCH_NAN_SKIP } LaunchNan;

typedef struct LaunchOptions {
    int64_t ranks;
    int output, on_nan; /* LaunchOutput, LaunchNan */
    int64_t restarts;
    bool shrink, self_test;
    int64_t least;
    double grace, hang, away;
    const char *restart_on, *stop_on;
} LaunchOptions;

extern const OptionTable launch_table;

typedef struct LaunchCommand {
    char *const *arguments; /* after "smelt", ending with NULL */
    bool resumes;           /* writes checkpoints, and goes on from them when it is started again; else it begins anew */
} LaunchCommand;

/* Runs `command` until it is done or given up. The first request to
 * stop lets the ranks write a checkpoint, the second kills them. False unless the command completed, with the exit
 * code of the whole. */
bool launch(const LaunchOptions *options, const LaunchCommand *command, const StopRequest *stop, Error *error);
