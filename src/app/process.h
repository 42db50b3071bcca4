/* What concerns the process as a whole: descriptors, environment, number of threads, signals, its end. Only src/app
 * changes these; library code gets what it needs of them as arguments (StopRequest, HangActions,
 * CommOptions.recommend). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stop.h"
#include "launch/watchdog.h"

/* First of all in main. Writing beyond the limit on the size of files (SIGXFSZ) fails like any other write. Reading a
 * mapped file that was truncated meanwhile (SIGBUS) ends the process with a message and ERROR_DATA. */
void process_catch_file_faults(void);
/* Lets the process have as many files open as the system allows it, since a shard of tokens is one. */
void process_open_many_files(void);
void process_shorten_spinning(char **argv); /* starts the program again, once */

/* OpenMP's threads, with a warning where they are far more than the processors; 0: all, but the `ranks` of a node share
 * its processors unless OMP_NUM_THREADS says otherwise. */
void process_set_threads(int64_t threads, int ranks);
/* Sets an environment variable unless the user did (CommOptions.recommend). */
void process_recommend(const char *name, const char *value);

/* From now on SIGTERM and SIGINT make `stop`, which outlives them, a request to stop; with `hangup` SIGHUP too.
 * While stop->heeded is 0 they end the process with ERROR_PREEMPTED. SIGPIPE is ignored. */
void process_catch_stop(StopRequest *stop, bool hangup);

/* From now on SIGINT makes `stop`, which outlives it, a request to stop what is being done; the process goes on. */
void process_catch_interrupt(StopRequest *stop);

/* From now on a line says so when a library ends the process by exit() with another code than 0. */
void process_explain_end(void);
/* The end with `code`, which it returns, has its line. */
int process_end_explained(int code);

/* Says that the system refused memory and exits with ERROR_MEMORY (memory_on_refusal). */
void process_end_without_memory(size_t bytes);

extern const HangActions process_hang_actions;
