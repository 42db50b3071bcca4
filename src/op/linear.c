/* y = x w^T + bias, and its two gradients: three matrix products. A WIDE result (the router's) has a WIDE gradient, which is narrowed
 * to the weights' type before it enters a product. */
#include "op/linear.h"

#include "op/kernel.h"

#ifdef KERNEL_VARIANT

void KERNEL(linear)(const OpCall *call) {
    const LinearAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], in = call->in_shape[0][1], out = call->in_shape[1][0];
    gemm(&(Gemm){.transpose_b = true, .input = KERNEL_GEMM_COMPUTE, .output = attributes->wide ? KERNEL_GEMM_WIDE : KERNEL_GEMM_COMPUTE,
                 .m = rows, .n = out, .k = in, .a = call->in[0], .lda = in, .b = call->in[1], .ldb = in,
                 .c = call->out[0], .ldc = out, .bias = call->in[2]});
}

/* The gradient of y in the type of the weights. */
static const T *narrowed(const OpCall *call, T *buffer) {
    const LinearAttributes *attributes = call->attributes;
    if (!attributes->wide || sizeof(T) == sizeof(W)) return call->in[0];
    const W *d_y = call->in[0];
    int64_t elements = call->in_shape[0][0] * call->in_shape[0][1];
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) buffer[i] = narrow(d_y[i]);
    return buffer;
}

void KERNEL(linear_grad_input)(const OpCall *call) {
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], in = call->in_shape[1][1];
    gemm(&(Gemm){.input = KERNEL_GEMM_COMPUTE, .output = KERNEL_GEMM_COMPUTE, .m = rows, .n = in, .k = out,
                 .a = narrowed(call, call->workspace), .lda = out, .b = call->in[1], .ldb = in, .c = call->out[0], .ldc = in});
}

static void bias_grad(W *d_bias, const T *d_y, W *partials, int64_t rows, int64_t columns) {
    int64_t blocks = kernel_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *restrict partial = partials + block * columns;
        memset(partial, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < kernel_min(rows, (block + 1) * KERNEL_BLOCK); r++)
            for (int64_t j = 0; j < columns; j++) partial[j] += widen(d_y[r * columns + j]);
    }
    kernel_add_partials(d_bias, partials, blocks, columns);
}

void KERNEL(linear_grad_weight)(const OpCall *call) {
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], in = call->in_shape[1][1];
    W *partials = call->workspace;
    const T *d_y = narrowed(call, call->out[1] ? (T *)(partials + kernel_blocks(rows) * out) : call->workspace);
    gemm(&(Gemm){.transpose_a = true, .accumulate = !call->fresh, .input = KERNEL_GEMM_COMPUTE, .output = kernel_gemm_kept(call), .m = out, .n = in,
                 .k = rows, .a = d_y, .lda = out, .b = call->in[1], .ldb = in, .c = call->out[0], .ldc = in});
    if (call->out[1]) bias_grad(call->out[1], d_y, partials, rows, out);
}

#else

TensorId op_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, bool wide) {
    assert(graph_columns(graph, x) == graph_columns(graph, w) && graph_get(graph, x)->type == TYPE_COMPUTE);
    LinearAttributes attributes = {.wide = wide};
    int64_t shape[] = {graph_rows(graph, x), graph_rows(graph, w)};
    assert(bias == TENSOR_NONE || graph_elements(graph, bias) == shape[1]);
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, wide ? TYPE_WIDE : TYPE_COMPUTE, 2, shape, "linear");
    graph_node(graph, OP_linear, (TensorId[]){x, w, bias}, 3, &y, 1, &attributes, sizeof attributes);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[0], w = node->in[1];
    int64_t shape[] = {graph_rows(graph, x), graph_columns(graph, x)};
    TensorId out[] = {graph_parameter_gradient(graph, w), graph_parameter_gradient(graph, node->in[2])};
    assert(out[0] || !out[1]);
    if (out[0]) graph_node(graph, OP_linear_grad_weight, (TensorId[]){d_out[0], x}, 2, out, 2, node->attributes, sizeof(LinearAttributes));
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_x");
    graph_node(graph, OP_linear_grad_input, (TensorId[]){d_out[0], w}, 2, &d_in[0], 1, node->attributes, sizeof(LinearAttributes));
}

/* All three products share rows, in and out; in[0] is x or d_y, in[1] is w or x. */
static Cost product_cost(const Graph *graph, const Node *node) {
    double rows = graph_rows(graph, node->in[0]), columns = graph_columns(graph, node->in[0]);
    double other = node->op == OP_linear ? graph_rows(graph, node->in[1]) : graph_columns(graph, node->in[1]);
    return (Cost){.flops = 2 * rows * columns * other, .bytes = op_tensor_bytes(graph, node)};
}

static int64_t narrow_workspace(const Graph *graph, const Node *node) {
    const LinearAttributes *attributes = node->attributes;
    return attributes->wide ? graph_elements(graph, node->in[0]) * (int64_t)precision_bytes(graph->precision, TYPE_COMPUTE) : 0;
}

static int64_t weight_workspace(const Graph *graph, const Node *node) {
    int64_t partials = op_partials_bytes(graph, graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0]));
    return narrow_workspace(graph, node) + (node->out[1] ? partials : 0);
}

const Op op_rule_linear = {.name = "linear", .gradient = gradient, .cost = product_cost};
const Op op_rule_linear_grad_input = {.name = "linear_grad_input", .cost = product_cost, .workspace = narrow_workspace};
const Op op_rule_linear_grad_weight = {.name = "linear_grad_weight", .adds_to = 3, .begins = 1, .cost = product_cost, .workspace = weight_workspace};

#endif
