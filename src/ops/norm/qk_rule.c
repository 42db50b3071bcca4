/* Norms of queries and keys inside packed qkv rows: of each head (Qwen3), or of all heads together (MPT's qk_ln). The columns of one norm are a group;
 * all groups of queries share a gain, and those of keys theirs. A group is widened into scratch of its block of rows and goes through the same row functions as
 * every other norm (norm.h). Values are copied. */
#include "ops/norm/norm.h"
#include "ops/heads.h"

static void assert_norm(const Graph *graph, const Norm *norm, int64_t columns) {
    int64_t group = graph_elements(graph, norm->gain);
    assert(group > 0 && columns % group == 0);
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && graph_elements(graph, norm->bias) == group));
    (void)group;
    (void)columns;
}

static TensorId append_statistics(Graph *graph, const Norm *norm, int64_t rows, int64_t columns) {
    int64_t shape[] = {rows, columns / graph_elements(graph, norm->gain), norm_statistics(norm->kind)};
    return graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 3, shape, "statistics");
}

TensorId op_qk_norm(Graph *graph, TensorId qkv, const Norm *query, const Norm *key, const Heads *heads) {
    int64_t shape[] = {graph_rows(graph, qkv), graph_columns(graph, qkv)};
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && shape[1] == (heads->heads + 2 * heads->kv_heads) * heads->head_dim);
    assert_norm(graph, query, part_columns(heads, 0));
    assert_norm(graph, key, part_columns(heads, 1));
    TensorId out[] = {graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "qk_normed"),
        append_statistics(graph, query, shape[0], part_columns(heads, 0)), append_statistics(graph, key, shape[0], part_columns(heads, 1))};
    QkNormAttributes attributes = {.norm = {{query->kind, query->epsilon}, {key->kind, key->epsilon}}, .heads = *heads};
    graph_node(
        graph, OP_qk_norm, (TensorId[]){qkv, query->gain, query->bias, key->gain, key->bias}, 5, out, 3, &attributes, sizeof attributes);
    return out[0];
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId in[] = {d_out[0], node->in[IN_QKV], node->in[IN_QUERY_GAIN], node->in[IN_KEY_GAIN], node->out[OUT_QUERY_STATISTICS],
        node->out[OUT_KEY_STATISTICS]};
    int64_t shape[] = {graph_rows(graph, node->in[IN_QKV]), graph_columns(graph, node->in[IN_QKV])};
    TensorId out[5] = {d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_qkv")};
    for (int i = IN_QUERY_GAIN; i <= IN_KEY_BIAS; i++) out[i] = graph_parameter_gradient(graph, node->in[i]);
    graph_node(graph, OP_qk_norm_grad, in, 6, out, 5, node->attributes, sizeof(QkNormAttributes));
}

/* At most six operations for every column of queries and keys; twice that on the way back. */
static Cost cost(const Graph *graph, const Node *node) {
    const QkNormAttributes *attributes = node->attributes;
    double columns = part_columns(&attributes->heads, 0) + part_columns(&attributes->heads, 1);
    return (Cost){
        .flops = (node->op == OP_qk_norm ? 6 : 12) * columns * graph_rows(graph, node->in[0]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_qk_norm = {.name = "qk_norm", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};

const Op op_rule_qk_norm_grad = {.name = "qk_norm_grad", .adds_to = 0x1e, .cost = cost};
