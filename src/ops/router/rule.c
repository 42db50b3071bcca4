/* The router of a mixture of E experts, with one more class if rows may skip them:
 *     p = softmax(logits) [R, classes],    index = the k classes of highest p + bias,    gate = their p, divided by
 *       the row's sum if `renormalise`, times the scale.
 * With `sigmoid`, p = sigmoid(logits) and a row's sum has 1e-20 added. With groups of experts, a row
 * chooses in the groups of highest score only, which is the highest p + bias of a group (DeepSeek-V2,
 * arXiv 2405.04434), or with `sigmoid` the sum of the two highest (DeepSeek-V3, arXiv 2412.19437).
 * There are two ways to balance the experts. The load-balancing bias only affects the choice. Its
 * "gradient", which AdamW follows, is the load error of each expert, count_e / (R k) - 1 / E over
 * all rows of the step (arXiv 2408.15664). The router adds E count_e - R k, an integer, so that
 * microbatches and ranks sum to the same error in any order, and an error of zero is exactly zero:
 * AdamW divides by sqrt(v), so any rounding error would become a full step. Sums in fp32 are exact
 * up to 2^24 times the largest power of two that divides both E and R k. The optimizer divides by E
 * and all choices of the step (optimizer_set_load_unit). A microbatch without a share adds nothing.
 *
 * The load-balancing loss is a separate operation, balance_loss, over the loads of one router or
 * the summed loads of several: Switch's loss (arXiv 2101.03961, equation 4) for k choices per
 * token,
 *     loss += share * weight * E * sum over e of f_e P_e / k
 * Here f_e is the choices of expert e per token, a constant in the gradient, and P_e is the mean of
 * its probability over N tokens. For one router N = R; Mixtral's loss in transformers
 * (load_balancing_loss_func) sums the loads of all layers, N = layers * R. Each microbatch has its
 * own loss, which ignores choices of other microbatches, and `share` gives the mean. Ranks that
 * divide the rows of one microbatch sum their loads first, and each adds its share of the loss. */
#include "ops/collective/collective.h"
#include "ops/router/router.h"

Routing op_router(Graph *graph, TensorId logits, TensorId bias, TensorId share, TensorId loss, const RouterSpec *spec) {
    int64_t rows = graph_rows(graph, logits), classes = spec->experts + spec->skip;
    assert(graph_get(graph, logits)->type == TYPE_WIDE && graph_columns(graph, logits) == classes);
    assert(classes <= ROUTER_MAX_CLASSES && spec->k >= 1 && spec->k <= classes && rows * spec->k <= INT32_MAX);
    assert(!spec->sigmoid || (spec->auxiliary == 0 && !spec->loads));
    assert(spec->groups <= 1 ||
           (!spec->skip && spec->experts % spec->groups == 0 && spec->groups_chosen <= spec->groups && spec->groups <= ROUTER_MAX_GROUPS));
    assert(spec->groups <= 1 || spec->k <= spec->experts / spec->groups * spec->groups_chosen);
    assert(bias == TENSOR_NONE || graph_elements(graph, bias) == classes);
    bool balanced = graph->training && graph_is_parameter(graph, bias);
    bool auxiliary = graph->training && spec->auxiliary > 0, loads = auxiliary || (graph->training && spec->loads);
    Routing routing = {.index = graph_activation(graph, TYPE_INT32, rows, spec->k, "index"),
        .gate = graph_activation(graph, TYPE_WIDE, rows, spec->k, "gate")};
    TensorId probabilities = graph_activation(graph, TYPE_WIDE, rows, classes, "probabilities");
    TensorId count = TENSOR_NONE;
    if (graph->training) count = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &classes, "count");
    if (loads) routing.loads = graph_activation(graph, TYPE_WIDE, 2, classes, "loads");
    Inputs in = {[ROUTER_LOGITS] = logits, [ROUTER_BIAS] = bias, [ROUTER_SHARE] = share};
    Outputs out = {
        [ROUTER_INDEX] = routing.index,
        [ROUTER_GATE] = routing.gate,
        [ROUTER_PROBABILITIES] = probabilities,
        [ROUTER_COUNT] = count,
        [ROUTER_D_BIAS] = balanced ? graph_parameter_gradient(graph, bias) : TENSOR_NONE,
        [ROUTER_LOADS] = routing.loads,
    };
    graph_node(graph, OP_router, in, out, spec, sizeof *spec);
    BalanceLossSpec balance = {.experts = spec->experts, .k = spec->k, .tokens = rows, .weight = spec->auxiliary};
    if (auxiliary) op_balance_loss(graph, routing.loads, share, loss, &balance);
    return routing;
}

static void router_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const RouterSpec *spec = node->attributes;
    TensorId logits = node->in[ROUTER_LOGITS], d_gate = d_out[ROUTER_GATE], d_loads = d_out[ROUTER_LOADS];
    if (d_gate == TENSOR_NONE && d_loads == TENSOR_NONE) return;
    TensorId d_logits = d_in[ROUTER_LOGITS] = graph_activation_like(graph, TYPE_WIDE, logits, "d_logits");
    Inputs in = {
        [ROUTER_GRAD_D_GATE] = d_gate,
        [ROUTER_GRAD_PROBABILITIES] = node->out[ROUTER_PROBABILITIES],
        [ROUTER_GRAD_INDEX] = node->out[ROUTER_INDEX],
        [ROUTER_GRAD_D_LOADS] = d_loads,
    };
    Outputs out = {[ROUTER_GRAD_D_LOGITS] = d_logits};
    graph_node(graph, OP_router_grad, in, out, spec, sizeof *spec);
}

/* Counts maximum, subtraction, exponential (about ten), sum, scale, and one comparison per
 * choice. */
static double router_flops(const Graph *graph, const Node *node) {
    const RouterSpec *spec = node->attributes;
    return (14.0 + spec->k) * graph_elements(graph, node->in[ROUTER_LOGITS]);
}

const Op op_rule_router = {.name = "router", .adds_to = OPERAND(ROUTER_D_BIAS), .gradient = router_gradient, .flops = router_flops};
const Op op_rule_router_grad = {.name = "router_grad", .element_flops = 4};

/* -- The load-balancing loss --------------------------------------------------------------------------------------- */

void op_balance_loss(Graph *graph, TensorId loads, TensorId share, TensorId loss, const BalanceLossSpec *spec) {
    BalanceLossSpec whole = *spec;
    assert(graph->training && graph_get(graph, loads)->type == TYPE_WIDE && graph_rows(graph, loads) == 2);
    assert(graph_columns(graph, loads) >= spec->experts && graph_elements(graph, loss) >= 2 && spec->tokens > 0 && spec->k > 0);
    whole.tokens *= mesh_size(graph->mesh, AXES_ROWS);
    Inputs in = {[BALANCE_LOSS_LOADS] = op_all_reduce(graph, loads, AXES_ROWS), [BALANCE_LOSS_SHARE] = share};
    graph_node(graph, OP_balance_loss, in, (Outputs){[BALANCE_LOSS_LOSS] = loss}, &whole, sizeof whole);
}

static void balance_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)d_out;
    TensorId loads = node->in[BALANCE_LOSS_LOADS];
    d_in[BALANCE_LOSS_LOADS] = graph_activation_like(graph, TYPE_WIDE, loads, "d_loads");
    Inputs in = {[BALANCE_LOSS_GRAD_LOADS] = loads, [BALANCE_LOSS_GRAD_SHARE] = node->in[BALANCE_LOSS_SHARE]};
    Outputs out = {[BALANCE_LOSS_GRAD_D_LOADS] = d_in[BALANCE_LOSS_LOADS]};
    graph_node(graph, OP_balance_loss_grad, in, out, node->attributes, 0);
}

const Op op_rule_balance_loss = {.name = "balance_loss", .adds_to = OPERAND(BALANCE_LOSS_LOSS), .loss = true, .gradient = balance_gradient};
const Op op_rule_balance_loss_grad = {.name = "balance_loss_grad"};
