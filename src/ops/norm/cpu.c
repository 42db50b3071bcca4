/* The CPU kernels of norm. */
#include "backend/cpu/kernel.h"
#include "ops/norm/cpu_rows.h"
#include "ops/norm/norm.h"

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    return (node->out[2] ? 2 : 1) * kernel_partials_bytes(graph, graph_rows(graph, node->in[1]), graph_columns(graph, node->in[1]));
}

CPU_OP(norm) {
    const NormAttributes *attributes = call->attributes;
    const W *x = call->in[0];
    T *y = call->out[0];
    W *statistics = call->out[1];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], kept = call->out_shape[1][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        norm_row(attributes, y + r * columns, statistics + r * kept, x + r * columns, call->in[1], call->in[2], columns);
}

CPU_OP(norm_grad, grad_workspace) {
    const NormAttributes *attributes = call->attributes;
    const T *dy = call->in[0];
    const W *x = call->in[1], *gain = call->in[2], *statistics = call->in[3];
    W *dx = call->out[0], *dgain = call->out[1], *dbias = call->out[2];
    int64_t rows = call->in_shape[1][0], columns = call->in_shape[1][1], kept = call->in_shape[3][1], blocks = kernel_blocks(rows);
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
    if (dbias) kernel_add_partials(dbias, biases, blocks, columns);
}
