/* Writes the new rows' keys and values to their places in a key-value cache on a GPU. The kernel is the
 * GEMM of a single row (project_gpu.c), one that also applies RoPE, or a plain copy. The kernel with RoPE
 * also writes the rotated queries, which saves the kernel of op rope. The bits are those of the separate
 * kernels. Called by cached_gpu.c; no scratch. */
#include "backend/gpu/vector.h"
#include "ops/attention/append.h"
#include "ops/attention/block_cyclic.h"

typedef struct AttentionAppend {
    GLOBAL const bf16 *from; /* keys and values of the new rows */
    GLOBAL bf16 *cache;
    GLOBAL const int32_t *positions;
    GLOBAL const int32_t *first_rows; /* as in Attention */
    int64_t stride, columns;
    int32_t length; /* rows of a sequence */
    BlockCyclic cyclic;
} AttentionAppend;

/* Rows of packed qkv: `rotated` columns of queries and keys in heads of `dim`, then values. RoPE rotates
 * the first 2 * `half` columns of a head. All are multiples of 8. `append.from` is the first column of
 * the queries. */
typedef struct AttentionRotation {
    AttentionAppend append;
    GLOBAL bf16 *queries;             /* like `append.from` */
    GLOBAL const float *angles;       /* for each position, `half` cosines, then sines */
    int32_t kept, rotated, dim, half; /* kept: columns of queries */
} AttentionRotation;

enum { THREADS = 128 };

#ifdef GPU_DEVICE

/* The row of the cache for the block's row; NULL: another rank has it. */
INLINE GLOBAL bf16 *cache_row(const AttentionAppend *a, int position) {
    if (!block_cyclic_has(a->cyclic, position)) return 0;
    int64_t first_row = a->first_rows ? a->first_rows[block_x() / a->length] : 0;
    return a->cache + (first_row + block_cyclic_rows(a->cyclic, position)) * a->columns;
}

/* Copies keys and values of the new rows to their rows of the cache; one block per row. */
KERNEL(attention_append, AttentionAppend) {
    GLOBAL bf16 *to = cache_row(&a, a.positions[block_x()]);
    if (!to) return;
    GLOBAL const bf16 *from = a.from + block_x() * a.stride;
    if ((a.stride | a.columns) % 8 == 0) {
        for (int i = thread_id(); i < a.columns / 8; i += THREADS) ((GLOBAL u32x4 *)to)[i] = ((GLOBAL const u32x4 *)from)[i];
    } else {
        for (int i = thread_id(); i < a.columns; i += THREADS) to[i] = from[i];
    }
}

/* Several blocks per row. A thread takes 8 rotated channels and their partners `half` channels away, or
 * 8 channels to copy. */
KERNEL(attention_append_rotated, AttentionRotation) {
    const AttentionAppend *append = &a.append;
    int position = append->positions[block_x()], column = (block_y() * THREADS + thread_id()) * 8;
    int within = column < a.rotated ? column % a.dim : 2 * a.half;
    GLOBAL bf16 *cache = cache_row(append, position), *to = cache + (column - a.kept);
    if (column < a.kept) to = a.queries + block_x() * append->stride + column;
    bool partner = within >= a.half && within < 2 * a.half, elsewhere = column >= a.kept && !cache;
    if (column >= append->stride || partner || elsewhere) return;
    GLOBAL const bf16 *from = append->from + block_x() * append->stride + column;
    f32x8 x = load8_bf16(from, 8);
    if (within < a.half) {
        GLOBAL const float *angles = a.angles + (int64_t)position * 2 * a.half + within;
        f32x8 y = load8_bf16(from + a.half, 8), cosine = load8_wide(angles, 8), sine = load8_wide(angles + a.half, 8);
        store8_bf16(to + a.half, y * cosine + x * sine, 8);
        x = x * cosine - y * sine;
    }
    store8_bf16(to, x, 8);
}

#else

#include "ops/attention/attention.h"
#include "ops/rope/rope.h"

LAUNCHER(attention_append, AttentionAppend)
LAUNCHER(attention_append_rotated, AttentionRotation)

/* Returns whether the preceding node applies RoPE to halves of heads, with the same positions. */
static bool follows_rope(const Graph *graph, int index) {
    const Node *node = &graph->nodes[index], *rope = node - 1;
    if (index < 1 || rope->op != OP_rope || rope->out[ROPE_Y] != node->in[ATTENTION_QKV] || node->in[ATTENTION_KV]) return false;
    const RopeAttributes *attributes = rope->attributes;
    const Heads *h = &attributes->heads;
    return attributes->pairs == ROPE_HALVES && attributes->sign > 0 && rope->in[ROPE_POSITIONS] == node->in[ATTENTION_POSITIONS] &&
           (h->qk_dim | h->v_dim | graph_columns(graph, rope->in[ROPE_TABLE]) / 2) % 8 == 0;
}

int attention_append_absorbs(const Backend *backend, const Graph *graph, int index) {
    int projection = attention_absorbs_projection(backend, graph, index);
    return projection ? projection : follows_rope(graph, index);
}

static void append_rotated(const OpCall *call, AttentionAppend append) {
    const OpCall *rope = call - 1;
    const Heads *h = &((const AttentionSpec *)call->attributes)->heads;
    append.from = rope->in[ROPE_X];
    AttentionRotation rotation = {.append = append,
        .queries = rope->out[ROPE_Y],
        .angles = rope->in[ROPE_TABLE],
        .kept = (int32_t)heads_query_columns(h),
        .rotated = (int32_t)(heads_query_columns(h) + heads_key_columns(h)),
        .dim = (int32_t)h->qk_dim,
        .half = (int32_t)rope->in_shape[ROPE_TABLE][1] / 2};
    LaunchShape shape = {.x = call->in_shape[ATTENTION_QKV][0], .y = divide_up(append.stride, 8 * THREADS), .threads = THREADS};
    launch_attention_append_rotated(call->device, shape, &rotation);
}

void attention_append(const OpCall *call, const Attention *new) {
    AttentionAppend arguments = {.from = new->keys,
        .cache = call->out[ATTENTION_CACHED_CACHE],
        .positions = call->in[ATTENTION_POSITIONS],
        .first_rows = call->in[ATTENTION_CACHED_FIRST_ROWS],
        .stride = new->key_stride,
        .columns = call->out_shape[ATTENTION_CACHED_CACHE][1],
        .length = new->query_rows.rows,
        .cyclic = attention_block_cyclic(call->mesh)};
    if (call->absorbs > 1) attention_project(call);
    else if (call->absorbs) append_rotated(call, arguments);
    else launch_attention_append(call->device, (LaunchShape){.x = call->in_shape[ATTENTION_QKV][0], .threads = THREADS}, &arguments);
}

#endif
