/* Attention of new rows of one sequence in generation: their keys and values go to the cache first, then every row attends to the cache up to its
 * own position. No gradients. A tile holds pairs of row and query head that share a key-value head, row by row, so one new row still
 * fills a vector with the heads of its group. */
#include "ops/attention/attention.h"
#include "ops/heads.h"

TensorId op_attention_cached(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    int64_t rows = graph_rows(graph, qkv);
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_columns(graph, qkv) == (h->heads + 2 * h->kv_heads) * h->head_dim);
    assert(h->kv_heads > 0 && h->heads % h->kv_heads == 0 && spec->window >= 0 && graph_elements(graph, positions) == rows);
    assert(graph_get(graph, cache)->type == TYPE_COMPUTE && graph_get(graph, cache)->arena == ARENA_STATE);
    assert(graph_columns(graph, cache) == 2 * h->kv_heads * h->head_dim);
    TensorId out = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){rows, h->heads * h->head_dim}, "attended");
    graph_node(graph, OP_attention_cached, (TensorId[]){qkv, positions}, 2, (TensorId[]){out, cache}, 2, spec, sizeof *spec);
    return out;
}

/* Two products with every row of the cache, since how much of it is filled is not known here. */
static Cost cost(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    double pairs = (double)graph_rows(graph, node->in[0]) * graph_rows(graph, node->out[1]);
    return (Cost){.flops = 4 * pairs * spec->heads.heads * spec->heads.head_dim, .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_attention_cached = {.name = "attention_cached", .class = OP_CLASS_ATTENTION, .adds_to = 1 << 1, .cost = cost};
