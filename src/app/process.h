/* State of the whole process: descriptors, environment, number of threads, signals, its end. Only
 * src/app changes it; library code gets the parts that it needs as arguments (StopRequest,
 * HangActions, CommOptions.recommend). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/stop.h"
#include "launch/watchdog.h"

/* Call first in main. Afterwards, writing beyond the file size limit (SIGXFSZ) fails like any other
 * write, and reading a mapped file that was truncated (SIGBUS) ends the process with a message and
 * ERROR_DATA. */
void process_catch_file_faults(void);
/* Raises the limit of open files as far as the system allows, because each token shard is an open
 * file. */
void process_open_many_files(void);
void process_shorten_spinning(char **argv); /* restarts the program, once */

/* Sets OpenMP's threads, with a warning if they are far more than the processors. 0: all
 * processors, divided among the `ranks` of a node unless OMP_NUM_THREADS is set. */
void process_set_threads(int64_t threads, int ranks);
/* Sets an environment variable unless the user has set it (CommOptions.recommend). */
void process_recommend(const char *name, const char *value);

/* Makes SIGTERM and SIGINT, and with `hangup` SIGHUP, a request to stop in `stop`, which must
 * outlive them. While stop->heeded is 0 they end the process with ERROR_PREEMPTED. SIGPIPE is
 * ignored. */
void process_catch_stop(StopRequest *stop, bool hangup);

/* Makes SIGINT a request in `stop`, which must outlive it, to stop the current work; the process
 * continues. */
void process_catch_interrupt(StopRequest *stop);

/* Prints a line if a library ends the process by exit() with a code other than 0. */
void process_explain_end(void);
/* Marks the end with `code` as explained; returns `code`. */
int process_end_explained(int code);

/* Reports that the system refused memory, and exits with ERROR_MEMORY (memory_on_refusal). */
void process_end_without_memory(size_t bytes);

extern const HangActions process_hang_actions;
