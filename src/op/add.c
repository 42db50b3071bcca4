/* The two sums that stand alone: a + b, where a tensor has several readers and their gradients meet, and x + previous * scale over WIDE rows, by which
 * a ZAYA1 router averages its states over depth (exponential depth averaging, arXiv 2605.05365 eq. 2; one factor per channel as in the code). */
#include "op/add.h"
#include "op/kernel.h"

#ifdef KERNEL_VARIANT

void KERNEL(add)(const OpCall *call) {
    const AddAttributes *attributes = call->attributes;
    int64_t elements = call->in_shape[0][0] * call->in_shape[0][1] * call->in_shape[0][2] * call->in_shape[0][3];
    if (attributes->wide) {
        const W *a = call->in[0], *b = call->in[1];
        W *sum = call->out[0];
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < elements; i++) sum[i] = a[i] + b[i];
    } else {
        const T *a = call->in[0], *b = call->in[1];
        T *sum = call->out[0];
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < elements; i++) sum[i] = narrow(widen(a[i]) + widen(b[i]));
    }
}

void KERNEL(scale_add)(const OpCall *call) {
    const W *x = call->in[0], *previous = call->in[1], *scale = call->in[2];
    W *sum = call->out[0];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd /* the sum may lie in the memory of x */
        for (int64_t j = 0; j < columns; j++) sum[r * columns + j] = x[r * columns + j] + previous[r * columns + j] * scale[j];
}

void KERNEL(scale_add_grad)(const OpCall *call) {
    const W *d_sum = call->in[0], *previous = call->in[1], *scale = call->in[2];
    W *d_previous = call->out[0], *partials = call->workspace;
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], blocks = kernel_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *restrict partial = partials + block * columns;
        memset(partial, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < kernel_min(rows, (block + 1) * KERNEL_BLOCK); r++)
            for (int64_t j = 0; j < columns; j++) {
                W d = d_sum[r * columns + j];
                partial[j] += d * previous[r * columns + j];
                d_previous[r * columns + j] = d * scale[j];
            }
    }
    kernel_add_partials(call->out[1], partials, blocks, columns);
}

#else

TensorId op_add(Graph *graph, TensorId a, TensorId b) {
    Tensor like = *graph_get(graph, a);
    assert(like.type == graph_get(graph, b)->type && graph_elements(graph, a) == graph_elements(graph, b));
    AddAttributes attributes = {.wide = like.type == TYPE_WIDE};
    TensorId sum = graph_tensor(graph, ARENA_ACTIVATION, like.type, like.rank, like.shape, "sum");
    graph_node(graph, OP_add, (TensorId[]){a, b}, 2, &sum, 1, &attributes, sizeof attributes);
    return sum;
}

static void add_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)graph;
    (void)node;
    d_in[0] = d_in[1] = d_out[0];
}

TensorId op_scale_add(Graph *graph, TensorId x, TensorId previous, TensorId scale) {
    int64_t shape[] = {graph_rows(graph, x), graph_columns(graph, x)};
    assert(graph_elements(graph, previous) == shape[0] * shape[1] && graph_elements(graph, scale) == shape[1]);
    TensorId sum = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "scale_add");
    graph_node(graph, OP_scale_add, (TensorId[]){x, previous, scale}, 3, &sum, 1, NULL, 0);
    return sum;
}

static void scale_add_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId previous = node->in[1], scale = node->in[2];
    int64_t shape[] = {graph_rows(graph, previous), graph_columns(graph, previous)};
    d_in[0] = d_out[0];
    d_in[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "d_previous");
    graph_node(graph, OP_scale_add_grad, (TensorId[]){d_out[0], previous, scale}, 3,
               (TensorId[]){d_in[1], graph_parameter_gradient(graph, scale)}, 2, NULL, 0);
}

static Cost cost(const Graph *graph, const Node *node) {
    double per_element = node->op == OP_add ? 1 : node->op == OP_scale_add ? 2 : 3;
    return (Cost){.flops = per_element * graph_elements(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    return op_partials_bytes(graph, graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0]));
}

const Op op_rule_add = {.name = "add", .in_place = 1, .gradient = add_gradient, .cost = cost};
const Op op_rule_scale_add = {.name = "scale_add", .in_place = 1, .gradient = scale_add_gradient, .cost = cost};
const Op op_rule_scale_add_grad = {.name = "scale_add_grad", .adds_to = 2, .cost = cost, .workspace = grad_workspace};

#endif
