/* Token embedding into the WIDE residual stream, with ZAYA1's learned entry (bias before scale) when given. The backward pass walks all
 * rows in order for one block of columns at a time: threads share out columns, so sums need no atomics and keep their order. */
#include "op/kernel.h"

#ifdef KERNEL_VARIANT

void KERNEL(embed)(const OpCall *call) {
    const int32_t *tokens = call->in[0];
    const T *table = call->in[1];
    const W *bias = call->in[2], *scale = call->in[3];
    W *stream = call->out[0];
    int64_t rows = call->out_shape[0][0], columns = call->out_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *restrict entry = table + tokens[r] * columns;
        W *restrict row = stream + r * columns;
        if (scale)
            for (int64_t j = 0; j < columns; j++) row[j] = (widen(entry[j]) + bias[j]) * scale[j];
        else
            for (int64_t j = 0; j < columns; j++) row[j] = widen(entry[j]);
    }
}

void KERNEL(embed_grad)(const OpCall *call) {
    const W *d_stream = call->in[0], *bias = call->in[3], *scale = call->in[4];
    const int32_t *tokens = call->in[1];
    const T *table = call->in[2];
    W *d_table = call->out[0], *d_bias = call->out[1], *d_scale = call->out[2];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < columns; first += KERNEL_BLOCK) {
        int64_t end = kernel_min(columns, first + KERNEL_BLOCK);
        for (int64_t r = 0; r < rows; r++) {
            const W *restrict d_row = d_stream + r * columns;
            const T *restrict entry = table + tokens[r] * columns;
            W *restrict d_entry = d_table + tokens[r] * columns;
            if (!scale) {
                for (int64_t j = first; j < end; j++) d_entry[j] += d_row[j];
                continue;
            }
            for (int64_t j = first; j < end; j++) {
                W d_scaled = d_row[j] * scale[j];
                d_entry[j] += d_scaled;
                d_bias[j] += d_scaled;
                d_scale[j] += d_row[j] * (widen(entry[j]) + bias[j]);
            }
        }
    }
}

#else

TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale) {
    assert((bias == TENSOR_NONE) == (scale == TENSOR_NONE));
    int64_t shape[] = {graph_elements(graph, tokens), graph_columns(graph, table)};
    TensorId stream = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "embedded");
    graph_node(graph, OP_embed, (TensorId[]){tokens, table, bias, scale}, 4, &stream, 1, NULL, 0);
    return stream;
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)d_in;
    TensorId tokens = node->in[0], table = node->in[1], bias = node->in[2], scale = node->in[3];
    TensorId out[] = {graph_parameter_gradient(graph, table), graph_parameter_gradient(graph, bias), graph_parameter_gradient(graph, scale)};
    graph_node(graph, OP_embed_grad, (TensorId[]){d_out[0], tokens, table, bias, scale}, 5, out, 3, NULL, 0);
}

/* Only the rows that occur are touched, not the table. */
static double row_bytes(const Graph *graph, TensorId rows, TensorId table, TypeClass type) {
    return (double)graph_elements(graph, rows) * graph_columns(graph, table) * precision_bytes(graph->precision, type);
}

static Cost cost(const Graph *graph, const Node *node) {
    TensorId tokens = node->in[0], table = node->in[1];
    return (Cost){.flops = 2.0 * graph_elements(graph, node->out[0]),
                  .bytes = row_bytes(graph, tokens, table, TYPE_COMPUTE) + row_bytes(graph, tokens, table, TYPE_WIDE)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    TensorId tokens = node->in[1], table = node->in[2];
    return (Cost){.flops = 5.0 * graph_elements(graph, node->in[0]),
                  .bytes = row_bytes(graph, tokens, table, TYPE_COMPUTE) + 3 * row_bytes(graph, tokens, table, TYPE_WIDE)};
}

const Op op_rule_embed = {.name = "embed", .gradient = gradient, .cost = cost};
const Op op_rule_embed_grad = {.name = "embed_grad", .adds_to = 7, .cost = grad_cost};

#endif
