/* RMSNorm and LayerNorm over rows of the WIDE residual stream; the formulas are in norm.h. The backward pass needs x, the gain and
 * one or two numbers per row. */
#include "ops/norm/norm.h"

TensorId op_norm(Graph *graph, TensorId x, const Norm *norm) {
    int64_t rows = graph_rows(graph, x), columns = graph_columns(graph, x), kept = norm_statistics(norm->kind);
    assert(graph_get(graph, x)->type == TYPE_WIDE && columns == graph_elements(graph, norm->gain));
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && columns == graph_elements(graph, norm->bias)));
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){rows, columns}, "normed");
    TensorId statistics = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, kept}, "statistics");
    NormAttributes attributes = {.kind = norm->kind, .epsilon = norm->epsilon};
    graph_node(graph, OP_norm, (TensorId[]){x, norm->gain, norm->bias}, 3, (TensorId[]){y, statistics}, 2, &attributes, sizeof attributes);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[0], gain = node->in[1];
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, graph_get(graph, x)->shape, "d_x");
    TensorId out[] = {d_in[0], graph_parameter_gradient(graph, gain), graph_parameter_gradient(graph, node->in[2])};
    graph_node(graph, OP_norm_grad, (TensorId[]){d_out[0], x, gain, node->out[1]}, 4, out, 3, node->attributes, sizeof(NormAttributes));
}

/* Square, sum, scale, gain: four operations an element; two more for a mean, twice that on the way back. */
static double operations(const Node *node) {
    const NormAttributes *attributes = node->attributes;
    return attributes->kind == NORM_LAYER ? 6 : 4;
}

static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = operations(node) * graph_elements(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 2 * operations(node) * graph_elements(graph, node->in[1]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_norm = {.name = "norm", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};

const Op op_rule_norm_grad = {.name = "norm_grad", .adds_to = 6, .cost = grad_cost};
