/* A linear layer: y [R, out] = x [R, in] w^T + bias, with w [out, in] and bias [out], and its gradients
 *     d_x = d_y w,    d_w += d_y^T x,    d_bias += sum over rows of d_y,
 * one GEMM each. A WIDE y (the router's logits) has a WIDE gradient, which is cast to the type of the weights before
 * it enters a GEMM. */
#include "ops/linear/linear.h"

TensorId op_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, bool wide) {
    assert(graph_columns(graph, x) == graph_columns(graph, w) && graph_get(graph, x)->type == TYPE_COMPUTE);
    LinearAttributes attributes = {.wide = wide};
    int64_t shape[] = {graph_rows(graph, x), graph_rows(graph, w)};
    assert(bias == TENSOR_NONE || graph_elements(graph, bias) == shape[1]);
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, wide ? TYPE_WIDE : TYPE_COMPUTE, 2, shape, "linear");
    graph_node(graph, OP_linear, (Inputs){[LINEAR_X] = x, [LINEAR_W] = w, [LINEAR_BIAS] = bias}, (Outputs){[LINEAR_Y] = y}, &attributes,
        sizeof attributes);
    return y;
}

static void append_weight_gradient(Graph *graph, const Node *node, TensorId d_y) {
    TensorId d_w = graph_parameter_gradient(graph, node->in[LINEAR_W]), d_bias = graph_parameter_gradient(graph, node->in[LINEAR_BIAS]);
    assert(d_w || !d_bias);
    if (d_w == TENSOR_NONE) return;
    graph_node(graph, OP_linear_grad_weight, (Inputs){[LINEAR_GRAD_WEIGHT_D_Y] = d_y, [LINEAR_GRAD_WEIGHT_X] = node->in[LINEAR_X]},
        (Outputs){[LINEAR_GRAD_WEIGHT_D_W] = d_w, [LINEAR_GRAD_WEIGHT_D_BIAS] = d_bias}, node->attributes, 0);
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[LINEAR_X], d_y = d_out[LINEAR_Y];
    append_weight_gradient(graph, node, d_y);
    TensorId d_x = d_in[LINEAR_X] = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, x), graph_columns(graph, x), "d_x");
    graph_node(graph, OP_linear_grad_input, (Inputs){[LINEAR_GRAD_INPUT_D_Y] = d_y, [LINEAR_GRAD_INPUT_W] = node->in[LINEAR_W]},
        (Outputs){[LINEAR_GRAD_INPUT_D_X] = d_x}, node->attributes, 0);
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

/* All three GEMMs have the same size. */
static double gemm_flops(const Graph *graph, const Node *node) {
    LinearShape s = linear_node_shape(graph, node);
    return 2.0 * s.rows * s.in * s.out;
}

const Op op_rule_linear = {.name = "linear", .gradient = gradient, .flops = gemm_flops};
const Op op_rule_linear_grad_input = {.name = "linear_grad_input", .flops = gemm_flops};
const Op op_rule_linear_grad_weight = {
    .name = "linear_grad_weight",
    .adds_to = OPERAND(LINEAR_GRAD_WEIGHT_D_W) | OPERAND(LINEAR_GRAD_WEIGHT_D_BIAS),
    .overwrites = OPERAND(LINEAR_GRAD_WEIGHT_D_W),
    .flops = gemm_flops,
};
