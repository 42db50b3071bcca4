/* The watchdog's thread and its report. Owns the thread and the mapped page of heartbeats. */
#include "launch/watchdog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/thread.h"
#include "launch/heartbeat_internal.h"
#include "launch/straggler_internal.h"

enum { RECORDS_SHOWN = 12, LEAVE_SECONDS = 3 };

struct Watchdog {
    Comm *comm;
    double seconds;
    HangActions actions;
    Heartbeat *heartbeats;
    int own, ranks; /* this rank's index on the page, and the number of ranks on it */
    Mesh mesh;      /* without groups */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t stopped;
    bool running, stop;
    StragglerDetector straggler;
};

static Heartbeat *heartbeat(const Watchdog *watchdog) { return &watchdog->heartbeats[watchdog->own]; }

/* -- The report ---------------------------------------------------------------------------------------------------- */

/* Finds the oldest collective that has not ended; returns false if there is none. */
static bool find_wait(const Watchdog *watchdog, CommRecord *wait) {
    CommRecord records[COMM_RECORDS];
    int count = comm_recent(watchdog->comm, records, COMM_RECORDS);
    for (int i = count; i-- > 0;) {
        if (records[i].state != COMM_QUEUED && records[i].state != COMM_RUNNING) continue;
        *wait = records[i];
        return true;
    }
    return false;
}

static uint64_t wait_of(const Watchdog *watchdog) {
    CommRecord wait;
    return find_wait(watchdog, &wait) ? heartbeat_wait(mesh_find_axes(&watchdog->mesh, wait.group), wait.sequence) : 0;
}

/* Prints "  rank 4 (dp 1, pp 0, tp 0), which is in no collective", from the heartbeat that the rank
 * writes on this node. */
static void print_absent(const Watchdog *watchdog, int rank) {
    char name[128], group[COMM_GROUP_NAME];
    int local = rank - comm_rank(watchdog->comm) + watchdog->own;
    mesh_describe_rank(&watchdog->mesh, rank, name, sizeof name);
    if (local < 0 || local >= watchdog->ranks) {
        fprintf(stderr, "  %s, on another node\n", name);
        return;
    }
    uint64_t wait = watchdog->heartbeats[local].waits;
    mesh_name_group(heartbeat_wait_axes(wait), group, sizeof group);
    if (wait) fprintf(stderr, "  %s, which is in collective %llu of %s\n", name, (unsigned long long)heartbeat_wait_number(wait), group);
    else fprintf(stderr, "  %s, which is in no collective\n", name);
}

/* Prints the ranks of the group that have not reached this rank's collective. */
static void print_wait(const Watchdog *watchdog) {
    enum { MOST = 16 };
    CommRecord wait;
    char name[128];
    int absent = 0, own = comm_rank(watchdog->comm);
    mesh_describe_rank(&watchdog->mesh, own, name, sizeof name);
    if (!find_wait(watchdog, &wait)) {
        fprintf(stderr, "%s is in no collective\n", name);
        return;
    }
    fprintf(stderr, "%s waits in %s %llu '%s' of %s for\n", name, wait.operation, (unsigned long long)wait.sequence, wait.name, wait.group);
    MeshAxes axes = mesh_find_axes(&watchdog->mesh, wait.group);
    uint64_t here = heartbeat_wait(axes, wait.sequence);
    for (int rank = 0; rank < comm_size(watchdog->comm); rank++) {
        int local = rank - own + watchdog->own;
        bool came = local >= 0 && local < watchdog->ranks && watchdog->heartbeats[local].waits == here;
        if (rank == own || came || !mesh_has(&watchdog->mesh, axes, rank)) continue;
        if (absent++ < MOST) print_absent(watchdog, rank);
    }
    if (absent > MOST) fprintf(stderr, "  and %d more\n", absent - MOST);
    if (!absent) fprintf(stderr, "  none: all ranks of the group on this node have arrived\n");
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

/* -- The thread ---------------------------------------------------------------------------------------------------- */

/* Waits with the lock held; returns true when the watchdog must stop. */
static bool pause_for(Watchdog *watchdog, double seconds) {
    double until = log_seconds() + seconds;
    while (!watchdog->stop)
        if (!thread_wait_until(&watchdog->stopped, &watchdog->lock, until)) break;
    return watchdog->stop;
}

static void end_hang(Watchdog *watchdog) {
    int64_t step = heartbeat(watchdog)->step;
    char reason[160];
    snprintf(reason, sizeof reason, "rank %d made no progress for %.0f s after step %lld: its watchdog ended it", comm_rank(watchdog->comm),
        watchdog->seconds, (long long)step);
    log_error("%s", reason);
    print_wait(watchdog);
    print_collectives(watchdog);
    if (watchdog->actions.print_stacks) watchdog->actions.print_stacks();
    comm_abort(watchdog->comm, reason);
    if (!pause_for(watchdog, LEAVE_SECONDS) && watchdog->actions.end) watchdog->actions.end(ERROR_COMMUNICATION);
}

static void *watch_steps(void *argument) {
    Watchdog *watchdog = argument;
    double interval = watchdog->seconds / 10 < 1 ? watchdog->seconds / 10 : 1, before = log_seconds();
    pthread_mutex_lock(&watchdog->lock);
    for (; !pause_for(watchdog, interval); before = log_seconds()) {
        bool slept = log_seconds() - before > 2 * interval; /* the process or the machine was suspended meanwhile */
        if (slept) heartbeat(watchdog)->alive = log_seconds();
        heartbeat(watchdog)->waits = wait_of(watchdog);
        if (log_seconds() - heartbeat(watchdog)->alive < watchdog->seconds) continue;
        end_hang(watchdog);
        break;
    }
    pthread_mutex_unlock(&watchdog->lock);
    return NULL;
}

Watchdog *watchdog_start(const Mesh *mesh, Comm *comm, int64_t step, double seconds, const HangActions *actions, Error *error) {
    Watchdog *watchdog = memory_allocate(sizeof *watchdog);
    *watchdog = (Watchdog){
        .comm = comm, .seconds = seconds, .actions = *actions, .straggler = {.comm = comm, .stage = mesh->at[AXIS_PP], .slow = -1}};
    memcpy(watchdog->mesh.size, mesh->size, sizeof mesh->size);
    memcpy(watchdog->mesh.at, mesh->at, sizeof mesh->at);
    watchdog->heartbeats = heartbeat_join(comm_local_rank(comm), &watchdog->own, &watchdog->ranks, error);
    if (!watchdog->heartbeats) {
        free(watchdog);
        return NULL;
    }
    heartbeat_set_mesh(heartbeat(watchdog), mesh);
    heartbeat(watchdog)->step = step;
    heartbeat(watchdog)->alive = log_seconds();
    pthread_mutex_init(&watchdog->lock, NULL);
    pthread_cond_init(&watchdog->stopped, NULL);
    watchdog->running = seconds > 0 && pthread_create(&watchdog->thread, NULL, watch_steps, watchdog) == 0;
    if (watchdog->running || seconds <= 0) return watchdog;
    error_set(error, ERROR_INTERNAL, "cannot start a thread for the watchdog: raise the limit on processes (ulimit -u)");
    watchdog_stop(watchdog);
    return NULL;
}

void watchdog_alive(Watchdog *watchdog, int64_t step) {
    if (step == heartbeat(watchdog)->step + 1) straggler_step(&watchdog->straggler);
    else straggler_mark(&watchdog->straggler);
    heartbeat(watchdog)->step = step;
    heartbeat(watchdog)->alive = log_seconds();
}

int watchdog_slow_rank(const Watchdog *watchdog) { return straggler_confirmed(&watchdog->straggler); }

bool watchdog_is_supervised(void) { return getenv("SMELT_HEARTBEATS") != NULL; }

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
