/* The inner loops of attention on a CPU, shared by attention.c and attention_cached.c: a tile of up to 64 queries against blocks of up
 * to 64 keys, with a running softmax (FlashAttention-2, arXiv 2307.08691).
 *
 * Everything is a product of small blocks of W in caches, computed by one register-tiled multiply: bf16 is widened when a block
 * is loaded, since fp32 multiply-adds are as fast as any on most CPUs and keep the probabilities in fp32. Scores are held
 * transposed, [key][query]: then every product broadcasts one operand and reads rows of the other, the softmax runs along vectors
 * of queries without any sum across lanes, and only the queries have to be transposed, once per tile. Which key a query sees is an
 * interval, so masks and skipped work follow from two numbers per query. */
#ifndef SMELT_OP_ATTENTION_H
#define SMELT_OP_ATTENTION_H

#include "op/kernel.h"

enum {
    ATTENTION_TILE = 64,  /* queries of a tile, keys of a block */
    ATTENTION_GROUP = 16, /* queries whose common interval decides what is skipped; row widths are multiples of it */
    ATTENTION_PANEL = 4,  /* rows of the register tile */
};

/* Columns of a head's rows in scratch: whole vectors, the rest is zero. */
static inline int64_t attention_width(int64_t head_dim) { return (head_dim + ATTENTION_GROUP - 1) / ATTENTION_GROUP * ATTENTION_GROUP; }
static inline int64_t attention_round(int64_t rows) { return (rows + ATTENTION_TILE - 1) / ATTENTION_TILE * ATTENTION_TILE; }
/* Elements of scratch of one tile in the forward pass: queries, scores, output. */
static inline int64_t attention_tile_elements(int64_t head_dim) { return ATTENTION_TILE * (2 * attention_width(head_dim) + ATTENTION_TILE); }

#ifdef KERNEL_VARIANT

#if defined __AVX512F__
#define ATTENTION_VECTOR_BYTES 64
enum { ATTENTION_VECTORS = 4 }; /* 16 of 32 registers are sums */
#elif defined __AVX2__
#define ATTENTION_VECTOR_BYTES 32
enum { ATTENTION_VECTORS = 2 }; /* 8 of 16 */
#else
#define ATTENTION_VECTOR_BYTES 16
enum { ATTENTION_VECTORS = 2 };
#endif
enum { ATTENTION_LANES = ATTENTION_VECTOR_BYTES / sizeof(W) };
typedef W AttentionVector __attribute__((vector_size(ATTENTION_VECTOR_BYTES), may_alias));

#ifdef __clang__
#define ATTENTION_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATTENTION_UNROLL _Pragma("GCC unroll 16")
#endif

/* Scores are logarithms to base 2, log2(e) being part of the scale of queries: 2^x is cheaper than e^x. */
#if defined KERNEL_FP64
static inline W attention_exp2(W x) { return exp2(x); }
static inline W attention_log(W x) { return log(x); }
#else
/* 2^x for x <= 0, within 1.6e-7 of its value, 0 below -126.5; a little above 0 is fine and NaN stays NaN. x = n + r with |r| <= 1/2; the polynomial has
 * the least relative error of degree 5 with 2^0 = 1. Without wide_exp's upper branch this is half its instructions, a tenth of a forward pass. */
static inline W attention_exp2(W x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    float clamped = -127.0f > x ? -127.0f : x;
    union { float value; uint32_t bits; } shifted = {.value = clamped + magic};
    float r = clamped - (shifted.value - magic), p = 1.326472721e-3f;
    p = p * r + 9.671512812e-3f;
    p = p * r + 5.550733745e-2f;
    p = p * r + 2.402224208e-1f;
    p = p * r + 6.931469776e-1f;
    p = p * r + 1.0f;
    union { uint32_t bits; float value; } power = {.bits = (shifted.bits << 23) + 0x3f800000};
    return p * power.value;
}
static inline W attention_log(W x) { return logf(x); }
#endif
/* What queries are multiplied by. */
static inline W attention_scale(const AttentionSpec *spec) {
    return (W)(spec->scale > 0 ? M_LOG2E * spec->scale : M_LOG2E / sqrt((double)spec->heads.head_dim));
}
/* By how much a score falls per row of distance. */
static inline W attention_slope(const AttentionSpec *spec, int64_t head) {
    int64_t count = 1;
    while (count < spec->heads.heads) count *= 2;
    int64_t i = count == spec->heads.heads ? head + 1 : head < count / 2 ? 2 * head + 2 : 2 * head + 1 - count;
    return (W)(M_LOG2E * exp2(-spec->alibi * i / count));
}

static const W attention_hidden = (W)-1e30; /* score of a key that is not seen: finite, so that differences are never NaN */
static const W attention_ones[ATTENTION_PANEL] = {1, 1, 1, 1};

/* -- Products ------------------------------------------------------------------------------------------------------ */

/* c[4][vectors] = scale[row] * c + sum over p < depth of a[row * a_row + p * a_step] * b[p * b_row + ..]; without `scale`, c is
 * not read. */
static inline __attribute__((always_inline)) void attention_multiply_vectors(W *c, int64_t c_row, const W *scale, const W *a, int64_t a_row,
                                                                             int64_t a_step, const W *b, int64_t b_row, int64_t depth,
                                                                             const int vectors) {
    AttentionVector sums[ATTENTION_PANEL][ATTENTION_VECTORS];
    ATTENTION_UNROLL for (int i = 0; i < ATTENTION_PANEL; i++)
        ATTENTION_UNROLL for (int j = 0; j < vectors; j++) {
            sums[i][j] = (AttentionVector){0};
            if (scale) sums[i][j] = *(AttentionVector *)(c + i * c_row + j * ATTENTION_LANES) * scale[i];
        }
    for (int64_t p = 0; p < depth; p++, a += a_step, b += b_row) {
        AttentionVector row[ATTENTION_VECTORS];
        ATTENTION_UNROLL for (int j = 0; j < vectors; j++) row[j] = *(const AttentionVector *)(b + j * ATTENTION_LANES);
        ATTENTION_UNROLL for (int i = 0; i < ATTENTION_PANEL; i++)
            ATTENTION_UNROLL for (int j = 0; j < vectors; j++) sums[i][j] += a[i * a_row] * row[j];
    }
    ATTENTION_UNROLL for (int i = 0; i < ATTENTION_PANEL; i++)
        ATTENTION_UNROLL for (int j = 0; j < vectors; j++) *(AttentionVector *)(c + i * c_row + j * ATTENTION_LANES) = sums[i][j];
}

/* The same for four rows of `columns`, a multiple of ATTENTION_GROUP. */
static void attention_multiply(W *c, int64_t c_row, const W *scale, const W *a, int64_t a_row, int64_t a_step, const W *b, int64_t b_row,
                               int64_t depth, int64_t columns) {
    int64_t left = columns / ATTENTION_LANES;
    for (; left >= ATTENTION_VECTORS; left -= ATTENTION_VECTORS) {
        attention_multiply_vectors(c, c_row, scale, a, a_row, a_step, b, b_row, depth, ATTENTION_VECTORS);
        c += ATTENTION_VECTORS * ATTENTION_LANES, b += ATTENTION_VECTORS * ATTENTION_LANES;
    }
#if defined __AVX512F__
    if (left == 3) attention_multiply_vectors(c, c_row, scale, a, a_row, a_step, b, b_row, depth, 3);
    if (left == 2) attention_multiply_vectors(c, c_row, scale, a, a_row, a_step, b, b_row, depth, 2);
    if (left == 1) attention_multiply_vectors(c, c_row, scale, a, a_row, a_step, b, b_row, depth, 1);
#endif
}

/* -- Loading ------------------------------------------------------------------------------------------------------- */

/* to[row] = scale * from[row], zero beyond head_dim. */
static inline void attention_load_row(W *restrict to, const T *restrict from, int64_t head_dim, W scale) {
    int64_t width = attention_width(head_dim);
    for (int64_t j = 0; j < head_dim; j++) to[j] = scale * widen(from[j]);
    for (int64_t j = head_dim; j < width; j++) to[j] = 0;
}

/* `rows` rows, `stride` elements apart, and zero rows up to `padded`. */
static inline void attention_load(W *to, const T *from, int64_t stride, int64_t rows, int64_t padded, int64_t head_dim, W scale) {
    int64_t width = attention_width(head_dim);
    for (int64_t r = 0; r < rows; r++) attention_load_row(to + r * width, from + r * stride, head_dim, scale);
    memset(to + rows * width, 0, (padded - rows) * width * sizeof(W));
}

/* Interleaves the halves of two vectors; done once per doubling of lanes, it transposes a square. */
#define ATTENTION_ZIP_2(a, b, at) __builtin_shufflevector(a, b, at, 2 + at)
#define ATTENTION_ZIP_4(a, b, at) __builtin_shufflevector(a, b, at, 4 + at, 1 + at, 5 + at)
#define ATTENTION_ZIP_8(a, b, at) __builtin_shufflevector(a, b, at, 8 + at, 1 + at, 9 + at, 2 + at, 10 + at, 3 + at, 11 + at)
#define ATTENTION_ZIP_16(a, b, at) \
    __builtin_shufflevector(a, b, at, 16 + at, 1 + at, 17 + at, 2 + at, 18 + at, 3 + at, 19 + at, 4 + at, 20 + at, 5 + at, 21 + at, 6 + at, \
                            22 + at, 7 + at, 23 + at)
#if defined KERNEL_FP64 && ATTENTION_VECTOR_BYTES == 16
#define ATTENTION_ZIP ATTENTION_ZIP_2
#elif ATTENTION_VECTOR_BYTES == 16
#define ATTENTION_ZIP ATTENTION_ZIP_4
#elif ATTENTION_VECTOR_BYTES == 32
#define ATTENTION_ZIP ATTENTION_ZIP_8
#else
#define ATTENTION_ZIP ATTENTION_ZIP_16
#endif

static inline void attention_transpose_square(W *to, const W *from, int64_t width) {
    AttentionVector rows[ATTENTION_LANES];
    ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES; i++) rows[i] = *(const AttentionVector *)(from + i * width);
    for (int stage = 1; stage < ATTENTION_LANES; stage *= 2) {
        AttentionVector next[ATTENTION_LANES];
        ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES / 2; i++) {
            next[2 * i] = ATTENTION_ZIP(rows[i], rows[i + ATTENTION_LANES / 2], 0);
            next[2 * i + 1] = ATTENTION_ZIP(rows[i], rows[i + ATTENTION_LANES / 2], ATTENTION_LANES / 2);
        }
        ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES; i++) rows[i] = next[i];
    }
    ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES; i++) *(AttentionVector *)(to + i * ATTENTION_TILE) = rows[i];
}

/* to[column][query] = from[query][column] for `queries` rows, a multiple of ATTENTION_GROUP. */
static void attention_transpose(W *to, const W *from, int64_t queries, int64_t width) {
    for (int64_t column = 0; column < width; column += ATTENTION_LANES)
        for (int64_t query = 0; query < queries; query += ATTENTION_LANES)
            attention_transpose_square(to + column * ATTENTION_TILE + query, from + query * width + column, width);
}

/* -- What a tile sees ---------------------------------------------------------------------------------------------- */

/* Query i sees the keys low[i] .. high[i]; entries beyond the last query repeat it. Numbers of keys are exact in W (below 2^24). */
typedef struct AttentionView {
    _Alignas(64) W low[ATTENTION_TILE], high[ATTENTION_TILE];
    W slope[ATTENTION_TILE];                                           /* where `sloped`: attention_slope; query i is the token high[i] */
    bool sloped;
    int64_t queries;                                                   /* a multiple of ATTENTION_GROUP */
    int first[ATTENTION_TILE / ATTENTION_PANEL], end[ATTENTION_TILE / ATTENTION_PANEL]; /* queries that see any key of a panel */
    bool whole;                                                        /* every query sees every key of the block */
    int64_t panels;
} AttentionView;

static inline void attention_interval(const AttentionView *view, int64_t from, int64_t count, W *low, W *high) {
    *low = view->low[from], *high = view->high[from];
    for (int64_t i = from + 1; i < from + count; i++) {
        *low = view->low[i] < *low ? view->low[i] : *low;
        *high = view->high[i] > *high ? view->high[i] : *high;
    }
}

/* Repeats query `count` - 1 up to whole groups. */
static inline void attention_view_close(AttentionView *view, int64_t count) {
    view->queries = (count + ATTENTION_GROUP - 1) / ATTENTION_GROUP * ATTENTION_GROUP;
    for (int64_t i = count; i < view->queries; i++) view->low[i] = view->low[count - 1], view->high[i] = view->high[count - 1];
    for (int64_t i = count; view->sloped && i < view->queries; i++) view->slope[i] = view->slope[count - 1];
}

/* Sets what concerns the block of `keys` keys from `key` on. */
static void attention_view_block(AttentionView *view, int64_t key, int64_t keys) {
    view->panels = (keys + ATTENTION_PANEL - 1) / ATTENTION_PANEL;
    W last = (W)(key + view->panels * ATTENTION_PANEL - 1);
    W low[ATTENTION_TILE / ATTENTION_GROUP], high[ATTENTION_TILE / ATTENTION_GROUP];
    view->whole = true;
    for (int64_t i = 0; i < view->queries; i++) view->whole &= (view->low[i] <= (W)key) & (view->high[i] >= last);
    int groups = (int)(view->queries / ATTENTION_GROUP);
    for (int g = 0; g < groups; g++) attention_interval(view, g * ATTENTION_GROUP, ATTENTION_GROUP, &low[g], &high[g]);
    for (int64_t panel = 0; panel < view->panels; panel++) {
        W at = (W)(key + panel * ATTENTION_PANEL);
        int first = 0, end = groups;
        while (first < end && (high[first] < at || low[first] > at + (ATTENTION_PANEL - 1))) first++;
        while (end > first && (high[end - 1] < at || low[end - 1] > at + (ATTENTION_PANEL - 1))) end--;
        view->first[panel] = first * ATTENTION_GROUP;
        view->end[panel] = end * ATTENTION_GROUP;
    }
}

/* The keys of the block, counted from its first, that any of the four queries from `query` on sees; false when none. */
static inline bool attention_view_keys(const AttentionView *view, int64_t query, int64_t key, int64_t keys, int64_t *first, int64_t *end) {
    W low, high;
    attention_interval(view, query, ATTENTION_PANEL, &low, &high);
    *first = kernel_max((int64_t)low - key, 0);
    *end = kernel_min((int64_t)high - key + 1, keys);
    return *first < *end;
}

/* scores[key][query] of a panel = rows . columns, with hidden keys at attention_hidden when `mask`. */
static inline void attention_panel_product(const AttentionView *view, int64_t panel, W *restrict scores, const W *rows, const W *columns,
                                           int64_t head_dim, int64_t width) {
    int first = view->first[panel], end = view->end[panel];
    if (first < end)
        attention_multiply(scores + panel * ATTENTION_PANEL * ATTENTION_TILE + first, ATTENTION_TILE, NULL, rows + panel * ATTENTION_PANEL * width,
                           width, 1, columns + first, ATTENTION_TILE, head_dim, end - first);
}

static inline void attention_panel_mask(const AttentionView *view, int64_t panel, W *scores, int64_t key) {
    for (int64_t k = panel * ATTENTION_PANEL; k < (panel + 1) * ATTENTION_PANEL; k++) {
        W *restrict score = scores + k * ATTENTION_TILE, at = (W)(key + k);
        for (int i = view->first[panel]; i < view->end[panel]; i++) {
            int seen = (view->low[i] <= at) & (at <= view->high[i]);
            score[i] = seen ? score[i] : attention_hidden;
        }
    }
}

/* Adds the bias of distance to scores. */
static inline void attention_panel_slope(const AttentionView *view, int64_t panel, W *scores, int64_t key) {
    for (int64_t k = panel * ATTENTION_PANEL; k < (panel + 1) * ATTENTION_PANEL; k++) {
        W *restrict score = scores + k * ATTENTION_TILE, at = (W)(key + k);
        for (int i = view->first[panel]; i < view->end[panel]; i++) score[i] += view->slope[i] * (at - view->high[i]);
    }
}

/* -- The forward pass of a tile ------------------------------------------------------------------------------------ */

typedef struct AttentionTile {
    AttentionView view;
    int64_t head_dim, width;
    W *queries; /* [width][64], times attention_scale */
    W *scores;  /* [64 keys][64] */
    W *out;     /* [64][width], not yet divided by `sum` */
    _Alignas(64) W maximum[ATTENTION_TILE], sum[ATTENTION_TILE], rescale[ATTENTION_TILE];
} AttentionTile;

/* A tile over `scratch` of attention_tile_elements; the caller writes scaled queries as rows to `out` and the view, then begins. */
static inline void attention_tile_place(AttentionTile *tile, W *scratch, int64_t head_dim) {
    tile->head_dim = head_dim;
    tile->width = attention_width(head_dim);
    tile->queries = scratch;
    tile->out = tile->queries + ATTENTION_TILE * tile->width;
    tile->scores = tile->out + ATTENTION_TILE * tile->width;
}

static void attention_tile_begin(AttentionTile *tile) {
    attention_transpose(tile->queries, tile->out, tile->view.queries, tile->width);
    memset(tile->out, 0, tile->view.queries * tile->width * sizeof(W));
    for (int i = 0; i < ATTENTION_TILE; i++) tile->maximum[i] = attention_hidden, tile->sum[i] = 0;
}

/* The larger maxima of the running softmax, and by what the sums so far shrink. */
static void attention_tile_maximum(AttentionTile *tile) {
    W before[ATTENTION_TILE], *restrict maximum = tile->maximum;
    memcpy(before, maximum, sizeof before);
    for (int64_t panel = 0; panel < tile->view.panels; panel++) {
        const W *restrict s = tile->scores + panel * ATTENTION_PANEL * ATTENTION_TILE;
        for (int i = tile->view.first[panel]; i < tile->view.end[panel]; i++) {
            W a = s[i] > s[i + ATTENTION_TILE] ? s[i] : s[i + ATTENTION_TILE];
            W b = s[i + 2 * ATTENTION_TILE] > s[i + 3 * ATTENTION_TILE] ? s[i + 2 * ATTENTION_TILE] : s[i + 3 * ATTENTION_TILE];
            W c = a > b ? a : b;
            maximum[i] = c > maximum[i] ? c : maximum[i];
        }
    }
    for (int i = 0; i < tile->view.queries; i++) {
        tile->rescale[i] = attention_exp2(before[i] - maximum[i]);
        tile->sum[i] *= tile->rescale[i];
    }
}

static void attention_tile_exponents(AttentionTile *tile) {
    W *restrict sum = tile->sum;
    const W *restrict maximum = tile->maximum;
    for (int64_t k = 0; k < tile->view.panels * ATTENTION_PANEL; k++) {
        W *restrict score = tile->scores + k * ATTENTION_TILE;
        for (int i = tile->view.first[k / ATTENTION_PANEL]; i < tile->view.end[k / ATTENTION_PANEL]; i++) {
            score[i] = attention_exp2(score[i] - maximum[i]);
            sum[i] += score[i];
        }
    }
}

/* Adds the block of `keys` keys that begins with number `key`; both operands are [keys rounded up to 4][width]. A query that has seen nothing yet
 * gathers noise of weight 2^0 from hidden keys; its first real key shrinks that by 2^-1e30 = 0. */
static void attention_tile_absorb(AttentionTile *tile, const W *block_keys, const W *block_values, int64_t key, int64_t keys) {
    AttentionView *view = &tile->view;
    attention_view_block(view, key, keys);
    for (int64_t panel = 0; panel < view->panels; panel++) {
        attention_panel_product(view, panel, tile->scores, block_keys, tile->queries, tile->head_dim, tile->width);
        if (view->sloped) attention_panel_slope(view, panel, tile->scores, key);
        if (!view->whole) attention_panel_mask(view, panel, tile->scores, key);
    }
    attention_tile_maximum(tile);
    attention_tile_exponents(tile);
    for (int64_t query = 0; query < view->queries; query += ATTENTION_PANEL) {
        int64_t first, end;
        if (!attention_view_keys(view, query, key, keys, &first, &end)) continue;
        attention_multiply(tile->out + query * tile->width, tile->width, tile->rescale + query, tile->scores + first * ATTENTION_TILE + query, 1,
                           ATTENTION_TILE, block_values + first * tile->width, tile->width, end - first, tile->width);
    }
}

/* The natural logarithm of the sum of a query's exponentials. */
static inline W attention_tile_log_sum(const AttentionTile *tile, int64_t query) {
    return tile->maximum[query] * (W)M_LN2 + attention_log(tile->sum[query]);
}

/* One finished row of the output. */
static inline void attention_tile_store(const AttentionTile *tile, int64_t query, T *restrict to) {
    W scale = 1 / tile->sum[query];
    const W *restrict from = tile->out + query * tile->width;
    for (int64_t j = 0; j < tile->head_dim; j++) to[j] = narrow(from[j] * scale);
}

#endif
#endif
