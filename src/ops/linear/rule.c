/* A linear layer: y [R, out] = x [R, in] w^T + bias, with w [out, in] and bias [out], and its gradients
 *     d_x = d_y w,    d_w += d_y^T x,    d_bias += sum over rows of d_y,
 * one GEMM each. A WIDE y (the router's logits) has a WIDE gradient, which is cast to the type of the weights before
 * it enters a GEMM. */
#include "ops/linear/linear.h"

static TensorId append_linear(Graph *graph, TensorId x, const LinearPart parts[LINEAR_PARTS], const LinearAttributes *attributes) {
    Inputs in = {[LINEAR_X] = x};
    int64_t shape[] = {graph_rows(graph, x), 0};
    LinearAttributes own = *attributes;
    own.lasts = true;
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    for (int i = 0; i < LINEAR_PARTS && parts[i].w; i++) {
        int64_t out = graph_rows(graph, parts[i].w);
        assert(graph_columns(graph, x) == graph_columns(graph, parts[i].w));
        assert(parts[i].bias == TENSOR_NONE || graph_elements(graph, parts[i].bias) == out);
        in[LINEAR_W + i] = parts[i].w, in[LINEAR_BIAS + i] = parts[i].bias;
        shape[1] += out;
        own.lasts = own.lasts && graph_is_parameter(graph, parts[i].w);
    }
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, attributes->wide ? TYPE_WIDE : TYPE_COMPUTE, 2, shape, "linear");
    graph_node(graph, OP_linear, in, (Outputs){[LINEAR_Y] = y}, &own, sizeof own);
    return y;
}

TensorId op_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, bool wide) {
    return append_linear(graph, x, (LinearPart[LINEAR_PARTS]){{w, bias}}, &(LinearAttributes){.wide = wide});
}

TensorId op_linear_parts(Graph *graph, TensorId x, const LinearPart parts[LINEAR_PARTS], MeshAxes sum) {
    return append_linear(graph, x, parts, &(LinearAttributes){.sum = sum});
}

static void append_linear_weight_gradient(Graph *graph, const Node *node, int part, TensorId d_y, const LinearAttributes *attributes) {
    TensorId d_w = graph_parameter_gradient(graph, node->in[LINEAR_W + part]),
             d_bias = graph_parameter_gradient(graph, node->in[LINEAR_BIAS + part]);
    assert(d_w || !d_bias);
    if (d_w == TENSOR_NONE) return;
    graph_node(graph, OP_linear_grad_weight, (Inputs){[LINEAR_GRAD_WEIGHT_D_Y] = d_y, [LINEAR_GRAD_WEIGHT_X] = node->in[LINEAR_X]},
        (Outputs){[LINEAR_GRAD_WEIGHT_D_W] = d_w, [LINEAR_GRAD_WEIGHT_D_BIAS] = d_bias}, attributes, sizeof *attributes);
}

static TensorId append_input_gradient(Graph *graph, const Node *node, int part, TensorId d_y, const LinearAttributes *attributes) {
    TensorId d_x = graph_activation_like(graph, TYPE_COMPUTE, node->in[LINEAR_X], "d_x");
    graph_node(graph, OP_linear_grad_input, (Inputs){[LINEAR_GRAD_INPUT_D_Y] = d_y, [LINEAR_GRAD_INPUT_W] = node->in[LINEAR_W + part]},
        (Outputs){[LINEAR_GRAD_INPUT_D_X] = d_x}, attributes, sizeof *attributes);
    return d_x;
}

static void linear_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    LinearAttributes attributes = *(const LinearAttributes *)node->attributes;
    for (int i = 0; i < LINEAR_PARTS && node->in[LINEAR_W + i]; i++) {
        append_linear_weight_gradient(graph, node, i, d_out[LINEAR_Y], &attributes);
        TensorId d_x = append_input_gradient(graph, node, i, d_out[LINEAR_Y], &attributes);
        d_in[LINEAR_X] = i ? op_add(graph, d_in[LINEAR_X], d_x) : d_x;
        attributes.first += graph_rows(graph, node->in[LINEAR_W + i]);
    }
}

TensorId linear_node_weight(const Node *node) {
    switch (node->op) {
    case OP_linear: return node->in[LINEAR_W];
    case OP_linear_grad_input: return node->in[LINEAR_GRAD_INPUT_W];
    default: return node->out[LINEAR_GRAD_WEIGHT_D_W];
    }
}

LinearShape linear_node_shape(const Graph *graph, const Node *node) {
    static_assert((int)LINEAR_X == (int)LINEAR_GRAD_INPUT_D_Y && (int)LINEAR_X == (int)LINEAR_GRAD_WEIGHT_D_Y, "x or d_y, of R rows");
    TensorId weight = linear_node_weight(node);
    return (LinearShape){
        .rows = graph_rows(graph, node->in[LINEAR_X]), .in = graph_columns(graph, weight), .out = graph_rows(graph, weight)};
}

bool linear_is_row(const Graph *graph, const Node *node) {
    const LinearAttributes *attributes = node->attributes;
    return node->op == OP_linear && graph_rows(graph, node->in[LINEAR_X]) == 1 && !node->in[LINEAR_W + 1] && !attributes->wide;
}

/* All three GEMMs have the same size. */
static double gemm_flops(const Graph *graph, const Node *node) {
    LinearShape s = linear_node_shape(graph, node);
    return 2.0 * s.rows * s.in * s.out;
}
static double linear_flops(const Graph *graph, const Node *node) {
    LinearShape s = linear_node_shape(graph, node);
    return 2.0 * s.rows * s.in * graph_columns(graph, node->out[LINEAR_Y]);
}

const Op op_rule_linear = {.name = "linear", .gradient = linear_gradient, .flops = linear_flops};
const Op op_rule_linear_grad_input = {.name = "linear_grad_input", .flops = gemm_flops};
const Op op_rule_linear_grad_weight = {
    .name = "linear_grad_weight",
    .adds_to = OPERAND(LINEAR_GRAD_WEIGHT_D_W) | OPERAND(LINEAR_GRAD_WEIGHT_D_BIAS),
    .overwrites = OPERAND(LINEAR_GRAD_WEIGHT_D_W),
    .flops = gemm_flops,
};
const Op op_rule_bias_grad = {.name = "bias_grad", .adds_to = OPERAND(BIAS_GRAD_D_BIAS)};
