/* The CPU kernels of linear. */
#include "backend/cpu/kernel.h"
#include "ops/linear/linear.h"

static int64_t narrow_workspace(const Graph *graph, const Node *node) {
    const LinearAttributes *attributes = node->attributes;
    return attributes->wide ? graph_elements(graph, node->in[0]) * (int64_t)precision_bytes(graph->precision, TYPE_COMPUTE) : 0;
}

static int64_t weight_workspace(const Graph *graph, const Node *node) {
    int64_t partials = kernel_partials_bytes(graph, graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0]));
    return narrow_workspace(graph, node) + (node->out[1] ? partials : 0);
}

CPU_OP(linear) {
    const LinearAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], in = call->in_shape[0][1], out = call->in_shape[1][0];
    gemm(&(Gemm){.transpose_b = true,
        .input = KERNEL_GEMM_COMPUTE,
        .output = attributes->wide ? KERNEL_GEMM_WIDE : KERNEL_GEMM_COMPUTE,
        .m = rows,
        .n = out,
        .k = in,
        .a = call->in[0],
        .lda = in,
        .b = call->in[1],
        .ldb = in,
        .c = call->out[0],
        .ldc = out,
        .bias = call->in[2]});
}

/* The gradient of y in the type of the weights. */
static const T *narrowed(const OpCall *call, T *buffer) {
    const LinearAttributes *attributes = call->attributes;
    if (!attributes->wide || sizeof(T) == sizeof(W)) return call->in[0];
    const W *d_y = call->in[0];
    int64_t elements = call->in_shape[0][0] * call->in_shape[0][1];
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) buffer[i] = to_compute(d_y[i]);
    return buffer;
}

CPU_OP(linear_grad_input, narrow_workspace) {
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], in = call->in_shape[1][1];
    gemm(&(Gemm){.input = KERNEL_GEMM_COMPUTE,
        .output = KERNEL_GEMM_COMPUTE,
        .m = rows,
        .n = in,
        .k = out,
        .a = narrowed(call, call->workspace),
        .lda = out,
        .b = call->in[1],
        .ldb = in,
        .c = call->out[0],
        .ldc = in});
}

static void bias_grad(W *d_bias, const T *d_y, W *partials, int64_t rows, int64_t columns) {
    int64_t blocks = kernel_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *restrict partial = partials + block * columns;
        memset(partial, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < int_min(rows, (block + 1) * KERNEL_BLOCK); r++)
            for (int64_t j = 0; j < columns; j++) partial[j] += to_wide(d_y[r * columns + j]);
    }
    kernel_add_partials(d_bias, partials, blocks, columns);
}

CPU_OP(linear_grad_weight, weight_workspace) {
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], in = call->in_shape[1][1];
    W *partials = call->workspace;
    const T *d_y = narrowed(call, call->out[1] ? (T *)(partials + kernel_blocks(rows) * out) : call->workspace);
    gemm(&(Gemm){.transpose_a = true,
        .accumulate = !call->overwrite,
        .input = KERNEL_GEMM_COMPUTE,
        .output = kernel_gradient_type(call),
        .m = out,
        .n = in,
        .k = rows,
        .a = d_y,
        .lda = out,
        .b = call->in[1],
        .ldb = in,
        .c = call->out[0],
        .ldc = in});
    if (call->out[1]) bias_grad(call->out[1], d_y, partials, rows, out);
}
