/* The gradient of attention on NVIDIA's Hopper for heads wider than 128 columns, in two passes;
 * grad_gpu.c launches it if device, shapes and alignment allow. dK and dV of 64 keys fill the
 * registers of two warpgroups, so that dQ, which gpu_grad_hopper_kernels.h adds in the same pass,
 * has another pass, and both passes compute S and dP:
 *     keys pass:     group 0: S = K Q^T, P = exp(S - log_sum), dV += P dO
 *                    group 1: dP = V dO^T, dS = P * (dP - delta), dK += dS Q
 *     queries pass:  S = Q K^T, dP = dO V^T, dS = P * (dP - delta), dQ += dS K
 * In the keys pass a block owns 64 keys of a key-value head, and group 0 gives P to group 1 in
 * shared memory. In the queries pass a block owns 128 queries, 64 per group. A third group copies
 * tiles. Every result has one owner, so sums have one order. If keys have too few blocks, the heads
 * of a group are divided among `parts` blocks, as in the narrow pass. hopper_rows runs before. */
#pragma once

#include "ops/attention/gpu_grad_hopper_kernels.h"

enum {
    WIDE_KEYS = 64,                       /* keys of a block in the keys pass, and of a tile in the other */
    WIDE_TILE = 64,                       /* queries of a tile in the keys pass */
    WIDE_WEIGHTS = WIDE_KEYS * WIDE_TILE, /* floats of P of a tile */
    WIDE_BARRIERS = 16,
};

/* Tiles that fit in shared memory: stages of queries in the keys pass, of values in the other. */
static inline int wide_stages(HopperShape s) { return s.qk_dim + s.v_dim > 320 ? 2 : 3; }
static inline int wide_value_stages(HopperShape s) { return s.qk_dim + s.v_dim > 320 ? 1 : 2; }
enum { WIDE_KEY_STAGES = 2 };

static inline int wide_keys_shared(HopperShape s) {
    return (WIDE_KEYS + wide_stages(s) * WIDE_TILE) * (s.qk_dim + s.v_dim) * 2 + 2 * WIDE_WEIGHTS * 4 +
           wide_stages(s) * (int)sizeof(HopperRows) + WIDE_BARRIERS * 8;
}
static inline int wide_queries_shared(HopperShape s) {
    return (HOPPER_ROWS * (s.qk_dim + s.v_dim) + WIDE_KEYS * (WIDE_KEY_STAGES * s.qk_dim + wide_value_stages(s) * s.v_dim)) * 2 +
           WIDE_BARRIERS * 8;
}

#if defined GPU_DEVICE && defined __CUDA_ARCH_FEAT_SM90_ALL

/* -- The keys pass ------------------------------------------------------------------------------------------------- */

/* A block of keys: its part of the heads of a group, head .. end_head - 1, and its tiles of queries
 * first .. last. */
typedef struct WideKeys { int sequence, kv_head, head, end_head, part, key, first, last; } WideKeys;

INLINE WideKeys wide_keys(const AttentionGradHopper *g) {
    const Attention *a = &g->attention;
    SectionPlace at = section_place(g->items / g->blocks, g->section, g->blocks);
    int of_sequence = a->kv_heads * g->parts, heads = a->heads / of_sequence;
    WideKeys w = {.sequence = at.of_all / of_sequence, .key = at.tile * WIDE_KEYS, .head = at.of_all % of_sequence * heads};
    w.end_head = w.head + heads, w.kv_head = w.head / (a->heads / a->kv_heads), w.part = at.of_all % g->parts;
    w.first = w.last = min_int(attention_first_query(a, w.key) / WIDE_TILE, g->tiles - 1);
    GLOBAL const HopperRows *rows = g->rows + (int64_t)w.sequence * a->heads * g->tiles;
    for (int i = w.first + lane_id(); i < g->tiles; i += WAVE)
        if (rows[i].low_min < w.key + WIDE_KEYS) w.last = i;
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) w.last = max_int(w.last, (int)shuffle(w.last, lane_id() ^ mask));
    return w;
}
INLINE int wide_steps(const WideKeys *w) { return (w->last - w->first + 1) * (w->end_head - w->head); }

/* Shared memory of a block: its keys and values, stages of queries and dO with their `rows`, and P
 * of two tiles, in the register layout of group 0. */
typedef struct WideKeysBlock {
    LOCAL bf16 *keys, *values, *stages;
    LOCAL f32x4 *weights;
    LOCAL HopperRows *rows;
    SharedBarrier keys_full, full, empty, weights_full, weights_empty;
} WideKeysBlock;

INLINE WideKeysBlock wide_keys_block(const HopperShape s) {
    WideKeysBlock b = {.keys = hopper_tiles, .values = hopper_tiles + WIDE_KEYS * s.qk_dim};
    b.stages = b.values + WIDE_KEYS * s.v_dim;
    b.weights = (LOCAL f32x4 *)(b.stages + wide_stages(s) * WIDE_TILE * (s.qk_dim + s.v_dim));
    b.rows = (LOCAL HopperRows *)(b.weights + 2 * WIDE_WEIGHTS / 4);
    b.keys_full = (SharedBarrier)(b.rows + wide_stages(s));
    b.full = b.keys_full + 1, b.empty = b.full + wide_stages(s);
    b.weights_full = b.empty + wide_stages(s), b.weights_empty = b.weights_full + 2;
    return b;
}
INLINE LOCAL bf16 *wide_stage(const WideKeysBlock *b, const HopperShape s, int stage) {
    return b->stages + stage * WIDE_TILE * (s.qk_dim + s.v_dim);
}

INLINE void wide_keys_init(const WideKeysBlock *b, const HopperShape s) {
    shared_barrier_init(b->keys_full, 1);
    for (int i = 0; i < wide_stages(s); i++) shared_barrier_init(b->full + i, 1), shared_barrier_init(b->empty + i, GRAD_GROUPS * 4);
    for (int i = 0; i < 2; i++) shared_barrier_init(b->weights_full + i, 4), shared_barrier_init(b->weights_empty + i, 4);
    fence_shared_to_async();
}

/* Copies the block's keys and values, then its tiles of queries, head by head. */
INLINE void wide_keys_fetch(const AttentionGradHopper *g, const HopperShape s, const WideKeysBlock *b, const WideKeys *w, uint64_t maps) {
    uint64_t keys_map = maps + 2 * sizeof(TensorMap);
    int value_column = g->attention.kv_heads * s.qk_dim + w->kv_head * s.v_dim;
    Ring ring = {0};
    shared_barrier_expect(b->keys_full, WIDE_KEYS * (s.qk_dim + s.v_dim) * 2);
    copy_rows(b->keys, keys_map, s.qk_dim, WIDE_KEYS, w->kv_head * s.qk_dim, w->key, w->sequence, b->keys_full);
    copy_rows(b->values, keys_map, s.v_dim, WIDE_KEYS, value_column, w->key, w->sequence, b->keys_full);
    for (int head = w->head; head < w->end_head; head++)
        for (int tile = w->first; tile <= w->last; tile++) {
            SharedBarrier full = b->full + ring.stage;
            LOCAL bf16 *to = wide_stage(b, s, ring.stage);
            if (ring.phase > 0) shared_barrier_wait(b->empty + ring.stage, ring.phase - 1);
            shared_barrier_expect(full, WIDE_TILE * (s.qk_dim + s.v_dim) * 2 + (int)sizeof(HopperRows));
            copy_rows(to, maps, s.qk_dim, WIDE_TILE, head * s.qk_dim, tile * WIDE_TILE, w->sequence, full);
            copy_rows(to + WIDE_TILE * s.qk_dim, maps + sizeof(TensorMap), s.v_dim, WIDE_TILE, head * s.v_dim, tile * WIDE_TILE,
                w->sequence, full);
            copy_bytes(b->rows + ring.stage, g->rows + ((int64_t)w->sequence * g->attention.heads + head) * g->tiles + tile,
                (int)sizeof(HopperRows), full);
            ring_advance(&ring, wide_stages(s));
        }
}

/* The step of a block: its number and its stage. `key` is the first key of the block. */
typedef struct WideStep { int number, stage, key; } WideStep;

/* Group 0 converts S of a step to P and gives it to group 1; group 1 converts dP to dS. */
INLINE void wide_convert(const Attention *a, const WideKeysBlock *b, float *x, const int group, WideStep at, const bool capped) {
    LOCAL f32x4 *shared = b->weights + at.number % 2 * (WIDE_WEIGHTS / 4) + opaque(thread_id()) % WARPGROUP;
    if (group == 0) {
        weights_of_columns(x, WIDE_TILE, a, at.key, b->rows + at.stage, capped);
        if (at.number > 1) shared_barrier_wait(b->weights_empty + at.number % 2, at.number / 2 - 1);
        UNROLL for (int i = 0; i < 8; i++) shared[i * WARPGROUP] = (f32x4){x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
        warp_arrive(b->weights_full + at.number % 2);
        return;
    }
    float weights[WIDE_TILE / 2];
    shared_barrier_wait(b->weights_full + at.number % 2, at.number / 2);
    UNROLL for (int i = 0; i < 8; i++) {
        f32x4 four = shared[i * WARPGROUP];
        UNROLL for (int e = 0; e < 4; e++) weights[4 * i + e] = four[e];
    }
    warp_arrive(b->weights_empty + at.number % 2);
    d_scores_of_columns(weights, x, WIDE_TILE, a, b->rows + at.stage, capped);
}

/* Runs a multiplying group, whose number is a constant: group 0 computes dV, group 1 dK. */
INLINE void wide_keys_multiply(
    const AttentionGradHopper *g, const HopperShape s, const WideKeysBlock *b, const WideKeys *w, const int group, const bool capped) {
    const int width = group == 0 ? s.qk_dim : s.v_dim, sums_width = group == 0 ? s.v_dim : s.qk_dim;
    const int tile_at = group == 0 ? 0 : WIDE_TILE * s.qk_dim, sums_at = group == 0 ? WIDE_TILE * s.qk_dim : 0;
    LOCAL const bf16 *own = group == 0 ? b->keys : b->values;
    float x[WIDE_TILE / 2], sums[HOPPER_MOST_WIDTH / 2];
    uint32_t operand[WIDE_TILE / 4];
    const Attention *a = &g->attention;
    WideStep step = {.key = w->key};
    int steps = wide_steps(w);
    Ring ring = {0};
    sums_clear(sums, sums_width);
    shared_barrier_wait(b->keys_full, 0);
    shared_barrier_wait(b->full, 0);
    warp_barrier();
    wgmma_begin(x, WIDE_TILE);
    rows_multiply(x, 64, width, own, GROUP_ROWS, b->stages + tile_at);
    wgmma_wait(x, WIDE_TILE, 0);
    for (; step.number < steps - 1; step.number++) {
        step.stage = ring.stage;
        wide_convert(a, b, x, group, step, capped);
        sums_to_operand(operand, x, WIDE_TILE);
        ring_advance(&ring, wide_stages(s));
        warp_barrier();
        wgmma_begin(sums, sums_width);
        rows_add(sums, sums_width, operand, wide_stage(b, s, step.stage) + sums_at, 64);
        shared_barrier_wait(b->full + ring.stage, ring.phase);
        warp_barrier();
        wgmma_begin(x, WIDE_TILE);
        rows_multiply(x, 64, width, own, GROUP_ROWS, wide_stage(b, s, ring.stage) + tile_at);
        wgmma_wait(sums, sums_width, 1);
        warp_arrive(b->empty + step.stage);
        wgmma_wait(x, WIDE_TILE, 0);
    }
    step.stage = ring.stage;
    wide_convert(a, b, x, group, step, capped);
    sums_to_operand(operand, x, WIDE_TILE);
    warp_barrier();
    wgmma_begin(sums, sums_width);
    rows_add(sums, sums_width, operand, wide_stage(b, s, ring.stage) + sums_at, 64);
    wgmma_wait(sums, sums_width, 0);
    KeySums at = {.sequence = w->sequence, .key = w->key, .part = w->part, .column = w->kv_head * s.qk_dim};
    if (group == 0) at.column = a->kv_heads * s.qk_dim + w->kv_head * s.v_dim;
    key_sums_store(g, at, sums, sums_width, group == 0 ? 1 : a->scale * LN_2);
}

INLINE void wide_keys_pass(const AttentionGradHopper *g, uint64_t maps, const HopperShape s, const bool capped) {
    WideKeysBlock block = wide_keys_block(s);
    WideKeys own = wide_keys(g);
    int group = wave_id() / 4;
    if (thread_id() == 0) wide_keys_init(&block, s);
    barrier();
    if (group == GRAD_GROUPS) {
        registers_lower(COPY_REGISTERS);
        if (thread_id() == GRAD_GROUPS * WARPGROUP) wide_keys_fetch(g, s, &block, &own, maps);
        return;
    }
    registers_raise(MULTIPLY_REGISTERS);
    if (group == 0) wide_keys_multiply(g, s, &block, &own, 0, capped);
    else wide_keys_multiply(g, s, &block, &own, 1, capped);
}

/* -- The queries pass ---------------------------------------------------------------------------------------------- */

/* Shared memory of a block: its queries and dO, in parts of 64 rows, and stages of keys and of
 * values. Tile i of the block, of `tiles`, begins at key `key` + i * WIDE_KEYS. */
typedef struct WideQueriesBlock {
    LOCAL bf16 *queries, *d_outs, *keys, *values;
    SharedBarrier queries_full, keys_full, keys_empty, values_full, values_empty;
    int key, tiles;
    KeyBounds seen; /* by the thread's group */
} WideQueriesBlock;

INLINE WideQueriesBlock wide_queries_block(const Attention *a, const HopperShape s, const HopperPlace *place) {
    int64_t base = (int64_t)place->sequence * a->query_rows.rows;
    KeyBounds bounds[HOPPER_GROUPS];
    UNROLL for (int i = 0; i < HOPPER_GROUPS; i++) bounds[i] = hopper_bounds(a, base, place->first + i * GROUP_ROWS, GROUP_ROWS);
    KeyBounds block = bounds_join(bounds[0], bounds[1]);
    WideQueriesBlock b = {.queries = hopper_tiles, .d_outs = hopper_tiles + HOPPER_ROWS * s.qk_dim};
    b.keys = b.d_outs + HOPPER_ROWS * s.v_dim;
    b.values = b.keys + WIDE_KEY_STAGES * WIDE_KEYS * s.qk_dim;
    b.queries_full = (SharedBarrier)(b.values + wide_value_stages(s) * WIDE_KEYS * s.v_dim);
    b.keys_full = b.queries_full + 1, b.keys_empty = b.keys_full + WIDE_KEY_STAGES;
    b.values_full = b.keys_empty + WIDE_KEY_STAGES, b.values_empty = b.values_full + wide_value_stages(s);
    b.key = block.low_min / WIDE_KEYS * WIDE_KEYS, b.tiles = (block.high_max - b.key) / WIDE_KEYS + 1;
    b.seen = wave_id() / 4 == 0 ? bounds[0] : bounds[1];
    return b;
}

INLINE void wide_queries_init(const WideQueriesBlock *b, const HopperShape s) {
    shared_barrier_init(b->queries_full, 1);
    for (int i = 0; i < WIDE_KEY_STAGES; i++)
        shared_barrier_init(b->keys_full + i, 1), shared_barrier_init(b->keys_empty + i, GRAD_GROUPS * 4);
    for (int i = 0; i < wide_value_stages(s); i++)
        shared_barrier_init(b->values_full + i, 1), shared_barrier_init(b->values_empty + i, GRAD_GROUPS * 4);
    fence_shared_to_async();
}

INLINE void wide_queries_fetch(
    const AttentionGradHopper *g, const HopperShape s, const WideQueriesBlock *b, const HopperPlace *p, uint64_t maps) {
    uint64_t keys_map = maps + 2 * sizeof(TensorMap);
    int value_column = g->attention.kv_heads * s.qk_dim + p->kv_head * s.v_dim;
    Ring k = {0}, v = {0};
    shared_barrier_expect(b->queries_full, HOPPER_ROWS * (s.qk_dim + s.v_dim) * 2);
    UNROLL for (int i = 0; i < HOPPER_ROWS; i += GROUP_ROWS) {
        copy_rows(b->queries + i * s.qk_dim, maps, s.qk_dim, GROUP_ROWS, p->head * s.qk_dim, p->first + i, p->sequence, b->queries_full);
        copy_rows(b->d_outs + i * s.v_dim, maps + sizeof(TensorMap), s.v_dim, GROUP_ROWS, p->head * s.v_dim, p->first + i, p->sequence,
            b->queries_full);
    }
    for (int tile = 0, key = b->key; tile < b->tiles; tile++, key += WIDE_KEYS) {
        if (k.phase > 0) shared_barrier_wait(b->keys_empty + k.stage, k.phase - 1);
        shared_barrier_expect(b->keys_full + k.stage, WIDE_KEYS * s.qk_dim * 2);
        copy_rows(b->keys + k.stage * WIDE_KEYS * s.qk_dim, keys_map, s.qk_dim, WIDE_KEYS, p->kv_head * s.qk_dim, key, p->sequence,
            b->keys_full + k.stage);
        if (v.phase > 0) shared_barrier_wait(b->values_empty + v.stage, v.phase - 1);
        shared_barrier_expect(b->values_full + v.stage, WIDE_KEYS * s.v_dim * 2);
        copy_rows(b->values + v.stage * WIDE_KEYS * s.v_dim, keys_map, s.v_dim, WIDE_KEYS, value_column, key, p->sequence,
            b->values_full + v.stage);
        ring_advance(&k, WIDE_KEY_STAGES), ring_advance(&v, wide_value_stages(s));
    }
}

/* A group's 64 queries from `first` on, with the numbers of the thread's two rows. */
typedef struct WideRows {
    int first;
    float log_sum[2], delta[2];
} WideRows;

INLINE WideRows wide_rows(const AttentionGradHopper *g, const HopperPlace *place, int group) {
    WideRows rows = {.first = place->first + group * GROUP_ROWS};
    int piece = min_int(rows.first / 64, g->tiles - 1); /* a group without queries stores nothing */
    GLOBAL const HopperRows *numbers = g->rows + ((int64_t)place->sequence * g->attention.heads + place->head) * g->tiles + piece;
    UNROLL for (int r = 0; r < 2; r++) {
        int row = group_row(r);
        rows.log_sum[r] = numbers->log_sum[row], rows.delta[r] = numbers->delta[row];
    }
    return rows;
}

/* Converts S to P. */
INLINE void weights_of_rows(float *x, const WideRows *rows, float scale) {
    UNROLL for (int i = 0; i < WIDE_KEYS / 2; i++) x[i] = exp2_or_zero(__builtin_fmaf(x[i], scale, -rows->log_sum[i / 2 % 2]));
}
/* Converts dP to dS. */
INLINE void d_scores_of_rows(const float *weights, float *d_weights, const WideRows *rows, const Attention *a, const bool capped) {
    float per_limit = capped ? fast_reciprocal(a->limit * a->scale) : 0;
    UNROLL for (int i = 0; i < WIDE_KEYS / 2; i++) {
        d_weights[i] = weights[i] * (d_weights[i] - rows->delta[i / 2 % 2]);
        if (capped) d_weights[i] *= cap_slope(weights[i], rows->log_sum[i / 2 % 2], per_limit);
    }
}

INLINE void wide_queries_multiply(
    const AttentionGradHopper *g, const HopperShape s, const WideQueriesBlock *b, const HopperPlace *place, int group, const bool capped) {
    const Attention *a = &g->attention;
    LOCAL const bf16 *queries = b->queries + group * GROUP_ROWS * s.qk_dim, *d_outs = b->d_outs + group * GROUP_ROWS * s.v_dim;
    int64_t base = (int64_t)place->sequence * a->query_rows.rows;
    float scores[WIDE_KEYS / 2], d_weights[WIDE_KEYS / 2], sums[HOPPER_MOST_WIDTH / 2];
    uint32_t operand[WIDE_KEYS / 4];
    WideRows rows = wide_rows(g, place, group);
    Ring k = {0}, v = {0};
    sums_clear(sums, s.qk_dim);
    shared_barrier_wait(b->queries_full, 0);
    shared_barrier_wait(b->keys_full, 0);
    shared_barrier_wait(b->values_full, 0);
    warp_barrier();
    wgmma_begin(scores, WIDE_KEYS), wgmma_begin(d_weights, WIDE_KEYS);
    rows_multiply(scores, 64, s.qk_dim, queries, GROUP_ROWS, b->keys);
    rows_multiply(d_weights, 64, s.v_dim, d_outs, GROUP_ROWS, b->values);
    wgmma_wait(scores, WIDE_KEYS, 1);
    hopper_modify(scores, WIDE_KEYS, a, &b->seen, base, place->head, rows.first, b->key, capped);
    weights_of_rows(scores, &rows, a->scale);
    materialize_sums(scores, WIDE_KEYS);
    wgmma_wait(d_weights, WIDE_KEYS, 0);
    warp_arrive(b->values_empty);
    d_scores_of_rows(scores, d_weights, &rows, a, capped);
    sums_to_operand(operand, d_weights, WIDE_KEYS);
    for (int tile = 1; tile < b->tiles; tile++) {
        int before = k.stage;
        ring_advance(&k, WIDE_KEY_STAGES), ring_advance(&v, wide_value_stages(s));
        shared_barrier_wait(b->keys_full + k.stage, k.phase);
        warp_barrier();
        wgmma_begin(scores, WIDE_KEYS), wgmma_begin(sums, s.qk_dim);
        rows_multiply(scores, 64, s.qk_dim, queries, GROUP_ROWS, b->keys + k.stage * WIDE_KEYS * s.qk_dim);
        rows_add(sums, s.qk_dim, operand, b->keys + before * WIDE_KEYS * s.qk_dim, 64);
        shared_barrier_wait(b->values_full + v.stage, v.phase);
        warp_barrier();
        wgmma_begin(d_weights, WIDE_KEYS);
        rows_multiply(d_weights, 64, s.v_dim, d_outs, GROUP_ROWS, b->values + v.stage * WIDE_KEYS * s.v_dim);
        wgmma_wait(scores, WIDE_KEYS, 2);
        hopper_modify(scores, WIDE_KEYS, a, &b->seen, base, place->head, rows.first, b->key + tile * WIDE_KEYS, capped);
        weights_of_rows(scores, &rows, a->scale);
        materialize_sums(scores, WIDE_KEYS);
        wgmma_wait(sums, s.qk_dim, 1);
        warp_arrive(b->keys_empty + before);
        wgmma_wait(d_weights, WIDE_KEYS, 0);
        warp_arrive(b->values_empty + v.stage);
        d_scores_of_rows(scores, d_weights, &rows, a, capped);
        sums_to_operand(operand, d_weights, WIDE_KEYS);
    }
    warp_barrier();
    wgmma_begin(sums, s.qk_dim);
    rows_add(sums, s.qk_dim, operand, b->keys + k.stage * WIDE_KEYS * s.qk_dim, 64);
    wgmma_wait(sums, s.qk_dim, 0);
    float factor = a->scale * LN_2;
    store_sums(g->d_queries + base * a->query_stride + place->head * s.qk_dim, a->query_stride, sums, s.qk_dim, rows.first,
        a->query_rows.rows, (float[]){factor, factor});
}

INLINE void wide_queries_pass(const AttentionGradHopper *g, uint64_t maps, const HopperShape s, const bool capped) {
    const Attention *a = &g->attention;
    HopperPlace place = hopper_place(a, g->all_heads, g->query_section, HOPPER_ROWS);
    WideQueriesBlock block = wide_queries_block(a, s, &place);
    int group = wave_id() / 4;
    if (thread_id() == 0) wide_queries_init(&block, s);
    barrier();
    if (group == GRAD_GROUPS) {
        registers_lower(COPY_REGISTERS);
        if (thread_id() == GRAD_GROUPS * WARPGROUP) wide_queries_fetch(g, s, &block, &place, maps);
        return;
    }
    registers_raise(MULTIPLY_REGISTERS);
    wide_queries_multiply(g, s, &block, &place, group, capped);
}

#endif
