/* Moving rows to experts and back: a stable counting sort of the chosen experts, the copy of rows into slots ordered by
 * expert, and the gated sum of what comes back. All of it is bound by memory: every kernel reads and writes each row
 * once, and each row's sum runs over its k slots in order, so nothing depends on how rows are shared out. Slots without
 * a row, the last ones, are zero in every tensor of slots, so that no tensor ever holds what nobody wrote. */
#include "ops/moe/moe.h"

Dispatch op_moe_sort(Graph *graph, TensorId index, int64_t experts) {
    int64_t rows = graph_rows(graph, index), k = graph_columns(graph, index), offsets = experts + 1;
    assert(graph_get(graph, index)->type == TYPE_INT32 && rows * k <= INT32_MAX);
    Dispatch dispatch = {.slot = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 2, (int64_t[]){rows, k}, "slot"),
        .offset = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &offsets, "offset")};
    MoeSortAttributes attributes = {.experts = experts};
    graph_node(graph, OP_moe_sort, &index, 1, (TensorId[]){dispatch.slot, dispatch.offset}, 2, &attributes, sizeof attributes);
    return dispatch;
}

TensorId op_moe_permute(Graph *graph, TensorId x, const Dispatch *dispatch) {
    assert(graph_get(graph, x)->type == TYPE_COMPUTE && graph_rows(graph, x) == graph_rows(graph, dispatch->slot));
    int64_t shape[] = {graph_elements(graph, dispatch->slot), graph_columns(graph, x)};
    TensorId x_slots = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "x_slots");
    graph_node(graph, OP_moe_permute, (TensorId[]){x, dispatch->slot, dispatch->offset}, 3, &x_slots, 1, NULL, 0);
    return x_slots;
}

static void permute_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, node->in[0])->shape, "d_x");
    graph_node(graph, OP_moe_permute_grad, (TensorId[]){d_out[0], node->in[1]}, 2, &d_in[0], 1, NULL, 0);
}

TensorId op_moe_combine(Graph *graph, TensorId y_slots, TensorId gate, const Dispatch *dispatch) {
    assert(graph_get(graph, y_slots)->type == TYPE_COMPUTE && graph_get(graph, gate)->type == TYPE_WIDE);
    assert(graph_rows(graph, y_slots) == graph_elements(graph, dispatch->slot));
    assert(graph_elements(graph, gate) == graph_elements(graph, dispatch->slot));
    int64_t shape[] = {graph_rows(graph, dispatch->slot), graph_columns(graph, y_slots)};
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "combined");
    graph_node(graph, OP_moe_combine, (TensorId[]){y_slots, gate, dispatch->slot, dispatch->offset}, 4, &y, 1, NULL, 0);
    return y;
}

static void combine_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    TensorId y_slots = node->in[0], gate = node->in[1], slot = node->in[2], offset = node->in[3];
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, y_slots)->shape, "d_y_slots");
    d_in[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, graph_get(graph, gate)->shape, "d_gate");
    graph_node(graph, OP_moe_combine_grad, (TensorId[]){d_out[0], y_slots, gate, slot, offset}, 5, d_in, 2, NULL, 0);
}

/* A multiply-add for every element of every slot; the gradient has that and a product. */
static Cost combine_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 2.0 * graph_elements(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

static Cost combine_grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 3.0 * graph_elements(graph, node->in[1]), .bytes = op_tensor_bytes(graph, node)};
}

static Cost permute_grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = graph_elements(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_moe_sort = {.name = "moe_sort"};

const Op op_rule_moe_permute = {.name = "moe_permute", .gradient = permute_gradient};

const Op op_rule_moe_permute_grad = {.name = "moe_permute_grad", .cost = permute_grad_cost};

const Op op_rule_moe_combine = {.name = "moe_combine", .gradient = combine_gradient, .cost = combine_cost};

const Op op_rule_moe_combine_grad = {.name = "moe_combine_grad", .cost = combine_grad_cost};
