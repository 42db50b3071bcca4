/* Activation functions over COMPUTE rows: GELU (arXiv 1606.08415), exact or by its tanh approximation, SwiGLU (arXiv 2002.05202; the gate half first,
 * then the up half), the clamp that MPT puts on queries, keys and values, and the scale
 * of adapters. Threads share out whole rows: were they to cut a row, an element could
 * move between the vector and the scalar form of a loop, whose bits differ. For the same reason loops are marked as free of dependencies between elements,
 * not left to be found so at run time: the output may lie in an input's memory. Cheap to compute and dear to keep, so the recompute policies count
 * them with the norms. */
#include "ops/activation/activation.h"

static TensorId append(Graph *graph, int op, TensorId x, int64_t columns, const char *name, const void *attributes, size_t bytes) {
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){graph_rows(graph, x), columns}, name);
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    graph_node(graph, op, &x, 1, &y, 1, attributes, bytes);
    return y;
}

TensorId op_gelu(Graph *graph, TensorId x, GeluKind kind) {
    return append(graph, OP_gelu, x, graph_columns(graph, x), "gelu", &(GeluAttributes){kind}, sizeof(GeluAttributes));
}

TensorId op_swiglu(Graph *graph, TensorId x) {
    assert(graph_columns(graph, x) % 2 == 0);
    return append(graph, OP_swiglu, x, graph_columns(graph, x) / 2, "swiglu", NULL, 0);
}

TensorId op_clamp(Graph *graph, TensorId x, double limit) {
    assert(limit > 0);
    return append(graph, OP_clamp, x, graph_columns(graph, x), "clamped", &(ClampAttributes){limit}, sizeof(ClampAttributes));
}

TensorId op_scale(Graph *graph, TensorId x, double factor) {
    return append(graph, OP_scale, x, graph_columns(graph, x), "scaled", &(ScaleAttributes){factor}, sizeof(ScaleAttributes));
}

static void append_gradient(Graph *graph, int op, const Node *node, TensorId d_y, TensorId *d_x, size_t attribute_bytes) {
    int64_t shape[] = {graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0])};
    *d_x = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_x");
    graph_node(graph, op, (TensorId[]){d_y, node->in[0]}, 2, d_x, 1, node->attributes, attribute_bytes);
}

static void gelu_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    append_gradient(graph, OP_gelu_grad, node, d_out[0], d_in, sizeof(GeluAttributes));
}

static void swiglu_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    append_gradient(graph, OP_swiglu_grad, node, d_out[0], d_in, 0);
}

static void clamp_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    append_gradient(graph, OP_clamp_grad, node, d_out[0], d_in, sizeof(ClampAttributes));
}

static void scale_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const ScaleAttributes *attributes = node->attributes;
    d_in[0] = op_scale(graph, d_out[0], attributes->factor);
}

/* Counting an exponential, a division or an error function as ten operations. */
static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 25.0 * graph_elements(graph, node->out[0]), .bytes = op_tensor_bytes(graph, node)};
}

static Cost clamp_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 2.0 * graph_elements(graph, node->out[0]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_gelu = {.name = "gelu", .class = OP_CLASS_NORM, .in_place = OPERAND(0), .gradient = gelu_gradient, .cost = cost};

const Op op_rule_gelu_grad = {.name = "gelu_grad", .in_place = OPERAND(0), .cost = cost};

const Op op_rule_swiglu = {.name = "swiglu", .class = OP_CLASS_NORM, .gradient = swiglu_gradient, .cost = cost};

const Op op_rule_swiglu_grad = {.name = "swiglu_grad", .in_place = OPERAND(1), .cost = cost};

const Op op_rule_clamp = {.name = "clamp", .class = OP_CLASS_NORM, .in_place = OPERAND(0), .gradient = clamp_gradient, .cost = clamp_cost};

const Op op_rule_clamp_grad = {.name = "clamp_grad", .in_place = OPERAND(0), .cost = clamp_cost};

const Op op_rule_scale = {.name = "scale", .in_place = OPERAND(0), .gradient = scale_gradient};
