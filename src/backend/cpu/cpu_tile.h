/* Matrix products of blocks of W that fit into a cache, for CPU kernels such as attention and the delta rule: vectors of the
 * variant's instruction set, one register-tiled loop, transposes. Kernels cast to W when they load a block. Each row that is
 * read or written as vectors begins at a multiple of TILE_VECTOR_BYTES. Owns no memory. */
#pragma once

#include "backend/cpu/kernel.h"

#ifdef KERNEL_VARIANT

/* A register tile has `vectors` columns of vectors, and enough rows to hide the latency of
 * multiply-adds. */
#if defined __AVX512F__
#define TILE_VECTOR_BYTES 64
#define TILE_ROWS(vectors) ((vectors) == 4 ? 4 : 8) /* 8 to 24 of the 32 registers hold sums */
enum { TILE_VECTORS = 4 };
#elif defined __AVX2__
#define TILE_VECTOR_BYTES 32
#define TILE_ROWS(vectors) 4 /* 8 of the 16 registers hold sums */
enum { TILE_VECTORS = 2 };
#else
#define TILE_VECTOR_BYTES 16
#define TILE_ROWS(vectors) 4
enum { TILE_VECTORS = 2 };
#endif
enum { TILE_LANES = TILE_VECTOR_BYTES / sizeof(W) };
typedef W TileVector __attribute__((vector_size(TILE_VECTOR_BYTES), may_alias));
#if defined KERNEL_FP64
typedef uint64_t TileBits __attribute__((vector_size(TILE_VECTOR_BYTES), may_alias));
#else
typedef uint32_t TileBits __attribute__((vector_size(TILE_VECTOR_BYTES), may_alias));
#endif

#ifdef __clang__
#define TILE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define TILE_UNROLL _Pragma("GCC unroll 16")
#endif

/* -- Matmuls ------------------------------------------------------------------------------------------------------- */

typedef struct TileRange { int first, end; } TileRange;

/* The left operand of a matmul, whose elements are broadcast: element (i, p) is
 * at[i * row + p * step]. */
typedef struct TileRows {
    const W *at;
    int64_t row, step;
} TileRows;

/* c[i][j] = start[j] + sum over p in `range` of a(i, p) * b[p * b_row + j], for `rows` rows and
 * `vectors` vectors of columns. If `start` is NULL, sums start at c[i][j] * scale[i], or at c[i][j]
 * if `scale` is NULL too. */
static inline __attribute__((always_inline)) void tile_matmul(W *c, int64_t c_row, const W *start, const W *scale, TileRows a, const W *b,
    int64_t b_row, TileRange range, const int rows, const int vectors) {
    TileVector sums[TILE_ROWS(1)][TILE_VECTORS];
    TILE_UNROLL for (int i = 0; i < rows; i++) TILE_UNROLL for (int j = 0; j < vectors; j++) {
        sums[i][j] = *(const TileVector *)((start ? start : c + i * c_row) + j * TILE_LANES);
        if (scale) sums[i][j] *= scale[i];
    }
    const W *at = a.at + range.first * a.step, *end = a.at + range.end * a.step;
    for (b += range.first * b_row; at != end; at += a.step, b += b_row) {
        TileVector row[TILE_VECTORS];
        TILE_UNROLL for (int j = 0; j < vectors; j++) row[j] = *(const TileVector *)(b + j * TILE_LANES);
        TILE_UNROLL for (int i = 0; i < rows; i++) TILE_UNROLL for (int j = 0; j < vectors; j++) sums[i][j] += at[i * a.row] * row[j];
    }
    TILE_UNROLL for (int i = 0; i < rows; i++) TILE_UNROLL for (int j = 0; j < vectors; j++) *
        (TileVector *)(c + i * c_row + j * TILE_LANES) = sums[i][j];
}

/* -- Loading and transposing --------------------------------------------------------------------------------------- */

/* Loads a vector and casts it to W. A loop over exactly the lanes becomes one instruction. */
static inline TileVector tile_load_vector(const T *from) {
    T stored[TILE_LANES];
    TileVector x;
    memcpy(stored, from, sizeof stored);
    for (int i = 0; i < TILE_LANES; i++) x[i] = to_wide(stored[i]);
    return x;
}

/* Interleaves two vectors, their first halves (at = 0) or second halves; log2(lanes) rounds of it
 * transpose a square. */
#define TILE_ZIP_2(a, b, at) VECTOR_SHUFFLE(a, b, at, 2 + at)
#define TILE_ZIP_4(a, b, at) VECTOR_SHUFFLE(a, b, at, 4 + at, 1 + at, 5 + at)
#define TILE_ZIP_8(a, b, at) VECTOR_SHUFFLE(a, b, at, 8 + at, 1 + at, 9 + at, 2 + at, 10 + at, 3 + at, 11 + at)
#define TILE_ZIP_16(a, b, at) \
    VECTOR_SHUFFLE(a, b, at, 16 + at, 1 + at, 17 + at, 2 + at, 18 + at, 3 + at, 19 + at, 4 + at, 20 + at, 5 + at, 21 + at, 6 + at, \
                   22 + at, 7 + at, 23 + at)
#if defined KERNEL_FP64 && TILE_VECTOR_BYTES == 16
#define TILE_ZIP TILE_ZIP_2
#elif TILE_VECTOR_BYTES == 16
#define TILE_ZIP TILE_ZIP_4
#elif TILE_VECTOR_BYTES == 32
#define TILE_ZIP TILE_ZIP_8
#else
#define TILE_ZIP TILE_ZIP_16
#endif

/* to[j][i] = rows[i][j]: transposes a square of vectors. */
static inline void tile_transpose_square(W *to, int64_t to_row, TileVector *rows) {
    for (int stage = 1; stage < TILE_LANES; stage *= 2) {
        TileVector next[TILE_LANES];
        TILE_UNROLL for (int i = 0; i < TILE_LANES / 2; i++) {
            next[2 * i] = TILE_ZIP(rows[i], rows[i + TILE_LANES / 2], 0);
            next[2 * i + 1] = TILE_ZIP(rows[i], rows[i + TILE_LANES / 2], TILE_LANES / 2);
        }
        TILE_UNROLL for (int i = 0; i < TILE_LANES; i++) rows[i] = next[i];
    }
    TILE_UNROLL for (int i = 0; i < TILE_LANES; i++) * (TileVector *)(to + i * to_row) = rows[i];
}

/* to[j][i] = from[i][j] for `rows` rows of `columns` columns, both multiples of TILE_LANES. */
static inline void tile_transpose(W *to, int64_t to_row, const W *from, int64_t from_row, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i += TILE_LANES)
        for (int64_t j = 0; j < columns; j += TILE_LANES) {
            TileVector square[TILE_LANES];
            TILE_UNROLL for (int lane = 0; lane < TILE_LANES; lane++) square[lane] =
                *(const TileVector *)(from + (i + lane) * from_row + j);
            tile_transpose_square(to + j * to_row + i, to_row, square);
        }
}

#endif
