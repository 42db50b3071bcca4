/* The mean squared error of a prediction, with a weight for each row:
 *     loss += scale * sum over rows of weight * mean over columns of (x - target)^2
 *     d_x = scale * weight * 2 / C * (x - target)
 * Differentiation starts at the loss, so d_x is computed in the same pass. */
#include "ops/loss/loss.h"

void op_squared_error(Graph *graph, TensorId x, TensorId target, TensorId weights, TensorId scale, TensorId loss) {
    assert(graph_get(graph, x)->type == TYPE_WIDE && graph_elements(graph, x) == graph_elements(graph, target));
    assert(graph_elements(graph, weights) == graph_rows(graph, x));
    Inputs in = {[SQUARED_X] = x, [SQUARED_TARGET] = target, [SQUARED_WEIGHTS] = weights, [SQUARED_SCALE] = scale};
    Outputs out = {[SQUARED_LOSS] = loss};
    if (graph->training) out[SQUARED_D_X] = graph_activation_like(graph, TYPE_WIDE, x, "d_x");
    graph_node(graph, OP_squared_error, in, out, NULL, 0);
}

static void squared_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)d_out;
    d_in[SQUARED_X] = node->out[SQUARED_D_X];
}

/* Counts per element a difference, its square and the sum; the gradient is one more product. */
static double squared_flops(const Graph *graph, const Node *node) { return 4.0 * graph_elements(graph, node->in[SQUARED_X]); }

const Op op_rule_squared_error = {
    .name = "squared_error", .adds_to = OPERAND(SQUARED_LOSS), .loss = true, .gradient = squared_gradient, .flops = squared_flops};
