/* Norms of queries and keys inside packed qkv rows: of each head (Qwen3), or of all heads together (MPT's qk_ln). The
 * columns of one norm are a group; all groups of the queries share one gain, those of the keys another. Values are
 * copied. */
#include "ops/norm/norm.h"

static void assert_norm(const Graph *graph, const Norm *norm, int64_t columns) {
    int64_t group = graph_elements(graph, norm->gain);
    assert(group > 0 && columns % group == 0);
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && graph_elements(graph, norm->bias) == group));
    (void)group, (void)columns;
}

static TensorId append_statistics(Graph *graph, const Norm *norm, int64_t rows, int64_t columns) {
    int64_t shape[] = {rows, columns / graph_elements(graph, norm->gain), norm_statistics(norm->kind)};
    return graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 3, shape, "statistics");
}

TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads) {
    int64_t shape[] = {graph_rows(graph, qkv), graph_columns(graph, qkv)};
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && shape[1] == heads_columns(heads));
    assert_norm(graph, query, qk_columns(heads, QK_QUERIES));
    assert_norm(graph, key, qk_columns(heads, QK_KEYS));
    TensorId in[QK_NORM_INPUTS] = {
        [QK_NORM_QKV] = qkv,
        [QK_NORM_GAIN] = query->gain,
        [QK_NORM_KEY_GAIN] = key->gain,
        [QK_NORM_BIAS] = query->bias,
        [QK_NORM_KEY_BIAS] = key->bias,
    };
    TensorId out[QK_NORM_OUTPUTS];
    out[QK_NORM_OUT] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "qk_normed");
    out[QK_NORM_STATISTICS] = append_statistics(graph, query, shape[0], qk_columns(heads, QK_QUERIES));
    out[QK_NORM_KEY_STATISTICS] = append_statistics(graph, key, shape[0], qk_columns(heads, QK_KEYS));
    QkNormAttributes attributes = {.norm = {{query->kind, query->epsilon}, {key->kind, key->epsilon}}, .heads = *heads};
    graph_node(graph, OP_qk_norm, in, QK_NORM_INPUTS, out, QK_NORM_OUTPUTS, &attributes, sizeof attributes);
    return out[QK_NORM_OUT];
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId in[QK_NORM_GRAD_INPUTS] = {
        [QK_NORM_GRAD_D_OUT] = d_out[QK_NORM_OUT],
        [QK_NORM_GRAD_QKV] = node->in[QK_NORM_QKV],
        [QK_NORM_GRAD_GAIN] = node->in[QK_NORM_GAIN],
        [QK_NORM_GRAD_KEY_GAIN] = node->in[QK_NORM_KEY_GAIN],
        [QK_NORM_GRAD_STATISTICS] = node->out[QK_NORM_STATISTICS],
        [QK_NORM_GRAD_KEY_STATISTICS] = node->out[QK_NORM_KEY_STATISTICS],
    };
    const int64_t *shape = graph_get(graph, node->in[QK_NORM_QKV])->shape;
    TensorId out[QK_NORM_GRAD_OUTPUTS];
    out[QK_NORM_GRAD_D_QKV] = d_in[QK_NORM_QKV] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_qkv");
    for (int i = QK_NORM_GRAD_D_GAIN; i < QK_NORM_GRAD_OUTPUTS; i++) /* in the order of the parameters */
        out[i] = graph_parameter_gradient(graph, node->in[QK_NORM_GAIN + i - QK_NORM_GRAD_D_GAIN]);
    graph_node(graph, OP_qk_norm_grad, in, QK_NORM_GRAD_INPUTS, out, QK_NORM_GRAD_OUTPUTS, node->attributes, sizeof(QkNormAttributes));
}

/* At most six flops for every column of queries and keys; twice as many in the backward pass. */
static double flops(const Graph *graph, const Node *node, TensorId qkv) {
    const QkNormAttributes *attributes = node->attributes;
    return 6.0 * qk_begin(&attributes->heads, QK_PARTS) * graph_rows(graph, qkv);
}
static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = flops(graph, node, node->in[QK_NORM_QKV]), .bytes = op_tensor_bytes(graph, node)};
}
static Cost grad_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 2 * flops(graph, node, node->in[QK_NORM_GRAD_QKV]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_qk_norm = {.name = "qk_norm", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};
const Op op_rule_qk_norm_grad = {.name = "qk_norm_grad",
    .adds_to =
        OPERAND(QK_NORM_GRAD_D_GAIN) | OPERAND(QK_NORM_GRAD_D_KEY_GAIN) | OPERAND(QK_NORM_GRAD_D_BIAS) | OPERAND(QK_NORM_GRAD_D_KEY_BIAS),
    .cost = grad_cost};
