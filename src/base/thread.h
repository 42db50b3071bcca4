/* Threads of libraries, and waiting. Includes <pthread.h>, whose functions join them. */
#pragma once

#include <pthread.h>

/* Starts a thread that takes no signals: they belong to the thread that main runs in. Returns 0 or an errno. */
int thread_start(pthread_t *thread, void *(*run)(void *context), void *context);
/* Waits at least so long, unless a signal arrives. */
void thread_sleep(double seconds);
