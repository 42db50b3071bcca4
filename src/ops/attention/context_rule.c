/* Attention when the ranks of AXIS_CP divide sequences (ops/attention/tokens.h defines how).
 * Queries stay on their rank; keys and values come to them in one of two ways (Mesh.ring):
 *     gathered  every rank has the keys of whole sequences while it needs them; they are gathered again for the gradient
 *     ring      one rank's block of keys is present at a time (ring.c): memory does not grow with the sequence
 * This file has the operations around both: splitting packed qkv into queries and keys, reordering
 * gathered rows into sequence order, and adding the results of blocks. The gradients of splitting
 * and reordering are joining and reordering back. */
#include "ops/attention/rule_internal.h"
#include "ops/collective/collective.h"

/* -- Queries apart from keys --------------------------------------------------------------------------------------- */

static TensorId join_queries(Graph *graph, TensorId queries, TensorId kv) {
    int64_t columns = graph_columns(graph, queries) + graph_columns(graph, kv);
    TensorId qkv = graph_activation(graph, TYPE_COMPUTE, graph_rows(graph, queries), columns, "joined");
    Inputs in = {[ATTENTION_JOIN_QUERIES] = queries, [ATTENTION_JOIN_KV] = kv};
    graph_node(graph, OP_attention_join, in, (Outputs){[ATTENTION_JOIN_QKV] = qkv}, NULL, 0);
    return qkv;
}

AttentionParts op_attention_split(Graph *graph, TensorId qkv, const Heads *heads) {
    int64_t rows = graph_rows(graph, qkv);
    AttentionParts parts = {
        .queries = graph_activation(graph, TYPE_COMPUTE, rows, heads_query_columns(heads), "queries"),
        .kv = graph_activation(graph, TYPE_COMPUTE, rows, heads_kv_columns(heads), "kv"),
    };
    assert(graph_get(graph, qkv)->type == TYPE_COMPUTE && graph_columns(graph, qkv) == heads_columns(heads));
    Outputs out = {[ATTENTION_SPLIT_QUERIES] = parts.queries, [ATTENTION_SPLIT_KV] = parts.kv};
    graph_node(graph, OP_attention_split, (Inputs){[ATTENTION_SPLIT_QKV] = qkv}, out, NULL, 0);
    return parts;
}

static void split_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    (void)node;
    assert(d_out[ATTENTION_SPLIT_QUERIES] && d_out[ATTENTION_SPLIT_KV]);
    d_in[ATTENTION_SPLIT_QKV] = join_queries(graph, d_out[ATTENTION_SPLIT_QUERIES], d_out[ATTENTION_SPLIT_KV]);
}

/* -- The order of the sequence ------------------------------------------------------------------------------------- */

static TensorId order(Graph *graph, TensorId x, const AttentionOrder *attributes) {
    TensorId y = graph_activation_like(graph, TYPE_COMPUTE, x, "ordered");
    assert(graph_get(graph, x)->type == TYPE_COMPUTE && graph_rows(graph, x) % attributes->length == 0);
    graph_node(
        graph, OP_attention_order, (Inputs){[ATTENTION_ORDER_X] = x}, (Outputs){[ATTENTION_ORDER_Y] = y}, attributes, sizeof *attributes);
    return y;
}

TensorId op_attention_order(Graph *graph, TensorId x, int64_t length, int64_t ranks) {
    return order(graph, x, &(AttentionOrder){.length = length, .ranks = ranks});
}

static void order_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    AttentionOrder attributes = *(const AttentionOrder *)node->attributes;
    attributes.back = !attributes.back;
    d_in[ATTENTION_ORDER_X] = order(graph, d_out[ATTENTION_ORDER_Y], &attributes);
}

/* -- All of it ----------------------------------------------------------------------------------------------------- */

TensorId attention_of_context(Graph *graph, TensorId qkv, TensorId positions, const AttentionSpec *spec) {
    AttentionSpec own = *spec;
    own.queries.ranks = mesh_size(graph->mesh, MESH(AXIS_CP));
    own.queries.rank = mesh_index(graph->mesh, MESH(AXIS_CP));
    assert(spec->length % (2 * own.queries.ranks) == 0);
    AttentionParts parts = op_attention_split(graph, qkv, &spec->heads);
    if (graph->mesh->ring) return op_attention_ring(graph, parts.queries, positions, parts.kv, &own);
    TensorId gathered = op_all_gather(graph, parts.kv, MESH(AXIS_CP));
    TensorId ordered = op_attention_order(graph, gathered, spec->length, own.queries.ranks);
    return op_attention_over(graph, parts.queries, positions, ordered, &own);
}

const Op op_rule_attention_split = {.name = "attention_split", .class = OP_CLASS_ATTENTION, .gradient = split_gradient};
const Op op_rule_attention_join = {.name = "attention_join"};
const Op op_rule_attention_order = {.name = "attention_order", .class = OP_CLASS_GATHER, .gradient = order_gradient};
const Op op_rule_attention_sum = {.name = "attention_sum", .class = OP_CLASS_ATTENTION, .element_flops = 3};
