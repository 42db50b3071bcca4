/* Threads of libraries, and waiting. Includes <pthread.h>; its pthread_join joins them. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"

/* Starts a thread that blocks the process's signals, which the main thread handles. Returns 0 or an
 * errno. */
int thread_start(pthread_t *thread, void *(*run)(void *context), void *context);
/* Waits at least `seconds`, unless a signal arrives. */
void thread_sleep(double seconds);
/* Call it before retrying a failure that may pass; *attempts starts at 0. Sleeps for 0.1 s, and
 * twice as long each time. Returns false at once after seven pauses, 12.7 s together. */
bool thread_pause(int *attempts);
/* The same after a failure that may pass, FINDING_UNREADABLE; returns false at once after any other
 * failure. */
bool thread_try_again(const Error *error, int *attempts);
/* Like pthread_cond_wait, until `until` in log_seconds() at the latest; returns false when that
 * time is over. */
bool thread_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, double until);

/* For parallel loops: loop_going returns whether no iteration has failed so far. An iteration that
 * fails ends the others; the first one sets *error, for the thread that waits for the loop. */
static inline bool loop_going(const bool *good) { return __atomic_load_n(good, __ATOMIC_RELAXED); }
static inline void loop_fail(bool *good, const Error *failure, Error *error) {
    if (__atomic_exchange_n(good, false, __ATOMIC_RELAXED)) *error = *failure;
}
