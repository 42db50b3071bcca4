/* Muon (Jordan 2024) with Nesterov momentum, scaled and decayed as in arXiv 2502.16982: the update of a matrix is its
 * momentum with all singular values brought near 1 by Newton-Schulz iterations X <- aX + (bA + cA^2)X, A = X X^T, times
 * 0.2 sqrt(max(rows, columns)).
 *
 * The iteration works on the smaller side without transposing: a tall X takes A = X^T X and X <- X(aI + bA + cA^2),
 * which is the same polynomial. A and A^2 are symmetric: only tiles on and below the diagonal are computed, then
 * mirrored, which costs little over half. aI + bA + cA^2 is rounded once, so that the last GEMM is the whole update of
 * X.
 *
 * Matrices that fit into the back end's scratch together form a group whose GEMMs run as one batch. This file says
 * which matrices, groups and GEMMs there are; optim_cpu.c and muon_gpu.c run them. The scratch belongs to the
 * optimizer. */
#include "base/math.h"
#include "base/memory.h"
#include "optim/optim_internal.h"

#include <math.h>
#include <stdlib.h>

static int64_t aligned(int64_t bytes) { return round_up(bytes, 64); }

/* ---- The list of matrices ---- */

static void append_matrices(Optimizer *o, int index) {
    const ShardInterval *interval = &o->shard.intervals[index];
    const Parameter *p = &o->graph->parameters[interval->elements.parameter];
    int64_t rows = p->shape[p->rank - 2], columns = p->shape[p->rank - 1], stack = interval->elements.count / (rows * columns);
    o->matrices = memory_resize(o->matrices, (size_t)(o->matrix_count + stack) * sizeof *o->matrices);
    for (int64_t k = 0; k < stack; k++)
        o->matrices[o->matrix_count++] = (Matrix){.offset = interval->offset + k * rows * columns * p->element_bytes,
            .interval = index,
            .rows = rows,
            .columns = columns,
            .order = int_min(rows, columns)};
}

static int compare(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int bucket_of(const Optimizer *o, const Matrix *matrix) { return o->shard.intervals[matrix->interval].bucket; }

/* Bucket by bucket, equal shapes beside each other, and then as they lie in memory. */
static int by_shape(const void *first, const void *second, void *optimizer) {
    const Matrix *a = first, *b = second;
    int bucket = compare(bucket_of(optimizer, a), bucket_of(optimizer, b));
    if (bucket) return bucket;
    int rows = compare(a->rows, b->rows), columns = compare(a->columns, b->columns);
    return rows ? rows : columns ? columns : compare(a->offset, b->offset);
}

/* Places the scratch of a matrix at `start`; returns its end. */
static int64_t place(const Optimizer *o, Matrix *matrix, int64_t start) {
    int64_t compute = (int64_t)o->compute, wide = o->backend->wide_square ? (int64_t)o->wide : compute;
    int64_t whole = aligned(matrix->rows * matrix->columns * compute), square = matrix->order * matrix->order;
    matrix->x = start;
    matrix->y = matrix->x + whole;
    matrix->gram = matrix->y + whole;
    matrix->square = matrix->gram + aligned(square * compute);
    return matrix->square + aligned(square * wide);
}

static void place_groups(Optimizer *o) {
    int64_t used = 0;
    int group = 0;
    for (int i = 0; i < o->matrix_count; i++) {
        Matrix *matrix = &o->matrices[i];
        int64_t end = place(o, matrix, used);
        bool together = i == 0 || bucket_of(o, matrix) == bucket_of(o, matrix - 1);
        bool alike = i == 0 || (matrix->rows == matrix[-1].rows && matrix->columns == matrix[-1].columns);
        if (used > 0 && (end > o->backend->group_bytes || !together || (o->backend->uniform_groups && !alike))) {
            group++;
            end = place(o, matrix, 0);
        }
        matrix->group = group;
        used = end;
        o->muon_bytes = int_max(o->muon_bytes, used);
    }
}

static int group_end(const Optimizer *o, int first) {
    int end = first;
    while (end < o->matrix_count && o->matrices[end].group == o->matrices[first].group) end++;
    return end;
}

void muon_lay_out(Optimizer *optimizer) {
    for (int i = 0; i < optimizer->shard.interval_count; i++)
        if (optimizer->variance_offset[i] < 0) append_matrices(optimizer, i);
    if (optimizer->backend->uniform_groups && optimizer->matrix_count > 0)
        qsort_r(optimizer->matrices, (size_t)optimizer->matrix_count, sizeof(Matrix), by_shape, optimizer);
    place_groups(optimizer);
}

/* ---- GEMMs ---- */

/* Of matrices that are stored row by row without gaps. */
static Gemm dense_gemm(GemmType input, GemmType output, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k) {
    Gemm gemm = {.transpose_a = transpose_a, .transpose_b = transpose_b, .input = input, .output = output, .m = m, .n = n, .k = k};
    gemm.lda = transpose_a ? m : k;
    gemm.ldb = transpose_b ? k : n;
    gemm.ldc = n;
    return gemm;
}

static bool is_tall(const Matrix *m) { return m->rows > m->columns; }

/* gram = X X^T, or X^T X of a tall X. */
Gemm muon_gram_gemm(const Matrix *matrix, GemmType type, const void *x, void *gram) {
    bool tall = is_tall(matrix);
    Gemm gemm = dense_gemm(type, type, tall, !tall, matrix->order, matrix->order, tall ? matrix->rows : matrix->columns);
    gemm.a = gemm.b = x;
    gemm.c = gram;
    return gemm;
}

/* square = gram gram. */
Gemm muon_square_gemm(const Matrix *matrix, GemmType type, GemmType wide, const void *gram, void *square) {
    Gemm gemm = dense_gemm(type, wide, false, false, matrix->order, matrix->order, matrix->order);
    gemm.a = gemm.b = gram;
    gemm.c = square;
    return gemm;
}

/* Y = polynomial X, or X polynomial of a tall X. */
Gemm muon_update_gemm(const Matrix *matrix, GemmType type, const void *x, const void *polynomial, void *y) {
    Gemm gemm = dense_gemm(type, type, false, false, matrix->rows, matrix->columns, matrix->order);
    gemm.a = is_tall(matrix) ? x : polynomial;
    gemm.b = is_tall(matrix) ? polynomial : x;
    gemm.c = y;
    return gemm;
}

/* ---- The step ---- */

double muon_rate(const Matrix *matrix, double lr) { return lr * 0.2 * sqrt((double)int_max(matrix->rows, matrix->columns)); }

void muon_step(const Optimizer *optimizer, const Segment *segment, const Update *update) {
    int last = optimizer->chunks[segment->end - 1].matrix;
    for (int first = optimizer->chunks[segment->first].matrix, end; first <= last; first = end) {
        end = group_end(optimizer, first);
        optimizer->backend->muon(optimizer, segment, update, first, end);
    }
}
