/* Shared by cpu.c and grad_cpu.c: rows of u and the earlier rows of a row's document, the scratch
 * of a thread, and the depthwise convolution, which the backward pass recomputes.
 *
 * The grouped convolution is a GEMM per head. Its weight is stored [out, in, tap]. Instead of
 * reordering the weight by taps, the two taps of the activations are interleaved: a row of `pairs`
 * [rows, 2 * qk_dim] holds (previous, current) for every channel, so that the stored weight and
 * its gradient can be operands directly. */
#pragma once

#include "backend/cpu/kernel.h"
#include "ops/cca/cca.h"

enum {
    CCA_BLOCK = 256,            /* rows of one GEMM: enough to pay for packing the weight, few enough for L2 */
    CCA_MAX_THREADS = 64,       /* most threads that share the work, because each needs scratch */
    CCA_PREFETCH_ROWS = 8,      /* rows between a prefetch and its use */
    CCA_SERIAL_LIMIT = 1 << 15, /* multiplications below which more threads cost more than they save */
};

static inline int64_t cca_blocks(int64_t rows, int64_t block) { return (rows + block - 1) / block; }
static inline int64_t cca_align(int64_t bytes) { return (bytes + 63) / 64 * 64; }
static inline int64_t cca_threads(int64_t tasks) { return int_min(tasks, CCA_MAX_THREADS); }
static inline bool cca_parallel(const CcaShape *s) { return s->rows * s->convolved * s->dim > CCA_SERIAL_LIMIT; }

/* Scratch of one thread, as byte offsets. `products` is WIDE [product_rows, product_columns]. */
typedef struct CcaScratch { int64_t taps, rows, zeros, pairs, products, bytes; } CcaScratch;

static inline CcaScratch cca_scratch(
    int64_t dim, int64_t pair_rows, int64_t product_rows, int64_t product_columns, int64_t compute, int64_t wide) {
    CcaScratch scratch = {.rows = cca_align(2 * dim * wide)};
    scratch.zeros = scratch.rows + cca_align(3 * dim * wide);
    scratch.pairs = scratch.zeros + cca_align(dim * wide);
    scratch.products = scratch.pairs + cca_align(pair_rows * 2 * dim * compute);
    scratch.bytes = scratch.products + cca_align(product_rows * product_columns * wide);
    return scratch;
}

#ifdef KERNEL_VARIANT

/* Returns the next task of a loop, for the first cca_threads() threads. */
static inline int64_t cca_next_task(int64_t *next) {
    int64_t task;
#pragma omp atomic capture
    task = (*next)++;
    return task;
}

/* Rows of u, in chunks of `chunk` rows, and the two rows before each chunk (NULL: none). */
typedef struct CcaRows {
    const T *u, *halo;
    const int32_t *positions;
    int64_t columns, chunk;
} CcaRows;

static inline CcaRows cca_rows(const OpCall *call) {
    int64_t rows = call->in_shape[CCA_U][0], chunks = call->in_shape[CCA_HALO][0] / CCA_HALO_ROWS;
    return (CcaRows){.u = call->in[CCA_U],
        .halo = call->in[CCA_HALO],
        .positions = call->in[CCA_POSITIONS],
        .columns = call->in_shape[CCA_U][1],
        .chunk = chunks ? rows / chunks : rows};
}

/* Returns the index of row r in its chunk. */
static inline int64_t cca_place(const CcaRows *rows, int64_t r) { return rows->halo ? r % rows->chunk : r; }

/* Returns the number of rows before row r that belong to its document and are available. */
static inline int64_t cca_history(const CcaRows *rows, int64_t r) {
    return int_min(rows->positions[r], cca_place(rows, r) + (rows->halo ? CCA_HALO_ROWS : 0));
}

static inline const T *cca_row(const CcaRows *rows, int64_t r) { return rows->u + r * rows->columns; }

/* Returns the row `back` rows before row r, at most cca_history. */
static inline const T *cca_row_before(const CcaRows *rows, int64_t r, int64_t back) {
    int64_t place = cca_place(rows, r) - back;
    return place >= 0 ? cca_row(rows, r - back) : rows->halo + ((r / rows->chunk + 1) * CCA_HALO_ROWS + place) * rows->columns;
}

/* taps[2][dim] = the depthwise weights of one head: all taps of the previous token, then all of the current one. */
static inline void cca_split_taps(W *restrict taps, const T *restrict weight, int64_t dim) {
    for (int64_t i = 0; i < dim; i++) {
        taps[i] = to_wide(weight[2 * i]);
        taps[dim + i] = to_wide(weight[2 * i + 1]);
    }
}

static inline void cca_depthwise_row(
    T *restrict y, const T *restrict before, const T *restrict current, const W *restrict taps, const W *restrict bias, int64_t dim) {
    for (int64_t i = 0; i < dim; i++) y[i] = to_compute(bias[i] + taps[i] * to_wide(before[i]) + taps[dim + i] * to_wide(current[i]));
}

/* pairs[r - first] = (c_{r-1}, c_r) for every channel of the head whose columns begin at `column`,
 * where c is the depthwise convolution. Rows before a document are zeros, so c is its bias there.
 * `scratch` holds two rows, `zeros` one row of zeros. */
static inline void cca_pairs(T *restrict pairs, const CcaRows *rows, int64_t column, int64_t first, int64_t end, const W *taps,
    const W *bias, int64_t dim, T *scratch, const T *zeros) {
    T *previous = scratch, *current = scratch + dim;
    for (int64_t r = first; r < end; r++, pairs += 2 * dim) {
        int64_t history = cca_history(rows, r);
        const T *before = history > 0 ? cca_row_before(rows, r, 1) + column : zeros;
        if (r + CCA_PREFETCH_ROWS < end) kernel_prefetch(cca_row(rows, r + CCA_PREFETCH_ROWS) + column, dim);
        if (r == first || history == 0 || cca_place(rows, r) == 0)
            cca_depthwise_row(previous, history > 1 ? cca_row_before(rows, r, 2) + column : zeros, before, taps, bias, dim);
        cca_depthwise_row(current, before, cca_row(rows, r) + column, taps, bias, dim);
        for (int64_t i = 0; i < dim; i++) {
            pairs[2 * i] = previous[i];
            pairs[2 * i + 1] = current[i];
        }
        T *spare = previous;
        previous = current;
        current = spare;
    }
}

#endif
