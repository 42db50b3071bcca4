/* A cast of WIDE rows to COMPUTE, and its gradient, the cast back. */
#include "ops/narrow/narrow.h"

TensorId op_narrow(Graph *graph, TensorId x) {
    assert(graph_get(graph, x)->type == TYPE_WIDE);
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, x, "narrow");
    graph_node(graph, OP_narrow, (Inputs){[NARROW_X] = x}, (Outputs){[NARROW_Y] = y}, NULL, 0);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId d_x = d_in[NARROW_X] = graph_activation_like(graph, TYPE_WIDE, node->in[NARROW_X], "d_narrow");
    graph_node(graph, OP_widen, (Inputs){[WIDEN_X] = d_out[NARROW_Y]}, (Outputs){[WIDEN_Y] = d_x}, NULL, 0);
}

const Op op_rule_narrow = {.name = "narrow", .gradient = gradient};
const Op op_rule_widen = {.name = "widen"};
