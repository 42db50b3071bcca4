/* Muon (Jordan 2024) with Nesterov momentum, scaled and decayed as in arXiv 2502.16982: the update of a matrix is its momentum with all
 * singular values brought near 1 by Newton-Schulz iterations X <- aX + (bA + cA^2)X, A = X X^T, times 0.2 sqrt(max(rows, columns)).
 *
 * The iteration works on the smaller side without transposing: a tall X takes A = X^T X and X <- X(aI + bA + cA^2), which is the same
 * polynomial. A and A^2 are symmetric: only tiles on and below the diagonal are computed, then mirrored, which costs little over half.
 * aI + bA + cA^2 is formed from an A^2 of wide type and rounded once, so that the last GEMM is the whole update of X.
 *
 * All matrices that fit the scratch budget together form a group whose GEMMs run as one batch; on a GPU only those of one shape
 * (muon_gpu.c). The scratch belongs to the optimizer. */
#include "base/memory.h"
#include "optim/optim_internal.h"

#include <math.h>
#include <stdlib.h>

enum {
    SCRATCH_BUDGET = 64 << 20, /* bytes; a single matrix may need more */
    SCRATCH_BUDGET_GPU = 1 << 30,
    TILE = 128,       /* rows of a symmetric GEMM computed at once: smaller wastes less, larger packs less */
    MIRROR_ROWS = 64, /* of a task that mirrors */
};

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t aligned(int64_t bytes) { return divide_up(bytes, 64) * 64; }

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
            .order = smaller(rows, columns)};
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
    int64_t compute = (int64_t)o->compute, wide = o->gpu ? compute : (int64_t)o->wide;
    int64_t whole = aligned(matrix->rows * matrix->columns * compute), square = matrix->order * matrix->order;
    matrix->x = start;
    matrix->y = matrix->x + whole;
    matrix->gram = matrix->y + whole;
    matrix->square = matrix->gram + aligned(square * compute);
    return matrix->square + aligned(square * wide);
}

static void place_groups(Optimizer *o) {
    int64_t used = 0, budget = o->gpu ? SCRATCH_BUDGET_GPU : SCRATCH_BUDGET;
    int group = 0;
    for (int i = 0; i < o->matrix_count; i++) {
        Matrix *matrix = &o->matrices[i];
        int64_t end = place(o, matrix, used);
        bool together = i == 0 || bucket_of(o, matrix) == bucket_of(o, matrix - 1);
        bool alike = i == 0 || (matrix->rows == matrix[-1].rows && matrix->columns == matrix[-1].columns);
        if (used > 0 && (end > budget || !together || (o->gpu && !alike))) {
            group++;
            end = place(o, matrix, 0);
        }
        matrix->group = group;
        used = end;
        o->muon_bytes = larger(o->muon_bytes, used);
    }
}

static int group_end(const Optimizer *o, int first) {
    int end = first;
    while (end < o->matrix_count && o->matrices[end].group == o->matrices[first].group) end++;
    return end;
}

static int64_t most_products(const Optimizer *o) {
    int64_t most = 0;
    for (int first = 0, end; first < o->matrix_count; first = end) {
        int64_t products = 0;
        end = group_end(o, first);
        for (int i = first; i < end; i++) products += divide_up(o->matrices[i].order, TILE);
        most = larger(most, products);
    }
    return most;
}

void muon_lay_out(Optimizer *optimizer) {
    for (int i = 0; i < optimizer->shard.interval_count; i++)
        if (optimizer->variance_offset[i] < 0) append_matrices(optimizer, i);
    if (optimizer->gpu && optimizer->matrix_count > 0)
        qsort_r(optimizer->matrices, (size_t)optimizer->matrix_count, sizeof(Matrix), by_shape, optimizer);
    place_groups(optimizer);
    if (!optimizer->gpu) optimizer->products = memory_allocate((size_t)most_products(optimizer) * sizeof(Gemm));
}

/* ---- The GEMMs of a group ---- */

typedef struct Group {
    const Optimizer *optimizer;
    const Segment *segment;
    const Matrix *matrices;
    int count;
    bool swapped; /* what is called x lies in y */
} Group;

static void *scratch_at(const Group *group, int64_t bytes) { return (char *)group->optimizer->scratch + bytes; }
static void *current(const Group *group, const Matrix *m) { return scratch_at(group, group->swapped ? m->y : m->x); }
static void *next(const Group *group, const Matrix *m) { return scratch_at(group, group->swapped ? m->x : m->y); }

/* Appends the GEMMs that give rows [0, order) of a symmetric `full`, each tile of rows only up to the diagonal's tile. */
static int64_t append_symmetric(Gemm *products, Gemm full, int64_t compute, int64_t output) {
    int64_t order = full.m, tiles = divide_up(order, TILE);
    for (int64_t t = 0; t < tiles; t++) {
        int64_t first = order * t / tiles, end = order * (t + 1) / tiles;
        products[t] = full;
        products[t].a = optim_at(full.a, full.transpose_a ? first : first * full.lda, (size_t)compute);
        products[t].c = optim_at(full.c, first * full.ldc, (size_t)output);
        products[t].m = end - first;
        products[t].n = end;
    }
    return tiles;
}

/* gram = X X^T, or X^T X of a tall X; lower tiles. */
static void multiply_gram(const Group *group) {
    const Optimizer *o = group->optimizer;
    int64_t n = 0, compute = (int64_t)o->compute;
    for (int i = 0; i < group->count; i++) {
        const Matrix *m = &group->matrices[i];
        bool tall = m->rows > m->columns;
        const void *x = current(group, m);
        Gemm full = {.transpose_a = tall,
            .transpose_b = !tall,
            .input = o->kernels->compute,
            .output = o->kernels->compute,
            .m = m->order,
            .k = tall ? m->rows : m->columns,
            .a = x,
            .lda = m->columns,
            .b = x,
            .ldb = m->columns,
            .c = scratch_at(group, m->gram),
            .ldc = m->order};
        n += append_symmetric(o->products + n, full, compute, compute);
    }
    gemm_batch(o->products, n);
}

/* square = gram gram, in the wide type; lower tiles. */
static void multiply_square(const Group *group) {
    const Optimizer *o = group->optimizer;
    int64_t n = 0;
    for (int i = 0; i < group->count; i++) {
        const Matrix *m = &group->matrices[i];
        const void *gram = scratch_at(group, m->gram);
        Gemm full = {.input = o->kernels->compute,
            .output = o->kernels->wide,
            .m = m->order,
            .k = m->order,
            .a = gram,
            .lda = m->order,
            .b = gram,
            .ldb = m->order,
            .c = scratch_at(group, m->square),
            .ldc = m->order};
        n += append_symmetric(o->products + n, full, (int64_t)o->compute, (int64_t)o->wide);
    }
    gemm_batch(o->products, n);
}

/* next = P X, or X P of a tall X, where P is what stands in gram. */
static void multiply_update(const Group *group) {
    const Optimizer *o = group->optimizer;
    for (int i = 0; i < group->count; i++) {
        const Matrix *m = &group->matrices[i];
        bool tall = m->rows > m->columns;
        const void *x = current(group, m), *polynomial = scratch_at(group, m->gram);
        o->products[i] = (Gemm){.input = o->kernels->compute,
            .output = o->kernels->compute,
            .m = m->rows,
            .n = m->columns,
            .k = m->order,
            .a = tall ? x : polynomial,
            .lda = m->order,
            .b = tall ? polynomial : x,
            .ldb = m->columns,
            .c = next(group, m),
            .ldc = m->columns};
    }
    gemm_batch(o->products, group->count);
}

/* ---- The passes between them ---- */

/* Completes gram from its lower tiles; with `polynomial`, turns it into aI + b gram + c square on the way. Which thread takes which rows
 * has no influence on the values, so tasks are handed out as threads come. */
static void complete_gram(const Group *group, bool polynomial) {
    const OptimKernels *kernels = group->optimizer->kernels;
    int64_t most = 0;
    for (int i = 0; i < group->count; i++) most = larger(most, divide_up(group->matrices[i].order, MIRROR_ROWS));
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int i = 0; i < group->count; i++)
        for (int64_t task = 0; task < most; task++) {
            const Matrix *m = &group->matrices[i];
            int64_t first = task * MIRROR_ROWS, end = smaller(m->order, first + MIRROR_ROWS);
            if (first >= end) continue;
            if (polynomial) kernels->polynomial(scratch_at(group, m->gram), scratch_at(group, m->square), m->order, first, end);
            kernels->mirror(scratch_at(group, m->gram), m->order, first, end);
        }
}

/* x = u / |u| with u = g + momentum * m, m updated; norms are of whole directions, from their chunks in order. */
static void load_direction(const Group *group, const Update *update) {
    const Optimizer *o = group->optimizer;
    size_t kept = optim_state_bytes(o, group->segment);
    double decay = o->config.momentum, scale = update->scale;
    int64_t first = group->matrices[0].first_chunk, end = group->matrices[group->count - 1].end_chunk;
#pragma omp parallel for schedule(static)
    for (int64_t i = first; i < end; i++) {
        const Chunk *c = &o->chunks[i];
        void *momentum = optim_at(o->momentum, c->index, kept), *gradient = optim_at(update->gradients, c->index, kept);
        o->partials[i] = group->segment->pure_bf16
                             ? bf16_momentum(o->kernels, decay, scale, c, optim_noise_seed(c->key, update->step), momentum, gradient)
                             : o->kernels->momentum(decay, scale, c->count, momentum, gradient);
    }
    for (int k = 0; k < group->count; k++) {
        double sum = 0;
        for (int64_t i = group->matrices[k].first_chunk; i < group->matrices[k].end_chunk; i++) sum += o->partials[i];
        o->norms[group->matrices + k - o->matrices] = sqrt(sum);
    }
#pragma omp parallel for schedule(static)
    for (int64_t i = first; i < end; i++) {
        const Chunk *c = &o->chunks[i];
        void *momentum = optim_at(o->momentum, c->index, kept), *gradient = optim_at(update->gradients, c->index, kept);
        void *x = optim_at(current(group, &o->matrices[c->matrix]), c->second_index, o->compute);
        double factor = 1 / (o->norms[c->matrix] + MUON_EPSILON);
        if (group->segment->pure_bf16) bf16_direction(o->kernels, decay, scale, factor, c->count, x, momentum, gradient);
        else o->kernels->direction(decay, scale, factor, c->count, x, momentum, gradient);
    }
}

static void apply_direction(const Group *group, const Update *update) {
    const Optimizer *o = group->optimizer;
    double keep = 1 - update->lr * o->config.weight_decay;
    int64_t first = group->matrices[0].first_chunk, end = group->matrices[group->count - 1].end_chunk;
#pragma omp parallel for schedule(static)
    for (int64_t i = first; i < end; i++) {
        const Chunk *c = &o->chunks[i];
        const Matrix *m = &o->matrices[c->matrix];
        void *master = optim_at(update->master, c->index, optim_state_bytes(o, group->segment)),
             *x = optim_at(current(group, m), c->second_index, o->compute);
        void *weights = update->weights ? optim_at(update->weights, c->index, o->compute) : master;
        if (group->segment->pure_bf16)
            bf16_apply(o->kernels, keep, muon_rate(m, update->lr), c, optim_noise_seed(c->key, update->step), master, weights, x);
        else o->kernels->apply(keep, muon_rate(m, update->lr), c->count, master, weights, x);
    }
}

/* ---- The step ---- */

double muon_rate(const Matrix *matrix, double lr) { return lr * 0.2 * sqrt((double)larger(matrix->rows, matrix->columns)); }

static void step_group(Group *group, const Update *update) {
    load_direction(group, update);
    for (int64_t i = 0; i < group->optimizer->config.newton_schulz_steps; i++) {
        multiply_gram(group);
        complete_gram(group, false);
        multiply_square(group);
        complete_gram(group, true);
        multiply_update(group);
        group->swapped = !group->swapped;
    }
    apply_direction(group, update);
}

void muon_step(const Optimizer *optimizer, const Segment *segment, const Update *update) {
    int last = optimizer->chunks[segment->end - 1].matrix;
    for (int first = optimizer->chunks[segment->first].matrix, end; first <= last; first = end) {
        end = group_end(optimizer, first);
        if (optimizer->gpu) muon_step_group_gpu(optimizer, segment, first, end, update);
        else step_group(&(Group){optimizer, segment, optimizer->matrices + first, end - first, false}, update);
    }
}
