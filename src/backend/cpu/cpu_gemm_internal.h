/* Between cpu_gemm.c (cutting, packing buffers, threads) and cpu_gemm_kernel.c (instructions). */
#pragma once

#include "base/cpu_isa.h"
#include "device/gemm.h"

#include <stddef.h>

/* Where a block of finished sums goes: out = sums (+ addend) (+ bias). Leading dimensions count elements. */
typedef struct GemmUpdate {
    const void *addend;
    int64_t ld_addend; /* sum type, or NULL */
    bool addend_bf16;  /* it is bf16 instead */
    const void *bias;  /* sum type, or NULL */
    void *out;
    int64_t ld_out;
    bool out_bf16;
} GemmUpdate;

/* One operand's block in memory: element (line, p) of `lines` x `depth`, where a line is a row of A or a column of B. */
typedef struct GemmSource {
    const void *data;
    int64_t ld;
    bool depth_contiguous; /* (line, p) is at line * ld + p, else at p * ld + line */
    bool bf16;
} GemmSource;

/* Memory to prefetch into the second-level cache, row by row: `left` cache lines, the next one at `at`, in rows
 * `stride` bytes apart that are `width` bytes of whole cache lines. */
typedef struct GemmPrefetch {
    const char *at, *row_end;
    int64_t width, stride, left;
} GemmPrefetch;

/* What becomes of a register tile: stored as it is, added to what is there, or rounded to bf16. */
typedef enum GemmStore { GEMM_STORE, GEMM_ADD, GEMM_ROUND } GemmStore;

/* A register tile: sums over `depth` depths of panels of A, `step` elements apart, and B go `to` rows `ld` apart. */
typedef struct GemmTile {
    const void *a, *b;
    int64_t step, depth;
    void *to;
    int64_t ld;
    GemmStore store;
    GemmPrefetch *prefetch;
    int64_t share; /* most cache lines to prefetch meanwhile */
} GemmTile;

/* The kernels of one input type. Packed operands are cut into panels: `panel_rows` rows of A (fewer where the block
 * does not divide evenly, always at a stride of `stride_rows`), `panel_columns` columns of B. In a panel the lines of
 * one depth lie side by side; a depth is `unit` neighbouring k. Where elements are integers, `scaled` depths of a line
 * (0: none) share a scale: the lines' scales stand before them, like one more depth. */
typedef struct GemmKernel {
    int panel_rows, stride_rows, panel_columns, unit, scaled;
    size_t element; /* bytes of one packed line and depth, and of one sum */
    /* Writes one panel, `width` lines wide; what lines beyond `lines` hold is of no account, but never garbage that is
     * slow to multiply. */
    void (*pack)(void *panel, int width, const GemmSource *source, int64_t lines, int64_t depth);
    /* rows x columns of sums over `depth` packed depths: one panel of A, whose depths are `step` packed elements apart,
     * against all panels of B. Meanwhile at most `share` cache lines for every panel of B are prefetched, from
     * prefetch[0] until nothing is left of it, then from prefetch[1]. */
    void (*multiply)(const void *a, int64_t step, const void *b, int rows, int64_t columns, int64_t depth, const GemmUpdate *update,
        GemmPrefetch prefetch[2], int64_t share);
} GemmKernel;
