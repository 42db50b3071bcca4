/* Starts the ranks of this node and keeps the run alive: `smelt launch`. Each rank is a process
 * with the torchrun variables in its environment. The supervisor shows output, forwards signals,
 * watches progress and counters, and restarts all ranks as its rules say. The command itself finds
 * the newest good checkpoint. */
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
    bool resumes;           /* true: the command writes checkpoints and continues from them when it is restarted; false: it begins anew */
} LaunchCommand;

/* Runs `command` until it completes or is given up. The first request to stop lets the ranks write
 * a checkpoint; the third kills them. Returns false unless the command completed; the error has the
 * exit code of the whole run. */
bool launch(const LaunchOptions *options, const LaunchCommand *command, const StopRequest *stop, Error *error);
