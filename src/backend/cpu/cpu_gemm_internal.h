/* The interface between cpu_gemm.c (tiling, packing buffers, threads) and cpu_gemm_kernel.c
 * (instructions). */
#pragma once

#include "base/cpu_isa.h"
#include "device/gemm.h"

#include <stddef.h>

/* The epilogue of a block of sums: out = sums (+ addend) (+ bias). Leading dimensions count
 * elements. */
typedef struct GemmUpdate {
    const void *addend;
    int64_t ld_addend; /* of the addend, which has the sum's type or is NULL */
    bool addend_bf16;  /* the addend is bf16 */
    const void *bias;  /* of the sum's type, or NULL */
    void *out;
    int64_t ld_out;
    bool out_bf16;
} GemmUpdate;

/* One operand's block in memory: element (line, p) of `lines` x `depth`, where a line is a row of A or a column of B. */
typedef struct GemmSource {
    const void *data;
    int64_t ld;
    bool depth_contiguous; /* (line, p) is at line * ld + p, otherwise at p * ld + line */
    bool bf16;
} GemmSource;

/* Memory to prefetch into the L2 cache, row by row: `left` cache lines, the next one at `at`. Rows
 * are `stride` bytes apart and `width` bytes wide, in whole cache lines. */
typedef struct GemmPrefetch {
    const char *at, *row_end;
    int64_t width, stride, left;
} GemmPrefetch;

/* How a register tile is written: stored, added to memory, or rounded to bf16. */
typedef enum GemmStore { GEMM_STORE, GEMM_ADD, GEMM_ROUND } GemmStore;

/* A register tile: sums over `depth` depths of panels of A (`step` elements apart) and B, written
 * to `to` in rows `ld` apart. */
typedef struct GemmTile {
    const void *a, *b;
    int64_t step, depth;
    void *to;
    int64_t ld;
    GemmStore store;
    GemmPrefetch *prefetch;
    int64_t share; /* most cache lines to prefetch meanwhile */
} GemmTile;

/* Few rows of A times columns of B whose depth is contiguous. Blocks of K are added to C in order; the
 * first block also adds the update's addend and bias. */
typedef struct GemmNarrow {
    const void *a; /* from lay_rows */
    GemmSource b;
    int rows;
    int64_t columns, depth, block; /* depth and block count elements of k */
    GemmUpdate update;
} GemmNarrow;

/* The kernels of one input type. Packed operands are cut into panels: `panel_rows` rows of A (fewer
 * if the block does not divide evenly, always at a stride of `stride_rows`), `panel_columns`
 * columns of B. In a panel the lines of one depth are adjacent; a depth is `unit` consecutive k. If
 * elements are integers, `scaled` depths of a line (0: none) share a scale: the lines' scales
 * precede them, like one more depth. */
typedef struct GemmKernel {
    int panel_rows, stride_rows, panel_columns, unit, scaled;
    size_t element; /* bytes of one packed line and depth, and of one sum */
    /* Writes one panel, `width` lines wide. Lines after `lines` get arbitrary values, but none
     * that are slow to multiply. */
    void (*pack)(void *panel, int width, const GemmSource *source, int64_t lines, int64_t depth);
    /* Computes rows x columns of sums over `depth` packed depths: one panel of A, whose depths are
     * `step` packed elements apart, times all panels of B. Meanwhile it prefetches at most `share`
     * cache lines per panel of B, from prefetch[0] until it is empty, then from prefetch[1]. */
    void (*multiply)(const void *a, int64_t step, const void *b, int rows, int64_t columns, int64_t depth, const GemmUpdate *update,
        GemmPrefetch prefetch[2], int64_t share);
    int narrow_rows; /* most rows of A that multiply_narrow takes */
    /* Returns the number of packed elements that rows of A take for multiply_narrow. */
    int64_t (*laid_elements)(int64_t rows, int64_t depth);
    /* Writes rows of A, whose depth is contiguous, for multiply_narrow. */
    void (*lay_rows)(void *to, const GemmSource *source, int64_t rows, int64_t depth);
    /* Computes a tile without packing B, with the bits of `multiply`. */
    void (*multiply_narrow)(const GemmNarrow *narrow);
} GemmKernel;
