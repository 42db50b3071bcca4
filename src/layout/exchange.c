/* Tickets of what is on its way, bucket by bucket, and the stops at which something is sent, waited for or put away. Owns the tickets alone: all memory is that
 * of the executor. */
#include "layout/exchange.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "kernel/launch.h"
#include "model/model.h"
#include "op/add.h"

enum { STAGE_GRADIENTS = 2, STAGE_WEIGHTS = 3 }; /* from which these are sharded */

struct Exchange {
    const Layout *layout;
    const Timetable *timetable;
    Ranks ranks;
    Executor *executor;
    bool last;
    CommTicket *gradients, *weights; /* per bucket; 0: nothing is on its way */
};

typedef struct Name { char text[32]; } Name;

static Name bucket_name(const char *what, int bucket) {
    Name name;
    snprintf(name.text, sizeof name.text, "%s.%d", what, bucket);
    return name;
}

static Precision precision_of(const Exchange *exchange) { return executor_graph(exchange->executor)->precision; }
static Device *device_of(const Exchange *exchange) { return executor_backend(exchange->executor)->device; }
static int64_t unit_of(const Exchange *exchange, TypeClass class) { return (int64_t)precision_bytes(precision_of(exchange), class); }

static CommType comm_type(const Exchange *exchange, TypeClass class) {
    int64_t bytes = unit_of(exchange, class);
    return bytes == 8 ? COMM_F64 : bytes == 4 ? COMM_F32 : COMM_BF16;
}

/* Element `at` of an arena of the executor. */
static void *element(const Exchange *exchange, Arena arena, int64_t at) {
    return (char *)executor_arena(exchange->executor, arena) + at * unit_of(exchange, arena == ARENA_WEIGHT ? TYPE_COMPUTE : TYPE_WIDE);
}

static void wait_for(Exchange *exchange, CommTicket *ticket) {
    if (*ticket) comm_wait(exchange->ranks.all, *ticket);
    *ticket = 0;
}

static int64_t bucket_elements(const LayoutBucket *bucket) { return bucket->end - bucket->begin; }

/* This rank's part of a bucket, from an aligned element on: `slack` elements before it are another rank's, and what is done to them has no effect. */
typedef struct Own { int64_t in_bucket, local, count; } Own;

static Own own_of(const Exchange *exchange, const LayoutBucket *bucket) {
    int64_t begin = layout_own_begin(exchange->layout, bucket), count = layout_own_end(exchange->layout, bucket) - begin;
    int64_t slack = count ? begin % LAYOUT_ALIGNMENT : 0;
    return (Own){begin - bucket->begin - slack, bucket->local - slack, count + slack};
}

/* -- Gradients ----------------------------------------------------------------------------------------------------- */

/* Collectives end in the order in which they were issued, so the last ticket stands for all. */
static void send_gradients(Exchange *exchange, int b) {
    const Layout *layout = exchange->layout;
    const LayoutBucket *bucket = &layout->buckets[b];
    CommType type = comm_type(exchange, TYPE_WIDE);
    void *gradients = element(exchange, ARENA_GRADIENT, exchange->timetable->buckets[b].gradients);
    Name name = bucket_name("gradients", b);
    if (!bucket->sharded) {
        exchange->gradients[b] = comm_all_reduce(exchange->ranks.all, name.text, gradients, bucket_elements(bucket), type, COMM_SUM);
        return;
    }
    exchange->gradients[b] = comm_reduce_scatter(exchange->ranks.group, name.text, gradients, bucket->pieces, type, COMM_SUM);
    if (layout->replicas == 1) return;
    int64_t begin = layout_own_begin(layout, bucket), count = layout_own_end(layout, bucket) - begin;
    char *own = (char *)gradients + (begin - bucket->begin) * unit_of(exchange, TYPE_WIDE);
    exchange->gradients[b] = comm_all_reduce(exchange->ranks.replicas, name.text, own, count, type, COMM_SUM);
}

/* Adds what has come into a slot to the sums of the rank's own part. */
static void add_gradients(const Exchange *exchange, int b) {
    Own own = own_of(exchange, &exchange->layout->buckets[b]);
    void *sum = element(exchange, ARENA_GRADIENT, own.local);
    OpCall call = {.in = {sum, element(exchange, ARENA_GRADIENT, exchange->timetable->buckets[b].gradients + own.in_bucket)}, .out = {sum},
                   .in_shape = {{own.count, 1, 1, 1}, {own.count, 1, 1, 1}}, .out_shape = {{own.count, 1, 1, 1}},
                   .attributes = &(AddAttributes){.wide = true}, .device = device_of(exchange)};
    if (own.count) executor_backend(exchange->executor)->kernels[OP_add](&call);
}

static void finish_gradients(Exchange *exchange, int b) {
    if (!exchange->gradients[b]) return;
    wait_for(exchange, &exchange->gradients[b]);
    if (exchange->layout->stage >= STAGE_GRADIENTS && exchange->layout->buckets[b].sharded) add_gradients(exchange, b);
}

/* Makes a slot ready for the program to add to. */
static void clear_gradients(Exchange *exchange, int b) {
    const Layout *layout = exchange->layout;
    int64_t begin = exchange->timetable->buckets[b].gradients, count = bucket_elements(&layout->buckets[b]);
    for (int other = 0; other < layout->bucket_count; other++) {
        int64_t first = exchange->timetable->buckets[other].gradients, end = first + bucket_elements(&layout->buckets[other]);
        if (first < begin + count && begin < end) finish_gradients(exchange, other);
    }
    device_fill(device_of(exchange), element(exchange, ARENA_GRADIENT, begin), 0, count * unit_of(exchange, TYPE_WIDE));
}

void exchange_set_last(Exchange *exchange, bool last) { exchange->last = last; }

void exchange_finish_gradients(Exchange *exchange) {
    for (int b = 0; b < exchange->layout->bucket_count; b++) finish_gradients(exchange, b);
}

/* -- Weights ------------------------------------------------------------------------------------------------------- */

/* Sends the rank's part, which is in place, and receives the others'. */
static void gather_weights(Exchange *exchange, int b) {
    void *weights = element(exchange, ARENA_WEIGHT, exchange->timetable->buckets[b].weights);
    exchange->weights[b] = comm_all_gather(exchange->ranks.group, bucket_name("weights", b).text, weights, exchange->layout->buckets[b].pieces,
                                           comm_type(exchange, TYPE_COMPUTE));
}

/* Fills a slot. */
static void begin_gathering(Exchange *exchange, int index) {
    if (index >= exchange->timetable->gathering_count) return;
    int b = exchange->timetable->gatherings[index].bucket;
    Own own = own_of(exchange, &exchange->layout->buckets[b]);
    void *slot = element(exchange, ARENA_WEIGHT, exchange->timetable->buckets[b].weights + own.in_bucket);
    if (own.count) device_copy(device_of(exchange), slot, element(exchange, ARENA_WEIGHT, own.local), own.count * unit_of(exchange, TYPE_COMPUTE));
    gather_weights(exchange, b);
}

/* One bucket is gathered ahead of the one that is read. */
static void gather_in_time(Exchange *exchange, int node) {
    for (int i = 0; i < exchange->timetable->gathering_count; i++) {
        const Gathering *gathering = &exchange->timetable->gatherings[i];
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
    Own own = own_of(exchange, &exchange->layout->buckets[b]);
    int64_t at = exchange->layout->stage < STAGE_WEIGHTS ? exchange->timetable->buckets[b].weights + own.in_bucket : own.local;
    void *weights = element(exchange, ARENA_WEIGHT, at), *master = element(exchange, ARENA_MASTER, own.local);
    if (weights != master && device_is_gpu(device_of(exchange))) gpu_cast(device_of(exchange), weights, master, own.count);
    else if (weights != master && precision_of(exchange) == PRECISION_BF16) model_round_weights(master, weights, own.count);
    else if (weights != master) device_copy(device_of(exchange), weights, master, own.count * unit_of(exchange, TYPE_COMPUTE));
    exchange_send_weights(exchange, b);
}

void exchange_finish_weights(Exchange *exchange) {
    for (int b = 0; b < exchange->layout->bucket_count; b++) wait_for(exchange, &exchange->weights[b]);
}

/* -- Stops --------------------------------------------------------------------------------------------------------- */

static void at_bucket(Exchange *exchange, int b, int node) {
    const BucketTimes *times = &exchange->timetable->buckets[b];
    bool slots = exchange->layout->stage >= STAGE_GRADIENTS && exchange->layout->buckets[b].sharded;
    int first_read = times->reads[span_is_empty(times->reads[PASS_FORWARD]) ? PASS_BACKWARD : PASS_FORWARD].first;
    if (first_read == node && exchange->layout->stage < STAGE_WEIGHTS) wait_for(exchange, &exchange->weights[b]);
    if (span_is_empty(times->writes)) return;
    if (times->writes.last + 1 == node && (slots || exchange->last)) send_gradients(exchange, b);
    if (times->writes.first == node && slots) clear_gradients(exchange, b);
}

static void at_stop(void *context, int stop) {
    Exchange *exchange = context;
    int node = exchange->timetable->stops[stop];
    for (int b = 0; b < exchange->layout->bucket_count; b++) at_bucket(exchange, b, node);
    gather_in_time(exchange, node);
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

Exchange *exchange_create(const Layout *layout, const Timetable *timetable, const Ranks *ranks, Executor *executor) {
    Exchange *exchange = memory_allocate(sizeof *exchange);
    *exchange = (Exchange){.layout = layout, .timetable = timetable, .ranks = *ranks, .executor = executor};
    exchange->gradients = memory_allocate((layout->bucket_count + 1) * sizeof(CommTicket));
    exchange->weights = memory_allocate((layout->bucket_count + 1) * sizeof(CommTicket));
    if (layout_all_ranks(layout) > 1) executor_set_stops(executor, timetable->stops, timetable->stop_count, at_stop, exchange);
    return exchange;
}

void exchange_free(Exchange *exchange) {
    if (!exchange) return;
    exchange_finish_gradients(exchange);
    exchange_finish_weights(exchange);
    free(exchange->gradients);
    free(exchange->weights);
    free(exchange);
}
