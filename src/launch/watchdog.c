/* The watchdog's thread and its report. Signal handlers have no arguments, so the semaphore that they post is the one global here. Owns the thread
 * and the rank's beacon. */
#include "launch/watchdog.h"

#include <dirent.h>
#include <execinfo.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "launch/heartbeat.h"
#include "launch/straggler.h"

enum { MOST_FRAMES = 48, RECORDS_SHOWN = 12, STACK_SECONDS = 2, LEAVE_SECONDS = 3 };

struct Watchdog {
    Comm *comm;
    double seconds;
    Heartbeat *heartbeats;
    int ranks; /* the rank's own beacon is the last */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool running, stop;
    StragglerDetector straggler;
};

static sem_t stack_printed;

static Heartbeat *own(const Watchdog *watchdog) { return &watchdog->heartbeats[watchdog->ranks - 1]; }

/* -- The report ----------------------------------------------------------------------------------------------------- */

static void print_stack(int number) {
    (void)number;
    void *frames[MOST_FRAMES];
    backtrace_symbols_fd(frames, backtrace(frames, MOST_FRAMES), STDERR_FILENO);
    sem_post(&stack_printed);
}

/* Interrupts one thread after the other, each of which prints its own stack. */
static void print_stacks(void) {
    struct sigaction action = {.sa_handler = print_stack, .sa_flags = SA_RESTART}, before;
    void *frame[1];
    backtrace(frame, 1); /* loads its library now, not in the handler */
    DIR *threads = opendir("/proc/self/task");
    if (!threads || sem_init(&stack_printed, 0, 0) != 0 || sigaction(SIGUSR2, &action, &before) != 0) return;
    for (struct dirent *entry; (entry = readdir(threads));) {
        struct timespec until;
        int thread = atoi(entry->d_name);
        if (thread <= 0 || thread == gettid()) continue;
        fprintf(stderr, "stack of thread %d:\n", thread);
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += STACK_SECONDS;
        if (syscall(SYS_tgkill, getpid(), thread, SIGUSR2) != 0 || sem_timedwait(&stack_printed, &until) != 0)
            fprintf(stderr, "  (it does not answer)\n");
    }
    closedir(threads);
}

static void print_collectives(const Watchdog *watchdog) {
    static const char *const states[] = {
        [COMM_QUEUED] = "queued", [COMM_RUNNING] = "running", [COMM_DONE] = "done", [COMM_FAILED] = "failed"};
    CommRecord records[RECORDS_SHOWN];
    double now = log_seconds();
    int count = comm_recent(watchdog->comm, records, RECORDS_SHOWN);
    fprintf(stderr, "last collectives of rank %d, newest first:\n", comm_rank(watchdog->comm));
    for (int i = 0; i < count; i++) {
        const CommRecord *r = &records[i];
        char bytes[32];
        log_format_bytes((double)r->bytes, bytes);
        fprintf(stderr, "  %-8s %6llu %-14s '%s' %s, %s, queued %.1f s ago", r->group, (unsigned long long)r->sequence, r->operation,
            r->name, bytes, states[r->state], now - r->queued);
        if (r->state == COMM_RUNNING) fprintf(stderr, ", has run for %.1f s", now - r->started);
        if (r->state == COMM_DONE) fprintf(stderr, ", took %.4f s", r->finished - r->started);
        fputc('\n', stderr);
    }
    if (!count) fprintf(stderr, "  none\n");
}

/* -- The thread ----------------------------------------------------------------------------------------------------- */

/* Waits; true when the watchdog was told to stop. The lock is held. */
static bool pause_for(Watchdog *watchdog, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t nanoseconds = until.tv_nsec + (int64_t)(seconds * 1e9);
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    while (!watchdog->stop)
        if (pthread_cond_timedwait(&watchdog->stopped, &watchdog->lock, &until) != 0) break;
    return watchdog->stop;
}

static void act(Watchdog *watchdog) {
    int64_t step = own(watchdog)->step;
    char reason[160];
    snprintf(reason, sizeof reason, "rank %d made no progress for %.0f s after step %lld: ended by its watchdog", comm_rank(watchdog->comm),
        watchdog->seconds, (long long)step);
    log_error("%s", reason);
    print_collectives(watchdog);
    print_stacks();
    comm_abort(watchdog->comm, reason);
    if (!pause_for(watchdog, LEAVE_SECONDS)) _exit(ERROR_COMMUNICATION);
}

static void *watch(void *argument) {
    Watchdog *watchdog = argument;
    double interval = watchdog->seconds / 10 < 1 ? watchdog->seconds / 10 : 1, before = log_seconds();
    pthread_mutex_lock(&watchdog->lock);
    for (; !pause_for(watchdog, interval); before = log_seconds()) {
        bool slept = log_seconds() - before > 2 * interval; /* the process was stopped meanwhile, or its machine */
        if (slept) own(watchdog)->alive = log_seconds();
        if (log_seconds() - own(watchdog)->alive < watchdog->seconds) continue;
        act(watchdog);
        break;
    }
    pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

Watchdog *watchdog_start(Comm *comm, double seconds, Error *error) {
    Watchdog *watchdog = memory_allocate(sizeof *watchdog);
    pthread_condattr_t monotonic;
    *watchdog = (Watchdog){.comm = comm, .seconds = seconds, .straggler = {.comm = comm, .slow = -1}};
    watchdog->heartbeats = heartbeat_join(comm_local_rank(comm), &watchdog->ranks, error);
    if (!watchdog->heartbeats) {
        free(watchdog);
        return NULL;
    }
    own(watchdog)->alive = log_seconds();
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&watchdog->lock, NULL);
    pthread_cond_init(&watchdog->stopped, &monotonic);
    pthread_condattr_destroy(&monotonic);
    watchdog->running = seconds > 0 && pthread_create(&watchdog->thread, NULL, watch, watchdog) == 0;
    if (watchdog->running || seconds <= 0) return watchdog;
    error_set(
        error, ERROR_INTERNAL, "the system refused a thread for the watchdog: look at the limits of this user's processes (ulimit -u)");
    watchdog_stop(watchdog);
    return NULL;
}

void watchdog_alive(Watchdog *watchdog, int64_t step) {
    if (step == own(watchdog)->step + 1) straggler_step(&watchdog->straggler);
    else straggler_mark(&watchdog->straggler);
    own(watchdog)->step = step;
    own(watchdog)->alive = log_seconds();
}

void watchdog_stop(Watchdog *watchdog) {
    if (!watchdog) return;
    pthread_mutex_lock(&watchdog->lock);
    watchdog->stop = true;
    pthread_cond_signal(&watchdog->stopped);
    pthread_mutex_unlock(&watchdog->lock);
    if (watchdog->running) pthread_join(watchdog->thread, NULL);
    pthread_cond_destroy(&watchdog->stopped);
    pthread_mutex_destroy(&watchdog->lock);
    heartbeat_close(watchdog->heartbeats, watchdog->ranks);
    free(watchdog);
}
