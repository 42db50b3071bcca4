/* The prologue of compressed convolutional attention (arXiv 2510.04476, in the form of the ZAYA1 code): raw projections
 * u = [q | k | v] become rotated, normalised, packed qkv in one pass. Work is cut into blocks of rows x heads, which are
 * independent; while a block is in cache it is convolved over time twice (depthwise, then a matrix product per head), mixed with
 * the mean of q and k before convolution, brought to length sqrt(head_dim), scaled (keys) and rotated. Half of the value columns
 * come from the previous token.
 *
 * Training keeps one factor per head and row, and the rotated keys before their temperature (which may be zero, so that they
 * cannot be found again from qkv); with those and qkv itself the backward pass need not repeat the matrix product. */
#include "ops/cca/cca.h"
#include "ops/heads.h"

static void assert_shapes(
    const Graph *graph, TensorId u, TensorId rope_table, const CcaParameters *parameters, TensorId state, const Heads *heads) {
    CcaShape s = cca_shape(heads, graph_rows(graph, u));
    assert(heads->heads % heads->kv_heads == 0 && s.values % 2 == 0 && graph_columns(graph, u) == s.columns);
    assert(graph_columns(graph, rope_table) % 2 == 0 && graph_columns(graph, rope_table) <= s.dim);
    assert(graph_elements(graph, parameters->depthwise_weight) == s.convolved * 2);
    assert(graph_elements(graph, parameters->depthwise_bias) == s.convolved);
    assert(graph_elements(graph, parameters->grouped_weight) == s.convolved * s.dim * 2);
    assert(graph_elements(graph, parameters->grouped_bias) == s.convolved);
    assert(graph_elements(graph, parameters->temperature) == s.kv_heads);
    assert(state == TENSOR_NONE || (!graph->training && graph_elements(graph, state) == 2 * s.columns));
    (void)s, (void)graph, (void)rope_table, (void)parameters, (void)state;
}

TensorId op_cca(Graph *graph, TensorId u, TensorId positions, TensorId rope_table, const CcaParameters *parameters, TensorId state,
    const Heads *heads) {
    assert_shapes(graph, u, rope_table, parameters, state, heads);
    CcaShape s = cca_shape(heads, graph_rows(graph, u));
    TensorId out[4] = {graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){s.rows, s.columns}, "qkv")};
    if (graph->training) {
        out[1] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){s.rows, s.values}, "unit_keys");
        out[2] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){s.rows, s.heads + s.kv_heads}, "head_scales");
    }
    out[3] = state;
    TensorId in[] = {u, positions, rope_table, parameters->depthwise_weight, parameters->depthwise_bias, parameters->grouped_weight,
        parameters->grouped_bias, parameters->temperature};
    graph_node(graph, OP_cca, in, 8, out, 4, heads, sizeof *heads);
    return out[0];
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[0] == TENSOR_NONE) return;
    TensorId u = node->in[0];
    d_in[0] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, graph_get(graph, u)->shape, "d_u");
    TensorId in[] = {d_out[0], u, node->in[1], node->in[2], node->in[3], node->in[4], node->in[5], node->in[7], node->out[0], node->out[1],
        node->out[2]};
    TensorId out[6] = {d_in[0]};
    for (int i = 3; i < 8; i++) out[i - 2] = graph_parameter_gradient(graph, node->in[i]);
    graph_node(graph, OP_cca_grad, in, 11, out, 6, node->attributes, sizeof(Heads));
}

static CcaShape node_shape(const Graph *graph, const Node *node) { return cca_shape(node->attributes, graph_rows(graph, node->in[0])); }

/* The grouped convolution; and per channel the depthwise one (4), the mean (3), the norm (4) and the rotation (3). */
static Cost cost(const Graph *graph, const Node *node) {
    CcaShape s = node_shape(graph, node);
    return (Cost){.flops = s.rows * s.convolved * (4.0 * s.dim + 14), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_cca = {.name = "cca", .class = OP_CLASS_ATTENTION, .adds_to = 1 << 3, .gradient = gradient, .cost = cost};
