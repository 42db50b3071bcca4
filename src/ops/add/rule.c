/* The two sums that stand alone: a + b, where a tensor has several readers and their gradients meet, and x + previous * scale over WIDE rows, by which
 * a ZAYA1 router averages its states over depth (exponential depth averaging, arXiv 2605.05365 eq. 2; one factor per channel as in the code). */
#include "ops/add/add.h"

TensorId op_add(Graph *graph, TensorId a, TensorId b) {
    Tensor like = *graph_get(graph, a);
    assert(like.type == graph_get(graph, b)->type && graph_elements(graph, a) == graph_elements(graph, b));
    AddAttributes attributes = {.wide = like.type == TYPE_WIDE};
    TensorId sum = graph_tensor(graph, ARENA_ACTIVATION, like.type, like.rank, like.shape, "sum");
    graph_node(graph, OP_add, (TensorId[]){a, b}, 2, &sum, 1, &attributes, sizeof attributes);
    return sum;
}

static void add_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)node;
    d_in[0] = d_in[1] = d_out[0];
}

TensorId op_scale_add(Graph *graph, TensorId x, TensorId previous, TensorId scale) {
    int64_t shape[] = {graph_rows(graph, x), graph_columns(graph, x)};
    assert(graph_elements(graph, previous) == shape[0] * shape[1] && graph_elements(graph, scale) == shape[1]);
    TensorId sum = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "scale_add");
    graph_node(graph, OP_scale_add, (TensorId[]){x, previous, scale}, 3, &sum, 1, NULL, 0);
    return sum;
}

static void scale_add_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId previous = node->in[1], scale = node->in[2];
    int64_t shape[] = {graph_rows(graph, previous), graph_columns(graph, previous)};
    d_in[0] = d_out[0];
    d_in[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "d_previous");
    graph_node(graph, OP_scale_add_grad, (TensorId[]){d_out[0], previous, scale}, 3,
        (TensorId[]){d_in[1], graph_parameter_gradient(graph, scale)}, 2, NULL, 0);
}

static Cost cost(const Graph *graph, const Node *node) {
    double per_element = node->op == OP_add ? 1 : node->op == OP_scale_add ? 2 : 3;
    return (Cost){.flops = per_element * graph_elements(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_add = {.name = "add", .in_place = OPERAND(0), .gradient = add_gradient, .cost = cost};

const Op op_rule_scale_add = {.name = "scale_add", .in_place = OPERAND(0), .gradient = scale_add_gradient, .cost = cost};

const Op op_rule_scale_add_grad = {.name = "scale_add_grad", .adds_to = 2, .cost = cost};
