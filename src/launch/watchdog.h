/* The watchdog of a rank: a thread that looks whether training makes progress. When it does not for a given time, it prints the last collectives of
 * this rank (group, operation, name, number, size, state, times) and the stack of every thread, aborts communication, so that the rank ends with
 * ERROR_COMMUNICATION, and ends the process itself when that does not help. It also keeps the straggler of the ranks (straggler.h). One for each process. Called
 * by the training loop. */
#pragma once

#include "comm/comm.h"

typedef struct Watchdog Watchdog;

/* `seconds`: the longest time between two signs of life; 0: it only tells the supervisor how far the rank is. ERROR_MEMORY, ERROR_INTERNAL. */
Watchdog *watchdog_start(Comm *comm, double seconds, Error *error);
/* A sign of life; `step` is the last completed one. Call it on all ranks after every step, where it is a collective now and then, and again wherever much
 * time passes before the next one begins (evaluation, saving). Cheap. */
void watchdog_alive(Watchdog *watchdog, int64_t step);
void watchdog_stop(Watchdog *watchdog); /* NULL is fine */
