/* Starts threads without signals, and pauses for fractions of a second. Owns nothing. Called by the
 * data loader, the writer of checkpoints and S3 requests. */
#include "base/thread.h"

#include <signal.h>
#include <time.h>

int thread_start(pthread_t *thread, void *(*run)(void *context), void *context) {
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);  /* raised by the thread's own reads: if it were blocked, the kernel would kill the process */
    sigdelset(&all, SIGUSR2); /* sent to this thread to print its stack when the process hangs */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int status = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}

static struct timespec deadline_after(double seconds) {
    return (struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
}

void thread_sleep(double seconds) {
    struct timespec time = deadline_after(seconds);
    nanosleep(&time, NULL);
}

bool thread_pause(int *attempts) {
    enum { MOST = 7 };
    const double first = 0.1;
    if (*attempts == MOST) return false;
    thread_sleep(first * (1 << (*attempts)++));
    return true;
}

bool thread_try_again(const Error *error, int *attempts) { return error->finding == FINDING_UNREADABLE && thread_pause(attempts); }

bool thread_wait_until(pthread_cond_t *condition, pthread_mutex_t *lock, double until) {
    struct timespec time = deadline_after(until);
    return pthread_cond_clockwait(condition, lock, CLOCK_MONOTONIC, &time) == 0;
}
