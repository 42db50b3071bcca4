/* Causal attention with grouped queries over packed rows, and its gradient (FlashAttention-2, arXiv 2307.08691): scores exist one block at a
 * time, and what the backward pass keeps is the output and one log-sum-exp per row and head.
 *     P = softmax(Q K^T / sqrt(head_dim) + bias),  O = P V,  D = rowsum(dO * O)
 *     dV = P^T dO,  dS = P * (dO V^T - D),  dQ = dS K / sqrt(head_dim),  dK = dS^T Q / sqrt(head_dim)
 *
 * Work is cut by shape alone. A pair is a sequence and a key-value head; the query blocks of a pair are cut into parts of about equal cost,
 * as few as give ATTENTION_ITEMS pieces of work. Keys and values are widened into scratch: where a pair is one part, block after block with the
 * queries that see them first, otherwise before all else, since parts share them. In the backward pass every part adds to its own dK and dV, in the
 * order of its tiles, and the parts are then added in order. What a part needs for itself alone is a thread's, so that it stays in caches. */
#include "base/math.h"
#include "ops/attention/attention.h"
#include "ops/heads.h"

TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    int64_t rows = graph_rows(graph, qkv);
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_columns(graph, qkv) == (h->heads + 2 * h->kv_heads) * h->head_dim);
    assert(h->kv_heads > 0 && h->heads % h->kv_heads == 0 && spec->window >= 0);
    assert(spec->length > 0 && rows % spec->length == 0 && graph_elements(graph, positions) == rows);
    TensorId out[2] = {graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){rows, h->heads * h->head_dim}, "attended")};
    if (graph->training) out[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, h->heads}, "log_sum_exp");
    graph_node(graph, OP_attention, (TensorId[]){qkv, positions}, 2, out, 2, spec, sizeof *spec);
    return out[0];
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, node->in[0])->shape, "d_qkv");
    graph_node(graph, OP_attention_grad, (TensorId[]){d_out[0], node->in[0], node->in[1], node->out[0], node->out[1]}, 5, d_in, 1,
        node->attributes, sizeof(AttentionSpec));
}

/* Of `products` block products with every seen pair of query and key; documents are not known here. */
static Cost product_cost(const Graph *graph, const Node *node, int products) {
    const AttentionSpec *spec = node->attributes;
    int64_t rows = graph_rows(graph, node->in[0]), seen = spec->window > 0 ? int_min(spec->window, spec->length) : spec->length;
    double pairs = seen * (seen + 1) / 2.0 + (double)(spec->length - seen) * seen;
    return (Cost){.flops = 2.0 * products * pairs * (rows / spec->length) * spec->heads.heads * spec->heads.head_dim,
        .bytes = op_tensor_bytes(graph, node)};
}

static Cost cost(const Graph *graph, const Node *node) { return product_cost(graph, node, 2); }

static Cost grad_cost(const Graph *graph, const Node *node) { return product_cost(graph, node, 5); }

const Op op_rule_attention = {.name = "attention", .class = OP_CLASS_ATTENTION, .gradient = gradient, .cost = cost};

const Op op_rule_attention_grad = {.name = "attention_grad", .cost = grad_cost};
