/* Adaptive LayerNorm on a CPU, one thread per row; in the backward pass one thread per block of
 * KERNEL_BLOCK rows of a sample, whose sums for the gradients of the sample's vectors are added in
 * block order. Scratch: 1 + scale of each sample, the sums of the blocks, and ds if it is not an
 * output. */
#include "backend/cpu/kernel.h"
#include "ops/norm/cpu_rows_kernels.h"
#include "ops/norm/norm.h"

enum { SUMS = 3 }; /* for gate, scale, shift */

/* gains[s, j] = 1 + scale[s, j], so that the rows are rows of a norm with a gain. */
static void make_gains(W *gains, const W *scale, int64_t count) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < count; i++) gains[i] = 1 + scale[i];
}

static int64_t adaptive_cpu_workspace(const Graph *graph, const Node *node) { return graph_bytes(graph, node->in[ADAPTIVE_NORM_SCALE]); }

CPU_OP(adaptive_norm, adaptive_cpu_workspace) {
    const T *block = call->in[ADAPTIVE_NORM_BLOCK];
    const W *gate = call->in[ADAPTIVE_NORM_GATE], *stream = call->in[ADAPTIVE_NORM_STREAM], *shift = call->in[ADAPTIVE_NORM_SHIFT];
    W *residual = call->out[ADAPTIVE_NORM_RESIDUAL], *statistics = call->out[ADAPTIVE_NORM_STATISTICS], *gains = call->workspace;
    T *normed = call->out[ADAPTIVE_NORM_NORMED];
    int64_t rows = call->in_shape[ADAPTIVE_NORM_STREAM][0], columns = call->in_shape[ADAPTIVE_NORM_STREAM][1];
    int64_t samples = call->in_shape[block ? ADAPTIVE_NORM_GATE : ADAPTIVE_NORM_SCALE][0];
    if (normed) make_gains(gains, call->in[ADAPTIVE_NORM_SCALE], samples * columns);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * columns, vector = r / (rows / samples) * columns;
        const W *row = stream + at;
        if (block) {
#pragma omp simd
            for (int64_t j = 0; j < columns; j++) residual[at + j] = stream[at + j] + gate[vector + j] * to_wide(block[at + j]);
            row = residual + at;
        }
        if (normed) norm_row(call->attributes, normed + at, statistics + 2 * r, row, gains + vector, shift + vector, columns);
    }
}

static int64_t sample_blocks(int64_t rows, int64_t samples) { return samples ? kernel_blocks(rows / samples) : 0; }

static int64_t adaptive_grad_cpu_workspace(const Graph *graph, const Node *node) {
    bool norms = node->in[ADAPTIVE_NORM_GRAD_SCALE] != TENSOR_NONE;
    TensorId vectors = node->in[norms ? ADAPTIVE_NORM_GRAD_SCALE : ADAPTIVE_NORM_GRAD_GATE];
    int64_t rows = graph_rows(graph, node->in[norms ? ADAPTIVE_NORM_GRAD_RESIDUAL : ADAPTIVE_NORM_GRAD_BLOCK]);
    int64_t samples = graph_rows(graph, vectors), vectors_kept = samples + SUMS * samples * sample_blocks(rows, samples);
    return (vectors_kept + (norms ? 0 : rows)) * graph_columns(graph, vectors) * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
}

/* Computes ds WIDE [D] of a row, then everything that depends on it. `sums` [SUMS, D] belongs to
 * the block. */
static void grad_row(const OpCall *call, int64_t at, int64_t row, const W *gain, const W *gate, W *restrict ds, W *sums, int64_t columns) {
    const W *d_residual = call->in[ADAPTIVE_NORM_GRAD_D_RESIDUAL];
    const T *d_normed = call->in[ADAPTIVE_NORM_GRAD_D_NORMED], *block = call->in[ADAPTIVE_NORM_GRAD_BLOCK];
    if (d_residual) memcpy(ds, d_residual + at, columns * sizeof *ds);
    else memset(ds, 0, columns * sizeof *ds);
    if (d_normed) {
        const W *residual = (const W *)call->in[ADAPTIVE_NORM_GRAD_RESIDUAL] + at;
        const W *statistics = (const W *)call->in[ADAPTIVE_NORM_GRAD_STATISTICS] + 2 * row;
        norm_row_grad(NORM_LAYER, ds, sums + columns, sums + 2 * columns, d_normed + at, residual, gain, statistics, columns);
    }
    if (!block) return;
    assert(gate); /* part of the same residual add */
    T *d_block = (T *)call->out[ADAPTIVE_NORM_GRAD_D_BLOCK] + at;
    for (int64_t j = 0; j < columns; j++) {
        sums[j] += ds[j] * to_wide(block[at + j]);
        d_block[j] = to_compute(ds[j] * gate[j]);
    }
}

/* target[s, j] = sum over the sample's blocks, in order. */
static void add_blocks(W *target, const W *sums, int which, int64_t samples, int64_t blocks, int64_t columns) {
    for (int64_t s = 0; target && s < samples; s++) {
        memset(target + s * columns, 0, columns * sizeof *target);
        for (int64_t b = 0; b < blocks; b++)
            for (int64_t j = 0; j < columns; j++) target[s * columns + j] += sums[((s * blocks + b) * SUMS + which) * columns + j];
    }
}

CPU_OP(adaptive_norm_grad, adaptive_grad_cpu_workspace) {
    bool norms = call->in[ADAPTIVE_NORM_GRAD_SCALE] != NULL;
    const W *gate = call->in[ADAPTIVE_NORM_GRAD_GATE];
    const int64_t *shape = call->in_shape[norms ? ADAPTIVE_NORM_GRAD_RESIDUAL : ADAPTIVE_NORM_GRAD_BLOCK];
    int64_t samples = call->in_shape[norms ? ADAPTIVE_NORM_GRAD_SCALE : ADAPTIVE_NORM_GRAD_GATE][0], columns = shape[1];
    int64_t own = shape[0] / samples, blocks = sample_blocks(shape[0], samples);
    W *gains = call->workspace, *sums = gains + samples * columns, *rows = sums + SUMS * samples * blocks * columns;
    W *d_stream = call->out[ADAPTIVE_NORM_GRAD_D_STREAM] ? call->out[ADAPTIVE_NORM_GRAD_D_STREAM] : rows;
    if (norms) make_gains(gains, call->in[ADAPTIVE_NORM_GRAD_SCALE], samples * columns);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < samples * blocks; i++) {
        int64_t sample = i / blocks, first = i % blocks * KERNEL_BLOCK, end = int_min(own, first + KERNEL_BLOCK);
        W *own_sums = sums + i * SUMS * columns;
        memset(own_sums, 0, SUMS * columns * sizeof *own_sums);
        for (int64_t r = sample * own + first; r < sample * own + end; r++)
            grad_row(call, r * columns, r, gains + sample * columns, gate ? gate + sample * columns : NULL, d_stream + r * columns,
                own_sums, columns);
    }
    add_blocks(call->out[ADAPTIVE_NORM_GRAD_D_GATE], sums, 0, samples, blocks, columns);
    add_blocks(call->out[ADAPTIVE_NORM_GRAD_D_SCALE], sums, 1, samples, blocks, columns);
    add_blocks(call->out[ADAPTIVE_NORM_GRAD_D_SHIFT], sums, 2, samples, blocks, columns);
}
