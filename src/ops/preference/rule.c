/* Preference losses. An answer y of n tokens to a prompt has the log-probability s = sum of log
 * p(token), and s' in the reference model, the weights that training began with. Its reward is
 *     r = beta (s - s')                      (arXiv 2305.18290, section 4)
 * A pair in which answer c was preferred over r has the margin m and the loss
 *     dpo: m = r_c - r_r              -(1 - smoothing) log sigmoid(m) - smoothing log sigmoid(-m)    (equation 7; smoothing: cDPO)
 *     ipo: m = r_c / n_c - r_r / n_r  (m / beta - 1 / (2 beta))^2      (arXiv 2310.12036, equation 17, over means as in TRL)
 *
 * The gradient with respect to the loss of one token, -log p, is dloss/dm times -beta for the
 * chosen answer and beta for the rejected one, divided by n for ipo. It is a weight per row that
 * depends on all rows of the pair. So the head computes the losses of tokens, this operation
 * computes the loss of pairs and the weights from them, and the head computes the gradients in a
 * second pass over its logits. */
#include "ops/preference/preference.h"

#include "ops/loss/loss.h"

TensorId op_preference(Graph *graph, TensorId x, TensorId w, const PreferenceInputs *inputs, const PreferenceConfig *config, TensorId loss,
    TensorId rewards, int64_t vocabulary) {
    int64_t rows = graph_rows(graph, x), pairs = preference_most_pairs(rows);
    assert(graph_elements(graph, inputs->pairs) == pairs * PAIR_BOUNDS && graph_elements(graph, inputs->reference) == 2 * pairs);
    assert(graph_elements(graph, rewards) == REWARD_COUNT && config->loss != PREFERENCE_NONE);
    TensorId answers = graph_activation(graph, TYPE_WIDE, pairs, 2, "answers");
    Inputs in = {[PREFERENCE_LOSSES] = op_token_losses(graph, x, w, inputs->targets, vocabulary),
        [PREFERENCE_TARGETS] = inputs->targets,
        [PREFERENCE_PAIRS] = inputs->pairs,
        [PREFERENCE_REFERENCE] = inputs->reference,
        [PREFERENCE_SCALE] = inputs->scale};
    Outputs out = {[PREFERENCE_LOSS] = loss, [PREFERENCE_REWARDS] = rewards, [PREFERENCE_ANSWERS] = answers};
    if (graph->training) out[PREFERENCE_WEIGHTS] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &rows, "token_weights");
    graph_node(graph, OP_preference, in, out, config, sizeof *config);
    graph->tensors[answers].keep = true;
    if (graph->training) op_token_losses_gradient(graph, x, w, inputs->targets, out[PREFERENCE_WEIGHTS], vocabulary);
    return answers;
}

/* Counts two flops per row: its sum, and its weight. */
static double preference_flops(const Graph *graph, const Node *node) { return 2.0 * graph_elements(graph, node->in[PREFERENCE_LOSSES]); }

const Op op_rule_preference = {
    .name = "preference", .adds_to = OPERAND(PREFERENCE_LOSS) | OPERAND(PREFERENCE_REWARDS), .flops = preference_flops};
