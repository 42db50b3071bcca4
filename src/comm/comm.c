/* Groups of ranks and the public functions. Each collective is checked, described as a task, and
 * queued; a group of one process runs it immediately. Owns the engine of the run's first group.
 * Called by training and checkpoints. */
#include "comm/comm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "comm/comm_internal.h"

/* -- Opening and closing ------------------------------------------------------------------------------------------- */

Comm *comm_alone(void) {
    static Comm alone = {.name = "alone", .size = 1};
    return &alone;
}

Comm *comm_new_group(CommEngine *engine, uint32_t id, const char *name, int rank, int size) {
    Comm *comm = memory_allocate(sizeof *comm);
    *comm = (Comm){.engine = engine, .id = id, .rank = rank, .size = size};
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->ranks = memory_allocate((size_t)size * sizeof *comm->ranks);
    comm->sent = memory_allocate((size_t)size * sizeof *comm->sent);
    comm->received = memory_allocate((size_t)size * sizeof *comm->received);
    return comm;
}

static void close_comm_group(Comm *comm) {
    free(comm->ranks);
    free(comm->sent);
    free(comm->received);
    free(comm);
}

static CommOptions complete_options(const CommOptions *given) {
    CommOptions options = given ? *given : (CommOptions){0};
    if (options.appear <= 0) options.appear = 300;
    if (options.lost <= 0) options.lost = 60;
    if (options.timeout <= 0) options.timeout = 1800;
    return options;
}

static bool open_transport(CommEngine *engine, Error *error) {
    if (engine->place.transport == COMM_MPI) engine->transport = mpi_open(engine, error);
    else if (engine->place.transport == COMM_TCP) engine->transport = tcp_open(engine, error);
    else return true;
    return engine->transport != NULL;
}

/* Counts the nodes by the ranks' node texts. Nodes are numbered by their first rank. */
static bool count_nodes(Comm *comm, Error *error) {
    CommEngine *engine = comm->engine;
    SCOPED_FREE char *nodes = memory_allocate((size_t)comm->size * PLACE_TEXT);
    memcpy(nodes + (int64_t)comm->rank * PLACE_TEXT, engine->place.node, PLACE_TEXT);
    bool done = comm_host_all_gather(comm, "nodes", nodes, PLACE_TEXT, COMM_U8, error);
    for (int rank = 0; rank < comm->size; rank++) {
        int first = 0;
        while (memcmp(nodes + (int64_t)first * PLACE_TEXT, nodes + (int64_t)rank * PLACE_TEXT, PLACE_TEXT)) first++;
        bool same = !memcmp(nodes + (int64_t)rank * PLACE_TEXT, engine->place.node, PLACE_TEXT);
        if (first == rank && same) engine->node = engine->nodes;
        engine->nodes += first == rank;
        engine->local_size += same;
        engine->local_rank += same && rank < comm->rank;
    }
    if (engine->place.local_rank >= 0) engine->local_rank = engine->place.local_rank;
    return done;
}

static void close_engine(CommEngine *engine) {
    engine_stop(engine);
    windows_end(engine);
    nccl_close(engine);
    if (engine->transport) engine->transport->close(engine->transport, !engine->failed);
    free(engine);
}

Comm *comm_open(const CommOptions *given, Error *error) {
    CommEngine *engine = memory_allocate(sizeof *engine);
    engine->options = complete_options(given);
    bool placed = place_find(engine->options.transport, &engine->place, error);
    if (placed && engine->place.size > 1) settings_recommend("", engine->options.recommend);
    if (!placed || !open_transport(engine, error)) {
        free(engine);
        return NULL;
    }
    Comm *comm = comm_new_group(engine, 0, "all", engine->place.rank, engine->place.size);
    for (int i = 0; i < comm->size; i++) comm->ranks[i] = i;
    engine_start(engine);
    if (count_nodes(comm, error)) return comm;
    comm_close(comm);
    return NULL;
}

void comm_close(Comm *comm) {
    if (!comm || comm == comm_alone()) return;
    windows_close(comm);
    if (comm->nccl) nccl_leave(comm);
    if (comm->id == 0 && comm->engine->rehearsal) free(comm->engine);
    else if (comm->id == 0) close_engine(comm->engine);
    close_comm_group(comm);
}

Comm *comm_split(Comm *comm, int color, const char *name, Error *error) {
    SCOPED_FREE int64_t *colors = memory_allocate((size_t)comm->size * sizeof *colors);
    colors[comm->rank] = color;
    bool done = comm_host_all_gather(comm, name, colors, 1, COMM_I64, error);
    int size = 0, rank = 0;
    for (int i = 0; i < comm->size; i++) {
        bool member = color < 0 ? i == comm->rank : colors[i] == color;
        size += member;
        rank += member && i < comm->rank;
    }
    uint64_t origin[] = {comm->id, ++comm->splits, (uint64_t)(int64_t)color};
    Comm *group = done ? comm_new_group(comm->engine, (uint32_t)hash_bytes(origin, sizeof origin) | 1, name, rank, size) : NULL;
    for (int i = 0, next = 0; done && i < comm->size; i++)
        if (color < 0 ? i == comm->rank : colors[i] == color) group->ranks[next++] = comm->ranks ? comm->ranks[i] : 0;
    if (!group || !group->engine || !group->engine->nccl || nccl_join(group, error)) return group;
    comm_close(group);
    return NULL;
}

bool comm_use_device(Comm *comm, Device *device, Error *error) {
    CommEngine *engine = comm->engine;
    char version[64], settings[1024];
    if (!engine) return true;
    assert(comm->id == 0);
    engine->device = device;
    if (comm->size == 1 || device_info(device)->host_memory) return true;
    settings_recommend_ranks(device, engine->local_size, engine->options.recommend);
    if (!nccl_open(engine, error) || !nccl_join(comm, error)) return false;
    nccl_describe(engine, version, sizeof version);
    settings_describe(settings, sizeof settings);
    if (comm->rank == 0 && settings[0]) log_info("%s with %s", version, settings);
    return true;
}

void comm_use_own_stream(Comm *comm) {
    if (comm && comm_is_rehearsal(comm)) trace_use_own_stream(comm->engine->trace, comm);
    if (comm && comm->nccl && !comm->stream) comm->stream = device_stream_open(comm->engine->device, true);
}

/* -- Queries ------------------------------------------------------------------------------------------------------- */

int comm_rank(const Comm *comm) { return comm->rank; }
int comm_size(const Comm *comm) { return comm->size; }
int comm_local_rank(const Comm *comm) { return comm->engine ? comm->engine->local_rank : 0; }
int comm_local_size(const Comm *comm) { return comm->engine ? comm->engine->local_size : 1; }
int comm_node(const Comm *comm) { return comm->engine ? comm->engine->node : 0; }
int comm_nodes(const Comm *comm) { return comm->engine ? comm->engine->nodes : 1; }

void comm_describe(const Comm *comm, char *text, size_t size) {
    const CommEngine *engine = comm->engine;
    char version[64] = "";
    if (engine && engine->nccl) nccl_describe(engine, version, sizeof version);
    if (!engine || !engine->transport) snprintf(text, size, "1 rank");
    else
        snprintf(text, size, "%d ranks on %d node%s over %s%s%s", comm->size, engine->nodes, plural(engine->nodes), engine->transport->name,
            version[0] ? ", " : "", version);
}

/* -- Collectives --------------------------------------------------------------------------------------------------- */

static int64_t *copy_shards(const Comm *comm, const int64_t *shards) {
    if (!shards) return NULL;
    int64_t *copy = memory_allocate((size_t)(comm->size + 1) * sizeof *copy);
    memcpy(copy, shards, (size_t)(comm->size + 1) * sizeof *copy);
    for (int i = 0; i < comm->size; i++) assert(copy[i] <= copy[i + 1]);
    return copy;
}

/* Queues a collective: copies `wanted`, its shards and counts. `host`: run it in host memory even
 * if there is a device. */
static CommTicket queue(Comm *comm, const char *name, Task wanted, bool host) {
    if (comm->size == 1) return 0;
    Task *task = memory_allocate(sizeof *task);
    *task = wanted;
    task->comm = comm;
    snprintf(task->name, sizeof task->name, "%s", name);
    if (wanted.shards) task->count = wanted.shards[comm->size] - wanted.shards[0];
    if (wanted.send_shards) task->send_count = wanted.send_shards[comm->size] - wanted.send_shards[0];
    task->shards = copy_shards(comm, wanted.shards);
    task->send_shards = copy_shards(comm, wanted.send_shards);
    if (task->operation == EXCHANGE) {
        if (task->to >= 0) task->sequence = ++comm->sent[task->to];
        if (task->from >= 0) task->receive_sequence = ++comm->received[task->from];
    } else {
        task->sequence = task->receive_sequence = ++comm->sequence;
    }
    int noted = comm->engine->trace ? trace_note(comm->engine->trace, task, host) : 0;
    if (comm->engine->rehearsal) {
        task_free(task);
        return noted;
    }
    return comm->nccl && !host ? nccl_queue(task) : engine_queue(comm->engine, task);
}

CommTicket comm_all_reduce(Comm *comm, const char *name, void *buffer, int64_t count, CommType type, CommReduce reduce) {
    return queue(comm, name, (Task){.operation = ALL_REDUCE, .type = type, .buffer = buffer, .count = count, .reduce = reduce}, false);
}

CommTicket comm_reduce_scatter(Comm *comm, const char *name, void *buffer, const int64_t *shards, CommType type, CommReduce reduce) {
    return queue(
        comm, name, (Task){.operation = REDUCE_SCATTER, .type = type, .buffer = buffer, .shards = shards, .reduce = reduce}, false);
}

CommTicket comm_reduce_scatter_to(
    Comm *comm, const char *name, const void *buffer, void *result, const int64_t *shards, CommType type, CommReduce reduce) {
    assert(comm->size > 1 && result);
    Task task = {.operation = REDUCE_SCATTER, .type = type, .buffer = (char *)buffer, .result = result, .shards = shards, .reduce = reduce};
    return queue(comm, name, task, false);
}

CommTicket comm_all_gather(Comm *comm, const char *name, void *buffer, const int64_t *shards, CommType type) {
    return queue(comm, name, (Task){.operation = ALL_GATHER, .type = type, .buffer = buffer, .shards = shards}, false);
}

CommTicket comm_broadcast(Comm *comm, const char *name, void *buffer, int64_t count, CommType type, int root) {
    assert(root >= 0 && root < comm->size);
    return queue(comm, name, (Task){.operation = BROADCAST, .type = type, .buffer = buffer, .count = count, .root = root}, false);
}

/* Copies what a rank of a group of one sends to itself. */
static CommTicket copy_alone(Comm *comm, void *to, const void *from, int64_t bytes) {
    Device *device = comm->engine ? comm->engine->device : NULL;
    if (device) device_copy(device, to, from, bytes);
    else memcpy(to, from, (size_t)bytes);
    return 0;
}

CommTicket comm_all_to_all(Comm *comm, const char *name, const void *send, const int64_t *send_shards, void *receive,
    const int64_t *receive_shards, CommType type) {
    int64_t width = type_bytes(type);
    if (comm->size == 1)
        return copy_alone(comm, (char *)receive + receive_shards[0] * width, (const char *)send + send_shards[0] * width,
            (receive_shards[1] - receive_shards[0]) * width);
    return queue(comm, name,
        (Task){
            .operation = ALL_TO_ALL, .type = type, .buffer = receive, .send = send, .shards = receive_shards, .send_shards = send_shards},
        false);
}

CommTicket comm_exchange(Comm *comm, const char *name, const void *send, int64_t send_count, int to, void *receive, int64_t receive_count,
    int from, CommType type) {
    assert(to >= -1 && to < comm->size && from >= -1 && from < comm->size && (to == comm->rank) == (from == comm->rank));
    if (to < 0 && from < 0) return 0;
    if (comm->size == 1) return copy_alone(comm, receive, send, send_count * type_bytes(type));
    return queue(comm, name,
        (Task){.operation = EXCHANGE,
            .type = type,
            .buffer = receive,
            .send = send,
            .count = from >= 0 ? receive_count : 0,
            .send_count = to >= 0 ? send_count : 0,
            .to = to,
            .from = from},
        false);
}

void comm_begin_together(Comm *comm) {
    if (comm->engine && comm->engine->trace) trace_join(comm->engine->trace, true);
    if (comm->nccl) nccl_begin_together(comm->engine);
}

void comm_end_together(Comm *comm) {
    if (comm->engine && comm->engine->trace) trace_join(comm->engine->trace, false);
    if (comm->nccl) nccl_end_together(comm->engine);
}

void comm_wait(Comm *comm, CommTicket ticket) {
    if (ticket > 0 && comm->engine->rehearsal) trace_wait(comm->engine->trace, ticket);
    else if (ticket > 0) engine_wait(comm->engine, ticket);
    else if (ticket < 0) nccl_wait(comm->engine, ticket);
}

bool comm_ok(Comm *comm, Error *error) { return !comm->engine || engine_ok(comm->engine, error); }

/* -- Collectives in host memory ------------------------------------------------------------------------------------ */

static bool run_on_host(Comm *comm, const char *name, Task wanted, Error *error) {
    comm_wait(comm, queue(comm, name, wanted, true));
    return comm_ok(comm, error);
}

bool comm_host_all_reduce(Comm *comm, const char *name, void *values, int64_t count, CommType type, CommReduce reduce, Error *error) {
    return run_on_host(
        comm, name, (Task){.operation = ALL_REDUCE, .type = type, .buffer = values, .count = count, .reduce = reduce}, error);
}

bool comm_host_all_gather(Comm *comm, const char *name, void *values, int64_t count, CommType type, Error *error) {
    int64_t shards[comm->size + 1];
    for (int i = 0; i <= comm->size; i++) shards[i] = i * count;
    return run_on_host(comm, name, (Task){.operation = ALL_GATHER, .type = type, .buffer = values, .shards = shards}, error);
}

CommTicket comm_host_begin_broadcast(Comm *comm, const char *name, void *values, int64_t count, CommType type, int root) {
    assert(root >= 0 && root < comm->size);
    return queue(comm, name, (Task){.operation = BROADCAST, .type = type, .buffer = values, .count = count, .root = root}, true);
}

bool comm_host_broadcast(Comm *comm, const char *name, void *values, int64_t count, CommType type, int root, Error *error) {
    comm_wait(comm, comm_host_begin_broadcast(comm, name, values, count, type, root));
    return comm_ok(comm, error);
}

bool comm_barrier(Comm *comm, const char *name, Error *error) {
    return comm->size == 1 || run_on_host(comm, name, (Task){.operation = BARRIER, .type = COMM_U8}, error);
}

/* -- For the watchdog and for reports ------------------------------------------------------------------------------ */

void comm_abort(Comm *comm, const char *reason) {
    Error error = {0};
    if (!comm->engine) return;
    error_set(&error, ERROR_COMMUNICATION, "%s", reason);
    engine_fail(comm->engine, &error);
}

int comm_recent(Comm *comm, CommRecord *records, int most) {
    CommEngine *engine = comm->engine;
    int count = 0;
    if (!engine) return 0;
    pthread_mutex_lock(&engine->lock);
    int64_t oldest = engine->recorded > COMM_RECORDS ? engine->recorded - COMM_RECORDS : 0;
    for (int64_t i = engine->recorded - 1; i >= oldest && count < most; i--) records[count++] = engine->records[i % COMM_RECORDS];
    pthread_mutex_unlock(&engine->lock);
    return count;
}

CommTotals comm_totals(Comm *comm) {
    CommEngine *engine = comm->engine;
    if (!engine) return (CommTotals){0};
    pthread_mutex_lock(&engine->lock);
    CommTotals totals = engine->totals;
    pthread_mutex_unlock(&engine->lock);
    if (engine->nccl) totals.stalled = nccl_seconds_stalled(engine);
    return totals;
}
