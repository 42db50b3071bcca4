/* A shard may be cut anywhere, so it has pieces of matrices, each with the amax of its matrix.
 * Memory on the device: one float per piece, and one float for a scale that is never read, because
 * the program computes it again. */
#include "layout/weight_codes_internal.h"

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

/* `count` elements of a matrix that are in this rank's shard; offsets are in the WEIGHT arena. */
typedef struct CodesPiece {
    int bucket;
    int64_t local, slot, count;
    int weight;
    int64_t matrix; /* of the weight */
} CodesPiece;

struct WeightCodes {
    Executor *executor;
    const Mesh *mesh;
    Weight *weights;
    CodesPiece *pieces;
    int weight_count, piece_count;
    int64_t count;  /* matrices of all weights */
    float *largest; /* [count]: amax of the current weights */
    float *found;   /* on the device: [piece_count], then a scale */
};

/* -- Pieces -------------------------------------------------------------------------------------------------------- */

static int codes_bucket(const Layout *layout, int64_t offset) {
    int b = layout->bucket_count - 1;
    while (b > 0 && layout->buckets[b].begin > offset) b--;
    return b;
}

/* Adds this rank's part of a matrix that begins at `begin` of MASTER. */
static void add_piece(WeightCodes *codes, const Layout *layout, const CommSchedule *schedule, int b, Precision precision, int64_t begin,
    int64_t elements, int64_t matrix) {
    const LayoutBucket *bucket = &layout->buckets[b];
    ByteSpan shard = layout_bucket_shard(bucket);
    int64_t first = int_max(begin, shard.begin), end = int_min(begin + elements * bucket->element_bytes, shard.end);
    if (first >= end) return;
    CodesPiece piece = {.bucket = b,
        .local = precision_weight_offset(precision, bucket->local + first - shard.begin),
        .slot = schedule->buckets[b].weights + (first - bucket->begin) / bucket->element_bytes,
        .count = (end - first) / bucket->element_bytes,
        .weight = codes->weight_count - 1,
        .matrix = matrix};
    array_append(codes->pieces, codes->piece_count, piece);
}

static void add_weight(
    WeightCodes *codes, const Layout *layout, const CommSchedule *schedule, const Graph *graph, const Fp8Operand *operand) {
    const Tensor *w = graph_get(graph, operand->weight);
    const Parameter *p = &graph->parameters[graph_find_parameter(graph, w->name)];
    Fp8Stack stack = fp8_stack(w->shape, w->rank);
    int b = codes_bucket(layout, p->offset);
    int64_t elements = stack.rows * stack.columns;
    assert(schedule->buckets[b].codes);
    Weight weight = {operand->amax, operand->found, stack.count, codes->count, layout->buckets[b].axes & ~MESH(AXIS_REPLICA)};
    array_append(codes->weights, codes->weight_count, weight);
    codes->count += stack.count;
    for (int64_t i = 0; i < stack.count; i++)
        add_piece(codes, layout, schedule, b, graph->precision, p->offset + i * elements * p->element_bytes, elements, i);
}

static WeightCodes *list_weights(const Layout *layout, const CommSchedule *schedule, const Graph *graph) {
    WeightCodes *codes = memory_allocate(sizeof *codes);
    int count = fp8_operands(graph, NULL);
    SCOPED_FREE Fp8Operand *operands = memory_allocate((size_t)(count + 1) * sizeof *operands);
    fp8_operands(graph, operands);
    codes->mesh = layout->mesh;
    for (int i = 0; i < count; i++)
        if (operands[i].found) add_weight(codes, layout, schedule, graph, &operands[i]);
    if (codes->weight_count) return codes;
    weight_codes_free(codes);
    return NULL;
}

static int64_t found_bytes(const WeightCodes *codes) { return (codes->piece_count + 1) * (int64_t)sizeof *codes->found; }

int64_t weight_codes_bytes(const Layout *layout, const CommSchedule *schedule, const Graph *graph) {
    WeightCodes *codes = list_weights(layout, schedule, graph);
    int64_t bytes = codes ? found_bytes(codes) : 0;
    weight_codes_free(codes);
    return bytes;
}

WeightCodes *weight_codes_create(const Layout *layout, const CommSchedule *schedule, Executor *executor, Error *error) {
    WeightCodes *codes = list_weights(layout, schedule, executor_graph(executor));
    if (!codes) return NULL;
    codes->executor = executor;
    codes->largest = memory_allocate((size_t)codes->count * sizeof *codes->largest);
    codes->found = device_allocate(executor_backend(executor)->device, found_bytes(codes), error);
    if (codes->found) return codes;
    weight_codes_free(codes);
    return NULL;
}

void weight_codes_free(WeightCodes *codes) {
    if (!codes) return;
    if (codes->found) device_free(executor_backend(codes->executor)->device, codes->found, found_bytes(codes));
    free(codes->weights);
    free(codes->pieces);
    free(codes->largest);
    free(codes);
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

static char *weight_arena(const WeightCodes *codes) { return executor_arena(codes->executor, ARENA_WEIGHT); }

/* Takes the maximum amax over the ranks that share the weights with these axes. Nonnegative floats
 * are ordered like their bits. */
static bool agree(const WeightCodes *codes, MeshAxes axes, int64_t *bits, Error *error) {
    SCOPED_FREE int64_t *shared = memory_allocate((size_t)codes->count * sizeof *shared);
    int64_t count = 0;
    for (int take = 0; take < 2; take++) {
        if (take && !comm_host_all_reduce(mesh_group(codes->mesh, axes), "magnitudes of weights", shared, count, COMM_I64, COMM_MAX, error))
            return false;
        count = 0;
        for (int i = 0; i < codes->weight_count; i++)
            for (int64_t j = 0; j < codes->weights[i].matrices && codes->weights[i].axes == axes; j++) {
                int64_t *value = &bits[codes->weights[i].at + j];
                if (take) *value = shared[count++];
                else shared[count++] = *value;
            }
    }
    return true;
}

bool weight_codes_find(WeightCodes *codes, Error *error) {
    if (!codes) return true;
    const Backend *backend = executor_backend(codes->executor);
    SCOPED_FREE float *found = memory_allocate((size_t)found_bytes(codes));
    SCOPED_FREE int64_t *bits = memory_allocate((size_t)codes->count * sizeof *bits);
    bool done[AXES_ALL + 1] = {false}, good = true;
    for (int i = 0; i < codes->piece_count; i++)
        fp8_amax_run(backend, weight_arena(codes) + codes->pieces[i].local, codes->pieces[i].count, codes->found + i);
    device_download(backend->device, found, codes->found, found_bytes(codes));
    for (int i = 0; i < codes->piece_count; i++) {
        int64_t *most = &bits[codes->weights[codes->pieces[i].weight].at + codes->pieces[i].matrix];
        *most = int_max(*most, float_to_bits(found[i]));
    }
    for (int i = 0; i < codes->weight_count && good; i++) {
        MeshAxes axes = codes->weights[i].axes;
        good = done[axes] || agree(codes, axes, bits, error);
        done[axes] = true;
    }
    for (int64_t i = 0; i < codes->count; i++) codes->largest[i] = float_from_bits((uint32_t)bits[i]);
    return good && device_ok(backend->device, error);
}

void weight_codes_put(const WeightCodes *codes) {
    for (int i = 0; codes && i < codes->weight_count; i++) {
        const Weight *weight = &codes->weights[i];
        float *to = executor_tensor(codes->executor, weight->found);
        for (int64_t j = 0; j < weight->matrices; j++) to[j] = codes->largest[weight->at + j];
    }
}

void weight_codes_cast(const WeightCodes *codes, int bucket) {
    for (int i = 0; i < codes->piece_count; i++) {
        const CodesPiece *piece = &codes->pieces[i];
        if (piece->bucket != bucket) continue;
        const float *amax = executor_device_tensor(codes->executor, codes->weights[piece->weight].amax);
        fp8_cast_run(executor_backend(codes->executor), weight_arena(codes) + piece->local, piece->count, amax + piece->matrix,
            weight_arena(codes) + piece->slot, codes->found + codes->piece_count);
    }
}
