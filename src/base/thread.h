/* Threads of libraries, and waiting. Includes <pthread.h>, whose functions join them. */
#pragma once

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"

/* Starts a thread that takes no signals of others: they belong to the thread that main runs in. Returns 0 or an errno. */
int thread_start(pthread_t *thread, void *(*run)(void *context), void *context);
/* Waits at least so long, unless a signal arrives. */
void thread_sleep(double seconds);
/* Before another attempt at what may pass, counted from 0: sleeps for 0.1 s, and twice as long each time. False at once
 * after seven of them, which take 12.7 s together. */
bool thread_pause(int *attempts);
/* The same after a failure that may pass: FINDING_UNREADABLE. False at once after any other. */
bool thread_try_again(const Error *error, int *attempts);
/* pthread_cond_wait that ends at a time of log_seconds() at the latest; false when it is over. */
bool thread_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, double until);
