/* The norm of a block's output and its residual add on a CPU, one thread per row; in the backward
 * pass one thread per KERNEL_BLOCK rows, whose sums for the gain's gradient are added in block
 * order. Scratch: the sums of the blocks. */
#include "backend/cpu/kernel.h"
#include "ops/norm/norm.h"

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    TensorId block = node->in[POST_NORM_GRAD_BLOCK];
    return kernel_partials_bytes(graph, graph_rows(graph, block), graph_columns(graph, block));
}

CPU_OP(post_norm) {
    const NormAttributes *attributes = call->attributes;
    const W *gain = call->in[POST_NORM_GAIN];
    W *statistics = call->out[POST_NORM_STATISTICS];
    int64_t rows = call->in_shape[POST_NORM_STREAM][0], columns = call->in_shape[POST_NORM_STREAM][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *restrict block = (const T *)call->in[POST_NORM_BLOCK] + r * columns;
        const W *restrict stream = (const W *)call->in[POST_NORM_STREAM] + r * columns;
        W *restrict residual = (W *)call->out[POST_NORM_RESIDUAL] + r * columns, sum = 0;
        T *restrict narrow = (T *)call->out[POST_NORM_NARROW] + r * columns;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < columns; j++) sum += to_wide(block[j]) * to_wide(block[j]);
        W rstd = 1 / wide_sqrt(sum / columns + (W)attributes->epsilon);
        for (int64_t j = 0; j < columns; j++) residual[j] = stream[j] + to_wide(block[j]) * rstd * gain[j];
        for (int64_t j = 0; j < columns; j++) narrow[j] = to_compute(residual[j]);
        statistics[r] = rstd;
    }
}

/* d_stream = d_residual + d_narrow, each of which may be absent. */
static void add_gradients(W *restrict d_stream, const W *d_residual, const T *d_narrow, int64_t columns) {
    for (int64_t j = 0; j < columns; j++) d_stream[j] = (d_residual ? d_residual[j] : 0) + (d_narrow ? to_wide(d_narrow[j]) : 0);
}

static void row_grad(T *restrict d_block, W *restrict d_gain, const W *restrict ds, const T *restrict block, const W *restrict gain, W rstd,
    int64_t columns) {
    W dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < columns; j++) dot += ds[j] * gain[j] * to_wide(block[j]);
    W pull = dot * rstd * rstd / columns;
    for (int64_t j = 0; j < columns; j++) {
        W x = to_wide(block[j]);
        d_block[j] = to_compute(rstd * (ds[j] * gain[j] - x * pull));
        d_gain[j] += ds[j] * x * rstd;
    }
}

CPU_OP(post_norm_grad, grad_workspace) {
    const W *d_residual = call->in[POST_NORM_GRAD_D_RESIDUAL], *gain = call->in[POST_NORM_GRAD_GAIN];
    const W *statistics = call->in[POST_NORM_GRAD_STATISTICS];
    const T *d_narrow = call->in[POST_NORM_GRAD_D_NARROW], *block = call->in[POST_NORM_GRAD_BLOCK];
    T *d_block = call->out[POST_NORM_GRAD_D_BLOCK];
    W *d_stream = call->out[POST_NORM_GRAD_D_STREAM], *partials = call->workspace;
    int64_t rows = call->in_shape[POST_NORM_GRAD_BLOCK][0], columns = call->in_shape[POST_NORM_GRAD_BLOCK][1], blocks = kernel_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        W *partial = partials + b * columns;
        memset(partial, 0, columns * sizeof(W));
        for (int64_t r = b * KERNEL_BLOCK; r < int_min(rows, (b + 1) * KERNEL_BLOCK); r++) {
            int64_t at = r * columns;
            add_gradients(d_stream + at, d_residual ? d_residual + at : NULL, d_narrow ? d_narrow + at : NULL, columns);
            row_grad(d_block + at, partial, d_stream + at, block + at, gain, statistics[r], columns);
        }
    }
    kernel_add_partials(call->out[POST_NORM_GRAD_D_GAIN], partials, blocks, columns);
}
