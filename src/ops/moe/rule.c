/* Moving rows [R, D] to experts and back: moe_sort, a stable counting sort of the chosen experts,
 * which gives each row and choice (r, j) a slot; moe_permute,
 *     x_slots[slot[r, j]] = x[r],    d_x[r] = sum over j of d_x_slots[slot[r, j]];
 * and moe_combine,
 *     y[r] = sum over j of gate[r, j] y_slots[slot[r, j]],    d_y_slots[slot[r, j]] = gate[r, j] d_y[r],
 *     d_gate[r, j] = <d_y[r], y_slots[slot[r, j]]>.
 * All are bound by memory bandwidth: every kernel reads and writes each row once. A sum runs over a
 * row's k slots in order, so its bits do not depend on how rows are divided. Slots without a row,
 * the last ones, are written as zeros. */
#include "ops/moe/moe.h"

Dispatch op_moe_sort(Graph *graph, TensorId index, int64_t experts) {
    int64_t rows = graph_rows(graph, index), k = graph_columns(graph, index), offsets = experts + 1;
    assert(graph_get(graph, index)->type == TYPE_INT32 && rows * k <= INT32_MAX);
    Dispatch dispatch = {.slot = graph_activation(graph, TYPE_INT32, rows, k, "slot"),
        .offset = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &offsets, "offset"),
        .rows = rows * k};
    MoeSortAttributes attributes = {.experts = experts};
    graph_node(graph, OP_moe_sort, (Inputs){[MOE_SORT_INDEX] = index},
        (Outputs){[MOE_SORT_SLOT] = dispatch.slot, [MOE_SORT_OFFSET] = dispatch.offset}, &attributes, sizeof attributes);
    return dispatch;
}

TensorId op_moe_permute(Graph *graph, TensorId x, const Dispatch *dispatch) {
    assert(graph_get(graph, x)->type == TYPE_COMPUTE && graph_rows(graph, x) == graph_rows(graph, dispatch->slot));
    TensorId x_slots = graph_activation(graph, TYPE_COMPUTE, graph_elements(graph, dispatch->slot), graph_columns(graph, x), "x_slots");
    Inputs in = {[MOE_PERMUTE_X] = x, [MOE_PERMUTE_SLOT] = dispatch->slot, [MOE_PERMUTE_OFFSET] = dispatch->offset};
    Outputs out = {[MOE_PERMUTE_X_SLOTS] = x_slots};
    graph_node(graph, OP_moe_permute, in, out, NULL, 0);
    return x_slots;
}

TensorId op_moe_unpermute(Graph *graph, TensorId x_slots, const Dispatch *dispatch) {
    assert(graph_get(graph, x_slots)->type == TYPE_COMPUTE && graph_rows(graph, x_slots) == graph_elements(graph, dispatch->slot));
    TensorId x = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, dispatch->slot), graph_columns(graph, x_slots), "x");
    Inputs in = {[MOE_UNPERMUTE_X_SLOTS] = x_slots, [MOE_UNPERMUTE_SLOT] = dispatch->slot, [MOE_UNPERMUTE_OFFSET] = dispatch->offset};
    graph_node(graph, OP_moe_unpermute, in, (Outputs){[MOE_UNPERMUTE_X] = x}, NULL, 0);
    return x;
}

static void permute_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    Dispatch dispatch = {.slot = node->in[MOE_PERMUTE_SLOT], .offset = node->in[MOE_PERMUTE_OFFSET]};
    TensorId d_x_slots = d_out[MOE_PERMUTE_X_SLOTS];
    if (d_x_slots) d_in[MOE_PERMUTE_X] = op_moe_unpermute(graph, d_x_slots, &dispatch);
}

static void unpermute_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    Dispatch dispatch = {.slot = node->in[MOE_UNPERMUTE_SLOT], .offset = node->in[MOE_UNPERMUTE_OFFSET]};
    TensorId d_x = d_out[MOE_UNPERMUTE_X];
    if (d_x) d_in[MOE_UNPERMUTE_X_SLOTS] = op_moe_permute(graph, d_x, &dispatch);
}

TensorId op_moe_combine(Graph *graph, TensorId y_slots, TensorId gate, const Dispatch *dispatch) {
    assert(graph_get(graph, y_slots)->type == TYPE_COMPUTE && graph_get(graph, gate)->type == TYPE_WIDE);
    assert(graph_rows(graph, y_slots) == graph_elements(graph, dispatch->slot));
    assert(graph_elements(graph, gate) == graph_elements(graph, dispatch->slot));
    TensorId y = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, dispatch->slot), graph_columns(graph, y_slots), "combined");
    Inputs in = {
        [MOE_COMBINE_Y_SLOTS] = y_slots,
        [MOE_COMBINE_GATE] = gate,
        [MOE_COMBINE_SLOT] = dispatch->slot,
        [MOE_COMBINE_OFFSET] = dispatch->offset,
    };
    graph_node(graph, OP_moe_combine, in, (Outputs){[MOE_COMBINE_Y] = y}, NULL, 0);
    return y;
}

static void combine_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId d_y = d_out[MOE_COMBINE_Y], y_slots = node->in[MOE_COMBINE_Y_SLOTS], gate = node->in[MOE_COMBINE_GATE];
    if (d_y == TENSOR_NONE) return;
    Inputs in = {
        [MOE_COMBINE_GRAD_D_Y] = d_y,
        [MOE_COMBINE_GRAD_Y_SLOTS] = y_slots,
        [MOE_COMBINE_GRAD_GATE] = gate,
        [MOE_COMBINE_GRAD_SLOT] = node->in[MOE_COMBINE_SLOT],
        [MOE_COMBINE_GRAD_OFFSET] = node->in[MOE_COMBINE_OFFSET],
    };
    TensorId d_y_slots = graph_activation_like(graph, TYPE_COMPUTE, y_slots, "d_y_slots");
    TensorId d_gate = graph_activation_like(graph, TYPE_WIDE, gate, "d_gate");
    Outputs out = {[MOE_COMBINE_GRAD_D_Y_SLOTS] = d_y_slots, [MOE_COMBINE_GRAD_D_GATE] = d_gate};
    graph_node(graph, OP_moe_combine_grad, in, out, NULL, 0);
    d_in[MOE_COMBINE_Y_SLOTS] = d_y_slots;
    d_in[MOE_COMBINE_GATE] = d_gate;
}

/* Counts one multiply-add per element of every slot; the gradient has one more multiplication. */
static double combine_flops(const Graph *graph, const Node *node) { return 2.0 * graph_elements(graph, node->in[MOE_COMBINE_Y_SLOTS]); }
static double unpermute_flops(const Graph *graph, const Node *node) { return graph_elements(graph, node->in[MOE_UNPERMUTE_X_SLOTS]); }

const Op op_rule_moe_sort = {.name = "moe_sort"};
const Op op_rule_moe_permute = {
    .name = "moe_permute", .measured = OPERAND(MOE_PERMUTE_X_SLOTS), .amax = OPERAND(MOE_PERMUTE_AMAX), .gradient = permute_gradient};
const Op op_rule_moe_unpermute = {.name = "moe_unpermute", .gradient = unpermute_gradient, .flops = unpermute_flops};
const Op op_rule_moe_combine = {.name = "moe_combine", .gradient = combine_gradient, .flops = combine_flops};
const Op op_rule_moe_combine_grad = {.name = "moe_combine_grad",
    .measured = OPERAND(MOE_COMBINE_GRAD_D_Y_SLOTS),
    .amax = OPERAND(MOE_COMBINE_GRAD_AMAX),
    .element_flops = 3};
