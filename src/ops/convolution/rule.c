/* convolution: with z the sums before SiLU and s = sigmoid(z),
 *     dz = d_y (s + z s (1 - s)),  d_x[t] = sum over k of weight[K - 1 - k] dz[t + k],  d_weight[K - 1 - k] = sum over t of dz[t] x[t - k],
 * where t and t - k are rows of one document. The backward pass computes z again. */
#include "ops/convolution/convolution.h"

TensorId op_convolution(Graph *graph, TensorId x, TensorId weight, TensorId positions, TensorId history, int64_t sequences) {
    ConvolutionAttributes a = {.rows = graph_rows(graph, x), .columns = graph_columns(graph, x), .taps = graph_columns(graph, weight)};
    bool state = history != TENSOR_NONE && graph_get(graph, history)->arena == ARENA_STATE;
    a.length = a.rows / sequences;
    assert(a.length * sequences == a.rows && graph_elements(graph, positions) == a.rows);
    assert(graph_elements(graph, weight) == a.columns * a.taps && a.taps > 1 && a.taps <= CONVOLUTION_MOST_TAPS);
    assert(!history || graph_elements(graph, history) == sequences * (a.taps - 1) * a.columns);
    assert(!state || sequences == 1);
    TensorId y = graph_activation(graph, TYPE_COMPUTE, a.rows, a.columns, "convolved");
    Inputs in = {[CONVOLUTION_X] = x, [CONVOLUTION_WEIGHT] = weight, [CONVOLUTION_POSITIONS] = positions, [CONVOLUTION_HISTORY] = history};
    Outputs out = {[CONVOLUTION_Y] = y, [CONVOLUTION_STATE] = state ? history : TENSOR_NONE};
    graph_node(graph, OP_convolution, in, out, &a, sizeof a);
    return y;
}

static void convolution_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    assert(!node->in[CONVOLUTION_HISTORY]);
    d_in[CONVOLUTION_X] = graph_activation_like(graph, TYPE_COMPUTE, node->in[CONVOLUTION_X], "d_x");
    Inputs in = {[CONVOLUTION_GRAD_D_Y] = d_out[CONVOLUTION_Y], [CONVOLUTION_GRAD_X] = node->in[CONVOLUTION_X]};
    in[CONVOLUTION_GRAD_WEIGHT] = node->in[CONVOLUTION_WEIGHT], in[CONVOLUTION_GRAD_POSITIONS] = node->in[CONVOLUTION_POSITIONS];
    Outputs out = {[CONVOLUTION_GRAD_D_X] = d_in[CONVOLUTION_X]};
    out[CONVOLUTION_GRAD_D_WEIGHT] = graph_parameter_gradient(graph, node->in[CONVOLUTION_WEIGHT]);
    graph_node(graph, OP_convolution_grad, in, out, node->attributes, 0);
}

static double convolution_flops(const Graph *graph, const Node *node) {
    (void)graph;
    const ConvolutionAttributes *a = node->attributes;
    return (double)a->rows * (double)a->columns * (2.0 * (double)a->taps + 5);
}
static double convolution_grad_flops(const Graph *graph, const Node *node) { return 3 * convolution_flops(graph, node); }

const Op op_rule_convolution = {.name = "convolution",
    .class = OP_CLASS_ATTENTION,
    .adds_to = OPERAND(CONVOLUTION_STATE),
    .gradient = convolution_gradient,
    .flops = convolution_flops,
    .teraflops = 20};
const Op op_rule_convolution_grad = {
    .name = "convolution_grad", .adds_to = OPERAND(CONVOLUTION_GRAD_D_WEIGHT), .flops = convolution_grad_flops, .teraflops = 20};
