/* Collectives in host memory, written once over messages of pairs of ranks, so that TCP and MPI stay small. Every
 * rank sends each other rank its shard at once; sums are made where all inputs meet, in rank order. Owns its scratch
 * while it runs. Called by the worker of queue.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/comm_internal.h"

enum {
    SMALL_BYTES = 8 << 10, /* all-reduce: below this everyone sends everything to everyone, one round in place of two */
    SMALL_RANKS = 16,
    SCRATCH_BYTES = 16 << 20, /* of a reduction, for the inputs of all ranks together */
    LONG_BYTES = 64 << 10,    /* broadcast: above this the root sends shards, which the ranks then gather */
};

/* The messages of one round, sent and received at once. */
typedef struct Round {
    const Task *task;
    uint8_t phase; /* of the collective, in the labels */
    Transfer *transfers;
    int count;
} Round;

static Round start_round(const Task *task, uint8_t phase) {
    return (Round){.task = task, .phase = phase, .transfers = memory_allocate((size_t)task->comm->size * 2 * sizeof(Transfer))};
}

static void add_transfer(Round *round, bool receive, int rank, void *data, int64_t bytes) {
    const Task *task = round->task;
    Transfer *transfer = &round->transfers[round->count++];
    bool differs = task->operation == ALL_TO_ALL || task->operation == EXCHANGE;
    *transfer = (Transfer){.receive = receive, .peer = task->comm->ranks[rank], .data = data, .bytes = bytes};
    transfer->label = (Label){.magic = LABEL_MAGIC,
        .group = task->comm->id,
        .sequence = receive ? task->receive_sequence : task->sequence,
        .total = differs ? 0 : task->count,
        .bytes = bytes,
        .operation = (uint8_t)task->operation,
        .type = (uint8_t)task->type,
        .reduce = (uint8_t)task->reduce,
        .phase = round->phase};
    memcpy(transfer->label.name, task->name, NAME_BYTES);
}

static void add_send(Round *round, int rank, const void *data, int64_t bytes) { add_transfer(round, false, rank, (void *)data, bytes); }
static void add_receive(Round *round, int rank, void *data, int64_t bytes) { add_transfer(round, true, rank, data, bytes); }

static bool run_round(Round *round, Error *error) {
    Transport *transport = round->task->comm->engine->transport;
    bool done = transport->exchange(transport, round->transfers, round->count, error);
    free(round->transfers);
    return done;
}

static int64_t *even_shards(const Task *task) {
    int size = task->comm->size;
    int64_t *shards = memory_allocate((size_t)(size + 1) * sizeof *shards);
    for (int i = 0; i <= size; i++) shards[i] = task->count / size * i + (i < task->count % size ? i : task->count % size);
    return shards;
}

static bool all_gather(const Task *task, const int64_t *shards, uint8_t phase, Error *error) {
    int rank = task->comm->rank;
    int64_t width = type_bytes(task->type);
    Round round = start_round(task, phase);
    for (int i = 0; i < task->comm->size; i++) {
        if (i == rank) continue;
        add_send(&round, i, task->buffer + shards[rank] * width, (shards[rank + 1] - shards[rank]) * width);
        add_receive(&round, i, task->buffer + shards[i] * width, (shards[i + 1] - shards[i]) * width);
    }
    return run_round(&round, error);
}

/* -- Reductions ---------------------------------------------------------------------------------------------------- */

/* The elements of a rank's shard that round `index` handles. */
static Interval segment_of(const int64_t *shards, int rank, int64_t segment, int64_t index) {
    int64_t start = shards[rank] + segment * index, left = shards[rank + 1] - start;
    return (Interval){start, left < 0 ? 0 : left < segment ? left : segment};
}

/* Reduces one segment of every rank's shard: receives the other ranks' inputs of this rank's segment into scratch,
 * and adds them. */
static bool reduce_segment(const Task *task, const int64_t *shards, int64_t segment, int64_t index, char *scratch, Error *error) {
    int rank = task->comm->rank, size = task->comm->size;
    int64_t width = type_bytes(task->type);
    Interval mine = segment_of(shards, rank, segment, index);
    assert(size > 0);
    const void *inputs[size];
    Round round = start_round(task, 1);
    for (int i = 0; i < size; i++) {
        Interval theirs = segment_of(shards, i, segment, index);
        inputs[i] = i == rank ? task->buffer + mine.start * width : scratch + segment * width * i;
        if (i == rank) continue;
        if (theirs.count || index == 0) add_send(&round, i, task->buffer + theirs.start * width, theirs.count * width);
        if (mine.count || index == 0) add_receive(&round, i, (char *)inputs[i], mine.count * width);
    }
    if (!run_round(&round, error)) return false;
    if (mine.count) reduce_inputs(task->type, task->reduce, mine.count, size, inputs, task->buffer + mine.start * width);
    return true;
}

static bool reduce_scatter(const Task *task, const int64_t *shards, Error *error) {
    int size = task->comm->size;
    int64_t width = type_bytes(task->type), longest = 1, segment = SCRATCH_BYTES / size / width;
    for (int i = 0; i < size; i++) longest = shards[i + 1] - shards[i] > longest ? shards[i + 1] - shards[i] : longest;
    if (segment < 1) segment = 1;
    if (segment > longest) segment = longest;
    char *scratch = memory_allocate((size_t)(segment * width * size));
    bool done = true;
    for (int64_t i = 0; done && i * segment < longest; i++) done = reduce_segment(task, shards, segment, i, scratch, error);
    free(scratch);
    return done;
}

static bool all_reduce_small(const Task *task, Error *error) {
    int rank = task->comm->rank, size = task->comm->size;
    int64_t bytes = task->count * type_bytes(task->type);
    char scratch[SMALL_RANKS][SMALL_BYTES];
    const void *inputs[SMALL_RANKS];
    Round round = start_round(task, 0);
    for (int i = 0; i < size; i++) {
        inputs[i] = i == rank ? task->buffer : scratch[i];
        if (i == rank) continue;
        add_send(&round, i, task->buffer, bytes);
        add_receive(&round, i, scratch[i], bytes);
    }
    if (!run_round(&round, error)) return false;
    reduce_inputs(task->type, task->reduce, task->count, size, inputs, task->buffer);
    return true;
}

static bool all_reduce(const Task *task, Error *error) {
    if (task->count * type_bytes(task->type) <= SMALL_BYTES && task->comm->size <= SMALL_RANKS) return all_reduce_small(task, error);
    int64_t *shards = even_shards(task);
    bool done = reduce_scatter(task, shards, error) && all_gather(task, shards, 2, error);
    free(shards);
    return done;
}

/* -- Other collectives --------------------------------------------------------------------------------------------- */

static bool broadcast_shards(const Task *task, const int64_t *shards, bool whole, Error *error) {
    int rank = task->comm->rank;
    int64_t width = type_bytes(task->type);
    Round round = start_round(task, 1);
    for (int i = 0; i < task->comm->size; i++) {
        char *data = task->buffer + (whole ? 0 : shards[i] * width);
        int64_t bytes = (whole ? task->count : shards[i + 1] - shards[i]) * width;
        if (rank == task->root && i != rank) add_send(&round, i, data, bytes);
        if (rank != task->root && i == rank) add_receive(&round, task->root, data, bytes);
    }
    return run_round(&round, error);
}

static bool broadcast(const Task *task, Error *error) {
    bool whole = task->count * type_bytes(task->type) <= LONG_BYTES || task->comm->size == 2;
    int64_t *shards = even_shards(task);
    bool done = broadcast_shards(task, shards, whole, error) && (whole || all_gather(task, shards, 2, error));
    free(shards);
    return done;
}

static bool all_to_all(const Task *task, Error *error) {
    int rank = task->comm->rank;
    int64_t width = type_bytes(task->type);
    const int64_t *out = task->send_shards, *in = task->shards;
    if ((out[rank + 1] - out[rank]) != (in[rank + 1] - in[rank]))
        return error_set(error, ERROR_COMMUNICATION, "rank %d sends itself %lld elements and expects %lld", rank,
            (long long)(out[rank + 1] - out[rank]), (long long)(in[rank + 1] - in[rank]));
    Round round = start_round(task, 0);
    for (int i = 0; i < task->comm->size; i++) {
        if (i == rank) continue;
        add_send(&round, i, task->send + out[i] * width, (out[i + 1] - out[i]) * width);
        add_receive(&round, i, task->buffer + in[i] * width, (in[i + 1] - in[i]) * width);
    }
    memcpy(task->buffer + in[rank] * width, task->send + out[rank] * width, (size_t)((in[rank + 1] - in[rank]) * width));
    return run_round(&round, error);
}

static bool exchange(const Task *task, Error *error) {
    int64_t width = type_bytes(task->type);
    if (task->to == task->comm->rank) {
        memcpy(task->buffer, task->send, (size_t)(task->send_count * width));
        return true;
    }
    Round round = start_round(task, 0);
    if (task->to >= 0) add_send(&round, task->to, task->send, task->send_count * width);
    if (task->from >= 0) add_receive(&round, task->from, task->buffer, task->count * width);
    return run_round(&round, error);
}

/* Dissemination (Hensgen, Finkel, Manber 1988): in round k every rank hears of 2^k others. */
static bool barrier(const Task *task, Error *error) {
    int rank = task->comm->rank, size = task->comm->size;
    bool done = true;
    uint8_t phase = 0;
    for (int distance = 1; done && distance < size; distance *= 2) {
        Round round = start_round(task, phase++);
        add_send(&round, (rank + distance) % size, NULL, 0);
        add_receive(&round, (rank - distance + size) % size, NULL, 0);
        done = run_round(&round, error);
    }
    return done;
}

bool host_run(const Task *task, Error *error) {
    switch (task->operation) {
    case ALL_REDUCE: return all_reduce(task, error);
    case REDUCE_SCATTER: return reduce_scatter(task, task->shards, error);
    case ALL_GATHER: return all_gather(task, task->shards, 0, error);
    case BROADCAST: return broadcast(task, error);
    case ALL_TO_ALL: return all_to_all(task, error);
    case EXCHANGE: return exchange(task, error);
    case BARRIER: return barrier(task, error);
    }
    return false;
}
