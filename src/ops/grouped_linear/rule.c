/* One linear layer per expert over rows sorted by expert: y[s] = x[s] w[e]^T, or y = sum + x w^T,
 * with x [slots, in], w [experts, out, in], y [slots, out], for the slots s of each expert e,
 * offset[e] <= s < offset[e + 1]. Offsets are known only when the kernel runs: every operation is
 * one batch of GEMMs, one per expert. Slots from offset[experts] on have no row; y and d_x are zero
 * there. */
#include "ops/grouped_linear/grouped_linear.h"

TensorId op_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, const Dispatch *dispatch) {
    return op_grouped_linear_add(graph, TENSOR_NONE, x_slots, w, dispatch);
}

TensorId op_grouped_linear_add(Graph *graph, TensorId sum, TensorId x_slots, TensorId w, const Dispatch *dispatch) {
    GroupedLinearAttributes attributes = {.rows = dispatch->rows};
    TensorId offset = dispatch->offset;
    const Tensor *weight = graph_get(graph, w);
    assert(weight->rank == 3 && weight->type == TYPE_COMPUTE && graph_get(graph, x_slots)->type == TYPE_COMPUTE);
    assert(weight->shape[2] == graph_columns(graph, x_slots) && weight->shape[0] + 1 == graph_elements(graph, offset));
    TensorId y = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, x_slots), weight->shape[1], "y_slots");
    assert(!sum || (graph_get(graph, sum)->type == TYPE_COMPUTE && graph_elements(graph, sum) == graph_elements(graph, y)));
    Inputs in = {[GROUPED_LINEAR_X] = x_slots, [GROUPED_LINEAR_W] = w, [GROUPED_LINEAR_OFFSET] = offset, [GROUPED_LINEAR_SUM] = sum};
    graph_node(graph, OP_grouped_linear, in, (Outputs){[GROUPED_LINEAR_Y] = y}, &attributes, sizeof attributes);
    return y;
}

static void append_grouped_weight_gradient(Graph *graph, const Node *node, TensorId d_y, TensorId d_w) {
    Inputs in = {
        [GROUPED_LINEAR_GRAD_WEIGHT_D_Y] = d_y,
        [GROUPED_LINEAR_GRAD_WEIGHT_X] = node->in[GROUPED_LINEAR_X],
        [GROUPED_LINEAR_GRAD_WEIGHT_OFFSET] = node->in[GROUPED_LINEAR_OFFSET],
    };
    Outputs out = {[GROUPED_LINEAR_GRAD_WEIGHT_D_W] = d_w};
    graph_node(graph, OP_grouped_linear_grad_weight, in, out, node->attributes, 0);
}

static void grouped_linear_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId d_y = d_out[GROUPED_LINEAR_Y], x = node->in[GROUPED_LINEAR_X], w = node->in[GROUPED_LINEAR_W];
    if (d_y == TENSOR_NONE) return;
    TensorId d_w = graph_parameter_gradient(graph, w);
    if (node->in[GROUPED_LINEAR_SUM]) d_in[GROUPED_LINEAR_SUM] = d_y;
    Inputs in = {
        [GROUPED_LINEAR_GRAD_INPUT_D_Y] = d_y,
        [GROUPED_LINEAR_GRAD_INPUT_W] = w,
        [GROUPED_LINEAR_GRAD_INPUT_OFFSET] = node->in[GROUPED_LINEAR_OFFSET],
    };
    TensorId d_x = d_in[GROUPED_LINEAR_X] = graph_activation_like(graph, TYPE_COMPUTE, x, "d_x_slots");
    Outputs out = {[GROUPED_LINEAR_GRAD_INPUT_D_X] = d_x};
    graph_node(graph, OP_grouped_linear_grad_input, in, out, node->attributes, 0);
    if (d_w) append_grouped_weight_gradient(graph, node, d_y, d_w);
}

TensorId grouped_linear_node_weight(const Node *node) {
    switch (node->op) {
    case OP_grouped_linear: return node->in[GROUPED_LINEAR_W];
    case OP_grouped_linear_grad_input: return node->in[GROUPED_LINEAR_GRAD_INPUT_W];
    default: return node->out[GROUPED_LINEAR_GRAD_WEIGHT_D_W];
    }
}

LinearShape grouped_linear_node_shape(const Graph *graph, const Node *node) {
    const int64_t *weight = graph_get(graph, grouped_linear_node_weight(node))->shape;
    return (LinearShape){.rows = ((const GroupedLinearAttributes *)node->attributes)->rows, .in = weight[2], .out = weight[1]};
}

/* Counts every slot that is expected to have a row, multiplied by one matrix of in * out
 * weights. */
static double grouped_gemm_flops(const Graph *graph, const Node *node) {
    LinearShape s = grouped_linear_node_shape(graph, node);
    return 2.0 * s.rows * s.in * s.out;
}

const Op op_rule_grouped_linear = {
    .name = "grouped_linear", .in_place = OPERAND(GROUPED_LINEAR_SUM), .gradient = grouped_linear_gradient, .flops = grouped_gemm_flops};
const Op op_rule_grouped_linear_grad_input = {.name = "grouped_linear_grad_input", .flops = grouped_gemm_flops};
const Op op_rule_grouped_linear_grad_weight = {
    .name = "grouped_linear_grad_weight",
    .adds_to = OPERAND(GROUPED_LINEAR_GRAD_WEIGHT_D_W),
    .overwrites = OPERAND(GROUPED_LINEAR_GRAD_WEIGHT_D_W),
    .flops = grouped_gemm_flops,
};
