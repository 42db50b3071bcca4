/* linear on a CPU: GEMMs, which use all threads; a WIDE gradient is cast first. The gradient of a
 * bias is a sum over rows in two steps: KERNEL_BLOCK rows per thread, then the blocks' partial sums
 * in order. */
#include "backend/cpu/kernel.h"
#include "ops/linear/linear.h"

/* Returns the bytes of d_y in the type of the weights if it is WIDE. */
static int64_t cast_workspace(const Graph *graph, const Node *node) {
    const LinearAttributes *attributes = node->attributes;
    LinearShape s = linear_node_shape(graph, node);
    return attributes->wide ? s.rows * s.out * (int64_t)precision_bytes(graph->precision, TYPE_COMPUTE) : 0;
}

static int64_t weight_workspace(const Graph *graph, const Node *node) {
    LinearShape s = linear_node_shape(graph, node);
    int64_t partials = node->out[LINEAR_GRAD_WEIGHT_D_BIAS] ? kernel_partials_bytes(graph, s.rows, s.out) : 0;
    return partials + cast_workspace(graph, node);
}

CPU_OP(linear) {
    const LinearAttributes *attributes = call->attributes;
    const int64_t *x_shape = call->in_shape[LINEAR_X];
    size_t element = attributes->wide ? sizeof(W) : sizeof(T);
    char *y = call->out[LINEAR_Y];
    for (int i = 0; i < LINEAR_PARTS && call->in[LINEAR_W + i]; i++) {
        LinearShape shape = {.rows = x_shape[0], .in = x_shape[1], .out = call->in_shape[LINEAR_W + i][0]};
        Gemm g = linear_gemm(shape, KERNEL_GEMM_COMPUTE, call->in[LINEAR_X], call->in[LINEAR_W + i], y);
        if (attributes->wide) g.output = KERNEL_GEMM_WIDE;
        g.ldc = call->out_shape[LINEAR_Y][1];
        g.bias = linear_has_bias(call) ? call->in[LINEAR_BIAS + i] : NULL;
        gemm(&g);
        y += shape.out * element;
    }
}

/* Returns the part's columns of d_y in the type of the weights; `buffer` receives them if d_y is
 * WIDE, which has one part. */
static const T *cast_gradient(const OpCall *call, const void *d_y, const LinearShape *shape, T *buffer) {
    const LinearAttributes *attributes = call->attributes;
    const W *wide = d_y;
    if (!attributes->wide || sizeof(T) == sizeof(W)) return (const T *)d_y + attributes->first;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < shape->rows * shape->out; i++) buffer[i] = to_compute(wide[i]);
    return buffer;
}

CPU_OP(linear_grad_input, cast_workspace) {
    const int64_t *y_shape = call->in_shape[LINEAR_GRAD_INPUT_D_Y], *w_shape = call->in_shape[LINEAR_GRAD_INPUT_W];
    LinearShape shape = {.rows = y_shape[0], .in = w_shape[1], .out = w_shape[0]};
    const T *d_y = cast_gradient(call, call->in[LINEAR_GRAD_INPUT_D_Y], &shape, call->workspace);
    Gemm g = linear_grad_input_gemm(shape, KERNEL_GEMM_COMPUTE, d_y, call->in[LINEAR_GRAD_INPUT_W], call->out[LINEAR_GRAD_INPUT_D_X]);
    g.lda = y_shape[1];
    gemm(&g);
}

/* Rows of d_y are `stride` elements apart. */
static void add_column_sums(W *d_bias, const T *d_y, int64_t stride, W *partials, int64_t rows, int64_t columns) {
    int64_t blocks = kernel_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *restrict partial = partials + block * columns;
        memset(partial, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < int_min(rows, (block + 1) * KERNEL_BLOCK); r++)
            for (int64_t j = 0; j < columns; j++) partial[j] += to_wide(d_y[r * stride + j]);
    }
    kernel_add_partials(d_bias, partials, blocks, columns);
}

/* Workspace: partial sums of d_bias, if there is one, then the cast d_y. */
CPU_OP(linear_grad_weight, weight_workspace) {
    const int64_t *y_shape = call->in_shape[LINEAR_GRAD_WEIGHT_D_Y], *x_shape = call->in_shape[LINEAR_GRAD_WEIGHT_X];
    LinearShape shape = {.rows = y_shape[0], .in = x_shape[1], .out = call->out_shape[LINEAR_GRAD_WEIGHT_D_W][0]};
    W *d_bias = call->out[LINEAR_GRAD_WEIGHT_D_BIAS], *partials = call->workspace;
    T *buffer = (T *)(partials + (d_bias ? kernel_blocks(shape.rows) * shape.out : 0));
    const T *d_y = cast_gradient(call, call->in[LINEAR_GRAD_WEIGHT_D_Y], &shape, buffer);
    Gemm g = linear_grad_weight_gemm(
        shape, KERNEL_GEMM_COMPUTE, d_y, call->in[LINEAR_GRAD_WEIGHT_X], call->out[LINEAR_GRAD_WEIGHT_D_W], call->overwrite);
    g.output = kernel_gradient_type(call);
    g.lda = y_shape[1];
    gemm(&g);
    if (d_bias && linear_has_bias(call)) add_column_sums(d_bias, d_y, y_shape[1], partials, shape.rows, shape.out);
}

static int64_t bias_workspace(const Graph *graph, const Node *node) {
    TensorId d_y = node->in[BIAS_GRAD_D_Y];
    return kernel_partials_bytes(graph, graph_rows(graph, d_y), graph_columns(graph, d_y));
}

/* Workspace: partial sums. */
CPU_OP(bias_grad, bias_workspace) {
    const int64_t *shape = call->in_shape[BIAS_GRAD_D_Y];
    if (linear_has_bias(call))
        add_column_sums(call->out[BIAS_GRAD_D_BIAS], call->in[BIAS_GRAD_D_Y], shape[1], call->workspace, shape[0], shape[1]);
}
