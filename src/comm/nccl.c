/* Collectives between GPUs over NCCL or RCCL, which have the same interface and are opened at run
 * time. Collectives run on a shared stream, or on the group's own stream (comm_use_own_stream). One
 * event orders each collective after the device stream's work at issue; another event marks its
 * end. Owns the library, the streams and the events. Called by comm.c; nccl_watch runs on the
 * worker. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/library.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm_internal.h"
#include "comm/nccl_calls_internal.h"

enum { EVENTS = 1024 /* more than a step waits for */, MOST_GROUPS = 64, LOCK_SECONDS = 2 };
enum { LEAST_MEMORY = 256 << 20 }; /* with less device memory free, a lack of it is the likeliest cause of a failure */
/* The device's stream waited for a collective between these events. */
typedef struct Stall { DeviceEvent *before, *after; } Stall;
typedef struct Issued {
    DeviceEvent *event;
    DeviceStream *stream; /* NULL: none yet */
    int64_t record;       /* the first of `records` */
    int records;          /* collectives of this ticket */
    double since;
} Issued;

typedef struct Nccl {
    const char *name;
    void *library;
    const Device *device;
    struct {
        NCCL_CALLS(LIBRARY_FIELD)
        const char *(*error_text)(int result);
    } call;
    const char *(*last_error)(void *group); /* the cause of the latest failure; NULL: the library is too old */
    DeviceStream *stream;
    DeviceEvent *ready;
    pthread_mutex_t lock;        /* protects what follows, and calls of the library */
    Issued issued[EVENTS];       /* by ticket */
    CommTicket last, done, open; /* open: the ticket of collectives that are issued together; 0: none yet */
    bool together;               /* true between nccl_begin_together and nccl_end_together, which hold the lock */
    void *groups[MOST_GROUPS];
    bool in_thread, aborted;
    Stall stalls[EVENTS]; /* used by the compute thread only */
    int64_t stalled, counted;
    double seconds_stalled; /* sum over the stalls that are counted */
} Nccl;

#define NUMBER(ours, number, name) [ours] = number,
static const int types[] = {NCCL_TYPES(NUMBER)}, reductions[] = {NCCL_REDUCTIONS(NUMBER)};

/* -- The library --------------------------------------------------------------------------------------------------- */

static bool open_nccl_library(Nccl *nccl, const DeviceInfo *device, Error *error) {
    static const char *const names[] = {NCCL_CALLS(LIBRARY_NAME) "ncclGetErrorString"};
    const char *file = device->collectives_file;
    nccl->name = device->collectives;
    nccl->library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!nccl->library)
        return error_set(error, ERROR_USAGE, "training on several GPUs needs %s: %s; install it, or use one GPU", nccl->name, dlerror());
    const char *missing = library_find(nccl->library, names, &nccl->call);
    *(void **)&nccl->last_error = dlsym(nccl->library, "ncclGetLastError");
    return !missing || error_set(error, ERROR_USAGE, "%s has no symbol %s: it is too old; install 2.7 or newer", file, missing);
}

/* Returns whether a failure is a lack of device memory: the library says so, or less than LEAST_MEMORY is free. The library
 * allocates its buffers when ranks first communicate. */
static bool lacks_memory(const Nccl *nccl, int result, int64_t available) {
    const char *cause = nccl->last_error ? nccl->last_error(NULL) : NULL;
    bool allocates = result == NCCL_UNHANDLED_CUDA_ERROR || result == NCCL_SYSTEM_ERROR || result == NCCL_INTERNAL_ERROR;
    return allocates && ((cause && strcasestr(cause, "out of memory")) || (available >= 0 && available < LEAST_MEMORY));
}

static bool refuse_memory(const Nccl *nccl, int result, int64_t available, Error *error) {
    char left[32];
    log_format_bytes((double)available, left);
    return error_set(error, ERROR_MEMORY,
        "%s has no device memory for a collective: %s (%d), %s free. The plan's margin for its buffers is too small, and a restart would "
        "need as much. Use a stronger recompute, fewer batch.sequences, a higher layout.zero or more ranks",
        nccl->name, nccl->call.error_text(result), result, left);
}

static bool nccl_check(const Nccl *nccl, int result, Error *error) {
    if (result == 0) return true;
    int64_t available = device_available(nccl->device);
    if (lacks_memory(nccl, result, available)) return refuse_memory(nccl, result, available, error);
    return error_set(
        error, ERROR_COMMUNICATION, "%s: %s (%d); set NCCL_DEBUG=INFO for details", nccl->name, nccl->call.error_text(result), result);
}

void nccl_describe(const CommEngine *engine, char *text, size_t size) {
    int version = 0;
    engine->nccl->call.version(&version);
    snprintf(text, size, "%s %d.%d.%d", engine->nccl->name, version / 10000, version / 100 % 100, version % 100);
}

bool nccl_open(CommEngine *engine, Error *error) {
    Device *device = engine->device;
    Nccl *nccl = memory_allocate(sizeof *nccl);
    pthread_mutex_init(&nccl->lock, NULL);
    nccl->device = device;
    bool opened = open_nccl_library(nccl, device_info(device), error);
    if (opened) {
        nccl->stream = device_stream_open(device, false);
        nccl->ready = device_event_open(device, false);
        for (int i = 0; i < EVENTS; i++) {
            nccl->issued[i].event = device_event_open(device, false);
            nccl->stalls[i] = (Stall){device_event_open(device, true), device_event_open(device, true)};
        }
        opened = device_ok(device, error);
    }
    pthread_mutex_lock(&engine->lock);
    engine->nccl = nccl;
    pthread_mutex_unlock(&engine->lock);
    return opened;
}

/* Called after the worker has ended. */
void nccl_close(CommEngine *engine) {
    Nccl *nccl = engine->nccl;
    if (!nccl) return;
    for (int i = 0; i < EVENTS; i++) {
        device_event_close(engine->device, nccl->issued[i].event);
        device_event_close(engine->device, nccl->stalls[i].before);
        device_event_close(engine->device, nccl->stalls[i].after);
    }
    device_event_close(engine->device, nccl->ready);
    device_stream_close(engine->device, nccl->stream);
    pthread_mutex_destroy(&nccl->lock);
    if (nccl->library) dlclose(nccl->library);
    free(nccl);
    engine->nccl = NULL;
}

/* -- Groups -------------------------------------------------------------------------------------------------------- */

static bool note_group(Nccl *nccl, void *group) {
    for (int i = 0; i < MOST_GROUPS; i++) {
        if (nccl->groups[i]) continue;
        nccl->groups[i] = group;
        return true;
    }
    return false;
}

bool nccl_join(Comm *comm, Error *error) {
    Nccl *nccl = comm->engine->nccl;
    NcclId id = {{0}};
    void *group = NULL;
    if (comm->size == 1) return true;
    if (comm->rank == 0 && !nccl_check(nccl, nccl->call.make_id(&id), error)) return false;
    if (!comm_host_broadcast(comm, "id", id.bytes, ID_BYTES, COMM_U8, 0, error)) return false;
    if (!nccl_check(nccl, nccl->call.join(&group, comm->size, id, comm->rank), error)) return false;
    pthread_mutex_lock(&nccl->lock);
    bool noted = note_group(nccl, group);
    pthread_mutex_unlock(&nccl->lock);
    comm->nccl = group;
    return noted || error_set(error, ERROR_INTERNAL, "the layout needs more than %d communicators", MOST_GROUPS);
}

void nccl_leave(Comm *comm) {
    Nccl *nccl = comm->engine->nccl;
    if (!comm->nccl) return;
    pthread_mutex_lock(&nccl->lock);
    for (int i = 0; i < MOST_GROUPS; i++)
        if (nccl->groups[i] == comm->nccl) nccl->groups[i] = NULL;
    if (!nccl->aborted) (comm->engine->failed ? nccl->call.abort : nccl->call.leave)(comm->nccl);
    for (int i = 0; i < EVENTS; i++)
        if (nccl->issued[i].stream == comm->stream) nccl->issued[i].stream = NULL;
    if (comm->stream) device_stream_close(comm->engine->device, comm->stream);
    pthread_mutex_unlock(&nccl->lock);
    comm->nccl = NULL;
}

/* -- Collectives --------------------------------------------------------------------------------------------------- */

static bool are_even(const int64_t *shards, int size) {
    for (int i = 1; i < size; i++)
        if (shards[i + 1] - shards[i] != shards[1] - shards[0]) return false;
    return true;
}

/* Ends a group of library calls; one of them may have failed. */
static int end_group(const Nccl *nccl, int result) {
    int ended = nccl->call.end();
    return result ? result : ended;
}

static char *shard_at(const Task *task, int rank) { return task->buffer + task->shards[rank] * type_bytes(task->type); }

static DeviceStream *task_stream(const Task *task) { return task->comm->stream ? task->comm->stream : task->comm->engine->nccl->stream; }

/* Issues REDUCE_SCATTER or ALL_GATHER: one call if all shards are equal, else one call per
 * shard. */
static int issue_shards(const Nccl *nccl, const Task *task) {
    const bool gather = task->operation == ALL_GATHER;
    const int64_t *shards = task->shards;
    int type = types[task->type], reduce = reductions[task->reduce], size = task->comm->size, result = 0;
    void *group = task->comm->nccl;
    char *first = shard_at(task, 0), *mine = task->result ? task->result : shard_at(task, task->comm->rank);
    size_t count = (size_t)(shards[1] - shards[0]);
    if (are_even(shards, size))
        return gather ? nccl->call.all_gather(mine, first, count, type, group, task_stream(task))
                      : nccl->call.reduce_scatter(first, mine, count, type, reduce, group, task_stream(task));
    nccl->call.begin();
    for (int i = 0; i < size && !result; i++) {
        char *shard = shard_at(task, i), *to = i == task->comm->rank ? mine : shard;
        count = (size_t)(shards[i + 1] - shards[i]);
        if (count == 0) continue;
        result = gather ? nccl->call.broadcast(shard, shard, count, type, i, group, task_stream(task))
                        : nccl->call.reduce(shard, to, count, type, reduce, i, group, task_stream(task));
    }
    return end_group(nccl, result);
}

/* Issues ALL_TO_ALL or EXCHANGE as messages between pairs of ranks, all at once. */
static int issue_messages(const Nccl *nccl, const Task *task) {
    int64_t width = type_bytes(task->type);
    int type = types[task->type], result = 0;
    void *group = task->comm->nccl;
    nccl->call.begin();
    for (int i = 0; i < task->comm->size && !result; i++) {
        ByteInterval out = task_sends(task, i), in = task_receives(task, i);
        if (out.count > 0) result = nccl->call.send(task->send + out.start * width, (size_t)out.count, type, i, group, task_stream(task));
        if (in.count > 0 && !result)
            result = nccl->call.receive(task->buffer + in.start * width, (size_t)in.count, type, i, group, task_stream(task));
    }
    return end_group(nccl, result);
}

static int issue_task(const Nccl *nccl, const Task *task) {
    void *group = task->comm->nccl;
    switch (task->operation) {
    case ALL_REDUCE:
        return nccl->call.all_reduce(
            task->buffer, task->buffer, (size_t)task->count, types[task->type], reductions[task->reduce], group, task_stream(task));
    case BROADCAST:
        return nccl->call.broadcast(
            task->buffer, task->buffer, (size_t)task->count, types[task->type], task->root, group, task_stream(task));
    case REDUCE_SCATTER:
    case ALL_GATHER: return issue_shards(nccl, task);
    case ALL_TO_ALL:
    case EXCHANGE: return issue_messages(nccl, task);
    case BARRIER: break; /* always in host memory */
    }
    return 0;
}

/* Opens a ticket for later work of `stream`, which is ordered after the device stream's present
 * work. */
static CommTicket open_ticket(const CommEngine *engine, Nccl *nccl, DeviceStream *stream) {
    CommTicket ticket = nccl->last + 1;
    Issued *issued = &nccl->issued[ticket % EVENTS];
    device_event_record(engine->device, nccl->ready, NULL);
    device_event_wait(engine->device, nccl->ready, stream);
    if (issued->stream && issued->stream != stream) device_event_wait(engine->device, issued->event, stream);
    issued->stream = stream;
    issued->records = 0;
    return ticket;
}

static void close_ticket(const CommEngine *engine, Nccl *nccl, CommTicket ticket) {
    Issued *issued = &nccl->issued[ticket % EVENTS];
    device_event_record(engine->device, issued->event, issued->stream);
    issued->since = log_seconds();
    nccl->last = ticket;
}

static void note_record(Issued *issued, int64_t record) {
    if (issued->records++ == 0) issued->record = record;
}

CommTicket nccl_queue(Task *task) {
    CommEngine *engine = task->comm->engine;
    Nccl *nccl = engine->nccl;
    Error error = {0};
    CommTicket ticket = 0;
    bool done = true;
    if (!nccl->together) pthread_mutex_lock(&nccl->lock);
    if (!engine->failed && !nccl->aborted) {
        ticket = nccl->open ? nccl->open : open_ticket(engine, nccl, task_stream(task));
        done = nccl_check(nccl, issue_task(nccl, task), &error) ||
               error_context(&error, "%s '%s'", operation_name(task->operation), task->name);
        note_record(&nccl->issued[ticket % EVENTS], engine_record(engine, task, COMM_RUNNING));
        if (nccl->together) nccl->open = ticket;
        else close_ticket(engine, nccl, ticket);
    }
    if (!nccl->together) pthread_mutex_unlock(&nccl->lock);
    if (!done) engine_fail(engine, &error);
    task_free(task);
    return -ticket;
}

void nccl_begin_together(CommEngine *engine) {
    Nccl *nccl = engine->nccl;
    pthread_mutex_lock(&nccl->lock);
    nccl->together = true;
    if (!nccl->aborted) nccl->call.begin();
}

void nccl_end_together(CommEngine *engine) {
    Nccl *nccl = engine->nccl;
    Error error = {0};
    bool done = nccl->aborted || nccl_check(nccl, nccl->call.end(), &error);
    if (nccl->open) close_ticket(engine, nccl, nccl->open);
    nccl->open = 0;
    nccl->together = false;
    pthread_mutex_unlock(&nccl->lock);
    if (!done) engine_fail(engine, &error);
}

double nccl_seconds_stalled(CommEngine *engine) {
    Nccl *nccl = engine->nccl;
    for (; nccl->counted < nccl->stalled && !engine->failed; nccl->counted++) {
        const Stall *stall = &nccl->stalls[nccl->counted % EVENTS];
        if (!device_event_done(engine->device, stall->after)) break;
        nccl->seconds_stalled += device_event_seconds(engine->device, stall->before, stall->after);
    }
    return nccl->seconds_stalled;
}

/* A newer collective may have reused the event of an old ticket; waiting for the old ticket then
 * waits for both. Stalls that nobody counts in time are dropped. */
void nccl_wait(CommEngine *engine, CommTicket ticket) {
    Nccl *nccl = engine->nccl;
    if (engine->failed) return;
    const Stall *stall = &nccl->stalls[nccl->stalled++ % EVENTS];
    if (nccl->counted < nccl->stalled - EVENTS) nccl->counted = nccl->stalled - EVENTS;
    device_event_record(engine->device, stall->before, NULL);
    device_event_wait(engine->device, nccl->issued[-ticket % EVENTS].event, NULL);
    device_event_record(engine->device, stall->after, NULL);
}

/* -- Watching ------------------------------------------------------------------------------------------------------ */

/* The lock is held. */
static void note_done(CommEngine *engine) {
    Nccl *nccl = engine->nccl;
    if (nccl->done < nccl->last - EVENTS) nccl->done = nccl->last - EVENTS;
    while (nccl->done < nccl->last && device_event_done(engine->device, nccl->issued[(nccl->done + 1) % EVENTS].event)) {
        const Issued *issued = &nccl->issued[++nccl->done % EVENTS];
        for (int i = 0; i < issued->records; i++) engine_record_state(engine, issued->record + i, COMM_DONE);
    }
}

/* The lock is held. */
static bool all_well(CommEngine *engine, Error *error) {
    Nccl *nccl = engine->nccl;
    const Issued *oldest = &nccl->issued[(nccl->done + 1) % EVENTS];
    for (int i = 0; i < MOST_GROUPS; i++) {
        int result = 0;
        if (nccl->groups[i] && (nccl->call.error_of(nccl->groups[i], &result) != 0 || result != 0))
            return nccl_check(nccl, result ? result : -1, error);
    }
    if (nccl->done == nccl->last || log_seconds() - oldest->since < engine->options.timeout) return true;
    return error_set(error, ERROR_COMMUNICATION, "a GPU collective did not finish in %.0f s", engine->options.timeout);
}

/* Aborts the groups; otherwise, kernels that wait for a lost rank never end. The compute thread
 * may hold the lock inside a call that waits for the lost rank, so this function continues
 * without the lock after LOCK_SECONDS. */
static void end_all(Nccl *nccl) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOCK_SECONDS;
    bool locked = pthread_mutex_timedlock(&nccl->lock, &until) == 0;
    nccl->aborted = true;
    for (int i = 0; i < MOST_GROUPS; i++)
        if (nccl->groups[i]) nccl->call.abort(nccl->groups[i]);
    if (locked) pthread_mutex_unlock(&nccl->lock);
}

void nccl_watch(CommEngine *engine) {
    Nccl *nccl = engine->nccl;
    Error error = {0};
    if (!nccl->in_thread) device_use_thread(engine->device);
    nccl->in_thread = true;
    if (!engine->failed && pthread_mutex_trylock(&nccl->lock) == 0) {
        note_done(engine);
        bool well = all_well(engine, &error);
        pthread_mutex_unlock(&nccl->lock);
        if (!well) engine_fail(engine, &error);
    }
    if (engine->failed) windows_stop(engine);
    if (engine->failed && !nccl->aborted) end_all(nccl);
}
