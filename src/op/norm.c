/* RMSNorm and LayerNorm over rows of the WIDE residual stream; the formulas are in norm.h. The backward pass needs x, the gain and
 * one or two numbers per row. */
#include "op/kernel.h"
#include "op/norm.h"

#ifdef KERNEL_VARIANT

void KERNEL(norm)(const OpCall *call) {
    const NormAttributes *attributes = call->attributes;
    const W *x = call->in[0];
    T *y = call->out[0];
    W *statistics = call->out[1];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1], kept = call->out_shape[1][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        norm_row(attributes, y + r * columns, statistics + r * kept, x + r * columns, call->in[1], call->in[2], columns);
}

void KERNEL(norm_grad)(const OpCall *call) {
    const NormAttributes *attributes = call->attributes;
    const T *dy = call->in[0];
    const W *x = call->in[1], *gain = call->in[2], *statistics = call->in[3];
    W *dx = call->out[0], *dgain = call->out[1], *dbias = call->out[2];
    int64_t rows = call->in_shape[1][0], columns = call->in_shape[1][1], kept = call->in_shape[3][1], blocks = kernel_blocks(rows);
    W *gains = call->workspace, *biases = gains + blocks * columns;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *gain_sum = gains + block * columns, *bias_sum = dbias ? biases + block * columns : NULL;
        memset(gain_sum, 0, columns * sizeof(W));
        if (bias_sum) memset(bias_sum, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < kernel_min(rows, (block + 1) * KERNEL_BLOCK); r++) {
            int64_t at = r * columns;
            memset(dx + at, 0, columns * sizeof(W));
            norm_row_grad(attributes->kind, dx + at, gain_sum, bias_sum, dy + at, x + at, gain, statistics + r * kept, columns);
        }
    }
    kernel_add_partials(dgain, gains, blocks, columns);
    if (dbias) kernel_add_partials(dbias, biases, blocks, columns);
}

#else

TensorId op_norm(Graph *graph, TensorId x, const Norm *norm) {
    int64_t rows = graph_rows(graph, x), columns = graph_columns(graph, x), kept = norm_statistics(norm->kind);
    assert(graph_get(graph, x)->type == TYPE_WIDE && columns == graph_elements(graph, norm->gain));
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && columns == graph_elements(graph, norm->bias)));
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){rows, columns}, "normed");
    TensorId statistics = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, kept}, "statistics");
    NormAttributes attributes = {.kind = norm->kind, .epsilon = norm->epsilon};
    graph_node(graph, OP_norm, (TensorId[]){x, norm->gain, norm->bias}, 3, (TensorId[]){y, statistics}, 2, &attributes, sizeof attributes);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[0], gain = node->in[1];
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, graph_get(graph, x)->shape, "d_x");
    TensorId out[] = {d_in[0], graph_parameter_gradient(graph, gain), graph_parameter_gradient(graph, node->in[2])};
    graph_node(graph, OP_norm_grad, (TensorId[]){d_out[0], x, gain, node->out[1]}, 4, out, 3, node->attributes, sizeof(NormAttributes));
}

/* Square, sum, scale, gain: four operations an element; two more for a mean, twice that on the way back. */
static double operations(const Node *node) {
    const NormAttributes *attributes = node->attributes;
    return attributes->kind == NORM_LAYER ? 6 : 4;
}

static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = operations(node) * graph_elements(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 2 * operations(node) * graph_elements(graph, node->in[1]), .bytes = op_tensor_bytes(graph, node)};
}

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    return (node->out[2] ? 2 : 1) * op_partials_bytes(graph, graph_rows(graph, node->in[1]), graph_columns(graph, node->in[1]));
}

const Op op_rule_norm = {.name = "norm", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};
const Op op_rule_norm_grad = {.name = "norm_grad", .adds_to = 6, .cost = grad_cost, .workspace = grad_workspace};

#endif
