/* Queries, keys and values of one row in the kernel of their GEMM, as in generation. It applies
 * RoPE and writes keys and values to the row's place in the cache. This saves two small kernels per
 * layer, and a third if the norm before the GEMM joins (gemv.h). Without the norm the bits equal
 * those of the separate kernels, because the GEMM's results are rounded in between. Called by append_gpu.c; no scratch. */
#include "backend/gpu/gemv.h"
#include "ops/attention/append.h"
#include "ops/attention/block_cyclic.h"

typedef struct AttentionProjection {
    Gemv gemv;
    GLOBAL const float *bias;                     /* NULL: none */
    GLOBAL const float *angles;                   /* for each position, `half` cosines, then sines */
    GLOBAL const int32_t *positions, *first_rows; /* first_rows: as in Attention */
    GLOBAL bf16 *queries, *cache;
    int32_t half, rotated, kept; /* half a head; columns that RoPE rotates; columns of queries, before those of the cache */
    BlockCyclic cyclic;
} AttentionProjection;

#ifdef GPU_DEVICE

/* Computes the pairs of channels of a group, half a head apart. Without a norm the bits are those of
 * the GEMM, which rounds, and of rope. */
INLINE void project_group(const AttentionProjection *a, int32_t group, GemvStream *stream, GemvForm form) {
    int32_t column = first_of_group(group, a->half, form.lines) + thread_id(), position = a->positions[0];
    bool rotated = column < a->rotated, mine = thread_id() < form.lines / 2;
    float cosine = 1, sine = 0;
    if (mine && rotated) {
        GLOBAL const float *angles = a->angles + (int64_t)position * 2 * a->half + column % a->half;
        cosine = angles[0], sine = angles[a->half];
    }
    GemvPair pair = pair_of_sums(stream_next(stream, &a->gemv, group, a->half, form), form.lines);
    if (!mine) return;
    if (a->bias) pair.first += a->bias[column], pair.second += a->bias[column + a->half];
    float x = to_float(to_bf16(pair.first)), partner = to_float(to_bf16(pair.second));
    GLOBAL bf16 *to = a->queries + column;
    if (column >= a->kept) {
        if (!block_cyclic_has(a->cyclic, position)) return;
        int64_t first_row = a->first_rows ? *a->first_rows : 0;
        to = a->cache + (first_row + block_cyclic_rows(a->cyclic, position)) * (a->gemv.n - a->kept) + column - a->kept;
    }
    to[0] = to_bf16(rotated ? x * cosine - partner * sine : x);
    to[a->half] = to_bf16(rotated ? partner * cosine + x * sine : partner);
}

INLINE void project_row(const AttentionProjection *a, GemvForm form) {
    GemvStream stream = stream_begin(&a->gemv, a->half, form);
    FOR_GROUPS(group, &a->gemv) project_group(a, group, &stream, form);
}

#define PROJECT(name, end, form) \
    KERNEL(name##_##end, AttentionProjection) { project_row(&a, form); }
GEMV_FORMS(PROJECT, project)
GEMV_NORMED_FORMS(PROJECT, project)

#else

#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

LAUNCHERS(project, AttentionProjection, project_deep, project_4, project_8, project_normed_4, project_normed_8)

int attention_absorbs_projection(const Backend *backend, const Graph *graph, int index) {
    if (device_info(backend->device)->exact) return 0;
    const Node *node = &graph->nodes[index], *rope = node - 1, *linear = node - 2;
    const Heads *h = &((const AttentionSpec *)node->attributes)->heads;
    if (index < 2 || rope->op != OP_rope || !linear_is_row(graph, linear)) return 0;
    if (rope->out[ROPE_Y] != node->in[ATTENTION_QKV] || linear->out[LINEAR_Y] != rope->in[ROPE_X]) return 0;
    TensorId w = linear->in[LINEAR_W];
    bool halves =
             ((const RopeAttributes *)rope->attributes)->pairs == ROPE_HALVES && rope->in[ROPE_POSITIONS] == node->in[ATTENTION_POSITIONS],
         whole = graph_columns(graph, rope->in[ROPE_TABLE]) == h->qk_dim && h->qk_dim == h->v_dim && h->qk_dim % 8 == 0;
    if (!halves || !whole || !gemv_reads(graph_columns(graph, w), graph_get(graph, w)->offset)) return 0;
    return 2 + norm_leads_row(graph, index - 2, GEMV_HELD);
}

void attention_project(const OpCall *call) {
    const OpCall *rope = call - 1, *linear = call - 2;
    const Heads *h = &((const AttentionSpec *)call->attributes)->heads;
    const int64_t *w_shape = linear->in_shape[LINEAR_W];
    bool lasts = ((const LinearAttributes *)linear->attributes)->lasts;
    AttentionProjection projection = {.gemv = gemv_of(linear->in[LINEAR_X], linear->in[LINEAR_W], w_shape[0], w_shape[1], lasts),
        .bias = linear_has_bias(linear) ? linear->in[LINEAR_BIAS] : NULL,
        .angles = rope->in[ROPE_TABLE],
        .positions = rope->in[ROPE_POSITIONS],
        .first_rows = call->in[ATTENTION_CACHED_FIRST_ROWS],
        .queries = rope->out[ROPE_Y],
        .cache = call->out[ATTENTION_CACHED_CACHE],
        .half = (int32_t)h->qk_dim / 2,
        .rotated = (int32_t)(heads_query_columns(h) + heads_key_columns(h)),
        .kept = (int32_t)heads_query_columns(h),
        .cyclic = attention_block_cyclic(call->mesh)};
    if (call->absorbs > 2) norm_of_row(linear - 1, &projection.gemv.norm);
    LaunchShape shape = gemv_shape(device_info(call->device)->processors, &projection.gemv);
    launch_project(call->device, gemv_kernel(&projection.gemv), shape, &projection);
}

#endif
