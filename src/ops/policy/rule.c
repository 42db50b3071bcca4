/* Policy losses. A token y with log-probability l, l' when it was drawn and l* in the reference, and
 * with the advantage A, has d = l - l', the ratio r = e^d, and the loss
 *     clip:       -min(r A, clip(r, 1 - low, 1 + high) A)   (PPO, arXiv 1707.06347, equation 7)
 *                 with r at most `dual` if that is above 0    (arXiv 1912.09729, equation 5)
 *     cap:        -min(r, high) A l, whose first factor has no gradient     (CISPO, arXiv 2506.13585, equation 4)
 *     difference: -keep A r + penalty d^2; keep is 0 where e^l - e^l' > high and A > 0, or
 *                 e^l' - e^l > low and A < 0, and else 1     (DPPO, arXiv 2602.04879, with the total variation)
 * and to each are added
 *     kl (e^(l* - l) - 1 - (l* - l))     (k3 of arXiv 2402.03300, equation 4)
 *     entropy l                          (the drawn tokens' estimate of -entropy)
 * The entropy of a distribution has the gradient -E[log p grad log p], so the gradient of this term
 * with respect to l is entropy * l, and not entropy.
 *
 * With values, let v be the value of a token, v' its value before the updates, and R its return. The token then also has the loss
 *     value_coefficient / 2 max((v - R)^2, (clip(v, v' - value_clip, v' + value_clip) - R)^2)
 * as in OpenAI's code for arXiv 1707.06347 and in TRL.
 *
 * With a ratio of sequences, d is the mean or the sum of d over the tokens of the sequence. The loss
 * of a sequence then has the sum of the weights of its rows (GSPO, arXiv 2507.18071, equation 5).
 *
 * As for preference losses, the head computes -log p of all rows, this operation their loss and the
 * weight of each row's gradient, and the head computes the gradients in a second pass. */
#include "ops/policy/policy.h"

#include "ops/loss/loss.h"

TensorId op_policy(Graph *graph, TensorId x, TensorId w, const PolicyTensors *tensors, const PolicyConfig *config, int64_t vocabulary) {
    int64_t rows = graph_rows(graph, x);
    const PolicyRule *rule = policy_rule(config);
    const PolicyAttributes attributes = {.objective = rule->objective,
        .ratio = rule->ratio,
        .low = policy_low(config),
        .high = policy_high(config),
        .dual = config->dual,
        .kl = config->kl,
        .entropy = config->entropy,
        .penalty = config->penalty,
        .value_clip = config->value_clip,
        .value_coefficient = config->value_coefficient};
    assert(graph_elements(graph, tensors->sequences) == policy_most_sequences(rows) * SEQUENCE_BOUNDS);
    assert(graph_elements(graph, tensors->terms) == rows * POLICY_TERMS && graph_elements(graph, tensors->sums) == POLICY_SUMS);
    TensorId losses = op_token_losses(graph, x, w, tensors->targets, vocabulary);
    Inputs in = {[POLICY_LOSSES_IN] = losses,
        [POLICY_TARGETS] = tensors->targets,
        [POLICY_SEQUENCES] = tensors->sequences,
        [POLICY_ROWS] = tensors->terms,
        [POLICY_VALUES] = tensors->values};
    Outputs out = {[POLICY_LOSS] = tensors->loss, [POLICY_SUM] = tensors->sums};
    if (graph->training) out[POLICY_WEIGHTS] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &rows, "token_weights");
    if (graph->training && tensors->values) out[POLICY_D_VALUES] = graph_activation_like(graph, TYPE_WIDE, tensors->values, "d_values");
    graph_node(graph, OP_policy, in, out, &attributes, sizeof attributes);
    graph->tensors[losses].keep = true;
    if (graph->training) op_token_losses_gradient(graph, x, w, tensors->targets, out[POLICY_WEIGHTS], vocabulary);
    return losses;
}

static void policy_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)d_out;
    d_in[POLICY_VALUES] = node->out[POLICY_D_VALUES];
}

/* Counts ten flops per row. */
static double policy_flops(const Graph *graph, const Node *node) { return 10.0 * graph_elements(graph, node->in[POLICY_LOSSES_IN]); }

const Op op_rule_policy = {.name = "policy",
    .adds_to = OPERAND(POLICY_LOSS) | OPERAND(POLICY_SUM),
    .loss = true,
    .gradient = policy_gradient,
    .flops = policy_flops};
