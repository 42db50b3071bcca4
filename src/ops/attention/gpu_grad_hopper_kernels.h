/* The gradient of attention on NVIDIA's Hopper, for heads of 64 and of 128 columns, in one pass of
 * five matmuls (FlashAttention-3, arXiv 2407.08608); grad_gpu.c launches it if device, shapes and
 * alignment allow. A block owns 128 keys of one key-value head, 64 per warpgroup, and iterates over
 * tiles of queries of all heads of the group, on transposed scores:
 *     S = K Q^T,  dP = V dO^T,  P = exp(S - log_sum),  dS = P * (dP - delta),  dV += P dO,  dK += dS Q,  dQ += dS^T K
 * dK and dV are accumulators in registers. dS goes through shared memory, and both groups read it:
 * each computes half of the tile's dQ, over all 128 keys. The matmuls that use dS overlap the
 * scores and exponentials of the next tile.
 *
 * dQ is a sum over blocks in fp32 in global memory, accumulated with bulk reductions. Each tile of
 * queries has a mark: the block of keys that added last. A block waits for its predecessor in the
 * order, so sums have a fixed order. An atomic counter assigns blocks of keys, and a block waits
 * only for blocks assigned before it, so there is no deadlock, however few blocks run at once.
 *
 * If keys have too few blocks to fill the multiprocessors, the heads of a group are divided among
 * `parts` blocks of the same keys. A last kernel adds their fp32 dK and dV in order.
 *
 * Four threads of a third warpgroup work: one copies tiles, three add to dQ. Two kernels run before
 * the pass. One computes HopperRows for each head and 64 queries and clears marks and counter; the
 * other lists the blocks of keys. A kernel after the pass casts dQ to bf16. */
#pragma once

#include "ops/attention/gpu_hopper_kernels.h"

/* Numbers of 64 queries. Queries after the last one have log_sum = infinity, so that their weights
 * are zero. */
typedef struct HopperRows {
    float log_sum[64], delta[64];          /* log_sum to base 2 */
    int32_t low[64], high[64];             /* first and last keys that they see; last keys ascend */
    int32_t low_min, low_max, first, head; /* bounds of low[]; first row; head */
} HopperRows;

/* A block of keys and its tiles of queries: first .. last of the heads head .. end_head - 1. In the
 * sums of dQ it follows block + `follows` (1 or -1) in the tiles that this block visits too: those
 * from `edge` on, or up to `edge`. */
typedef struct GradItem { int32_t sequence, head, end_head, block, first, last, edge, follows; } GradItem;

enum {
    GRAD_KEYS = 128,     /* keys per block */
    GRAD_GROUPS = 2,     /* warpgroups that multiply */
    GRAD_PART = 64 * 64, /* elements of a tile's dQ that one group computes */
    GRAD_STAGES = 3,
    GRAD_ITEMS = 4,
    GRAD_BARRIERS = 2 * GRAD_STAGES + 12,
};

typedef struct AttentionGradHopper {
    TensorMap queries, d_out_map, keys;
    Attention attention;
    GLOBAL const bf16 *d_out, *out;
    GLOBAL const float *log_sum;
    GLOBAL float *sums;                        /* dQ: [sequences][heads][tiles][2][GRAD_PART], in register layout */
    GLOBAL HopperRows *rows;                   /* [sequences][heads][tiles * tile / 64] */
    GLOBAL int32_t *marks;                     /* [sequences][heads][tiles]: 1 + the block of keys that added last; NULL: none */
    GLOBAL int32_t *next;                      /* next item to assign */
    GLOBAL bf16 *d_queries, *d_keys;           /* strides as for queries and keys; gradients of values follow those of keys */
    GLOBAL GradItem *list;                     /* [items] */
    GLOBAL float *partial_keys;                /* [parts][rows][2][kv_heads * width] if parts > 1: dK and dV */
    int64_t key_rows;                          /* of all sequences */
    int32_t tiles, blocks;                     /* tiles of queries and blocks of keys in a sequence */
    int32_t items, chunks;                     /* blocks of keys in total, over all parts; see hopper_items */
    int32_t parts;                             /* number of blocks that divide the heads of a group */
    int32_t all_heads, query_section, section; /* of the wide passes: heads of all sequences; section_place of either pass */
} AttentionGradHopper;

/* Columns of a head and queries of a tile, constants of each kernel. */
typedef struct GradShape { int width, tile; } GradShape;
static inline GradShape grad_shape(int width) { return (GradShape){width, width == 64 ? 128 : 64}; }

static inline int grad_shared(GradShape s) {
    int elements = 2 * GRAD_KEYS * s.width + GRAD_STAGES * 2 * s.tile * s.width + GRAD_KEYS * s.tile;
    return elements * 2 + GRAD_GROUPS * GRAD_PART * 4 + GRAD_STAGES * s.tile / 64 * (int)sizeof(HopperRows) + GRAD_BARRIERS * 8 +
           GRAD_ITEMS * (int)sizeof(GradItem);
}

#if defined GPU_DEVICE && defined __CUDA_ARCH_FEAT_SM90_ALL

/* -- Before the pass ----------------------------------------------------------------------------------------------- */

/* Computes delta and log-sum-exp of a warp's 16 rows, one, two or four at a time. */
INLINE void hopper_deltas(const AttentionGradHopper *g, GLOBAL HopperRows *to, const int width, int64_t base, int head, int first_row) {
    const int lanes = width / 8, at_once = WAVE / lanes, steps = 16 / at_once, held = steps < 8 ? steps : 8;
    const Attention *a = &g->attention;
    int first = wave_id() * 16 + lane_id() / lanes;
    u32x4 x[8], y[8];
    UNROLL for (int step = 0; step < steps; step += held) {
        UNROLL for (int i = 0; i < held; i++) {
            int row = min_int(first_row + first + (step + i) * at_once, a->query_rows.rows - 1);
            int64_t at = ((base + row) * a->heads + head) * width + lane_id() % lanes * 8;
            x[i] = *(GLOBAL const u32x4 *)(g->d_out + at), y[i] = *(GLOBAL const u32x4 *)(g->out + at);
        }
        UNROLL for (int i = 0; i < held; i++) {
            float sum = 0;
            UNROLL for (int e = 0; e < 4; e++) sum +=
                to_float_low(x[i][e]) * to_float_low(y[i][e]) + to_float_high(x[i][e]) * to_float_high(y[i][e]);
            UNROLL for (int mask = lanes / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
            int row = first + (step + i) * at_once;
            bool there = first_row + row < a->query_rows.rows;
            if (lane_id() % lanes > 0) continue;
            to->delta[row] = there ? sum : 0;
            to->log_sum[row] = there ? attention_log_sum(g->log_sum[(base + first_row + row) * a->heads + head]) : __builtin_inff();
        }
    }
}

/* Computes HopperRows of 64 rows of a head with `width` columns of values; one block of 128 threads
 * each. Clears the mark of the tile of `tile` rows, and the counter, if there are any. */
INLINE void hopper_rows(const AttentionGradHopper *g, const int width, const int tile) {
    const Attention *a = &g->attention;
    int pieces = g->tiles * (tile / 64), sequence = block_x() / pieces, piece = block_x() % pieces, head = block_y(), first = piece * 64;
    int64_t base = (int64_t)sequence * a->query_rows.rows, at = ((int64_t)sequence * a->heads + head) * pieces + piece;
    GLOBAL HopperRows *to = g->rows + at;
    hopper_deltas(g, to, width, base, head, first);
    if (wave_id() > 0) return;
    KeyBounds seen = hopper_bounds(a, base, first, 64);
    UNROLL for (int i = 0; i < 64; i += WAVE) {
        RowInterval own = attention_interval(a, base, min_int(first + i + lane_id(), a->query_rows.rows - 1));
        to->low[i + lane_id()] = own.low, to->high[i + lane_id()] = own.high;
    }
    if (lane_id() > 0) return;
    to->low_min = seen.low_min, to->low_max = seen.low_max, to->first = first, to->head = head;
    if (!g->marks) return;
    if (piece % (tile / 64) == 0) g->marks[at / (tile / 64)] = 0;
    if (block_x() == 0 && head == 0) *g->next = 0;
}

/* Returns the first tile with a query after the first key of a block, or the last tile: a block
 * without such a query still processes that tile and adds zeros. */
INLINE int grad_first(const AttentionGradHopper *g, const GradShape s, int block) {
    const Attention *a = &g->attention;
    return min_int(attention_first_query(a, block * GRAD_KEYS) / s.tile, g->tiles - 1);
}

/* Writes item block_x(); called by a warp. Groups, one per sequence, key-value head and part, are
 * cut into chunks of as many groups as run at once. In even chunks blocks come in descending order
 * and items grow longer; in odd chunks they come in ascending order and items get shorter. So items
 * end together, and the order of sums is the natural order in which blocks reach a tile. */
INLINE void hopper_items(const AttentionGradHopper *g, const GradShape s) {
    const int pieces = s.tile / 64;
    int ticket = block_x(), groups = g->items / g->blocks, chunk = (int)((int64_t)(ticket / g->blocks) * g->chunks / groups);
    int start = (int)(((int64_t)chunk * groups + g->chunks - 1) / g->chunks),
        end = (int)((((int64_t)chunk + 1) * groups + g->chunks - 1) / g->chunks);
    int at = ticket - start * g->blocks, group = start + at % (end - start), rank = at / (end - start),
        of_sequence = g->attention.kv_heads * g->parts, heads = g->attention.heads / of_sequence;
    GradItem item = {.sequence = group / of_sequence, .head = group % of_sequence * heads, .follows = chunk % 2 == 0 ? 1 : -1};
    item.end_head = item.head + heads;
    item.block = item.follows > 0 ? g->blocks - 1 - rank : rank;
    item.first = grad_first(g, s, item.block);
    int keys = item.block * GRAD_KEYS, last = item.first * pieces, before = -1;
    GLOBAL const HopperRows *rows = g->rows + (int64_t)item.sequence * g->attention.heads * g->tiles * pieces;
    for (int i = item.first * pieces + lane_id(); i < g->tiles * pieces; i += WAVE) {
        int low = rows[i].low_min;
        if (low < keys + GRAD_KEYS) last = i;
        if (low < keys) before = i;
    }
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) {
        last = max_int(last, (int)shuffle(last, lane_id() ^ mask));
        before = max_int(before, (int)shuffle(before, lane_id() ^ mask));
    }
    item.last = last / pieces;
    if (item.follows > 0) item.edge = item.block + 1 < g->blocks ? grad_first(g, s, item.block + 1) : g->tiles;
    else item.edge = item.block == 0 ? -1 : max_int(before < 0 ? -1 : before / pieces, grad_first(g, s, item.block - 1));
    if (lane_id() == 0) g->list[ticket] = item;
}

/* -- Steps --------------------------------------------------------------------------------------------------------- */

/* Steps of an item: its heads, and within each the tiles. Tiles ascend if concurrent blocks then
 * reach a tile shortly after one another, while it is in the cache: items in descending order start
 * together, items in ascending order end together. */
typedef struct GradWalk { int tile, head; } GradWalk;
INLINE bool grad_ascends(LOCAL const GradItem *item, int head) {
    return item->follows > 0 ? head == item->head : head < item->end_head - 1;
}
INLINE GradWalk grad_walk(LOCAL const GradItem *item) {
    return (GradWalk){grad_ascends(item, item->head) ? item->first : item->last, item->head};
}
INLINE void grad_walk_next(GradWalk *w, LOCAL const GradItem *item) {
    bool ascends = grad_ascends(item, w->head);
    if (w->tile != (ascends ? item->last : item->first)) {
        w->tile += ascends ? 1 : -1;
        return;
    }
    w->head++;
    w->tile = grad_ascends(item, w->head) ? item->first : item->last;
}
INLINE int grad_steps(LOCAL const GradItem *item) { return (item->last - item->first + 1) * (item->end_head - item->head); }
/* Returns the index of the walk's current tile among those of all sequences and heads. */
INLINE int64_t grad_place(const AttentionGradHopper *g, LOCAL const GradItem *item, const GradWalk *w) {
    return ((int64_t)item->sequence * g->attention.heads + w->head) * g->tiles + w->tile;
}

/* -- Shared memory of a block -------------------------------------------------------------------------------------- */

/* K and V; stages, each a tile of Q and one of dO, with their `rows`; dS, [key][query] in panels;
 * the tile's dQ; the current item and its neighbors (the one after the last item has no heads). A
 * `full` barrier means that data has arrived, an `empty` one that it is no longer needed;
 * `sums_full` and `turns` have two, for even and odd steps. */
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

/* Initializes the barriers; called by one thread. */
INLINE void grad_init_barriers(const GradBlock *b) {
    const int warps = GRAD_GROUPS * 4;
    for (int i = 0; i < GRAD_STAGES; i++) shared_barrier_init(b->full + i, 1), shared_barrier_init(b->empty + i, warps);
    shared_barrier_init(b->keys_full, 1), shared_barrier_init(b->keys_empty, warps + 3);
    shared_barrier_init(b->d_scores_full, warps), shared_barrier_init(b->d_scores_empty, warps);
    for (int i = 0; i < 2; i++) shared_barrier_init(b->turns + i, 1);
    for (int i = 0; i < 2 * GRAD_GROUPS; i++) shared_barrier_init(b->sums_full + i, 4);
    for (int i = 0; i < GRAD_GROUPS; i++) shared_barrier_init(b->sums_empty + i, 1);
    fence_shared_to_async();
}

/* Arrives once per warp, after all its lanes. */
INLINE void warp_arrive(SharedBarrier b) {
    warp_barrier();
    if (lane_id() == 0) shared_barrier_arrive(b);
}

/* -- The thread that copies ---------------------------------------------------------------------------------------- */

/* Copies the walk's current tile to the stage of `ring` once the stage is empty; advances both. */
INLINE void queries_fetch(const GradBlock *b, const GradShape s, uint64_t maps, const AttentionGradHopper *g, LOCAL const GradItem *item,
    GradWalk *w, Ring *ring) {
    const int bytes = s.tile / 64 * (int)sizeof(HopperRows);
    SharedBarrier full = b->full + ring->stage;
    LOCAL bf16 *to = grad_stage(b, s, ring->stage);
    if (ring->phase > 0) shared_barrier_wait(b->empty + ring->stage, ring->phase - 1);
    shared_barrier_expect(full, 2 * s.tile * s.width * 2 + bytes);
    copy_bytes(grad_rows(b, s, ring->stage), g->rows + grad_place(g, item, w) * (s.tile / 64), bytes, full);
    copy_rows(to, maps, s.width, s.tile, w->head * s.width, w->tile * s.tile, item->sequence, full);
    copy_rows(to + s.tile * s.width, maps + sizeof(TensorMap), s.width, s.tile, w->head * s.width, w->tile * s.tile, item->sequence, full);
    ring_advance(ring, GRAD_STAGES);
    grad_walk_next(w, item);
}

INLINE void keys_fetch(const GradBlock *b, const GradShape s, uint64_t map, const Attention *a, LOCAL const GradItem *item) {
    int column = item->head / (a->heads / a->kv_heads) * s.width, row = item->block * GRAD_KEYS;
    shared_barrier_expect(b->keys_full, 2 * GRAD_KEYS * s.width * 2);
    copy_rows(b->keys, map, s.width, GRAD_KEYS, column, row, item->sequence, b->keys_full);
    copy_rows(b->values, map, s.width, GRAD_KEYS, column + a->kv_heads * s.width, row, item->sequence, b->keys_full);
}

/* Runs the loop of the copying thread: the first queries of an item are in flight before the keys
 * of the previous item are released. */
INLINE void grad_fetch(const AttentionGradHopper *g, const GradShape s, const GradBlock *b, uint64_t maps) {
    Ring ring = {0};
    for (int index = 0;; index++) {
        LOCAL GradItem *item = b->items + index % GRAD_ITEMS;
        int ticket = take_ticket(g->next);
        bool more = ticket < g->items;
        item->end_head = 0;
        if (more) {
            GLOBAL const u32x4 *from = (GLOBAL const u32x4 *)(g->list + ticket);
            ((LOCAL u32x4 *)item)[0] = from[0], ((LOCAL u32x4 *)item)[1] = from[1];
        }
        GradWalk walk = grad_walk(item);
        if (more) queries_fetch(b, s, maps, g, item, &walk, &ring);
        if (index > 0) shared_barrier_wait(b->keys_empty, index - 1);
        if (!more) break;
        keys_fetch(b, s, maps + 2 * sizeof(TensorMap), &g->attention, item);
        for (int left = grad_steps(item); left > 1; left--) queries_fetch(b, s, maps, g, item, &walk, &ring);
    }
    shared_barrier_arrive(b->keys_full);
}

/* -- The threads that add to dQ ------------------------------------------------------------------------------------ */

/* Returns whether the item is the first to add to a tile of dQ, so that it overwrites. */
INLINE bool grad_overwrites(LOCAL const GradItem *item, int tile) { return item->follows > 0 ? tile < item->edge : tile > item->edge; }

/* Waits until the item's predecessor has added to the step's tile, then arrives at `turns`. One
 * thread does this ahead of the threads that add. */
INLINE void queries_wait_turn(const AttentionGradHopper *g, const GradBlock *b, LOCAL const GradItem *item, const GradWalk *w, int step) {
    if (!grad_overwrites(item, w->tile)) await_value(g->marks + grad_place(g, item, w), item->block + item->follows + 1);
    if (step > 0) shared_barrier_wait(b->sums_empty, step - 1);
    shared_barrier_arrive(b->turns + step % 2);
}

/* Adds both groups' parts of a step to dQ, then sets the tile's mark. */
INLINE void queries_add(const AttentionGradHopper *g, const GradBlock *b, LOCAL const GradItem *item, const GradWalk *w, int step) {
    int place = (int)grad_place(g, item, w);
    bool overwrites = grad_overwrites(item, w->tile);
    shared_barrier_wait(b->turns + step % 2, step / 2);
    fence_global_to_async();
    UNROLL for (int i = 0; i < GRAD_GROUPS; i++) {
        GLOBAL float *to = g->sums + ((int64_t)place * GRAD_GROUPS + i) * GRAD_PART;
        shared_barrier_wait(b->sums_full + step % 2 * GRAD_GROUPS + i, step / 2);
        if (overwrites) bulk_store(to, b->sums + i * GRAD_PART, GRAD_PART * 4);
        else bulk_add(to, b->sums + i * GRAD_PART, GRAD_PART * 4);
        copy_out_commit();
    }
    copies_read();
    UNROLL for (int i = 0; i < GRAD_GROUPS; i++) shared_barrier_arrive(b->sums_empty + i);
    copies_done();
    release_value(g->marks + place, item->block + 1);
}

/* Runs the loop of the adding threads. `role` 0 and 1 add in even and odd steps, because an
 * addition takes longer than a step; role 2 waits for turns. */
INLINE void grad_add(const AttentionGradHopper *g, const GradBlock *b, int role) {
    int step = 0;
    for (int index = 0;; index++) {
        LOCAL const GradItem *item = b->items + index % GRAD_ITEMS;
        shared_barrier_wait(b->keys_full, index);
        shared_barrier_arrive(b->keys_empty);
        if (item->end_head == 0) return;
        GradWalk walk = grad_walk(item);
        for (int left = grad_steps(item); left > 0; left--) {
            if (role == 2) queries_wait_turn(g, b, item, &walk, step);
            else if (role == step % 2) queries_add(g, b, item, &walk, step);
            grad_walk_next(&walk, item);
            step++;
        }
    }
}

/* -- The groups that multiply -------------------------------------------------------------------------------------- */

/* Registers of a group: scores, S then P; d_weights, dP then dS; the sums; weights, P as a bf16
 * operand. */
typedef struct GradSums {
    float scores[64], d_weights[64], d_queries[32], d_keys[64], d_values[64];
    uint32_t weights[32];
} GradSums;

/* Starts the group's part of dQ; the second group has the second half of the queries, or of the
 * columns. */
INLINE void queries_start(float *sums, const GradShape s, const GradBlock *b, int group) {
    const int panel = GRAD_KEYS * PANEL_COLUMNS;
    Descriptor d_scores = descriptor_of(b->d_scores + (s.tile == 128 ? group * panel : 0), panel * 2);
    Descriptor keys = descriptor_of(b->keys + (s.width == 128 ? group * panel : 0), panel * 2);
    UNROLL for (int k = 0; k < GRAD_KEYS / 16; k++) wgmma_transposed_64(
        sums, descriptor_advance(d_scores, depth_bytes_transposed(k)), descriptor_advance(keys, depth_bytes_transposed(k)), k > 0, 1);
    wgmma_commit();
}

/* Starts dK += dS Q. */
INLINE void keys_add(GradSums *sums, const GradShape s, const GradBlock *b, int group, LOCAL const bf16 *stage) {
    Descriptor queries = descriptor_of(stage, s.tile * 128), d_scores = descriptor_of(b->d_scores + group * GROUP_ROWS * PANEL_COLUMNS, 0);
    UNROLL for (int k = 0; k < s.tile / 16; k++) wgmma_shared(sums->d_keys, s.width,
        descriptor_advance(d_scores, depth_bytes(GRAD_KEYS, k)), descriptor_advance(queries, depth_bytes_transposed(k)), true, 1);
    wgmma_commit();
}

INLINE void sums_clear(float *x, const int columns) { UNROLL for (int i = 0; i < columns / 2; i++) x[i] = 0; }

/* Adds the ALiBi bias to transposed scores and sets masked ones to -inf; rows are keys from `key`
 * on, columns are the tile's queries. */
INLINE void hopper_mask_keys(float *x, const int tile, const Attention *a, int key, LOCAL const HopperRows *rows) {
    float slope = attention_slope(a, rows->head);
    int lane = opaque(lane_id()), first = lane % 4 * 2, from = key + opaque(wave_id()) % 4 * 16 + lane / 4;
    int tokens[2] = {token_of_row(&a->key_rows, from), token_of_row(&a->key_rows, from + 8)};
    UNROLL for (int i = 0; i < tile / 2; i += 4) UNROLL for (int e = 0; e < 2; e++) {
        int column = i * 2 % 64 + first + e, low = rows[i / 32].low[column], count = rows[i / 32].high[column] + 1 - low;
        int token = token_of_row(&a->query_rows, rows->first + i * 2 + first + e);
        UNROLL for (int r = 0; r < 2; r++) {
            float biased = x[i + 2 * r + e] + slope * (float)(tokens[r] - token);
            x[i + 2 * r + e] = (unsigned)(from + r * 8 - low) < (unsigned)count ? biased : -__builtin_inff();
        }
    }
}

INLINE bool keys_all_seen(const int tile, int key, LOCAL const HopperRows *rows) {
    int low = rows[0].low_max;
    UNROLL for (int i = 1; i < tile / 64; i++) low = max_int(low, rows[i].low_max);
    return key >= low && key + GROUP_ROWS - 1 <= rows->high[0];
}

/* Converts S to P for 64 keys from `key` on; columns are `tile` queries. */
INLINE void weights_of_columns(
    float *scores, const int tile, const Attention *a, int key, LOCAL const HopperRows *rows, const bool capped) {
    int first = opaque(lane_id()) % 4 * 2;
    if (capped) UNROLL for (int i = 0; i < tile / 2; i++) scores[i] = attention_cap(a, scores[i]);
    if (a->alibi > 0 || !keys_all_seen(tile, key, rows)) hopper_mask_keys(scores, tile, a, key, rows);
    UNROLL for (int i = 0; i < tile / 2; i += 4) {
        f32x2 log_sum = *(LOCAL const f32x2 *)(rows[i / 32].log_sum + i * 2 % 64 + first);
        UNROLL for (int j = 0; j < 4; j++) scores[i + j] = exp2_or_zero(__builtin_fmaf(scores[i + j], a->scale, -log_sum[j % 2]));
    }
}

/* Returns the derivative of the soft-cap. Registers have no room for the capped score, so it is
 * recovered from the weight: log2(P) + log_sum, without ALiBi. For weights of 0 any derivative will do.
 * `per_limit` is 1 / (limit * scale). */
INLINE float cap_slope(float weight, float log_sum, float per_limit) {
    float part = (fast_log2(__builtin_fmaxf(weight, 0x1p-126f)) + log_sum) * per_limit;
    part = __builtin_fminf(__builtin_fmaxf(part, -1), 1);
    return SCORE_CAP_SLOPE(part);
}

/* Converts dP to dS; columns are `tile` queries. */
INLINE void d_scores_of_columns(
    const float *weights, float *d_weights, const int tile, const Attention *a, LOCAL const HopperRows *rows, const bool capped) {
    int first = opaque(lane_id()) % 4 * 2;
    UNROLL for (int i = 0; i < tile / 2; i += 4) {
        f32x2 delta = *(LOCAL const f32x2 *)(rows[i / 32].delta + i * 2 % 64 + first);
        UNROLL for (int j = 0; j < 4; j++) d_weights[i + j] = weights[i + j] * (d_weights[i + j] - delta[j % 2]);
    }
    if (!capped) return;
    float per_limit = fast_reciprocal(a->limit * a->scale);
    UNROLL for (int i = 0; i < tile / 2; i += 4) {
        f32x2 log_sum = *(LOCAL const f32x2 *)(rows[i / 32].log_sum + i * 2 % 64 + first);
        UNROLL for (int j = 0; j < 4; j++) d_weights[i + j] *= cap_slope(weights[i + j], log_sum[j % 2], per_limit);
    }
}

/* Stores the step's dS to shared memory after the previous one has been read. */
INLINE void d_scores_store(const GradBlock *b, const GradShape s, const GradSums *sums, int group, int step) {
    uint32_t words[32];
    sums_to_operand(words, sums->d_weights, s.tile);
    if (step > 0) shared_barrier_wait(b->d_scores_empty, step - 1);
    warp_barrier();
    operand_to_rows(b->d_scores + group * GROUP_ROWS * PANEL_COLUMNS, GRAD_KEYS * PANEL_COLUMNS, words, s.tile);
    fence_shared_to_async();
    warp_arrive(b->d_scores_full);
}

/* Stores the group's part of the step's dQ to shared memory. */
INLINE void queries_store(const GradBlock *b, const float *x, int group, int step) {
    LOCAL f32x4 *to = (LOCAL f32x4 *)(b->sums + group * GRAD_PART) + opaque(thread_id()) % WARPGROUP;
    if (step > 0) shared_barrier_wait(b->sums_empty + group, step - 1);
    UNROLL for (int i = 0; i < 8; i++) to[i * WARPGROUP] = (f32x4){x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]};
    fence_shared_to_async();
    warp_arrive(b->sums_full + step % 2 * GRAD_GROUPS + group);
}

/* Runs the first tile of an item: S, dP and dS. */
INLINE void first_step(GradSums *sums, const AttentionGradHopper *g, const GradShape s, const GradBlock *b, int key, const Ring *ring,
    int group, int step, const bool capped) {
    LOCAL const bf16 *stage = grad_stage(b, s, ring->stage);
    LOCAL const HopperRows *rows = grad_rows(b, s, ring->stage);
    int own = group * GROUP_ROWS * PANEL_COLUMNS;
    shared_barrier_wait(b->full + ring->stage, ring->phase);
    warp_barrier();
    wgmma_begin(sums->scores, s.tile), wgmma_begin(sums->d_weights, s.tile);
    rows_multiply(sums->scores, s.tile, s.width, b->keys + own, GRAD_KEYS, stage);
    rows_multiply(sums->d_weights, s.tile, s.width, b->values + own, GRAD_KEYS, stage + s.tile * s.width);
    wgmma_wait(sums->scores, s.tile, 1);
    weights_of_columns(sums->scores, s.tile, &g->attention, key, rows, capped);
    materialize_sums(sums->scores, s.tile);
    wgmma_wait(sums->d_weights, s.tile, 0);
    d_scores_of_columns(sums->scores, sums->d_weights, s.tile, &g->attention, rows, capped);
    sums_to_operand(sums->weights, sums->scores, s.tile);
    d_scores_store(b, s, sums, group, step);
}

/* Runs the matmuls with dS of the previous tile, overlapped with S, dP and dS of the next one. */
INLINE void next_step(GradSums *sums, const AttentionGradHopper *g, const GradShape s, const GradBlock *b, int key, Ring *ring, int group,
    int step, const bool capped) {
    int before = ring->stage;
    ring_advance(ring, GRAD_STAGES);
    LOCAL const bf16 *stage = grad_stage(b, s, ring->stage), *last = grad_stage(b, s, before);
    LOCAL const HopperRows *rows = grad_rows(b, s, ring->stage);
    int own = group * GROUP_ROWS * PANEL_COLUMNS;
    shared_barrier_wait(b->full + ring->stage, ring->phase);
    warp_barrier();
    wgmma_begin(sums->scores, s.tile), wgmma_begin(sums->d_values, s.width);
    rows_multiply(sums->scores, s.tile, s.width, b->keys + own, GRAD_KEYS, stage);
    rows_add(sums->d_values, s.width, sums->weights, last + s.tile * s.width, s.tile);
    shared_barrier_wait(b->d_scores_full, step - 1);
    warp_barrier();
    wgmma_begin(sums->d_queries, 64), wgmma_begin(sums->d_keys, s.width);
    queries_start(sums->d_queries, s, b, group);
    keys_add(sums, s, b, group, last);
    wgmma_wait(sums->scores, s.tile, 3);
    weights_of_columns(sums->scores, s.tile, &g->attention, key, rows, capped);
    materialize_sums(sums->scores, s.tile);
    wgmma_wait(sums->d_values, s.width, 1);
    wgmma_wait(sums->d_queries, 64, 1);
    queries_store(b, sums->d_queries, group, step - 1);
    wgmma_begin(sums->d_weights, s.tile);
    rows_multiply(sums->d_weights, s.tile, s.width, b->values + own, GRAD_KEYS, stage + s.tile * s.width);
    wgmma_wait(sums->d_keys, s.width, 1);
    warp_arrive(b->d_scores_empty);
    warp_arrive(b->empty + before);
    wgmma_wait(sums->d_weights, s.tile, 0);
    d_scores_of_columns(sums->scores, sums->d_weights, s.tile, &g->attention, rows, capped);
    sums_to_operand(sums->weights, sums->scores, s.tile);
    d_scores_store(b, s, sums, group, step);
}

/* Runs the matmuls with dS of the last tile. */
INLINE void last_step(GradSums *sums, const GradShape s, const GradBlock *b, Ring *ring, int group, int step) {
    LOCAL const bf16 *stage = grad_stage(b, s, ring->stage);
    wgmma_begin(sums->d_values, s.width);
    rows_add(sums->d_values, s.width, sums->weights, stage + s.tile * s.width, s.tile);
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
    ring_advance(ring, GRAD_STAGES);
}

/* The destination of 64 rows of a head's dK or dV: a sequence, its rows from `key` on, columns from
 * `column` on of the gradients of keys and values together, and the part that shares their sum. */
typedef struct KeySums { int sequence, key, column, part; } KeySums;

/* Stores 64 rows of sums times `factor`: to bf16 rows of the results, or to fp32 rows of the part. */
INLINE void key_sums_store(const AttentionGradHopper *g, KeySums at, const float *x, const int width, float factor) {
    const Attention *a = &g->attention;
    int64_t base = (int64_t)at.sequence * a->key_rows.rows, columns = (int64_t)a->kv_heads * (a->qk_dim + a->v_dim);
    if (g->parts == 1) {
        GLOBAL bf16 *to = g->d_keys + base * a->key_stride + at.column;
        store_sums(to, a->key_stride, x, width, at.key, a->key_rows.rows, (float[]){factor, factor});
        return;
    }
    GLOBAL float *to = g->partial_keys + (at.part * g->key_rows + base) * columns + at.column + lane_id() % 4 * 2;
    UNROLL for (int r = 0; r < 2; r++) {
        int row = at.key + group_row(r);
        if (row >= a->key_rows.rows) continue;
        UNROLL for (int i = 0; i < width / 8; i++) * (GLOBAL f32x2 *)(to + row * columns + i * 8) =
            (f32x2){x[4 * i + 2 * r] * factor, x[4 * i + 2 * r + 1] * factor};
    }
}
INLINE void keys_store(const AttentionGradHopper *g, const GradShape s, GradItem item, const GradSums *sums, int key) {
    const Attention *a = &g->attention;
    KeySums at = {.sequence = item.sequence, .key = key, .column = item.head / (a->heads / a->kv_heads) * s.width};
    at.part = item.head / (item.end_head - item.head) % g->parts;
    key_sums_store(g, at, sums->d_keys, s.width, a->scale * LN_2);
    at.column += a->kv_heads * s.width;
    key_sums_store(g, at, sums->d_values, s.width, 1);
}

INLINE void grad_multiply(const AttentionGradHopper *g, const GradShape s, const GradBlock *b, const bool capped) {
    int group = opaque(wave_id()) / 4, step = 0;
    Ring ring = {0};
    for (int index = 0;; index++) {
        LOCAL const GradItem *item = b->items + index % GRAD_ITEMS;
        shared_barrier_wait(b->keys_full, index);
        if (item->end_head == 0) return;
        GradSums sums;
        int left = grad_steps(item), key = item->block * GRAD_KEYS + group * GROUP_ROWS;
        sums_clear(sums.d_keys, s.width), sums_clear(sums.d_values, s.width);
        first_step(&sums, g, s, b, key, &ring, group, step++, capped);
        while (--left > 0) next_step(&sums, g, s, b, key, &ring, group, step++, capped);
        last_step(&sums, s, b, &ring, group, step - 1);
        const GradItem done = *(b->items + opaque(index) % GRAD_ITEMS);
        warp_arrive(b->keys_empty);
        keys_store(g, s, done, &sums, key);
    }
}

INLINE void hopper_gradient(const AttentionGradHopper *g, uint64_t maps, const GradShape s, const bool capped) {
    GradBlock block = grad_block(s);
    if (thread_id() == 0) grad_init_barriers(&block);
    barrier();
    if (wave_id() >= GRAD_GROUPS * 4) {
        registers_lower(24);
        if (lane_id() > 0) return;
        if (wave_id() == GRAD_GROUPS * 4) grad_fetch(g, s, &block, maps);
        else grad_add(g, &block, wave_id() - GRAD_GROUPS * 4 - 1);
    } else {
        registers_raise(240);
        grad_multiply(g, s, &block, capped);
    }
}

/* -- After the pass ------------------------------------------------------------------------------------------------ */

/* Casts dQ to bf16: one block of 256 threads per tile and head, with the sums in the register
 * layout of the groups. */
INLINE void hopper_queries_round(const AttentionGradHopper *g, const GradShape s) {
    const Attention *a = &g->attention;
    int sequence = block_x() / g->tiles, tile = block_x() % g->tiles, head = block_y(), group = wave_id() / 4;
    int64_t place = ((int64_t)sequence * a->heads + head) * g->tiles + tile;
    GLOBAL const f32x4 *from = (GLOBAL const f32x4 *)(g->sums + (place * GRAD_GROUPS + group) * GRAD_PART);
    float x[32], factor = a->scale * LN_2;
    bool seen = g->marks[place] != 0; /* any block of keys saw the queries */
    UNROLL for (int i = 0; i < 8; i++) {
        f32x4 four = from[i * WARPGROUP + thread_id() % WARPGROUP];
        UNROLL for (int e = 0; e < 4; e++) x[4 * i + e] = seen ? four[e] : 0;
    }
    int first = tile * s.tile + (s.tile == 128 ? group * 64 : 0), column = head * s.width + (s.width == 128 ? group * 64 : 0);
    store_sums(g->d_queries + (int64_t)sequence * a->query_rows.rows * a->query_stride + column, a->query_stride, x, 64, first,
        a->query_rows.rows, (float[]){factor, factor});
}

#endif
