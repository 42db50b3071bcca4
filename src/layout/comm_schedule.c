/* One pass over the nodes notes for every bucket when it is read and written; slots are then placed like activations, by lifetime. Owns the schedule's
 * lists. */
#include "layout/comm_schedule.h"

#include <stdlib.h>

#include "base/memory.h"

static int bucket_at(const Layout *layout, int64_t offset) {
    int low = 0, high = layout->bucket_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (layout->buckets[middle].begin <= offset) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* -- Reads and writes ---------------------------------------------------------------------------------------------- */

static void extend(NodeSpan *span, int node) {
    if (node < span->first) span->first = node;
    if (node > span->last) span->last = node;
}

static void note(CommSchedule *schedule, const Layout *layout, const Graph *graph, int node, TensorId id) {
    const Tensor *tensor = graph_get(graph, id);
    bool gradient = tensor->arena == ARENA_GRADIENT;
    if (!gradient && !graph_is_parameter(graph, id)) return;
    BucketTimes *times = &schedule->buckets[bucket_at(layout, tensor->offset)];
    extend(gradient ? &times->writes : &times->reads[graph->nodes[node].backward ? PASS_BACKWARD : PASS_FORWARD], node);
}

static void note_all(CommSchedule *schedule, const Layout *layout, const Graph *graph) {
    for (int b = 0; b < layout->bucket_count; b++)
        schedule->buckets[b] = (BucketTimes){{NEVER, NEVER}, NEVER, layout->buckets[b].begin, layout->buckets[b].begin};
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        for (int j = 0; j < node->inputs; j++) note(schedule, layout, graph, i, node->in[j]);
        for (int j = 0; j < node->outputs; j++) note(schedule, layout, graph, i, node->out[j]);
    }
}

/* -- Slots --------------------------------------------------------------------------------------------------------- */

static int earlier_first(const void *a, const void *b) {
    const Gathering *x = a, *y = b;
    if (x->reads.first != y->reads.first) return x->reads.first < y->reads.first ? -1 : 1;
    return x->bucket - y->bucket;
}

/* A bucket that is read again before any other is needed stays. */
static void list_gatherings(CommSchedule *schedule, const Layout *layout) {
    Gathering *list = schedule->gatherings = memory_allocate((layout->bucket_count * PASS_COUNT + 1) * sizeof *list);
    int count = 0;
    for (int b = 0; b < layout->bucket_count && layout->stage >= 3; b++)
        for (int pass = 0; pass < PASS_COUNT && layout->buckets[b].sharded; pass++)
            if (!span_is_empty(schedule->buckets[b].reads[pass])) list[count++] = (Gathering){b, schedule->buckets[b].reads[pass]};
    qsort(list, count, sizeof *list, earlier_first);
    for (int i = 0; i < count; i++) {
        Gathering *last = schedule->gathering_count ? &list[schedule->gathering_count - 1] : NULL;
        if (last && last->bucket == list[i].bucket) last->reads.last = list[i].reads.last;
        else list[schedule->gathering_count++] = list[i];
    }
}

static PlanBlock slot_of(const LayoutBucket *bucket, int64_t *target) {
    return (PlanBlock){.bytes = bucket->end - bucket->begin, .life = {NEVER, NEVER}, .target = target};
}

/* Units of all slots. A bucket has one slot for both passes. */
static int64_t place_weights(CommSchedule *schedule, const Layout *layout) {
    PlanBlock *slots = memory_allocate((layout->bucket_count + 1) * sizeof *slots);
    int count = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        PlanBlock slot = slot_of(&layout->buckets[b], &schedule->buckets[b].weights);
        int lives = 0;
        for (int i = 0; i < schedule->gathering_count; i++)
            if (schedule->gatherings[i].bucket == b)
                slot.life[lives++] = (NodeSpan){schedule->gatherings[i > 0 ? i - 1 : 0].reads.first, schedule->gatherings[i].reads.last};
        if (lives) slots[count++] = slot;
    }
    int64_t extent = plan_blocks(slots, count);
    free(slots);
    return extent;
}

/* The last write to the bucket that is complete next after `node`. */
static int next_complete(const CommSchedule *schedule, const Layout *layout, int node) {
    int next = -1;
    for (int b = 0; b < layout->bucket_count; b++) {
        int last = schedule->buckets[b].writes.last;
        if (layout->buckets[b].sharded && last > node && (next < 0 || last < next)) next = last;
    }
    return next < 0 ? node : next;
}

/* Slots stay while their buckets are reduced, for which there is as long as the program takes to complete the next one. */
static int64_t place_gradients(CommSchedule *schedule, const Layout *layout) {
    PlanBlock *slots = memory_allocate((layout->bucket_count + 1) * sizeof *slots);
    int count = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        NodeSpan writes = schedule->buckets[b].writes;
        PlanBlock slot = slot_of(&layout->buckets[b], &schedule->buckets[b].gradients);
        slot.life[0] = (NodeSpan){writes.first, next_complete(schedule, layout, writes.last)};
        if (layout->buckets[b].sharded && !span_is_empty(writes)) slots[count++] = slot;
    }
    int64_t extent = plan_blocks(slots, count);
    free(slots);
    return extent;
}

static void place_slots(CommSchedule *schedule, const Layout *layout) {
    schedule->weight_extent = layout->extent;
    schedule->gradient_extent = layout->trained;
    if (layout->stage >= 2) schedule->gradient_extent = layout->local_extent + place_gradients(schedule, layout);
    if (layout->stage >= 3) schedule->weight_extent = layout->local_extent + place_weights(schedule, layout);
    for (int b = 0; b < layout->bucket_count; b++) {
        if (!layout->buckets[b].sharded) continue;
        if (layout->stage >= 2) schedule->buckets[b].gradients += layout->local_extent;
        if (layout->stage >= 3) schedule->buckets[b].weights += layout->local_extent;
    }
}

static void move_tensors(const CommSchedule *schedule, const Layout *layout, Graph *graph) {
    for (int i = 1; i < graph->tensor_count; i++) {
        Tensor *tensor = &graph->tensors[i];
        if (tensor->arena != ARENA_WEIGHT && tensor->arena != ARENA_GRADIENT) continue;
        int b = bucket_at(layout, tensor->offset);
        const BucketTimes *times = &schedule->buckets[b];
        tensor->offset += (tensor->arena == ARENA_WEIGHT ? times->weights : times->gradients) - layout->buckets[b].begin;
    }
}

/* -- Stops --------------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) { return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b); }

static void list_stops(CommSchedule *schedule, const Layout *layout) {
    int count = 0, *stops = schedule->stops = memory_allocate((layout->bucket_count * (PASS_COUNT + 2) + 1) * sizeof *stops);
    for (int b = 0; b < layout->bucket_count; b++) {
        const BucketTimes *times = &schedule->buckets[b];
        bool sharded = layout->buckets[b].sharded;
        for (int pass = 0; pass < PASS_COUNT && sharded; pass++) {
            if (span_is_empty(times->reads[pass])) continue;
            stops[count++] = times->reads[pass].first;
            if (layout->stage < 3) break; /* they stay */
        }
        if (span_is_empty(times->writes)) continue;
        if (sharded && layout->stage >= 2) stops[count++] = times->writes.first;
        stops[count++] = times->writes.last + 1;
    }
    qsort(stops, count, sizeof *stops, ascending);
    for (int i = 0; i < count; i++)
        if (i == 0 || stops[i] != stops[i - 1]) stops[schedule->stop_count++] = stops[i];
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

CommSchedule *comm_schedule_create(const Layout *layout, Graph *graph) {
    CommSchedule *schedule = memory_allocate(sizeof *schedule);
    schedule->buckets = memory_allocate((layout->bucket_count + 1) * sizeof *schedule->buckets);
    note_all(schedule, layout, graph);
    list_gatherings(schedule, layout);
    place_slots(schedule, layout);
    move_tensors(schedule, layout, graph);
    list_stops(schedule, layout);
    return schedule;
}

void comm_schedule_free(CommSchedule *schedule) {
    if (!schedule) return;
    free(schedule->buckets);
    free(schedule->gatherings);
    free(schedule->stops);
    free(schedule);
}
