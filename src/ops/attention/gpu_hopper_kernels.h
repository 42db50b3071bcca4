/* The forward pass of attention on NVIDIA's Hopper (FlashAttention-3, arXiv 2407.08608), for the
 * widths of heads in hopper_index; gpu.c launches it if device, shapes and alignment allow. Each
 * warpgroup owns 64 queries; scores and output are accumulators in registers, and weights cast to
 * bf16 are the left operand of the matmul with values. In each round a group starts S of one tile
 * of keys together with P V of the previous tile, and computes the softmax of S meanwhile. Groups
 * take turns to start (ping-pong), so that one group's softmax overlaps the other's matmuls.
 *
 * The tensor memory accelerator (TMA) copies queries, keys and values in boxes; the stage of a
 * round holds its tile of keys and the previous tile of values. Except for 64 columns, another
 * group refills stages: a warp of a multiplying group would delay its group, because matmuls start
 * only when all four warps have arrived.
 *
 * With device_set_exact the kernels also run over a cache (cached_gpu.c). A row's bits are those of the
 * pass without a cache, because its tiles of keys begin at the sequence's first key. Up to 64 rows, as
 * one row of a sequence with the heads of a group packed, have kernels of one multiplying group. They
 * are bound by memory bandwidth, so a block goes from head to head, and a warp of its own copies the
 * next head's keys meanwhile. */
#pragma once

#include "ops/attention/gpu_tile_kernels.h"

enum {
    HOPPER_GROUPS = 2, /* warpgroups of a block that multiply */
    HOPPER_ROWS = HOPPER_GROUPS * 64,
    HOPPER_BOX = 64, /* rows, and columns, per copy */
    HOPPER_MOST_KEYS = 128,
    HOPPER_MOST_WIDTH = 256,
};

typedef struct AttentionHopper {
    /* [sequences][rows][columns of all heads] in 64 x 64 boxes; values follow keys. Packed queries are
     * [sequences][heads][qk_dim], and a cache is one sequence of keys. */
    TensorMap queries, keys;
    Attention attention;
    GLOBAL bf16 *out;
    GLOBAL float *log_sum;
    GLOBAL uint32_t *amax;  /* of out; NULL: not wanted */
    int32_t heads, section; /* of all sequences; heads whose blocks run together, longest first */
} AttentionHopper;

/* Returns the index of the kernels for heads with these widths, -1: none. */
static inline int hopper_index(int qk_dim, int v_dim) {
    if (qk_dim == v_dim) return qk_dim == 64 ? 0 : qk_dim == 128 ? 1 : qk_dim == 256 ? 3 : -1;
    return qk_dim == 192 && v_dim == 128 ? 2 : -1;
}

/* The constants of a kernel: widths of heads, keys of a tile, stages, as many as fit, and groups that
 * multiply. With one, the memory of the other's queries is for those of the next head. */
typedef struct HopperShape { int qk_dim, v_dim, keys, stages, groups; } HopperShape;
static inline HopperShape hopper_shape(int qk_dim, int v_dim, int groups) {
    return (HopperShape){qk_dim, v_dim, qk_dim == 64 || qk_dim == 256 ? 64 : 128, qk_dim > 128 ? 2 : 3, groups};
}

/* Blocks per multiprocessor; whether others copy, or a thread of the last group; threads of a block,
 * whose others are a group, or a warp beside one group; elements of a stage; bytes of a block's shared
 * memory. Two blocks of two groups of 64 columns have no registers for another group, and one block
 * waits while the other copies. */
static inline int hopper_blocks(HopperShape s) { return s.qk_dim > 64 ? 1 : s.groups == 1 ? 3 : 2; }
static inline bool hopper_copies_apart(HopperShape s) { return s.qk_dim > 64 || s.groups == 1; }
static inline int hopper_threads(HopperShape s) { return s.groups == 1 ? 160 : (HOPPER_GROUPS + hopper_copies_apart(s)) * 128; }
static inline int hopper_stage(HopperShape s) { return s.keys * (s.qk_dim + s.v_dim); }
static inline int hopper_shared(HopperShape s) { return (HOPPER_ROWS * s.qk_dim + s.stages * hopper_stage(s)) * 2 + 128; }

/* Registers of a thread that multiplies, if a group copies, and of a thread of the copying group:
 * together at most the registers with which the block starts, or a group would wait for registers
 * forever. */
enum { MULTIPLY_REGISTERS = 240, COPY_REGISTERS = 24 };

#ifndef GPU_DEVICE

/* Makes the tensor map of [sequences][rows][columns] with `stride` elements between rows; returns
 * false if the device or the address does not allow it. */
bool attention_map(Device *device, TensorMap *map, const void *data, int64_t rows, int64_t columns, int64_t stride, int64_t sequences);
/* Returns the section of section_place: as many of `count` heads as share the L2 cache, `bytes` for
 * each `group` of them. */
int32_t attention_section(int64_t bytes, int64_t group, int64_t count);
/* Makes the maps of queries, and of keys with values. */
bool attention_maps(Device *device, TensorMap *queries, TensorMap *keys, const Attention *a, int64_t sequences);

#elif defined __CUDA_ARCH_FEAT_SM90_ALL

#include "backend/gpu/hopper.h"

extern LOCAL bf16 hopper_tiles[] __attribute__((aligned(1024)));

/* Returns the rows of a sequence's tiles. */
INLINE int hopper_total(const Attention *a) { return a->query_rows.rows * a->packed; }

/* attention_bounds over any number of rows; `rows` is constant. */
INLINE KeyBounds hopper_bounds(const Attention *a, int64_t base, int first, const int rows) {
    int total = hopper_total(a);
    KeyBounds e = attention_bounds(a, base, first, WAVE, total);
    UNROLL for (int i = WAVE; i < rows; i += WAVE) e = bounds_join(e, attention_bounds(a, base, first + i, WAVE, total));
    return e;
}

/* Returns row `r` (0 or 1) of a lane in its group's 64 rows. */
INLINE int group_row(int r) { return opaque(wave_id()) % 4 * 16 + opaque(lane_id()) / 4 + r * 8; }

/* -- Softmax ------------------------------------------------------------------------------------------------------- */

/* `maximum` is the maximum of the row's scores, or lower by at most MAXIMUM_LAG: weights are then
 * up to 2^MAXIMUM_LAG. Each row decides for itself, so its bits do not depend on the others. */
typedef struct HopperSoftmax {
    float maximum[2], sum[2], rescale[2];
    bool rescales; /* of the warp: whether any factor is not 1 */
} HopperSoftmax;

enum { MAXIMUM_LAG = 8 }; /* in powers of two */

/* Converts raw scores to weights; s->rescale is the factor of older sums. */
INLINE void hopper_softmax(HopperSoftmax *s, float *x, const int keys, float scale) {
    float maxima[2];
    bool grows = false;
    UNROLL for (int r = 0; r < 2; r++) {
        float maximum[2] = {s->maximum[r], x[2 * r]};
        UNROLL for (int i = 2 * r; i < keys / 2; i += 4) maximum[i / 4 % 2] =
            __builtin_fmaxf(maximum[i / 4 % 2], __builtin_fmaxf(x[i], x[i + 1]));
        maxima[r] = lanes_max(__builtin_fmaxf(maximum[0], maximum[1]));
        bool far = (maxima[r] - s->maximum[r]) * scale > MAXIMUM_LAG;
        maxima[r] = far ? maxima[r] : s->maximum[r];
        grows = grows || far;
    }
    s->rescales = __nvvm_vote_any_sync(~0u, grows);
    UNROLL for (int r = 0; r < 2; r++) {
        float maximum = maxima[r], sum = 0;
        float base = maximum == -__builtin_inff() ? 0 : maximum * scale;
        s->rescale[r] = maximum == s->maximum[r] ? 1 : exp2_or_zero(__builtin_fmaf(s->maximum[r], scale, -base));
        UNROLL for (int i = 2 * r; i < keys / 2; i += 4) UNROLL for (int e = 0; e < 2; e++) {
            x[i + e] = exp2_or_zero(__builtin_fmaf(x[i + e], scale, -base));
            sum += x[i + e];
        }
        s->maximum[r] = maximum;
        s->sum[r] = s->sum[r] * s->rescale[r] + sum;
    }
}

/* Adds the ALiBi bias to scores of 64 rows from `first` on and keys from `key` on, and sets those
 * of masked keys to -inf. */
INLINE void hopper_mask(float *x, const int keys, const Attention *a, int64_t base, int head, int first, int key) {
    int jump = attention_jump(a, key, keys);
    UNROLL for (int r = 0; r < 2; r++) {
        int tile_row = min_int(first + group_row(r), hopper_total(a) - 1), row = attention_token(a, tile_row),
            after = opaque(lane_id()) % 4 * 2, from = key + after;
        float slope = attention_slope(a, head + attention_packed_head(a, tile_row));
        RowInterval seen = attention_interval(a, base, row);
        int low = seen.low - from;
        unsigned count = seen.high + 1 - seen.low;
        if (a->alibi > 0) {
            int distance = attention_distance(a, base, row, key) + after;
            UNROLL for (int i = 2 * r; i < keys / 2; i += 4) UNROLL for (int e = 0; e < 2; e++) x[i + e] +=
                slope * (float)(i / 4 * 8 + e + distance);
            if (jump != 0)
                UNROLL for (int i = 2 * r; i < keys / 2; i += 4) UNROLL for (int e = 0; e < 2; e++) x[i + e] +=
                    i / 4 * 8 + e + from < a->key_rows.half ? 0 : slope * (float)jump;
        }
        UNROLL for (int i = 2 * r; i < keys / 2; i += 4) UNROLL for (int e = 0; e < 2; e++) x[i + e] =
            (unsigned)(i / 4 * 8 + e - low) < count ? x[i + e] : -__builtin_inff();
    }
}

/* Soft-caps the scores if `capped`, and masks them where needed. */
INLINE void hopper_modify(
    float *x, const int keys, const Attention *a, const KeyBounds *seen, int64_t base, int head, int first, int key, const bool capped) {
    if (capped) UNROLL for (int i = 0; i < keys / 2; i++) x[i] = attention_cap(a, x[i]);
    if (a->alibi > 0 || !bounds_cover(seen, key, key + keys - 1)) hopper_mask(x, keys, a, base, head, first, key);
}

/* -- Copies -------------------------------------------------------------------------------------------------------- */

typedef struct HopperPlace { int sequence, head, kv_head, first; } HopperPlace;

/* A block's head, one of `count`, and its tile, one of `tiles`. Sections of `section` heads
 * run one after another, and within them the tiles in order. */
typedef struct SectionPlace { int of_all, tile; } SectionPlace;
INLINE SectionPlace section_place(int count, int section, int tiles) {
    int block = opaque(block_x()), start = block / (section * tiles) * section, size = min_int(section, count - start);
    int x = block - start * tiles;
    return (SectionPlace){.of_all = start + x % size, .tile = x / size};
}

/* The place of head `of_all` of all sequences; those that are packed together count once. */
INLINE HopperPlace head_place(const Attention *a, int of_all, int first) {
    int of_sequence = a->heads / a->packed, head = of_all % of_sequence * a->packed;
    return (HopperPlace){.sequence = of_all / of_sequence, .head = head, .kv_head = head / (a->heads / a->kv_heads), .first = first};
}

INLINE HopperPlace hopper_place(const Attention *a, int heads, int section, const int rows) {
    int tiles = (hopper_total(a) + rows - 1) / rows;
    SectionPlace place = section_place(heads, section, tiles);
    return head_place(a, place.of_all, (tiles - 1 - place.tile) * rows);
}

/* Copies `rows` rows of a head whose columns begin at `column`, as panels of PANEL_COLUMNS columns
 * and all rows. Instead of the boxes after that of row `last`, which memory would send for nothing, it
 * copies that one again. */
INLINE void copy_rows_until(
    LOCAL bf16 *to, uint64_t map, const int width, const int rows, int column, int row, int last, int sheet, SharedBarrier b) {
    UNROLL for (int panel = 0; panel < width / PANEL_COLUMNS; panel++) UNROLL for (int i = 0; i < rows; i += HOPPER_BOX)
        copy_box(to + (panel * rows + i) * PANEL_COLUMNS, map, column + panel * PANEL_COLUMNS, min_int(row + i, last), sheet, b);
}
INLINE void copy_rows(LOCAL bf16 *to, uint64_t map, const int width, const int rows, int column, int row, int sheet, SharedBarrier b) {
    copy_rows_until(to, map, width, rows, column, row, INT32_MAX, sheet, b);
}

/* The rounds 0 .. tiles of a block. Round i has the keys of tile i, for i < tiles, and the values
 * of tile i - 1, for i > 0. Tile 0 starts at key `key`. If another group copies, values have
 * barriers of their own, because keys are needed, and read, earlier; else `keys_full` and
 * `values_empty` stand for both. */
typedef struct Rounds {
    const AttentionHopper *h;
    HopperPlace place;
    uint64_t queries_map, keys_map;
    LOCAL bf16 *queries, *stages;
    SharedBarrier keys_full, keys_empty, values_full, values_empty, queries_full, queries_empty;
    int queries_phase; /* of their barriers */
    int key_column, value_column, key, tiles;
    int sheet, row; /* of key 0 in the map of keys */
    int last;       /* row, in the map, of the last box that has keys */
    KeyBounds seen; /* by the thread's group */
} Rounds;

/* Returns the rounds of the queries at `place`, those number `turn` of the block; `block` bounds the
 * keys of all its groups. */
INLINE Rounds rounds_of(
    const AttentionHopper *h, uint64_t maps, const HopperPlace *place, int turn, const KeyBounds *block, const HopperShape s) {
    const Attention *a = &h->attention;
    const int buffers = HOPPER_GROUPS / s.groups;
    int key = block->low_min / s.keys * s.keys, row = a->first_rows ? a->first_rows[place->sequence] : 0;
    LOCAL bf16 *stages = hopper_tiles + HOPPER_ROWS * s.qk_dim;
    SharedBarrier barriers = (SharedBarrier)(stages + s.stages * hopper_stage(s)), queries_full = barriers + 4 * s.stages + turn % buffers;
    return (Rounds){.h = h,
        .place = *place,
        .queries_map = maps,
        .keys_map = maps + sizeof(TensorMap),
        .queries = hopper_tiles + turn % buffers * GROUP_ROWS * s.qk_dim,
        .stages = stages,
        .keys_full = barriers,
        .keys_empty = barriers + s.stages,
        .values_full = barriers + 2 * s.stages,
        .values_empty = barriers + 3 * s.stages,
        .queries_full = queries_full,
        .queries_empty = queries_full + buffers,
        .queries_phase = turn / buffers,
        .sheet = a->cached ? 0 : place->sequence,
        .row = row,
        .last = s.groups == 1 ? row + block->high_max / HOPPER_BOX * HOPPER_BOX : INT32_MAX,
        .key = key,
        .tiles = (block->high_max - key) / s.keys + 1,
        .seen = *block,
        .key_column = place->kv_head * s.qk_dim,
        .value_column = a->kv_heads * s.qk_dim + place->kv_head * s.v_dim};
}

INLINE void keys_fill(const Rounds *r, const HopperShape s, int round, int stage) {
    LOCAL bf16 *to = r->stages + stage * hopper_stage(s);
    int row = r->row + r->key + round * s.keys;
    if (round < r->tiles) copy_rows_until(to, r->keys_map, s.qk_dim, s.keys, r->key_column, row, r->last, r->sheet, r->keys_full + stage);
}
INLINE void values_fill(const Rounds *r, const HopperShape s, int round, int stage, SharedBarrier full) {
    LOCAL bf16 *to = r->stages + stage * hopper_stage(s) + s.keys * s.qk_dim;
    int row = r->row + r->key + (round - 1) * s.keys;
    if (round > 0) copy_rows_until(to, r->keys_map, s.v_dim, s.keys, r->value_column, row, r->last, r->sheet, full + stage);
}

/* Fills the stage of a round once its parts are empty; `use` counts how often they were used before. */
INLINE void round_fill(const Rounds *r, const HopperShape s, int round, int stage, int use) {
    int key_bytes = round < r->tiles ? s.keys * s.qk_dim * 2 : 0, value_bytes = round > 0 ? s.keys * s.v_dim * 2 : 0;
    if (hopper_copies_apart(s)) {
        shared_barrier_wait(r->keys_empty + stage, use + 1);
        shared_barrier_expect(r->keys_full + stage, key_bytes);
        keys_fill(r, s, round, stage);
        shared_barrier_wait(r->values_empty + stage, use + 1);
        shared_barrier_expect(r->values_full + stage, value_bytes);
        values_fill(r, s, round, stage, r->values_full);
    } else {
        shared_barrier_wait(r->values_empty + stage, use + 1);
        shared_barrier_expect(r->keys_full + stage, key_bytes + value_bytes);
        keys_fill(r, s, round, stage);
        values_fill(r, s, round, stage, r->keys_full);
    }
}

/* Initializes the barriers; called by the thread that copies, for the first queries. */
INLINE void rounds_init(const Rounds *r, const HopperShape s) {
    for (int i = 0; i < s.stages; i++) {
        shared_barrier_init(r->keys_full + i, 1), shared_barrier_init(r->keys_empty + i, s.groups * 4);
        shared_barrier_init(r->values_full + i, 1), shared_barrier_init(r->values_empty + i, s.groups * 4);
    }
    for (int i = 0; i < HOPPER_GROUPS / s.groups; i++)
        shared_barrier_init(r->queries_full + i, 1), shared_barrier_init(r->queries_empty + i, 4);
    fence_shared_to_async();
}

INLINE void queries_fill(const Rounds *r, const HopperShape s) {
    const Attention *a = &r->h->attention;
    const HopperPlace *p = &r->place;
    int column = a->packed > 1 ? 0 : p->head * s.qk_dim, row = p->first + (a->packed > 1 ? p->head : 0);
    shared_barrier_expect(r->queries_full, s.groups * GROUP_ROWS * s.qk_dim * 2);
    UNROLL for (int i = 0; i < s.groups * GROUP_ROWS; i += GROUP_ROWS)
        copy_rows(r->queries + i * s.qk_dim, r->queries_map, s.qk_dim, GROUP_ROWS, column, row + i, p->sequence, r->queries_full);
}

/* Refills a round's stage for the next round that uses it. */
INLINE void round_refill(const Rounds *r, const Ring *ring, const HopperShape s, int round) {
    if (round + s.stages <= r->tiles) round_fill(r, s, round + s.stages, ring->stage, ring->phase + 1);
}

/* Release a round's keys, and the rest of its stage, for this warp. If no others copy, a thread of the
 * last group refills it. */
INLINE void keys_done(const Rounds *r, const Ring *ring, const HopperShape s) {
    if (!hopper_copies_apart(s)) return;
    warp_barrier();
    if (lane_id() == 0) shared_barrier_arrive(r->keys_empty + ring->stage);
}
INLINE void round_done(const Rounds *r, Ring *ring, const HopperShape s, int round) {
    warp_barrier();
    if (lane_id() == 0) shared_barrier_arrive(r->values_empty + ring->stage);
    if (!hopper_copies_apart(s) && thread_id() == (HOPPER_GROUPS - 1) * WARPGROUP) round_refill(r, ring, s, round);
    ring_advance(ring, s.stages);
}

/* -- The pass ------------------------------------------------------------------------------------------------------ */

/* Starts x = own tile^T for 64 of the `own_rows` rows that the panels of `own` have, and all `rows`
 * rows of `tile`; both have `width` columns. */
INLINE void rows_multiply(float *x, const int rows, const int width, LOCAL const bf16 *own, const int own_rows, LOCAL const bf16 *tile) {
    Descriptor a = descriptor_of(own, 0), b = descriptor_of(tile, 0);
    UNROLL for (int k = 0; k < width / 16; k++)
        wgmma_shared(x, rows, descriptor_advance(a, depth_bytes(own_rows, k)), descriptor_advance(b, depth_bytes(rows, k)), k > 0, 0);
    wgmma_commit();
}

/* Starts sums += operand tile for `rows` rows of `tile`, which have `width` columns. */
INLINE void rows_add(float *sums, const int width, const uint32_t *operand, LOCAL const bf16 *tile, const int rows) {
    Descriptor b = descriptor_of(tile, rows * 128);
    UNROLL for (int k = 0; k < rows / 16; k++)
        wgmma_registers(sums, width, operand + 4 * k, descriptor_advance(b, depth_bytes_transposed(k)), true, 1);
    wgmma_commit();
}

/* Returns eight columns of row r, cast to bf16. Lane t of four has columns 8 j + 2 t; a 4 x 4
 * transpose gives it the eight columns from 8 t on. */
INLINE u32x4 row_chunk(const float *x, int r, float factor) {
    uint32_t w[4];
    UNROLL for (int j = 0; j < 4; j++) w[j] = to_bf16_pair(x[4 * j + 2 * r] * factor, x[4 * j + 2 * r + 1] * factor);
    UNROLL for (int i = 0; i < 2; i++) exchange_words(&w[2 * i], &w[2 * i + 1], 1);
    UNROLL for (int i = 0; i < 2; i++) exchange_words(&w[i], &w[i + 2], 2);
    return (u32x4){w[0], w[1], w[2], w[3]};
}

/* Stores a group's 64 rows of `width` sums, times factor[r], to rows from `first` on of a matrix of
 * `total` rows. Returns the largest absolute-value bits that the thread stores
 * (backend/gpu/amax.h). */
INLINE uint32_t store_sums(GLOBAL bf16 *to, int64_t stride, const float *x, const int width, int first, int total, const float *factor) {
    uint32_t most = 0;
    UNROLL for (int r = 0; r < 2; r++) {
        int row = first + group_row(r);
        UNROLL for (int i = 0; i < width; i += 32) {
            u32x4 chunk = row_chunk(x + i / 2, r, factor[r]);
            if (row >= total) continue;
            *(GLOBAL u32x4 *)(to + row * stride + i + lane_id() % 4 * 8) = chunk;
            UNROLL for (int j = 0; j < 4; j++) most = larger_of_pair(most, chunk[j]);
        }
    }
    return most;
}

INLINE void hopper_store(const AttentionHopper *h, const HopperPlace *place, const HopperSoftmax *s, const float *out, const int width) {
    const Attention *a = &h->attention;
    int first = place->first + wave_id() / 4 * GROUP_ROWS, total = hopper_total(a);
    int64_t base = (int64_t)place->sequence * a->query_rows.rows, stride = (int64_t)(a->packed > 1 ? 1 : a->heads) * width;
    float inverse[2];
    UNROLL for (int r = 0; r < 2; r++) {
        float sum = lanes_sum(s->sum[r]);
        int row = first + group_row(r);
        inverse[r] = sum == 0 ? 0 : fast_reciprocal(sum);
        float log_sum = s->maximum[r] * a->scale + fast_log2(sum);
        if (a->sinks) {
            ScoreSink joined = score_sink(log_sum, a->sinks[place->head + attention_packed_head(a, min_int(row, total - 1))] * LOG2_E);
            inverse[r] *= joined.share, log_sum = joined.log_sum;
        }
        if (lane_id() % 4 == 0 && row < a->query_rows.rows && h->log_sum)
            h->log_sum[(base + row) * a->heads + place->head] = log_sum * LN_2;
    }
    uint32_t most = store_sums(h->out + (base * a->heads + place->head) * width, stride, out, width, first, total, inverse);
    if (h->amax) record_amax_of_wave(h->amax, most);
}

/* Ping-pong: groups take turns to start their matmuls; the first group waits for the last group's
 * previous round. */
INLINE void pingpong_wait(int group, int round, const HopperShape s) {
    if (s.groups > 1 && (group > 0 || round > 0)) named_barrier_wait(1 + group, 2 * WARPGROUP);
}
INLINE void pingpong_pass(int group, int round, int rounds, const HopperShape s) {
    if (s.groups > 1 && (group < HOPPER_GROUPS - 1 || round < rounds - 1))
        named_barrier_arrive(1 + (group + 1) % HOPPER_GROUPS, 2 * WARPGROUP);
}

/* Runs a multiplying group: the rounds of its 64 queries from `first` on, which see the keys of
 * rounds->seen. `ring` starts at the stage of round 0. */
INLINE void hopper_multiply(const Rounds *rounds, Ring *ring, int group, const HopperShape s, const bool capped) {
    const Attention *a = &rounds->h->attention;
    const HopperPlace *place = &rounds->place;
    const int keys = s.keys;
    const bool apart = hopper_copies_apart(s);
    int first = place->first + group * GROUP_ROWS, tiles = rounds->tiles;
    int64_t base = (int64_t)place->sequence * a->query_rows.rows;
    HopperSoftmax softmax = {.maximum = {-__builtin_inff(), -__builtin_inff()}};
    float scores[HOPPER_MOST_KEYS / 2], out[HOPPER_MOST_WIDTH / 2];
    uint32_t weights[HOPPER_MOST_KEYS / 4];
    LOCAL const bf16 *queries = rounds->queries + group * GROUP_ROWS * s.qk_dim;
    shared_barrier_wait(rounds->queries_full, rounds->queries_phase);
    shared_barrier_wait(rounds->keys_full + ring->stage, ring->phase);
    warp_barrier();
    pingpong_wait(group, 0, s);
    wgmma_begin(scores, keys);
    rows_multiply(scores, keys, s.qk_dim, queries, GROUP_ROWS, rounds->stages + ring->stage * hopper_stage(s));
    pingpong_pass(group, 0, tiles, s);
    wgmma_wait(scores, keys, 0);
    keys_done(rounds, ring, s);
    hopper_modify(scores, keys, a, &rounds->seen, base, place->head, first, rounds->key, capped);
    hopper_softmax(&softmax, scores, keys, a->scale);
    sums_to_operand(weights, scores, keys);
    round_done(rounds, ring, s, 0);
    UNROLL for (int i = 0; i < s.v_dim / 2; i++) out[i] = 0;
    for (int round = 1; round < tiles; round++) {
        LOCAL const bf16 *stage = rounds->stages + ring->stage * hopper_stage(s);
        shared_barrier_wait(rounds->keys_full + ring->stage, ring->phase);
        warp_barrier();
        pingpong_wait(group, round, s);
        wgmma_begin(scores, keys);
        if (!apart) wgmma_begin(out, s.v_dim);
        rows_multiply(scores, keys, s.qk_dim, queries, GROUP_ROWS, stage);
        if (apart) {
            shared_barrier_wait(rounds->values_full + ring->stage, ring->phase);
            warp_barrier();
            wgmma_begin(out, s.v_dim);
        }
        rows_add(out, s.v_dim, weights, stage + keys * s.qk_dim, keys);
        pingpong_pass(group, round, tiles, s);
        wgmma_wait(scores, keys, 1);
        keys_done(rounds, ring, s);
        hopper_modify(scores, keys, a, &rounds->seen, base, place->head, first, rounds->key + round * keys, capped);
        hopper_softmax(&softmax, scores, keys, a->scale);
        materialize_sums(scores, keys);
        fence_on_value(softmax.sum[0] + softmax.sum[1], rounds->keys_full);
        wgmma_wait(out, s.v_dim, 0);
        if (softmax.rescales) UNROLL for (int i = 0; i < s.v_dim / 2; i++) out[i] *= softmax.rescale[i / 2 % 2];
        sums_to_operand(weights, scores, keys);
        round_done(rounds, ring, s, round);
    }
    shared_barrier_wait((apart ? rounds->values_full : rounds->keys_full) + ring->stage, ring->phase);
    warp_barrier();
    wgmma_begin(out, s.v_dim);
    rows_add(out, s.v_dim, weights, rounds->stages + ring->stage * hopper_stage(s) + keys * s.qk_dim, keys);
    wgmma_wait(out, s.v_dim, 0);
    if (s.groups == 1) {
        keys_done(rounds, ring, s);
        if (lane_id() == 0) shared_barrier_arrive(rounds->queries_empty);
        round_done(rounds, ring, s, tiles);
    }
    hopper_store(rounds->h, place, &softmax, out, s.v_dim);
}

INLINE void attend_hopper(const AttentionHopper *h, uint64_t maps, const HopperShape s, const bool capped) {
    const Attention *a = &h->attention;
    HopperPlace place = hopper_place(a, h->heads, h->section, HOPPER_ROWS);
    int64_t base = (int64_t)place.sequence * a->query_rows.rows;
    int group = wave_id() / 4;
    KeyBounds bounds[HOPPER_GROUPS];
    UNROLL for (int i = 0; i < HOPPER_GROUPS; i++) bounds[i] = hopper_bounds(a, base, place.first + i * GROUP_ROWS, GROUP_ROWS);
    KeyBounds block = bounds_join(bounds[0], bounds[1]);
    Rounds rounds = rounds_of(h, maps, &place, 0, &block, s);
    rounds.seen = group == 0 ? bounds[0] : bounds[1];
    Ring ring = {0};
    bool copies = thread_id() == hopper_threads(s) - WARPGROUP;
    if (copies) {
        rounds_init(&rounds, s);
        queries_fill(&rounds, s);
        for (int i = 0; i < s.stages && i <= rounds.tiles; i++) round_fill(&rounds, s, i, i, 0);
    }
    barrier();
    if (group < HOPPER_GROUPS || !hopper_copies_apart(s)) {
        if (hopper_copies_apart(s)) registers_raise(MULTIPLY_REGISTERS);
        hopper_multiply(&rounds, &ring, group, s, capped);
        return;
    }
    registers_lower(COPY_REGISTERS);
    for (int round = 0; copies && round + s.stages <= rounds.tiles; round++) {
        round_refill(&rounds, &ring, s, round);
        ring_advance(&ring, s.stages);
    }
}

/* The pass of one group: a block takes every n-th of the heads of all sequences. */
INLINE void attend_packed(const AttentionHopper *h, uint64_t maps, const HopperShape s, const bool capped) {
    const Attention *a = &h->attention;
    Ring ring = {0};
    for (int turn = 0, head = block_x(); head < h->heads; turn++, head += __nvvm_read_ptx_sreg_nctaid_x()) {
        HopperPlace place = head_place(a, head, 0);
        KeyBounds seen = hopper_bounds(a, (int64_t)place.sequence * a->query_rows.rows, 0, GROUP_ROWS);
        Rounds rounds = rounds_of(h, maps, &place, turn, &seen, s);
        if (turn == 0) {
            if (thread_id() == WARPGROUP) rounds_init(&rounds, s);
            barrier();
        }
        if (thread_id() < WARPGROUP) {
            hopper_multiply(&rounds, &ring, 0, s, capped);
        } else if (thread_id() == WARPGROUP) {
            shared_barrier_wait(rounds.queries_empty, rounds.queries_phase + 1);
            queries_fill(&rounds, s);
            for (int round = 0; round <= rounds.tiles; round++) {
                round_fill(&rounds, s, round, ring.stage, ring.phase);
                ring_advance(&ring, s.stages);
            }
        }
    }
}

#endif
