/* One linear layer per expert over rows sorted by expert: y[s] = x[s] w[e]^T for the slots from offset[e] up to
 * offset[e + 1] of each expert. Offsets are read when the kernel runs; every form is one batch of matrix products, one
 * per expert, described in the workspace. Slots past the last offset have no expert and give zero. */
#include "ops/moe/moe.h"

TensorId op_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, TensorId offset) {
    const Tensor *weight = graph_get(graph, w);
    assert(weight->rank == 3 && weight->type == TYPE_COMPUTE && graph_get(graph, x_slots)->type == TYPE_COMPUTE);
    assert(weight->shape[2] == graph_columns(graph, x_slots) && weight->shape[0] + 1 == graph_elements(graph, offset));
    int64_t shape[] = {graph_rows(graph, x_slots), weight->shape[1]};
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "y_slots");
    graph_node(graph, OP_grouped_linear, (TensorId[]){x_slots, w, offset}, 3, &y, 1, NULL, 0);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    TensorId x = node->in[0], w = node->in[1], offset = node->in[2], d_w = graph_parameter_gradient(graph, w);
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, x)->shape, "d_x_slots");
    graph_node(graph, OP_grouped_linear_grad_input, (TensorId[]){d_out[0], w, offset}, 3, &d_in[0], 1, NULL, 0);
    if (d_w) graph_node(graph, OP_grouped_linear_grad_weight, (TensorId[]){d_out[0], x, offset}, 3, &d_w, 1, NULL, 0);
}

static int64_t experts_of(const Graph *graph, const Node *node) { return graph_elements(graph, node->in[2]) - 1; }

/* Every slot is counted, as if no row skipped its experts, and meets one matrix of in * out weights. */
static Cost cost(const Graph *graph, const Node *node) {
    TensorId w = node->op == OP_grouped_linear_grad_weight ? node->out[0] : node->in[1];
    double weights = (double)graph_elements(graph, w) / experts_of(graph, node);
    return (Cost){.flops = 2 * graph_rows(graph, node->in[0]) * weights, .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_grouped_linear = {.name = "grouped_linear", .gradient = gradient, .cost = cost};
const Op op_rule_grouped_linear_grad_input = {.name = "grouped_linear_grad_input", .cost = cost};
const Op op_rule_grouped_linear_grad_weight = {.name = "grouped_linear_grad_weight", .adds_to = 1, .overwrites = OPERAND(0), .cost = cost};
