/* The prologue of compressed convolutional attention (arXiv 2510.04476, in the form of the ZAYA1
 * code). For each token of u = [q | k | v] [R, columns], with history reset when positions[r] is 0:
 *     c = depthwise(q | k), then y = grouped(c), causal convolutions over time of two taps each, one group per head
 *     y += qk-mean: for a query head (q + its k) / 2, for a key head (k + the mean of its group's q) / 2
 *     y = y / |y| * sqrt(qk_dim) per head, keys times their temperature, then RoPE of the first channels
 *     v = [first half of this token's v | second half of the previous token's v]
 * The halves are those of the model's values; rows may have only a part of the values
 * (CcaSpec.delayed). Training keeps one factor per head and row, and the rotated keys before their
 * temperature, because the temperature may be zero and qkv then does not determine these keys. With
 * these and qkv itself, the backward pass need not repeat the matmul.
 *
 * The backward pass has three steps:
 *   1. through rotation, temperature and norm, row by row, to g [R, C], the gradient of
 *      (convolution + mean). The norm is undone in the rotated frame, since a rotation keeps
 *      lengths: with y the rotated, normalized vector and s its factor,
 *      g = s (dy - y (y . dy) / qk_dim), rotated back; g = s dy if the norm is at its lower
 *      limit, a constant;
 *   2. through the grouped convolution: g times its weight is the gradient of its input, g times
 *      that input the gradient of its weight; then through the depthwise convolution and the mean
 *      to du;
 *   3. the parameters' gradients are sums over rows, computed per chunk of rows and added in order
 *      of chunks.
 * A document's first row also sends a gradient to the zeros before it; only the depthwise bias
 * receives some of it. The first row of a chunk in the middle of a document sends a gradient to the
 * halo, which belongs to the previous chunk. */
#include "ops/cca/cca.h"

#include <string.h>

static bool is_state(const Graph *graph, TensorId halo) { return halo != TENSOR_NONE && graph_get(graph, halo)->arena == ARENA_STATE; }

static void assert_cca_shapes(
    const Graph *graph, TensorId u, TensorId rope_table, const CcaParameters *parameters, TensorId halo, const CcaSpec *spec) {
    CcaShape s = cca_shape(spec, graph_rows(graph, u));
    assert(s.current >= 0 && s.current <= s.values && graph_columns(graph, u) == s.columns);
    assert(graph_columns(graph, rope_table) % 2 == 0 && graph_columns(graph, rope_table) <= s.dim);
    assert(graph_elements(graph, parameters->depthwise_weight) == s.convolved * 2);
    assert(graph_elements(graph, parameters->depthwise_bias) == s.convolved);
    assert(graph_elements(graph, parameters->grouped_weight) == s.convolved * s.dim * 2);
    assert(graph_elements(graph, parameters->grouped_bias) == s.convolved);
    assert(graph_elements(graph, parameters->temperature) == s.kv_heads);
    if (halo == TENSOR_NONE) return;
    int64_t chunks = graph_rows(graph, halo) / CCA_HALO_ROWS;
    assert(graph_columns(graph, halo) == s.columns && chunks > 0 && s.rows % chunks == 0);
    assert(!is_state(graph, halo) || (!graph->training && chunks == 1));
}

TensorId op_cca(Graph *graph, TensorId u, TensorId positions, TensorId rope_table, const CcaParameters *parameters, TensorId halo,
    const CcaSpec *spec) {
    assert_cca_shapes(graph, u, rope_table, parameters, halo, spec);
    CcaShape s = cca_shape(spec, graph_rows(graph, u));
    Inputs in = {[CCA_U] = u, [CCA_POSITIONS] = positions, [CCA_ROPE_TABLE] = rope_table, [CCA_HALO] = halo};
    in[CCA_DEPTHWISE_WEIGHT] = parameters->depthwise_weight, in[CCA_DEPTHWISE_BIAS] = parameters->depthwise_bias;
    in[CCA_GROUPED_WEIGHT] = parameters->grouped_weight, in[CCA_GROUPED_BIAS] = parameters->grouped_bias;
    in[CCA_TEMPERATURE] = parameters->temperature;
    Outputs out = {[CCA_STATE] = is_state(graph, halo) ? halo : TENSOR_NONE};
    out[CCA_QKV] = graph_activation(graph, TYPE_COMPUTE, s.rows, s.columns, "qkv");
    if (graph->training) {
        out[CCA_UNIT_KEYS] = graph_activation(graph, TYPE_COMPUTE, s.rows, s.values, "unit_keys");
        out[CCA_HEAD_SCALES] = graph_activation(graph, TYPE_WIDE, s.rows, s.heads + s.kv_heads, "head_scales");
    }
    graph_node(graph, OP_cca, in, out, spec, sizeof *spec);
    return out[CCA_QKV];
}

static void cca_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    if (d_out[CCA_QKV] == TENSOR_NONE) return;
    Inputs in;
    memcpy(in, node->in, sizeof in);
    in[CCA_GRAD_D_QKV] = d_out[CCA_QKV], in[CCA_GRAD_QKV] = node->out[CCA_QKV];
    in[CCA_GRAD_UNIT_KEYS] = node->out[CCA_UNIT_KEYS], in[CCA_GRAD_HEAD_SCALES] = node->out[CCA_HEAD_SCALES];
    d_in[CCA_U] = graph_activation_like(graph, TYPE_COMPUTE, node->in[CCA_U], "d_u");
    Outputs out = {[CCA_GRAD_D_U] = d_in[CCA_U]};
    for (int i = CCA_DEPTHWISE_WEIGHT; i <= CCA_GROUPED_BIAS; i++) /* in parameter order */
        out[CCA_GRAD_D_DEPTHWISE_WEIGHT + i - CCA_DEPTHWISE_WEIGHT] = graph_parameter_gradient(graph, node->in[i]);
    if (node->in[CCA_HALO])
        out[CCA_GRAD_D_HALO] = d_in[CCA_HALO] = graph_activation_like(graph, TYPE_COMPUTE, node->in[CCA_HALO], "d_halo");
    graph_node(graph, OP_cca_grad, in, out, node->attributes, 0);
}

/* Counts flops of the grouped convolution and, per channel, of the depthwise one (4), the mean (3),
 * the norm (4) and RoPE (3). */
static double cca_flops(const Graph *graph, const Node *node) {
    CcaShape s = cca_node_shape(graph, node);
    return s.rows * s.convolved * (4.0 * s.dim + 14);
}

/* Counts flops of two matmuls and, per channel, of norm and RoPE (12), the mean (4), the depthwise
 * convolution again (4) and its backward pass (9). */
static double cca_grad_flops(const Graph *graph, const Node *node) {
    CcaShape s = cca_node_shape(graph, node);
    return s.rows * s.convolved * (8.0 * s.dim + 29);
}

const Op op_rule_cca = {.name = "cca",
    .class = OP_CLASS_ATTENTION,
    .adds_to = OPERAND(CCA_STATE),
    .gradient = cca_gradient,
    .flops = cca_flops,
    .teraflops = 40};
const Op op_rule_cca_grad = {.name = "cca_grad",
    .adds_to = OPERANDS(CCA_GRAD_D_DEPTHWISE_WEIGHT, CCA_GRAD_D_GROUPED_BIAS),
    .flops = cca_grad_flops,
    .teraflops = 40};
