/* add and scale_add on a CPU. Loops are marked as free of dependencies: the sum may share an
 * input's memory. The gradient of scale is a sum over rows in two steps: KERNEL_BLOCK rows per
 * thread, then the blocks' partial sums in order. */
#include "backend/cpu/kernel.h"
#include "ops/add/add.h"

static int64_t add_grad_cpu_workspace(const Graph *graph, const Node *node) {
    return kernel_partials_bytes(
        graph, graph_rows(graph, node->in[SCALE_ADD_GRAD_D_SUM]), graph_columns(graph, node->in[SCALE_ADD_GRAD_D_SUM]));
}

CPU_OP(add) {
    const AddAttributes *attributes = call->attributes;
    const int64_t *shape = call->in_shape[ADD_A];
    int64_t elements = shape[0] * shape[1] * shape[2] * shape[3];
    if (attributes->wide) {
        const W *a = call->in[ADD_A], *b = call->in[ADD_B];
        W *sum = call->out[ADD_SUM];
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < elements; i++) sum[i] = a[i] + b[i];
    } else {
        const T *a = call->in[ADD_A], *b = call->in[ADD_B];
        T *sum = call->out[ADD_SUM];
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < elements; i++) sum[i] = to_compute(to_wide(a[i]) + to_wide(b[i]));
    }
}

CPU_OP(scale_add) {
    const W *x = call->in[SCALE_ADD_X], *previous = call->in[SCALE_ADD_PREVIOUS], *scale = call->in[SCALE_ADD_SCALE];
    W *sum = call->out[SCALE_ADD_SUM];
    int64_t rows = call->in_shape[SCALE_ADD_X][0], columns = call->in_shape[SCALE_ADD_X][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t j = 0; j < columns; j++) sum[r * columns + j] = x[r * columns + j] + previous[r * columns + j] * scale[j];
}

CPU_OP(scale_add_grad, add_grad_cpu_workspace) {
    const W *d_sum = call->in[SCALE_ADD_GRAD_D_SUM], *previous = call->in[SCALE_ADD_GRAD_PREVIOUS];
    const W *scale = call->in[SCALE_ADD_GRAD_SCALE];
    W *d_previous = call->out[SCALE_ADD_GRAD_D_PREVIOUS], *d_scale = call->out[SCALE_ADD_GRAD_D_SCALE], *partials = call->workspace;
    int64_t rows = call->in_shape[SCALE_ADD_GRAD_D_SUM][0], columns = call->in_shape[SCALE_ADD_GRAD_D_SUM][1];
    int64_t blocks = kernel_blocks(rows);
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
    kernel_add_partials(d_scale, partials, blocks, columns);
}
