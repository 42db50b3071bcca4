/* Shared by the GPU kernels of attention: the forward pass (gpu.c), its gradient (grad_gpu.c) and
 * generation with a cache (cached_gpu.c).
 *
 * A row sees an interval of keys, so a mask (causal, window, documents) is two numbers per row. The
 * bounds of these numbers over a tile's rows decide which tiles to skip or to leave unmasked.
 * Scores stay unscaled (raw); `scale`, which includes log2(e), is applied inside the exponent, and
 * the ALiBi slope is divided by it. Heads are stored in tiles
 * of the width of attention_width, padded with zeros; queries and keys may have more columns than
 * values, or fewer. Owns no memory. */
#pragma once

#include "backend/gpu/amax.h"
#include "ops/attention/block_cyclic.h"
#include "ops/attention/scores.h"
#include "ops/attention/tokens.h"

enum {
    ATTENTION_ROWS = 32, /* query rows per wave */
    ATTENTION_WAVES = 4, /* of a block in the forward pass */
    ATTENTION_WAVES_IN_TURNS = 8,
    ATTENTION_KEYS = 64,       /* keys of a tile in the forward pass, or of half of one (attention_keys) */
    ATTENTION_CHUNK_TILES = 4, /* least tiles of keys in a chunk, counting half tiles; fewer are not worth a block */
};

/* The arguments of a call for all kernels. Rows of queries and of keys are numbered within their
 * sequence. */
typedef struct Attention {
    GLOBAL const bf16 *queries, *keys, *values; /* of head 0, row 0 */
    GLOBAL const int32_t *positions;
    int64_t query_stride, key_stride; /* elements between rows */
    TokenRows query_rows, key_rows;   /* of a sequence; keys of a cache have no end */
    int32_t heads, kv_heads, qk_dim, v_dim, window;
    int32_t bidirectional;            /* a row also sees later keys */
    int32_t cached;                   /* keys are cache rows up to positions[row], not rows of the sequence */
    GLOBAL const int32_t *first_rows; /* of each sequence, of a cache that several share; NULL: none */
    BlockCyclic cyclic;               /* if ranks divide the cache, `keys` is a rank's part of it; ranks 0: `keys` is everything */
    int32_t packed;                   /* heads that share a tile: its row i is head i % packed of token i / packed */
    int32_t slopes;                   /* heads of the model, rounded up to a power of two */
    int32_t first_head, all_heads;
    float scale, alibi;
    float limit, steepness;    /* of the soft-cap of raw scores (scores.h); 0: none */
    GLOBAL const float *sinks; /* of the heads; NULL: none */
} Attention;

/* A forward pass. If partial_out is not NULL, the keys that a block's rows see are cut into
 * `chunks`. Each chunk's normalized result goes to partial_out [chunks][rows][heads][v_dim],
 * zeros without a key, and its log2-sum-exp2 to partial_sum [chunks][rows][heads]. Otherwise the
 * result goes to out [rows][heads * v_dim] and the natural log-sum-exp to log_sum [rows][heads],
 * unless that is NULL. Only whole results count the sinks. */
typedef struct AttentionForward {
    Attention attention;
    GLOBAL bf16 *out;
    GLOBAL uint32_t *amax; /* of out; NULL: not wanted */
    GLOBAL float *log_sum, *partial_out, *partial_sum;
    int32_t chunks, rows; /* rows of all sequences */
} AttentionForward;

/* Widths of tiles, for each of which kernels exist, and how many columns of queries, or of values,
 * they take. The widest passes cut the columns of results into parts of ATTENTION_PART. */
enum { ATTENTION_MOST_WIDTH = 256, ATTENTION_PART = 128 };
/* Returns the width of the tiles of a call. Only the widest kernels take values that have fewer or
 * more columns than keys: narrower forward kernels use one set of offsets for both, and would spill
 * with two. */
static inline int attention_width(int64_t qk_dim, int64_t v_dim) {
    return qk_dim != v_dim || qk_dim > 128 ? ATTENTION_MOST_WIDTH : qk_dim <= 32 ? 32 : qk_dim <= 64 ? 64 : 128;
}
/* Returns how many blocks share the `columns` columns of a result in a pass of `width`. */
static inline int attention_parts(int width, int columns) {
    return width <= ATTENTION_PART ? 1 : (columns + ATTENTION_PART - 1) / ATTENTION_PART;
}
/* Returns the index of a width, for kernels that exist once per width. */
static inline int attention_width_index(int width) { return (width > 32) + (width > 64) + (width > 128); }
/* Returns the index of a kernel that exists once per width, then once per width with a soft-cap. */
static inline int attention_kernel_index(const Attention *a, int width) { return attention_width_index(width) + 4 * (a->limit > 0); }
/* Returns the keys of a tile in the forward pass. On AMD, narrow heads leave registers for twice as
 * many keys, which halves the barriers. */
static inline int attention_keys(int wave, int width) { return wave == 64 && width <= 64 ? 2 * ATTENTION_KEYS : ATTENTION_KEYS; }

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"

/* Returns the fields that attributes and shapes determine, with keys and values in packed qkv. */
Attention attention_of(const OpCall *call);
void attention_launch(Device *device, const AttentionForward *forward, int64_t sequences);
/* Launches the kernels of gpu_hopper_kernels.h; returns false if device or shape do not allow it. Over a
 * cache of `cache_rows` rows (0: none) either all heads of a group are packed, with one row of each
 * sequence, or none. */
bool attention_launch_hopper(Device *device, const AttentionForward *forward, int64_t sequences, int64_t cache_rows);

#else

#include "backend/gpu/mma.h"

extern __attribute__((aligned(128))) LOCAL bf16 attention_tiles[]; /* dynamic shared memory */

/* Waves per SIMD for heads of 128 columns. Two waves have enough registers on gfx942; on gfx90a only if
 * eight waves share a tile (gpu_forward_amd_kernels.h). */
#if defined __gfx90a__
enum { SHARE_OF_128 = 1, WAVES_OF_128 = ATTENTION_WAVES_IN_TURNS, SHARE_IN_TURNS = 2 };
#else
enum { SHARE_OF_128 = 2, WAVES_OF_128 = ATTENTION_WAVES, SHARE_IN_TURNS = SHARE_OF_128 };
#endif

/* Returns whether a wave holds the operands of its query rows in registers, or reads them from
 * shared memory each time. */
INLINE bool attention_holds(int width) { return WAVE == 64 || width <= 64; }

/* The token and the head of row `row` of a sequence's tiles. */
INLINE int attention_token(const Attention *a, int row) { return a->packed == 1 ? row : row / a->packed; }
INLINE int attention_packed_head(const Attention *a, int row) { return a->packed == 1 ? 0 : row % a->packed; }

typedef struct RowInterval { int low, high; } RowInterval;

/* Returns the last key that a query at `token` sees, -1: none. It does not decrease with the
 * token. */
INLINE int attention_last_key(const Attention *a, int token) {
    return a->bidirectional ? a->key_rows.rows - 1 : row_from_token(&a->key_rows, token + 1) - 1;
}
/* Returns the first query that sees key `key` or a later one, judged by its token; query_rows.rows:
 * none. */
INLINE int attention_first_query(const Attention *a, int key) {
    return a->bidirectional ? 0 : row_from_token(&a->query_rows, token_of_row(&a->key_rows, key));
}

/* Returns the keys that row `row` sees, given its element of `positions`; none if high = low -
 * 1. */
INLINE RowInterval attention_interval_at(const Attention *a, int row, const int *position_of_row) {
    int position = *position_of_row, token = a->cached ? position : token_of_row(&a->query_rows, row);
    int back = position < 0 ? 0 : position < token ? position : token;
    if (a->window > 0 && back > a->window - 1) back = a->window - 1;
    if (a->cyclic.ranks > 0) return (RowInterval){block_cyclic_rows(a->cyclic, token - back), block_cyclic_rows(a->cyclic, token + 1) - 1};
    return (RowInterval){row_from_token(&a->key_rows, token - back), attention_last_key(a, token)};
}
/* The same for row `row` of the sequence that begins at row `base`. */
INLINE RowInterval attention_interval(const Attention *a, int64_t base, int row) {
    int position = a->positions[base + row];
    return attention_interval_at(a, row, &position);
}

/* Returns the distance from row `row` to key `key`, the first of a tile; negative if the key comes
 * earlier. Each later key of the tile is one further, and keys from key_rows.half on are
 * attention_jump further in addition. */
INLINE int attention_distance(const Attention *a, int64_t base, int row, int key) {
    int token = a->cyclic.ranks > 0 ? block_cyclic_position(a->cyclic, key) : token_of_row(&a->key_rows, key);
    return token - (a->cached ? a->positions[base + row] : token_of_row(&a->query_rows, row));
}
/* Returns the jump of positions within a tile of keys, 0 for most tiles. */
INLINE int attention_jump(const Attention *a, int key, int keys) {
    return key < a->key_rows.half && key + keys > a->key_rows.half ? a->key_rows.second - a->key_rows.first : 0;
}

/* Returns the ALiBi slope of a head (AttentionSpec) in units of raw scores: the decrease of a score
 * per key of distance. */
INLINE float attention_slope(const Attention *a, int head) {
    if (a->alibi <= 0) return 0;
    int i = score_slope_index(head + a->first_head, a->all_heads, a->slopes);
    return fast_exp2(-a->alibi * i * fast_reciprocal(a->slopes)) * LOG2_E * fast_reciprocal(a->scale);
}

/* -- Bounds of intervals over a tile ------------------------------------------------------------------------------- */

typedef struct KeyBounds { int low_min, low_max, high_min, high_max; } KeyBounds;

INLINE int min_int(int a, int b) { return a < b ? a : b; }
INLINE int max_int(int a, int b) { return a > b ? a : b; }

INLINE KeyBounds bounds_join(KeyBounds a, KeyBounds b) {
    return (KeyBounds){
        min_int(a.low_min, b.low_min), max_int(a.low_max, b.low_max), min_int(a.high_min, b.high_min), max_int(a.high_max, b.high_max)};
}

/* Returns bounds over rows first .. first + rows - 1 (`rows` constant) that are below `total`;
 * without any such row they touch no key. Every lane gets them. */
INLINE KeyBounds attention_bounds(const Attention *a, int64_t base, int first, int rows, int total) {
    KeyBounds e = {INT32_MAX, INT32_MIN, INT32_MAX, INT32_MIN};
    UNROLL for (int i = 0; i < rows; i += WAVE) {
        int row = first + i + lane_id() % min_int(rows, WAVE);
        RowInterval seen = attention_interval(a, base, attention_token(a, min_int(row, total - 1)));
        if (row < total) e = bounds_join(e, (KeyBounds){seen.low, seen.low, seen.high, seen.high});
    }
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) {
        int from = lane_id() ^ mask;
        e = bounds_join(e, (KeyBounds){(int)shuffle(e.low_min, from), (int)shuffle(e.low_max, from), (int)shuffle(e.high_min, from),
                               (int)shuffle(e.high_max, from)});
    }
    return (KeyBounds){of_wave(e.low_min), of_wave(e.low_max), of_wave(e.high_min), of_wave(e.high_max)};
}
/* Return whether any row sees any of the keys first .. last; whether all rows see all of them. */
INLINE bool bounds_touch(const KeyBounds *e, int first, int last) { return first <= e->high_max && last >= e->low_min; }
INLINE bool bounds_cover(const KeyBounds *e, int first, int last) { return first >= e->low_max && last <= e->high_min; }

/* Returns the soft-cap of a raw score. */
INLINE float attention_cap(const Attention *a, float x) { return SCORE_CAPPED(a->limit, fast_reciprocal(1 + fast_exp2(a->steepness * x))); }
/* Soft-caps the scores of `rows` rows of a wave. Kernels have a variant with `capped` set, so that
 * others are as without this. */
INLINE void attention_cap_scores(Accumulator *scores, const int blocks, const int rows, const Attention *a) {
    UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int r = 0; r < lane_rows(rows); r++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++)
        accumulator_set(&scores[n], r, c, attention_cap(a, accumulator_get(&scores[n], r, c)));
}
/* Soft-caps a score and converts dP to (dP - delta) times the derivative. */
INLINE void attention_cap_pair(const Attention *a, Accumulator *scores, Accumulator *d_weights, int r, int c, float delta) {
    float y = attention_cap(a, accumulator_get(scores, r, c));
    accumulator_set(scores, r, c, y);
    accumulator_set(d_weights, r, c, (accumulator_get(d_weights, r, c) - delta) * SCORE_CAP_SLOPE(y * fast_reciprocal(a->limit)));
}

/* Adds the ALiBi bias to a wave's scores and sets those of masked keys to -inf. The wave has `rows`
 * rows from `first` on and `blocks` * MMA keys from `key` on; `head` is that of the tile's first
 * row. Few tiles need this, so intervals are read again instead of held in registers. */
INLINE void attention_mask(
    Accumulator *scores, const int blocks, const int rows, const Attention *a, int64_t base, int head, int first, int total, int key) {
    int jump = attention_jump(a, key, blocks * MMA);
    UNROLL for (int r = 0; r < lane_rows(rows); r++) {
        int row = min_int(first + lane_row(rows, r), total - 1);
        RowInterval seen = attention_interval(a, base, attention_token(a, row));
        float slope = attention_slope(a, head + attention_packed_head(a, row));
        int from = key + accumulator_first(), low = seen.low - from, high = seen.high - from;
        if (WAVE == 32 || a->alibi > 0) {
            int distance = attention_distance(a, base, attention_token(a, row), key) + accumulator_first();
            UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) accumulator_set(
                &scores[n], r, c, accumulator_get(&scores[n], r, c) + slope * (float)(n * MMA + accumulator_step(c) + distance));
        }
        UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            int at = n * MMA + accumulator_step(c);
            accumulator_set(&scores[n], r, c, at >= low && at <= high ? accumulator_get(&scores[n], r, c) : -__builtin_inff());
        }
        if (jump != 0 && a->alibi > 0) UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
                float jumped = from + n * MMA + accumulator_step(c) < a->key_rows.half ? 0 : slope * (float)jump;
                accumulator_set(&scores[n], r, c, accumulator_get(&scores[n], r, c) + jumped);
            }
    }
}

/* Converts a log-sum-exp that the forward pass kept to base 2. Infinity for a row that sees no key,
 * so that its weights are 0. */
INLINE float attention_log_sum(float x) { return x == -__builtin_inff() ? __builtin_inff() : x * LOG2_E; }

/* -- Rows from and to global memory -------------------------------------------------------------------------------- */

/* Stores columns first .. first + 31 of row accumulator_row(r) times `factor`, those below `dim`, if
 * `there`. Rows of the matrix are `stride` elements apart. All lanes call it. Returns the largest absolute-value bits that the lane
 * stores (backend/gpu/amax.h). */
INLINE uint32_t attention_store(
    GLOBAL bf16 *row, int64_t stride, const Accumulator *x, int r, int first, int dim, float factor, bool there) {
    Accumulator scaled;
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) accumulator_set(&scaled, r, c, accumulator_get(x, r, c) * factor);
    u32x4 packed = accumulator_pack(&scaled, r);
    uint32_t most = 0;
    if (!there) return 0;
    if (((int)stride | dim) % 8 == 0) {
        int column = first + accumulator_chunk();
        if (column >= dim) return 0;
        *(GLOBAL u32x4 *)(row + column) = packed;
        UNROLL for (int i = 0; i < 4; i++) most = larger_of_pair(most, packed[i]);
        return most;
    }
    UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
        int column = first + accumulator_column(c);
        bf16 x = to_bf16(accumulator_get(&scaled, r, c));
        if (column >= dim) continue;
        row[column] = x;
        most = larger_of_pair(most, x);
    }
    return most;
}

#endif
