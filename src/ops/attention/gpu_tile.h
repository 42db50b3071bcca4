/* What the kernels of attention share: the forward pass (attention.c), its gradient (attention_grad.c) and generation with a cache (attention_cached.c).
 *
 * A row sees an interval of keys, so masks (causal, window, documents) are two numbers per row, and what a tile can skip or leave unmasked follows from
 * the extremes over its rows. Scores stay in the units of the raw product; `scale`, with log2(e) in it, is applied inside the exponent, and the slope of
 * ALiBi is divided by it. A head of head_dim columns lies in tiles of the next of the widths 32, 64, 128, 256, zeros behind it. */
#pragma once

#include "backend/gpu/gpu.h"

enum {
    ATTENTION_ROWS = 32, /* of a wave */
    ATTENTION_KEYS = 64, /* of a tile in the forward pass */
};

/* What all kernels know of a call. Rows and keys are numbered within their sequence. */
typedef struct Attention {
    GLOBAL const bf16 *queries, *keys, *values; /* of head 0, row 0 */
    GLOBAL const int32_t *positions;
    int64_t query_stride, key_stride; /* elements from row to row */
    int32_t length;                   /* query rows of a sequence */
    int32_t heads, kv_heads, head_dim, window;
    int32_t cached; /* keys are the rows of a cache up to positions[row], not the sequence's own */
    int32_t packed; /* heads that share a tile: its row i is head i % packed of token i / packed */
    int32_t slopes; /* heads rounded up to a power of two */
    float scale, alibi;
} Attention;

/* A forward pass. With chunks > 1 the keys are cut into chunks of `chunk`, a multiple of ATTENTION_KEYS; of each of them the normalised result goes to
 * partial_out [chunks][rows][heads][head_dim] and its log2-sum-exp2 to partial_sum [chunks][rows][heads]. Otherwise the result goes to out
 * [rows][heads * head_dim] and, unless NULL, the natural log-sum-exp to log_sum [rows][heads]. */
typedef struct AttentionForward {
    Attention attention;
    GLOBAL bf16 *out;
    GLOBAL float *log_sum, *partial_out, *partial_sum;
    int32_t chunks, chunk;
} AttentionForward;

/* Width of the tiles that hold a head. */
static inline int attention_width(int64_t head_dim) { return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"

/* What spec and shapes decide, with keys and values in packed rows. */
Attention attention_of(const OpCall *call, const void *qkv, const void *positions);
void attention_launch(Device *device, const AttentionForward *forward, int64_t sequences);

#else

#include "backend/gpu/mma.h"

extern __attribute__((aligned(128))) LOCAL bf16 attention_tiles[]; /* dynamic shared memory */

/* Whether a wave keeps the operands of its own rows in registers, or reads them from shared memory every time. */
INLINE bool attention_holds(int width) { return WAVE == 64 || width <= 64; }

/* Of row `row` of a sequence's tiles. */
INLINE int attention_token(const Attention *a, int row) { return a->packed == 1 ? row : row / a->packed; }
INLINE int attention_packed_head(const Attention *a, int row) { return a->packed == 1 ? 0 : row % a->packed; }

typedef struct Interval { int low, high; } Interval;

/* The keys that row `row` of the sequence that begins at row `base` sees. */
INLINE Interval attention_interval(const Attention *a, int64_t base, int row) {
    int position = a->positions[base + row], high = a->cached ? position : row, back = position < 0 ? 0 : position < high ? position : high;
    if (a->window > 0 && back > a->window - 1) back = a->window - 1;
    return (Interval){high - back, high};
}

/* By how much a score falls per key of distance: MPT's slopes (op.h), in units of raw scores. */
INLINE float attention_slope(const Attention *a, int head) {
    if (a->alibi <= 0) return 0;
    int i = a->slopes == a->heads ? head + 1 : head < a->slopes / 2 ? 2 * head + 2 : 2 * head + 1 - a->slopes;
    return fast_exp2(-a->alibi * i * fast_reciprocal(a->slopes)) * LOG2_E * fast_reciprocal(a->scale);
}

/* -- Extremes of intervals over a tile ----------------------------------------------------------------------------- */

typedef struct Extremes { int low_least, low_most, high_least, high_most; } Extremes;

INLINE int least(int a, int b) { return a < b ? a : b; }
INLINE int most(int a, int b) { return a > b ? a : b; }

INLINE Extremes extremes_join(Extremes a, Extremes b) {
    return (Extremes){
        least(a.low_least, b.low_least), most(a.low_most, b.low_most), least(a.high_least, b.high_least), most(a.high_most, b.high_most)};
}

/* Over rows first .. first + rows - 1, `rows` constant, those from `total` on left out; without any, nothing is touched. Every lane of the wave gets them. */
INLINE Extremes attention_extremes(const Attention *a, int64_t base, int first, int rows, int total) {
    Extremes e = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    UNROLL for (int i = 0; i < rows; i += WAVE) {
        int row = first + i + lane_id() % least(rows, WAVE);
        Interval seen = attention_interval(a, base, attention_token(a, least(row, total - 1)));
        if (row < total) e = extremes_join(e, (Extremes){seen.low, seen.low, seen.high, seen.high});
    }
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) {
        int from = lane_id() ^ mask;
        e = extremes_join(e, (Extremes){(int)shuffle(e.low_least, from), (int)shuffle(e.low_most, from), (int)shuffle(e.high_least, from),
                                 (int)shuffle(e.high_most, from)});
    }
    return e;
}
/* Whether any row sees any of the keys first .. last; whether all rows see all of them. */
INLINE bool extremes_touch(const Extremes *e, int first, int last) { return first <= e->high_most && last >= e->low_least; }
INLINE bool extremes_cover(const Extremes *e, int first, int last) { return first >= e->low_most && last <= e->high_least; }

/* Of a wave's scores, rows from `first` on and keys from `key` on: adds the bias of distance and hides, as -inf, what rows do not see. `head` is that of the
 * tile's first row. Few tiles need it, so intervals are read again rather than kept in registers. */
INLINE void attention_mask(
    Accumulator *scores, const int blocks, const Attention *a, int64_t base, int head, int first, int total, int key) {
    UNROLL for (int r = 0; r < LANE_ROWS; r++) {
        int row = least(first + accumulator_row(r), total - 1);
        Interval seen = attention_interval(a, base, attention_token(a, row));
        float slope = attention_slope(a, head + attention_packed_head(a, row));
        int from = key + accumulator_first(), low = seen.low - from, high = seen.high - from;
        UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            int at = n * MMA + accumulator_step(c);
            float biased = accumulator_get(&scores[n], r, c) + slope * (float)(at - high);
            accumulator_set(&scores[n], r, c, at >= low && at <= high ? biased : -__builtin_inff());
        }
    }
}

/* -- Rows from and to global memory -------------------------------------------------------------------------------- */

/* Stores columns `first` .. first + 31 of row accumulator_row(r), as many as a head has, times `factor`. All lanes call it, `there` or not. */
INLINE void attention_store(GLOBAL bf16 *row, const Accumulator *x, int r, int first, int head_dim, float factor, bool there) {
    Accumulator scaled;
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) accumulator_set(&scaled, r, c, accumulator_get(x, r, c) * factor);
    u32x4 packed = accumulator_pack(&scaled, r);
    if (!there) return;
    if (head_dim % 8 == 0) {
        int column = first + accumulator_chunk();
        if (column < head_dim) *(GLOBAL u32x4 *)(row + column) = packed;
        return;
    }
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        int column = first + accumulator_column(c);
        if (column < head_dim) row[column] = to_bf16(accumulator_get(&scaled, r, c));
    }
}

#endif
