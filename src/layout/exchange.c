/* Issues the collectives of a communication schedule at its comm points and keeps their tickets,
 * bucket by bucket. Owns the tickets, and a bf16 buffer of one bucket if gradients are reduced in
 * bf16. All other memory belongs to the executor. Called by the session, by programs and, at comm points, by the
 * executor. */
#include "layout/exchange.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "layout/quantized_weights_internal.h"
#include "ops/add/add.h"

enum { STAGE_WEIGHTS = 3 }; /* first ZeRO stage that shards weights */

struct Exchange {
    const Layout *layout;
    const CommSchedule *schedule;
    Executor *executor;
    NodeSpan nodes; /* of the part that runs; before the first run, of the first part */
    bool last;
    CommTicket *gradients, *weights; /* per bucket; 0: nothing in flight */
    uint16_t *bf16_buffer;           /* for the largest bucket that is reduced in bf16 */
    QuantizedWeights *quantized;     /* NULL: the program reads no quantized weights */
    ExchangeUpdate update;           /* NULL: buckets are updated after the program */
    void *update_context;
};

typedef struct Name { char text[32]; } Name;

static Name bucket_name(const char *what, int bucket) {
    Name name;
    snprintf(name.text, sizeof name.text, "%s.%d", what, bucket);
    return name;
}

static Precision precision_of(const Exchange *exchange) { return executor_graph(exchange->executor)->precision; }
static Device *device_of(const Exchange *exchange) { return executor_backend(exchange->executor)->device; }
static int64_t bucket_bytes(const LayoutBucket *bucket) { return bucket->end - bucket->begin; }
static bool reduces_in_bf16(const Layout *layout, const LayoutBucket *bucket) {
    return layout->reduces_in_bf16 && !bucket->vectors && mesh_size(layout->mesh, bucket->axes) > 1;
}
static void *at_offset(const Exchange *exchange, Arena arena, int64_t offset) {
    return (char *)executor_arena(exchange->executor, arena) + offset;
}
/* Returns the group of the ranks that shard a bucket. */
static Comm *sharing_group(const Exchange *exchange, const LayoutBucket *bucket) {
    return mesh_group(exchange->layout->mesh, bucket->axes & ~MESH(AXIS_REPLICA));
}
/* Returns the address of a bucket's gradients while the program runs. */
static void *gradients_at(const Exchange *exchange, int b) {
    return at_offset(exchange, ARENA_GRADIENT, exchange->schedule->buckets[b].gradients);
}

static void wait_for(Exchange *exchange, CommTicket *ticket) {
    if (*ticket) comm_wait(exchange->layout->mesh->all, *ticket);
    *ticket = 0;
}

/* This rank's shard of a bucket in bytes of MASTER, from an aligned offset on. The bytes before the
 * shard's begin belong to another rank; values written there are never read.
 * precision_weight_offset converts these distances for the WEIGHT arena. */
typedef struct BucketShard { int64_t in_bucket, local, bytes; } BucketShard;

static BucketShard bucket_shard(const Exchange *exchange, const LayoutBucket *bucket) {
    ByteSpan span = layout_bucket_shard(bucket);
    int64_t slack = span.begin < span.end ? span.begin % precision_alignment(precision_of(exchange)) : 0;
    return (BucketShard){span.begin - bucket->begin - slack, bucket->local - slack, span.end - span.begin + slack};
}

/* -- Gradients ----------------------------------------------------------------------------------------------------- */

/* Casts a bucket's fp32 gradients to bf16, in place. */
static void cast_bucket_gradients(const Exchange *exchange, const LayoutBucket *bucket, void *gradients) {
    Device *device = device_of(exchange);
    int64_t count = bucket_bytes(bucket) / (int64_t)sizeof(float);
    device_cast_to_bf16(device, exchange->bf16_buffer, gradients, count);
    device_copy(device, gradients, exchange->bf16_buffer, count * (int64_t)sizeof *exchange->bf16_buffer);
}

/* Casts this rank's shard of a bucket back to fp32 at its place in the bucket. The bucket is in
 * bf16 after cast_gradients. */
static void cast_gradients_back(const Exchange *exchange, const LayoutBucket *bucket, char *gradients) {
    Device *device = device_of(exchange);
    BucketShard shard = bucket_shard(exchange, bucket);
    float *to = (float *)(gradients + shard.in_bucket);
    int64_t first = shard.in_bucket / (int64_t)sizeof *to, count = shard.bytes / (int64_t)sizeof *to;
    assert(exchange->bf16_buffer);
    device_copy(device, exchange->bf16_buffer, (uint16_t *)gradients + first, count * (int64_t)sizeof *exchange->bf16_buffer);
    device_cast_to_float(device, to, exchange->bf16_buffer, count);
}

/* Collectives end in the order in which they were issued, so the last ticket covers all of them. */
static void send_gradients(Exchange *exchange, int b) {
    const Layout *layout = exchange->layout;
    const LayoutBucket *bucket = &layout->buckets[b];
    char *gradients = gradients_at(exchange, b);
    int64_t element = bucket->element_bytes;
    if (reduces_in_bf16(layout, bucket)) {
        cast_bucket_gradients(exchange, bucket, gradients);
        element = sizeof *exchange->bf16_buffer;
    }
    CommType type = comm_real_type(element);
    Name name = bucket_name("gradients", b);
    if (!bucket->sharded) {
        int64_t count = bucket_bytes(bucket) / bucket->element_bytes;
        exchange->gradients[b] = comm_all_reduce(mesh_group(layout->mesh, bucket->axes), name.text, gradients, count, type, COMM_SUM);
        return;
    }
    exchange->gradients[b] = comm_reduce_scatter(sharing_group(exchange, bucket), name.text, gradients, bucket->shards, type, COMM_SUM);
    Comm *replicas = mesh_group(layout->mesh, bucket->axes & MESH(AXIS_REPLICA));
    if (comm_size(replicas) == 1) return;
    int64_t first = bucket->shards[bucket->rank], count = bucket->shards[bucket->rank + 1] - first;
    exchange->gradients[b] = comm_all_reduce(replicas, name.text, gradients + first * element, count, type, COMM_SUM);
}

/* Adds this rank's shard of a slot to its sums. */
static void add_bucket_gradients(const Exchange *exchange, int b) {
    const LayoutBucket *bucket = &exchange->layout->buckets[b];
    BucketShard shard = bucket_shard(exchange, bucket);
    void *sum = at_offset(exchange, ARENA_GRADIENT, shard.local);
    int64_t count = shard.bytes / bucket->element_bytes;
    bool wide = precision_state_type(precision_of(exchange), TYPE_COMPUTE) == TYPE_WIDE;
    op_add_run(executor_backend(exchange->executor), sum, gradients_at(exchange, b) + shard.in_bucket, count, wide);
}

static void finish_gradients(Exchange *exchange, int b) {
    if (!exchange->gradients[b]) return;
    const LayoutBucket *bucket = &exchange->layout->buckets[b];
    wait_for(exchange, &exchange->gradients[b]);
    if (reduces_in_bf16(exchange->layout, bucket)) cast_gradients_back(exchange, bucket, gradients_at(exchange, b));
    if (exchange->layout->shard.local_gradients && bucket->sharded) add_bucket_gradients(exchange, b);
}

const void *exchange_gradients(const Exchange *exchange, int bucket) {
    const char *gradients = executor_arena(exchange->executor, ARENA_GRADIENT);
    if (!exchange->layout->in_backward) return gradients;
    return gradients + (exchange->schedule->buckets[bucket].gradients - exchange->layout->buckets[bucket].begin);
}

/* Zeroes a slot for the program to add to, after the collectives of all buckets that share its
 * memory have ended. */
static void clear_gradients(Exchange *exchange, int b) {
    const Layout *layout = exchange->layout;
    int64_t begin = exchange->schedule->buckets[b].gradients, bytes = bucket_bytes(&layout->buckets[b]);
    for (int other = 0; other < layout->bucket_count; other++) {
        int64_t other_begin = exchange->schedule->buckets[other].gradients, other_end = other_begin + bucket_bytes(&layout->buckets[other]);
        if (other_begin < begin + bytes && begin < other_end) finish_gradients(exchange, other);
    }
    device_fill(device_of(exchange), gradients_at(exchange, b), 0, bytes);
}

void exchange_set_last(Exchange *exchange, bool last) { exchange->last = last; }

void exchange_set_update(Exchange *exchange, ExchangeUpdate update, void *context) {
    exchange->update = update;
    exchange->update_context = context;
}

void exchange_set_part(Exchange *exchange, int part, bool last) {
    exchange->nodes = graph_part_span(executor_graph(exchange->executor), part);
    exchange->last = last;
}

/* Sums the gradients of a tied embedding, which the first and the last stage of a pipeline both
 * hold. Middle stages take no part. Earlier in the step the last stage would wait for the first
 * stage to finish. */
static void sum_over_ends(Exchange *exchange, int b) {
    const LayoutBucket *bucket = &exchange->layout->buckets[b];
    if (!bucket->ends || span_is_empty(exchange->schedule->buckets[b].writes)) return;
    ByteSpan shard = layout_bucket_shard(bucket);
    int64_t count = (shard.end - shard.begin) / bucket->element_bytes;
    char *gradients = (char *)gradients_at(exchange, b) + shard.begin - bucket->begin;
    CommType type = comm_real_type(bucket->element_bytes);
    exchange->gradients[b] = comm_all_reduce(mesh_ends(exchange->layout->mesh), "gradients of ends", gradients, count, type, COMM_SUM);
    wait_for(exchange, &exchange->gradients[b]);
}

static void finish_all_gradients(Exchange *exchange) {
    for (int b = 0; b < exchange->layout->bucket_count; b++) finish_gradients(exchange, b);
}

void exchange_finish_gradients(Exchange *exchange) {
    finish_all_gradients(exchange);
    for (int b = 0; b < exchange->layout->bucket_count; b++) sum_over_ends(exchange, b);
}

/* -- Weights ------------------------------------------------------------------------------------------------------- */

static int64_t weight_offset(const Exchange *exchange, int64_t offset) { return precision_weight_offset(precision_of(exchange), offset); }
/* Returns the address of a weight while the program runs; `in_bucket` is its distance from the
 * bucket's begin in bytes of MASTER. */
static void *weights_at(const Exchange *exchange, int b, int64_t in_bucket) {
    return at_offset(exchange, ARENA_WEIGHT, exchange->schedule->buckets[b].weights + weight_offset(exchange, in_bucket));
}

/* Returns the address of a local offset in this rank's shard of a bucket that is not packed, in stage 3. */
static void *local_weights(const Exchange *exchange, const LayoutBucket *bucket, int64_t local) {
    return at_offset(exchange, layout_local_arena(exchange->layout, bucket), weight_offset(exchange, local));
}

/* Returns the address of a packed bucket's slot. */
static char *packed_slot(const Exchange *exchange, int b) {
    return at_offset(exchange, ARENA_QUANTIZED, exchange->schedule->buckets[b].weights);
}

/* Sends the rank's shard from its place in the bucket and receives the others' shards. */
static void gather_weights(Exchange *exchange, int b) {
    CommType type = comm_real_type((int64_t)precision_bytes(precision_of(exchange), TYPE_COMPUTE));
    const LayoutBucket *bucket = &exchange->layout->buckets[b];
    if (exchange->schedule->buckets[b].quantized || bucket->packed_bytes) type = COMM_U8;
    void *slot = bucket->packed_bytes ? packed_slot(exchange, b) : weights_at(exchange, b, 0);
    exchange->weights[b] = comm_all_gather(sharing_group(exchange, bucket), bucket_name("weights", b).text, slot, bucket->shards, type);
}

/* Copies the rank's shard of a bucket to its place in the slot. */
static void copy_shard(const Exchange *exchange, int b) {
    const LayoutBucket *bucket = &exchange->layout->buckets[b];
    if (bucket->packed_bytes) {
        int64_t first = bucket->shards[bucket->rank], bytes = bucket->shards[bucket->rank + 1] - first;
        device_copy(device_of(exchange), packed_slot(exchange, b) + first, at_offset(exchange, ARENA_QUANTIZED, bucket->local), bytes);
        return;
    }
    ByteSpan span = layout_bucket_shard(bucket);
    if (span.begin < span.end)
        device_copy(device_of(exchange), weights_at(exchange, b, span.begin - bucket->begin),
            local_weights(exchange, bucket, bucket->local), weight_offset(exchange, span.end - span.begin));
}

/* Copies the rank's shard into its bucket's slot, quantized if the program reads quantized values,
 * and gathers the rest. A bucket that both passes read may be gathered for the backward pass while
 * the forward pass still reads it. Gathering then writes every byte unchanged, so the copy must
 * skip the alignment prefix that shard_of adds; another rank owns it. */
static void begin_gathering(Exchange *exchange, int index) {
    int b = exchange->schedule->gatherings[index].bucket;
    if (exchange->schedule->buckets[b].quantized) quantized_weights_cast(exchange->quantized, b);
    else copy_shard(exchange, b);
    gather_weights(exchange, b);
}

static bool runs_now(const Exchange *exchange, int node) { return exchange->nodes.first <= node && node <= exchange->nodes.last; }

/* Prefetches one bucket ahead of the bucket that is read. */
static void gather_in_time(Exchange *exchange, int node) {
    for (int i = 0; i < exchange->schedule->gathering_count; i++) {
        const Gathering *gathering = &exchange->schedule->gatherings[i];
        if (gathering->reads.first != node || !runs_now(exchange, node)) continue;
        if (!gathering->prefetched) begin_gathering(exchange, i);
        if (i + 1 < exchange->schedule->gathering_count && gathering[1].prefetched) begin_gathering(exchange, i + 1);
        wait_for(exchange, &exchange->weights[gathering->bucket]);
    }
}

void exchange_send_weights(void *context, int b) {
    Exchange *exchange = context;
    if (exchange->layout->buckets[b].sharded && exchange->layout->stage < STAGE_WEIGHTS) gather_weights(exchange, b);
}

void exchange_make_weights(Exchange *exchange, int b) {
    if (exchange->layout->buckets[b].frozen) return;
    Device *device = device_of(exchange);
    const LayoutBucket *bucket = &exchange->layout->buckets[b];
    BucketShard shard = bucket_shard(exchange, bucket);
    void *master = executor_master(exchange->executor, shard.local), *weights = weights_at(exchange, b, shard.in_bucket);
    if (exchange->layout->stage >= STAGE_WEIGHTS) weights = local_weights(exchange, bucket, shard.local);
    int64_t count = shard.bytes / (int64_t)sizeof(float);
    bool copies = weights != master && precision_of(exchange) != PRECISION_BF16;
    if (copies && executor_hosts_master(exchange->executor, shard.local)) device_upload(device, weights, master, shard.bytes);
    else if (copies) device_copy(device, weights, master, shard.bytes);
    else if (weights != master) device_cast_to_bf16(device, weights, master, count);
    exchange_send_weights(exchange, b);
}

bool exchange_find_amax(Exchange *exchange, Error *error) { return quantized_weights_find_amax(exchange->quantized, error); }
void exchange_put_amax(const Exchange *exchange) { quantized_weights_put_amax(exchange->quantized); }

void exchange_finish_weights(Exchange *exchange) {
    for (int b = 0; b < exchange->layout->bucket_count; b++) wait_for(exchange, &exchange->weights[b]);
}

/* -- Comm points --------------------------------------------------------------------------------------------------- */

/* Returns whether a bucket is reduced now; node - 1 must be its last write. */
static bool reduces_now(const Exchange *exchange, int b, int node) {
    bool each_run = comm_schedule_has_slot(exchange->layout, b) && !exchange->layout->in_backward;
    return exchange->schedule->buckets[b].writes.last + 1 == node && runs_now(exchange, node - 1) && (each_run || exchange->last);
}

static void at_bucket(Exchange *exchange, int b, int node) {
    const BucketTimes *times = &exchange->schedule->buckets[b];
    int first_read = times->reads[span_is_empty(times->reads[PASS_FORWARD]) ? PASS_BACKWARD : PASS_FORWARD].first;
    if (first_read == node && exchange->layout->stage < STAGE_WEIGHTS) wait_for(exchange, &exchange->weights[b]);
    if (!span_is_empty(times->writes) && reduces_now(exchange, b, node)) send_gradients(exchange, b);
}

static void update_bucket(Exchange *exchange, int b, int node) {
    if (exchange->schedule->buckets[b].update != node || !exchange->last) return;
    finish_gradients(exchange, b);
    exchange->update(exchange->update_context, b);
}

/* Zeroes the slot of a bucket that begins. With layout->in_backward, when one run is the whole
 * step, the slot is zeroed only if some gradient is not overwritten. */
static void begin_bucket(Exchange *exchange, int b, int node) {
    const BucketTimes *times = &exchange->schedule->buckets[b];
    if (times->writes.first != node || !comm_schedule_has_slot(exchange->layout, b)) return;
    if (times->adds || !exchange->layout->in_backward) clear_gradients(exchange, b);
}

/* Updates come first, because the slot of an updated bucket may be the slot of a bucket that
 * begins. */
static void at_comm_point(void *context, int index) {
    Exchange *exchange = context;
    int node = exchange->schedule->points[index], count = exchange->layout->bucket_count;
    for (int b = 0; b < count; b++) at_bucket(exchange, b, node);
    for (int b = 0; b < count; b++) update_bucket(exchange, b, node);
    for (int b = 0; b < count; b++) begin_bucket(exchange, b, node);
    gather_in_time(exchange, node);
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

static int64_t buffer_bytes(const Layout *layout, const CommSchedule *schedule) {
    int64_t most = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        int64_t bytes = bucket_bytes(&layout->buckets[b]) / (int64_t)sizeof(float) * (int64_t)sizeof(uint16_t);
        if (reduces_in_bf16(layout, &layout->buckets[b]) && !span_is_empty(schedule->buckets[b].writes) && bytes > most) most = bytes;
    }
    return most;
}

int64_t exchange_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph) {
    return buffer_bytes(layout, schedule) + quantized_weights_bytes(layout, schedule, graph);
}

Exchange *exchange_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error) {
    Exchange *exchange = memory_allocate(sizeof *exchange);
    int64_t bytes = buffer_bytes(layout, schedule);
    Error failure = {0};
    *exchange = (Exchange){.layout = layout, .schedule = schedule, .executor = executor};
    exchange->nodes = graph_part_span(executor_graph(executor), 0);
    exchange->gradients = memory_allocate((layout->bucket_count + 1) * sizeof(CommTicket));
    exchange->weights = memory_allocate((layout->bucket_count + 1) * sizeof(CommTicket));
    if (layout_all_ranks(layout) > 1 || layout->in_backward)
        executor_set_comm_points(executor, schedule->points, schedule->point_count, at_comm_point, exchange);
    exchange->quantized = quantized_weights_create(layout, schedule, executor, &failure);
    if (bytes) exchange->bf16_buffer = device_allocate(device_of(exchange), bytes, &failure);
    if (failure.code == ERROR_NONE) return exchange;
    *error = failure;
    exchange_free(exchange);
    return NULL;
}

void exchange_free(Exchange *exchange) {
    if (!exchange) return;
    finish_all_gradients(exchange);
    exchange_finish_weights(exchange);
    device_free(device_of(exchange), exchange->bf16_buffer, buffer_bytes(exchange->layout, exchange->schedule));
    quantized_weights_free(exchange->quantized);
    free(exchange->gradients);
    free(exchange->weights);
    free(exchange);
}
