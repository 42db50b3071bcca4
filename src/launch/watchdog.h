/* The watchdog of a rank: a thread that notices when training makes no progress. After a given time
 * without progress it prints the ranks that this one waits for, with the collective and its group;
 * the latest collectives (group, operation, name, number, size, state, times); and the stack of
 * every thread. It then aborts communication, so that the rank ends with ERROR_COMMUNICATION; if
 * that does not help, it ends the process. It also detects stragglers (straggler_internal.h). One
 * per process. Called by the training loop. */
#pragma once

#include "comm/mesh.h"

typedef struct Watchdog Watchdog;

/* Actions on the process, called on the watchdog's thread when the rank hangs. NULL: the action is
 * left out. */
typedef struct HangActions {
    void (*print_stacks)(void); /* of all threads, to stderr */
    void (*end)(int code);      /* ends the process at once, because a stuck rank cannot return */
} HangActions;

/* Starts the watchdog. `mesh`: the layout of the ranks of `comm`. Reports name ranks and groups by
 * its axes, and stragglers are detected among the ranks of one pipeline stage. `step`: the step
 * from which training continues. `seconds`: the longest time between two signs of life; 0: only
 * writes the heartbeat. ERROR_MEMORY, ERROR_INTERNAL. */
Watchdog *watchdog_start(const Mesh *mesh, Comm *comm, int64_t step, double seconds, const HangActions *actions, Error *error);
/* Signals life; `step` is the last completed step. Call it on all ranks after every step, because
 * it is a collective every few steps, and again after long pauses between steps (evaluation,
 * saving). Cheap. */
void watchdog_alive(Watchdog *watchdog, int64_t step);
/* Returns the rank that has been a straggler for several comparisons; -1: none. */
int watchdog_slow_rank(const Watchdog *watchdog);
/* Returns whether `smelt launch` started this process. */
bool watchdog_is_supervised(void);
void watchdog_stop(Watchdog *watchdog); /* NULL is fine */
