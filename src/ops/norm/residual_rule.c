/* The merge of a block's output into the residual stream and the norm before the next block, in one pass over memory:
 * a plain sum or ZAYA1's learned merge (arXiv 2605.05365, in the form of the released code: the bias is added before
 * the scale). Formulas stand in norm.h. The stream is WIDE: in bf16 it loses the early layers after 80 scalings.
 *
 * Backward: with ds [R, D] = d_merged + the norm's gradient, and sums over rows,
 *     d_block = ds * block_scale
 *     d_block_scale += sum(ds * block) + block_bias * sum(ds)
 *     d_block_bias += block_scale * sum(ds)
 * and likewise for the stream. Three column sums suffice for all four vectors: of ds * block, ds * stream and ds. */
#include "ops/norm/norm.h"

ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const AffineMerge *affine, const Norm *norm) {
    int64_t rows = graph_rows(graph, stream), columns = graph_columns(graph, stream), kept = norm_statistics(norm->kind);
    assert(graph_elements(graph, block) == rows * columns && graph_elements(graph, norm->gain) == columns);
    assert(norm->bias == TENSOR_NONE || (norm->kind == NORM_LAYER && graph_elements(graph, norm->bias) == columns));
    int64_t shape[] = {rows, columns};
    TensorId in[RESIDUAL_NORM_INPUTS] = {
        [RESIDUAL_NORM_BLOCK] = block,
        [RESIDUAL_NORM_STREAM] = stream,
        [RESIDUAL_NORM_GAIN] = norm->gain,
        [RESIDUAL_NORM_BIAS] = norm->bias,
        [RESIDUAL_NORM_BLOCK_SCALE] = affine ? affine->block_scale : TENSOR_NONE,
        [RESIDUAL_NORM_BLOCK_BIAS] = affine ? affine->block_bias : TENSOR_NONE,
        [RESIDUAL_NORM_STREAM_SCALE] = affine ? affine->stream_scale : TENSOR_NONE,
        [RESIDUAL_NORM_STREAM_BIAS] = affine ? affine->stream_bias : TENSOR_NONE,
    };
    TensorId out[RESIDUAL_NORM_OUTPUTS];
    out[RESIDUAL_NORM_MERGED] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "stream");
    out[RESIDUAL_NORM_NORMED] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "normed");
    out[RESIDUAL_NORM_STATISTICS] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, (int64_t[]){rows, kept}, "statistics");
    NormAttributes attributes = {.kind = norm->kind, .epsilon = norm->epsilon};
    graph_node(graph, OP_residual_norm, in, RESIDUAL_NORM_INPUTS, out, RESIDUAL_NORM_OUTPUTS, &attributes, sizeof attributes);
    return (ResidualNorm){.stream = out[RESIDUAL_NORM_MERGED], .normed = out[RESIDUAL_NORM_NORMED]};
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const TensorId *x = node->in;
    bool affine = x[RESIDUAL_NORM_BLOCK_SCALE] != TENSOR_NONE;
    int64_t shape[] = {graph_rows(graph, x[RESIDUAL_NORM_STREAM]), graph_columns(graph, x[RESIDUAL_NORM_STREAM])};
    TensorId in[RESIDUAL_NORM_GRAD_INPUTS] = {
        [RESIDUAL_NORM_GRAD_D_MERGED] = d_out[RESIDUAL_NORM_MERGED],
        [RESIDUAL_NORM_GRAD_D_NORMED] = d_out[RESIDUAL_NORM_NORMED],
        [RESIDUAL_NORM_GRAD_BLOCK] = affine ? x[RESIDUAL_NORM_BLOCK] : TENSOR_NONE,
        [RESIDUAL_NORM_GRAD_STREAM] = affine ? x[RESIDUAL_NORM_STREAM] : TENSOR_NONE,
        [RESIDUAL_NORM_GRAD_MERGED] = node->out[RESIDUAL_NORM_MERGED],
        [RESIDUAL_NORM_GRAD_STATISTICS] = node->out[RESIDUAL_NORM_STATISTICS],
        [RESIDUAL_NORM_GRAD_GAIN] = x[RESIDUAL_NORM_GAIN],
        [RESIDUAL_NORM_GRAD_BLOCK_SCALE] = x[RESIDUAL_NORM_BLOCK_SCALE],
        [RESIDUAL_NORM_GRAD_BLOCK_BIAS] = x[RESIDUAL_NORM_BLOCK_BIAS],
        [RESIDUAL_NORM_GRAD_STREAM_SCALE] = x[RESIDUAL_NORM_STREAM_SCALE],
        [RESIDUAL_NORM_GRAD_STREAM_BIAS] = x[RESIDUAL_NORM_STREAM_BIAS],
    };
    TensorId out[RESIDUAL_NORM_GRAD_OUTPUTS];
    out[RESIDUAL_NORM_GRAD_D_BLOCK] = d_in[RESIDUAL_NORM_BLOCK] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_block");
    out[RESIDUAL_NORM_GRAD_D_STREAM] = d_in[RESIDUAL_NORM_STREAM] = graph_tensor(graph, ARENA_ACTIVATION, TYPE_WIDE, 2, shape, "d_stream");
    for (int i = RESIDUAL_NORM_GRAD_D_GAIN; i < RESIDUAL_NORM_GRAD_OUTPUTS; i++) /* in the order of the parameters */
        out[i] = graph_parameter_gradient(graph, x[RESIDUAL_NORM_GAIN + i - RESIDUAL_NORM_GRAD_D_GAIN]);
    graph_node(graph, OP_residual_norm_grad, in, RESIDUAL_NORM_GRAD_INPUTS, out, RESIDUAL_NORM_GRAD_OUTPUTS, node->attributes,
        sizeof(NormAttributes));
}

/* Only the norm is computed again, from the merged stream that is kept. */
static TensorId recompute(Graph *graph, const Node *node, int index) {
    const NormAttributes *attributes = node->attributes;
    if (index != RESIDUAL_NORM_NORMED) return TENSOR_NONE;
    Norm norm = {.kind = attributes->kind,
        .gain = node->in[RESIDUAL_NORM_GAIN],
        .bias = node->in[RESIDUAL_NORM_BIAS],
        .epsilon = attributes->epsilon};
    return op_norm(graph, node->out[RESIDUAL_NORM_MERGED], &norm);
}

/* An element of an affine merge takes four flops, of a plain one one; backward seven and none. */
static Cost cost(const Graph *graph, const Node *node) {
    double elements = graph_elements(graph, node->in[RESIDUAL_NORM_STREAM]), merge = node->in[RESIDUAL_NORM_BLOCK_SCALE] ? 4 : 1;
    return (Cost){.flops = (merge + norm_flops(node->attributes)) * elements, .bytes = op_tensor_bytes(graph, node)};
}
static Cost grad_cost(const Graph *graph, const Node *node) {
    double elements = graph_elements(graph, node->in[RESIDUAL_NORM_GRAD_MERGED]), merge = node->in[RESIDUAL_NORM_GRAD_BLOCK_SCALE] ? 7 : 0;
    return (Cost){.flops = (merge + 2 * norm_flops(node->attributes)) * elements, .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_residual_norm = {
    .name = "residual_norm", .class = OP_CLASS_NORM, .gradient = gradient, .recompute = recompute, .cost = cost};
const Op op_rule_residual_norm_grad = {.name = "residual_norm_grad",
    .adds_to = OPERAND(RESIDUAL_NORM_GRAD_D_GAIN) | OPERAND(RESIDUAL_NORM_GRAD_D_BIAS) | OPERAND(RESIDUAL_NORM_GRAD_D_BLOCK_SCALE) |
               OPERAND(RESIDUAL_NORM_GRAD_D_BLOCK_BIAS) | OPERAND(RESIDUAL_NORM_GRAD_D_STREAM_SCALE) |
               OPERAND(RESIDUAL_NORM_GRAD_D_STREAM_BIAS),
    .cost = grad_cost};
