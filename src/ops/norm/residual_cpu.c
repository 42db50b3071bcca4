/* The residual add and the following norm on a CPU, one thread per row; in the backward pass one
 * thread per KERNEL_BLOCK rows, whose column sums are added in block order. Scratch: the sums of
 * the blocks, and their total. */
#include "backend/cpu/kernel.h"
#include "ops/norm/cpu_rows_kernels.h"
#include "ops/norm/norm.h"

/* Column sums of the backward pass: of the gain; for an affine residual add also of ds * block, ds
 * * stream and ds. */
enum { PLAIN_SUMS = 1, AFFINE_SUMS = 4 };

static int64_t residual_grad_cpu_workspace(const Graph *graph, const Node *node) {
    int64_t rows = graph_rows(graph, node->in[RESIDUAL_NORM_GRAD_RESIDUAL]),
            columns = graph_columns(graph, node->in[RESIDUAL_NORM_GRAD_RESIDUAL]);
    int64_t bias = node->out[RESIDUAL_NORM_GRAD_D_BIAS] ? kernel_partials_bytes(graph, rows, columns) : 0;
    int64_t sums = node->in[RESIDUAL_NORM_GRAD_AFFINE] ? AFFINE_SUMS : PLAIN_SUMS;
    return kernel_partials_bytes(graph, rows + KERNEL_BLOCK, sums * columns) + bias; /* one more block, for the total */
}

/* The vectors of an affine residual add, at `first` of the inputs; NULL for a plain one. */
typedef struct Affine { const W *vectors[AFFINE_VECTORS]; } Affine;

static Affine affine_of(const OpCall *call, int first) {
    Affine affine;
    for (int i = 0; i < AFFINE_VECTORS; i++) affine.vectors[i] = call->in[first + i];
    return affine;
}

static void residual_row(W *restrict residual, const T *restrict block, const W *restrict stream, const Affine *affine, int64_t columns) {
    const W *restrict block_scale = affine->vectors[BLOCK_SCALE], *restrict block_bias = affine->vectors[BLOCK_BIAS];
    const W *restrict stream_scale = affine->vectors[STREAM_SCALE], *restrict stream_bias = affine->vectors[STREAM_BIAS];
    if (block_scale)
        for (int64_t j = 0; j < columns; j++)
            residual[j] = (to_wide(block[j]) + block_bias[j]) * block_scale[j] + (stream[j] + stream_bias[j]) * stream_scale[j];
    else
        for (int64_t j = 0; j < columns; j++) residual[j] = to_wide(block[j]) + stream[j];
}

CPU_OP(residual_norm) {
    const NormAttributes *attributes = call->attributes;
    const T *block = call->in[RESIDUAL_NORM_BLOCK];
    const W *stream = call->in[RESIDUAL_NORM_STREAM];
    Affine affine = affine_of(call, RESIDUAL_NORM_AFFINE);
    W *residual = call->out[RESIDUAL_NORM_RESIDUAL], *statistics = call->out[RESIDUAL_NORM_STATISTICS];
    T *normed = call->out[RESIDUAL_NORM_NORMED];
    int64_t rows = call->in_shape[RESIDUAL_NORM_STREAM][0], columns = call->in_shape[RESIDUAL_NORM_STREAM][1],
            kept = norm_statistics(attributes->kind);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        int64_t at = r * columns;
        kernel_prefetch(block + at + columns, columns);
        kernel_prefetch(stream + at + columns, columns);
        residual_row(residual + at, block + at, stream + at, &affine, columns);
        norm_row(attributes, normed + at, statistics + r * kept, residual + at, call->in[RESIDUAL_NORM_GAIN], call->in[RESIDUAL_NORM_BIAS],
            columns);
    }
    kernel_put_amax(call, RESIDUAL_NORM_NORMED, RESIDUAL_NORM_AMAX);
}

/* Computes the gradients of both branches from ds in d_stream, and the column sums. */
static void residual_row_grad(T *restrict d_block, W *restrict d_stream, W *restrict sums, const T *restrict block,
    const W *restrict stream, const Affine *affine, int64_t columns) {
    const W *restrict block_scale = affine->vectors[BLOCK_SCALE], *restrict stream_scale = affine->vectors[STREAM_SCALE];
    W *restrict sum_block = sums, *restrict sum_stream = sums + columns, *restrict sum = sums + 2 * columns;
    for (int64_t j = 0; j < columns; j++) {
        W ds = d_stream[j];
        sum_block[j] += ds * to_wide(block[j]);
        sum_stream[j] += ds * stream[j];
        sum[j] += ds;
        d_block[j] = to_compute(ds * block_scale[j]);
        d_stream[j] = ds * stream_scale[j];
    }
}

/* Computes the gradients of the scale and bias of one branch, whose scale is vector `scale`, from
 * `weighted` = sum of ds * branch and `sum` = sum of ds over rows. */
static void branch_grad(const OpCall *call, const Affine *affine, int scale, const W *weighted, const W *sum, int64_t columns) {
    W *d_scale = call->out[RESIDUAL_NORM_GRAD_D_AFFINE + scale], *d_bias = call->out[RESIDUAL_NORM_GRAD_D_AFFINE + scale + 1];
    for (int64_t j = 0; j < columns; j++) {
        d_scale[j] += weighted[j] + affine->vectors[scale + 1][j] * sum[j];
        d_bias[j] += affine->vectors[scale][j] * sum[j];
    }
}

CPU_OP(residual_norm_grad, residual_grad_cpu_workspace) {
    const NormAttributes *attributes = call->attributes;
    const W *d_residual = call->in[RESIDUAL_NORM_GRAD_D_RESIDUAL], *stream = call->in[RESIDUAL_NORM_GRAD_STREAM],
            *residual = call->in[RESIDUAL_NORM_GRAD_RESIDUAL];
    const W *statistics = call->in[RESIDUAL_NORM_GRAD_STATISTICS], *gain = call->in[RESIDUAL_NORM_GRAD_GAIN];
    const T *d_normed = call->in[RESIDUAL_NORM_GRAD_D_NORMED], *block = call->in[RESIDUAL_NORM_GRAD_BLOCK];
    T *d_block = call->out[RESIDUAL_NORM_GRAD_D_BLOCK];
    W *d_stream = call->out[RESIDUAL_NORM_GRAD_D_STREAM], *d_bias = call->out[RESIDUAL_NORM_GRAD_D_BIAS];
    Affine affine = affine_of(call, RESIDUAL_NORM_GRAD_AFFINE);
    const bool is_affine = affine.vectors[BLOCK_SCALE] != NULL;
    int64_t rows = call->in_shape[RESIDUAL_NORM_GRAD_RESIDUAL][0], columns = call->in_shape[RESIDUAL_NORM_GRAD_RESIDUAL][1],
            blocks = kernel_blocks(rows);
    int64_t width = (is_affine ? AFFINE_SUMS : PLAIN_SUMS) * columns, kept = norm_statistics(attributes->kind);
    W *partials = call->workspace, *sums = partials + blocks * width, *biases = sums + width;
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        W *partial = partials + b * width, *bias_sum = d_bias ? biases + b * columns : NULL;
        memset(partial, 0, width * sizeof(W));
        if (bias_sum) memset(bias_sum, 0, columns * sizeof(W));
        for (int64_t r = b * KERNEL_BLOCK; r < int_min(rows, (b + 1) * KERNEL_BLOCK); r++) {
            int64_t at = r * columns;
            if (d_residual) memcpy(d_stream + at, d_residual + at, columns * sizeof(W));
            else memset(d_stream + at, 0, columns * sizeof(W));
            if (d_normed)
                norm_row_grad(
                    attributes->kind, d_stream + at, partial, bias_sum, d_normed + at, residual + at, gain, statistics + r * kept, columns);
            if (is_affine) residual_row_grad(d_block + at, d_stream + at, partial + columns, block + at, stream + at, &affine, columns);
            else
                for (int64_t j = 0; j < columns; j++) d_block[at + j] = to_compute(d_stream[at + j]);
        }
    }
    kernel_put_amax(call, RESIDUAL_NORM_GRAD_D_BLOCK, RESIDUAL_NORM_GRAD_AMAX);
    memset(sums, 0, width * sizeof(W));
    kernel_add_partials(sums, partials, blocks, width);
    W *d_gain = call->out[RESIDUAL_NORM_GRAD_D_GAIN];
    for (int64_t j = 0; j < columns && d_gain; j++) d_gain[j] += sums[j];
    kernel_add_partials(d_bias, biases, blocks, columns);
    if (!call->out[RESIDUAL_NORM_GRAD_D_AFFINE]) return;
    const W *block_sum = sums + columns, *stream_sum = block_sum + columns, *sum = stream_sum + columns;
    branch_grad(call, &affine, BLOCK_SCALE, block_sum, sum, columns);
    branch_grad(call, &affine, STREAM_SCALE, stream_sum, sum, columns);
}
