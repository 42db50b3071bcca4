/* A cast of WIDE rows to COMPUTE, and its gradient, the cast back. */
#include "ops/narrow/narrow.h"

static TensorId append_narrow(Graph *graph, TensorId x, const char *name) {
    assert(graph_get(graph, x)->type == TYPE_WIDE);
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, x, name);
    graph_node(graph, OP_narrow, (Inputs){[NARROW_X] = x}, (Outputs){[NARROW_Y] = y}, NULL, 0);
    return y;
}

static TensorId append_widen(Graph *graph, TensorId x, const char *name) {
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    TensorId y = graph_activation_like(graph, TYPE_WIDE, x, name);
    graph_node(graph, OP_widen, (Inputs){[WIDEN_X] = x}, (Outputs){[WIDEN_Y] = y}, NULL, 0);
    return y;
}

TensorId op_narrow(Graph *graph, TensorId x) { return append_narrow(graph, x, "narrow"); }
TensorId op_widen(Graph *graph, TensorId x) { return append_widen(graph, x, "wide"); }

static void narrow_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)node;
    d_in[NARROW_X] = append_widen(graph, d_out[NARROW_Y], "d_narrow");
}

static void widen_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)node;
    d_in[WIDEN_X] = append_narrow(graph, d_out[WIDEN_Y], "d_wide");
}

const Op op_rule_narrow = {.name = "narrow", .gradient = narrow_gradient};
const Op op_rule_widen = {.name = "widen", .class = OP_CLASS_NORM, .gradient = widen_gradient};
