/* The kernels of our GEMM for few rows of A, such as the tokens of a step of generation, and a B whose columns are contiguous
 * along k, such as a layer's weights; part of cpu_gemm_kernel.c. An element of B has one use per row, so packed panels would cost
 * more than the products: squares of B are transposed in registers and multiplied there. B is read once, in order. The sums of an
 * element of C have the order of the packed kernels, so the bits are the same. Owns no memory. */
#pragma once

/* Most bytes between the columns that are multiplied and those that are prefetched: an eighth of a
 * small L2 cache. */
enum { NARROW_AHEAD = 128 << 10 };

/* Up to SINGLE_ROWS rows of A are packed one after the other; more rows are packed as vectors of adjacent
 * rows. With more than MOST_ROWS rows, packing B pays off. Without AVX2 it pays off from 5 rows on. */
#if SCALED
#define FOR_NARROW_ROWS FOR_ROWS_16
enum { SINGLE_ROWS = 4, MOST_ROWS = 16, NARROW_ROWS = MOST_ROWS };
#define BROADCASTS_B 0
#else
#define FOR_NARROW_ROWS FOR_ROWS_4
#if defined __AVX2__
enum { SINGLE_ROWS = 4, MOST_ROWS = (2 - PAIRS) * LANES, NARROW_ROWS = SINGLE_ROWS };
#define BROADCASTS_B 1
#else
enum { SINGLE_ROWS = 4, MOST_ROWS = 4, NARROW_ROWS = SINGLE_ROWS };
#define BROADCASTS_B 0
#endif
#endif

/* ---- Rows of A ---- */

/* Returns the number of elements that `depth` elements of a single row of A become. */
static int64_t laid_row_elements(int64_t depth) {
#if SCALED
    return divide_up(depth, 2 * SCALED * LANES) * (SCALED + 1) * LANES;
#else
    return divide_up(depth, 1 + PAIRS);
#endif
}

/* Writes a row of A in the kernel's format. LANES groups of depths of a scaled row are packed as LANES
 * lines. */
static void lay_row(Sum *to, const char *from, int64_t depth, bool bf16) {
#if SCALED
    for (int64_t p = 0; p < depth; p += 2 * SCALED * LANES, to += (SCALED + 1) * LANES) {
        uint16_t groups[LANES][2 * SCALED] = {0};
        int64_t here = int_min(depth - p, 2 * SCALED * LANES);
        memcpy(groups, from + p * 2, (size_t)here * 2);
        pack(to, LANES, &(GemmSource){groups, 2 * SCALED, true, bf16}, divide_up(here, 2 * SCALED), 2 * SCALED);
    }
#elif PAIRS
    (void)bf16;
    if (depth % 2) memset(to + depth / 2, 0, sizeof *to);
    memcpy(to, from, (size_t)depth * 2);
#else
    if (!bf16) memcpy(to, from, (size_t)depth * sizeof *to);
#if FROM_BF16
    else
        for (int64_t p = 0; p < depth; p++) to[p] = bf16_to_float(((const uint16_t *)from)[p]);
#endif
#endif
}

/* Returns the number of depths of a vector of rows, with those that hold scales. */
static int64_t laid_depths(int64_t depth) {
    int64_t depths = divide_up(depth, 1 + PAIRS);
#if SCALED
    depths += divide_up(depths, SCALED);
#endif
    return depths;
}

static int64_t laid_elements(int64_t rows, int64_t depth) {
    return rows > SINGLE_ROWS ? round_up(rows, LANES) * laid_depths(depth) : rows * laid_row_elements(depth);
}

/* Writes sets of LANES rows of A one after the other, each with adjacent rows. */
static void lay_row_vectors(Sum *to, const GemmSource *source, int64_t rows, int64_t depth) {
    GemmSource from = *source;
    int64_t bytes = LANES * source->ld * (source->bf16 ? 2 : (int64_t)sizeof(Sum));
    for (int64_t i = 0; i < rows; i += LANES, from.data = (const char *)from.data + bytes)
        pack(to + i * laid_depths(depth), LANES, &from, int_min(LANES, rows - i), depth);
}

static void lay_rows(void *to, const GemmSource *source, int64_t rows, int64_t depth) {
    if (rows > SINGLE_ROWS) {
        lay_row_vectors(to, source, rows, depth);
        return;
    }
    int64_t stride = source->ld * (source->bf16 ? 2 : (int64_t)sizeof(Sum));
    for (int64_t i = 0; i < rows; i++)
        lay_row((Sum *)to + i * laid_row_elements(depth), (const char *)source->data + i * stride, depth, source->bf16);
}

/* ---- Products ---- */

/* A block of K of LANES columns of B. */
typedef struct NarrowBlock {
    bool bf16;
    const Sum *a; /* rows `row` elements apart */
    int64_t row;
    const char *b; /* columns `stride` bytes apart */
    int64_t stride, lines, ahead;
    int64_t p, depth; /* the first k and their number */
} NarrowBlock;

#if SCALED
/* Loads up to SCALED depths of LANES columns, transposed, and adds their squares for bound_squares. */
INLINE void load_scaled_group(Sum *pairs, __m512 squares[4], const NarrowBlock *at, const char *from, int64_t depths) {
    for (int64_t p = 0; p < depths; p += LANES) {
        Vector square[LANES];
        load_square(square, from + p * 4, at->stride, at->lines, (size_t)(at->depth - (from - at->b) / 2 - 2 * p) * 2, at->ahead);
        transpose(square);
        UNROLL for (int j = 0; j < LANES; j++) {
            store(pairs + (p + j) * LANES, square[j]);
            fold_squares(squares + j % 2 * 2, square[j]);
        }
    }
}

INLINE void add_lines(Vector *sums, const NarrowBlock *at, int rows) {
    for (int64_t p = 0; p < at->depth; p += 2 * SCALED) {
        Sum pairs[SCALED * LANES] __attribute__((aligned(64)));
        __m512 squares[4] = {0};
        int64_t depths = divide_up(int_min(at->depth - p, 2 * SCALED), 2), group = (at->p + p) / (2 * SCALED);
        load_scaled_group(pairs, squares, at, at->b + p * 2, depths);
        LineScale scale = scale_of(squares, pairs, LANES, at->lines, depths);
        const bool single = rows <= SINGLE_ROWS;
        const int64_t row = single ? at->row : 1;
        const Sum *a = at->a + (single ? group / LANES : group) * (SCALED + 1) * LANES + (single ? group % LANES : 0);
        VectorSums integers[NARROW_ROWS] = {0};
        for (int64_t q = 0; q < depths; q++) {
            Vector b = scale_pairs(pairs + q * LANES, scale.factor);
            UNROLL for (int i = 0; i < rows; i++) integers[i] = MULTIPLY_ADD(integers[i], a[i * row + (1 + q) * LANES], b);
        }
        UNROLL for (int i = 0; i < rows; i++) sums[i] += __builtin_convertvector(integers[i], Vector) * scale.scale * a[i * row];
    }
}
#else
/* Adds the products of a square with `left` k. A vector has one k, or two if the kernel splits bf16
 * pairs. */
INLINE void add_square(Vector *sums, const NarrowBlock *at, const Sum *a, const Vector *square, int64_t left, int rows) {
    const bool halves = at->bf16 && !PAIRS;
    UNROLL for (int j = 0; j < LANES; j++) {
        if (j * (1 + at->bf16) >= left) break;
        if (!halves) {
            UNROLL for (int i = 0; i < rows; i++) sums[i] = MULTIPLY_ADD(sums[i], a[i * at->row + j], square[j]);
            continue;
        }
#if FROM_BF16
        Vector even = (Vector)((Bits)square[j] << 16), odd = (Vector)((Bits)square[j] & 0xffff0000u);
        UNROLL for (int i = 0; i < rows; i++) sums[i] = MULTIPLY_ADD(sums[i], a[i * at->row + 2 * j], even);
        if (2 * j + 1 >= left) break;
        UNROLL for (int i = 0; i < rows; i++) sums[i] = MULTIPLY_ADD(sums[i], a[i * at->row + 2 * j + 1], odd);
#endif
    }
}

INLINE void add_lines(Vector *sums, const NarrowBlock *at, int rows) {
    const int64_t element = at->bf16 ? 2 : (int64_t)sizeof(Sum), whole = (int64_t)sizeof(Vector) / element;
    const Sum *a = at->a + at->p / (1 + PAIRS);
    for (int64_t p = 0; p < at->depth; p += whole, a += whole / (1 + PAIRS)) {
        int64_t left = at->depth - p;
        Vector square[LANES];
        load_square(square, at->b + p * element, at->stride, at->lines, (size_t)(left * element), at->ahead);
        transpose(square);
        if (left >= whole) add_square(sums, at, a, square, whole, rows);
        else add_square(sums, at, a, square, left, rows);
    }
}
#endif

INLINE void multiply_narrow_lines(const GemmNarrow *t, bool bf16, int rows) {
    const int64_t element = bf16 ? 2 : (int64_t)sizeof(Sum), stride = t->b.ld * element;
    const GemmUpdate *u = &t->update;
    for (int64_t j = 0; j < t->columns; j += LANES) {
        Vector total[NARROW_ROWS] = {0};
        for (int64_t p = 0; p < t->depth; p += t->block) {
            Vector sums[NARROW_ROWS];
            const NarrowBlock block = {.bf16 = bf16,
                .a = t->a,
                .row = laid_row_elements(t->depth),
                .b = (const char *)t->b.data + j * stride + p * element,
                .stride = stride,
                .lines = t->columns - j,
                .ahead = LANES * stride <= NARROW_AHEAD ? LANES * stride : LOAD_AHEAD,
                .p = p,
                .depth = int_min(t->block, t->depth - p)};
            UNROLL for (int i = 0; i < rows; i++) sums[i] = (Vector){0};
            add_lines(sums, &block, rows);
            UNROLL for (int i = 0; i < rows; i++) total[i] = p == 0 ? add_operands(sums[i], u, i, j, t->columns - j) : sums[i] + total[i];
        }
        UNROLL for (int i = 0; i < rows; i++) store_row(total[i], u, i, j, t->columns - j);
    }
}

typedef void MultiplyLines(const GemmNarrow *t);

#if FROM_BF16 && !PAIRS
#define DEFINE(rows) \
    static void multiply_lines_##rows(const GemmNarrow *t) { \
        if (t->b.bf16) multiply_narrow_lines(t, true, rows); \
        else multiply_narrow_lines(t, false, rows); \
    }
#else
#define DEFINE(rows) \
    static void multiply_lines_##rows(const GemmNarrow *t) { multiply_narrow_lines(t, PAIRS, rows); }
#endif
#define ENTRY(rows) multiply_lines_##rows,
FOR_NARROW_ROWS(DEFINE) static MultiplyLines *const narrow_multiplies[] = {FOR_NARROW_ROWS(ENTRY)};
#undef DEFINE
#undef ENTRY

static void multiply_lines_of(const GemmNarrow *t) { narrow_multiplies[t->rows - 1](t); }
