/* RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450) over rows of the WIDE residual stream x [R, D]; formulas
 * stand in norm.h and, for the backward pass, in cpu_rows.h. The backward pass needs x, the gain and one or two
 * statistics per row. */
#include "ops/norm/norm.h"

TensorId op_norm(Graph *graph, TensorId x, const Norm *norm) {
    int64_t rows = graph_rows(graph, x), columns = graph_columns(graph, x), kept = norm_statistics(norm->kind);
    assert(graph_get(graph, x)->type == TYPE_WIDE && columns == graph_elements(graph, norm->gain));
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && columns == graph_elements(graph, norm->bias)));
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){rows, columns}, "normed");
    TensorId statistics = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, kept}, "statistics");
    NormAttributes attributes = {.kind = norm->kind, .epsilon = norm->epsilon};
    graph_node(graph, OP_norm, (TensorId[NORM_INPUTS]){[NORM_X] = x, [NORM_GAIN] = norm->gain, [NORM_BIAS] = norm->bias}, NORM_INPUTS,
        (TensorId[NORM_OUTPUTS]){[NORM_Y] = y, [NORM_STATISTICS] = statistics}, NORM_OUTPUTS, &attributes, sizeof attributes);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[NORM_X], gain = node->in[NORM_GAIN];
    d_in[NORM_X] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, graph_get(graph, x)->shape, "d_x");
    TensorId in[NORM_GRAD_INPUTS] = {
        [NORM_GRAD_D_Y] = d_out[NORM_Y],
        [NORM_GRAD_X] = x,
        [NORM_GRAD_GAIN] = gain,
        [NORM_GRAD_STATISTICS] = node->out[NORM_STATISTICS],
    };
    TensorId out[NORM_GRAD_OUTPUTS] = {
        [NORM_GRAD_D_X] = d_in[NORM_X],
        [NORM_GRAD_D_GAIN] = graph_parameter_gradient(graph, gain),
        [NORM_GRAD_D_BIAS] = graph_parameter_gradient(graph, node->in[NORM_BIAS]),
    };
    graph_node(graph, OP_norm_grad, in, NORM_GRAD_INPUTS, out, NORM_GRAD_OUTPUTS, node->attributes, sizeof(NormAttributes));
}

static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = norm_flops(node->attributes) * graph_elements(graph, node->in[NORM_X]), .bytes = op_tensor_bytes(graph, node)};
}
static Cost grad_cost(const Graph *graph, const Node *node) {
    return (Cost){
        .flops = 2 * norm_flops(node->attributes) * graph_elements(graph, node->in[NORM_GRAD_X]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_norm = {.name = "norm", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};
const Op op_rule_norm_grad = {.name = "norm_grad", .adds_to = OPERAND(NORM_GRAD_D_GAIN) | OPERAND(NORM_GRAD_D_BIAS), .cost = grad_cost};
