/* mla_pack: with queries [plain | rotated] and keys and values [plain | value] of each head,
 *     query = [rotated of queries | plain of queries],  key = [shared key | plain of keys],  value = value
 * The products of queries and keys do not depend on the order of channels, if it is the same in
 * both. The gradient of the shared key is the sum over the heads. */
#include "ops/mla/mla.h"

TensorId op_mla_pack(Graph *graph, const MlaProjections *from, const Heads *heads) {
    int64_t rows = graph_rows(graph, from->queries), rotated = graph_columns(graph, from->shared_key), plain = heads->qk_dim - rotated;
    assert(graph_get(graph, from->queries)->type == TYPE_COMPUTE && graph_get(graph, from->keys_values)->type == TYPE_COMPUTE);
    assert(heads->kv_heads == heads->heads && plain > 0 && graph_columns(graph, from->queries) == heads_query_columns(heads));
    assert(graph_columns(graph, from->keys_values) == heads->heads * (plain + heads->v_dim));
    assert(graph_rows(graph, from->keys_values) == rows && graph_rows(graph, from->shared_key) == rows);
    TensorId qkv = graph_activation(graph, TYPE_COMPUTE, rows, heads_columns(heads), "qkv");
    MlaPackAttributes attributes = {.heads = *heads, .rotated = rotated};
    Inputs in = {[MLA_PACK_QUERIES] = from->queries, [MLA_PACK_KEYS_VALUES] = from->keys_values, [MLA_PACK_SHARED_KEY] = from->shared_key};
    graph_node(graph, OP_mla_pack, in, (Outputs){[MLA_PACK_QKV] = qkv}, &attributes, sizeof attributes);
    return qkv;
}

static void mla_pack_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    Outputs out = {0};
    for (int i = MLA_PACK_QUERIES; i <= MLA_PACK_SHARED_KEY; i++)
        out[i] = d_in[i] = graph_activation_like(graph, TYPE_COMPUTE, node->in[i], "d_projection");
    graph_node(graph, OP_mla_pack_grad, (Inputs){[MLA_PACK_GRAD_D_QKV] = d_out[MLA_PACK_QKV]}, out, node->attributes, 0);
}

const Op op_rule_mla_pack = {.name = "mla_pack", .class = OP_CLASS_ATTENTION, .gradient = mla_pack_gradient};
const Op op_rule_mla_pack_grad = {.name = "mla_pack_grad"};
