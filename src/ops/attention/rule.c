/* Attention, causal or bidirectional, with grouped queries over packed rows, and its gradient
 * (FlashAttention-2, arXiv 2307.08691). For each query head, with Q, K [length, qk_dim] and V [length,
 * v_dim] of a sequence:
 *     P = softmax(S),  O = P V, with S of Q K^T as in scores.h
 *     delta = rowsum(dO * O),  dV = P^T dO,  dS = P * (dO V^T - delta),  dQ = scale * dS K,  dK = scale * dS^T Q
 * A soft-cap multiplies dS by its slope; a sink takes its share of P.
 * Only one block of scores exists at a time. The forward pass keeps O and one log-sum-exp per row
 * and head for the backward pass, which recomputes P. In generation, keys and values of new rows
 * are written to a cache, then every row attends to the cache up to its position. */
#include "base/math.h"
#include "ops/attention/rule_internal.h"
#include "ops/collective/collective.h"

static void assert_attention_shapes(const Graph *graph, TensorId queries, int64_t columns, TensorId positions, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    assert(graph_get(graph, queries)->type == TYPE_COMPUTE && graph_columns(graph, queries) == columns);
    const AttentionScores *scores = &spec->scores;
    bool plain = scores->window == 0 && scores->alibi == 0 && !scores->sinks;
    assert(h->kv_heads > 0 && h->heads % h->kv_heads == 0 && scores->window >= 0);
    assert(!spec->bidirectional || (plain && spec->queries.ranks <= 1 && spec->keys.ranks <= 1));
    assert(!scores->sinks || (graph_get(graph, scores->sinks)->type == TYPE_WIDE && graph_elements(graph, scores->sinks) == h->heads));
    assert(graph_elements(graph, positions) == graph_rows(graph, queries));
}

static TensorId append_attention(Graph *graph, const Inputs in, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    int64_t rows = graph_rows(graph, in[ATTENTION_QKV]);
    Outputs out = {[ATTENTION_OUT] = graph_activation(graph, TYPE_COMPUTE, rows, heads_out_columns(h), "attended")};
    if (graph->training) out[ATTENTION_LOG_SUM] = graph_activation(graph, TYPE_WIDE, rows, h->heads, "log_sum_exp");
    graph_node(graph, OP_attention, in, out, spec, sizeof *spec);
    return out[ATTENTION_OUT];
}

TensorId op_attention(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec) {
    assert_attention_shapes(graph, qkv, heads_columns(&spec->heads), positions, spec);
    if (mesh_size(graph->mesh, MESH(AXIS_CP)) > 1) {
        assert(!spec->bidirectional);
        return attention_of_context(graph, qkv, positions, spec);
    }
    assert(spec->length > 0 && graph_rows(graph, qkv) % spec->length == 0);
    return append_attention(
        graph, (Inputs){[ATTENTION_QKV] = qkv, [ATTENTION_POSITIONS] = positions, [ATTENTION_SINKS] = spec->scores.sinks}, spec);
}

TensorId op_attention_over(Graph *graph, TensorId queries, TensorId positions, TensorId kv, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    assert_attention_shapes(graph, queries, heads_query_columns(h), positions, spec);
    assert(graph_get(graph, kv)->type == TYPE_COMPUTE && graph_columns(graph, kv) == heads_kv_columns(h));
    assert(graph_rows(graph, queries) * int_max(spec->queries.ranks, 1) == graph_rows(graph, kv) * int_max(spec->keys.ranks, 1));
    Inputs in = {
        [ATTENTION_QKV] = queries,
        [ATTENTION_POSITIONS] = positions,
        [ATTENTION_KV] = kv,
        [ATTENTION_SINKS] = spec->scores.sinks,
    };
    return append_attention(graph, in, spec);
}

void attention_append_gradient(Graph *graph, int op, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[ATTENTION_OUT] == TENSOR_NONE) return;
    bool packed = node->in[ATTENTION_KV] == TENSOR_NONE;
    d_in[ATTENTION_QKV] = graph_activation_like(graph, TYPE_COMPUTE, node->in[ATTENTION_QKV], packed ? "d_qkv" : "d_queries");
    if (!packed) d_in[ATTENTION_KV] = graph_activation_like(graph, TYPE_COMPUTE, node->in[ATTENTION_KV], "d_kv");
    Inputs in = {
        [ATTENTION_QKV] = node->in[ATTENTION_QKV],
        [ATTENTION_POSITIONS] = node->in[ATTENTION_POSITIONS],
        [ATTENTION_KV] = node->in[ATTENTION_KV],
        [ATTENTION_SINKS] = node->in[ATTENTION_SINKS],
        [ATTENTION_GRAD_D_OUT] = d_out[ATTENTION_OUT],
        [ATTENTION_GRAD_OUT] = node->out[ATTENTION_OUT],
        [ATTENTION_GRAD_LOG_SUM] = node->out[ATTENTION_LOG_SUM],
    };
    Outputs out = {
        [ATTENTION_GRAD_D_QKV] = d_in[ATTENTION_QKV],
        [ATTENTION_GRAD_D_KV] = d_in[ATTENTION_KV],
        [ATTENTION_GRAD_D_SINKS] = graph_parameter_gradient(graph, node->in[ATTENTION_SINKS]),
    };
    graph_node(graph, op, in, out, node->attributes, 0);
}

static void append_attention_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    attention_append_gradient(graph, OP_attention_grad, node, d_out, d_in);
}

/* Returns the flops of matmuls over all pairs of a query and a key that it sees, for matmuls of
 * `columns` columns of a head in all. Every rank of queries, and of keys, has about an equal part. Documents are not known here. */
static double matmul_flops(const Graph *graph, const Node *node, int64_t columns) {
    const AttentionSpec *spec = node->attributes;
    int64_t seen = spec->scores.window > 0 ? int_min(spec->scores.window, spec->length) : spec->length, keys = int_max(spec->keys.ranks, 1);
    double pairs = seen * (seen + 1) / 2.0 + (double)(spec->length - seen) * seen;
    if (spec->bidirectional) pairs = (double)spec->length * (double)spec->length;
    double sequences = (double)graph_rows(graph, node->in[ATTENTION_QKV]) / (double)spec->length;
    return 2.0 * columns * pairs * sequences / (double)keys * spec->heads.heads;
}

static const Heads *heads_of(const Node *node) { return &((const AttentionSpec *)node->attributes)->heads; }
double attention_flops(const Graph *graph, const Node *node) {
    return matmul_flops(graph, node, heads_of(node)->qk_dim + heads_of(node)->v_dim);
}
double attention_grad_flops(const Graph *graph, const Node *node) {
    return matmul_flops(graph, node, 3 * heads_of(node)->qk_dim + 2 * heads_of(node)->v_dim);
}

const Op op_rule_attention = {.name = "attention",
    .class = OP_CLASS_ATTENTION,
    .measured = OPERAND(ATTENTION_OUT),
    .amax = OPERAND(ATTENTION_AMAX),
    .gradient = append_attention_gradient,
    .flops = attention_flops,
    .teraflops = 400};
const Op op_rule_attention_grad = {
    .name = "attention_grad", .adds_to = OPERAND(ATTENTION_GRAD_D_SINKS), .flops = attention_grad_flops, .teraflops = 420};

/* -- Over a key-value cache in generation: no gradient --------------------------------------------------------------- */

int64_t attention_cache_rows(const Graph *graph, int64_t context) {
    return block_cyclic_rows((BlockCyclic){0, attention_block_cyclic(graph->mesh).ranks}, (int32_t)context); /* rank 0 has the most */
}

/* Appends the node of attention over a cache, whose inputs are those of append_attention and whose output is `out`. */
static void append_cached(Graph *graph, const Inputs in, TensorId cache, TensorId out, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    TensorId qkv = in[ATTENTION_QKV], positions = in[ATTENTION_POSITIONS], first_rows = in[ATTENTION_CACHED_FIRST_ROWS];
    assert_attention_shapes(graph, qkv, heads_columns(h), positions, spec);
    assert(graph_get(graph, cache)->type == TYPE_COMPUTE && graph_get(graph, cache)->arena == ARENA_STATE);
    assert(graph_columns(graph, cache) == heads_kv_columns(h));
    assert(spec->length > 0 && graph_rows(graph, qkv) == spec->length * (first_rows ? graph_elements(graph, first_rows) : 1));
    graph_node(
        graph, OP_attention_cached, in, (Outputs){[ATTENTION_CACHED_OUT] = out, [ATTENTION_CACHED_CACHE] = cache}, spec, sizeof *spec);
}

TensorId op_attention_part(Graph *graph, TensorId qkv, TensorId positions, TensorId cache, const AttentionSpec *spec) {
    TensorId part = graph_activation(graph, TYPE_WIDE, graph_rows(graph, qkv), attention_part_columns(&spec->heads), "attended_part");
    append_cached(graph, (Inputs){[ATTENTION_QKV] = qkv, [ATTENTION_POSITIONS] = positions, [ATTENTION_SINKS] = spec->scores.sinks}, cache,
        part, spec);
    return part;
}

TensorId op_attention_combine(Graph *graph, TensorId parts, const AttentionSpec *spec) {
    const Heads *h = &spec->heads;
    int ranks = attention_block_cyclic(graph->mesh).ranks;
    assert(graph_get(graph, parts)->type == TYPE_WIDE && graph_columns(graph, parts) == attention_part_columns(h));
    assert(graph_rows(graph, parts) % ranks == 0);
    TensorId out = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, parts) / ranks, heads_out_columns(h), "attended");
    graph_node(graph, OP_attention_combine, (Inputs){[ATTENTION_COMBINE_PARTS] = parts}, (Outputs){[ATTENTION_COMBINE_OUT] = out}, spec,
        sizeof *spec);
    return out;
}

TensorId op_attention_cached(
    Graph *graph, TensorId qkv, TensorId positions, TensorId cache, TensorId first_rows, const AttentionSpec *spec) {
    if (attention_block_cyclic(graph->mesh).ranks > 1) {
        assert(first_rows == TENSOR_NONE);
        TensorId part = op_attention_part(graph, qkv, positions, cache, spec);
        return op_attention_combine(graph, op_all_gather(graph, part, MESH(AXIS_CP)), spec);
    }
    TensorId out = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, qkv), heads_out_columns(&spec->heads), "attended");
    Inputs in = {
        [ATTENTION_QKV] = qkv,
        [ATTENTION_POSITIONS] = positions,
        [ATTENTION_SINKS] = spec->scores.sinks,
        [ATTENTION_CACHED_FIRST_ROWS] = first_rows,
    };
    append_cached(graph, in, cache, out, spec);
    return out;
}

/* Counts two matmuls with every row of a sequence's share of this rank's cache, because the fill
 * level is not known here. */
static double cached_flops(const Graph *graph, const Node *node) {
    const AttentionSpec *spec = node->attributes;
    double pairs = (double)spec->length * graph_rows(graph, node->out[ATTENTION_CACHED_CACHE]);
    return 2 * pairs * spec->heads.heads * (spec->heads.qk_dim + spec->heads.v_dim);
}

const Op op_rule_attention_cached = {
    .name = "attention_cached", .class = OP_CLASS_ATTENTION, .adds_to = OPERAND(ATTENTION_CACHED_CACHE), .flops = cached_flops};
const Op op_rule_attention_combine = {.name = "attention_combine", .class = OP_CLASS_ATTENTION, .element_flops = 2};
