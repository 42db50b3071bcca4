/* The router of a mixture of experts of E experts, and one class more where rows may skip them:
 *     p = softmax(logits) [R, classes],    index = the k classes of highest p + bias,    gate = their p, divided by
 *       the row's sum where `renormalise`.
 * Two ways to balance the experts. The load-balancing bias only steers the choice, and its "gradient", which AdamW
 * follows, is the excess load of each expert: share * (count_e / (R k) - 1 / E) (arXiv 2408.15664). The auxiliary
 * loss is Switch's (arXiv 2101.03961, equation 4): share * auxiliary * E * sum over e of f_e P_e / k, with f_e =
 * count_e / R, constant in its gradient, and P_e the mean of p_e over rows. */
#include "ops/router/router.h"

Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec) {
    int64_t rows = graph_rows(graph, logits), classes = spec->experts + spec->skip;
    assert(graph_get(graph, logits)->type == TYPE_WIDE && graph_columns(graph, logits) == classes);
    assert(classes <= ROUTER_MAX_CLASSES && spec->k >= 1 && spec->k <= classes && rows * spec->k <= INT32_MAX);
    assert(bias == TENSOR_NONE || graph_elements(graph, bias) == classes);
    bool balanced = graph->training && graph_is_parameter(graph, bias);
    bool auxiliary = graph->training && spec->auxiliary > 0;
    assert(!auxiliary || graph_elements(graph, loss) >= 2);
    Routing routing = {.index = graph_activation(graph, TYPE_INT32, rows, spec->k, "index"),
        .gate = graph_activation(graph, TYPE_WIDE, rows, spec->k, "gate")};
    TensorId probabilities = graph_activation(graph, TYPE_WIDE, rows, classes, "probabilities");
    TensorId count = TENSOR_NONE;
    if (graph->training) count = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &classes, "count");
    Inputs in = {[ROUTER_LOGITS] = logits, [ROUTER_BIAS] = bias, [ROUTER_SHARE] = share};
    Outputs out = {
        [ROUTER_INDEX] = routing.index,
        [ROUTER_GATE] = routing.gate,
        [ROUTER_PROBABILITIES] = probabilities,
        [ROUTER_COUNT] = count,
        [ROUTER_D_BIAS] = balanced ? graph_parameter_gradient(graph, bias) : TENSOR_NONE,
        [ROUTER_LOSS] = auxiliary ? loss : TENSOR_NONE,
    };
    graph_node(graph, OP_router, in, out, spec, sizeof *spec);
    return routing;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const RouterSpec *spec = node->attributes;
    TensorId logits = node->in[ROUTER_LOGITS], d_gate = d_out[ROUTER_GATE];
    if (d_gate == TENSOR_NONE && node->out[ROUTER_LOSS] == TENSOR_NONE) return;
    TensorId d_logits = d_in[ROUTER_LOGITS] = graph_activation_like(graph, TYPE_WIDE, logits, "d_logits");
    Inputs in = {
        [ROUTER_GRAD_D_GATE] = d_gate,
        [ROUTER_GRAD_PROBABILITIES] = node->out[ROUTER_PROBABILITIES],
        [ROUTER_GRAD_INDEX] = node->out[ROUTER_INDEX],
        [ROUTER_GRAD_COUNT] = node->out[ROUTER_COUNT],
        [ROUTER_GRAD_SHARE] = node->in[ROUTER_SHARE],
    };
    Outputs out = {[ROUTER_GRAD_D_LOGITS] = d_logits};
    graph_node(graph, OP_router_grad, in, out, spec, sizeof *spec);
}

/* Maximum, subtract, exponential (about ten), sum, scale, and one comparison for each of the k. */
static double flops(const Graph *graph, const Node *node) {
    const RouterSpec *spec = node->attributes;
    return (14.0 + spec->k) * graph_elements(graph, node->in[ROUTER_LOGITS]);
}

const Op op_rule_router = {
    .name = "router", .adds_to = OPERAND(ROUTER_D_BIAS) | OPERAND(ROUTER_LOSS), .loss = true, .gradient = gradient, .flops = flops};
const Op op_rule_router_grad = {.name = "router_grad", .element_flops = 4};
