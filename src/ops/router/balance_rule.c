/* The load-balancing loss of experts, Switch's (arXiv 2101.03961, equation 4) for k choices a token:
 *     loss += share * weight * E * sum over e of f_e P_e / k
 * with f_e the choices of expert e per token, constant in the gradient, and P_e the mean of its probability, over N
 * tokens. Where loads are those of one router N is its rows; Mixtral's loss in transformers (load_balancing_loss_func)
 * sums the loads of all layers and has N = layers * rows. Each microbatch has its own loss, and `share` makes their
 * mean: the choices of other microbatches and ranks are not seen. */
#include "ops/router/router.h"

void op_balance_loss(Graph *graph, TensorId loads, TensorId share, TensorId loss, const BalanceLossSpec *spec) {
    assert(graph->training && graph_get(graph, loads)->type == TYPE_WIDE && graph_rows(graph, loads) == 2);
    assert(graph_columns(graph, loads) >= spec->experts && graph_elements(graph, loss) >= 2 && spec->tokens > 0 && spec->k > 0);
    Inputs in = {[BALANCE_LOSS_LOADS] = loads, [BALANCE_LOSS_SHARE] = share};
    graph_node(graph, OP_balance_loss, in, (Outputs){[BALANCE_LOSS_LOSS] = loss}, spec, sizeof *spec);
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)d_out;
    TensorId loads = node->in[BALANCE_LOSS_LOADS];
    d_in[BALANCE_LOSS_LOADS] = graph_activation_like(graph, TYPE_WIDE, loads, "d_loads");
    Inputs in = {[BALANCE_LOSS_GRAD_LOADS] = loads, [BALANCE_LOSS_GRAD_SHARE] = node->in[BALANCE_LOSS_SHARE]};
    Outputs out = {[BALANCE_LOSS_GRAD_D_LOADS] = d_in[BALANCE_LOSS_LOADS]};
    graph_node(graph, OP_balance_loss_grad, in, out, node->attributes, 0);
}

const Op op_rule_balance_loss = {.name = "balance_loss", .adds_to = OPERAND(BALANCE_LOSS_LOSS), .loss = true, .gradient = gradient};
const Op op_rule_balance_loss_grad = {.name = "balance_loss_grad"};
