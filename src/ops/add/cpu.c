/* The CPU kernels of add. */
#include "backend/cpu/kernel.h"
#include "ops/add/add.h"

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    return kernel_partials_bytes(graph, graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0]));
}

CPU_OP(add) {
    const AddAttributes *attributes = call->attributes;
    int64_t elements = call->in_shape[0][0] * call->in_shape[0][1] * call->in_shape[0][2] * call->in_shape[0][3];
    if (attributes->wide) {
        const W *a = call->in[0], *b = call->in[1];
        W *sum = call->out[0];
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < elements; i++) sum[i] = a[i] + b[i];
    } else {
        const T *a = call->in[0], *b = call->in[1];
        T *sum = call->out[0];
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < elements; i++) sum[i] = to_compute(to_wide(a[i]) + to_wide(b[i]));
    }
}

CPU_OP(scale_add) {
    const W *x = call->in[0], *previous = call->in[1], *scale = call->in[2];
    W *sum = call->out[0];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd /* the sum may lie in the memory of x */
        for (int64_t j = 0; j < columns; j++) sum[r * columns + j] = x[r * columns + j] + previous[r * columns + j] * scale[j];
}

CPU_OP(scale_add_grad, grad_workspace) {
    const W *d_sum = call->in[0], *previous = call->in[1], *scale = call->in[2];
    W *d_previous = call->out[0], *partials = call->workspace;
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], blocks = kernel_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *restrict partial = partials + block * columns;
        memset(partial, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < int_min(rows, (block + 1) * KERNEL_BLOCK); r++)
            for (int64_t j = 0; j < columns; j++) {
                W d = d_sum[r * columns + j];
                partial[j] += d * previous[r * columns + j];
                d_previous[r * columns + j] = d * scale[j];
            }
    }
    kernel_add_partials(call->out[1], partials, blocks, columns);
}
