/* Moving rows to experts and back: a stable counting sort of the chosen experts, the copy of rows into slots ordered by
 * expert, and the gated sum of what comes back. All of it is bound by memory: every kernel reads and writes each row
 * once, and each row's sum runs over its k slots in order, so nothing depends on how rows are shared out. Slots without
 * a row, the last ones, are zero in every tensor of slots, so that no tensor ever holds what nobody wrote. */
#include "op/kernel.h"

typedef struct MoeSortAttributes { int64_t experts; } MoeSortAttributes;

enum { SORT_BLOCK = 2048 }; /* rows; below it starting threads costs more than counting */

#ifdef KERNEL_VARIANT

/* begin[e] of each block of rows turns from a count into the first slot of its rows for expert e. */
static void sort_offsets(int32_t *restrict offset, int32_t *restrict begin, int64_t blocks, int64_t experts) {
    int32_t total = 0;
    for (int64_t e = 0; e < experts; e++) {
        offset[e] = total;
        for (int64_t block = 0; block < blocks; block++) {
            int32_t count = begin[block * experts + e];
            begin[block * experts + e] = total;
            total += count;
        }
    }
    offset[experts] = total;
}

void KERNEL(moe_sort)(const OpCall *call) {
    int64_t experts = ((const MoeSortAttributes *)call->attributes)->experts;
    const int32_t *index = call->in[0];
    int32_t *slot = call->out[0], *offset = call->out[1], *begins = call->workspace;
    int64_t rows = call->in_shape[0][0], k = call->in_shape[0][1], blocks = (rows + SORT_BLOCK - 1) / SORT_BLOCK;
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int64_t block = 0; block < blocks; block++) {
        int32_t *count = begins + block * experts;
        memset(count, 0, experts * sizeof *count);
        for (int64_t i = block * SORT_BLOCK * k; i < kernel_min(rows, (block + 1) * SORT_BLOCK) * k; i++)
            if (index[i] < experts) count[index[i]]++;
    }
    sort_offsets(offset, begins, blocks, experts);
#pragma omp parallel for schedule(static) if (blocks > 1)
    for (int64_t block = 0; block < blocks; block++) {
        int32_t *next = begins + block * experts;
        for (int64_t r = block * SORT_BLOCK; r < kernel_min(rows, (block + 1) * SORT_BLOCK); r++)
            for (int64_t i = r * k; i < (r + 1) * k; i++) slot[i] = index[i] < experts ? next[index[i]]++ : -1;
    }
}

/* By rows, not by slots: a row is read once for all its slots, and scattered writes cost less than scattered reads. */
void KERNEL(moe_permute)(const OpCall *call) {
    const T *x = call->in[0];
    const int32_t *slot = call->in[1];
    T *x_slots = call->out[0];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], k = call->in_shape[1][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = r * k; i < (r + 1) * k; i++)
            if (slot[i] >= 0) memcpy(x_slots + slot[i] * columns, x + r * columns, columns * sizeof(T));
    kernel_zero_unused(x_slots, call->in[2], call->in_shape[2][0] - 1, rows * k, columns);
}

/* y = sum over j of gate[j] * slots[slot[j]]; a gate of NULL is all ones. */
static void sum_slots(T *restrict y, const T *restrict slots, const int32_t *slot, const W *gate, int64_t k,
                      int64_t columns) {
    enum { CHUNK = 256 };
    W sum[CHUNK];
    if (k == 1 && slot[0] >= 0) { /* top-1 models: without the buffer it runs at the speed of a copy */
        const T *row = slots + slot[0] * columns;
        W weight = gate ? gate[0] : 1;
        for (int64_t i = 0; i < columns; i++) y[i] = narrow(weight * widen(row[i]));
        return;
    }
    for (int64_t first = 0; first < columns; first += CHUNK) {
        int64_t width = kernel_min(CHUNK, columns - first);
        memset(sum, 0, sizeof sum);
        for (int64_t j = 0; j < k; j++) {
            if (slot[j] < 0) continue;
            const T *row = slots + slot[j] * columns + first;
            W weight = gate ? gate[j] : 1;
            for (int64_t i = 0; i < width; i++) sum[i] += weight * widen(row[i]);
        }
        for (int64_t i = 0; i < width; i++) y[first + i] = narrow(sum[i]);
    }
}

void KERNEL(moe_permute_grad)(const OpCall *call) {
    const T *dx_slots = call->in[0];
    const int32_t *slot = call->in[1];
    T *dx = call->out[0];
    int64_t rows = call->out_shape[0][0], columns = call->out_shape[0][1], k = call->in_shape[1][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) sum_slots(dx + r * columns, dx_slots, slot + r * k, NULL, k, columns);
}

void KERNEL(moe_combine)(const OpCall *call) {
    const T *y_slots = call->in[0];
    const W *gate = call->in[1];
    const int32_t *slot = call->in[2];
    T *y = call->out[0];
    int64_t rows = call->out_shape[0][0], columns = call->out_shape[0][1], k = call->in_shape[2][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) sum_slots(y + r * columns, y_slots, slot + r * k, gate + r * k, k, columns);
}

/* d_y_slot = gate * dy; returns <dy, y_slot>, the gradient of the gate. */
static W combine_slot_grad(T *restrict d_y_slot, const T *restrict dy, const T *restrict y_slot, W gate,
                           int64_t columns) {
    W dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < columns; i++) {
        W value = widen(dy[i]);
        dot += value * widen(y_slot[i]);
        d_y_slot[i] = narrow(gate * value);
    }
    return dot;
}

void KERNEL(moe_combine_grad)(const OpCall *call) {
    const T *dy = call->in[0], *y_slots = call->in[1];
    const W *gate = call->in[2];
    const int32_t *slot = call->in[3];
    T *d_y_slots = call->out[0];
    W *d_gate = call->out[1];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], k = call->in_shape[3][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = r * k; i < (r + 1) * k; i++) {
            int64_t at = slot[i] * columns;
            d_gate[i] = 0;
            if (slot[i] < 0) continue;
            d_gate[i] = combine_slot_grad(d_y_slots + at, dy + r * columns, y_slots + at, gate[i], columns);
        }
    kernel_zero_unused(d_y_slots, call->in[4], call->in_shape[4][0] - 1, rows * k, columns);
}

#else

Dispatch op_moe_sort(Graph *graph, TensorId index, int64_t experts) {
    int64_t rows = graph_rows(graph, index), k = graph_columns(graph, index), offsets = experts + 1;
    assert(graph_get(graph, index)->type == TYPE_INT32 && rows * k <= INT32_MAX);
    Dispatch dispatch = {.slot = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 2, (int64_t[]){rows, k}, "slot"),
                         .offset = graph_tensor(graph, ARENA_ACTIVATION, TYPE_INT32, 1, &offsets, "offset")};
    MoeSortAttributes attributes = {.experts = experts};
    graph_node(graph, OP_moe_sort, &index, 1, (TensorId[]){dispatch.slot, dispatch.offset}, 2, &attributes, sizeof attributes);
    return dispatch;
}

static int64_t sort_workspace(const Graph *graph, const Node *node) {
    int64_t blocks = (graph_rows(graph, node->in[0]) + SORT_BLOCK - 1) / SORT_BLOCK;
    return blocks * ((const MoeSortAttributes *)node->attributes)->experts * (int64_t)sizeof(int32_t);
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

const Op op_rule_moe_sort = {.name = "moe_sort", .workspace = sort_workspace};
const Op op_rule_moe_permute = {.name = "moe_permute", .gradient = permute_gradient};
const Op op_rule_moe_permute_grad = {.name = "moe_permute_grad", .cost = permute_grad_cost};
const Op op_rule_moe_combine = {.name = "moe_combine", .gradient = combine_gradient, .cost = combine_cost};
const Op op_rule_moe_combine_grad = {.name = "moe_combine_grad", .cost = combine_grad_cost};

#endif
