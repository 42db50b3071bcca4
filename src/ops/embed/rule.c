/* Token embedding into the WIDE residual stream, with ZAYA1's learned entry (bias before scale) when given. The backward pass adds up the rows of each token
 * before they meet its entry, once, for one block of columns at a time: threads share out columns, so sums need no atomics and keep their order. */
#include "ops/embed/embed.h"

TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale) {
    assert((bias == TENSOR_NONE) == (scale == TENSOR_NONE));
    int64_t shape[] = {graph_elements(graph, tokens), graph_columns(graph, table)};
    TensorId stream = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "embedded");
    graph_node(graph, OP_embed, (TensorId[]){tokens, table, bias, scale}, 4, &stream, 1, NULL, 0);
    return stream;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)d_in;
    TensorId tokens = node->in[0], table = node->in[1], bias = node->in[2], scale = node->in[3];
    TensorId out[] = {
        graph_parameter_gradient(graph, table), graph_parameter_gradient(graph, bias), graph_parameter_gradient(graph, scale)};
    assert(out[0] || (!out[1] && !out[2]));
    if (out[0]) graph_node(graph, OP_embed_grad, (TensorId[]){d_out[0], tokens, table, bias, scale}, 5, out, 3, NULL, 0);
}

/* Only the rows that occur are touched, not the table. */
static double row_bytes(const Graph *graph, TensorId rows, TensorId table, TypeClass type) {
    return (double)graph_elements(graph, rows) * graph_columns(graph, table) * precision_bytes(graph->precision, type);
}

static Cost cost(const Graph *graph, const Node *node) {
    TensorId tokens = node->in[0], table = node->in[1];
    return (Cost){.flops = 2.0 * graph_elements(graph, node->out[0]),
        .bytes = row_bytes(graph, tokens, table, TYPE_COMPUTE) + row_bytes(graph, tokens, table, TYPE_WIDE)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    TensorId tokens = node->in[1], table = node->in[2];
    return (Cost){.flops = 5.0 * graph_elements(graph, node->in[0]),
        .bytes = row_bytes(graph, tokens, table, TYPE_COMPUTE) + 3 * row_bytes(graph, tokens, table, TYPE_WIDE)};
}

const Op op_rule_embed = {.name = "embed", .gradient = gradient, .cost = cost};

const Op op_rule_embed_grad = {.name = "embed_grad", .adds_to = 7, .cost = grad_cost};
