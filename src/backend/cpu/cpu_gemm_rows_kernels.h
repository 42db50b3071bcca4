/* The kernels of our GEMM for more rows of A than cpu_gemm_narrow_kernels.h takes, up to MOST_ROWS, and a B whose columns are
 * contiguous along k; part of cpu_gemm_kernel.c. A vector holds rows of A, which are packed, and elements of B are broadcast to
 * it, so that B needs no transposition: the roles of the packed kernels exchanged. B is read once from memory, in order. The sums
 * of an element of C have the order of the packed kernels, so the bits are the same. Owns no memory. */
#pragma once

#if BROADCASTS_B

enum { ROW_VECTORS = MOST_ROWS / LANES };

/* LANES depths of LANES columns of B in the type of sums: bf16 is cast once for all rows, and one register
 * addresses all columns. */
typedef Sum StagedColumns[LANES][LANES];

/* A block of K of LANES columns of B times a vector of rows. */
typedef struct RowsBlock {
    const Sum *a;  /* vectors of rows, one per depth */
    const char *b; /* columns `stride` bytes apart */
    int64_t stride, lines, ahead;
    int64_t bytes; /* of each column */
} RowsBlock;

/* ---- Loading ---- */

/* Loads LANES depths of a column. */
INLINE Vector load_depths(const char *from, size_t bytes, bool casts) {
#if FROM_BF16 && !PAIRS
    if (casts) return (Vector)(load_halves(from, (int64_t)bytes / 2) << 16);
#endif
    (void)casts;
    return bytes >= sizeof(Vector) ? load_vector(from) : load_bytes(from, bytes);
}

INLINE const char *staged_column(const RowsBlock *at, const char *from, int64_t column) {
    return from + int_min(column, at->lines - 1) * at->stride;
}

/* ---- Products ---- */

#if MASKS
typedef Sum HalfVector __attribute__((vector_size(LANES / 2 * sizeof(Sum))));
typedef HalfVector UnalignedHalf __attribute__((aligned(2), may_alias));
#if PAIRS
#define MULTIPLY_ADD_HALF(sum, scalar, vector) \
    (HalfVector)_mm256_dpbf16_ps((__m256)(sum), (__m256bh)_mm256_set1_ps(scalar), (__m256bh)(vector))
#elif defined KERNEL_FP64
#define MULTIPLY_ADD_HALF(sum, scalar, vector) (HalfVector)_mm256_fmadd_pd(_mm256_set1_pd(scalar), (__m256d)(vector), (__m256d)(sum))
#else
#define MULTIPLY_ADD_HALF(sum, scalar, vector) (HalfVector)_mm256_fmadd_ps(_mm256_set1_ps(scalar), (__m256)(vector), (__m256)(sum))
#endif
#endif

/* The sums of LANES columns and a vector of rows, or half a vector: processors that halve 512-bit vectors
 * then take half the time. */
typedef struct BroadcastSums {
    Vector whole[LANES];
#if MASKS
    HalfVector half[LANES];
#endif
} BroadcastSums;

/* Adds the products of one depth. */
INLINE void add_depth(BroadcastSums *sums, const Sum *a, const StagedColumns columns, int64_t depth, bool half) {
#if MASKS
    if (half) {
        HalfVector rows = *(const UnalignedHalf *)a;
        UNROLL for (int i = 0; i < LANES; i++) sums->half[i] = MULTIPLY_ADD_HALF(sums->half[i], columns[i][depth], rows);
        return;
    }
#endif
    (void)half;
    Vector rows = load_vector(a);
    UNROLL for (int i = 0; i < LANES; i++) sums->whole[i] = MULTIPLY_ADD(sums->whole[i], columns[i][depth], rows);
}

/* Computes the products of a block of K with a vector of rows. While a square of columns is multiplied, the
 * next one is staged, a column per depth. */
INLINE void add_columns(BroadcastSums *sums, const RowsBlock *at, bool casts, bool half) {
    const int64_t wide = (int64_t)sizeof(Vector) / (1 + casts), unit = casts ? 2 : (int64_t)sizeof(Sum);
    StagedColumns staged[2] __attribute__((aligned(64)));
    const char *from = at->b;
    const Sum *a = at->a;
    int64_t left = at->bytes;
    for (int i = 0; i < LANES; i++) store(staged[0][i], load_depths(staged_column(at, from, i), (size_t)left, casts));
    for (int turn = 0; left > 0; turn ^= 1, left -= wide) {
        from += wide;
        if (left >= 2 * wide) {
            for (int q = 0; q < LANES; q++, a += LANES) {
                const char *column = staged_column(at, from, q);
                store(staged[!turn][q], load_depths(column, (size_t)wide, casts));
                __builtin_prefetch(column + at->ahead, 0, 2);
                add_depth(sums, a, staged[turn], q, half);
            }
            continue;
        }
        for (int i = 0; i < LANES && left > wide; i++)
            store(staged[!turn][i], load_depths(staged_column(at, from, i), (size_t)(left - wide), casts));
        for (int64_t q = 0, depths = divide_up(int_min(left, wide), unit); q < depths; q++, a += LANES)
            add_depth(sums, a, staged[turn], q, half);
    }
}

/* The sums of LANES columns: row by row after the first block of K. */
typedef struct RowsTotals { Vector rows[ROW_VECTORS * LANES]; } RowsTotals;

/* Adds a block of K of LANES columns from column j on to the totals of all rows; the first block also adds
 * the update's operands. */
INLINE void add_rows_block(RowsTotals *totals, const GemmNarrow *t, RowsBlock block, int64_t p, int64_t j, bool casts) {
    for (int first = 0; first < t->rows; first += LANES, block.a += LANES * divide_up(t->depth, 1 + PAIRS)) {
        BroadcastSums sums = {0};
        Vector *total = totals->rows + first;
#if MASKS
        if (t->rows - first <= LANES / 2) {
            add_columns(&sums, &block, casts, true);
            UNROLL for (int i = 0; i < LANES; i++) sums.whole[i] = (Vector)_mm512_zextps256_ps512((__m256)sums.half[i]);
        } else
#endif
            add_columns(&sums, &block, casts, false);
        transpose(sums.whole);
        UNROLL for (int i = 0; i < LANES; i++) {
            if (first + i >= t->rows) break;
            total[i] = p == 0 ? add_operands(sums.whole[i], &t->update, first + i, j, t->columns - j) : sums.whole[i] + total[i];
        }
    }
}

INLINE void multiply_row_vectors(const GemmNarrow *t, bool casts) {
    const int64_t element = casts ? 2 : (int64_t)sizeof(Sum) / (1 + PAIRS), stride = t->b.ld * element;
    for (int64_t j = 0; j < t->columns; j += LANES) {
        RowsTotals totals;
        prefetch_c(&t->update, t->rows, j);
        for (int64_t p = 0; p < t->depth; p += t->block) {
            const RowsBlock block = {.a = (const Sum *)t->a + p / (1 + PAIRS) * LANES,
                .b = (const char *)t->b.data + j * stride + p * element,
                .stride = stride,
                .lines = t->columns - j,
                .ahead = LANES * stride <= NARROW_AHEAD ? LANES * stride : LOAD_AHEAD,
                .bytes = int_min(t->block, t->depth - p) * element};
            add_rows_block(&totals, t, block, p, j, casts);
        }
        for (int i = 0; i < t->rows; i++) store_row(totals.rows[i], &t->update, i, j, t->columns - j);
    }
}

static void multiply_by_broadcast(const GemmNarrow *t) {
#if FROM_BF16 && !PAIRS
    if (t->b.bf16) {
        multiply_row_vectors(t, true);
        return;
    }
#endif
    multiply_row_vectors(t, false);
}

#endif
