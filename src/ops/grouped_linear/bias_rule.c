/* The biases of experts over rows sorted by expert: y[s] = x[s] + bias[e] for the slots s of each
 * expert e, offset[e] <= s < offset[e + 1]. d_bias[e] is the sum of d_y over these slots, and d_x is
 * d_y. This operation, in the memory of x, is apart from the layer because adapters and FP8 GEMMs
 * come between the layer and its bias. */
#include "ops/grouped_linear/grouped_linear.h"

TensorId op_grouped_bias(Graph *graph, TensorId x_slots, TensorId bias, const Dispatch *dispatch, MeshAxes sum) {
    const Tensor *vectors = graph_get(graph, bias);
    GroupedBiasAttributes attributes = {.sum = sum};
    assert(graph_get(graph, x_slots)->type == TYPE_COMPUTE && vectors->type == TYPE_WIDE && vectors->rank == 2);
    assert(vectors->shape[1] == graph_columns(graph, x_slots) && vectors->shape[0] + 1 == graph_elements(graph, dispatch->offset));
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, x_slots, "biased");
    Inputs in = {[GROUPED_BIAS_X] = x_slots, [GROUPED_BIAS_BIAS] = bias, [GROUPED_BIAS_OFFSET] = dispatch->offset};
    graph_node(graph, OP_grouped_bias, in, (Outputs){[GROUPED_BIAS_Y] = y}, &attributes, sizeof attributes);
    return y;
}

static void grouped_bias_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId d_y = d_in[GROUPED_BIAS_X] = d_out[GROUPED_BIAS_Y], d_bias = graph_parameter_gradient(graph, node->in[GROUPED_BIAS_BIAS]);
    if (!d_y || !d_bias) return;
    Inputs in = {[GROUPED_BIAS_GRAD_D_Y] = d_y, [GROUPED_BIAS_GRAD_OFFSET] = node->in[GROUPED_BIAS_OFFSET]};
    graph_node(graph, OP_grouped_bias_grad, in, (Outputs){[GROUPED_BIAS_GRAD_D_BIAS] = d_bias}, NULL, 0);
}

static double sum_flops(const Graph *graph, const Node *node) { return (double)graph_elements(graph, node->in[GROUPED_BIAS_GRAD_D_Y]); }

const Op op_rule_grouped_bias = {
    .name = "grouped_bias", .in_place = OPERAND(GROUPED_BIAS_X), .gradient = grouped_bias_gradient, .element_flops = 1};
const Op op_rule_grouped_bias_grad = {.name = "grouped_bias_grad", .adds_to = OPERAND(GROUPED_BIAS_GRAD_D_BIAS), .flops = sum_flops};
