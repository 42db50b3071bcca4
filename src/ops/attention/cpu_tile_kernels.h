/* The inner loops of attention on a CPU, shared by cpu.c and cached_cpu.c: a tile of up to 64
 * queries against blocks of up to 64 keys, with a running softmax (FlashAttention-2, arXiv
 * 2307.08691).
 *
 * All work is matmuls of small blocks of W in caches, computed by one register-tiled loop. bf16 is
 * cast to W when a block is loaded: fp32 multiply-adds are as fast as any on most CPUs and keep the
 * probabilities in fp32. Scores are stored transposed, [key][query]. Then every matmul broadcasts
 * one operand and reads rows of the other, the softmax runs along vectors of queries without sums
 * across lanes, and only the queries must be transposed, once per tile. The keys that a query sees
 * are an interval, so two numbers per query determine masks and skipped work. Owns no memory. */
#pragma once

#include <assert.h>
#include "backend/cpu/cpu_tile.h"
#include "ops/attention/attention.h"

enum {
    ATTENTION_TILE = 64,  /* queries of a tile, keys of a block */
    ATTENTION_GROUP = 16, /* queries and keys that are skipped together; row widths are multiples of it */
    ATTENTION_QUAD = 4,   /* rows that share the range of a sum */
    ATTENTION_GROUPS = ATTENTION_TILE / ATTENTION_GROUP,
    ATTENTION_QUADS = ATTENTION_TILE / ATTENTION_QUAD,
    ATTENTION_GROUP_QUADS = ATTENTION_GROUP / ATTENTION_QUAD,
};

/* Returns the columns of rows of `columns` columns of a head in scratch: whole vectors, zero-padded. */
static inline int64_t attention_width(int64_t columns) { return (columns + ATTENTION_GROUP - 1) / ATTENTION_GROUP * ATTENTION_GROUP; }
static inline int64_t attention_padded_rows(int64_t rows) { return (rows + ATTENTION_TILE - 1) / ATTENTION_TILE * ATTENTION_TILE; }
/* Returns the scratch elements of one tile in the forward pass: queries, scores, output. */
static inline int64_t attention_tile_elements(const Heads *h) {
    int64_t queries = attention_width(h->qk_dim), out = attention_width(h->v_dim);
    return ATTENTION_TILE * (queries + (out > queries ? out : queries) + ATTENTION_TILE);
}

#ifdef KERNEL_VARIANT

/* Scores are logarithms to base 2, because the scale of queries includes log2(e): 2^x is cheaper
 * than e^x. */
enum { ATTENTION_MIN_EXPONENT = -126 }; /* powers of two below 2^-126 are 0 */
#if defined KERNEL_FP64
static const W attention_magic = 0;
static inline TileVector attention_exp2(TileVector x, TileVector shift, int least) {
    for (int i = 0; i < TILE_LANES; i++) x[i] = x[i] + shift[i] < least ? 0 : exp2(x[i] + shift[i]);
    return x;
}
static inline W attention_log2(W x) { return log2(x); }
#else
/* 1.5 * 2^23 + 127: adding it rounds to an integer n and leaves the exponent of 2^n in the low
 * bits. */
static const W attention_magic = 12583039.0f;
/* Returns 2^(x + shift - attention_magic), within 1.8e-7 relative; 0 if it is below 2^least; NaN
 * stays NaN. x = n + r with |r| <= 1/2 and shift + n an integer; the polynomial has the least
 * relative error of degree 5 with 2^0 = 1. */
static inline TileVector attention_exp2(TileVector x, TileVector shift, int least) {
    TileVector shifted = x + shift, r = x - (shifted - shift), p = r * 1.326472721e-3f + 9.671512812e-3f;
    p = p * r + 5.550733745e-2f;
    p = p * r + 2.402224208e-1f;
    p = p * r + 6.931469776e-1f;
    p = p * r + 1.0f;
    p *= (TileVector)((TileBits)shifted << 23);
    return (TileVector)((TileBits)p & ~(TileBits)(shifted < attention_magic + (W)least));
}
/* Returns log2 of a normal number, within 1e-7 relative or absolute; NaN stays NaN. x = 2^n * m
 * with m from sqrt(1/2) to sqrt(2); with s = (m - 1) / (m + 1), log m = 2 (s + s^3 / 3 + s^5 / 5 +
 * ...). */
static inline W attention_log2(W x) {
    int32_t n = (int32_t)(float_to_bits(x) - 0x3f3504f3) >> 23;
    float m = float_from_bits(float_to_bits(x) - ((uint32_t)n << 23)), s = (m - 1) / (m + 1), z = s * s;
    return (float)n + s * (float)(2 * M_LOG2E) * (1 + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))))) + (x - x);
}
#endif

/* Returns the factor of queries: scale * log2(e). */
static inline W attention_scale(const AttentionSpec *spec) { return (W)score_scale(&spec->scores, spec->heads.qk_dim, M_LOG2E); }
/* Returns the ALiBi slope of a head, times log2(e): the decrease of a score per row of distance. */
static inline W attention_slope(const AttentionSpec *spec, int64_t head) {
    int64_t count = 1, heads = attention_all_heads(spec);
    while (count < heads) count *= 2;
    int64_t i = score_slope_index((int)(spec->first_head + head), (int)heads, (int)count);
    return (W)(M_LOG2E * exp2(-spec->scores.alibi * i / count));
}

static const W attention_masked = (W)-1e30; /* score of a masked key: finite, so that differences are never NaN */

/* -- Matmuls ------------------------------------------------------------------------------------------------------- */

static inline TileRange attention_union(TileRange a, TileRange b) {
    if (a.first >= a.end) return b;
    if (b.first >= b.end) return a;
    return (TileRange){a.first < b.first ? a.first : b.first, a.end > b.end ? a.end : b.end};
}

/* tile_matmul for a group of rows; each quad has its own range. */
static inline __attribute__((always_inline)) void attention_matmul_rows(W *c, int64_t c_row, const W *start, const W *scale, TileRows a,
    const W *b, int64_t b_row, const TileRange *ranges, const int vectors) {
    const int rows = TILE_ROWS(vectors);
    for (int i = 0; i < ATTENTION_GROUP; i += rows) {
        TileRange range = ranges[i / ATTENTION_QUAD];
        if (rows > ATTENTION_QUAD) range = attention_union(range, ranges[i / ATTENTION_QUAD + 1]);
        if (range.first >= range.end) continue;
        tile_matmul(c + i * c_row, c_row, start, scale ? scale + i : NULL, (TileRows){a.at + i * a.row, a.row, a.step}, b, b_row, range,
            rows, vectors);
    }
}

/* attention_matmul_rows over `columns` columns, a multiple of ATTENTION_GROUP. */
static inline __attribute__((always_inline)) void attention_matmul(
    W *c, int64_t c_row, const W *start, const W *scale, TileRows a, const W *b, int64_t b_row, const TileRange *ranges, int64_t columns) {
    int64_t left = columns / TILE_LANES;
    for (; left >= TILE_VECTORS; left -= TILE_VECTORS) {
        attention_matmul_rows(c, c_row, start, scale, a, b, b_row, ranges, TILE_VECTORS);
        c += TILE_VECTORS * TILE_LANES, b += TILE_VECTORS * TILE_LANES;
        if (start) start += TILE_VECTORS * TILE_LANES;
    }
#if defined __AVX512F__
    if (left == 3) attention_matmul_rows(c, c_row, start, scale, a, b, b_row, ranges, 3);
    if (left == 2) attention_matmul_rows(c, c_row, start, scale, a, b, b_row, ranges, 2);
    if (left == 1) attention_matmul_rows(c, c_row, start, scale, a, b, b_row, ranges, 1);
#endif
}

/* scores[key][query] = start[query] + rows[key] . columns[..][query] for a group of keys and `queries` queries. */
static void attention_scores(W *scores, const W *start, const W *rows, const W *columns, int64_t depth, int64_t queries) {
    TileRange all = {0, (int)depth}, ranges[ATTENTION_GROUP_QUADS] = {all, all, all, all};
    TileRows keys = {rows, attention_width(depth), 1};
    attention_matmul(scores, ATTENTION_TILE, start, NULL, keys, columns, ATTENTION_TILE, ranges, queries);
}

/* out[query] = scale[query] * out[query] + sum over keys in `ranges` of weights[key][query] * rows[key] for a group of
 * queries. */
static void attention_sum_over_keys(W *out, const W *scale, const W *weights, const W *rows, const TileRange *ranges, int64_t width) {
    attention_matmul(out, width, NULL, scale, (TileRows){weights, 1, ATTENTION_TILE}, rows, width, ranges, width);
}

/* -- Loading ------------------------------------------------------------------------------------------------------- */

/* Loads a row of a head: to = scale * from, zero after `columns`. */
static inline void attention_load_row(W *restrict to, const T *restrict from, int64_t columns, W scale) {
    int64_t j = 0, width = attention_width(columns);
    for (; j + TILE_LANES <= columns; j += TILE_LANES) *(TileVector *)(to + j) = scale * tile_load_vector(from + j);
    for (; j < columns; j++) to[j] = scale * to_wide(from[j]);
    for (; j < width; j++) to[j] = 0;
}

/* to = scale * from, cast to COMPUTE, without padding. */
static inline void attention_store_row(T *restrict to, const W *restrict from, int64_t columns, W scale) {
    assert(from);
    for (int64_t j = 0; j < columns; j++) to[j] = to_compute(scale * from[j]);
}

/* Loads `rows` rows of a head, `stride` elements apart, and zero rows up to `padded`. */
static inline void attention_load(W *to, const T *from, int64_t stride, int64_t rows, int64_t padded, int64_t columns, W scale) {
    int64_t width = attention_width(columns);
    for (int64_t r = 0; r < rows; r++) attention_load_row(to + r * width, from + r * stride, columns, scale);
    memset(to + rows * width, 0, (padded - rows) * width * sizeof(W));
}

/* to[column][query] = scale * from[query][column] for `rows` rows in storage, zero up to `padded`,
 * a multiple of ATTENTION_GROUP. Partial squares pass through `scratch` of TILE_LANES rows. */
static inline void attention_load_transposed(
    W *to, const T *from, int64_t stride, int64_t rows, int64_t padded, int64_t columns, W scale, W *scratch) {
    int64_t width = attention_width(columns);
    for (int64_t query = 0; query < padded; query += TILE_LANES, from += TILE_LANES * stride) {
        if (width > columns || query + TILE_LANES > rows) {
            attention_load(scratch, from, stride, int_max(int_min(rows - query, TILE_LANES), 0), TILE_LANES, columns, scale);
            tile_transpose(to + query, ATTENTION_TILE, scratch, width, TILE_LANES, width);
            continue;
        }
        for (int64_t column = 0; column < width; column += TILE_LANES) {
            TileVector square[TILE_LANES];
            TILE_UNROLL for (int i = 0; i < TILE_LANES; i++) square[i] = scale * tile_load_vector(from + i * stride + column);
            tile_transpose_square(to + column * ATTENTION_TILE + query, ATTENTION_TILE, square);
        }
    }
}

/* Rows of a head that will be read or written soon. Each panel prefetches ATTENTION_GROUP rows of
 * each stream: they are too far apart for the hardware prefetcher, and prefetching all of them at
 * once would delay the panel's own loads. */
typedef struct AttentionPrefetch {
    struct {
        const T *at;
        int64_t columns, stride, rows;
        bool written;
    } streams[4];
    bool far; /* the streams are read from memory: into the L2 cache, which waits for more lines at once than the L1 cache */
} AttentionPrefetch;

static inline void attention_prefetch_rows(AttentionPrefetch *prefetch) {
    const int64_t line = 64 / (int64_t)sizeof(T);
    for (int i = 0; i < 4; i++) {
        int64_t columns = prefetch->streams[i].columns;
        for (int r = 0; r < ATTENTION_GROUP && prefetch->streams[i].rows > 0; r++, prefetch->streams[i].rows--) {
            const T *row = prefetch->streams[i].at;
            bool written = prefetch->streams[i].written, far = prefetch->far;
            for (int64_t j = 0; j < columns && written; j += line) __builtin_prefetch(row + j, 1);
            for (int64_t j = 0; j < columns && !written && !far; j += line) __builtin_prefetch(row + j, 0);
            for (int64_t j = 0; j < columns && !written && far; j += line) __builtin_prefetch(row + j, 0, 2);
            prefetch->streams[i].at += prefetch->streams[i].stride;
        }
    }
}

/* -- Masks --------------------------------------------------------------------------------------------------------- */

/* Mask of a tile: query i sees the keys low[i] .. high[i], none if high[i] = low[i] - 1; a group or
 * quad sees the union of its queries' keys. high does not decrease with i. Entries after the last
 * query repeat it. Key numbers are below 2^24, thus exact in W. */
typedef struct AttentionMask {
    _Alignas(64) W low[ATTENTION_TILE], high[ATTENTION_TILE];
    W slope[ATTENTION_TILE], token[ATTENTION_TILE]; /* if `sloped`: attention_slope, and the query's token */
    int32_t head[ATTENTION_TILE];                   /* the query's head */
    W limit, steepness;                             /* of the soft-cap (scores.h); 0: none */
    TokenRows key_tokens;
    bool sloped;
    int64_t queries;                                                           /* a multiple of ATTENTION_GROUP */
    int64_t first_key, last_key;                                               /* first and last key that any query sees */
    struct { W low, low_of_all, high, high_of_all; } groups[ATTENTION_GROUPS]; /* .._of_all: seen by all queries */
    struct { W low, high; } quads[ATTENTION_QUADS];                            /* seen by any query of a quad */
    /* Fields of the current block of keys, set by attention_mask_block: */
    int64_t key, panels;                                /* its first key, and its number of groups of keys */
    int first[ATTENTION_GROUPS], end[ATTENTION_GROUPS]; /* queries that see any key of a panel */
    bool whole;                                         /* all queries see all keys of all panels */
    TileRange keys[ATTENTION_QUADS];                    /* seen by any query of a quad, counted from `key` */
} AttentionMask;

static inline W attention_minimum(const W *x, int count) {
    W least = x[0];
    for (int i = 1; i < count; i++) least = x[i] < least ? x[i] : least;
    return least;
}
static inline W attention_maximum(const W *x, int count) {
    W most = x[0];
    for (int i = 1; i < count; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* Sets the constants of the soft-cap. */
static inline void attention_mask_begin(AttentionMask *mask, const AttentionSpec *spec) {
    mask->limit = (W)score_limit(&spec->scores, M_LN2), mask->steepness = (W)score_steepness(&spec->scores, M_LN2);
}

static inline bool attention_sees_none(const AttentionMask *mask, int64_t query) { return mask->low[query] > mask->high[query]; }

/* Completes a mask whose first `count` queries are set: repeats the last one up to whole groups,
 * then finds the keys that groups and quads see. */
static inline void attention_mask_finish(AttentionMask *mask, int64_t count) {
    assert(count > 0);
    mask->queries = attention_width(count);
    for (int64_t i = count; i < mask->queries; i++) mask->low[i] = mask->low[count - 1], mask->high[i] = mask->high[count - 1];
    for (int64_t i = count; i < mask->queries; i++) mask->token[i] = mask->token[count - 1];
    for (int64_t i = count; mask->sloped && i < mask->queries; i++) mask->slope[i] = mask->slope[count - 1];
    for (int64_t i = count; i < mask->queries; i++) mask->head[i] = mask->head[count - 1];
    for (int64_t g = 0, i = 0; i < mask->queries; i = ATTENTION_GROUP * ++g) {
        mask->groups[g].low = attention_minimum(mask->low + i, ATTENTION_GROUP);
        mask->groups[g].low_of_all = attention_maximum(mask->low + i, ATTENTION_GROUP);
        mask->groups[g].high = attention_maximum(mask->high + i, ATTENTION_GROUP);
        mask->groups[g].high_of_all = attention_minimum(mask->high + i, ATTENTION_GROUP);
    }
    for (int64_t q = 0, i = 0; i < mask->queries; i = ATTENTION_QUAD * ++q) {
        mask->quads[q].low = attention_minimum(mask->low + i, ATTENTION_QUAD);
        mask->quads[q].high = attention_maximum(mask->high + i, ATTENTION_QUAD);
    }
    mask->first_key = (int64_t)attention_minimum(mask->low, (int)mask->queries);
    mask->last_key = (int64_t)attention_maximum(mask->high, (int)mask->queries);
}

/* Sets the fields of a mask for the block of `keys` keys from `key` on. */
static void attention_mask_block(AttentionMask *mask, int64_t key, int64_t keys) {
    int groups = (int)(mask->queries / ATTENTION_GROUP);
    mask->key = key;
    mask->panels = attention_width(keys) / ATTENTION_GROUP;
    mask->whole = true;
    for (int g = 0; g < groups; g++)
        mask->whole &=
            (mask->groups[g].low_of_all <= (W)key) & (mask->groups[g].high_of_all >= (W)(key + mask->panels * ATTENTION_GROUP - 1));
    for (int64_t panel = 0; panel < mask->panels; panel++) {
        W at = (W)(key + panel * ATTENTION_GROUP), last = at + (ATTENTION_GROUP - 1);
        int first = 0, end = groups;
        while (first < end && (mask->groups[first].high < at || mask->groups[first].low > last)) first++;
        while (end > first && (mask->groups[end - 1].high < at || mask->groups[end - 1].low > last)) end--;
        mask->first[panel] = first * ATTENTION_GROUP;
        mask->end[panel] = end * ATTENTION_GROUP;
    }
    for (int q = 0; q < groups * ATTENTION_GROUP_QUADS; q++) {
        mask->keys[q].first = (int)int_max((int64_t)mask->quads[q].low - key, 0);
        mask->keys[q].end = (int)int_min((int64_t)mask->quads[q].high - key + 1, keys);
    }
}

/* Sets the scores of masked keys of a panel to attention_masked. */
static inline void attention_panel_mask(const AttentionMask *mask, int64_t panel, W *scores) {
    W first = (W)(mask->key + panel * ATTENTION_GROUP), last = first + (ATTENTION_GROUP - 1);
    for (int i = mask->first[panel]; i < mask->end[panel]; i += TILE_LANES) {
        if (mask->groups[i / ATTENTION_GROUP].low_of_all <= first && mask->groups[i / ATTENTION_GROUP].high_of_all >= last) continue;
        TileVector low = *(const TileVector *)(mask->low + i), high = *(const TileVector *)(mask->high + i);
        for (int k = 0; k < ATTENTION_GROUP; k++) {
            TileVector at = first + k - (TileVector){0}, masked = attention_masked - (TileVector){0};
            TileBits seen = (TileBits)(low <= at) & (TileBits)(at <= high), *score = (TileBits *)(scores + k * ATTENTION_TILE + i);
            *score = (*score & seen) | ((TileBits)masked & ~seen);
        }
    }
}

/* Soft-caps the scores of a panel, then adds start[query]. `slopes`, as scores or NULL, receives the
 * derivatives. Powers are at most 2^64, which keeps them finite and tanh at 1. */
static void attention_panel_cap(const AttentionMask *mask, int64_t panel, W *scores, const W *start, W *slopes) {
    const TileVector zero = {0}, shift = attention_magic - zero, limit = mask->limit - zero, most = 64 - zero;
    for (int64_t k = 0; k < ATTENTION_GROUP; k++)
        for (int i = mask->first[panel]; i < mask->end[panel]; i += TILE_LANES) {
            TileVector *score = (TileVector *)(scores + k * ATTENTION_TILE + i), power = mask->steepness * *score;
            TileBits large = (TileBits)(power > most);
            power = (TileVector)(((TileBits)most & large) | ((TileBits)power & ~large));
            TileVector capped = SCORE_CAPPED(limit, 1 / (1 + attention_exp2(power, shift, ATTENTION_MIN_EXPONENT))), part = capped / limit;
            if (slopes) *(TileVector *)(slopes + k * ATTENTION_TILE + i) = SCORE_CAP_SLOPE(part);
            *score = capped + *(const TileVector *)(start + i);
        }
}

/* Adds the ALiBi bias to the scores of a panel. */
static inline void attention_panel_bias(const AttentionMask *mask, int64_t panel, W *scores) {
    for (int64_t k = 0; k < ATTENTION_GROUP; k++) {
        W *restrict score = scores + k * ATTENTION_TILE;
        W token = (W)token_of_row(&mask->key_tokens, (int32_t)(mask->key + panel * ATTENTION_GROUP + k));
        for (int i = mask->first[panel]; i < mask->end[panel]; i++) score[i] += mask->slope[i] * (token - mask->token[i]);
    }
}

static const _Alignas(64) W attention_zeros[ATTENTION_TILE];

/* Computes capped, biased and masked scores of a panel: scores[key][query] = start[query] +
 * rows[key] . columns[..][query]. `slopes` as in attention_panel_cap. */
static inline void attention_panel_scores(
    const AttentionMask *mask, int64_t panel, W *scores, W *slopes, const W *start, const W *rows, const W *columns, int64_t qk_dim) {
    int first = mask->first[panel];
    bool capped = mask->limit > 0;
    attention_scores(scores + first, (capped ? attention_zeros : start) + first, rows, columns + first, qk_dim, mask->end[panel] - first);
    if (capped) attention_panel_cap(mask, panel, scores, start, slopes);
    if (mask->sloped) attention_panel_bias(mask, panel, scores);
    if (!mask->whole) attention_panel_mask(mask, panel, scores);
}

/* -- The forward pass of a tile ------------------------------------------------------------------------------------ */

typedef struct AttentionTile {
    AttentionMask mask;
    AttentionPrefetch prefetch;
    int64_t qk_dim, v_dim, qk_width, v_width;
    W *queries; /* [qk_width][64], times attention_scale */
    W *scores;  /* [64 keys][64] */
    W *out;     /* [64][v_width], not yet divided by `sum`; before that, room for 64 rows of queries */
    _Alignas(64) W maximum[ATTENTION_TILE], sum[ATTENTION_TILE], rescale[ATTENTION_TILE];
    W shift[ATTENTION_TILE]; /* attention_magic - maximum, where maximum is rounded to match; weights are 2^(score - maximum) */
} AttentionTile;

/* Places a tile in `scratch` of attention_tile_elements. The caller then writes scaled queries and
 * the mask, and calls attention_tile_begin. */
static inline void attention_tile_place(AttentionTile *tile, W *scratch, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    attention_mask_begin(&tile->mask, spec);
    tile->prefetch = (AttentionPrefetch){0};
    tile->mask.key_tokens = (TokenRows){0}; /* keys are numbered by token, unless the caller sets another mapping */
    tile->qk_dim = h->qk_dim, tile->v_dim = h->v_dim;
    tile->qk_width = attention_width(h->qk_dim), tile->v_width = attention_width(h->v_dim);
    tile->queries = scratch;
    tile->scores = tile->queries + ATTENTION_TILE * tile->qk_width;
    tile->out = tile->scores + ATTENTION_TILE * ATTENTION_TILE;
}

static void attention_tile_begin(AttentionTile *tile) {
    memset(tile->out, 0, tile->mask.queries * tile->v_width * sizeof(W));
    for (int i = 0; i < ATTENTION_TILE; i++) tile->maximum[i] = attention_masked, tile->sum[i] = 0;
}

/* Updates the maxima of the running softmax with a panel of scores. */
static inline void attention_panel_maximum(AttentionTile *tile, int64_t panel) {
    W *restrict maximum = tile->maximum;
    for (int k = 0; k < ATTENTION_GROUP; k += ATTENTION_QUAD) {
        const W *restrict s = tile->scores + (panel * ATTENTION_GROUP + k) * ATTENTION_TILE;
        for (int i = tile->mask.first[panel]; i < tile->mask.end[panel]; i++) {
            W a = s[i] > s[i + ATTENTION_TILE] ? s[i] : s[i + ATTENTION_TILE];
            W b = s[i + 2 * ATTENTION_TILE] > s[i + 3 * ATTENTION_TILE] ? s[i + 2 * ATTENTION_TILE] : s[i + 3 * ATTENTION_TILE];
            W c = a > b ? a : b;
            maximum[i] = c > maximum[i] ? c : maximum[i];
        }
    }
}

/* Rescales the sums so far to the new maxima; `before` are the old ones. */
static void attention_tile_rescale(AttentionTile *tile, const W *before) {
    for (int i = 0; i < tile->mask.queries; i += TILE_LANES) {
        TileVector *maximum = (TileVector *)(tile->maximum + i), *shift = (TileVector *)(tile->shift + i);
        *shift = attention_magic - *maximum;
        *maximum = attention_magic - *shift;
        TileVector rescale = attention_exp2(*(const TileVector *)(before + i), *shift, ATTENTION_MIN_EXPONENT);
        *(TileVector *)(tile->rescale + i) = rescale;
        *(TileVector *)(tile->sum + i) *= rescale;
    }
}

/* Converts scores of a panel to weights and adds them to the sums of the softmax. */
static void attention_panel_exponents(AttentionTile *tile, int64_t panel) {
    for (int i = tile->mask.first[panel]; i < tile->mask.end[panel]; i += TILE_LANES) {
        W *scores = tile->scores + panel * ATTENTION_GROUP * ATTENTION_TILE + i;
        TileVector sum = *(TileVector *)(tile->sum + i), shift = *(TileVector *)(tile->shift + i);
        for (int k = 0; k < ATTENTION_GROUP; k++) {
            TileVector *score = (TileVector *)(scores + k * ATTENTION_TILE);
            *score = attention_exp2(*score, shift, ATTENTION_MIN_EXPONENT);
            sum += *score;
        }
        *(TileVector *)(tile->sum + i) = sum;
    }
}

/* Adds the block of `keys` keys from key `key` on to the tile's output; keys are
 * [whole groups of keys][qk_width], values [..][v_width]. A query that has seen no key yet gives masked keys the weight 2^0;
 * its first real key rescales their sum by 2^-1e30 = 0. */
static void attention_tile_add_block(AttentionTile *tile, const W *block_keys, const W *block_values, int64_t key, int64_t keys) {
    AttentionMask *mask = &tile->mask;
    _Alignas(64) W before[ATTENTION_TILE];
    memcpy(before, tile->maximum, sizeof before);
    attention_mask_block(mask, key, keys);
    for (int64_t panel = 0; panel < mask->panels; panel++) {
        attention_panel_scores(mask, panel, tile->scores + panel * ATTENTION_GROUP * ATTENTION_TILE, NULL, attention_zeros,
            block_keys + panel * ATTENTION_GROUP * tile->qk_width, tile->queries, tile->qk_dim);
        attention_panel_maximum(tile, panel);
        attention_prefetch_rows(&tile->prefetch);
    }
    attention_tile_rescale(tile, before);
    for (int64_t panel = 0; panel < mask->panels; panel++) attention_panel_exponents(tile, panel);
    for (int64_t query = 0; query < mask->queries; query += ATTENTION_GROUP)
        attention_sum_over_keys(tile->out + query * tile->v_width, tile->rescale + query, tile->scores + query, block_values,
            mask->keys + query / ATTENTION_QUAD, tile->v_width);
}

/* Ends the softmax: sets tile->rescale to the factors of the rows of `out`, 0 for a query that has
 * seen no key, and tile->maximum to log2-sum-exps. sinks[mask.head[i]] is the sink of query i;
 * `sinks` is NULL if there are none. */
static void attention_tile_finish(AttentionTile *tile, const W *sinks) {
    for (int i = 0; i < ATTENTION_TILE; i++) {
        bool none = tile->maximum[i] <= attention_masked / 2 && tile->sum[i] == tile->sum[i]; /* NaN stays NaN */
        tile->rescale[i] = none ? 0 : 1 / tile->sum[i];
        tile->maximum[i] = none ? -(W)INFINITY : tile->maximum[i] + attention_log2(tile->sum[i]);
    }
    for (int64_t i = 0; sinks && i < tile->mask.queries; i++) {
        ScoreSink joined = score_sink((double)tile->maximum[i], M_LOG2E * (double)sinks[tile->mask.head[i]]);
        tile->rescale[i] *= (W)joined.share;
        tile->maximum[i] = (W)joined.log_sum;
    }
}

/* Stores one row of the output, of a softmax that has ended. */
static inline void attention_tile_store(const AttentionTile *tile, int64_t query, T *to) {
    attention_store_row(to, tile->out + query * tile->v_width, tile->v_dim, tile->rescale[query]);
}

#endif
