/* The inner loops of attention on a CPU, shared by attention.c and attention_cached.c: a tile of up to 64 queries against blocks of up
 * to 64 keys, with a running softmax (FlashAttention-2, arXiv 2307.08691).
 *
 * Everything is a product of small blocks of W in caches, computed by one register-tiled multiply: bf16 is widened when a block
 * is loaded, since fp32 multiply-adds are as fast as any on most CPUs and keep the probabilities in fp32. Scores are held
 * transposed, [key][query]: then every product broadcasts one operand and reads rows of the other, the softmax runs along vectors
 * of queries without any sum across lanes, and only the queries have to be transposed, once per tile. Which key a query sees is an
 * interval, so masks and skipped work follow from two numbers per query. */
#pragma once

#include "backend/cpu/kernel.h"
#include "ops/attention/attention.h"

enum {
    ATTENTION_TILE = 64,  /* queries of a tile, keys of a block */
    ATTENTION_GROUP = 16, /* queries and keys that are skipped together; row widths are multiples of it */
    ATTENTION_QUAD = 4,   /* rows whose range of a sum is known */
    ATTENTION_GROUPS = ATTENTION_TILE / ATTENTION_GROUP,
    ATTENTION_QUADS = ATTENTION_TILE / ATTENTION_QUAD,
    ATTENTION_GROUP_QUADS = ATTENTION_GROUP / ATTENTION_QUAD,
};

/* Columns of a head's rows in scratch: whole vectors, the rest is zero. */
static inline int64_t attention_width(int64_t head_dim) { return (head_dim + ATTENTION_GROUP - 1) / ATTENTION_GROUP * ATTENTION_GROUP; }
static inline int64_t attention_round(int64_t rows) { return (rows + ATTENTION_TILE - 1) / ATTENTION_TILE * ATTENTION_TILE; }
/* Elements of scratch of one tile in the forward pass: queries, scores, output. */
static inline int64_t attention_tile_elements(int64_t head_dim) {
    return ATTENTION_TILE * (2 * attention_width(head_dim) + ATTENTION_TILE);
}

#ifdef KERNEL_VARIANT

/* A register tile is `vectors` wide and as many rows high as make enough sums to hide the latency of multiply-adds. */
#if defined __AVX512F__
#define ATTENTION_VECTOR_BYTES 64
#define ATTENTION_ROWS(vectors) ((vectors) == 4 ? 4 : 8) /* 8 to 24 of 32 registers are sums */
enum { ATTENTION_VECTORS = 4 };
#elif defined __AVX2__
#define ATTENTION_VECTOR_BYTES 32
#define ATTENTION_ROWS(vectors) 4 /* 8 of 16 */
enum { ATTENTION_VECTORS = 2 };
#else
#define ATTENTION_VECTOR_BYTES 16
#define ATTENTION_ROWS(vectors) 4
enum { ATTENTION_VECTORS = 2 };
#endif
enum { ATTENTION_LANES = ATTENTION_VECTOR_BYTES / sizeof(W) };
typedef W AttentionVector __attribute__((vector_size(ATTENTION_VECTOR_BYTES), may_alias));
#if defined KERNEL_FP64
typedef uint64_t AttentionBits __attribute__((vector_size(ATTENTION_VECTOR_BYTES), may_alias));
#else
typedef uint32_t AttentionBits __attribute__((vector_size(ATTENTION_VECTOR_BYTES), may_alias));
#endif

#ifdef __clang__
#define ATTENTION_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATTENTION_UNROLL _Pragma("GCC unroll 16")
#endif

/* Scores are logarithms to base 2, log2(e) being part of the scale of queries: 2^x is cheaper than e^x. */
enum { ATTENTION_LEAST = -126 }; /* smaller powers of two are 0 */
#if defined KERNEL_FP64
static const W attention_magic = 0;
static inline AttentionVector attention_power(AttentionVector x, AttentionVector shift, int least) {
    for (int i = 0; i < ATTENTION_LANES; i++) x[i] = x[i] + shift[i] < least ? 0 : exp2(x[i] + shift[i]);
    return x;
}
static inline W attention_log2(W x) { return log2(x); }
#else
/* 1.5 * 2^23 + 127: adding it rounds to an integer n, and leaves the exponent of 2^n in the low bits. */
static const W attention_magic = 12583039.0f;
/* 2^(x + shift - attention_magic), within 1.8e-7 of its value, 0 where that is below 2^least; NaN stays NaN. x = n + r with |r| <= 1/2
 * and shift + n an integer; the polynomial has the least relative error of degree 5 with 2^0 = 1. */
static inline AttentionVector attention_power(AttentionVector x, AttentionVector shift, int least) {
    AttentionVector shifted = x + shift, r = x - (shifted - shift), p = r * 1.326472721e-3f + 9.671512812e-3f;
    p = p * r + 5.550733745e-2f;
    p = p * r + 2.402224208e-1f;
    p = p * r + 6.931469776e-1f;
    p = p * r + 1.0f;
    p *= (AttentionVector)((AttentionBits)shifted << 23);
    return (AttentionVector)((AttentionBits)p & ~(AttentionBits)(shifted < attention_magic + (W)least));
}
/* log2 of a normal number, within 1e-7 of it or of 1; NaN stays NaN. x = 2^n * m with m from sqrt(1/2) to sqrt(2), and with s = (m - 1) / (m + 1)
 * log m = 2 (s + s^3 / 3 + s^5 / 5 + ...). */
static inline W attention_log2(W x) {
    union {
        float value;
        uint32_t bits;
    } m = {.value = x};
    int32_t n = (int32_t)(m.bits - 0x3f3504f3) >> 23;
    m.bits -= (uint32_t)n << 23;
    float s = (m.value - 1) / (m.value + 1), z = s * s;
    return (float)n + s * (float)(2 * M_LOG2E) * (1 + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))))) + (x - x);
}
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

/* -- Products ------------------------------------------------------------------------------------------------------ */

typedef struct AttentionRange { int first, end; } AttentionRange;

static inline AttentionRange attention_union(AttentionRange a, AttentionRange b) {
    if (a.first >= a.end) return b;
    if (b.first >= b.end) return a;
    return (AttentionRange){a.first < b.first ? a.first : b.first, a.end > b.end ? a.end : b.end};
}

/* One operand of products, whose numbers are broadcast: row i at step p is at[i * row + p * step]. */
typedef struct AttentionRows {
    const W *at;
    int64_t row, step;
} AttentionRows;

/* c[rows][vectors] = start + sum over p in `range` of a[row][p] * b[p * b_row + ..]. The sums of every row start at the row `start`, or without one
 * at c times scale[row], or without either at c. */
static inline __attribute__((always_inline)) void attention_multiply_tile(W *c, int64_t c_row, const W *start, const W *scale,
    AttentionRows a, const W *b, int64_t b_row, AttentionRange range, const int rows, const int vectors) {
    AttentionVector sums[ATTENTION_ROWS(1)][ATTENTION_VECTORS];
    ATTENTION_UNROLL for (int i = 0; i < rows; i++) ATTENTION_UNROLL for (int j = 0; j < vectors; j++) {
        sums[i][j] = *(const AttentionVector *)((start ? start : c + i * c_row) + j * ATTENTION_LANES);
        if (scale) sums[i][j] *= scale[i];
    }
    const W *at = a.at + range.first * a.step, *end = a.at + range.end * a.step;
    for (b += range.first * b_row; at != end; at += a.step, b += b_row) {
        AttentionVector row[ATTENTION_VECTORS];
        ATTENTION_UNROLL for (int j = 0; j < vectors; j++) row[j] = *(const AttentionVector *)(b + j * ATTENTION_LANES);
        ATTENTION_UNROLL for (int i = 0; i < rows; i++) ATTENTION_UNROLL for (int j = 0; j < vectors; j++) sums[i][j] +=
            at[i * a.row] * row[j];
    }
    ATTENTION_UNROLL for (int i = 0; i < rows; i++) ATTENTION_UNROLL for (int j = 0; j < vectors; j++) *
        (AttentionVector *)(c + i * c_row + j * ATTENTION_LANES) = sums[i][j];
}

/* The same for a group of rows, each quad of which has its range. */
static inline __attribute__((always_inline)) void attention_multiply_rows(W *c, int64_t c_row, const W *start, const W *scale,
    AttentionRows a, const W *b, int64_t b_row, const AttentionRange *ranges, const int vectors) {
    const int rows = ATTENTION_ROWS(vectors);
    for (int i = 0; i < ATTENTION_GROUP; i += rows) {
        AttentionRange range = ranges[i / ATTENTION_QUAD];
        if (rows > ATTENTION_QUAD) range = attention_union(range, ranges[i / ATTENTION_QUAD + 1]);
        if (range.first >= range.end) continue;
        attention_multiply_tile(c + i * c_row, c_row, start, scale ? scale + i : NULL, (AttentionRows){a.at + i * a.row, a.row, a.step}, b,
            b_row, range, rows, vectors);
    }
}

/* The same over `columns`, a multiple of ATTENTION_GROUP. */
static inline __attribute__((always_inline)) void attention_multiply(W *c, int64_t c_row, const W *start, const W *scale, AttentionRows a,
    const W *b, int64_t b_row, const AttentionRange *ranges, int64_t columns) {
    int64_t left = columns / ATTENTION_LANES;
    for (; left >= ATTENTION_VECTORS; left -= ATTENTION_VECTORS) {
        attention_multiply_rows(c, c_row, start, scale, a, b, b_row, ranges, ATTENTION_VECTORS);
        c += ATTENTION_VECTORS * ATTENTION_LANES, b += ATTENTION_VECTORS * ATTENTION_LANES;
        if (start) start += ATTENTION_VECTORS * ATTENTION_LANES;
    }
#if defined __AVX512F__
    if (left == 3) attention_multiply_rows(c, c_row, start, scale, a, b, b_row, ranges, 3);
    if (left == 2) attention_multiply_rows(c, c_row, start, scale, a, b, b_row, ranges, 2);
    if (left == 1) attention_multiply_rows(c, c_row, start, scale, a, b, b_row, ranges, 1);
#endif
}

/* scores[key][query] = start[query] + rows[key] . columns[..][query] for a group of keys and `queries` queries. */
static void attention_scores(W *scores, const W *start, const W *rows, const W *columns, int64_t head_dim, int64_t queries) {
    AttentionRange all = {0, (int)head_dim}, ranges[ATTENTION_GROUP_QUADS] = {all, all, all, all};
    AttentionRows keys = {rows, attention_width(head_dim), 1};
    attention_multiply(scores, ATTENTION_TILE, start, NULL, keys, columns, ATTENTION_TILE, ranges, queries);
}

/* out[query] = scale[query] * out[query] + sum over keys in `ranges` of weights[key][query] * rows[key] for a group of queries. */
static void attention_gather(W *out, const W *scale, const W *weights, const W *rows, const AttentionRange *ranges, int64_t width) {
    attention_multiply(out, width, NULL, scale, (AttentionRows){weights, 1, ATTENTION_TILE}, rows, width, ranges, width);
}

/* -- Loading ------------------------------------------------------------------------------------------------------- */

/* A vector in storage. A loop of exactly its lanes becomes an instruction without a loop. */
static inline AttentionVector attention_widen(const T *from) {
    T stored[ATTENTION_LANES];
    AttentionVector x;
    memcpy(stored, from, sizeof stored);
    for (int i = 0; i < ATTENTION_LANES; i++) x[i] = to_wide(stored[i]);
    return x;
}

/* to = scale * from, zero beyond head_dim. */
static inline void attention_load_row(W *restrict to, const T *restrict from, int64_t head_dim, W scale) {
    int64_t j = 0, width = attention_width(head_dim);
    for (; j + ATTENTION_LANES <= head_dim; j += ATTENTION_LANES) *(AttentionVector *)(to + j) = scale * attention_widen(from + j);
    for (; j < head_dim; j++) to[j] = scale * to_wide(from[j]);
    for (; j < width; j++) to[j] = 0;
}

/* to = scale * from, without padding. */
static inline void attention_store_row(T *restrict to, const W *restrict from, int64_t head_dim, W scale) {
    for (int64_t j = 0; j < head_dim; j++) to[j] = to_compute(scale * from[j]);
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

/* to[j][i] = rows[i][j]: turns a square of vectors. */
static inline void attention_turn_square(W *to, AttentionVector *rows) {
    for (int stage = 1; stage < ATTENTION_LANES; stage *= 2) {
        AttentionVector next[ATTENTION_LANES];
        ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES / 2; i++) {
            next[2 * i] = ATTENTION_ZIP(rows[i], rows[i + ATTENTION_LANES / 2], 0);
            next[2 * i + 1] = ATTENTION_ZIP(rows[i], rows[i + ATTENTION_LANES / 2], ATTENTION_LANES / 2);
        }
        ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES; i++) rows[i] = next[i];
    }
    ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES; i++) * (AttentionVector *)(to + i * ATTENTION_TILE) = rows[i];
}

/* to[column][query] = from[query][column] for `queries` rows, a multiple of ATTENTION_LANES. */
static inline void attention_turn(W *to, const W *from, int64_t queries, int64_t width) {
    for (int64_t query = 0; query < queries; query += ATTENTION_LANES)
        for (int64_t column = 0; column < width; column += ATTENTION_LANES) {
            AttentionVector square[ATTENTION_LANES];
            ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES; i++) square[i] =
                *(const AttentionVector *)(from + (query + i) * width + column);
            attention_turn_square(to + column * ATTENTION_TILE + query, square);
        }
}

/* The same for `rows` rows in storage, times `scale`, with zero rows up to `padded`, a multiple of ATTENTION_GROUP. Rows that are not whole, and vectors
 * of rows that end early, pass through `scratch` of ATTENTION_LANES rows. */
static inline void attention_load_turned(
    W *to, const T *from, int64_t stride, int64_t rows, int64_t padded, int64_t head_dim, W scale, W *scratch) {
    int64_t width = attention_width(head_dim);
    for (int64_t query = 0; query < padded; query += ATTENTION_LANES, from += ATTENTION_LANES * stride) {
        if (width > head_dim || query + ATTENTION_LANES > rows) {
            attention_load(scratch, from, stride, int_max(int_min(rows - query, ATTENTION_LANES), 0), ATTENTION_LANES, head_dim, scale);
            attention_turn(to + query, scratch, ATTENTION_LANES, width);
            continue;
        }
        for (int64_t column = 0; column < width; column += ATTENTION_LANES) {
            AttentionVector square[ATTENTION_LANES];
            ATTENTION_UNROLL for (int i = 0; i < ATTENTION_LANES; i++) square[i] = scale * attention_widen(from + i * stride + column);
            attention_turn_square(to + column * ATTENTION_TILE + query, square);
        }
    }
}

/* Rows of a head that will be read or written. A group of each stream is fetched beside each panel: the rows are too far apart for the hardware to see
 * them coming, and all at once they would hold up what the panel itself loads. */
typedef struct AttentionAhead {
    struct {
        const T *at;
        int64_t stride, rows;
        bool written;
    } streams[4];
} AttentionAhead;

static inline void attention_ahead_fetch(AttentionAhead *ahead, int64_t head_dim) {
    const int64_t line = 64 / (int64_t)sizeof(T);
    for (int i = 0; i < 4; i++)
        for (int r = 0; r < ATTENTION_GROUP && ahead->streams[i].rows > 0; r++, ahead->streams[i].rows--) {
            for (int64_t j = 0; j < head_dim && ahead->streams[i].written; j += line) __builtin_prefetch(ahead->streams[i].at + j, 1);
            for (int64_t j = 0; j < head_dim && !ahead->streams[i].written; j += line) __builtin_prefetch(ahead->streams[i].at + j, 0);
            ahead->streams[i].at += ahead->streams[i].stride;
        }
}

/* -- What a tile sees ---------------------------------------------------------------------------------------------- */

/* Query i sees the keys low[i] .. high[i]; entries beyond the last query repeat it. Numbers of keys are exact in W (below 2^24). */
typedef struct AttentionView {
    _Alignas(64) W low[ATTENTION_TILE], high[ATTENTION_TILE];
    W slope[ATTENTION_TILE]; /* where `sloped`: attention_slope; query i is the token high[i] */
    bool sloped;
    int64_t queries;     /* a multiple of ATTENTION_GROUP */
    int64_t least, most; /* first and last key that any query sees */
    struct {
        W low, low_of_all, high, high_of_all;
    } groups[ATTENTION_GROUPS];                     /* low .. high: seen by any query of a group; .._of_all: by all */
    struct { W low, high; } quads[ATTENTION_QUADS]; /* likewise, by any query of a quad */
    /* Of the block at hand: */
    int64_t key, panels;                                /* its first key, and groups of keys */
    int first[ATTENTION_GROUPS], end[ATTENTION_GROUPS]; /* queries that see any key of a panel */
    bool whole;                                         /* all queries see all keys of all panels */
    AttentionRange keys[ATTENTION_QUADS];               /* that any query of a quad sees, counted from `key` */
} AttentionView;

static inline W attention_least(const W *x, int count) {
    W least = x[0];
    for (int i = 1; i < count; i++) least = x[i] < least ? x[i] : least;
    return least;
}
static inline W attention_most(const W *x, int count) {
    W most = x[0];
    for (int i = 1; i < count; i++) most = x[i] > most ? x[i] : most;
    return most;
}

/* Repeats query `count` - 1 up to whole groups, and sums up what groups and quads see. */
static inline void attention_view_close(AttentionView *view, int64_t count) {
    assert(count > 0);
    view->queries = attention_width(count);
    for (int64_t i = count; i < view->queries; i++) view->low[i] = view->low[count - 1], view->high[i] = view->high[count - 1];
    for (int64_t i = count; view->sloped && i < view->queries; i++) view->slope[i] = view->slope[count - 1];
    for (int64_t g = 0, i = 0; i < view->queries; i = ATTENTION_GROUP * ++g) {
        view->groups[g].low = attention_least(view->low + i, ATTENTION_GROUP);
        view->groups[g].low_of_all = attention_most(view->low + i, ATTENTION_GROUP);
        view->groups[g].high = attention_most(view->high + i, ATTENTION_GROUP);
        view->groups[g].high_of_all = attention_least(view->high + i, ATTENTION_GROUP);
    }
    for (int64_t q = 0, i = 0; i < view->queries; i = ATTENTION_QUAD * ++q) {
        view->quads[q].low = attention_least(view->low + i, ATTENTION_QUAD);
        view->quads[q].high = attention_most(view->high + i, ATTENTION_QUAD);
    }
    view->least = (int64_t)attention_least(view->low, (int)view->queries);
    view->most = (int64_t)attention_most(view->high, (int)view->queries);
}

/* Sets what concerns the block of `keys` keys from `key` on. */
static void attention_view_block(AttentionView *view, int64_t key, int64_t keys) {
    int groups = (int)(view->queries / ATTENTION_GROUP);
    view->key = key;
    view->panels = attention_width(keys) / ATTENTION_GROUP;
    view->whole = true;
    for (int g = 0; g < groups; g++)
        view->whole &=
            (view->groups[g].low_of_all <= (W)key) & (view->groups[g].high_of_all >= (W)(key + view->panels * ATTENTION_GROUP - 1));
    for (int64_t panel = 0; panel < view->panels; panel++) {
        W at = (W)(key + panel * ATTENTION_GROUP), last = at + (ATTENTION_GROUP - 1);
        int first = 0, end = groups;
        while (first < end && (view->groups[first].high < at || view->groups[first].low > last)) first++;
        while (end > first && (view->groups[end - 1].high < at || view->groups[end - 1].low > last)) end--;
        view->first[panel] = first * ATTENTION_GROUP;
        view->end[panel] = end * ATTENTION_GROUP;
    }
    for (int q = 0; q < groups * ATTENTION_GROUP_QUADS; q++) {
        view->keys[q].first = (int)int_max((int64_t)view->quads[q].low - key, 0);
        view->keys[q].end = (int)int_min((int64_t)view->quads[q].high - key + 1, keys);
    }
}

/* Scores of keys of a panel that are not seen become attention_hidden. */
static inline void attention_panel_mask(const AttentionView *view, int64_t panel, W *scores) {
    W first = (W)(view->key + panel * ATTENTION_GROUP), last = first + (ATTENTION_GROUP - 1);
    for (int i = view->first[panel]; i < view->end[panel]; i += ATTENTION_LANES) {
        if (view->groups[i / ATTENTION_GROUP].low_of_all <= first && view->groups[i / ATTENTION_GROUP].high_of_all >= last) continue;
        AttentionVector low = *(const AttentionVector *)(view->low + i), high = *(const AttentionVector *)(view->high + i);
        for (int k = 0; k < ATTENTION_GROUP; k++) {
            AttentionVector at = first + k - (AttentionVector){0}, hidden = attention_hidden - (AttentionVector){0};
            AttentionBits seen = (AttentionBits)(low <= at) & (AttentionBits)(at <= high),
                          *score = (AttentionBits *)(scores + k * ATTENTION_TILE + i);
            *score = (*score & seen) | ((AttentionBits)hidden & ~seen);
        }
    }
}

/* Adds the bias of distance to scores. */
static inline void attention_panel_slope(const AttentionView *view, int64_t panel, W *scores) {
    for (int64_t k = 0; k < ATTENTION_GROUP; k++) {
        W *restrict score = scores + k * ATTENTION_TILE, at = (W)(view->key + panel * ATTENTION_GROUP + k);
        for (int i = view->first[panel]; i < view->end[panel]; i++) score[i] += view->slope[i] * (at - view->high[i]);
    }
}

/* Scores of a panel, biased and masked: scores[key][query] = start[query] + rows . columns. */
static inline void attention_panel_scores(
    const AttentionView *view, int64_t panel, W *scores, const W *start, const W *rows, const W *columns, int64_t head_dim) {
    int first = view->first[panel];
    attention_scores(scores + first, start + first, rows, columns + first, head_dim, view->end[panel] - first);
    if (view->sloped) attention_panel_slope(view, panel, scores);
    if (!view->whole) attention_panel_mask(view, panel, scores);
}

/* -- The forward pass of a tile ------------------------------------------------------------------------------------ */

typedef struct AttentionTile {
    AttentionView view;
    AttentionAhead ahead;
    int64_t head_dim, width;
    W *queries; /* [width][64], times attention_scale */
    W *scores;  /* [64 keys][64] */
    W *out;     /* [64][width], not yet divided by `sum` */
    _Alignas(64) W maximum[ATTENTION_TILE], sum[ATTENTION_TILE], rescale[ATTENTION_TILE];
    W shift[ATTENTION_TILE]; /* attention_magic - maximum, rounded, from which `maximum` is made again: powers are of 2^(score - maximum) */
} AttentionTile;

/* A tile over `scratch` of attention_tile_elements; the caller writes scaled queries and the view, then begins. */
static inline void attention_tile_place(AttentionTile *tile, W *scratch, int64_t head_dim) {
    tile->ahead = (AttentionAhead){0};
    tile->head_dim = head_dim;
    tile->width = attention_width(head_dim);
    tile->queries = scratch;
    tile->out = tile->queries + ATTENTION_TILE * tile->width;
    tile->scores = tile->out + ATTENTION_TILE * tile->width;
}

static void attention_tile_begin(AttentionTile *tile) {
    memset(tile->out, 0, tile->view.queries * tile->width * sizeof(W));
    for (int i = 0; i < ATTENTION_TILE; i++) tile->maximum[i] = attention_hidden, tile->sum[i] = 0;
}

/* Larger maxima of the running softmax after a panel of scores. */
static inline void attention_panel_maximum(AttentionTile *tile, int64_t panel) {
    W *restrict maximum = tile->maximum;
    for (int k = 0; k < ATTENTION_GROUP; k += ATTENTION_QUAD) {
        const W *restrict s = tile->scores + (panel * ATTENTION_GROUP + k) * ATTENTION_TILE;
        for (int i = tile->view.first[panel]; i < tile->view.end[panel]; i++) {
            W a = s[i] > s[i + ATTENTION_TILE] ? s[i] : s[i + ATTENTION_TILE];
            W b = s[i + 2 * ATTENTION_TILE] > s[i + 3 * ATTENTION_TILE] ? s[i + 2 * ATTENTION_TILE] : s[i + 3 * ATTENTION_TILE];
            W c = a > b ? a : b;
            maximum[i] = c > maximum[i] ? c : maximum[i];
        }
    }
}

/* By what the sums so far shrink. */
static void attention_tile_shrink(AttentionTile *tile, const W *before) {
    for (int i = 0; i < tile->view.queries; i += ATTENTION_LANES) {
        AttentionVector *maximum = (AttentionVector *)(tile->maximum + i), *shift = (AttentionVector *)(tile->shift + i);
        *shift = attention_magic - *maximum;
        *maximum = attention_magic - *shift;
        AttentionVector shrunk = attention_power(*(const AttentionVector *)(before + i), *shift, ATTENTION_LEAST);
        *(AttentionVector *)(tile->rescale + i) = shrunk;
        *(AttentionVector *)(tile->sum + i) *= shrunk;
    }
}

static void attention_panel_exponents(AttentionTile *tile, int64_t panel) {
    for (int i = tile->view.first[panel]; i < tile->view.end[panel]; i += ATTENTION_LANES) {
        W *scores = tile->scores + panel * ATTENTION_GROUP * ATTENTION_TILE + i;
        AttentionVector sum = *(AttentionVector *)(tile->sum + i), shift = *(AttentionVector *)(tile->shift + i);
        for (int k = 0; k < ATTENTION_GROUP; k++) {
            AttentionVector *score = (AttentionVector *)(scores + k * ATTENTION_TILE);
            *score = attention_power(*score, shift, ATTENTION_LEAST);
            sum += *score;
        }
        *(AttentionVector *)(tile->sum + i) = sum;
    }
}

static const _Alignas(64) W attention_zeros[ATTENTION_TILE];

/* Adds the block of `keys` keys that begins with number `key`; both operands are [whole groups of keys][width]. A query that has seen nothing yet
 * gathers at most noise of weight 2^0 from hidden keys; its first real key shrinks that by 2^-1e30 = 0. */
static void attention_tile_absorb(AttentionTile *tile, const W *block_keys, const W *block_values, int64_t key, int64_t keys) {
    AttentionView *view = &tile->view;
    _Alignas(64) W before[ATTENTION_TILE];
    memcpy(before, tile->maximum, sizeof before);
    attention_view_block(view, key, keys);
    for (int64_t panel = 0; panel < view->panels; panel++) {
        attention_panel_scores(view, panel, tile->scores + panel * ATTENTION_GROUP * ATTENTION_TILE, attention_zeros,
            block_keys + panel * ATTENTION_GROUP * tile->width, tile->queries, tile->head_dim);
        attention_panel_maximum(tile, panel);
        attention_ahead_fetch(&tile->ahead, tile->head_dim);
    }
    attention_tile_shrink(tile, before);
    for (int64_t panel = 0; panel < view->panels; panel++) attention_panel_exponents(tile, panel);
    for (int64_t query = 0; query < view->queries; query += ATTENTION_GROUP)
        attention_gather(tile->out + query * tile->width, tile->rescale + query, tile->scores + query, block_values,
            view->keys + query / ATTENTION_QUAD, tile->width);
}

/* One finished row of the output. */
static inline void attention_tile_store(const AttentionTile *tile, int64_t query, T *to) {
    attention_store_row(to, tile->out + query * tile->width, tile->head_dim, 1 / tile->sum[query]);
}

#endif
