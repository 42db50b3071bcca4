/* Norms of queries and keys inside packed qkv rows: per head (Qwen3), or over all heads together
 * (MPT's qk_ln). The columns of one norm are a group; all groups of the queries share one gain, and
 * all groups of the keys another. Values are copied. */
#include "ops/norm/norm.h"

TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads) {
    const Norm *const norms[] = {query, key};
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_columns(graph, qkv) == heads_columns(heads));
    Inputs in = {[QK_NORM_QKV] = qkv};
    Outputs out = {[QK_NORM_OUT] = graph_activation_like(graph, TYPE_COMPUTE, qkv, "qk_normed")};
    QkNormAttributes attributes = {.heads = *heads};
    for (int part = 0; part < QK_PARTS; part++) {
        const Norm *norm = norms[part];
        int64_t group = graph_elements(graph, norm->gain), norms_of_row = qk_columns(heads, part) / group;
        assert(qk_columns(heads, part) % group == 0);
        norm_assert_vectors(graph, norm, group);
        attributes.norm[part] = (NormAttributes){norm->kind, norm->epsilon};
        in[QK_NORM_GAIN + part] = norm->gain, in[QK_NORM_BIAS + part] = norm->bias;
        int64_t shape[] = {graph_rows(graph, qkv), norms_of_row, norm_statistics(norm->kind)};
        out[QK_NORM_STATISTICS + part] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 3, shape, "statistics");
    }
    graph_node(graph, OP_qk_norm, in, out, &attributes, sizeof attributes);
    return out[QK_NORM_OUT];
}

static void qk_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    d_in[QK_NORM_QKV] = graph_activation_like(graph, TYPE_COMPUTE, node->in[QK_NORM_QKV], "d_qkv");
    Inputs in = {[QK_NORM_GRAD_D_OUT] = d_out[QK_NORM_OUT], [QK_NORM_GRAD_QKV] = node->in[QK_NORM_QKV]};
    Outputs out = {[QK_NORM_GRAD_D_QKV] = d_in[QK_NORM_QKV]};
    for (int part = 0; part < QK_PARTS; part++) {
        in[QK_NORM_GRAD_GAIN + part] = node->in[QK_NORM_GAIN + part];
        in[QK_NORM_GRAD_STATISTICS + part] = node->out[QK_NORM_STATISTICS + part];
        out[QK_NORM_GRAD_D_GAIN + part] = graph_parameter_gradient(graph, node->in[QK_NORM_GAIN + part]);
        out[QK_NORM_GRAD_D_BIAS + part] = graph_parameter_gradient(graph, node->in[QK_NORM_BIAS + part]);
    }
    graph_node(graph, OP_qk_norm_grad, in, out, node->attributes, 0);
}

/* Counts at most six flops per column of queries and keys; twice as many in the backward pass. */
static double qk_flops(const Graph *graph, const Node *node) {
    const QkNormAttributes *attributes = node->attributes;
    return 6.0 * qk_begin(&attributes->heads, QK_PARTS) * graph_rows(graph, node->in[QK_NORM_QKV]);
}
static double qk_grad_flops(const Graph *graph, const Node *node) {
    static_assert((int)QK_NORM_QKV == (int)QK_NORM_GRAD_D_OUT, "qkv or its gradient, of R rows");
    return 2 * qk_flops(graph, node);
}

const Op op_rule_qk_norm = {.name = "qk_norm", .class = OP_CLASS_NORM, .gradient = qk_gradient, .flops = qk_flops};
const Op op_rule_qk_norm_grad = {.name = "qk_norm_grad",
    .adds_to = OPERANDS(QK_NORM_GRAD_D_GAIN, QK_NORM_GRAD_D_KEY_BIAS),
    .measured = OPERAND(QK_NORM_GRAD_D_QKV),
    .amax = OPERAND(QK_NORM_GRAD_AMAX),
    .flops = qk_grad_flops};
