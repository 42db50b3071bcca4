/* RMSNorm (arXiv 1910.07467): y = x / sqrt(mean(x^2) + epsilon) * gain, over rows of the WIDE residual stream. The backward
 * pass needs x, the gain and one reciprocal root per row. With n = x * rstd, g = dy * gain:
 *     dx = rstd * (g - n * mean(g * n)),   dgain = sum over rows of dy * n. */
#include "op/kernel.h"
#include "op/rmsnorm.h"

#ifdef KERNEL_VARIANT

void KERNEL(rmsnorm)(const OpCall *call) {
    const RmsnormAttributes *attributes = call->attributes;
    const W *x = call->in[0], *gain = call->in[1];
    T *y = call->out[0];
    W *rstd = call->out[1];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        rstd[r] = rmsnorm_row(y + r * columns, x + r * columns, gain, columns, (W)attributes->epsilon);
}

void KERNEL(rmsnorm_grad)(const OpCall *call) {
    const T *dy = call->in[0];
    const W *x = call->in[1], *gain = call->in[2], *rstd = call->in[3];
    W *dx = call->out[0], *dgain = call->out[1], *partials = call->workspace;
    int64_t rows = call->in_shape[1][0], columns = call->in_shape[1][1], blocks = kernel_blocks(rows);
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        W *partial = partials + block * columns;
        memset(partial, 0, columns * sizeof(W));
        for (int64_t r = block * KERNEL_BLOCK; r < kernel_min(rows, (block + 1) * KERNEL_BLOCK); r++) {
            int64_t at = r * columns;
            memset(dx + at, 0, columns * sizeof(W));
            rmsnorm_row_grad(dx + at, partial, dy + at, x + at, gain, rstd[r], columns);
        }
    }
    kernel_add_partials(dgain, partials, blocks, columns);
}

#else

TensorId op_rmsnorm(Graph *graph, TensorId x, TensorId gain, double epsilon) {
    assert(graph_get(graph, x)->type == TYPE_WIDE && graph_columns(graph, x) == graph_elements(graph, gain));
    int64_t rows = graph_rows(graph, x), columns = graph_columns(graph, x);
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){rows, columns}, "normed");
    TensorId rstd = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &rows, "rstd");
    RmsnormAttributes attributes = {.epsilon = epsilon};
    graph_node(graph, OP_rmsnorm, (TensorId[]){x, gain}, 2, (TensorId[]){y, rstd}, 2, &attributes, sizeof attributes);
    return y;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId x = node->in[0], gain = node->in[1];
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, graph_get(graph, x)->shape, "d_x");
    graph_node(graph, OP_rmsnorm_grad, (TensorId[]){d_out[0], x, gain, node->out[1]}, 4,
               (TensorId[]){d_in[0], graph_parameter_gradient(graph, gain)}, 2, NULL, 0);
}

/* Square, sum, scale, gain: four operations an element. */
static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 4.0 * graph_elements(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 8.0 * graph_elements(graph, node->in[1]), .bytes = op_tensor_bytes(graph, node)};
}

static int64_t grad_workspace(const Graph *graph, const Node *node) {
    return op_partials_bytes(graph, graph_rows(graph, node->in[1]), graph_columns(graph, node->in[1]));
}

const Op op_rule_rmsnorm = {.name = "rmsnorm", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};
const Op op_rule_rmsnorm_grad = {.name = "rmsnorm_grad", .adds_to = 1 << 1, .cost = grad_cost, .workspace = grad_workspace};

#endif
