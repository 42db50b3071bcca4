/* Elementwise functions over COMPUTE rows: the activation functions of config/activation_list.h,
 * plain and gated (the gate half first, then the up half); MPT's clamp of queries, keys and values,
 * with a zero gradient for clamped elements; the scale of adapters; and GELU that writes its result
 * beside other columns. They are cheap to compute and large to keep, so the recompute policies
 * treat them like norms. */
#include "ops/activation/activation.h"

static TensorId append_activation(Graph *graph, int op, TensorId x, int64_t columns, const char *name, ActivationAttributes attributes) {
    TensorId y = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, x), columns, name);
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    graph_node(graph, op, (Inputs){[ACTIVATION_X] = x}, (Outputs){[ACTIVATION_Y] = y}, &attributes, sizeof attributes);
    return y;
}

TensorId op_activation(Graph *graph, TensorId x, Activation function) {
    return op_activation_with(graph, x, function, (ActivationTerms){0});
}

TensorId op_activation_with(Graph *graph, TensorId x, Activation function, ActivationTerms terms) {
    const ActivationRule *rule = &activation_rules[function];
    int64_t columns = graph_columns(graph, x);
    assert(function != ACTIVATION_AUTO && (!rule->gated || columns % 2 == 0));
    return append_activation(graph, rule->gated ? OP_gated_activation : OP_activation, x, rule->gated ? columns / 2 : columns, rule->name,
        (ActivationAttributes){.function = function, .terms = terms});
}

TensorId op_clamp(Graph *graph, TensorId x, double limit) {
    assert(limit > 0);
    return append_activation(graph, OP_clamp, x, graph_columns(graph, x), "clamped", (ActivationAttributes){.parameter = limit});
}

TensorId op_scale(Graph *graph, TensorId x, double factor) {
    return append_activation(graph, OP_scale, x, graph_columns(graph, x), "scaled", (ActivationAttributes){.parameter = factor});
}

TensorId op_join_gelu(Graph *graph, TensorId a, TensorId x) {
    int64_t rows = graph_rows(graph, x), columns = graph_columns(graph, a) + graph_columns(graph, x);
    assert(graph_get(graph, a)->type == TYPE_COMPUTE && graph_get(graph, x)->type == TYPE_COMPUTE && graph_rows(graph, a) == rows);
    TensorId whole = graph_activation(graph, TYPE_COMPUTE, rows, columns, "joined");
    graph_node(graph, OP_join_gelu, (Inputs){[JOIN_GELU_A] = a, [JOIN_GELU_X] = x}, (Outputs){[JOIN_GELU_WHOLE] = whole}, NULL, 0);
    return whole;
}

static void join_gelu_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[JOIN_GELU_X];
    d_in[JOIN_GELU_A] = graph_activation_like(graph, TYPE_COMPUTE, node->in[JOIN_GELU_A], "d_a");
    d_in[JOIN_GELU_X] = graph_activation_like(graph, TYPE_COMPUTE, x, "d_x");
    graph_node(graph, OP_join_gelu_grad, (Inputs){[JOIN_GELU_GRAD_D_WHOLE] = d_out[JOIN_GELU_WHOLE], [JOIN_GELU_GRAD_X] = x},
        (Outputs){[JOIN_GELU_GRAD_D_A] = d_in[JOIN_GELU_A], [JOIN_GELU_GRAD_D_X] = d_in[JOIN_GELU_X]}, NULL, 0);
}

static void activation_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    int op = node->op == OP_clamp ? OP_clamp_grad : node->op == OP_activation ? OP_activation_grad : OP_gated_activation_grad;
    TensorId x = node->in[ACTIVATION_X];
    TensorId d_x = d_in[ACTIVATION_X] = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, x), graph_columns(graph, x), "d_x");
    graph_node(graph, op, (Inputs){[ACTIVATION_GRAD_D_Y] = d_out[ACTIVATION_Y], [ACTIVATION_GRAD_X] = x},
        (Outputs){[ACTIVATION_GRAD_D_X] = d_x}, node->attributes, 0);
}

static void scale_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const ActivationAttributes *attributes = node->attributes;
    d_in[ACTIVATION_X] = op_scale(graph, d_out[ACTIVATION_Y], attributes->parameter);
}

/* An exponential, a division or an error function counts as ten operations. */
enum { SMOOTH_FLOPS = 25, CLAMP_FLOPS = 2 };

/* The amax of y in the forward pass, and of d_x in gradients. */
#define FINDS_AMAX .measured = OPERAND(ACTIVATION_Y), .amax = OPERAND(ACTIVATION_AMAX)

const Op op_rule_activation = {.name = "activation",
    .class = OP_CLASS_NORM,
    FINDS_AMAX,
    .in_place = OPERAND(ACTIVATION_X),
    .gradient = activation_gradient,
    .element_flops = SMOOTH_FLOPS};
const Op op_rule_activation_grad = {
    .name = "activation_grad", FINDS_AMAX, .in_place = OPERAND(ACTIVATION_GRAD_D_Y), .element_flops = SMOOTH_FLOPS};
const Op op_rule_gated_activation = {
    .name = "gated_activation", .class = OP_CLASS_NORM, FINDS_AMAX, .gradient = activation_gradient, .element_flops = SMOOTH_FLOPS};
const Op op_rule_gated_activation_grad = {
    .name = "gated_activation_grad", FINDS_AMAX, .in_place = OPERAND(ACTIVATION_GRAD_X), .element_flops = SMOOTH_FLOPS};
const Op op_rule_join_gelu = {.name = "join_gelu", .class = OP_CLASS_NORM, .gradient = join_gelu_gradient, .element_flops = SMOOTH_FLOPS};
const Op op_rule_join_gelu_grad = {.name = "join_gelu_grad", .element_flops = SMOOTH_FLOPS};
const Op op_rule_clamp = {.name = "clamp",
    .class = OP_CLASS_NORM,
    .in_place = OPERAND(ACTIVATION_X),
    .gradient = activation_gradient,
    .element_flops = CLAMP_FLOPS};
const Op op_rule_clamp_grad = {.name = "clamp_grad", .in_place = OPERAND(ACTIVATION_GRAD_D_Y), .element_flops = CLAMP_FLOPS};
const Op op_rule_scale = {.name = "scale", .in_place = OPERAND(ACTIVATION_X), .gradient = scale_gradient};
