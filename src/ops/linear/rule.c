/* y = x w^T + bias, and its two gradients: three matrix products. A WIDE result (the router's) has a WIDE gradient, which is narrowed
 * to the weights' type before it enters a product. */
#include "ops/linear/linear.h"

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

const Op op_rule_linear = {.name = "linear", .gradient = gradient, .cost = product_cost};

const Op op_rule_linear_grad_input = {.name = "linear_grad_input", .cost = product_cost};

const Op op_rule_linear_grad_weight = {.name = "linear_grad_weight", .adds_to = 3, .overwrites = OPERAND(0), .cost = product_cost};
