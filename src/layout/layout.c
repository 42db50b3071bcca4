/* Cutting the parameters into buckets and these into pieces, and moving the parameters of graphs to where the layout has them. Owns the lists of the
 * layout. Called by session_plan, for a plan of any rank. */
#include "layout/layout.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

typedef enum Class { CLASS_VECTOR, CLASS_ADAMW, CLASS_MUON, CLASS_FROZEN, CLASS_COUNT } Class;

static int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

static Class class_of(const Graph *graph, const OptimizerConfig *optimizer, const Parameter *p) {
    if (graph_get(graph, p->tensor)->arena == ARENA_MASTER) return CLASS_VECTOR;
    if (p->frozen) return CLASS_FROZEN;
    return optimizer_uses_muon(optimizer, p) ? CLASS_MUON : CLASS_ADAMW;
}

/* -- Layers -------------------------------------------------------------------------------------------------------- */

/* The parameter that an offset of the arenas lies in. */
static int parameter_at(const Graph *graph, int64_t offset) {
    int low = 0, high = graph->parameter_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (graph->parameters[middle].offset <= offset) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* The layer of the first node that reads each parameter, for the caller to free. The parameters are still in the order of their declaration. */
static int *layers_of(const Graph *graph) {
    int *layers = memory_allocate((graph->parameter_count + 1) * sizeof *layers);
    bool *seen = memory_allocate(graph->parameter_count + 1);
    for (int i = 0; i < graph->node_count; i++)
        for (int j = 0; j < graph->nodes[i].inputs; j++) {
            TensorId tensor = graph->nodes[i].in[j];
            if (!graph_is_parameter(graph, tensor)) continue;
            int64_t begin = graph_get(graph, tensor)->offset, end = begin + graph_units(graph, tensor);
            for (int k = parameter_at(graph, begin); k < graph->parameter_count && graph->parameters[k].offset < end; k++) {
                if (!seen[k]) layers[k] = graph->nodes[i].layer;
                seen[k] = true;
            }
        }
    free(seen);
    return layers;
}

/* -- Buckets ------------------------------------------------------------------------------------------------------- */

typedef struct Cutting {
    Layout *layout;
    Graph *graph;
    const OptimizerConfig *optimizer;
    int64_t bucket_units;
    const int *layers;
    int64_t *offsets; /* per parameter: where it goes */
} Cutting;

/* Whether a bucket that has reached `end` closes before the parameter. */
static bool closes(const Cutting *cutting, const LayoutBucket *bucket, int64_t end, int previous, int next) {
    const Parameter *a = &cutting->graph->parameters[previous], *b = &cutting->graph->parameters[next];
    if (b->fused) return false;
    if ((a->kind == PARAMETER_EMBEDDING) != (b->kind == PARAMETER_EMBEDDING)) return true; /* they are ready at other times */
    if (cutting->layout->stage == 3 && bucket->sharded && cutting->layers[previous] != cutting->layers[next]) return true;
    return end - bucket->begin + b->count * b->width > cutting->bucket_units;
}

static LayoutBucket *open_bucket(Layout *layout, int64_t begin, Class class) {
    layout->buckets = memory_resize(layout->buckets, (layout->bucket_count + 1) * sizeof *layout->buckets);
    bool whole = class == CLASS_VECTOR || class == CLASS_FROZEN;
    layout->buckets[layout->bucket_count] = (LayoutBucket){.begin = begin,
        .end = begin,
        .vectors = class == CLASS_VECTOR,
        .sharded = layout->stage && !whole,
        .frozen = class == CLASS_FROZEN};
    return &layout->buckets[layout->bucket_count++];
}

/* Places the parameters of a class from layout->extent on. */
static void cut_class(Cutting *cutting, Class class) {
    Layout *layout = cutting->layout;
    const Graph *graph = cutting->graph;
    int64_t unit = layout->stage && class == CLASS_ADAMW ? (int64_t)LAYOUT_ALIGNMENT * layout->size : LAYOUT_ALIGNMENT;
    LayoutBucket *bucket = NULL;
    int previous = -1;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (class_of(graph, cutting->optimizer, p) != class) continue;
        if (!bucket || closes(cutting, bucket, layout->extent, previous, i)) {
            layout->extent = round_up(layout->extent, LAYOUT_ALIGNMENT);
            if (bucket) layout->extent = bucket->end = bucket->begin + round_up(layout->extent - bucket->begin, unit);
            bucket = open_bucket(layout, layout->extent, class);
        }
        assert(!p->fused || previous == i - 1);
        if (!p->fused) layout->extent = round_up(layout->extent, LAYOUT_ALIGNMENT);
        cutting->offsets[i] = layout->extent;
        layout->extent += p->count * p->width;
        previous = i;
    }
    if (bucket) layout->extent = bucket->end = bucket->begin + round_up(layout->extent - bucket->begin, unit);
}

/* -- Pieces of AdamW's buckets ------------------------------------------------------------------------------------- */

static void cut_evenly(const Layout *layout, LayoutBucket *bucket) {
    int64_t piece = (bucket->end - bucket->begin) / layout->size;
    for (int r = 0; r <= layout->size; r++) bucket->pieces[r] = r * piece;
}

/* -- Pieces of Muon's buckets --------------------------------------------------------------------------------------- */

/* What a matrix costs its rank: two products with its smaller side squared for each iteration, which is rows x columns x order. */
typedef struct Atom {
    int64_t begin;
    double cost;
} Atom;

/* The matrices of a bucket, for the caller to free. */
static Atom *list_atoms(const Cutting *cutting, const LayoutBucket *bucket, int *count) {
    Atom *atoms = NULL;
    *count = 0;
    for (int i = 0; i < cutting->graph->parameter_count; i++) {
        const Parameter *p = &cutting->graph->parameters[i];
        if (cutting->offsets[i] < bucket->begin || cutting->offsets[i] >= bucket->end) continue;
        int64_t rows = p->shape[p->rank - 2], columns = p->shape[p->rank - 1], matrices = p->count / (rows * columns);
        atoms = memory_resize(atoms, (size_t)(*count + matrices) * sizeof *atoms);
        for (int64_t k = 0; k < matrices; k++)
            atoms[(*count)++] =
                (Atom){cutting->offsets[i] + k * rows * columns, (double)rows * columns * (rows < columns ? rows : columns)};
    }
    return atoms;
}

/* Gives matrices in order to ranks in order, each as much as keeps its load within `limit`. Returns how many were given; ends[r] is one past rank r's last. */
static int give(const Atom *atoms, int count, const double *load, int size, double limit, int *ends) {
    int given = 0;
    for (int r = 0; r < size; r++) {
        double sum = load[r];
        while (given < count && sum + atoms[given].cost <= limit) sum += atoms[given++].cost;
        ends[r] = given;
    }
    return given;
}

/* Finds the least limit to within a thousandth by bisection; `load` takes the bucket's in. */
static void cut_by_matrices(const Cutting *cutting, LayoutBucket *bucket, double *load) {
    int size = cutting->layout->size, count, *ends = memory_allocate(size * sizeof *ends);
    Atom *atoms = list_atoms(cutting, bucket, &count);
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
        bucket->pieces[r + 1] = (ends[r] < count ? atoms[ends[r]].begin : bucket->end) - bucket->begin;
        for (int i = first; i < ends[r]; i++) load[r] += atoms[i].cost;
    }
    free(atoms);
    free(ends);
}

/* -- What this rank holds ------------------------------------------------------------------------------------------ */

/* Pieces keep their distance from multiples of the alignment, so that vectors of elements stay aligned. */
static void place_local(Layout *layout) {
    for (int b = 0; b < layout->bucket_count && !layout->buckets[b].frozen; b++) {
        LayoutBucket *bucket = &layout->buckets[b];
        int64_t begin = layout_own_begin(layout, bucket), count = layout_own_end(layout, bucket) - begin;
        bucket->local = round_up(layout->local_extent, LAYOUT_ALIGNMENT) + begin % LAYOUT_ALIGNMENT;
        if (count) layout->local_extent = bucket->local + count;
    }
    layout->local_extent = round_up(layout->local_extent, LAYOUT_ALIGNMENT);
}

static void append_pieces(Layout *layout, const Graph *graph, int b) {
    const LayoutBucket *bucket = &layout->buckets[b];
    int64_t begin = layout_own_begin(layout, bucket), end = layout_own_end(layout, bucket);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        int64_t first = p->offset > begin ? p->offset : begin,
                last = p->offset + p->count * p->width < end ? p->offset + p->count * p->width : end;
        if (first >= last || p->frozen) continue;
        layout->pieces = memory_resize(layout->pieces, (layout->piece_count + 1) * sizeof *layout->pieces);
        layout->pieces[layout->piece_count++] = (OptimizerPiece){.parameter = i,
            .first = (first - p->offset) / p->width,
            .count = (last - first) / p->width,
            .local = bucket->local + first - begin,
            .bucket = b,
            .primary = layout->replica == 0 && (bucket->sharded || layout->rank == 0)};
    }
}

/* -- Life ---------------------------------------------------------------------------------------------------------- */

/* The most over the mean; 0 without any. */
static double balance_of(const double *load, int size) {
    double most = 0, sum = 0;
    for (int r = 0; r < size; r++) {
        most = load[r] > most ? load[r] : most;
        sum += load[r];
    }
    return sum > 0 ? most * size / sum : 0;
}

static void cut(Cutting *cutting) {
    Layout *layout = cutting->layout;
    double *load = memory_allocate(layout->size * sizeof *load);
    for (Class class = CLASS_VECTOR; class < CLASS_COUNT; class++) {
        int first = layout->bucket_count;
        if (class == CLASS_FROZEN) layout->trained = layout->extent;
        cut_class(cutting, class);
        for (int b = first; b < layout->bucket_count && layout->buckets[b].sharded; b++) {
            layout->buckets[b].pieces = memory_allocate((layout->size + 1) * sizeof(int64_t));
            if (class == CLASS_ADAMW) cut_evenly(layout, &layout->buckets[b]);
            else cut_by_matrices(cutting, &layout->buckets[b], load);
        }
    }
    layout->muon_balance = balance_of(load, layout->size);
    free(load);
}

static void move_parameters(Graph *graph, const int64_t *offsets, int64_t trained, int64_t extent) {
    for (int i = 1; i < graph->tensor_count; i++) {
        Tensor *tensor = &graph->tensors[i];
        if (tensor->arena != ARENA_WEIGHT && tensor->arena != ARENA_MASTER && tensor->arena != ARENA_GRADIENT) continue;
        int parameter = parameter_at(graph, tensor->offset);
        tensor->offset += offsets[parameter] - graph->parameters[parameter].offset;
    }
    for (int i = 0; i < graph->parameter_count; i++) graph->parameters[i].offset = offsets[i];
    graph->trained_extent = trained;
    graph->parameter_extent = extent;
}

Layout *layout_create(
    Graph *graph, const OptimizerConfig *optimizer, const LayoutConfig *config, int64_t bucket_bytes, int rank, int ranks) {
    Layout *layout = memory_allocate(sizeof *layout);
    int stage = ranks > 1 && config->shard != 1 ? (int)config->zero : 0, size = stage && config->shard ? (int)config->shard : ranks;
    assert(ranks % size == 0);
    *layout = (Layout){.rank = rank % size,
        .size = size,
        .replica = rank / size,
        .replicas = ranks / size,
        .stage = stage,
        .narrows = ranks > 1 && config->reduce == REDUCE_BF16 &&
                   precision_bytes(graph->precision, precision_state_type(graph->precision, TYPE_COMPUTE)) == 4};
    int *layers = layers_of(graph);
    layout->offsets = memory_allocate((graph->parameter_count + 1) * sizeof *layout->offsets);
    Cutting cutting = {.layout = layout,
        .graph = graph,
        .optimizer = optimizer,
        .layers = layers,
        .offsets = layout->offsets,
        .bucket_units = bucket_bytes / precision_unit(graph->precision)};
    cut(&cutting);
    free(layers);
    layout_place(layout, graph);
    place_local(layout);
    for (int b = 0; b < layout->bucket_count; b++) append_pieces(layout, graph, b);
    return layout;
}

void layout_free(Layout *layout) {
    if (!layout) return;
    for (int b = 0; b < layout->bucket_count; b++) free(layout->buckets[b].pieces);
    free(layout->buckets);
    free(layout->pieces);
    free(layout->offsets);
    free(layout);
}

void layout_place(const Layout *layout, Graph *graph) { move_parameters(graph, layout->offsets, layout->trained, layout->extent); }

OptimizerPart layout_part(const Layout *layout) {
    return (OptimizerPart){.pieces = layout->pieces,
        .piece_count = layout->piece_count,
        .bucket_count = layout->bucket_count,
        .extent = layout->local_extent,
        .local_weights = layout->stage >= 3,
        .local_gradients = layout->stage >= 2};
}
