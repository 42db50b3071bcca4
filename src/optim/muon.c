/* Muon (Jordan 2024) with Nesterov momentum, scaled and decayed as in arXiv 2502.16982: the update
 * of a matrix is its momentum with all singular values brought near 1 by Newton-Schulz iterations X
 * <- aX + (bA + cA^2)X, A = X X^T, times 0.2 sqrt(max(rows, columns)).
 *
 * The iteration works on the smaller side without transposing: a tall X takes A = X^T X and X <-
 * X(aI + bA + cA^2), which is the same polynomial. A and A^2 are symmetric: only tiles on and below
 * the diagonal are computed, then mirrored, at little more than half the cost. aI + bA + cA^2 is
 * rounded once, so that the last GEMM is the whole update of X.
 *
 * Each projection is a matrix of its own, as in folders that hold q, k, v, gate and up as separate
 * tensors, and as in Megatron. A parameter that stacks gate and up of an expert has two matrices;
 * one that stacks q, k and v has three.
 *
 * Matrices that fit into the back end's scratch together form a group whose GEMMs run as one batch.
 * If ranks divide a matrix along rows or columns (Cut in graph.h), they exchange slices of its
 * direction so that one rank, its owner, has the whole direction. The owner iterates it and sends
 * every rank its slice. This file defines the matrices, groups, exchanges and GEMMs;
 * cpu_loops.c and muon_gpu.c run them. The scratch belongs to the optimizer. */
#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "optim/optim_internal.h"

#include <math.h>
#include <stdlib.h>

static int64_t aligned(int64_t bytes) { return round_up(bytes, 64); }

/* ---- The list of matrices ---- */

static MeshAxes axes_of(const Optimizer *o, const Matrix *matrix) {
    return o->graph->parameters[o->shard.intervals[matrix->interval].elements.parameter].cut.axes;
}

static void append_matrices(Optimizer *o, int index) {
    const ShardInterval *interval = &o->shard.intervals[index];
    const Parameter *p = &o->graph->parameters[interval->elements.parameter];
    int64_t begin = interval->elements.first, end = begin + interval->elements.count;
    for (int64_t k = 0; k < optimizer_matrices(p); k++) {
        MuonMatrix matrix = optimizer_matrix(o->graph->mesh, p, k);
        if (matrix.first < begin || matrix.first >= end) continue;
        Matrix listed = {.offset = interval->offset + (matrix.first - begin) * p->element_bytes,
            .interval = index,
            .rows = matrix.rows,
            .columns = matrix.columns,
            .order = int_min(matrix.rows, matrix.columns),
            .held = matrix.held,
            .exchange = matrix.held < matrix.rows * matrix.columns ? 0 : -1,
            .by_columns = matrix.by_columns};
        array_append(o->matrices, o->matrix_count, listed);
    }
}

static int compare_costs(int64_t a, int64_t b) { return (a > b) - (a < b); }

static int matrix_bucket(const Optimizer *o, const Matrix *matrix) { return o->shard.intervals[matrix->interval].bucket; }

/* Orders matrices by bucket; within a bucket, cut matrices first, with equal shapes next to each
 * other if this matters; then in memory order. All ranks of a cut get the same order. */
static int by_shape(const void *first, const void *second, void *optimizer) {
    const Optimizer *o = optimizer;
    const Matrix *a = first, *b = second;
    int order = compare_costs(matrix_bucket(o, a), matrix_bucket(o, b));
    if (!order) order = compare_costs(b->exchange, a->exchange);
    if (!order && o->backend->uniform_groups) order = compare_costs(a->rows, b->rows);
    if (!order && o->backend->uniform_groups) order = compare_costs(a->columns, b->columns);
    if (!order && o->backend->uniform_groups) order = compare_costs(a->by_columns, b->by_columns);
    return order ? order : compare_costs(a->offset, b->offset);
}

/* ---- Slices ---- */

/* Returns the rows (or columns) of a cut matrix that a rank holds. */
static int64_t matrix_share(const Optimizer *o, const Matrix *matrix, int rank) {
    return cut_share(matrix->by_columns ? matrix->columns : matrix->rows, rank, o->exchanges[matrix->exchange].size).count;
}

/* Returns the elements between the slices that a rank holds of one matrix and of the next. */
static int64_t slice_room(const Optimizer *o, const Matrix *matrix, int rank) {
    return round_up(matrix_share(o, matrix, rank) * (matrix->by_columns ? matrix->rows : matrix->columns), 8);
}

static double cost_of(const Matrix *matrix) { return (double)matrix->rows * (double)matrix->columns * (double)matrix->order; }

/* Divides the work: all ranks of a cut compute the same owners, and each rank owns consecutive
 * matrices. */
static void choose_owners(const Optimizer *o, MuonExchange *exchange, int first, int end) {
    double all = 0, before = 0;
    for (int i = first; i < end; i++) all += cost_of(&o->matrices[i]);
    for (int r = 0; r <= exchange->size; r++) exchange->owned[r] = end;
    exchange->owned[0] = first;
    for (int i = first; i < end; i++) {
        double cost = cost_of(&o->matrices[i]);
        int owner = (int)((before + cost / 2) / all * exchange->size);
        for (int r = owner; r > 0 && exchange->owned[r] == end; r--) exchange->owned[r] = i;
        before += cost;
    }
}

/* Appends the exchange of the slices of matrices first .. end - 1. */
static void append_exchange(Optimizer *o, int first, int end) {
    MeshAxes axes = axes_of(o, &o->matrices[first]);
    int size = mesh_size(o->graph->mesh, axes), rank = mesh_index(o->graph->mesh, axes), index = o->exchange_count++;
    o->exchanges = memory_resize(o->exchanges, (size_t)o->exchange_count * sizeof *o->exchanges);
    MuonExchange *exchange = &o->exchanges[index];
    *exchange = (MuonExchange){.axes = axes,
        .rank = rank,
        .size = size,
        .owned = memory_allocate((size_t)(size + 1) * sizeof(int)),
        .sent = memory_allocate((size_t)(size + 1) * sizeof(int64_t)),
        .received = memory_allocate((size_t)(size + 1) * sizeof(int64_t))};
    choose_owners(o, exchange, first, end);
    for (int i = first; i < end; i++) o->matrices[i].exchange = index;
    for (int r = 0; r < size; r++) {
        exchange->sent[r + 1] = exchange->sent[r];
        for (int i = exchange->owned[r]; i < exchange->owned[r + 1]; i++) {
            o->matrices[i].packed = exchange->sent[r + 1];
            exchange->sent[r + 1] += slice_room(o, &o->matrices[i], rank);
        }
        exchange->received[r + 1] = exchange->received[r];
        for (int i = exchange->owned[rank]; i < exchange->owned[rank + 1]; i++)
            exchange->received[r + 1] += slice_room(o, &o->matrices[i], r);
    }
    exchange->gathered = aligned(exchange->sent[size] * (int64_t)o->compute);
    exchange->behind = exchange->gathered + aligned(exchange->received[size] * (int64_t)o->compute);
    o->muon_bytes = int_max(o->muon_bytes, exchange->behind);
}

static void list_exchanges(Optimizer *o) {
    for (int first = 0, end; first < o->matrix_count; first = end) {
        const Matrix *matrix = &o->matrices[first];
        for (end = first + 1; end < o->matrix_count; end++)
            if (matrix_bucket(o, &o->matrices[end]) != matrix_bucket(o, matrix) || o->matrices[end].exchange != matrix->exchange) break;
        if (matrix->exchange >= 0) append_exchange(o, first, end);
    }
}

static const MuonExchange *exchange_of(const Optimizer *o, const Matrix *matrix) {
    return matrix->exchange < 0 ? NULL : &o->exchanges[matrix->exchange];
}

/* ---- Groups ---- */

/* Places the scratch of a matrix at `start`; returns its end. */
static int64_t place_matrix(const Optimizer *o, Matrix *matrix, int64_t start) {
    int64_t compute = (int64_t)o->compute, wide = o->backend->wide_square ? (int64_t)o->wide : compute;
    int64_t whole = aligned(matrix->rows * matrix->columns * compute), square = matrix->order * matrix->order;
    matrix->x = start;
    matrix->y = matrix->x + whole;
    matrix->gram = matrix->y + whole;
    matrix->square = matrix->gram + aligned(square * compute);
    return matrix->square + aligned(square * wide);
}

/* Returns whether the matrices have one shape, and on every rank slices of one shape. */
static bool alike(const Optimizer *o, const Matrix *a, const Matrix *b) {
    bool same = a->rows == b->rows && a->columns == b->columns && a->by_columns == b->by_columns && a->exchange == b->exchange;
    for (int r = 0; same && a->exchange >= 0 && r < o->exchanges[a->exchange].size; r++)
        same = matrix_share(o, a, r) == matrix_share(o, b, r);
    return same;
}

static bool may_join(const Optimizer *o, const Matrix *last, const Matrix *next) {
    if (matrix_bucket(o, last) != matrix_bucket(o, next) || last->exchange != next->exchange) return false;
    return !o->backend->uniform_groups || alike(o, last, next);
}

static void place_groups(Optimizer *o) {
    const Matrix *last = NULL;
    int64_t used = 0;
    int group = -1;
    for (int i = 0; i < o->matrix_count; i++) {
        Matrix *matrix = &o->matrices[i];
        const MuonExchange *exchange = exchange_of(o, matrix);
        int64_t start = exchange ? exchange->behind : 0;
        matrix->group = -1;
        if (exchange && (i < exchange->owned[exchange->rank] || i >= exchange->owned[exchange->rank + 1])) continue;
        bool joins = last && may_join(o, last, matrix) && place_matrix(o, matrix, used) - start <= o->backend->group_bytes;
        if (!joins) group++;
        matrix->group = group;
        used = place_matrix(o, matrix, joins ? used : start);
        o->muon_bytes = int_max(o->muon_bytes, used);
        last = matrix;
    }
}

static int group_end(const Optimizer *o, int first) {
    int end = first;
    while (end < o->matrix_count && o->matrices[end].group == o->matrices[first].group) end++;
    return end;
}

void muon_lay_out(Optimizer *optimizer) {
    for (int i = 0; i < optimizer->shard.interval_count; i++)
        if (optimizer_takes_matrices(&optimizer->config, &optimizer->graph->parameters[optimizer->shard.intervals[i].elements.parameter]))
            append_matrices(optimizer, i);
    if (optimizer->matrix_count > 0) qsort_r(optimizer->matrices, (size_t)optimizer->matrix_count, sizeof(Matrix), by_shape, optimizer);
    list_exchanges(optimizer);
    place_groups(optimizer);
}

void muon_free(Optimizer *optimizer) {
    for (int i = 0; i < optimizer->exchange_count; i++) {
        free(optimizer->exchanges[i].owned);
        free(optimizer->exchanges[i].sent);
        free(optimizer->exchanges[i].received);
    }
    free(optimizer->exchanges);
    free(optimizer->matrices);
}

/* ---- GEMMs ---- */

/* Returns a GEMM of matrices that are stored row by row without gaps. */
static Gemm dense_gemm(GemmType input, GemmType output, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k) {
    Gemm gemm = {.transpose_a = transpose_a, .transpose_b = transpose_b, .input = input, .output = output, .m = m, .n = n, .k = k};
    gemm.lda = transpose_a ? m : k;
    gemm.ldb = transpose_b ? k : n;
    gemm.ldc = n;
    return gemm;
}

static bool is_tall(const Matrix *m) { return m->rows > m->columns; }

/* gram = X X^T, or X^T X for a tall X. */
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

/* Y = polynomial X, or X polynomial for a tall X. */
Gemm muon_update_gemm(const Matrix *matrix, GemmType type, const void *x, const void *polynomial, void *y) {
    Gemm gemm = dense_gemm(type, type, false, false, matrix->rows, matrix->columns, matrix->order);
    gemm.a = is_tall(matrix) ? x : polynomial;
    gemm.b = is_tall(matrix) ? polynomial : x;
    gemm.c = y;
    return gemm;
}

/* ---- The step ---- */

double muon_rate(const Matrix *matrix, double lr) { return lr * 0.2 * sqrt((double)int_max(matrix->rows, matrix->columns)); }

static void *muon_scratch(const Optimizer *o, int64_t offset) { return (char *)o->scratch + offset; }

void *muon_iterated(const Optimizer *o, const Matrix *matrix) {
    return muon_scratch(o, o->config.newton_schulz_steps % 2 ? matrix->y : matrix->x);
}

void *muon_direction(const Optimizer *o, const Matrix *matrix) { return muon_scratch(o, matrix->exchange < 0 ? matrix->x : 0); }

void *muon_result(const Optimizer *o, const Matrix *matrix) {
    return matrix->exchange < 0 ? muon_iterated(o, matrix) : muon_direction(o, matrix);
}

/* Runs a pass over matrices first .. end - 1, on a GPU shape by shape. */
static void run_muon_pass(const Optimizer *o, MuonPass *pass, const Segment *segment, const Update *update, int first, int end) {
    for (int next = first; first < end; first = next) {
        next = o->backend->uniform_groups ? first + 1 : end;
        while (next < end && alike(o, &o->matrices[first], &o->matrices[next])) next++;
        pass(o, segment, update, first, next);
    }
}

static void step_whole(const Optimizer *o, const Segment *segment, const Update *update, int first, int end) {
    o->backend->muon_momenta(o, segment, update, first, end);
    o->backend->muon_directions(o, segment, update, first, end);
    o->backend->muon_iterate(o, first, end);
    o->backend->muon_apply(o, segment, update, first, end);
}

/* Copies the slices of matrices first .. end - 1 from all ranks' shards into X, or back. The
 * matrices are alike, and this rank owns them. */
static void place_slices(const Optimizer *o, const MuonExchange *exchange, int first, int end, bool back) {
    const Matrix *m = &o->matrices[first];
    for (int64_t r = 0, at = 0, share; r < exchange->size; r++, at += share) {
        int64_t element = exchange->received[r];
        share = matrix_share(o, m, (int)r);
        for (int i = exchange->owned[exchange->rank]; i < first; i++) element += slice_room(o, &o->matrices[i], (int)r);
        MuonMove move = {.first = first,
            .end = end,
            .back = back,
            .at = m->by_columns ? at : at * m->columns,
            .rows = m->by_columns ? m->rows : share,
            .columns = m->by_columns ? share : m->columns,
            .distance = slice_room(o, m, (int)r),
            .slices = optim_at(muon_scratch(o, exchange->gathered), element, o->compute)};
        o->backend->muon_place(o, &move);
    }
}

static void place_group(const Optimizer *o, const MuonExchange *exchange, int first, int end, bool back) {
    for (int next; first < end; first = next) {
        for (next = first + 1; next < end && alike(o, &o->matrices[first], &o->matrices[next]);) next++;
        place_slices(o, exchange, first, next, back);
    }
}

/* Steps matrices of which this rank holds slices: their directions are sent to the owners and come
 * back iterated. Slices along the rows lie in X in rank order, not in row order: iterations commute
 * with row permutations. */
static void step_slices(const Optimizer *o, const Segment *segment, const Update *update, int first, int end) {
    const MuonExchange *exchange = &o->exchanges[segment->exchange];
    const CommType type = comm_real_type((int64_t)o->compute);
    Comm *group = mesh_group(o->graph->mesh, exchange->axes);
    void *slices = o->scratch, *gathered = muon_scratch(o, exchange->gathered);
    run_muon_pass(o, o->backend->muon_momenta, segment, update, first, end);
    comm_wait(group, comm_all_reduce(group, "muon.squares", o->squares + first, end - first, COMM_F64, COMM_SUM));
    run_muon_pass(o, o->backend->muon_directions, segment, update, first, end);
    comm_wait(group, comm_all_to_all(group, "muon.directions", slices, exchange->sent, gathered, exchange->received, type));
    for (int i = exchange->owned[exchange->rank], last = exchange->owned[exchange->rank + 1], next; i < last; i = next) {
        next = group_end(o, i);
        place_group(o, exchange, i, next, false);
        o->backend->muon_iterate(o, i, next);
        place_group(o, exchange, i, next, true);
    }
    comm_wait(group, comm_all_to_all(group, "muon.updates", gathered, exchange->received, slices, exchange->sent, type));
    run_muon_pass(o, o->backend->muon_apply, segment, update, first, end);
}

void muon_step(const Optimizer *optimizer, const Segment *segment, const Update *update) {
    int first = optimizer->chunks[segment->first].matrix, last = optimizer->chunks[segment->end - 1].matrix;
    if (segment->exchange >= 0) {
        step_slices(optimizer, segment, update, first, last + 1);
        return;
    }
    for (int end; first <= last; first = end) {
        end = group_end(optimizer, first);
        step_whole(optimizer, segment, update, first, end);
    }
}

static const char *const settings[] = {"epsilon", "momentum", "newton_schulz_steps", NULL};

const OptimizerRule optimizer_muon = {.name = "muon", .settings = settings, .takes_matrices = true, .moves = 8};
