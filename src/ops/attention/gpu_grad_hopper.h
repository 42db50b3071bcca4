/* The gradient of attention on NVIDIA's Hopper, for heads of 64 and 128 columns, in one pass of five products (FlashAttention-3, arXiv 2407.08608);
 * attention_grad.c launches it where the device, the shapes and the alignment allow. A block owns 128 keys of one key-value head, 64 per warpgroup, and goes
 * over tiles of queries of all heads of the group, on transposed scores:
 *     S = K Q^T,  dP = V dO^T,  P = exp(S - log_sum),  dS = P * (dP - delta),  dV += P dO,  dK += dS Q,  dQ += dS^T K
 * dK and dV are sums in registers. dS goes through shared memory, whence both groups take it: each makes half of the tile's dQ, over all 128 keys. The
 * products that use dS run while the scores of the next tile are made and its exponentials taken.
 *
 * dQ is a sum over blocks in fp32, to which the copy engine adds. Each tile of queries has a mark: which block of keys added last. A block waits for the
 * one before it in the order, so sums have one order. Blocks of keys are handed out by a counter, and a block waits only for those that were handed out
 * before it: none waits for ever, however few of them run at once.
 *
 * Of a third warpgroup four threads are at work: one fetches tiles, three add to dQ. A kernel before the pass makes, for each head and 64 queries, what it
 * needs of them in one piece, HopperRows, and clears marks and counter; a second one lists the blocks of keys; one behind the pass rounds dQ. */
#pragma once

#include "ops/attention/gpu_hopper.h"

/* Of 64 queries, those beyond the last one with log_sum = infinity, so that their weights are zero. */
typedef struct HopperRows {
    float log_sum[64], delta[64];             /* log_sum to base 2 */
    int32_t low[64];                          /* first keys that they see */
    int32_t low_least, low_most, first, head; /* of all of them; their first row; their head */
} HopperRows;

/* A block of keys, and the tiles of queries `first` .. `last` of heads `head` .. `end_head` - 1 that it goes over. In the sums of dQ it follows block +
 * `follows`, 1 or -1; `before` is the last tile of block - 1. */
typedef struct GradItem { int32_t sequence, head, end_head, block, first, last, before, follows; } GradItem;

enum {
    GRAD_KEYS = 128,     /* of a block */
    GRAD_GROUPS = 2,     /* that multiply */
    GRAD_PART = 64 * 64, /* sums of dQ that a group makes of a tile */
    GRAD_STAGES = 3,
    GRAD_ITEMS = 4,
    GRAD_BARRIERS = 2 * GRAD_STAGES + 12,
};

typedef struct AttentionGradHopper {
    TensorMap qkv, d_out_map;
    Attention attention;
    GLOBAL const bf16 *d_out, *out;
    GLOBAL const float *log_sum;
    GLOBAL float *sums;                         /* of dQ: [sequences][heads][tiles][2][GRAD_PART], in the order of a group's registers */
    GLOBAL HopperRows *rows;                    /* [sequences][heads][tiles * tile / 64] */
    GLOBAL int32_t *marks;                      /* [sequences][heads][tiles]: 1 + the block of keys that added last */
    GLOBAL int32_t *next;                       /* item to hand out */
    GLOBAL bf16 *d_queries, *d_keys, *d_values; /* strides as of queries and keys */
    GLOBAL GradItem *list;                      /* [items] */
    int32_t tiles, blocks;                      /* of queries and of keys in a sequence */
    int32_t items, chunks;                      /* blocks of keys in all; see hopper_items */
} AttentionGradHopper;

/* Columns of a head, and queries of a tile. */
typedef struct GradShape { int width, tile; } GradShape;
static inline GradShape grad_shape(int width) { return (GradShape){width, width == 64 ? 128 : 64}; }

static inline int grad_shared(GradShape s) {
    int elements = 2 * GRAD_KEYS * s.width + GRAD_STAGES * 2 * s.tile * s.width + GRAD_KEYS * s.tile;
    return elements * 2 + GRAD_GROUPS * GRAD_PART * 4 + GRAD_STAGES * s.tile / 64 * (int)sizeof(HopperRows) + GRAD_BARRIERS * 8 +
           GRAD_ITEMS * (int)sizeof(GradItem);
}

#if defined GPU_DEVICE && defined __CUDA_ARCH_FEAT_SM90_ALL

/* -- Before the pass ----------------------------------------------------------------------------------------------- */

/* The dot products of 16 rows of a warp, four or two at a time. */
INLINE void hopper_deltas(const AttentionGradHopper *g, GLOBAL HopperRows *to, const int width, int64_t base, int head, int first_row) {
    const int lanes = width / 8, at_once = WAVE / lanes, count = 16 / at_once;
    const Attention *a = &g->attention;
    int first = wave_id() * 16 + lane_id() / lanes;
    u32x4 x[8], y[8];
    UNROLL for (int i = 0; i < count; i++) {
        int row = least(first_row + first + i * at_once, a->length - 1);
        int64_t at = ((base + row) * a->heads + head) * width + lane_id() % lanes * 8;
        x[i] = *(GLOBAL const u32x4 *)(g->d_out + at), y[i] = *(GLOBAL const u32x4 *)(g->out + at);
    }
    UNROLL for (int i = 0; i < count; i++) {
        float sum = 0;
        UNROLL for (int e = 0; e < 4; e++) sum +=
            to_float_low(x[i][e]) * to_float_low(y[i][e]) + to_float_high(x[i][e]) * to_float_high(y[i][e]);
        UNROLL for (int mask = lanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
        int row = first + i * at_once;
        bool there = first_row + row < a->length;
        if (lane_id() % lanes == 0) {
            to->delta[row] = there ? sum : 0;
            to->log_sum[row] = there ? g->log_sum[(base + first_row + row) * a->heads + head] * LOG2_E : __builtin_inff();
        }
    }
}

/* A block of 128 threads for each 64 rows, in whole tiles, and head. */
INLINE void hopper_rows(const AttentionGradHopper *g, const GradShape s) {
    const Attention *a = &g->attention;
    int pieces = g->tiles * (s.tile / 64), sequence = block_x() / pieces, piece = block_x() % pieces, head = block_y(), first = piece * 64;
    int64_t base = (int64_t)sequence * a->length, at = ((int64_t)sequence * a->heads + head) * pieces + piece;
    GLOBAL HopperRows *to = g->rows + at;
    hopper_deltas(g, to, s.width, base, head, first);
    if (wave_id() > 0) return;
    Extremes seen = hopper_extremes(a, base, first, 64);
    UNROLL for (int i = 0; i < 64; i += WAVE) to->low[i + lane_id()] =
        attention_interval(a, base, least(first + i + lane_id(), a->length - 1)).low;
    if (lane_id() > 0) return;
    to->low_least = seen.low_least, to->low_most = seen.low_most, to->first = first, to->head = head;
    if (piece % (s.tile / 64) == 0) g->marks[at / (s.tile / 64)] = 0;
    if (block_x() == 0 && head == 0) *g->next = 0;
}

/* Item number block_x(). Groups, one per sequence and key-value head, are cut into chunks of as many as run side by side. In even ones blocks come in falling
 * order, and items grow longer; in odd ones in rising order, and they get shorter: so items end together, and sums follow in the order in which blocks come
 * to a tile by themselves. By a warp. */
INLINE void hopper_items(const AttentionGradHopper *g, const GradShape s) {
    const int pieces = s.tile / 64;
    int ticket = block_x(), groups = g->items / g->blocks, chunk = (int)((int64_t)(ticket / g->blocks) * g->chunks / groups);
    int start = (int)(((int64_t)chunk * groups + g->chunks - 1) / g->chunks),
        end = (int)((((int64_t)chunk + 1) * groups + g->chunks - 1) / g->chunks);
    int at = ticket - start * g->blocks, group = start + at % (end - start), rank = at / (end - start),
        heads = g->attention.heads / g->attention.kv_heads;
    GradItem item = {
        .sequence = group / g->attention.kv_heads, .head = group % g->attention.kv_heads * heads, .follows = chunk % 2 == 0 ? 1 : -1};
    item.end_head = item.head + heads;
    item.block = item.follows > 0 ? g->blocks - 1 - rank : rank;
    item.first = item.block * GRAD_KEYS / s.tile;
    int keys = item.block * GRAD_KEYS, last = item.first * pieces, before = -1;
    GLOBAL const HopperRows *rows = g->rows + (int64_t)item.sequence * g->attention.heads * g->tiles * pieces;
    for (int i = item.first * pieces + lane_id(); i < g->tiles * pieces; i += WAVE) {
        int low = rows[i].low_least;
        if (low < keys + GRAD_KEYS) last = i;
        if (low < keys) before = i;
    }
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) {
        last = most(last, (int)shuffle(last, lane_id() ^ mask));
        before = most(before, (int)shuffle(before, lane_id() ^ mask));
    }
    item.last = last / pieces, item.before = before < 0 ? -1 : before / pieces;
    if (lane_id() == 0) g->list[ticket] = item;
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

/* Steps of an item: heads, and the tiles of each of them. Tiles rise where that lets blocks that run side by side come to a tile shortly one after the
 * other, while it is in the cache: items of a falling order begin together, those of a rising one end together. */
typedef struct GradWalk { int tile, head; } GradWalk;
INLINE bool grad_rises(LOCAL const GradItem *item, int head) { return item->follows > 0 ? head == item->head : head < item->end_head - 1; }
INLINE GradWalk grad_walk(LOCAL const GradItem *item) {
    return (GradWalk){grad_rises(item, item->head) ? item->first : item->last, item->head};
}
INLINE void grad_walk_on(GradWalk *w, LOCAL const GradItem *item) {
    bool rises = grad_rises(item, w->head);
    if (w->tile != (rises ? item->last : item->first)) {
        w->tile += rises ? 1 : -1;
        return;
    }
    w->head++;
    w->tile = grad_rises(item, w->head) ? item->first : item->last;
}
INLINE int grad_steps(LOCAL const GradItem *item) { return (item->last - item->first + 1) * (item->end_head - item->head); }
/* Number of the tile of queries and head that a walk has come to. */
INLINE int64_t grad_place(const AttentionGradHopper *g, LOCAL const GradItem *item, const GradWalk *w) {
    return ((int64_t)item->sequence * g->attention.heads + w->head) * g->tiles + w->tile;
}

/* -- Shared memory of a block -------------------------------------------------------------------------------------- */

/* K and V; stages, each a tile of Q and one of dO, and their `rows`; dS, [key][query] in panels; the tile's dQ; the item under way and
 * the next or the last one, without heads at the end. Of each barrier `full` says that something has come, `empty` that it is not needed any more;
 * there are two of `sums_full` and `turns` for even and odd steps. */
typedef struct GradBlock {
    LOCAL bf16 *keys, *values, *tiles, *d_scores;
    LOCAL float *sums;
    LOCAL HopperRows *rows;
    SharedBarrier full, empty, keys_full, keys_empty, d_scores_full, d_scores_empty, sums_full, sums_empty, turns;
    LOCAL GradItem *items;
} GradBlock;

INLINE GradBlock grad_block(const GradShape s) {
    GradBlock b = {.keys = hopper_tiles, .values = hopper_tiles + GRAD_KEYS * s.width, .tiles = hopper_tiles + 2 * GRAD_KEYS * s.width};
    b.d_scores = b.tiles + GRAD_STAGES * 2 * s.tile * s.width;
    b.sums = (LOCAL float *)(b.d_scores + GRAD_KEYS * s.tile);
    b.rows = (LOCAL HopperRows *)(b.sums + GRAD_GROUPS * GRAD_PART);
    b.full = (SharedBarrier)(b.rows + GRAD_STAGES * s.tile / 64);
    b.empty = b.full + GRAD_STAGES;
    b.keys_full = b.empty + GRAD_STAGES, b.keys_empty = b.keys_full + 1;
    b.d_scores_full = b.keys_full + 2, b.d_scores_empty = b.keys_full + 3;
    b.sums_full = b.keys_full + 4, b.sums_empty = b.sums_full + 2 * GRAD_GROUPS;
    b.turns = b.sums_empty + GRAD_GROUPS;
    b.items = (LOCAL GradItem *)(b.full + GRAD_BARRIERS);
    return b;
}
INLINE LOCAL bf16 *grad_stage(const GradBlock *b, const GradShape s, int stage) { return b->tiles + stage * 2 * s.tile * s.width; }
INLINE LOCAL HopperRows *grad_rows(const GradBlock *b, const GradShape s, int stage) { return b->rows + stage * (s.tile / 64); }

/* By one thread. */
INLINE void grad_open(const GradBlock *b) {
    const int warps = GRAD_GROUPS * 4;
    for (int i = 0; i < GRAD_STAGES; i++) shared_barrier_init(b->full + i, 1), shared_barrier_init(b->empty + i, warps);
    shared_barrier_init(b->keys_full, 1), shared_barrier_init(b->keys_empty, warps + 3);
    shared_barrier_init(b->d_scores_full, warps), shared_barrier_init(b->d_scores_empty, warps);
    for (int i = 0; i < 2; i++) shared_barrier_init(b->turns + i, 1);
    for (int i = 0; i < 2 * GRAD_GROUPS; i++) shared_barrier_init(b->sums_full + i, 4);
    for (int i = 0; i < GRAD_GROUPS; i++) shared_barrier_init(b->sums_empty + i, 1);
    shared_to_async();
}

/* By a warp: all its lanes are done with what they did before. */
INLINE void warp_arrive(SharedBarrier b) {
    warp_barrier();
    if (lane_id() == 0) shared_barrier_arrive(b);
}

/* -- The thread that fetches --------------------------------------------------------------------------------------- */

/* The tile that the walk has come to, to the stage of `ring` once it is empty; goes on to the next ones. */
INLINE void queries_fetch(const GradBlock *b, const GradShape s, uint64_t map, const AttentionGradHopper *g, LOCAL const GradItem *item,
    GradWalk *w, Ring *ring) {
    const int bytes = s.tile / 64 * (int)sizeof(HopperRows);
    SharedBarrier full = b->full + ring->stage;
    LOCAL bf16 *to = grad_stage(b, s, ring->stage);
    if (ring->turn > 0) shared_barrier_wait(b->empty + ring->stage, ring->turn - 1);
    shared_barrier_expect(full, 2 * s.tile * s.width * 2 + bytes);
    copy_bytes(grad_rows(b, s, ring->stage), g->rows + grad_place(g, item, w) * (s.tile / 64), bytes, full);
    copy_rows(to, map, s.width, s.tile, w->head * s.width, w->tile * s.tile, item->sequence, full);
    copy_rows(to + s.tile * s.width, map + sizeof(TensorMap), s.width, s.tile, w->head * s.width, w->tile * s.tile, item->sequence, full);
    ring_on(ring, GRAD_STAGES);
    grad_walk_on(w, item);
}

INLINE void keys_fetch(const GradBlock *b, const GradShape s, uint64_t map, const Attention *a, LOCAL const GradItem *item) {
    int column = (a->heads + item->head / (item->end_head - item->head)) * s.width, row = item->block * GRAD_KEYS;
    shared_barrier_expect(b->keys_full, 2 * GRAD_KEYS * s.width * 2);
    copy_rows(b->keys, map, s.width, GRAD_KEYS, column, row, item->sequence, b->keys_full);
    copy_rows(b->values, map, s.width, GRAD_KEYS, column + a->kv_heads * s.width, row, item->sequence, b->keys_full);
}

/* The first queries of an item are on their way before the keys of the one before are free. By one thread. */
INLINE void grad_fetch(const AttentionGradHopper *g, const GradShape s, const GradBlock *b, uint64_t map) {
    Ring ring = {0};
    for (int turn = 0;; turn++) {
        LOCAL GradItem *item = b->items + turn % GRAD_ITEMS;
        int ticket = take_ticket(g->next);
        bool more = ticket < g->items;
        item->end_head = 0;
        if (more) {
            GLOBAL const u32x4 *from = (GLOBAL const u32x4 *)(g->list + ticket);
            ((LOCAL u32x4 *)item)[0] = from[0], ((LOCAL u32x4 *)item)[1] = from[1];
        }
        GradWalk walk = grad_walk(item);
        if (more) queries_fetch(b, s, map, g, item, &walk, &ring);
        if (turn > 0) shared_barrier_wait(b->keys_empty, turn - 1);
        if (!more) break;
        keys_fetch(b, s, map, &g->attention, item);
        for (int left = grad_steps(item); left > 1; left--) queries_fetch(b, s, map, g, item, &walk, &ring);
    }
    shared_barrier_arrive(b->keys_full);
}

/* -- The threads that add to dQ ------------------------------------------------------------------------------------ */

/* Whether nobody adds to a tile before the item does. */
INLINE bool grad_overwrites(const GradShape s, LOCAL const GradItem *item, int tile) {
    return item->follows > 0 ? item->block == tile * s.tile / GRAD_KEYS : item->block == 0 || tile > item->before;
}

/* One thread awaits the turns of steps ahead of those that add, and says so by `turns`. */
INLINE void queries_await(
    const AttentionGradHopper *g, const GradShape s, const GradBlock *b, LOCAL const GradItem *item, const GradWalk *w, int step) {
    if (!grad_overwrites(s, item, w->tile)) await_value(g->marks + grad_place(g, item, w), item->block + item->follows + 1);
    if (step > 0) shared_barrier_wait(b->sums_empty, step - 1);
    shared_barrier_arrive(b->turns + step % 2);
}

/* Both groups' parts of step number `step` of the block to where they belong. */
INLINE void queries_add(
    const AttentionGradHopper *g, const GradShape s, const GradBlock *b, LOCAL const GradItem *item, const GradWalk *w, int step) {
    int place = (int)grad_place(g, item, w);
    bool begins = grad_overwrites(s, item, w->tile);
    shared_barrier_wait(b->turns + step % 2, step / 2);
    global_to_async();
    UNROLL for (int i = 0; i < GRAD_GROUPS; i++) {
        GLOBAL float *to = g->sums + ((int64_t)place * GRAD_GROUPS + i) * GRAD_PART;
        shared_barrier_wait(b->sums_full + step % 2 * GRAD_GROUPS + i, step / 2);
        if (begins) copy_back(to, b->sums + i * GRAD_PART, GRAD_PART * 4);
        else add_back(to, b->sums + i * GRAD_PART, GRAD_PART * 4);
        copy_out_commit();
    }
    copies_read();
    UNROLL for (int i = 0; i < GRAD_GROUPS; i++) shared_barrier_arrive(b->sums_empty + i);
    copies_done();
    release_value(g->marks + place, item->block + 1);
}

/* Thread number `role`: 0 and 1 add in even and odd steps, since it takes longer than a step until all see a sum; 2 awaits. */
INLINE void grad_add(const AttentionGradHopper *g, const GradShape s, const GradBlock *b, int role) {
    int step = 0;
    for (int turn = 0;; turn++) {
        LOCAL const GradItem *item = b->items + turn % GRAD_ITEMS;
        shared_barrier_wait(b->keys_full, turn);
        shared_barrier_arrive(b->keys_empty);
        if (item->end_head == 0) return;
        GradWalk walk = grad_walk(item);
        for (int left = grad_steps(item); left > 0; left--) {
            if (role == 2) queries_await(g, s, b, item, &walk, step);
            else if (role == step % 2) queries_add(g, s, b, item, &walk, step);
            grad_walk_on(&walk, item);
            step++;
        }
    }
}

/* -- The groups that multiply -------------------------------------------------------------------------------------- */

/* What a group has in registers: S then P, dP then dS; the sums; P as operand. */
typedef struct GradSums {
    float scores[64], d_weights[64], d_queries[32], d_keys[64], d_values[64];
    uint32_t weights[32];
} GradSums;

/* Starts S or dP of a tile: the group's own rows times the tile's. */
INLINE void product_start(float *sums, const GradShape s, LOCAL const bf16 *own, LOCAL const bf16 *tile) {
    Descriptor a = operand_at(own, 0), b = operand_at(tile, 0);
    UNROLL for (int k = 0; k < s.width / 16; k++)
        wgmma_shared(sums, s.tile, operand_further(a, depth_bytes(GRAD_KEYS, k)), operand_further(b, depth_bytes(s.tile, k)), k > 0, 0);
    wgmma_commit();
}

/* Starts the group's part of dQ: the second half of the queries or of the columns is the second group's. */
INLINE void queries_start(float *sums, const GradShape s, const GradBlock *b, int group) {
    const int panel = GRAD_KEYS * PANEL_COLUMNS;
    Descriptor d_scores = operand_at(b->d_scores + (s.tile == 128 ? group * panel : 0), panel * 2);
    Descriptor keys = operand_at(b->keys + (s.width == 128 ? group * panel : 0), panel * 2);
    UNROLL for (int k = 0; k < GRAD_KEYS / 16; k++) wgmma_transposed_64(
        sums, operand_further(d_scores, depth_bytes_transposed(k)), operand_further(keys, depth_bytes_transposed(k)), k > 0, 1);
    wgmma_commit();
}

/* Starts to add P dO. */
INLINE void values_add(GradSums *sums, const GradShape s, LOCAL const bf16 *stage) {
    Descriptor d_out = operand_at(stage + s.tile * s.width, s.tile * 128);
    UNROLL for (int k = 0; k < s.tile / 16; k++)
        wgmma_registers(sums->d_values, s.width, sums->weights + 4 * k, operand_further(d_out, depth_bytes_transposed(k)), true, 1);
    wgmma_commit();
}
/* Starts to add dS Q. */
INLINE void keys_add(GradSums *sums, const GradShape s, const GradBlock *b, int group, LOCAL const bf16 *stage) {
    Descriptor queries = operand_at(stage, s.tile * 128), d_scores = operand_at(b->d_scores + group * GROUP_ROWS * PANEL_COLUMNS, 0);
    UNROLL for (int k = 0; k < s.tile / 16; k++) wgmma_shared(sums->d_keys, s.width, operand_further(d_scores, depth_bytes(GRAD_KEYS, k)),
        operand_further(queries, depth_bytes_transposed(k)), true, 1);
    wgmma_commit();
}

INLINE void sums_clear(float *x, const int columns) { UNROLL for (int i = 0; i < columns / 2; i++) x[i] = 0; }

/* Transposed scores: rows are keys from `key` on, columns the tile's queries. */
INLINE void hopper_mask_keys(float *x, const int tile, const Attention *a, int key, LOCAL const HopperRows *rows) {
    float slope = attention_slope(a, rows->head);
    int lane = opaque(lane_id()), first = lane % 4 * 2, from = key + opaque(wave_id()) % 4 * 16 + lane / 4;
    UNROLL for (int i = 0; i < tile / 2; i += 4) UNROLL for (int e = 0; e < 2; e++) {
        int column = i * 2 + first + e, low = rows[i / 32].low[i * 2 % 64 + first + e], high = rows->first + column;
        UNROLL for (int r = 0; r < 2; r++) {
            int number = from + r * 8;
            float biased = x[i + 2 * r + e] + slope * (float)(number - high);
            x[i + 2 * r + e] = (unsigned)(number - low) <= (unsigned)(high - low) ? biased : -__builtin_inff();
        }
    }
}

INLINE bool keys_all_seen(const GradShape s, int key, LOCAL const HopperRows *rows) {
    int low = rows[0].low_most;
    UNROLL for (int i = 1; i < s.tile / 64; i++) low = most(low, rows[i].low_most);
    return key >= low && key + GROUP_ROWS - 1 <= rows->first;
}

/* S -> P of 64 keys from `key` on, then dP -> dS, where columns are queries. */
INLINE void weights_of_columns(GradSums *sums, const GradShape s, const Attention *a, int key, LOCAL const HopperRows *rows) {
    int first = opaque(lane_id()) % 4 * 2;
    if (a->alibi > 0 || !keys_all_seen(s, key, rows)) hopper_mask_keys(sums->scores, s.tile, a, key, rows);
    UNROLL for (int i = 0; i < s.tile / 2; i += 4) {
        f32x2 log_sum = *(LOCAL const f32x2 *)(rows[i / 32].log_sum + i * 2 % 64 + first);
        UNROLL for (int j = 0; j < 4; j++) sums->scores[i + j] =
            exp2_or_zero(__builtin_fmaf(sums->scores[i + j], a->scale, -log_sum[j % 2]));
    }
}
INLINE void d_scores_of_columns(GradSums *sums, const GradShape s, LOCAL const HopperRows *rows) {
    int first = opaque(lane_id()) % 4 * 2;
    UNROLL for (int i = 0; i < s.tile / 2; i += 4) {
        f32x2 delta = *(LOCAL const f32x2 *)(rows[i / 32].delta + i * 2 % 64 + first);
        UNROLL for (int j = 0; j < 4; j++) sums->d_weights[i + j] = sums->scores[i + j] * (sums->d_weights[i + j] - delta[j % 2]);
    }
}

/* dS of step number `step` to shared memory, once nobody reads the one before. */
INLINE void d_scores_store(const GradBlock *b, const GradShape s, const GradSums *sums, int group, int step) {
    uint32_t words[32];
    sums_to_operand(words, sums->d_weights, s.tile);
    if (step > 0) shared_barrier_wait(b->d_scores_empty, step - 1);
    warp_barrier();
    operand_to_rows(b->d_scores + group * GROUP_ROWS * PANEL_COLUMNS, GRAD_KEYS * PANEL_COLUMNS, words, s.tile);
    shared_to_async();
    warp_arrive(b->d_scores_full);
}

/* The group's part of dQ of step number `step` to shared memory. */
INLINE void queries_store(const GradBlock *b, const float *x, int group, int step) {
    LOCAL f32x4 *to = (LOCAL f32x4 *)(b->sums + group * GRAD_PART) + opaque(thread_id()) % WARPGROUP;
    if (step > 0) shared_barrier_wait(b->sums_empty + group, step - 1);
    UNROLL for (int i = 0; i < 8; i++) to[i * WARPGROUP] = (f32x4){x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    shared_to_async();
    warp_arrive(b->sums_full + step % 2 * GRAD_GROUPS + group);
}

/* Both products of the first tile, and its dS. */
INLINE void first_step(
    GradSums *sums, const AttentionGradHopper *g, const GradShape s, const GradBlock *b, int key, const Ring *ring, int group, int step) {
    LOCAL const bf16 *stage = grad_stage(b, s, ring->stage);
    LOCAL const HopperRows *rows = grad_rows(b, s, ring->stage);
    int own = group * GROUP_ROWS * PANEL_COLUMNS;
    shared_barrier_wait(b->full + ring->stage, ring->turn);
    warp_barrier();
    wgmma_begin(sums->scores, s.tile), wgmma_begin(sums->d_weights, s.tile);
    product_start(sums->scores, s, b->keys + own, stage);
    product_start(sums->d_weights, s, b->values + own, stage + s.tile * s.width);
    wgmma_wait(sums->scores, s.tile, 1);
    weights_of_columns(sums, s, &g->attention, key, rows);
    sums_here(sums->scores, s.tile);
    wgmma_wait(sums->d_weights, s.tile, 0);
    d_scores_of_columns(sums, s, rows);
    sums_to_operand(sums->weights, sums->scores, s.tile);
    d_scores_store(b, s, sums, group, step);
}

/* The products of the tile in stage `before`, and the weights of the one that the ring has come to. */
INLINE void next_step(
    GradSums *sums, const AttentionGradHopper *g, const GradShape s, const GradBlock *b, int key, Ring *ring, int group, int step) {
    int before = ring->stage;
    ring_on(ring, GRAD_STAGES);
    LOCAL const bf16 *stage = grad_stage(b, s, ring->stage), *last = grad_stage(b, s, before);
    LOCAL const HopperRows *rows = grad_rows(b, s, ring->stage);
    int own = group * GROUP_ROWS * PANEL_COLUMNS;
    shared_barrier_wait(b->full + ring->stage, ring->turn);
    warp_barrier();
    wgmma_begin(sums->scores, s.tile), wgmma_begin(sums->d_values, s.width);
    product_start(sums->scores, s, b->keys + own, stage);
    values_add(sums, s, last);
    shared_barrier_wait(b->d_scores_full, step - 1);
    warp_barrier();
    wgmma_begin(sums->d_queries, 64), wgmma_begin(sums->d_keys, s.width);
    queries_start(sums->d_queries, s, b, group);
    keys_add(sums, s, b, group, last);
    wgmma_wait(sums->scores, s.tile, 3);
    weights_of_columns(sums, s, &g->attention, key, rows);
    sums_here(sums->scores, s.tile);
    wgmma_wait(sums->d_values, s.width, 1);
    wgmma_wait(sums->d_queries, 64, 1);
    queries_store(b, sums->d_queries, group, step - 1);
    wgmma_begin(sums->d_weights, s.tile);
    product_start(sums->d_weights, s, b->values + own, stage + s.tile * s.width);
    wgmma_wait(sums->d_keys, s.width, 1);
    warp_arrive(b->d_scores_empty);
    warp_arrive(b->empty + before);
    wgmma_wait(sums->d_weights, s.tile, 0);
    d_scores_of_columns(sums, s, rows);
    sums_to_operand(sums->weights, sums->scores, s.tile);
    d_scores_store(b, s, sums, group, step);
}

/* The products of the last tile, in the stage that the ring has come to. */
INLINE void last_step(GradSums *sums, const GradShape s, const GradBlock *b, Ring *ring, int group, int step) {
    LOCAL const bf16 *stage = grad_stage(b, s, ring->stage);
    wgmma_begin(sums->d_values, s.width);
    values_add(sums, s, stage);
    shared_barrier_wait(b->d_scores_full, step);
    warp_barrier();
    wgmma_begin(sums->d_queries, 64), wgmma_begin(sums->d_keys, s.width);
    queries_start(sums->d_queries, s, b, group);
    keys_add(sums, s, b, group, stage);
    wgmma_wait(sums->d_queries, 64, 1);
    queries_store(b, sums->d_queries, group, step);
    wgmma_wait(sums->d_values, s.width, 0);
    wgmma_wait(sums->d_keys, s.width, 0);
    warp_arrive(b->d_scores_empty);
    warp_arrive(b->empty + ring->stage);
    ring_on(ring, GRAD_STAGES);
}

INLINE void grad_multiply(const AttentionGradHopper *g, const GradShape s, const GradBlock *b) {
    const Attention *a = &g->attention;
    int group = opaque(wave_id()) / 4, step = 0;
    Ring ring = {0};
    for (int turn = 0;; turn++) {
        LOCAL const GradItem *item = b->items + turn % GRAD_ITEMS;
        shared_barrier_wait(b->keys_full, turn);
        if (item->end_head == 0) return;
        GradSums sums;
        int left = grad_steps(item), key = item->block * GRAD_KEYS + group * GROUP_ROWS;
        sums_clear(sums.d_keys, s.width), sums_clear(sums.d_values, s.width);
        first_step(&sums, g, s, b, key, &ring, group, step++);
        while (--left > 0) next_step(&sums, g, s, b, key, &ring, group, step++);
        last_step(&sums, s, b, &ring, group, step - 1);
        item = b->items + opaque(turn) % GRAD_ITEMS;
        int64_t to = (int64_t)item->sequence * a->length * a->key_stride + item->head / (item->end_head - item->head) * s.width;
        warp_arrive(b->keys_empty);
        float factor = a->scale * LN_2;
        store_sums(g->d_keys + to, a->key_stride, sums.d_keys, s.width, key, a->length, (float[]){factor, factor});
        store_sums(g->d_values + to, a->key_stride, sums.d_values, s.width, key, a->length, (float[]){1, 1});
    }
}

INLINE void hopper_gradient(const AttentionGradHopper *g, uint64_t maps, const GradShape s) {
    GradBlock block = grad_block(s);
    if (thread_id() == 0) grad_open(&block);
    barrier();
    if (wave_id() >= GRAD_GROUPS * 4) {
        registers_leave(24);
        if (lane_id() > 0) return;
        if (wave_id() == GRAD_GROUPS * 4) grad_fetch(g, s, &block, maps);
        else grad_add(g, s, &block, wave_id() - GRAD_GROUPS * 4 - 1);
    } else {
        registers_take(240);
        grad_multiply(g, s, &block);
    }
}

/* -- Behind the pass ----------------------------------------------------------------------------------------------- */

/* dQ in bf16: a block of 256 threads for each tile and head, which hold the sums as the groups did. */
INLINE void hopper_queries_round(const AttentionGradHopper *g, const GradShape s) {
    const Attention *a = &g->attention;
    int sequence = block_x() / g->tiles, tile = block_x() % g->tiles, head = block_y(), group = wave_id() / 4;
    int64_t place = ((int64_t)sequence * a->heads + head) * g->tiles + tile;
    GLOBAL const f32x4 *from = (GLOBAL const f32x4 *)(g->sums + (place * GRAD_GROUPS + group) * GRAD_PART);
    float x[32], factor = a->scale * LN_2;
    UNROLL for (int i = 0; i < 8; i++) {
        f32x4 four = from[i * WARPGROUP + thread_id() % WARPGROUP];
        UNROLL for (int e = 0; e < 4; e++) x[4 * i + e] = four[e];
    }
    int first = tile * s.tile + (s.tile == 128 ? group * 64 : 0), column = head * s.width + (s.width == 128 ? group * 64 : 0);
    store_sums(g->d_queries + (int64_t)sequence * a->length * a->query_stride + column, a->query_stride, x, 64, first, a->length,
        (float[]){factor, factor});
}

#endif
