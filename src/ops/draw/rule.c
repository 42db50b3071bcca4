/* draw samples a token per row. Let max be the largest logit x of the tokens below the limit, and
 * the weight of a token w = e^((x - max) / temperature).
 *
 *     top_k  keeps the tokens whose logit is at least the k-th largest
 *     top_p  keeps, among these, the tokens whose weight is at least t, the largest t with which the
 *            kept weights reach the share top_p of all weights that top_k kept
 *     min_p  keeps, among these, the tokens of weight min_p or more; the weight of max is 1
 *
 * Equal logits are kept or dropped together, and max stays. The result is the first token, in token
 * order, at which the running sum of kept weights exceeds uniform times their sum. Temperature 0 is
 * a draw with uniform = 0 among the largest logits: the first of them.
 *
 * Weights grow with logits, so both thresholds are thresholds on logits. The kernels find them by
 * bisection, without sorting. Floats are ordered like integers (keys), so 32 steps would end any
 * search among fp32 numbers. A step also finds the logits next to its threshold on both sides and
 * continues from them, so about 20 steps suffice for a vocabulary. */
#include "ops/draw/draw.h"

enum { MOST_COLUMNS = 1 << 24 }; /* integers that fp32 represents */

TensorId op_draw(Graph *graph, TensorId logits, TensorId penalized, TensorId choice, TensorId limit, int64_t most_top) {
    int64_t rows = graph_rows(graph, logits);
    assert(most_top >= 0 && most_top <= DRAW_MOST_TOP && graph_elements(graph, penalized) == graph_elements(graph, logits));
    assert(graph_get(graph, logits)->type == TYPE_WIDE && graph_columns(graph, logits) <= MOST_COLUMNS);
    assert(graph_get(graph, choice)->type == TYPE_WIDE && graph_rows(graph, choice) == rows);
    assert(graph_columns(graph, choice) == DRAW_CHOICE_VALUES && graph_get(graph, limit)->type == TYPE_INT32);
    TensorId y = graph_activation(graph, TYPE_WIDE, rows, draw_columns(most_top), "draw");
    Inputs in = {[DRAW_LOGITS] = logits, [DRAW_FROM] = penalized, [DRAW_CHOICE] = choice, [DRAW_LIMIT] = limit};
    graph_node(graph, OP_draw, in, (Outputs){[DRAW_Y] = y}, NULL, 0);
    return y;
}

TensorId op_penalize(Graph *graph, TensorId logits, TensorId tokens, TensorId slots, TensorId choice, TensorId state) {
    int64_t rows = graph_rows(graph, logits);
    assert(graph_get(graph, logits)->type == TYPE_WIDE && graph_get(graph, state)->type == TYPE_WIDE);
    assert(graph_get(graph, state)->arena == ARENA_STATE && graph_columns(graph, state) == graph_columns(graph, logits));
    assert(graph_elements(graph, tokens) == rows && graph_elements(graph, slots) == rows);
    assert(graph_rows(graph, choice) == rows && graph_columns(graph, choice) == PENALTY_CHOICE_VALUES);
    TensorId y = graph_activation_like(graph, TYPE_WIDE, logits, "penalized_logits");
    Inputs in = {[PENALIZE_LOGITS] = logits, [PENALIZE_TOKENS] = tokens, [PENALIZE_SLOTS] = slots, [PENALIZE_CHOICE] = choice};
    graph_node(graph, OP_penalize, in, (Outputs){[PENALIZE_Y] = y, [PENALIZE_STATE] = state}, NULL, 0);
    return y;
}

const Op op_rule_draw = {.name = "draw"};
const Op op_rule_penalize = {.name = "penalize", .adds_to = OPERAND(PENALIZE_STATE)};
