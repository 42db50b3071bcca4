/* The merge of a block's output into the residual stream, and the norm in front of the next block, in one pass over
 * memory. ZAYA1's learned merge (arXiv 2605.05365, in the form of the released code: the bias is added before the scale) or a
 * plain sum. The stream is WIDE: a bf16 stream loses early layers after 80 scalings.
 *
 * Backward: with ds = d_stream' + the norm's gradient,
 *     d_block = ds * block_scale,       d_block_scale += sum of ds * (block + block_bias),     d_block_bias += block_scale * sum of ds,
 * and the same for the stream. So four column sums suffice: of dy * n, ds * block, ds * stream and ds. */
#include "ops/norm/norm.h"

ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const TensorId affine[4], const Norm *norm) {
    int64_t rows = graph_rows(graph, stream), columns = graph_columns(graph, stream), kept = norm_statistics(norm->kind);
    assert(graph_elements(graph, block) == rows * columns && graph_elements(graph, norm->gain) == columns);
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && graph_elements(graph, norm->bias) == columns));
    int64_t shape[] = {rows, columns};
    TensorId merged = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "stream");
    TensorId normed = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "normed");
    TensorId statistics = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, kept}, "statistics");
    NormAttributes attributes = {.kind = norm->kind, .epsilon = norm->epsilon};
    TensorId in[] = {block, stream, norm->gain, norm->bias, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE, TENSOR_NONE};
    for (int i = 0; affine && i < 4; i++) in[IN_AFFINE + i] = affine[i];
    graph_node(graph, OP_residual_norm, in, 8, (TensorId[]){merged, normed, statistics}, 3, &attributes, sizeof attributes);
    return (ResidualNorm){.stream = merged, .normed = normed};
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const TensorId *affine = &node->in[IN_AFFINE];
    bool scaled = affine[0] != TENSOR_NONE;
    int64_t shape[] = {graph_rows(graph, node->in[IN_STREAM]), graph_columns(graph, node->in[IN_STREAM])};
    TensorId in[] = {d_out[OUT_STREAM], d_out[OUT_NORMED], scaled ? node->in[IN_BLOCK] : TENSOR_NONE,
        scaled ? node->in[IN_STREAM] : TENSOR_NONE, node->out[OUT_STREAM], node->out[OUT_STATISTICS], node->in[IN_GAIN], affine[0],
        affine[1], affine[2], affine[3]};
    TensorId out[GRAD_OUT_AFFINE + 4];
    out[GRAD_OUT_BLOCK] = d_in[IN_BLOCK] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_block");
    out[GRAD_OUT_STREAM] = d_in[IN_STREAM] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "d_stream");
    out[GRAD_OUT_GAIN] = graph_parameter_gradient(graph, node->in[IN_GAIN]);
    out[GRAD_OUT_BIAS] = graph_parameter_gradient(graph, node->in[IN_BIAS]);
    for (int i = 0; i < 4; i++) out[GRAD_OUT_AFFINE + i] = graph_parameter_gradient(graph, affine[i]);
    graph_node(graph, OP_residual_norm_grad, in, 11, out, 8, node->attributes, sizeof(NormAttributes));
}

/* The stream is kept; the norm is made again from it. */
static TensorId recompute(Graph *graph, const Node *node, int index) {
    const NormAttributes *attributes = node->attributes;
    if (index != OUT_NORMED) return TENSOR_NONE;
    Norm norm = {.kind = attributes->kind, .gain = node->in[IN_GAIN], .bias = node->in[IN_BIAS], .epsilon = attributes->epsilon};
    return op_norm(graph, node->out[OUT_STREAM], &norm);
}

/* A norm: four operations an element, two more for a mean. */
static double norm_operations(const Node *node) {
    const NormAttributes *attributes = node->attributes;
    return attributes->kind == NORM_LAYER ? 6 : 4;
}

/* Merge: four operations (one when plain), and the norm. */
static Cost cost(const Graph *graph, const Node *node) {
    double elements = graph_elements(graph, node->in[IN_STREAM]);
    return (Cost){.flops = ((node->in[IN_AFFINE] ? 4 : 1) + norm_operations(node)) * elements, .bytes = op_tensor_bytes(graph, node)};
}

static Cost grad_cost(const Graph *graph, const Node *node) {
    double elements = graph_elements(graph, node->in[GRAD_MERGED]);
    return (Cost){.flops = ((node->in[GRAD_AFFINE] ? 7 : 0) + 2 * norm_operations(node)) * elements, .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_residual_norm = {
    .name = "residual_norm", .class = OP_CLASS_NORM, .gradient = gradient, .recompute = recompute, .cost = cost};

const Op op_rule_residual_norm_grad = {.name = "residual_norm_grad", .adds_to = 0xfc, .cost = grad_cost};
