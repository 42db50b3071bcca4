/* One pass over the nodes notes when each bucket is read and written; this determines when the
 * bucket may be updated. Slots are then placed by lifetime, like activations. Owns the schedule's
 * lists. Called by program_plan. */
#include "layout/comm_schedule.h"

#include <stdlib.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "graph/op.h"

/* -- Reads and writes ---------------------------------------------------------------------------------------------- */

/* Returns the node at which a node runs: its absorber, or itself. */
static int find_run(const Graph *graph, int node) { return graph->nodes[node].absorber ? graph->nodes[node].absorber : node; }

static void extend_span(NodeSpan *span, int node) {
    if (node < span->first) span->first = node;
    if (node > span->last) span->last = node;
}

/* Returns the bucket of each tensor of quantized matrices, by tensor, for the caller to free. */
static int *buckets_of_quantized(const Layout *layout, const Graph *graph) {
    int *buckets = memory_allocate((size_t)graph->tensor_count * sizeof *buckets);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->quantization) buckets[p->quantized] = buckets[p->scales] = layout_bucket_at(layout, p->offset);
    }
    return buckets;
}

/* `quantized`: as buckets_of_quantized returns it. */
static void note_use(CommSchedule *schedule, const Layout *layout, const Graph *graph, const int *quantized, int node, TensorId id) {
    Arena arena = graph_get(graph, id)->arena;
    bool gradient = arena == ARENA_GRADIENT;
    if (!gradient && arena != ARENA_QUANTIZED && !graph_is_parameter(graph, id)) return;
    int b = arena == ARENA_QUANTIZED ? quantized[id] : layout_bucket_at(layout, graph_state_span(graph, id).begin);
    BucketTimes *times = &schedule->buckets[b];
    extend_span(gradient ? &times->writes : &times->reads[graph->nodes[node].backward ? PASS_BACKWARD : PASS_FORWARD], node);
}

static void note_all(CommSchedule *schedule, const Layout *layout, const Graph *graph) {
    for (int b = 0; b < layout->bucket_count; b++) {
        int64_t begin = layout->buckets[b].begin;
        schedule->buckets[b] = (BucketTimes){.reads = {NEVER, NEVER},
            .writes = NEVER,
            .weights = precision_weight_offset(graph->precision, begin),
            .gradients = begin,
            .quantized = layout->buckets[b].coded && graph->training,
            .update = -1};
    }
    SCOPED_FREE int *quantized = buckets_of_quantized(layout, graph);
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        for (int j = 0; j < node->inputs; j++) note_use(schedule, layout, graph, quantized, find_run(graph, i), node->in[j]);
        for (int j = 0; j < node->outputs; j++) note_use(schedule, layout, graph, quantized, find_run(graph, i), node->out[j]);
    }
}

/* -- Updates ------------------------------------------------------------------------------------------------------- */

bool comm_schedule_has_slot(const Layout *layout, int bucket) {
    if (layout->in_backward) return !layout->buckets[bucket].frozen;
    return layout->shard.local_gradients && layout->buckets[bucket].sharded;
}

static bool is_reduced(const Layout *layout, int bucket) { return mesh_size(layout->mesh, layout->buckets[bucket].axes) > 1; }

/* Sets `adds`. */
static void note_overwrites(CommSchedule *schedule, const Layout *layout, const Graph *graph) {
    SCOPED_FREE int64_t *added = memory_allocate((layout->bucket_count + 1) * sizeof *added); /* bytes that no node overwrites */
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        added[layout_bucket_at(layout, p->offset)] += p->count * p->element_bytes;
    }
    for (int i = 0; i < graph->node_count; i++) {
        if (!graph->nodes[i].overwrites) continue;
        ByteSpan span = graph_state_span(graph, op_overwritten(&graph->nodes[i]));
        added[layout_bucket_at(layout, span.begin)] -= span.end - span.begin;
    }
    for (int b = 0; b < layout->bucket_count; b++) schedule->buckets[b].adds = added[b] > 0;
}

/* Returns the last write to the next bucket that is complete after `node`. */
static int next_complete(const CommSchedule *schedule, const Layout *layout, int node) {
    int next = -1;
    for (int b = 0; b < layout->bucket_count; b++) {
        int last = schedule->buckets[b].writes.last;
        if (comm_schedule_has_slot(layout, b) && last > node && (next < 0 || last < next)) next = last;
    }
    return next < 0 ? node : next;
}

/* Sets the nodes before which buckets are updated. Reductions have until the program has completed
 * the next bucket. Gradients that no node writes are zero, but their weights still decay: the last
 * node counts as their write. */
static void list_updates(CommSchedule *schedule, const Layout *layout, const Graph *graph) {
    int end = graph->node_count;
    for (int b = 0; b < layout->bucket_count; b++)
        if (comm_schedule_has_slot(layout, b) && span_is_empty(schedule->buckets[b].writes))
            schedule->buckets[b].writes = (NodeSpan){end - 1, end - 1};
    for (int b = 0; b < layout->bucket_count; b++) {
        BucketTimes *times = &schedule->buckets[b];
        if (!comm_schedule_has_slot(layout, b)) continue;
        int last = is_reduced(layout, b) ? next_complete(schedule, layout, times->writes.last) : times->writes.last;
        for (int pass = 0; pass < BUCKET_PASSES; pass++) last = int_max(last, times->reads[pass].last);
        times->update = layout->buckets[b].vectors ? end : last + 1;
    }
}

/* -- Slots --------------------------------------------------------------------------------------------------------- */

static int by_node(const void *a, const void *b) {
    const Gathering *x = a, *y = b;
    if (x->reads.first != y->reads.first) return x->reads.first < y->reads.first ? -1 : 1;
    return x->bucket - y->bucket;
}

static int part_of(const Graph *graph, const Gathering *gathering) { return graph->nodes[gathering->reads.first].part; }

/* A bucket that is read again before any other bucket is needed stays gathered, unless another part
 * reads it. Other parts run between the parts of a pipeline's program, and may need its memory. */
static void list_gatherings(CommSchedule *schedule, const Layout *layout, const Graph *graph) {
    Gathering *list = schedule->gatherings = memory_allocate((layout->bucket_count * BUCKET_PASSES + 1) * sizeof *list);
    int count = 0;
    for (int b = 0; b < layout->bucket_count && layout->stage >= 3; b++)
        for (int pass = 0; pass < BUCKET_PASSES && layout->buckets[b].sharded; pass++)
            if (!span_is_empty(schedule->buckets[b].reads[pass]))
                list[count++] = (Gathering){.bucket = b, .reads = schedule->buckets[b].reads[pass]};
    qsort(list, count, sizeof *list, by_node);
    for (int i = 0; i < count; i++) {
        Gathering *last = schedule->gathering_count ? &list[schedule->gathering_count - 1] : NULL;
        bool same_part = last && part_of(graph, last) == part_of(graph, &list[i]);
        if (same_part && last->bucket == list[i].bucket) last->reads.last = list[i].reads.last;
        else {
            list[i].prefetched = same_part;
            list[schedule->gathering_count++] = list[i];
        }
    }
}

static PlanBlock reserve_slot(int64_t bytes, int64_t *target) {
    return (PlanBlock){.bytes = bytes, .life = {NEVER, NEVER}, .target = target};
}

enum { SLOT_ALIGNMENT = 128 }; /* 64 bf16 elements of a matrix, as buckets are aligned in the other arenas */

/* Returns the bytes of a slot for the weights of a bucket. */
static int64_t weight_slot_bytes(const CommSchedule *schedule, const Layout *layout, int b, Precision precision) {
    const LayoutBucket *bucket = &layout->buckets[b];
    if (bucket->packed_bytes) return bucket->packed_bytes;
    if (schedule->buckets[b].quantized) return round_up((bucket->end - bucket->begin) / bucket->element_bytes, SLOT_ALIGNMENT);
    return precision_weight_offset(precision, bucket->end - bucket->begin);
}

/* Places the slots for weights, of packed buckets or of all others, and returns their total bytes. A
 * bucket has one slot for both passes. */
static int64_t place_weights(CommSchedule *schedule, const Layout *layout, Precision precision, bool packed) {
    SCOPED_FREE PlanBlock *slots = memory_allocate((layout->bucket_count + 1) * sizeof *slots);
    int count = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        PlanBlock slot = reserve_slot(weight_slot_bytes(schedule, layout, b, precision), &schedule->buckets[b].weights);
        int lives = 0;
        for (int i = 0; i < schedule->gathering_count; i++)
            if (schedule->gatherings[i].bucket == b && packed == (layout->buckets[b].packed_bytes > 0))
                slot.life[lives++] = (NodeSpan){
                    schedule->gatherings[i - schedule->gatherings[i].prefetched].reads.first, schedule->gatherings[i].reads.last};
        if (lives) slots[count++] = slot;
    }
    return plan_blocks(slots, count);
}

/* Places the slots for gradients and returns their total bytes. A slot lives until its bucket is
 * updated. If buckets are not updated in the backward pass, it lives while the bucket is reduced,
 * until the program has completed the next bucket. */
static int64_t place_gradients(CommSchedule *schedule, const Layout *layout) {
    SCOPED_FREE PlanBlock *slots = memory_allocate((layout->bucket_count + 1) * sizeof *slots);
    int count = 0;
    for (int b = 0; b < layout->bucket_count; b++) {
        NodeSpan writes = schedule->buckets[b].writes;
        PlanBlock slot = reserve_slot(layout->buckets[b].end - layout->buckets[b].begin, &schedule->buckets[b].gradients);
        int update = schedule->buckets[b].update;
        slot.life[0] = (NodeSpan){writes.first, update < 0 ? next_complete(schedule, layout, writes.last) : update - 1};
        if (comm_schedule_has_slot(layout, b) && !span_is_empty(writes)) slots[count++] = slot;
    }
    return plan_blocks(slots, count);
}

static void place_slots(CommSchedule *schedule, const Layout *layout, Precision precision) {
    int64_t local_gradients = layout->shard.bytes, local_weights = precision_weight_offset(precision, layout->local_weights);
    schedule->weight_bytes = precision_weight_offset(precision, layout->stored_bytes);
    schedule->gradient_bytes = layout->trained_bytes;
    if (layout->in_backward) schedule->gradient_bytes = place_gradients(schedule, layout);
    else if (layout->shard.local_gradients) schedule->gradient_bytes = local_gradients + place_gradients(schedule, layout);
    if (layout->stage >= 3) schedule->weight_bytes = local_weights + place_weights(schedule, layout, precision, false);
    if (layout->local_packed) schedule->quantized_bytes = layout->local_packed + place_weights(schedule, layout, precision, true);
    for (int b = 0; b < layout->bucket_count; b++) {
        const LayoutBucket *bucket = &layout->buckets[b];
        BucketTimes *times = &schedule->buckets[b];
        if (layout->shard.local_gradients && !bucket->frozen)
            times->gradients = bucket->sharded ? local_gradients + times->gradients : bucket->local;
        if (bucket->packed_bytes) times->weights += layout->local_packed;
        else if (layout->stage >= 3)
            times->weights = bucket->sharded ? local_weights + times->weights : precision_weight_offset(precision, bucket->local);
    }
}

static void move_tensors(const CommSchedule *schedule, const Layout *layout, Graph *graph) {
    for (int i = 1; i < graph->tensor_count; i++) {
        Tensor *tensor = &graph->tensors[i];
        if (tensor->arena != ARENA_WEIGHT && tensor->arena != ARENA_GRADIENT) continue;
        int b = layout_bucket_at(layout, graph_state_span(graph, i).begin);
        int64_t begin = layout->buckets[b].begin;
        int64_t in_bucket = tensor->offset - precision_weight_offset(graph->precision, begin);
        if (schedule->buckets[b].quantized) in_bucket /= (int64_t)precision_bytes(graph->precision, TYPE_COMPUTE);
        if (tensor->arena == ARENA_GRADIENT) {
            tensor->offset += schedule->buckets[b].gradients - begin;
            continue;
        }
        tensor->offset = schedule->buckets[b].weights + in_bucket;
        if (!layout->buckets[b].sharded && layout->stage >= 3) tensor->arena = layout_local_arena(layout, &layout->buckets[b]);
    }
}

void comm_schedule_place_packed(const CommSchedule *schedule, const Layout *layout, Graph *graph) {
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        int b = layout_bucket_at(layout, p->offset);
        if (!layout->buckets[b].packed_bytes) continue;
        graph->tensors[p->quantized].offset = schedule->buckets[b].weights + layout->packed[i].values;
        graph->tensors[p->scales].offset = schedule->buckets[b].weights + layout->packed[i].scales;
    }
}

/* -- Comm points --------------------------------------------------------------------------------------------------- */

static int by_offset(const void *a, const void *b) { return (*(const int *)a > *(const int *)b) - (*(const int *)a < *(const int *)b); }

/* Lists the comm points. Each point splits what a GPU has recorded, so with
 * optimizer.in_backward a single process has only the points that its updates need. */
static void list_points(CommSchedule *schedule, const Layout *layout) {
    int count = 0, *points = schedule->points = memory_allocate((layout->bucket_count * (BUCKET_PASSES + 3) + 1) * sizeof *points);
    for (int b = 0; b < layout->bucket_count; b++) {
        const BucketTimes *times = &schedule->buckets[b];
        bool sharded = layout->buckets[b].sharded;
        for (int pass = 0; pass < BUCKET_PASSES && sharded; pass++) {
            if (span_is_empty(times->reads[pass])) continue;
            points[count++] = times->reads[pass].first;
            if (layout->stage < 3) break; /* the weights stay gathered */
        }
        if (span_is_empty(times->writes)) continue;
        bool all = !layout->in_backward;
        if (comm_schedule_has_slot(layout, b) && (all || times->adds)) points[count++] = times->writes.first;
        if (all || is_reduced(layout, b)) points[count++] = times->writes.last + 1;
        if (times->update >= 0) points[count++] = times->update;
    }
    qsort(points, count, sizeof *points, by_offset);
    for (int i = 0; i < count; i++)
        if (i == 0 || points[i] != points[i - 1]) points[schedule->point_count++] = points[i];
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

CommSchedule *comm_schedule_create(const Layout *layout, Graph *graph) {
    CommSchedule *schedule = memory_allocate(sizeof *schedule);
    schedule->buckets = memory_allocate((layout->bucket_count + 1) * sizeof *schedule->buckets);
    note_all(schedule, layout, graph);
    note_overwrites(schedule, layout, graph);
    if (layout->in_backward && graph->training) list_updates(schedule, layout, graph);
    list_gatherings(schedule, layout, graph);
    place_slots(schedule, layout, graph->precision);
    move_tensors(schedule, layout, graph);
    list_points(schedule, layout);
    return schedule;
}

void comm_schedule_free(CommSchedule *schedule) {
    if (!schedule) return;
    free(schedule->buckets);
    free(schedule->gatherings);
    free(schedule->points);
    free(schedule);
}
