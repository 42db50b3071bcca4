/* Cuts the parameters into buckets and the buckets into shards, and moves the parameters of graphs
 * to the layout's offsets. Owns the lists of the layout. Called by session_plan, for a plan of any
 * rank. */
#include "layout/layout.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/math.h"
#include "base/scope.h"

typedef enum Class { CLASS_VECTOR, CLASS_ELEMENTS, CLASS_MATRICES, CLASS_FROZEN, CLASS_QUANTIZED, CLASS_COUNT } Class;

static Class class_of(const Graph *graph, const OptimizerConfig *optimizer, const Parameter *p) {
    if (graph_get(graph, p->tensor)->arena == ARENA_MASTER) return CLASS_VECTOR;
    if (p->frozen) return p->quantization ? CLASS_QUANTIZED : CLASS_FROZEN;
    return optimizer_takes_matrices(optimizer, p) ? CLASS_MATRICES : CLASS_ELEMENTS;
}

/* -- Layers -------------------------------------------------------------------------------------------------------- */

/* Returns the parameter at an offset in MASTER. */
static int parameter_at(const Graph *graph, int64_t offset) {
    int i = graph->parameter_count - 1;
    while (i > 0 && graph->parameters[i].offset > offset) i--;
    return i;
}

/* Returns the layer of the first node that reads each parameter, for the caller to free. If this
 * rank has no part of a parameter, the parameter gets the layer of its predecessor, as on the other
 * ranks. The parameters are still in the order of their declaration. */
static int *layers_of(const Graph *graph) {
    int *layers = memory_allocate((graph->parameter_count + 1) * sizeof *layers);
    SCOPED_FREE bool *seen = memory_allocate(graph->parameter_count + 1);
    for (int i = 0; i < graph->node_count; i++)
        for (int j = 0; j < graph->nodes[i].inputs; j++) {
            TensorId tensor = graph->nodes[i].in[j];
            if (!graph_is_parameter(graph, tensor)) continue;
            ByteSpan span = graph_state_span(graph, tensor);
            for (int k = parameter_at(graph, span.begin); k < graph->parameter_count && graph->parameters[k].offset < span.end; k++) {
                if (!seen[k]) layers[k] = graph->nodes[i].layer;
                seen[k] = true;
            }
        }
    for (int k = 1; k < graph->parameter_count; k++)
        if (!seen[k]) layers[k] = layers[k - 1];
    return layers;
}

/* -- Buckets ------------------------------------------------------------------------------------------------------- */

typedef struct Cutting {
    Layout *layout;
    Graph *graph;
    const OptimizerConfig *optimizer;
    int64_t bucket_bytes, alignment;
    const int *layers; /* per parameter */
} Cutting;

/* Returns whether a bucket that has reached `end` closes before the parameter `next`. */
static bool closes(const Cutting *cutting, const LayoutBucket *bucket, int64_t end, int previous, int next) {
    const Parameter *a = &cutting->graph->parameters[previous], *b = &cutting->graph->parameters[next];
    if (b->fused) return false;
    if (a->ends || b->ends) return true;
    if ((a->kind == PARAMETER_EMBEDDING) != (b->kind == PARAMETER_EMBEDDING)) return true; /* they are ready at different times */
    if (cutting->layout->stage == 3 && bucket->sharded && cutting->layers[previous] != cutting->layers[next]) return true;
    return end - bucket->begin + b->count * b->element_bytes > cutting->bucket_bytes;
}

/* Returns whether sharded buckets of a class have equal shards. */
static bool cuts_evenly(Class class) { return class == CLASS_ELEMENTS || class == CLASS_FROZEN; }

static LayoutBucket *open_bucket(Layout *layout, int64_t begin, Class class, MeshAxes axes, const Parameter *first) {
    MeshAxes sharing = axes & ~MESH(AXIS_REPLICA);
    bool whole = class == CLASS_VECTOR || (class >= CLASS_FROZEN && layout->stage < 3);
    LayoutBucket bucket = {.begin = begin,
        .end = begin,
        .element_bytes = first->element_bytes,
        .coded = first->coded,
        .ends = first->ends,
        .vectors = class == CLASS_VECTOR,
        .sharded = layout->stage && !whole && mesh_size(layout->mesh, sharing) > 1,
        .frozen = class >= CLASS_FROZEN,
        .axes = axes,
        .size = mesh_size(layout->mesh, sharing),
        .rank = mesh_index(layout->mesh, sharing)};
    array_append(layout->buckets, layout->bucket_count, bucket);
    return &layout->buckets[layout->bucket_count - 1];
}

static void close_bucket(Layout *layout, LayoutBucket *bucket, int64_t multiple) {
    layout->bytes = bucket->end = bucket->begin + round_up(layout->bytes - bucket->begin, multiple);
}

/* Places the parameters of a class from layout->bytes on: the ones with gradients summed over
 * `axes` and with this value of `coded`. */
static void cut_class(Cutting *cutting, Class class, MeshAxes axes, bool coded) {
    Layout *layout = cutting->layout;
    const Graph *graph = cutting->graph;
    int64_t alignment = cutting->alignment, multiple = alignment;
    if (layout->stage && cuts_evenly(class)) multiple *= mesh_size(layout->mesh, axes & ~MESH(AXIS_REPLICA));
    LayoutBucket *bucket = NULL;
    int previous = -1;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (class_of(graph, cutting->optimizer, p) != class || parameter_sum_axes(p) != axes || p->coded != coded) continue;
        if (!bucket || closes(cutting, bucket, layout->bytes, previous, i)) {
            if (bucket) close_bucket(layout, bucket, multiple);
            bucket = open_bucket(layout, round_up(layout->bytes, alignment), class, axes, p);
            layout->bytes = bucket->begin;
        }
        assert(p->element_bytes == bucket->element_bytes && (!p->fused || previous == i - 1));
        if (!p->fused) layout->bytes = round_up(layout->bytes, alignment);
        layout->offsets[i] = layout->bytes;
        layout->bytes += p->count * p->element_bytes;
        previous = i;
    }
    if (bucket) close_bucket(layout, bucket, multiple);
}

/* -- Shards of buckets of elements ---------------------------------------------------------------------------------- */

static void cut_evenly(LayoutBucket *bucket) {
    int64_t elements = (bucket->end - bucket->begin) / bucket->element_bytes;
    assert(elements % bucket->size == 0);
    for (int r = 0; r <= bucket->size; r++) bucket->shards[r] = elements / bucket->size * r;
}

/* -- Shards of packed buckets -------------------------------------------------------------------------------------- */

enum { PACKED_ALIGNMENT = 256 }; /* of quantized values, scales and shards, as of tensors outside the parameters' arenas */

/* Places the matrices of a packed bucket, and cuts it into shards. */
static void pack_bucket(const Cutting *cutting, LayoutBucket *bucket) {
    Layout *layout = cutting->layout;
    int64_t end = 0;
    for (int i = 0; i < cutting->graph->parameter_count; i++) {
        const Parameter *p = &cutting->graph->parameters[i];
        if (layout->offsets[i] < bucket->begin || layout->offsets[i] >= bucket->end || !p->quantization) continue;
        layout->packed[i].values = end;
        layout->packed[i].scales = end + round_up(graph_bytes(cutting->graph, p->quantized), PACKED_ALIGNMENT);
        end = layout->packed[i].scales + round_up(graph_bytes(cutting->graph, p->scales), PACKED_ALIGNMENT);
    }
    bucket->packed_bytes = round_up(end, PACKED_ALIGNMENT * bucket->size);
    for (int r = 0; r <= bucket->size; r++) bucket->shards[r] = bucket->packed_bytes / bucket->size * r;
}

/* -- Shards of Muon's buckets --------------------------------------------------------------------------------------- */

/* A matrix, or a rank's slice of it: its first element in the bucket and its cost for the rank.
 * Each Muon iteration has two GEMMs with the smaller side squared, so the cost is proportional to
 * rows x columns x the smaller side. The ranks that hold slices of one matrix work on it together
 * (optim/muon.c) and have equal costs. */
typedef struct Atom {
    int64_t first;
    double cost;
} Atom;

/* Returns the matrices of a bucket, for the caller to free. */
static Atom *list_atoms(const Cutting *cutting, const LayoutBucket *bucket, int *count) {
    Atom *atoms = NULL;
    *count = 0;
    for (int i = 0; i < cutting->graph->parameter_count; i++) {
        const Parameter *p = &cutting->graph->parameters[i];
        int64_t offset = cutting->layout->offsets[i];
        if (offset < bucket->begin || offset >= bucket->end) continue;
        for (int64_t k = 0; k < optimizer_matrices(p); k++) {
            MuonMatrix m = optimizer_matrix(cutting->layout->mesh, p, k);
            int sharers = m.held < m.rows * m.columns ? mesh_size(cutting->layout->mesh, p->cut.axes) : 1;
            array_append(atoms, *count,
                (Atom){.first = (offset - bucket->begin) / p->element_bytes + m.first,
                    .cost = (double)m.rows * m.columns * int_min(m.rows, m.columns) / sharers});
        }
    }
    return atoms;
}

/* Assigns matrices in order to ranks in order; each rank takes as many as keep its load within
 * `limit`. Returns the number assigned; ends[r] is one past rank r's last matrix. */
static int give(const Atom *atoms, int count, const double *load, int size, double limit, int *ends) {
    int given = 0;
    for (int r = 0; r < size; r++) {
        double sum = load[r];
        while (given < count && sum + atoms[given].cost <= limit) sum += atoms[given++].cost;
        ends[r] = given;
    }
    return given;
}

/* Bisects for the smallest limit, to within a thousandth. Adds the bucket's costs to `load`. */
static void cut_by_matrices(const Cutting *cutting, LayoutBucket *bucket, double *load) {
    int size = bucket->size, count;
    SCOPED_FREE int *ends = memory_allocate(size * sizeof *ends);
    SCOPED_FREE Atom *atoms = list_atoms(cutting, bucket, &count);
    double low = 0, high = 0;
    for (int i = 0; i < count; i++) high += atoms[i].cost;
    for (int r = 0; r < size; r++) low = load[r] > low ? load[r] : low;
    for (high += low, low = 0; high - low > 1e-3 * high;) {
        double middle = (low + high) / 2;
        if (give(atoms, count, load, size, middle, ends) == count) high = middle;
        else low = middle;
    }
    give(atoms, count, load, size, high, ends);
    for (int r = 0, first = 0; r < size; first = ends[r++]) {
        bucket->shards[r + 1] = ends[r] < count ? atoms[ends[r]].first : (bucket->end - bucket->begin) / bucket->element_bytes;
        for (int i = first; i < ends[r]; i++) load[r] += atoms[i].cost;
    }
}

/* -- What this rank holds ------------------------------------------------------------------------------------------ */

/* Places the shard of a bucket after `end`; returns its end. */
static int64_t place_shard(LayoutBucket *bucket, int64_t end, int64_t alignment) {
    ByteSpan shard = layout_bucket_shard(bucket);
    bucket->local = round_up(end, alignment) + shard.begin % alignment;
    return shard.begin < shard.end ? bucket->local + shard.end - shard.begin : end;
}

/* Places the shard of a packed bucket; returns its end. */
static int64_t place_packed(LayoutBucket *bucket, int64_t end) {
    bucket->local = end;
    return end + bucket->packed_bytes / bucket->size;
}

/* Buckets of frozen matrices follow all others. In stage 3 their shards follow those of trained weights
 * in WEIGHT. */
static void place_local(Layout *layout, int64_t alignment) {
    LayoutBucket *bucket = layout->buckets, *last = layout->buckets + layout->bucket_count;
    int64_t end = 0;
    for (; bucket < last && !bucket->frozen; bucket++) {
        end = place_shard(bucket, end, alignment);
        if (bucket->vectors) layout->shard.offload.resident = round_up(end, alignment);
    }
    layout->shard.bytes = round_up(end, alignment);
    if (layout->stage < 3) return;
    end = layout->gathers_masters ? 0 : layout->shard.bytes;
    for (; bucket < last && !bucket->packed_bytes; bucket++) end = place_shard(bucket, end, alignment);
    layout->local_weights = round_up(end, alignment);
    for (; bucket < last; bucket++) layout->local_packed = place_packed(bucket, layout->local_packed);
}

static void append_intervals(Layout *layout, const Graph *graph, int b) {
    const LayoutBucket *bucket = &layout->buckets[b];
    ByteSpan held = layout_bucket_shard(bucket);
    MeshAxes copies = bucket->sharded ? bucket->axes & MESH(AXIS_REPLICA) : bucket->axes;
    bool second_end = bucket->ends && layout->mesh->at[AXIS_PP] > 0;
    OptimizerShard *shard = &layout->shard;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        int64_t parameter_end = p->offset + p->count * p->element_bytes;
        int64_t begin = int_max(p->offset, held.begin), end = int_min(parameter_end, held.end);
        if (begin >= end || p->frozen) continue;
        assert((begin - p->offset) % p->element_bytes == 0 && (end - begin) % p->element_bytes == 0);
        ShardInterval interval = {.elements = {i, (begin - p->offset) / p->element_bytes, (end - begin) / p->element_bytes},
            .offset = bucket->local + begin - held.begin,
            .bucket = b,
            .holders = mesh_size(layout->mesh, copies) * (bucket->ends ? 2 : 1),
            .holder = mesh_index(layout->mesh, copies) + (second_end ? mesh_size(layout->mesh, copies) : 0)};
        array_append(shard->intervals, shard->interval_count, interval);
    }
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

/* Returns the maximum over the mean; 0 if all loads are zero. */
static double balance_of(const double *load, int size) {
    double most = 0, sum = 0;
    for (int r = 0; r < size; r++) {
        most = load[r] > most ? load[r] : most;
        sum += load[r];
    }
    return sum > 0 ? most * size / sum : 0;
}

/* Places the parameters of a class whose gradients are summed over `axes`. Coded parameters get
 * separate buckets. */
static void cut_group(Cutting *cutting, Class class, MeshAxes axes) {
    Layout *layout = cutting->layout;
    int first = layout->bucket_count, size = mesh_size(layout->mesh, axes & ~MESH(AXIS_REPLICA));
    SCOPED_FREE double *load = memory_allocate(size * sizeof *load);
    cut_class(cutting, class, axes, false);
    cut_class(cutting, class, axes, true);
    for (int b = first; b < layout->bucket_count && layout->buckets[b].sharded; b++) {
        layout->buckets[b].shards = memory_allocate((size + 1) * sizeof(int64_t));
        if (class == CLASS_QUANTIZED) pack_bucket(cutting, &layout->buckets[b]);
        else if (cuts_evenly(class)) cut_evenly(&layout->buckets[b]);
        else cut_by_matrices(cutting, &layout->buckets[b], load);
    }
    layout->muon_balance = fmax(layout->muon_balance, balance_of(load, size));
}

static void cut(Cutting *cutting) {
    const Graph *graph = cutting->graph;
    for (Class class = CLASS_VECTOR; class < CLASS_COUNT; class++) {
        bool done[AXES_ALL + 1] = {false};
        if (class == CLASS_FROZEN) cutting->layout->trained_bytes = cutting->layout->bytes;
        if (class == CLASS_QUANTIZED) cutting->layout->stored_bytes = cutting->layout->bytes;
        for (int i = 0; i < graph->parameter_count; i++) {
            MeshAxes axes = parameter_sum_axes(&graph->parameters[i]);
            if (class_of(graph, cutting->optimizer, &graph->parameters[i]) != class || done[axes]) continue;
            done[axes] = true;
            cut_group(cutting, class, axes);
        }
    }
}

Layout layout_empty(const Mesh *mesh, const OptimizerConfig *optimizer, const LayoutConfig *config, Precision precision) {
    int stage = mesh_size(mesh, AXES_ALL & ~MESH(AXIS_REPLICA) & ~MESH(AXIS_PP)) > 1 ? (int)config->zero : 0;
    bool reduces = mesh_size(mesh, AXES_ALL) > 1 && config->reduce == REDUCE_BF16,
         sums = !optimizer->in_backward && mesh->size[AXIS_PP] == 1;
    return (Layout){.mesh = mesh,
        .stage = stage,
        .in_backward = optimizer->in_backward,
        .gathers_masters = stage >= 3 && precision != PRECISION_BF16,
        .reduces_in_bf16 = reduces && precision_state_bytes(precision, TYPE_COMPUTE) == 4,
        .shard = {.local_weights = stage >= 3, .local_gradients = stage >= 2 && sums}};
}

Layout *layout_create(Graph *graph, const OptimizerConfig *optimizer, const LayoutConfig *config, int64_t bucket_bytes) {
    Layout *layout = memory_allocate(sizeof *layout);
    *layout = layout_empty(graph->mesh, optimizer, config, graph->precision);
    SCOPED_FREE int *layers = layers_of(graph);
    layout->offsets = memory_allocate((graph->parameter_count + 1) * sizeof *layout->offsets);
    layout->packed = memory_allocate((graph->parameter_count + 1) * sizeof *layout->packed);
    Cutting cutting = {.layout = layout,
        .graph = graph,
        .optimizer = optimizer,
        .layers = layers,
        .bucket_bytes = bucket_bytes,
        .alignment = precision_alignment(graph->precision)};
    cut(&cutting);
    layout_place(layout, graph);
    place_local(layout, cutting.alignment);
    layout->shard.bucket_count = layout->bucket_count;
    for (int b = 0; b < layout->bucket_count; b++) append_intervals(layout, graph, b);
    return layout;
}

void layout_offload(Layout *layout, Precision precision, int64_t portion_bytes) {
    layout->shard.offload.portion_bytes = portion_bytes;
    layout->shard.offload.masters = (layout->stage || precision == PRECISION_BF16) && !layout->gathers_masters;
}

void layout_free(Layout *layout) {
    if (!layout) return;
    for (int b = 0; b < layout->bucket_count; b++) free(layout->buckets[b].shards);
    free(layout->buckets);
    free(layout->shard.intervals);
    free(layout->offsets);
    free(layout->packed);
    free(layout);
}

void layout_place(const Layout *layout, Graph *graph) {
    for (int i = 1; i < graph->tensor_count; i++) {
        Tensor *tensor = &graph->tensors[i];
        if (tensor->arena != ARENA_WEIGHT && tensor->arena != ARENA_MASTER && tensor->arena != ARENA_GRADIENT) continue;
        int64_t begin = graph_state_span(graph, i).begin;
        int parameter = parameter_at(graph, begin);
        begin += layout->offsets[parameter] - graph->parameters[parameter].offset;
        tensor->offset = tensor->arena == ARENA_WEIGHT ? precision_weight_offset(graph->precision, begin) : begin;
    }
    for (int i = 0; i < graph->parameter_count; i++) graph->parameters[i].offset = layout->offsets[i];
    graph->trained_bytes = layout->trained_bytes;
    graph->stored_bytes = layout->stored_bytes;
    graph->parameter_bytes = layout->bytes;
}
