/* Shared by the forward kernels of attention (gpu.c, and cached_gpu.c for few rows): the rows and
 * keys of a block, its queries, the products of a wave, and its softmax. `width`, `rows` and
 * numbers of MMA blocks are constants at every call. Owns no memory. */
#pragma once

#include <stddef.h>

#include "ops/attention/gpu_tile_kernels.h"

#ifdef GPU_DEVICE

enum { MOST_WIDTH = 256 };

/* -- The queries of a block ---------------------------------------------------------------------------------------- */

typedef struct AttentionPlace {
    int64_t base;      /* first row of the sequence */
    int64_t key_base;  /* first row of the sequence's keys */
    int head, kv_head; /* first head of the tile */
    int first, total;  /* first row of the tile; rows of the sequence, for all packed heads */
    int part, chunk;
} AttentionPlace;

/* The block's tile has `rows` query rows; the pass has tiles of `width`. Later
 * tiles see more keys, so they come first. The result is cheap enough to recompute after the loop
 * over keys, instead of holding it in registers. */
INLINE AttentionPlace place_of_block(const Attention *a, int rows, const int width) {
    const int parts = attention_parts(width, a->v_dim); /* blocks that divide the columns of the output */
    int x = opaque_of_wave(block_x()), groups = a->heads / a->packed, head = x % groups * a->packed, total = a->query_rows.rows * a->packed;
    return (AttentionPlace){.base = (int64_t)(x / groups) * a->query_rows.rows,
        .key_base = a->first_rows ? a->first_rows[x / groups]
                    : a->cached   ? 0
                                  : (int64_t)(x / groups) * a->key_rows.rows,
        .head = head,
        .kv_head = head / (a->heads / a->kv_heads),
        .first = ((total + rows - 1) / rows - 1 - opaque_of_wave(block_y())) * rows,
        .total = total,
        .part = opaque_of_wave(block_z()) % parts,
        .chunk = opaque_of_wave(block_z()) / parts};
}

INLINE int64_t place_row(const AttentionPlace *p, const Attention *a, int row) { return p->base + attention_token(a, row); }
INLINE int place_head(const AttentionPlace *p, const Attention *a, int row) { return p->head + attention_packed_head(a, row); }

/* Loads the tile's queries, with zeros after the last row and column. */
INLINE void load_queries(
    LOCAL bf16 *tile, const int width, const int rows, const int threads, const Attention *a, const AttentionPlace *p) {
    const int step = ((int)a->query_stride | a->qk_dim) % 8 == 0 ? 8 : 1;
    for (int i = thread_id() * step; i < rows * width; i += threads * step) {
        int row = p->first + i / width, column = i % width;
        bool there = row < p->total && column < a->qk_dim;
        GLOBAL const bf16 *from = a->queries + place_row(p, a, row) * a->query_stride + place_head(p, a, row) * a->qk_dim + column;
        LOCAL bf16 *to = tile + tile_at(width, i / width, column) + column % 8;
        if (step == 8) *(LOCAL u32x4 *)to = there ? *(GLOBAL const u32x4 *)from : (u32x4){0, 0, 0, 0};
        else *to = there ? *from : 0;
    }
}

/* -- The keys of a block -------------------------------------------------------------------------------------------- */

/* Returns the keys of chunk `chunk`, which begins with a whole tile of `keys` keys. The keys that
 * the block's rows see are divided into chunks of equally many tiles, so that all blocks read
 * equally much however full a cache is. The last chunks may be empty. */
INLINE RowInterval keys_of_chunk(const AttentionForward *f, const KeyBounds *seen, int chunk, const int keys) {
    const int least = ATTENTION_CHUNK_TILES * min_int(keys, ATTENTION_KEYS) / keys;
    int low = seen->low_min / keys * keys;
    if (f->chunks == 1) return (RowInterval){low, seen->high_max};
    int tiles = (seen->high_max - low) / keys + 1, each = max_int((tiles + f->chunks - 1) / f->chunks, least) * keys;
    return (RowInterval){low + chunk * each, min_int(seen->high_max, low + chunk * each + each - 1)};
}

/* Return rows `key` .. `last` of keys, or of values from column `column` of a head on, of the
 * block's head. */
INLINE Source keys_at(const Attention *a, const AttentionPlace *p, int key, int last) {
    GLOBAL const bf16 *from = a->keys + (p->key_base * a->key_stride + p->kv_head * a->qk_dim);
    return (Source){from + opaque_of_wave(key) * a->key_stride, a->key_stride, last + 1 - key, a->qk_dim};
}
INLINE Source values_at(const Attention *a, const AttentionPlace *p, int key, int last, int column, const int width) {
    const int dim = width < ATTENTION_MOST_WIDTH ? a->qk_dim : a->v_dim; /* equal in narrower kernels (attention_width) */
    GLOBAL const bf16 *from = a->values + (p->key_base * a->key_stride + p->kv_head * dim);
    return (Source){from + opaque_of_wave(key) * a->key_stride + column, a->key_stride, last + 1 - key, dim - column};
}

/* -- The products of a wave ---------------------------------------------------------------------------------------- */

/* Computes scores of `rows` queries and `blocks` * MMA keys. The queries are `held` in registers;
 * if `held` is NULL, MMA queries are read from the tile `queries`. */
INLINE void compute_scores(Accumulator *scores, const int blocks, const int rows, const Operand *held, LOCAL const bf16 *queries,
    LOCAL const bf16 *keys, const int width) {
    UNROLL for (int n = 0; n < blocks; n++) accumulator_clear(&scores[n]);
    UNROLL for (int k = 0; k < width / MMA; k++) {
        Operand query;
        if (held) query = held[k];
        else operand_load(&query, queries, width, 0, k * MMA);
        UNROLL for (int n = 0; n < blocks; n++) {
            Operand operand;
            operand_load(&operand, keys, width, n * MMA, k * MMA);
            mma_rows(&scores[n], &query, &operand, rows);
        }
    }
}

/* out += weights times the values of `blocks` * MMA keys, in `columns` columns. */
INLINE void add_weighted_values(
    Accumulator *out, const Operand *weights, const int blocks, const int rows, LOCAL const bf16 *values, const int columns) {
    UNROLL for (int k = 0; k < blocks; k++) UNROLL for (int n = 0; n < columns / MMA; n++) {
        Operand operand;
        operand_load_columns(&operand, values, columns, k * MMA, n * MMA);
        mma_rows(&out[n], &weights[k], &operand, rows);
    }
}

/* -- The softmax of a wave ----------------------------------------------------------------------------------------- */

/* For the rows of a lane: the raw score from which exponents are taken, and this lane's share of
 * the running sum. On NVIDIA the raw score is the maximum so far. On AMD it follows the maximum
 * only if the weights would grow by more than a factor of 2^SLACK. Most tiles then neither exchange
 * maxima between lanes nor rescale sums, and fp32 sums have room for the factor. The result differs
 * only by rounding. */
typedef struct Softmax { float maximum[LANE_ROWS], sum[LANE_ROWS]; } Softmax;
enum { SLACK = 8 };

INLINE void softmax_clear(Softmax *softmax) {
    UNROLL for (int r = 0; r < LANE_ROWS; r++) softmax->maximum[r] = -__builtin_inff(), softmax->sum[r] = 0;
}

/* Returns the value that is subtracted from the scaled scores of a row. A row that has seen no key
 * has maximum -inf and weights 0. */
INLINE float softmax_base(float maximum, float scale) { return maximum == -__builtin_inff() ? 0 : maximum * scale; }

/* Returns the factor of older sums; exactly 1 if the maximum stays, so that a row's bits do not depend
 * on whether the tile has other rows that go on. */
INLINE float softmax_rescale(float before, float now, float scale) {
    return before == now ? 1 : fast_exp2(before * scale - softmax_base(now, scale));
}

#if defined __AMDGCN__

/* Returns the maximum of row r over `blocks` * MMA keys in this lane. */
INLINE float lane_maximum(const Accumulator *scores, const int blocks, int r) {
    float maximum = -__builtin_inff();
    UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) maximum =
        __builtin_fmaxf(maximum, accumulator_get(&scores[n], r, c));
    return maximum;
}

/* Rescales sums and `out` of rows whose maximum has grown by more than the slack. */
INLINE void softmax_follow(
    Softmax *softmax, const Accumulator *scores, const int blocks, const int rows, float scale, Accumulator *out, const int out_blocks) {
    float maximum[LANE_ROWS], slack = SLACK * fast_reciprocal(scale);
    bool grown = false;
    UNROLL for (int r = 0; r < lane_rows(rows); r++) {
        maximum[r] = lane_maximum(scores, blocks, r);
        grown |= maximum[r] > softmax->maximum[r] + slack;
    }
    if (__builtin_expect(!any_of_wave(grown), true)) return;
    UNROLL for (int r = 0; r < lane_rows(rows); r++) {
        float now = lanes_max(maximum[r]), before = softmax->maximum[r];
        if (!(now > before + slack)) now = before;
        float rescale = softmax_rescale(before, now, scale);
        softmax->maximum[r] = now;
        softmax->sum[r] *= rescale;
        UNROLL for (int n = 0; n < out_blocks; n++) {
            if (out_blocks * MMA <= 128) accumulator_scale_in_place(&out[n], r, rescale);
            else accumulator_scale(&out[n], r, rescale); /* with this many sums, some may be in registers that assembly cannot use */
        }
    }
}

/* Converts raw scores of the next `blocks` * MMA keys to weights, as operands; rescales `out` if
 * necessary. */
INLINE void softmax_step(Softmax *softmax, Accumulator *scores, Operand *weights, const int blocks, const int rows, float scale,
    Accumulator *out, const int out_blocks) {
    softmax_follow(softmax, scores, blocks, rows, scale, out, out_blocks);
    UNROLL for (int r = 0; r < lane_rows(rows); r++) {
        float base = softmax_base(softmax->maximum[r], scale);
        f32x4 sum = 0;
        UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int t = 0; t < 2; t++) {
            f32x4 x = scores[n].x[r][t] * scale - base;
            UNROLL for (int i = 0; i < 4; i++) x[i] = fast_exp2(x[i]);
            scores[n].x[r][t] = x;
            sum += x;
        }
        softmax->sum[r] += (sum.x + sum.y) + (sum.z + sum.w);
    }
    UNROLL for (int n = 0; n < blocks; n++) operand_of(&weights[n], &scores[n]);
}

#else

/* Converts raw scores of the next `blocks` * MMA keys to weights, as operands, and rescales `out`
 * to the new maximum. */
INLINE void softmax_step(Softmax *softmax, Accumulator *scores, Operand *weights, const int blocks, const int rows, float scale,
    Accumulator *out, const int out_blocks) {
    UNROLL for (int r = 0; r < lane_rows(rows); r++) {
        float maximum = softmax->maximum[r], sum = 0;
        UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) maximum =
            __builtin_fmaxf(maximum, accumulator_get(&scores[n], r, c));
        maximum = lanes_max(maximum);
        float base = softmax_base(maximum, scale);
        float rescale = softmax_rescale(softmax->maximum[r], maximum, scale);
        UNROLL for (int n = 0; n < blocks; n++) UNROLL for (int c = 0; c < LANE_COLUMNS; c++) {
            float weight = fast_exp2(__builtin_fmaf(accumulator_get(&scores[n], r, c), scale, -base));
            accumulator_set(&scores[n], r, c, weight);
            sum += weight;
        }
        softmax->maximum[r] = maximum;
        softmax->sum[r] = softmax->sum[r] * rescale + sum;
        UNROLL for (int n = 0; n < out_blocks; n++) accumulator_scale(&out[n], r, rescale);
    }
    UNROLL for (int n = 0; n < blocks; n++) operand_of(&weights[n], &scores[n]);
}

#endif

#endif
