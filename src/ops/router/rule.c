/* The router of a mixture of experts: softmax over the expert classes, the choice of the top k by biased probability,
 * and what balances the experts. The bias only steers the choice (as in arXiv 2408.15664): the gate is the unbiased
 * probability, and the bias's "gradient" is the excess load of each expert, which a controller feeds to AdamW. The
 * auxiliary loss is Switch's (arXiv 2101.03961, equation 4), with f constant in its gradient.
 *
 * A row has few classes, so the forward pass works on one vector of rows at a time, class by class, on stack buffers.
 * Loads are integers counted per block of rows; sums of probabilities are added in block order. */
#include "ops/router/router.h"

Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec) {
    int64_t rows = graph_rows(graph, logits), classes = spec->experts + spec->skip;
    assert(graph_get(graph, logits)->type == TYPE_WIDE && graph_columns(graph, logits) == classes);
    assert(classes <= ROUTER_MAX_CLASSES && spec->k >= 1 && spec->k <= classes && rows * spec->k <= INT32_MAX);
    assert(bias == TENSOR_NONE || graph_elements(graph, bias) == classes);
    bool balanced = graph->training && graph_is_parameter(graph, bias);
    bool auxiliary = graph->training && spec->auxiliary > 0;
    assert(!auxiliary || graph_elements(graph, loss) >= 2);
    int64_t chosen[] = {rows, spec->k}, all[] = {rows, classes};
    Routing routing = {.index = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 2, chosen, "index"),
        .gate = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, chosen, "gate")};
    TensorId probabilities = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, all, "probabilities");
    TensorId count = TENSOR_NONE;
    if (graph->training) count = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &classes, "count");
    TensorId bias_gradient = balanced ? graph_parameter_gradient(graph, bias) : TENSOR_NONE;
    TensorId out[] = {routing.index, routing.gate, probabilities, count, bias_gradient, auxiliary ? loss : TENSOR_NONE};
    graph_node(graph, OP_router, (TensorId[]){logits, bias, share}, 3, out, 6, spec, sizeof *spec);
    return routing;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const RouterSpec *spec = node->attributes;
    TensorId logits = node->in[0], d_gate = d_out[1];
    if (d_gate == TENSOR_NONE && node->out[5] == TENSOR_NONE) return;
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, graph_get(graph, logits)->shape, "d_logits");
    TensorId in[] = {d_gate, node->out[2], node->out[0], node->out[3], node->in[2]};
    graph_node(graph, OP_router_grad, in, 5, &d_in[0], 1, spec, sizeof *spec);
}

/* Maximum, subtract, exponential (about ten), sum, scale, and one comparison for each of the k. */
static Cost cost(const Graph *graph, const Node *node) {
    const RouterSpec *spec = node->attributes;
    double logits = graph_elements(graph, node->in[0]);
    return (Cost){.flops = (14.0 + spec->k) * logits, .bytes = op_tensor_bytes(graph, node)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 4.0 * graph_elements(graph, node->out[0]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_router = {.name = "router", .adds_to = 1 << 4 | 1 << 5, .loss = true, .gradient = gradient, .cost = cost};
const Op op_rule_router_grad = {.name = "router_grad", .cost = grad_cost};
