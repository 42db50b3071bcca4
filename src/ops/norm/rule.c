/* RMSNorm (arXiv 1910.07467) and LayerNorm (arXiv 1607.06450) over rows of the WIDE residual stream
 * x [R, D]. norm.h has the formulas, cpu_rows_kernels.h those of the backward pass, which needs x, the gain
 * and one or two statistics per row. */
#include "ops/norm/norm.h"

TensorId op_norm(Graph *graph, TensorId x, const Norm *norm) {
    assert(graph_get(graph, x)->type == TYPE_WIDE);
    norm_assert_vectors(graph, norm, graph_columns(graph, x));
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, x, "normed");
    TensorId statistics = graph_activation(graph, TYPE_WIDE, graph_rows(graph, x), norm_statistics(norm->kind), "statistics");
    NormAttributes attributes = {norm->kind, norm->epsilon};
    graph_node(graph, OP_norm, (Inputs){[NORM_X] = x, [NORM_GAIN] = norm->gain, [NORM_BIAS] = norm->bias},
        (Outputs){[NORM_Y] = y, [NORM_STATISTICS] = statistics}, &attributes, sizeof attributes);
    return y;
}

static void norm_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[NORM_X], gain = node->in[NORM_GAIN], statistics = node->out[NORM_STATISTICS];
    Outputs out = {[NORM_GRAD_D_GAIN] = graph_parameter_gradient(graph, gain)};
    out[NORM_GRAD_D_BIAS] = graph_parameter_gradient(graph, node->in[NORM_BIAS]);
    out[NORM_GRAD_D_X] = d_in[NORM_X] = graph_activation_like(graph, TYPE_WIDE, x, "d_x");
    graph_node(graph, OP_norm_grad,
        (Inputs){[NORM_GRAD_D_Y] = d_out[NORM_Y], [NORM_GRAD_X] = x, [NORM_GRAD_GAIN] = gain, [NORM_GRAD_STATISTICS] = statistics}, out,
        node->attributes, 0);
}

static double plain_norm_flops(const Graph *graph, const Node *node) {
    return norm_flops(node->attributes) * graph_elements(graph, node->in[NORM_X]);
}
static double norm_grad_flops(const Graph *graph, const Node *node) {
    return 2 * norm_flops(node->attributes) * graph_elements(graph, node->in[NORM_GRAD_X]);
}

const Op op_rule_norm = {.name = "norm",
    .class = OP_CLASS_NORM,
    .measured = OPERAND(NORM_Y),
    .amax = OPERAND(NORM_AMAX),
    .gradient = norm_gradient,
    .flops = plain_norm_flops};
const Op op_rule_norm_grad = {
    .name = "norm_grad", .adds_to = OPERAND(NORM_GRAD_D_GAIN) | OPERAND(NORM_GRAD_D_BIAS), .flops = norm_grad_flops};
