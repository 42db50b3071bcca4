/* The watchdog of a rank: a thread that notices when training makes no progress. After a given time without, it
 * prints for which ranks this one waits, in which collective of which group, the last collectives (group, operation, name, number, size, state, times) and the stack of
 * every thread, then aborts communication, so that the rank ends with ERROR_COMMUNICATION; where that does not help,
 * it has the process ended. It also detects stragglers (straggler_internal.h). One for each process. Called by the
 * training loop. */
#pragma once

#include "comm/mesh.h"

typedef struct Watchdog Watchdog;

/* What only the program may do to its process, called on the watchdog's thread when the rank hangs; NULL: it is left
 * out. */
typedef struct HangActions {
    void (*print_stacks)(void); /* of every thread, to stderr */
    void (*end)(int code);      /* ends the process at once: a rank that is stuck cannot return */
} HangActions;

/* `mesh`: how the ranks of `comm` are laid out, by whose axes reports name ranks and groups, and of which stragglers are
 * sought among the ranks of one pipeline stage. `step`: the one that training continues from. `seconds`: the longest time between two signs of life; 0: it only
 * writes the heartbeat. ERROR_MEMORY, ERROR_INTERNAL. */
Watchdog *watchdog_start(const Mesh *mesh, Comm *comm, int64_t step, double seconds, const HangActions *actions, Error *error);
/* A sign of life; `step` is the last completed one. Call it on all ranks after every step, where it is a collective
 * now and then, and again wherever much time passes before the next one begins (evaluation, saving). Cheap. */
void watchdog_alive(Watchdog *watchdog, int64_t step);
/* Whether `smelt launch` started this process. */
bool watchdog_is_supervised(void);
void watchdog_stop(Watchdog *watchdog); /* NULL is fine */
