/* The forward pass of attention on NVIDIA's Hopper, for heads of 64 and 128 columns
 * (FlashAttention-3, arXiv 2407.08608); gpu.c launches it if device, shapes and alignment allow.
 * Each warpgroup owns 64 queries; scores and output are accumulators in registers, and weights cast
 * to bf16 are the left operand of the matmul with values. In each round a group starts S of one
 * tile of keys together with P V of the previous tile, and computes the softmax of S meanwhile.
 * Groups take turns to start (ping-pong), so that one group's softmax overlaps the other's matmuls.
 *
 * The tensor memory accelerator (TMA) copies queries, keys and values in boxes; the stage of a
 * round holds its tile of keys and the previous tile of values. For 128 columns another group
 * refills stages: a warp of a multiplying group would delay its group, because matmuls start only
 * when all four warps have arrived. */
#pragma once

#include "ops/attention/gpu_tile_kernels.h"

enum {
    HOPPER_GROUPS = 2, /* warpgroups of a block that multiply */
    HOPPER_ROWS = HOPPER_GROUPS * 64,
    HOPPER_STAGES = 3,
    HOPPER_BOX = 64,  /* rows, and columns, per copy */
    HOPPER_SUMS = 64, /* most sums per thread: 64 rows x 128 columns over a warpgroup */
};

typedef struct AttentionHopper {
    TensorMap queries, keys; /* [sequences][rows][columns of all heads] in 64 x 64 boxes; values follow keys */
    Attention attention;
    GLOBAL bf16 *out;
    GLOBAL float *log_sum;
    GLOBAL uint32_t *amax;  /* of out; NULL: not wanted */
    int32_t heads, section; /* of all sequences; heads whose blocks run together, longest first */
} AttentionHopper;

/* By head width: keys of a tile; blocks per multiprocessor; whether another group copies, or a
 * thread of the last one; threads of a block; bytes of its shared memory. Two blocks of 64 columns
 * have no registers for another group, and one block waits while the other copies. */
static inline int hopper_keys(int width) { return width == 64 ? 64 : 128; }
static inline int hopper_blocks(int width) { return width == 64 ? 2 : 1; }
static inline bool hopper_copies_apart(int width) { return width == 128; }
static inline int hopper_threads(int width) { return (HOPPER_GROUPS + hopper_copies_apart(width)) * 128; }
static inline int hopper_shared(int width) { return (HOPPER_ROWS + HOPPER_STAGES * 2 * hopper_keys(width)) * width * 2 + 128; }

/* Registers of a thread that multiplies, if a group copies, and of a thread of the copying group:
 * together at most the registers with which the block starts, or a group would wait for registers
 * forever. */
enum { MULTIPLY_REGISTERS = 240, COPY_REGISTERS = 24 };

#ifndef GPU_DEVICE

/* Makes the tensor map of [sequences][rows][columns] with `stride` elements between rows; returns
 * false if the device or the address does not allow it. */
bool attention_map(Device *device, TensorMap *map, const void *data, int64_t rows, int64_t columns, int64_t stride, int64_t sequences);
/* Makes the maps of queries, and of keys with values. */
bool attention_maps(Device *device, TensorMap *queries, TensorMap *keys, const Attention *a, int64_t sequences);

#elif defined __CUDA_ARCH_FEAT_SM90_ALL

#include "backend/gpu/hopper.h"

extern LOCAL bf16 hopper_tiles[] __attribute__((aligned(1024)));

/* attention_bounds over any number of rows; `rows` is constant. */
INLINE KeyBounds hopper_bounds(const Attention *a, int64_t base, int first, const int rows) {
    KeyBounds e = attention_bounds(a, base, first, WAVE, a->query_rows.rows);
    UNROLL for (int i = WAVE; i < rows; i += WAVE) e = bounds_join(e, attention_bounds(a, base, first + i, WAVE, a->query_rows.rows));
    return e;
}

/* Returns row `r` (0 or 1) of a lane in its group's 64 rows. */
INLINE int group_row(int r) { return opaque(wave_id()) % 4 * 16 + opaque(lane_id()) / 4 + r * 8; }

/* -- Softmax ------------------------------------------------------------------------------------------------------- */

/* `maximum` is the maximum of the row's scores, or lower by at most MAXIMUM_LAG: weights are then
 * up to 2^MAXIMUM_LAG. */
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
        grows = grows || (maxima[r] - s->maximum[r]) * scale > MAXIMUM_LAG;
    }
    s->rescales = __nvvm_vote_any_sync(~0u, grows);
    UNROLL for (int r = 0; r < 2; r++) {
        float maximum = s->rescales ? maxima[r] : s->maximum[r], sum = 0;
        float base = maximum == -__builtin_inff() ? 0 : maximum * scale;
        s->rescale[r] = exp2_or_zero(__builtin_fmaf(s->maximum[r], scale, -base));
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
    float slope = attention_slope(a, head);
    int jump = attention_jump(a, key, keys);
    UNROLL for (int r = 0; r < 2; r++) {
        int row = min_int(first + group_row(r), a->query_rows.rows - 1), after = opaque(lane_id()) % 4 * 2, from = key + after;
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
INLINE void hopper_modify(float *x, const int keys, const AttentionHopper *h, const KeyBounds *seen, int64_t base, int head, int first,
    int key, const bool capped) {
    if (capped) UNROLL for (int i = 0; i < keys / 2; i++) x[i] = attention_cap(&h->attention, x[i]);
    if (h->attention.alibi > 0 || !bounds_cover(seen, key, key + keys - 1)) hopper_mask(x, keys, &h->attention, base, head, first, key);
}

/* -- Copies -------------------------------------------------------------------------------------------------------- */

typedef struct HopperPlace { int sequence, head, kv_head, first; } HopperPlace;

INLINE HopperPlace hopper_place(const AttentionHopper *h, const int rows) {
    const Attention *a = &h->attention;
    int tiles = (a->query_rows.rows + rows - 1) / rows, block = opaque(block_x());
    int start = block / (h->section * tiles) * h->section, size = min_int(h->section, h->heads - start);
    int x = block - start * tiles, tile = x / size, of_all = start + x % size, head = of_all % a->heads;
    return (HopperPlace){
        .sequence = of_all / a->heads, .head = head, .kv_head = head / (a->heads / a->kv_heads), .first = (tiles - 1 - tile) * rows};
}

/* Copies `rows` rows of a head whose columns begin at `column`, as panels of PANEL_COLUMNS columns
 * and all rows. */
INLINE void copy_rows(LOCAL bf16 *to, uint64_t map, const int width, const int rows, int column, int row, int sheet, SharedBarrier b) {
    UNROLL for (int panel = 0; panel < width / PANEL_COLUMNS; panel++) UNROLL for (int i = 0; i < rows; i += HOPPER_BOX)
        copy_box(to + (panel * rows + i) * PANEL_COLUMNS, map, column + panel * PANEL_COLUMNS, row + i, sheet, b);
}

/* The rounds 0 .. tiles of a block. Round i has the keys of tile i, for i < tiles, and the values
 * of tile i - 1, for i > 0. Tile 0 starts at key `key`. */
typedef struct Rounds {
    uint64_t queries_map, keys_map;
    LOCAL bf16 *queries, *stages;
    SharedBarrier full, empty, queries_full;
    int key_column, value_column, sequence, key, tiles;
    KeyBounds seen; /* by the thread's group */
} Rounds;

INLINE void round_fill(const Rounds *r, const int width, int round, int stage) {
    const int keys = hopper_keys(width), elements = keys * width;
    LOCAL bf16 *to = r->stages + stage * 2 * elements;
    int key = r->key + round * keys, parts = (round < r->tiles) + (round > 0);
    shared_barrier_expect(r->full + stage, parts * elements * 2);
    if (round < r->tiles) copy_rows(to, r->keys_map, width, keys, r->key_column, key, r->sequence, r->full + stage);
    if (round > 0) copy_rows(to + elements, r->keys_map, width, keys, r->value_column, key - keys, r->sequence, r->full + stage);
}

/* Initializes the barriers and starts the first copies; called by the thread that copies. */
INLINE void rounds_init(const Rounds *r, const HopperPlace *p, const int width) {
    for (int i = 0; i < HOPPER_STAGES; i++) shared_barrier_init(r->full + i, 1), shared_barrier_init(r->empty + i, HOPPER_GROUPS * 4);
    shared_barrier_init(r->queries_full, 1);
    fence_shared_to_async();
    shared_barrier_expect(r->queries_full, HOPPER_ROWS * width * 2);
    UNROLL for (int i = 0; i < HOPPER_ROWS; i += GROUP_ROWS)
        copy_rows(r->queries + i * width, r->queries_map, width, GROUP_ROWS, p->head * width, p->first + i, p->sequence, r->queries_full);
    for (int i = 0; i < HOPPER_STAGES && i <= r->tiles; i++) round_fill(r, width, i, i);
}

/* Refills the stage of a round, once it is empty, for the next round that uses it. */
INLINE void round_refill(const Rounds *r, const Ring *ring, const int width, int round) {
    if (round + HOPPER_STAGES > r->tiles) return;
    shared_barrier_wait(r->empty + ring->stage, ring->phase);
    round_fill(r, width, round + HOPPER_STAGES, ring->stage);
}

/* Releases a round's stage for this warp. If no group copies, a thread of the last group refills
 * it. */
INLINE void round_done(const Rounds *r, Ring *ring, const int width, int round) {
    warp_barrier();
    if (lane_id() == 0) shared_barrier_arrive(r->empty + ring->stage);
    if (!hopper_copies_apart(width) && thread_id() == (HOPPER_GROUPS - 1) * WARPGROUP) round_refill(r, ring, width, round);
    ring_advance(ring, HOPPER_STAGES);
}

/* -- The pass ------------------------------------------------------------------------------------------------------ */

INLINE void scores_start(float *scores, const int width, const int keys, LOCAL const bf16 *queries, LOCAL const bf16 *tile) {
    Descriptor a = descriptor_of(queries, 0), b = descriptor_of(tile, 0);
    UNROLL for (int k = 0; k < width / 16; k++) wgmma_shared(
        scores, keys, descriptor_advance(a, depth_bytes(GROUP_ROWS, k)), descriptor_advance(b, depth_bytes(keys, k)), k > 0, 0);
    wgmma_commit();
}

INLINE void values_start(float *out, const int width, const int keys, const uint32_t *weights, LOCAL const bf16 *values) {
    Descriptor b = descriptor_of(values, keys * 128);
    UNROLL for (int k = 0; k < keys / 16; k++)
        wgmma_registers(out, width, weights + 4 * k, descriptor_advance(b, depth_bytes_transposed(k)), true, 1);
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
    int first = place->first + wave_id() / 4 * GROUP_ROWS;
    int64_t base = (int64_t)place->sequence * a->query_rows.rows;
    float inverse[2];
    UNROLL for (int r = 0; r < 2; r++) {
        float sum = lanes_sum(s->sum[r]);
        int row = first + group_row(r);
        inverse[r] = sum == 0 ? 0 : fast_reciprocal(sum);
        float log_sum = s->maximum[r] * a->scale + fast_log2(sum);
        if (a->sinks) {
            ScoreSink joined = score_sink(log_sum, a->sinks[place->head] * LOG2_E);
            inverse[r] *= joined.share, log_sum = joined.log_sum;
        }
        if (lane_id() % 4 == 0 && row < a->query_rows.rows && h->log_sum)
            h->log_sum[(base + row) * a->heads + place->head] = log_sum * LN_2;
    }
    uint32_t most = store_sums(
        h->out + (base * a->heads + place->head) * width, (int64_t)a->heads * width, out, width, first, a->query_rows.rows, inverse);
    if (h->amax) record_amax_of_wave(h->amax, most);
}

/* Ping-pong: groups take turns to start their matmuls; the first group waits for the last group's
 * previous round. */
INLINE void pingpong_wait(int group, int round) {
    if (group > 0 || round > 0) named_barrier_wait(1 + group, 2 * WARPGROUP);
}
INLINE void pingpong_pass(int group, int round, int rounds) {
    if (group < HOPPER_GROUPS - 1 || round < rounds - 1) named_barrier_arrive(1 + (group + 1) % HOPPER_GROUPS, 2 * WARPGROUP);
}

/* Runs a multiplying group: the rounds of its 64 queries from `first` on, which see the keys of
 * rounds->seen. */
INLINE void hopper_multiply(
    const AttentionHopper *h, const HopperPlace *place, const Rounds *rounds, int group, const int width, const bool capped) {
    const Attention *a = &h->attention;
    const int keys = hopper_keys(width), stage_elements = 2 * keys * width;
    int first = place->first + group * GROUP_ROWS, tiles = rounds->tiles;
    int64_t base = (int64_t)place->sequence * a->query_rows.rows;
    HopperSoftmax softmax = {.maximum = {-__builtin_inff(), -__builtin_inff()}};
    float scores[HOPPER_SUMS], out[HOPPER_SUMS];
    uint32_t weights[HOPPER_SUMS / 2];
    LOCAL const bf16 *queries = hopper_tiles + group * GROUP_ROWS * width;
    Ring ring = {0};
    shared_barrier_wait(rounds->queries_full, 0);
    shared_barrier_wait(rounds->full, 0);
    warp_barrier();
    pingpong_wait(group, 0);
    wgmma_begin(scores, keys);
    scores_start(scores, width, keys, queries, rounds->stages);
    pingpong_pass(group, 0, tiles);
    wgmma_wait(scores, keys, 0);
    hopper_modify(scores, keys, h, &rounds->seen, base, place->head, first, rounds->key, capped);
    hopper_softmax(&softmax, scores, keys, a->scale);
    sums_to_operand(weights, scores, keys);
    round_done(rounds, &ring, width, 0);
    UNROLL for (int i = 0; i < width / 2; i++) out[i] = 0;
    for (int round = 1; round < tiles; round++) {
        LOCAL const bf16 *stage = rounds->stages + ring.stage * stage_elements;
        shared_barrier_wait(rounds->full + ring.stage, ring.phase);
        warp_barrier();
        pingpong_wait(group, round);
        wgmma_begin(scores, keys), wgmma_begin(out, width);
        scores_start(scores, width, keys, queries, stage);
        values_start(out, width, keys, weights, stage + keys * width);
        pingpong_pass(group, round, tiles);
        wgmma_wait(scores, keys, 1);
        hopper_modify(scores, keys, h, &rounds->seen, base, place->head, first, rounds->key + round * keys, capped);
        hopper_softmax(&softmax, scores, keys, a->scale);
        materialize_sums(scores, keys);
        fence_on_value(softmax.sum[0] + softmax.sum[1], rounds->full);
        wgmma_wait(out, width, 0);
        if (softmax.rescales) UNROLL for (int i = 0; i < width / 2; i++) out[i] *= softmax.rescale[i / 2 % 2];
        sums_to_operand(weights, scores, keys);
        round_done(rounds, &ring, width, round);
    }
    shared_barrier_wait(rounds->full + ring.stage, ring.phase);
    warp_barrier();
    wgmma_begin(out, width);
    values_start(out, width, keys, weights, rounds->stages + ring.stage * stage_elements + keys * width);
    wgmma_wait(out, width, 0);
    hopper_store(h, place, &softmax, out, width);
}

INLINE void attend_hopper(const AttentionHopper *h, uint64_t maps, const int width, const bool capped) {
    const Attention *a = &h->attention;
    const int keys = hopper_keys(width), stage_elements = 2 * keys * width;
    HopperPlace place = hopper_place(h, HOPPER_ROWS);
    int64_t base = (int64_t)place.sequence * a->query_rows.rows;
    int group = wave_id() / 4;
    KeyBounds bounds[HOPPER_GROUPS];
    UNROLL for (int i = 0; i < HOPPER_GROUPS; i++) bounds[i] = hopper_bounds(a, base, place.first + i * GROUP_ROWS, GROUP_ROWS);
    KeyBounds block = bounds_join(bounds[0], bounds[1]);
    int key = block.low_min / keys * keys, tiles = (block.high_max - key) / keys + 1;
    LOCAL bf16 *stages = hopper_tiles + HOPPER_ROWS * width;
    SharedBarrier full = (SharedBarrier)(stages + HOPPER_STAGES * stage_elements);
    Rounds rounds = {.queries_map = maps,
        .keys_map = maps + sizeof(TensorMap),
        .queries = hopper_tiles,
        .stages = stages,
        .full = full,
        .empty = full + HOPPER_STAGES,
        .queries_full = full + 2 * HOPPER_STAGES,
        .sequence = place.sequence,
        .key = key,
        .tiles = tiles,
        .seen = group == 0 ? bounds[0] : bounds[1],
        .key_column = place.kv_head * width,
        .value_column = (a->kv_heads + place.kv_head) * width};
    bool copies = thread_id() == hopper_threads(width) - WARPGROUP;
    if (copies) rounds_init(&rounds, &place, width);
    barrier();
    if (group < HOPPER_GROUPS || !hopper_copies_apart(width)) {
        if (hopper_copies_apart(width)) registers_raise(MULTIPLY_REGISTERS);
        hopper_multiply(h, &place, &rounds, group, width, capped);
        return;
    }
    registers_lower(COPY_REGISTERS);
    Ring ring = {0};
    for (int round = 0; copies && round + HOPPER_STAGES <= tiles; round++) {
        round_refill(&rounds, &ring, width, round);
        ring_advance(&ring, HOPPER_STAGES);
    }
}

#endif
