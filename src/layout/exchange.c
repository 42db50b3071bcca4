/* Tickets of what is on its way, bucket by bucket, and the stops at which something is sent, waited for or put away. Owns the tickets, and room for a bucket in
 * bf16 where gradients are narrowed; all other memory is that of the executor. */
#include "layout/exchange.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "backend/gpu/kernel_launch.h"
#include "model/model.h"
#include "ops/add/add.h"

enum { STAGE_GRADIENTS = 2, STAGE_WEIGHTS = 3 }; /* from which these are sharded */

struct Exchange {
    const Layout *layout;
    const CommSchedule *schedule;
    Ranks ranks;
    Executor *executor;
    bool last;
    CommTicket *gradients, *weights; /* per bucket; 0: nothing is on its way */
    uint16_t *room;                  /* as large as the largest bucket of gradients, in bf16, where these are narrowed */
};

typedef struct Name { char text[32]; } Name;

static Name bucket_name(const char *what, int bucket) {
    Name name;
    snprintf(name.text, sizeof name.text, "%s.%d", what, bucket);
    return name;
}

static Precision precision_of(const Exchange *exchange) { return executor_graph(exchange->executor)->precision; }
static Device *device_of(const Exchange *exchange) { return executor_backend(exchange->executor)->device; }
/* Bytes of a unit. */
static int64_t unit_of(const Exchange *exchange, Arena arena) {
    return arena == ARENA_WEIGHT ? (int64_t)precision_bytes(precision_of(exchange), TYPE_COMPUTE) : precision_unit(precision_of(exchange));
}

static CommType comm_type(int64_t bytes) { return bytes == 8 ? COMM_F64 : bytes == 4 ? COMM_F32 : COMM_BF16; }

/* Of a bucket's elements. */
static int64_t width_of(const Exchange *exchange, const LayoutBucket *bucket) {
    return precision_width(precision_of(exchange), bucket->vectors ? TYPE_WIDE : TYPE_COMPUTE);
}

static bool is_narrowed(const Layout *layout, const LayoutBucket *bucket) { return layout->narrows && !bucket->vectors; }

/* Bytes of a bucket's gradients on their way, by element. */
static int64_t gradient_bytes(const Exchange *exchange, const LayoutBucket *bucket) {
    return is_narrowed(exchange->layout, bucket) ? (int64_t)sizeof *exchange->room
                                                 : unit_of(exchange, ARENA_GRADIENT) * width_of(exchange, bucket);
}

/* Unit `at` of an arena of the executor. */
static void *place(const Exchange *exchange, Arena arena, int64_t at) {
    return (char *)executor_arena(exchange->executor, arena) + at * unit_of(exchange, arena);
}

static void wait_for(Exchange *exchange, CommTicket *ticket) {
    if (*ticket) comm_wait(exchange->ranks.all, *ticket);
    *ticket = 0;
}

static int64_t bucket_units(const LayoutBucket *bucket) { return bucket->end - bucket->begin; }

/* This rank's part of a bucket in units, from an aligned one on: `slack` units before it are another rank's, and what is done to them has no effect. */
typedef struct Own { int64_t in_bucket, local, count; } Own;

static Own own_of(const Exchange *exchange, const LayoutBucket *bucket) {
    int64_t begin = layout_own_begin(exchange->layout, bucket), count = layout_own_end(exchange->layout, bucket) - begin;
    int64_t slack = count ? begin % LAYOUT_ALIGNMENT : 0;
    return (Own){begin - bucket->begin - slack, bucket->local - slack, count + slack};
}

/* -- Gradients ----------------------------------------------------------------------------------------------------- */

/* The bucket's gradients become bf16, from where they began. */
static void narrow_gradients(const Exchange *exchange, const LayoutBucket *bucket, void *gradients) {
    Device *device = device_of(exchange);
    int64_t count = bucket_units(bucket);
    if (device_is_gpu(device)) gpu_cast_to_bf16(device, exchange->room, gradients, count);
    else model_round_weights(gradients, exchange->room, count);
    device_copy(device, gradients, exchange->room, count * (int64_t)sizeof *exchange->room);
}

/* What this rank needs of them becomes fp32 again, where that belongs. */
static void widen_gradients(const Exchange *exchange, const LayoutBucket *bucket, char *gradients) {
    Device *device = device_of(exchange);
    Own own = own_of(exchange, bucket);
    float *to = (float *)gradients + own.in_bucket;
    device_copy(
        device, exchange->room, gradients + own.in_bucket * (int64_t)sizeof *exchange->room, own.count * (int64_t)sizeof *exchange->room);
    if (device_is_gpu(device)) gpu_cast_to_float(device, to, exchange->room, own.count);
    else
        for (int64_t i = 0; i < own.count; i++) to[i] = bf16_to_float(exchange->room[i]);
}

/* Collectives end in the order in which they were issued, so the last ticket stands for all. */
static void send_gradients(Exchange *exchange, int b) {
    const Layout *layout = exchange->layout;
    const LayoutBucket *bucket = &layout->buckets[b];
    CommType type = comm_type(gradient_bytes(exchange, bucket));
    void *gradients = place(exchange, ARENA_GRADIENT, exchange->schedule->buckets[b].gradients);
    if (is_narrowed(layout, bucket)) narrow_gradients(exchange, bucket, gradients);
    Name name = bucket_name("gradients", b);
    if (!bucket->sharded) {
        exchange->gradients[b] =
            comm_all_reduce(exchange->ranks.all, name.text, gradients, bucket_units(bucket) / width_of(exchange, bucket), type, COMM_SUM);
        return;
    }
    exchange->gradients[b] = comm_reduce_scatter(exchange->ranks.group, name.text, gradients, bucket->pieces, type, COMM_SUM);
    if (layout->replicas == 1) return;
    int64_t begin = layout_own_begin(layout, bucket), count = layout_own_end(layout, bucket) - begin;
    char *own = (char *)gradients + (begin - bucket->begin) * gradient_bytes(exchange, bucket);
    exchange->gradients[b] = comm_all_reduce(exchange->ranks.replicas, name.text, own, count, type, COMM_SUM);
}

/* Adds what has come into a slot to the sums of the rank's own part. */
static void add_gradients(const Exchange *exchange, int b) {
    Own own = own_of(exchange, &exchange->layout->buckets[b]);
    void *sum = place(exchange, ARENA_GRADIENT, own.local);
    void *received = place(exchange, ARENA_GRADIENT, exchange->schedule->buckets[b].gradients + own.in_bucket);
    OpCall call = {.in = {[ADD_A] = sum, [ADD_B] = received},
        .out = {[ADD_SUM] = sum},
        .in_shape = {[ADD_A] = {own.count, 1, 1, 1}, [ADD_B] = {own.count, 1, 1, 1}},
        .out_shape = {[ADD_SUM] = {own.count, 1, 1, 1}},
        .attributes = &(AddAttributes){.wide = precision_state_type(precision_of(exchange), TYPE_COMPUTE) == TYPE_WIDE},
        .device = device_of(exchange)};
    if (own.count) executor_backend(exchange->executor)->kernels[OP_add]->run(&call);
}

static void finish_gradients(Exchange *exchange, int b) {
    if (!exchange->gradients[b]) return;
    const LayoutBucket *bucket = &exchange->layout->buckets[b];
    wait_for(exchange, &exchange->gradients[b]);
    if (is_narrowed(exchange->layout, bucket))
        widen_gradients(exchange, bucket, place(exchange, ARENA_GRADIENT, exchange->schedule->buckets[b].gradients));
    if (exchange->layout->stage >= STAGE_GRADIENTS && bucket->sharded) add_gradients(exchange, b);
}

/* Makes a slot ready for the program to add to. */
static void clear_gradients(Exchange *exchange, int b) {
    const Layout *layout = exchange->layout;
    int64_t begin = exchange->schedule->buckets[b].gradients, count = bucket_units(&layout->buckets[b]);
    for (int other = 0; other < layout->bucket_count; other++) {
        int64_t first = exchange->schedule->buckets[other].gradients, end = first + bucket_units(&layout->buckets[other]);
        if (first < begin + count && begin < end) finish_gradients(exchange, other);
    }
    device_fill(device_of(exchange), place(exchange, ARENA_GRADIENT, begin), 0, count * unit_of(exchange, ARENA_GRADIENT));
}

void exchange_set_last(Exchange *exchange, bool last) { exchange->last = last; }

void exchange_finish_gradients(Exchange *exchange) {
    for (int b = 0; b < exchange->layout->bucket_count; b++) finish_gradients(exchange, b);
}

/* -- Weights ------------------------------------------------------------------------------------------------------- */

/* Sends the rank's part, which is in place, and receives the others'. */
static void gather_weights(Exchange *exchange, int b) {
    void *weights = place(exchange, ARENA_WEIGHT, exchange->schedule->buckets[b].weights);
    exchange->weights[b] = comm_all_gather(exchange->ranks.group, bucket_name("weights", b).text, weights,
        exchange->layout->buckets[b].pieces, comm_type(unit_of(exchange, ARENA_WEIGHT)));
}

/* Fills a slot. */
static void begin_gathering(Exchange *exchange, int index) {
    if (index >= exchange->schedule->gathering_count) return;
    int b = exchange->schedule->gatherings[index].bucket;
    Own own = own_of(exchange, &exchange->layout->buckets[b]);
    void *slot = place(exchange, ARENA_WEIGHT, exchange->schedule->buckets[b].weights + own.in_bucket);
    if (own.count)
        device_copy(device_of(exchange), slot, place(exchange, ARENA_WEIGHT, own.local), own.count * unit_of(exchange, ARENA_WEIGHT));
    gather_weights(exchange, b);
}

/* One bucket is gathered ahead of the one that is read. */
static void gather_in_time(Exchange *exchange, int node) {
    for (int i = 0; i < exchange->schedule->gathering_count; i++) {
        const Gathering *gathering = &exchange->schedule->gatherings[i];
        if (gathering->reads.first != node) continue;
        if (i == 0) begin_gathering(exchange, i);
        begin_gathering(exchange, i + 1);
        wait_for(exchange, &exchange->weights[gathering->bucket]);
    }
}

void exchange_send_weights(void *context, int b) {
    Exchange *exchange = context;
    if (exchange->layout->buckets[b].sharded && exchange->layout->stage < STAGE_WEIGHTS) gather_weights(exchange, b);
}

void exchange_make_weights(Exchange *exchange, int b) {
    if (exchange->layout->buckets[b].frozen) return;
    Own own = own_of(exchange, &exchange->layout->buckets[b]);
    int64_t at = exchange->layout->stage < STAGE_WEIGHTS ? exchange->schedule->buckets[b].weights + own.in_bucket : own.local;
    void *weights = place(exchange, ARENA_WEIGHT, at), *master = place(exchange, ARENA_MASTER, own.local);
    if (weights != master && precision_of(exchange) != PRECISION_BF16)
        device_copy(device_of(exchange), weights, master, own.count * unit_of(exchange, ARENA_WEIGHT));
    else if (weights != master && device_is_gpu(device_of(exchange))) gpu_cast_to_bf16(device_of(exchange), weights, master, own.count);
    else if (weights != master) model_round_weights(master, weights, own.count);
    exchange_send_weights(exchange, b);
}

void exchange_finish_weights(Exchange *exchange) {
    for (int b = 0; b < exchange->layout->bucket_count; b++) wait_for(exchange, &exchange->weights[b]);
}

/* -- Stops --------------------------------------------------------------------------------------------------------- */

static void at_bucket(Exchange *exchange, int b, int node) {
    const BucketTimes *times = &exchange->schedule->buckets[b];
    bool slots = exchange->layout->stage >= STAGE_GRADIENTS && exchange->layout->buckets[b].sharded;
    int first_read = times->reads[span_is_empty(times->reads[PASS_FORWARD]) ? PASS_BACKWARD : PASS_FORWARD].first;
    if (first_read == node && exchange->layout->stage < STAGE_WEIGHTS) wait_for(exchange, &exchange->weights[b]);
    if (span_is_empty(times->writes)) return;
    if (times->writes.last + 1 == node && (slots || exchange->last)) send_gradients(exchange, b);
    if (times->writes.first == node && slots) clear_gradients(exchange, b);
}

static void at_stop(void *context, int stop) {
    Exchange *exchange = context;
    int node = exchange->schedule->stops[stop];
    for (int b = 0; b < exchange->layout->bucket_count; b++) at_bucket(exchange, b, node);
    gather_in_time(exchange, node);
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

int64_t exchange_bytes(const Layout *layout, const CommSchedule *schedule) {
    int64_t most = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        int64_t units = bucket_units(&layout->buckets[b]);
        if (is_narrowed(layout, &layout->buckets[b]) && !span_is_empty(schedule->buckets[b].writes) && units > most) most = units;
    }
    return most * (int64_t)sizeof(uint16_t);
}

Exchange *exchange_create(const Layout *layout, const CommSchedule *schedule, const Ranks *ranks, Executor *executor, Error *error) {
    Exchange *exchange = memory_allocate(sizeof *exchange);
    int64_t bytes = exchange_bytes(layout, schedule);
    *exchange = (Exchange){.layout = layout, .schedule = schedule, .ranks = *ranks, .executor = executor};
    exchange->gradients = memory_allocate((layout->bucket_count + 1) * sizeof(CommTicket));
    exchange->weights = memory_allocate((layout->bucket_count + 1) * sizeof(CommTicket));
    if (layout_all_ranks(layout) > 1) executor_set_comm_points(executor, schedule->stops, schedule->stop_count, at_stop, exchange);
    if (bytes && !(exchange->room = device_allocate(device_of(exchange), bytes, error))) {
        exchange_free(exchange);
        return NULL;
    }
    return exchange;
}

void exchange_free(Exchange *exchange) {
    if (!exchange) return;
    exchange_finish_gradients(exchange);
    exchange_finish_weights(exchange);
    device_free(device_of(exchange), exchange->room, exchange_bytes(exchange->layout, exchange->schedule));
    free(exchange->gradients);
    free(exchange->weights);
    free(exchange);
}
