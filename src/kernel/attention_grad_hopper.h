/* The gradient of attention on NVIDIA's Hopper, for heads of 64 and 128 columns; attention_grad.c launches it where the device, the shapes and the alignment allow.
 * The two passes are those of attention_grad.c. In both a warpgroup owns 64 rows of two matrices X and Y, and goes over tiles of rows of two others, U and V:
 *     S = X U^T,  dP = Y V^T,  P = exp(S - log_sum),  dS = P * (dP - delta),  sum of dS U,  and for keys sum of P V
 *     queries: X = Q, Y = dO, U = K, V = V;     keys, on transposed scores: X = K, Y = V, U = Q, V = dO
 * All sums are in registers, where P and dS become the left operands of the last products. Those of a tile run while the scores of the next one are made and its
 * exponentials taken. Tiles come by the copy engine, in a ring of stages that one thread of the last group fills.
 *
 * A kernel before both passes makes, for each head and each 64 queries, what the passes need of them in one piece: HopperRows. */
#ifndef SMELT_KERNEL_ATTENTION_GRAD_HOPPER_H
#define SMELT_KERNEL_ATTENTION_GRAD_HOPPER_H

#include "kernel/attention_hopper.h"

/* Of 64 queries, those beyond the last one with log_sum = infinity, so that their weights are zero. */
typedef struct HopperRows {
    struct { float log_sum, delta; } row[64]; /* log_sum to base 2 */
    int32_t low[64];                          /* first keys that they see */
    int32_t low_least, low_most, unused[2];
} HopperRows;

typedef struct AttentionGradHopper {
    TensorMap qkv, d_out_map;
    Attention attention;
    GLOBAL const bf16 *d_out, *out;
    GLOBAL const float *log_sum;
    GLOBAL HopperRows *rows;                    /* [sequences][heads][tiles] */
    GLOBAL bf16 *d_queries, *d_keys, *d_values; /* strides as of queries and keys */
    int32_t tiles;                              /* of 64 queries in a sequence */
} AttentionGradHopper;

/* How a pass is cut: columns of a head, warpgroups of a block, rows of a tile, stages; `held`: X and Y are left operands in registers, where there is room. */
typedef struct GradShape { int width, groups, tile, stages; bool held; } GradShape;

static inline GradShape grad_shape(int width, bool of_keys) {
    if (of_keys) return width == 64 ? (GradShape){64, 2, 64, 4, true} : (GradShape){128, 2, 64, 4, false};
    return width == 64 ? (GradShape){64, 2, 128, 4, false} : (GradShape){128, 2, 64, 4, true};
}
static inline int grad_shared(GradShape s) {
    return (2 * s.groups * 64 + s.stages * 2 * s.tile) * s.width * 2 + s.stages * (int)sizeof(HopperRows) + 128;
}

#if defined GPU_DEVICE && defined __CUDA_ARCH_FEAT_SM90_ALL

/* -- Before both passes -------------------------------------------------------------------------------------------- */

/* The dot products of 16 rows of a warp, four or two at a time. */
INLINE void hopper_deltas(const AttentionGradHopper *g, GLOBAL HopperRows *to, const int width, int64_t base, int head, int tile) {
    const int lanes = width / 8, at_once = WAVE / lanes, count = 16 / at_once;
    const Attention *a = &g->attention;
    int first = wave_id() * 16 + lane_id() / lanes;
    u32x4 x[8], y[8];
    UNROLL for (int i = 0; i < count; i++) {
        int row = least(tile * 64 + first + i * at_once, a->length - 1);
        int64_t at = ((base + row) * a->heads + head) * width + lane_id() % lanes * 8;
        x[i] = *(GLOBAL const u32x4 *)(g->d_out + at), y[i] = *(GLOBAL const u32x4 *)(g->out + at);
    }
    UNROLL for (int i = 0; i < count; i++) {
        float sum = 0;
        UNROLL for (int e = 0; e < 4; e++) sum += widen_low(x[i][e]) * widen_low(y[i][e]) + widen_high(x[i][e]) * widen_high(y[i][e]);
        UNROLL for (int mask = lanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        int row = first + i * at_once;
        bool there = tile * 64 + row < a->length;
        if (lane_id() % lanes == 0) {
            to->row[row].delta = there ? sum : 0;
            to->row[row].log_sum = there ? g->log_sum[(base + tile * 64 + row) * a->heads + head] * LOG2_E : __builtin_inff();
        }
    }
}

/* A block of 128 threads for each tile and head. */
INLINE void hopper_rows(const AttentionGradHopper *g, const int width) {
    const Attention *a = &g->attention;
    int sequence = block_x() / g->tiles, tile = block_x() % g->tiles, head = block_y(), first = tile * 64;
    int64_t base = (int64_t)sequence * a->length;
    GLOBAL HopperRows *to = g->rows + ((int64_t)sequence * a->heads + head) * g->tiles + tile;
    hopper_deltas(g, to, width, base, head, tile);
    if (wave_id() > 0) return;
    Extremes seen = hopper_extremes(a, base, first, 64);
    UNROLL for (int i = 0; i < 64; i += WAVE)
        to->low[i + lane_id()] = attention_interval(a, base, least(first + i + lane_id(), a->length - 1)).low;
    if (lane_id() == 0) to->low_least = seen.low_least, to->low_most = seen.low_most;
}

/* -- Both passes --------------------------------------------------------------------------------------------------- */

/* A block's shared memory: its rows of X, then of Y; stages, each a tile of U and one of V, and in the keys' pass `rows`; barriers. */
typedef struct GradBlock { LOCAL bf16 *own, *tiles; LOCAL HopperRows *rows; SharedBarrier full, empty, own_full; bool fills; } GradBlock;

INLINE GradBlock grad_block(const GradShape s) {
    GradBlock b = {.own = hopper_tiles, .tiles = hopper_tiles + 2 * s.groups * GROUP_ROWS * s.width, .fills = thread_id() == (s.groups - 1) * WARPGROUP};
    b.rows = (LOCAL HopperRows *)(b.tiles + s.stages * 2 * s.tile * s.width);
    b.full = (SharedBarrier)(b.rows + s.stages);
    b.empty = b.full + s.stages;
    b.own_full = b.empty + s.stages;
    return b;
}
INLINE LOCAL bf16 *grad_stage(const GradBlock *b, const GradShape s, int stage) { return b->tiles + stage * 2 * s.tile * s.width; }

/* By the thread that fills: barriers, and the copies of the block's own rows from `first` on. */
INLINE void grad_open(const GradBlock *b, const GradShape s, uint64_t x_map, int x_column, uint64_t y_map, int y_column, int first, int sequence) {
    for (int i = 0; i < s.stages; i++) shared_barrier_init(b->full + i, 1), shared_barrier_init(b->empty + i, s.groups * 4);
    shared_barrier_init(b->own_full, 1);
    shared_to_async();
    shared_barrier_expect(b->own_full, 2 * s.groups * GROUP_ROWS * s.width * 2);
    UNROLL for (int i = 0; i < s.groups; i++) {
        LOCAL bf16 *to = b->own + i * GROUP_ROWS * s.width;
        copy_rows(to, x_map, s.width, GROUP_ROWS, x_column, first + i * GROUP_ROWS, sequence, b->own_full);
        copy_rows(to + s.groups * GROUP_ROWS * s.width, y_map, s.width, GROUP_ROWS, y_column, first + i * GROUP_ROWS, sequence, b->own_full);
    }
}

/* This warp is done with a stage; the thread that fills waits for the others if it has something `more` for it. */
INLINE void grad_release(const GradBlock *b, const Ring *done, bool more) {
    warp_barrier();
    if (lane_id() == 0) shared_barrier_arrive(b->empty + done->stage);
    if (more) shared_barrier_wait(b->empty + done->stage, done->turn);
}

/* What a group has in registers: S then P, dP then dS; the sums; P and dS as operands; X and Y if held. */
typedef struct GradSums { float scores[64], d_weights[64], u[64], v[64]; uint32_t weights[32], d_scores[32], x[32], y[32]; } GradSums;

/* Starts S or dP of a tile: `held`, or the group's own rows, times the tile's. */
INLINE void product_start(float *sums, const GradShape s, const uint32_t *held, LOCAL const bf16 *own, LOCAL const bf16 *tile) {
    Descriptor x = operand_at(own, 0), u = operand_at(tile, 0);
    UNROLL for (int k = 0; k < s.width / 16; k++) {
        Descriptor b = operand_further(u, depth_bytes(s.tile, k));
        if (s.held) wgmma_registers(sums, s.tile, held + 4 * k, b, k > 0, 0);
        else wgmma_shared(sums, s.tile, operand_further(x, depth_bytes(GROUP_ROWS, k)), b, k > 0, 0);
    }
    wgmma_commit();
}
/* Of a stage, where the group's rows of X are at `own`. */
INLINE void scores_of_tile(GradSums *sums, const GradShape s, LOCAL const bf16 *own, LOCAL const bf16 *stage) {
    product_start(sums->scores, s, sums->x, own, stage);
}
INLINE void d_weights_of_tile(GradSums *sums, const GradShape s, LOCAL const bf16 *own, LOCAL const bf16 *stage) {
    product_start(sums->d_weights, s, sums->y, own + s.groups * GROUP_ROWS * s.width, stage + s.tile * s.width);
}

/* Starts to add P V, for keys only, and dS U. */
INLINE void sums_start(GradSums *sums, const GradShape s, const bool of_keys, LOCAL const bf16 *stage) {
    Descriptor u = operand_at(stage, s.tile * 128), v = operand_at(stage + s.tile * s.width, s.tile * 128);
    if (of_keys) UNROLL for (int k = 0; k < s.tile / 16; k++)
        wgmma_registers(sums->v, s.width, sums->weights + 4 * k, operand_further(v, depth_bytes_transposed(k)), true, 1);
    UNROLL for (int k = 0; k < s.tile / 16; k++)
        wgmma_registers(sums->u, s.width, sums->d_scores + 4 * k, operand_further(u, depth_bytes_transposed(k)), true, 1);
    wgmma_commit();
}

/* Both products of the first tile, once it and the own rows have come. */
INLINE void first_products(GradSums *sums, const GradShape s, const GradBlock *b, LOCAL const bf16 *own) {
    shared_barrier_wait(b->own_full, 0);
    shared_barrier_wait(b->full, 0);
    warp_barrier();
    if (s.held) rows_to_operand(sums->x, own, s.width), rows_to_operand(sums->y, own + s.groups * GROUP_ROWS * s.width, s.width);
    wgmma_begin(sums->scores, s.tile);
    wgmma_begin(sums->d_weights, s.tile);
    scores_of_tile(sums, s, own, b->tiles);
    d_weights_of_tile(sums, s, own, b->tiles);
    wgmma_wait(sums->scores, s.tile, 0);
    wgmma_wait(sums->d_weights, s.tile, 0);
}

INLINE void sums_clear(float *x, const int columns) { UNROLL for (int i = 0; i < columns / 2; i++) x[i] = 0; }

/* -- Gradients of queries ------------------------------------------------------------------------------------------ */

INLINE void keys_fill(const GradBlock *b, const GradShape s, uint64_t map, const Attention *a, const HopperPlace *p, int key, int stage) {
    LOCAL bf16 *to = grad_stage(b, s, stage);
    shared_barrier_expect(b->full + stage, 2 * s.tile * s.width * 2);
    copy_rows(to, map, s.width, s.tile, (a->heads + p->kv_head) * s.width, key, p->sequence, b->full + stage);
    copy_rows(to + s.tile * s.width, map, s.width, s.tile, (a->heads + a->kv_heads + p->kv_head) * s.width, key, p->sequence, b->full + stage);
}

/* Of the two rows of a lane. */
typedef struct OwnRows { float log_sum[2], delta[2]; } OwnRows;

INLINE OwnRows own_rows(const AttentionGradHopper *g, const HopperPlace *p, int first) {
    OwnRows own;
    UNROLL for (int r = 0; r < 2; r++) {
        int row = first + group_row(r);
        GLOBAL const HopperRows *rows = g->rows + ((int64_t)p->sequence * g->attention.heads + p->head) * g->tiles + row / 64;
        bool there = row < g->attention.length;
        own.log_sum[r] = there ? rows->row[row % 64].log_sum : __builtin_inff();
        own.delta[r] = there ? rows->row[row % 64].delta : 0;
    }
    return own;
}

/* S -> P, of keys from `key` on, then dP -> dS. */
INLINE void weights_of_rows(GradSums *s, const AttentionGradHopper *g, const HopperPlace *p, const Extremes *seen, const OwnRows *own, const int tile, int key) {
    const Attention *a = &g->attention;
    if (a->alibi > 0 || !extremes_cover(seen, key, key + tile - 1))
        hopper_mask(s->scores, tile, a, (int64_t)p->sequence * a->length, p->head, p->first + wave_id() / 4 * GROUP_ROWS, key);
    UNROLL for (int i = 0; i < tile / 2; i++) s->scores[i] = exp2_or_zero(__builtin_fmaf(s->scores[i], a->scale, -own->log_sum[i / 2 % 2]));
}
INLINE void d_scores_of_rows(GradSums *s, const OwnRows *own, const int tile) {
    UNROLL for (int i = 0; i < tile / 2; i++) s->d_weights[i] = s->scores[i] * (s->d_weights[i] - own->delta[i / 2 % 2]);
}

INLINE void hopper_gradient_of_queries(const AttentionGradHopper *g, uint64_t qkv, uint64_t d_out, const GradShape shape) {
    const int width = shape.width, tile = shape.tile, stages = shape.stages, block_rows = shape.groups * GROUP_ROWS;
    const Attention *a = &g->attention;
    HopperPlace place = hopper_place(a, block_rows);
    int64_t base = (int64_t)place.sequence * a->length;
    int group = wave_id() / 4, first = place.first + group * GROUP_ROWS;
    GradBlock block = grad_block(shape);
    Extremes all = hopper_extremes(a, base, place.first, block_rows), seen = hopper_extremes(a, base, first, GROUP_ROWS);
    int key = all.low_least / tile * tile, count = (all.high_most - key) / tile + 1;
    if (block.fills) {
        grad_open(&block, shape, qkv, place.head * width, d_out, place.head * width, place.first, place.sequence);
        for (int i = 0; i < stages && i < count; i++) keys_fill(&block, shape, qkv, a, &place, key + i * tile, i);
    }
    OwnRows rows = own_rows(g, &place, first);
    barrier();

    GradSums sums;
    Ring ring = {0}, done = {0};
    LOCAL const bf16 *own = block.own + group * GROUP_ROWS * width;
    sums_clear(sums.u, width);
    first_products(&sums, shape, &block, own);
    weights_of_rows(&sums, g, &place, &seen, &rows, tile, key);
    d_scores_of_rows(&sums, &rows, tile);
    sums_to_operand(sums.d_scores, sums.d_weights, tile);
    for (int i = 1; i < count; i++) {
        ring_on(&ring, stages);
        LOCAL const bf16 *now = grad_stage(&block, shape, ring.stage);
        shared_barrier_wait(block.full + ring.stage, ring.turn);
        warp_barrier();
        wgmma_begin(sums.scores, tile), wgmma_begin(sums.d_weights, tile), wgmma_begin(sums.u, width);
        scores_of_tile(&sums, shape, own, now);
        d_weights_of_tile(&sums, shape, own, now);
        sums_start(&sums, shape, false, grad_stage(&block, shape, done.stage));
        wgmma_wait(sums.scores, tile, 2);
        weights_of_rows(&sums, g, &place, &seen, &rows, tile, key + i * tile);
        sums_here(sums.scores, tile);
        wgmma_wait(sums.d_weights, tile, 1);
        d_scores_of_rows(&sums, &rows, tile);
        sums_here(sums.d_weights, tile);
        wgmma_wait(sums.u, width, 0);
        sums_to_operand(sums.d_scores, sums.d_weights, tile);
        int next = i - 1 + stages;
        bool more = block.fills && next < count;
        grad_release(&block, &done, more);
        if (more) keys_fill(&block, shape, qkv, a, &place, key + next * tile, done.stage);
        ring_on(&done, stages);
    }
    wgmma_begin(sums.u, width);
    sums_start(&sums, shape, false, grad_stage(&block, shape, done.stage));
    wgmma_wait(sums.u, width, 0);
    float factor = a->scale * LN_2;
    store_sums(g->d_queries + base * a->query_stride + place.head * width, a->query_stride, sums.u, width, first, a->length, (float[]){factor, factor});
}

/* -- Gradients of keys and values ---------------------------------------------------------------------------------- */

/* Tiles `first` .. `last` of queries, of one head after the other. */
typedef struct TileWalk { int sequence, first, last, head, tile; } TileWalk;
INLINE void tile_walk_on(TileWalk *w) {
    if (w->tile++ < w->last) return;
    w->tile = w->first;
    w->head++;
}

/* The last tile of queries from `first` on that sees a key up to `last_key`. */
INLINE int hopper_last_touched(const AttentionGradHopper *g, int sequence, int first, int last_key) {
    int last = first;
    GLOBAL const HopperRows *rows = g->rows + (int64_t)sequence * g->attention.heads * g->tiles;
    for (int tile = first + lane_id(); tile < g->tiles; tile += WAVE)
        if (rows[tile].low_least <= last_key) last = tile;
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) last = most(last, (int)shuffle(last, lane_id() ^ mask));
    return last;
}

/* The tile that `walk` has come to; walks on. */
INLINE void queries_fill(const GradBlock *b, const GradShape s, uint64_t qkv, uint64_t d_out, const AttentionGradHopper *g, TileWalk *w, int stage) {
    LOCAL bf16 *to = grad_stage(b, s, stage);
    GLOBAL const HopperRows *rows = g->rows + ((int64_t)w->sequence * g->attention.heads + w->head) * g->tiles + w->tile;
    shared_barrier_expect(b->full + stage, 2 * s.tile * s.width * 2 + (int)sizeof(HopperRows));
    copy_rows(to, qkv, s.width, s.tile, w->head * s.width, w->tile * s.tile, w->sequence, b->full + stage);
    copy_rows(to + s.tile * s.width, d_out, s.width, s.tile, w->head * s.width, w->tile * s.tile, w->sequence, b->full + stage);
    copy_bytes(b->rows + stage, rows, sizeof(HopperRows), b->full + stage);
    tile_walk_on(w);
}

/* Transposed scores: rows are keys from `key` on, columns the 64 queries from `query` on. */
INLINE void hopper_mask_keys(float *x, const Attention *a, int head, int key, int query, LOCAL const HopperRows *rows) {
    float slope = attention_slope(a, head);
    int lane = opaque(lane_id()), first = lane % 4 * 2, from = key + opaque(wave_id()) % 4 * 16 + lane / 4;
    UNROLL for (int i = 0; i < 32; i += 4)
        UNROLL for (int e = 0; e < 2; e++) {
            int column = i * 2 + first + e, low = rows->low[column], high = query + column;
            UNROLL for (int r = 0; r < 2; r++) {
                int number = from + r * 8;
                float biased = x[i + 2 * r + e] + slope * (float)(number - high);
                x[i + 2 * r + e] = (unsigned)(number - low) <= (unsigned)(high - low) ? biased : -__builtin_inff();
            }
        }
}

/* S -> P of 64 keys from `key` on, then dP -> dS, where columns are queries. */
INLINE void weights_of_columns(GradSums *s, const Attention *a, const TileWalk *w, int key, LOCAL const HopperRows *rows) {
    int query = w->tile * 64;
    if (a->alibi > 0 || key < rows->low_most || key + GROUP_ROWS - 1 > query) hopper_mask_keys(s->scores, a, w->head, key, query, rows);
    int first = opaque(lane_id()) % 4 * 2;
    UNROLL for (int i = 0; i < 32; i += 4)
        UNROLL for (int e = 0; e < 2; e++) {
            float log_sum = rows->row[i * 2 + first + e].log_sum;
            UNROLL for (int r = 0; r < 4; r += 2) s->scores[i + r + e] = exp2_or_zero(__builtin_fmaf(s->scores[i + r + e], a->scale, -log_sum));
        }
}
INLINE void d_scores_of_columns(GradSums *s, LOCAL const HopperRows *rows) {
    int first = opaque(lane_id()) % 4 * 2;
    UNROLL for (int i = 0; i < 32; i += 4)
        UNROLL for (int e = 0; e < 2; e++) {
            float delta = rows->row[i * 2 + first + e].delta;
            UNROLL for (int r = 0; r < 4; r += 2) s->d_weights[i + r + e] = s->scores[i + r + e] * (s->d_weights[i + r + e] - delta);
        }
}

INLINE void hopper_gradient_of_keys(const AttentionGradHopper *g, uint64_t qkv, uint64_t d_out, const GradShape shape) {
    const int width = shape.width, tile = shape.tile, stages = shape.stages, block_rows = shape.groups * GROUP_ROWS;
    const Attention *a = &g->attention;
    int sequence = block_x() / a->kv_heads, kv_head = block_x() % a->kv_heads, heads = a->heads / a->kv_heads, first_key = block_y() * block_rows;
    int group = wave_id() / 4, key = first_key + group * GROUP_ROWS;
    GradBlock block = grad_block(shape);
    TileWalk walk = {.sequence = sequence, .first = first_key / tile, .head = kv_head * heads, .tile = first_key / tile};
    walk.last = hopper_last_touched(g, sequence, walk.first, first_key + block_rows - 1);
    TileWalk ahead = walk;
    int count = (walk.last - walk.first + 1) * heads;
    if (block.fills) {
        grad_open(&block, shape, qkv, (a->heads + kv_head) * width, qkv, (a->heads + a->kv_heads + kv_head) * width, first_key, sequence);
        for (int i = 0; i < stages && i < count; i++) queries_fill(&block, shape, qkv, d_out, g, &ahead, i);
    }
    barrier();

    GradSums sums;
    Ring ring = {0}, done = {0};
    LOCAL const bf16 *own = block.own + group * GROUP_ROWS * width;
    sums_clear(sums.u, width), sums_clear(sums.v, width);
    first_products(&sums, shape, &block, own);
    weights_of_columns(&sums, a, &walk, key, block.rows);
    d_scores_of_columns(&sums, block.rows);
    sums_to_operand(sums.weights, sums.scores, tile);
    sums_to_operand(sums.d_scores, sums.d_weights, tile);
    for (int i = 1; i < count; i++) {
        ring_on(&ring, stages);
        tile_walk_on(&walk);
        LOCAL const bf16 *now = grad_stage(&block, shape, ring.stage);
        LOCAL const HopperRows *rows = block.rows + ring.stage;
        shared_barrier_wait(block.full + ring.stage, ring.turn);
        warp_barrier();
        wgmma_begin(sums.scores, tile), wgmma_begin(sums.v, width), wgmma_begin(sums.u, width);
        scores_of_tile(&sums, shape, own, now);
        sums_start(&sums, shape, true, grad_stage(&block, shape, done.stage));
        wgmma_wait(sums.scores, tile, 1);
        weights_of_columns(&sums, a, &walk, key, rows);
        sums_here(sums.scores, tile);
        wgmma_wait(sums.v, width, 0);
        wgmma_wait(sums.u, width, 0);
        wgmma_begin(sums.d_weights, tile); /* only now: dP takes the registers of the operands that were */
        d_weights_of_tile(&sums, shape, own, now);
        sums_to_operand(sums.weights, sums.scores, tile);
        wgmma_wait(sums.d_weights, tile, 0);
        d_scores_of_columns(&sums, rows);
        sums_to_operand(sums.d_scores, sums.d_weights, tile);
        bool more = block.fills && i - 1 + stages < count;
        grad_release(&block, &done, more);
        if (more) queries_fill(&block, shape, qkv, d_out, g, &ahead, done.stage);
        ring_on(&done, stages);
    }
    wgmma_begin(sums.v, width), wgmma_begin(sums.u, width);
    sums_start(&sums, shape, true, grad_stage(&block, shape, done.stage));
    wgmma_wait(sums.v, width, 0);
    wgmma_wait(sums.u, width, 0);
    int64_t to = (int64_t)sequence * a->length * a->key_stride + kv_head * width;
    float factor = a->scale * LN_2;
    store_sums(g->d_keys + to, a->key_stride, sums.u, width, key, a->length, (float[]){factor, factor});
    store_sums(g->d_values + to, a->key_stride, sums.v, width, key, a->length, (float[]){1, 1});
}

#endif
#endif
