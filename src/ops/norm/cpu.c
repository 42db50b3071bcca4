/* Norms of rows on a CPU, one thread per row; in the backward pass one thread per KERNEL_BLOCK
 * rows, whose sums for the gain's and bias's gradients are added in block order. Scratch: the sums
 * of the blocks. */
#include "backend/cpu/kernel.h"
#include "ops/norm/cpu_rows_kernels.h"
#include "ops/norm/norm.h"

static int64_t norm_grad_cpu_workspace(const Graph *graph, const Node *node) {
    TensorId x = node->in[NORM_GRAD_X];
    return (node->out[NORM_GRAD_D_BIAS] ? 2 : 1) * kernel_partials_bytes(graph, graph_rows(graph, x), graph_columns(graph, x));
}

CPU_OP(norm) {
    const NormAttributes *attributes = call->attributes;
    const W *x = call->in[NORM_X], *gain = call->in[NORM_GAIN], *bias = call->in[NORM_BIAS];
    T *y = call->out[NORM_Y];
    W *statistics = call->out[NORM_STATISTICS];
    int64_t rows = call->in_shape[NORM_X][0], columns = call->in_shape[NORM_X][1], kept = norm_statistics(attributes->kind);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) norm_row(attributes, y + r * columns, statistics + r * kept, x + r * columns, gain, bias, columns);
    kernel_put_amax(call, NORM_Y, NORM_AMAX);
}

CPU_OP(norm_grad, norm_grad_cpu_workspace) {
    const NormAttributes *attributes = call->attributes;
    const T *dy = call->in[NORM_GRAD_D_Y];
    const W *x = call->in[NORM_GRAD_X], *gain = call->in[NORM_GRAD_GAIN], *statistics = call->in[NORM_GRAD_STATISTICS];
    W *dx = call->out[NORM_GRAD_D_X], *dgain = call->out[NORM_GRAD_D_GAIN], *dbias = call->out[NORM_GRAD_D_BIAS];
    int64_t rows = call->in_shape[NORM_GRAD_X][0], columns = call->in_shape[NORM_GRAD_X][1];
    int64_t kept = norm_statistics(attributes->kind), blocks = kernel_blocks(rows);
    W *gains = call->workspace, *biases = gains + blocks * columns;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *gain_sum = gains + block * columns, *bias_sum = dbias ? biases + block * columns : NULL;
        memset(gain_sum, 0, columns * sizeof(W));
        if (bias_sum) memset(bias_sum, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < int_min(rows, (block + 1) * KERNEL_BLOCK); r++) {
            int64_t at = r * columns;
            memset(dx + at, 0, columns * sizeof(W));
            norm_row_grad(attributes->kind, dx + at, gain_sum, bias_sum, dy + at, x + at, gain, statistics + r * kept, columns);
        }
    }
    kernel_add_partials(dgain, gains, blocks, columns);
    kernel_add_partials(dbias, biases, blocks, columns);
}
