/* Attention of new rows of one sequence in generation: their keys and values are written to the cache, then every row
 * attends to the cache up to its position. No gradient. */
#include "ops/attention/attention.h"

TensorId op_attention_cached(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    int64_t rows = graph_rows(graph, qkv);
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_columns(graph, qkv) == heads_columns(h));
    assert(h->kv_heads > 0 && h->heads % h->kv_heads == 0 && spec->window >= 0 && graph_elements(graph, positions) == rows);
    assert(graph_get(graph, cache)->type == TYPE_COMPUTE && graph_get(graph, cache)->arena == ARENA_STATE);
    assert(graph_columns(graph, cache) == 2 * h->kv_heads * h->head_dim);
    TensorId out = graph_activation(graph, TYPE_COMPUTE, rows, h->heads * h->head_dim, "attended");
    graph_node(graph, OP_attention_cached, (Inputs){[ATTENTION_QKV] = qkv, [ATTENTION_POSITIONS] = positions},
        (Outputs){[ATTENTION_CACHED_OUT] = out, [ATTENTION_CACHED_CACHE] = cache}, spec, sizeof *spec);
    return out;
}

/* Two matmuls with every row of the cache, since how much of it is filled is not known here. */
static double flops(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    double pairs = (double)graph_rows(graph, node->in[ATTENTION_QKV]) * graph_rows(graph, node->out[ATTENTION_CACHED_CACHE]);
    return 4 * pairs * spec->heads.heads * spec->heads.head_dim;
}

const Op op_rule_attention_cached = {
    .name = "attention_cached", .class = OP_CLASS_ATTENTION, .adds_to = OPERAND(ATTENTION_CACHED_CACHE), .flops = flops};
