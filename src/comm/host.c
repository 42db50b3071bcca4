/* Collectives in host memory over messages between pairs of ranks; TCP and MPI only move messages.
 * Every rank sends its shard to all other ranks at once. The rank where all inputs meet adds them
 * in rank order. Owns its scratch while it runs. Called by the worker of queue.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "comm/comm_internal.h"

enum {
    SMALL_BYTES = 8 << 10, /* all-reduce: below this size everyone sends everything to everyone, in one round instead of two */
    SMALL_RANKS = 16,
    SCRATCH_BYTES = 16 << 20, /* of a reduction, for all ranks' inputs together */
    LONG_BYTES = 64 << 10,    /* broadcast: above this size the root sends shards, and the ranks then gather them */
};

/* The messages of one round, sent and received at once. */
typedef struct ExchangeRound {
    const Task *task;
    uint8_t phase; /* round of the collective, written to the labels */
    Transfer *transfers;
    int count;
} ExchangeRound;

static ExchangeRound start_round(const Task *task, uint8_t phase) {
    return (ExchangeRound){.task = task, .phase = phase, .transfers = memory_allocate((size_t)task->comm->size * 2 * sizeof(Transfer))};
}

/* Adds a message with elements of `base` to or from a rank of the group. */
static void add_transfer(ExchangeRound *round, bool receive, int rank, char *base, ByteInterval elements) {
    const Task *task = round->task;
    Transfer *transfer = &round->transfers[round->count++];
    int64_t width = type_bytes(task->type), bytes = elements.count * width;
    bool differs = task->operation == ALL_TO_ALL || task->operation == EXCHANGE;
    *transfer = (Transfer){.receive = receive, .peer = task->comm->ranks[rank], .data = base + elements.start * width, .bytes = bytes};
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

static void add_send(ExchangeRound *round, int rank, const char *base, ByteInterval elements) {
    add_transfer(round, false, rank, (char *)base, elements);
}

static void add_receive(ExchangeRound *round, int rank, char *base, ByteInterval elements) {
    add_transfer(round, true, rank, base, elements);
}

static bool run_round(ExchangeRound *round, Error *error) {
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

/* Every rank contributes its shard of `buffer` and has all shards afterwards. */
static bool all_gather(const Task *task, char *buffer, const int64_t *shards, uint8_t phase, Error *error) {
    int rank = task->comm->rank;
    ExchangeRound round = start_round(task, phase);
    for (int i = 0; i < task->comm->size; i++) {
        if (i == rank) continue;
        add_send(&round, i, buffer, shard_of(shards, rank));
        add_receive(&round, i, buffer, shard_of(shards, i));
    }
    return run_round(&round, error);
}

/* -- Reductions ---------------------------------------------------------------------------------------------------- */

/* Returns the elements of a rank's shard that round `index` handles. */
static ByteInterval segment_of(const int64_t *shards, int rank, int64_t segment, int64_t index) {
    int64_t start = shards[rank] + segment * index, left = shards[rank + 1] - start;
    return (ByteInterval){start, left < 0 ? 0 : left < segment ? left : segment};
}

/* Returns the destination of this rank's reduced elements that begin at `start`. */
static char *reduced_at(const Task *task, const int64_t *shards, int64_t start) {
    int64_t width = type_bytes(task->type);
    return task->result ? task->result + (start - shards[task->comm->rank]) * width : task->buffer + start * width;
}

/* Reduces one segment of every rank's shard: receives the other ranks' inputs of this rank's segment into scratch,
 * and adds them. */
static bool reduce_segment(const Task *task, const int64_t *shards, int64_t segment, int64_t index, char *scratch, Error *error) {
    int rank = task->comm->rank, size = task->comm->size;
    int64_t width = type_bytes(task->type);
    ByteInterval mine = segment_of(shards, rank, segment, index);
    assert(size > 0);
    const void *inputs[size];
    ExchangeRound round = start_round(task, 1);
    for (int i = 0; i < size; i++) {
        ByteInterval theirs = segment_of(shards, i, segment, index);
        inputs[i] = i == rank ? task->buffer + mine.start * width : scratch + segment * width * i;
        if (i == rank) continue;
        if (theirs.count || index == 0) add_send(&round, i, task->buffer, theirs);
        if (mine.count || index == 0) add_receive(&round, i, scratch, (ByteInterval){segment * i, mine.count});
    }
    if (!run_round(&round, error)) return false;
    if (mine.count) reduce_inputs(task->type, task->reduce, mine.count, size, inputs, reduced_at(task, shards, mine.start));
    return true;
}

static bool reduce_scatter(const Task *task, const int64_t *shards, Error *error) {
    int size = task->comm->size;
    int64_t width = type_bytes(task->type), longest = 1, segment = SCRATCH_BYTES / size / width;
    for (int i = 0; i < size; i++) longest = shards[i + 1] - shards[i] > longest ? shards[i + 1] - shards[i] : longest;
    if (segment < 1) segment = 1;
    if (segment > longest) segment = longest;
    SCOPED_FREE char *scratch = memory_allocate((size_t)(segment * width * size));
    for (int64_t i = 0; i * segment < longest; i++)
        if (!reduce_segment(task, shards, segment, i, scratch, error)) return false;
    return true;
}

static bool all_reduce_small(const Task *task, Error *error) {
    int size = task->comm->size;
    int64_t bytes = task->count * type_bytes(task->type), shards[SMALL_RANKS + 1];
    _Alignas(double) char scratch[SMALL_RANKS * SMALL_BYTES];
    const void *inputs[SMALL_RANKS];
    for (int i = 0; i <= size; i++) shards[i] = i * task->count;
    for (int i = 0; i < size; i++) inputs[i] = scratch + i * bytes;
    memcpy(scratch + task->comm->rank * bytes, task->buffer, (size_t)bytes);
    if (!all_gather(task, scratch, shards, 0, error)) return false;
    reduce_inputs(task->type, task->reduce, task->count, size, inputs, task->buffer);
    return true;
}

static bool all_reduce(const Task *task, Error *error) {
    if (task->count * type_bytes(task->type) <= SMALL_BYTES && task->comm->size <= SMALL_RANKS) return all_reduce_small(task, error);
    SCOPED_FREE int64_t *shards = even_shards(task);
    return reduce_scatter(task, shards, error) && all_gather(task, task->buffer, shards, 2, error);
}

/* -- Other collectives --------------------------------------------------------------------------------------------- */

static bool broadcast_shards(const Task *task, const int64_t *shards, bool whole, Error *error) {
    int rank = task->comm->rank;
    ExchangeRound round = start_round(task, 1);
    for (int i = 0; i < task->comm->size; i++) {
        ByteInterval sent = whole ? (ByteInterval){0, task->count} : shard_of(shards, i);
        if (rank == task->root && i != rank) add_send(&round, i, task->buffer, sent);
        if (rank != task->root && i == rank) add_receive(&round, task->root, task->buffer, sent);
    }
    return run_round(&round, error);
}

static bool broadcast(const Task *task, Error *error) {
    bool whole = task->count * type_bytes(task->type) <= LONG_BYTES || task->comm->size == 2;
    SCOPED_FREE int64_t *shards = even_shards(task);
    return broadcast_shards(task, shards, whole, error) && (whole || all_gather(task, task->buffer, shards, 2, error));
}

/* ALL_TO_ALL and EXCHANGE. */
static bool exchange_on_host(const Task *task, Error *error) {
    int rank = task->comm->rank;
    int64_t width = type_bytes(task->type);
    ByteInterval out = task_sends(task, rank), in = task_receives(task, rank);
    if (out.count != in.count)
        return error_set(error, ERROR_COMMUNICATION, "rank %d sends itself %lld elements but expects %lld", rank, (long long)out.count,
            (long long)in.count);
    if (out.count > 0) memcpy(task->buffer + in.start * width, task->send + out.start * width, (size_t)(out.count * width));
    ExchangeRound round = start_round(task, 0);
    for (int i = 0; i < task->comm->size; i++) {
        if (i == rank) continue;
        out = task_sends(task, i);
        in = task_receives(task, i);
        if (out.count >= 0) add_send(&round, i, task->send, out);
        if (in.count >= 0) add_receive(&round, i, task->buffer, in);
    }
    return run_round(&round, error);
}

/* Dissemination barrier (Hensgen, Finkel, Manber 1988): after round k every rank has heard from
 * 2^(k+1) - 1 others. */
static bool host_barrier(const Task *task, Error *error) {
    int rank = task->comm->rank, size = task->comm->size;
    uint8_t phase = 0;
    for (int distance = 1; distance < size; distance *= 2) {
        ExchangeRound round = start_round(task, phase++);
        add_send(&round, (rank + distance) % size, NULL, (ByteInterval){0});
        add_receive(&round, (rank - distance + size) % size, NULL, (ByteInterval){0});
        if (!run_round(&round, error)) return false;
    }
    return true;
}

bool host_run(const Task *task, Error *error) {
    switch (task->operation) {
    case ALL_REDUCE: return all_reduce(task, error);
    case REDUCE_SCATTER: return reduce_scatter(task, task->shards, error);
    case ALL_GATHER: return all_gather(task, task->buffer, task->shards, 0, error);
    case BROADCAST: return broadcast(task, error);
    case ALL_TO_ALL:
    case EXCHANGE: return exchange_on_host(task, error);
    case BARRIER: return host_barrier(task, error);
    }
    return false;
}
