/* The queue of a process: one worker thread runs the collectives of all groups in issue order,
 * keeps the newest records, and checks between collectives that all peers are alive. Owns the
 * queued tasks. Called by comm.c; the transports ask it whether waiting must end. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "comm/comm_internal.h"

static const double WATCH_SECONDS = 0.5;

/* -- Tasks --------------------------------------------------------------------------------------------------------- */

const char *operation_name(Operation operation) {
    static const char *const names[] = {
        "?", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "exchange", "barrier"};
    return operation < sizeof names / sizeof *names ? names[operation] : names[0];
}

static int64_t task_bytes(const Task *task) {
    int64_t most = task->count > task->send_count ? task->count : task->send_count;
    return most * type_bytes(task->type);
}

/* Returns the bytes that this rank sends. An all-reduce counts each shard twice, as in a ring: once
 * to be added and once as the sum. */
static int64_t task_traffic(const Task *task) {
    int64_t bytes = task->count * type_bytes(task->type), size = task->comm->size;
    switch (task->operation) {
    case ALL_REDUCE: return 2 * bytes / size * (size - 1);
    case REDUCE_SCATTER: return bytes / size * (size - 1);
    case ALL_GATHER: return (task->shards[task->comm->rank + 1] - task->shards[task->comm->rank]) * type_bytes(task->type) * (size - 1);
    case BROADCAST: return task->root == task->comm->rank ? bytes : 0;
    case ALL_TO_ALL:
    case EXCHANGE: return task->send_count * type_bytes(task->type);
    case BARRIER: return 0;
    }
    return 0;
}

ByteInterval task_sends(const Task *task, int peer) {
    if (task->operation == ALL_TO_ALL) return shard_of(task->send_shards, peer);
    return (ByteInterval){0, peer == task->to ? task->send_count : -1};
}

ByteInterval task_receives(const Task *task, int peer) {
    if (task->operation == ALL_TO_ALL) return shard_of(task->shards, peer);
    return (ByteInterval){0, peer == task->from ? task->count : -1};
}

void task_free(Task *task) {
    free((int64_t *)task->shards);
    free((int64_t *)task->send_shards);
    free(task);
}

/* -- Records ------------------------------------------------------------------------------------------------------- */

/* The lock is held. */
static int64_t add_trace_record(CommEngine *engine, const Task *task) {
    CommRecord *record = &engine->records[engine->recorded % COMM_RECORDS];
    *record = (CommRecord){
        .sequence = task->sequence ? task->sequence : task->receive_sequence, .bytes = task_bytes(task), .queued = log_seconds()};
    snprintf(record->group, sizeof record->group, "%s", task->comm->name);
    snprintf(record->operation, sizeof record->operation, "%s", operation_name(task->operation));
    memcpy(record->name, task->name, sizeof record->name);
    engine->totals.collectives++;
    engine->totals.bytes += task_traffic(task);
    return engine->recorded++;
}

/* The lock is held. A record that a newer one has replaced is not changed. */
static void set_record(CommEngine *engine, int64_t number, CommState state) {
    CommRecord *record = &engine->records[number % COMM_RECORDS];
    if (number < engine->recorded - COMM_RECORDS) return;
    record->state = state;
    if (state == COMM_RUNNING) record->started = log_seconds();
    else record->finished = log_seconds();
}

int64_t engine_record(CommEngine *engine, const Task *task, CommState state) {
    pthread_mutex_lock(&engine->lock);
    int64_t number = add_trace_record(engine, task);
    set_record(engine, number, state);
    pthread_mutex_unlock(&engine->lock);
    return number;
}

void engine_record_state(CommEngine *engine, int64_t number, CommState state) {
    pthread_mutex_lock(&engine->lock);
    set_record(engine, number, state);
    pthread_mutex_unlock(&engine->lock);
}

/* -- Failures ------------------------------------------------------------------------------------------------------ */

void engine_fail(CommEngine *engine, const Error *error) {
    pthread_mutex_lock(&engine->lock);
    if (!engine->failed) engine->failure = *error;
    engine->failed = true;
    pthread_cond_broadcast(&engine->finished);
    pthread_cond_broadcast(&engine->queued);
    pthread_mutex_unlock(&engine->lock);
}

bool engine_ok(CommEngine *engine, Error *error) {
    if (!engine->failed) return true;
    pthread_mutex_lock(&engine->lock);
    *error = engine->failure;
    pthread_mutex_unlock(&engine->lock);
    return false;
}

bool engine_stopped(CommEngine *engine, double since, const Transfer *transfer, Error *error) {
    if (!engine_ok(engine, error)) return true;
    if (log_seconds() - since < engine->options.timeout) return false;
    error_set(error, ERROR_COMMUNICATION, "rank %d waited %.0f s for rank %d, which is connected but does not answer", engine->place.rank,
        engine->options.timeout, transfer->peer);
    return true;
}

/* -- The worker ---------------------------------------------------------------------------------------------------- */

static void run_queued_task(CommEngine *engine, Task *task) {
    Error error = {0};
    engine_record_state(engine, task->record, COMM_RUNNING);
    bool done = !engine->failed && host_run(task, &error);
    if (!done && !engine->failed) {
        error_context(&error, "%s '%s' (number %llu of group %s)", operation_name(task->operation), task->name,
            (unsigned long long)task->sequence, task->comm->name);
        engine_fail(engine, &error);
    }
    pthread_mutex_lock(&engine->lock);
    set_record(engine, task->record, done ? COMM_DONE : COMM_FAILED);
    engine->completed = task->ticket;
    pthread_cond_broadcast(&engine->finished);
    pthread_mutex_unlock(&engine->lock);
    task_free(task);
}

static void watch_engine(CommEngine *engine) {
    Error error = {0};
    if (!engine->failed && !engine->transport->watch(engine->transport, &error)) engine_fail(engine, &error);
    pthread_mutex_lock(&engine->lock);
    bool gpus = engine->nccl != NULL;
    pthread_mutex_unlock(&engine->lock);
    if (gpus) nccl_watch(engine);
}

/* Returns the next task, or NULL after a while without one. The lock is held. */
static Task *next_task(CommEngine *engine) {
    double until = log_seconds() + WATCH_SECONDS;
    while (!engine->first && !engine->closing)
        if (!thread_wait_until(&engine->queued, &engine->lock, until)) break;
    Task *task = engine->first;
    if (task) engine->first = task->next;
    return task;
}

static void *work(void *argument) {
    CommEngine *engine = argument;
    pthread_mutex_lock(&engine->lock);
    for (Task *task; (task = next_task(engine)) || !engine->closing;) {
        pthread_mutex_unlock(&engine->lock);
        if (task) run_queued_task(engine, task);
        if (!task || engine->failed) watch_engine(engine);
        pthread_mutex_lock(&engine->lock);
    }
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

void engine_start(CommEngine *engine) {
    pthread_mutex_init(&engine->lock, NULL);
    pthread_cond_init(&engine->queued, NULL);
    pthread_cond_init(&engine->finished, NULL);
    engine->working = engine->transport && pthread_create(&engine->worker, NULL, work, engine) == 0;
    if (!engine->transport || engine->working) return;
    Error error = {0};
    error_set(&error, ERROR_INTERNAL, "cannot start a thread for communication: raise the limit on processes (ulimit -u)");
    engine_fail(engine, &error);
}

void engine_stop(CommEngine *engine) {
    pthread_mutex_lock(&engine->lock);
    engine->closing = true;
    pthread_cond_broadcast(&engine->queued);
    pthread_mutex_unlock(&engine->lock);
    if (engine->working) pthread_join(engine->worker, NULL);
    pthread_cond_destroy(&engine->finished);
    pthread_cond_destroy(&engine->queued);
    pthread_mutex_destroy(&engine->lock);
}

CommTicket engine_queue(CommEngine *engine, Task *task) {
    pthread_mutex_lock(&engine->lock);
    CommTicket ticket = task->ticket = ++engine->issued;
    task->record = add_trace_record(engine, task);
    if (engine->working) {
        *(engine->first ? &engine->last->next : &engine->first) = task;
        engine->last = task;
        pthread_cond_signal(&engine->queued);
    }
    pthread_mutex_unlock(&engine->lock);
    if (!engine->working) task_free(task);
    return ticket;
}

void engine_wait(CommEngine *engine, CommTicket ticket) {
    pthread_mutex_lock(&engine->lock);
    assert(ticket <= engine->issued);
    double start = log_seconds();
    while (engine->working && engine->completed < ticket) pthread_cond_wait(&engine->finished, &engine->lock);
    engine->totals.waited += log_seconds() - start;
    pthread_mutex_unlock(&engine->lock);
}
