/* The LM head and cross-entropy, fused and chunked over rows: a chunk's logits are made, turned into their gradient in place of being kept, and used for both
 * products of the backward pass at once. All logits never exist together (262,272 columns would be gigabytes), and nothing is computed
 * twice: four products where head + loss + recomputation take five. The loss is where differentiation starts, so its own gradient is the
 * scale, known on the way forward. Also the last row of a matrix, which is what generation feeds to the head. */
#include "ops/loss/loss.h"

void op_linear_cross_entropy(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss) {
    int64_t shape[] = {graph_rows(graph, x), graph_columns(graph, x)};
    assert(graph_columns(graph, w) == shape[1] && graph_elements(graph, targets) == shape[0]);
    TensorId out[] = {loss, TENSOR_NONE, TENSOR_NONE};
    if (graph->training) {
        out[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_x");
        out[2] = graph_parameter_gradient(graph, w);
    }
    graph_node(graph, OP_linear_cross_entropy, (TensorId[]){x, w, targets, scale}, 4, out, 3, NULL, 0);
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)d_out;
    d_in[0] = node->out[1];
}

static Cost cost(const Graph *graph, const Node *node) {
    double rows = graph_rows(graph, node->in[0]), columns = graph_columns(graph, node->in[0]), vocabulary = graph_rows(graph, node->in[1]);
    double products = 1 + (node->out[1] != TENSOR_NONE) + (node->out[2] != TENSOR_NONE);
    return (Cost){.flops = products * 2 * rows * columns * vocabulary, .bytes = op_tensor_bytes(graph, node)};
}

TensorId op_last_row(Graph *graph, TensorId x) {
    int64_t shape[] = {1, graph_columns(graph, x)};
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    TensorId row = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "last_row");
    graph_node(graph, OP_last_row, &x, 1, &row, 1, NULL, 0);
    return row;
}

const Op op_rule_linear_cross_entropy = {
    .name = "linear_cross_entropy", .adds_to = 5, .overwrites = OPERAND(2), .loss = true, .gradient = gradient, .cost = cost};
const Op op_rule_last_row = {.name = "last_row"};
