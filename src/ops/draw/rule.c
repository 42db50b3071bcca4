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

TensorId op_draw(Graph *graph, TensorId logits, TensorId choice, TensorId limit) {
    int64_t rows = graph_rows(graph, logits);
    assert(graph_get(graph, logits)->type == TYPE_WIDE && graph_columns(graph, logits) <= MOST_COLUMNS);
    assert(graph_get(graph, choice)->type == TYPE_WIDE && graph_rows(graph, choice) == rows);
    assert(graph_columns(graph, choice) == DRAW_CHOICE_VALUES && graph_get(graph, limit)->type == TYPE_INT32);
    TensorId y = graph_activation(graph, TYPE_WIDE, rows, DRAW_VALUES, "draw");
    graph_node(
        graph, OP_draw, (Inputs){[DRAW_LOGITS] = logits, [DRAW_CHOICE] = choice, [DRAW_LIMIT] = limit}, (Outputs){[DRAW_Y] = y}, NULL, 0);
    return y;
}

const Op op_rule_draw = {.name = "draw"};
