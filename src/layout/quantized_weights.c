/* A shard may be cut anywhere, so it has pieces of matrices, each with the amax of its matrix.
 * Memory on the device: one float per piece, and one float for a scale that is never read, because
 * the program computes it again. */
#include "layout/quantized_weights_internal.h"

#include <assert.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/bf16.h"
#include "base/math.h"
#include "base/scope.h"
#include "ops/fp8/fp8.h"

/* A weight of one or more matrices. */
typedef struct Weight {
    TensorId amax, found; /* as in Fp8Operand */
    int64_t matrices, at; /* index of its first matrix among the matrices of all weights */
    MeshAxes axes;        /* of the ranks that shard it */
} Weight;

/* `count` elements of a matrix that are in this rank's shard. `local` is an offset in the arena
 * `shards`, `slot` in WEIGHT. */
typedef struct QuantizedPiece {
    int bucket;
    Arena shards;
    int64_t local, slot, count;
    int weight;
    int64_t matrix; /* of the weight */
} QuantizedPiece;

struct QuantizedWeights {
    Executor *executor;
    const Mesh *mesh;
    Weight *weights;
    QuantizedPiece *pieces;
    int weight_count, piece_count;
    int64_t count; /* matrices of all weights */
    float *amax;   /* [count]: amax of the current weights */
    float *found;  /* on the device: [piece_count], then a scale */
};

/* -- Pieces -------------------------------------------------------------------------------------------------------- */

/* Adds this rank's part of a matrix that begins at `begin` of MASTER. */
static void add_piece(QuantizedWeights *quantized, const Layout *layout, const CommSchedule *schedule, int b, Precision precision,
    int64_t begin, int64_t elements, int64_t matrix) {
    const LayoutBucket *bucket = &layout->buckets[b];
    ByteSpan shard = layout_bucket_shard(bucket);
    int64_t first = int_max(begin, shard.begin), end = int_min(begin + elements * bucket->element_bytes, shard.end);
    if (first >= end) return;
    QuantizedPiece piece = {.bucket = b,
        .shards = layout_local_arena(layout, bucket),
        .local = precision_weight_offset(precision, bucket->local + first - shard.begin),
        .slot = schedule->buckets[b].weights + (first - bucket->begin) / bucket->element_bytes,
        .count = (end - first) / bucket->element_bytes,
        .weight = quantized->weight_count - 1,
        .matrix = matrix};
    array_append(quantized->pieces, quantized->piece_count, piece);
}

static void add_weight(
    QuantizedWeights *quantized, const Layout *layout, const CommSchedule *schedule, const Graph *graph, const Fp8Operand *operand) {
    const Tensor *w = graph_get(graph, operand->weight);
    const Parameter *p = &graph->parameters[graph_find_parameter(graph, w->name)];
    Fp8Stack stack = fp8_stack(w->shape, w->rank);
    int b = layout_bucket_at(layout, p->offset);
    int64_t elements = stack.rows * stack.columns;
    assert(schedule->buckets[b].quantized);
    Weight weight = {operand->amax, operand->found, stack.count, quantized->count, layout->buckets[b].axes & ~MESH(AXIS_REPLICA)};
    array_append(quantized->weights, quantized->weight_count, weight);
    quantized->count += stack.count;
    for (int64_t i = 0; i < stack.count; i++)
        add_piece(quantized, layout, schedule, b, graph->precision, p->offset + i * elements * p->element_bytes, elements, i);
}

static QuantizedWeights *list_weights(const Layout *layout, const CommSchedule *schedule, const Graph *graph) {
    QuantizedWeights *quantized = memory_allocate(sizeof *quantized);
    int count = fp8_operands(graph, NULL);
    SCOPED_FREE Fp8Operand *operands = memory_allocate((size_t)(count + 1) * sizeof *operands);
    fp8_operands(graph, operands);
    quantized->mesh = layout->mesh;
    for (int i = 0; i < count; i++)
        if (operands[i].found) add_weight(quantized, layout, schedule, graph, &operands[i]);
    if (quantized->weight_count) return quantized;
    quantized_weights_free(quantized);
    return NULL;
}

static int64_t found_bytes(const QuantizedWeights *quantized) { return (quantized->piece_count + 1) * (int64_t)sizeof *quantized->found; }

int64_t quantized_weights_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph) {
    QuantizedWeights *quantized = list_weights(layout, schedule, graph);
    int64_t bytes = quantized ? found_bytes(quantized) : 0;
    quantized_weights_free(quantized);
    return bytes;
}

QuantizedWeights *quantized_weights_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error) {
    QuantizedWeights *quantized = list_weights(layout, schedule, executor_graph(executor));
    if (!quantized) return NULL;
    quantized->executor = executor;
    quantized->amax = memory_allocate((size_t)quantized->count * sizeof *quantized->amax);
    quantized->found = device_allocate(executor_backend(executor)->device, found_bytes(quantized), error);
    if (quantized->found) return quantized;
    quantized_weights_free(quantized);
    return NULL;
}

void quantized_weights_free(QuantizedWeights *quantized) {
    if (!quantized) return;
    if (quantized->found) device_free(executor_backend(quantized->executor)->device, quantized->found, found_bytes(quantized));
    free(quantized->weights);
    free(quantized->pieces);
    free(quantized->amax);
    free(quantized);
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

static char *local_piece(const QuantizedWeights *quantized, const QuantizedPiece *piece) {
    return (char *)executor_arena(quantized->executor, piece->shards) + piece->local;
}

/* Takes the maximum amax over the ranks that share the weights with these axes. Nonnegative floats
 * are ordered like their bits. */
static bool agree(const QuantizedWeights *quantized, MeshAxes axes, int64_t *bits, Error *error) {
    SCOPED_FREE int64_t *shared = memory_allocate((size_t)quantized->count * sizeof *shared);
    int64_t count = 0;
    for (int take = 0; take < 2; take++) {
        if (take && !comm_host_all_reduce(mesh_group(quantized->mesh, axes), "amax of weights", shared, count, COMM_I64, COMM_MAX, error))
            return false;
        count = 0;
        for (int i = 0; i < quantized->weight_count; i++)
            for (int64_t j = 0; j < quantized->weights[i].matrices && quantized->weights[i].axes == axes; j++) {
                int64_t *value = &bits[quantized->weights[i].at + j];
                if (take) *value = shared[count++];
                else shared[count++] = *value;
            }
    }
    return true;
}

bool quantized_weights_find_amax(QuantizedWeights *quantized, Error *error) {
    if (!quantized) return true;
    const Backend *backend = executor_backend(quantized->executor);
    SCOPED_FREE float *found = memory_allocate((size_t)found_bytes(quantized));
    SCOPED_FREE int64_t *bits = memory_allocate((size_t)quantized->count * sizeof *bits);
    bool done[AXES_ALL + 1] = {false}, good = true;
    for (int i = 0; i < quantized->piece_count; i++)
        fp8_amax_run(backend, local_piece(quantized, &quantized->pieces[i]), quantized->pieces[i].count, quantized->found + i);
    device_download(backend->device, found, quantized->found, found_bytes(quantized));
    for (int i = 0; i < quantized->piece_count; i++) {
        int64_t *most = &bits[quantized->weights[quantized->pieces[i].weight].at + quantized->pieces[i].matrix];
        *most = int_max(*most, float_to_bits(found[i]));
    }
    for (int i = 0; i < quantized->weight_count && good; i++) {
        MeshAxes axes = quantized->weights[i].axes;
        good = done[axes] || agree(quantized, axes, bits, error);
        done[axes] = true;
    }
    for (int64_t i = 0; i < quantized->count; i++) quantized->amax[i] = float_from_bits((uint32_t)bits[i]);
    return good && device_ok(backend->device, error);
}

void quantized_weights_put_amax(const QuantizedWeights *quantized) {
    for (int i = 0; quantized && i < quantized->weight_count; i++) {
        const Weight *weight = &quantized->weights[i];
        float *to = executor_tensor(quantized->executor, weight->found);
        for (int64_t j = 0; j < weight->matrices; j++) to[j] = quantized->amax[weight->at + j];
    }
}

void quantized_weights_cast(const QuantizedWeights *quantized, int bucket) {
    for (int i = 0; i < quantized->piece_count; i++) {
        const QuantizedPiece *piece = &quantized->pieces[i];
        if (piece->bucket != bucket) continue;
        const float *amax = executor_device_tensor(quantized->executor, quantized->weights[piece->weight].amax);
        char *slot = (char *)executor_arena(quantized->executor, ARENA_WEIGHT) + piece->slot;
        fp8_cast_run(executor_backend(quantized->executor), local_piece(quantized, piece), piece->count, amax + piece->matrix, slot,
            quantized->found + quantized->piece_count);
    }
}
