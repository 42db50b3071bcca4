/* The residual add of a block's output and the norm before the next block, in one pass over memory.
 * The residual add is a plain sum or ZAYA1's learned affine one (arXiv 2605.05365, in the form of
 * the released code: the bias is added before the scale). norm.h has the formulas. The stream is
 * WIDE: in bf16 it would lose the early layers after 80 scalings.
 *
 * Backward: with ds [R, D] = d_residual + the norm's gradient, and sums over rows,
 *     d_block = ds * block_scale
 *     d_block_scale += sum(ds * block) + block_bias * sum(ds)
 *     d_block_bias += block_scale * sum(ds)
 * The stream has the same formulas. Three column sums suffice for all four vectors: of ds * block,
 * ds * stream and ds. */
#include "ops/norm/norm.h"

ResidualNorm op_residual_norm(Graph *graph, TensorId block, TensorId stream, const AffineResidual *affine, const Norm *norm) {
    assert(graph_elements(graph, block) == graph_elements(graph, stream));
    norm_assert_vectors(graph, norm, graph_columns(graph, stream));
    Inputs in = {[RESIDUAL_NORM_BLOCK] = block, [RESIDUAL_NORM_STREAM] = stream};
    in[RESIDUAL_NORM_GAIN] = norm->gain, in[RESIDUAL_NORM_BIAS] = norm->bias;
    for (int i = 0; affine && i < AFFINE_VECTORS; i++) in[RESIDUAL_NORM_AFFINE + i] = affine->vectors[i];
    Outputs out = {[RESIDUAL_NORM_RESIDUAL] = graph_activation_like(graph, TYPE_WIDE, stream, "stream")};
    out[RESIDUAL_NORM_NORMED] = graph_activation_like(graph, TYPE_COMPUTE, stream, "normed");
    out[RESIDUAL_NORM_STATISTICS] =
        graph_activation(graph, TYPE_WIDE, graph_rows(graph, stream), norm_statistics(norm->kind), "statistics");
    NormAttributes attributes = {norm->kind, norm->epsilon};
    graph_node(graph, OP_residual_norm, in, out, &attributes, sizeof attributes);
    return (ResidualNorm){.stream = out[RESIDUAL_NORM_RESIDUAL], .normed = out[RESIDUAL_NORM_NORMED]};
}

static void residual_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const TensorId *x = node->in, *y = node->out, stream = x[RESIDUAL_NORM_STREAM];
    Inputs in = {[RESIDUAL_NORM_GRAD_GAIN] = x[RESIDUAL_NORM_GAIN]};
    in[RESIDUAL_NORM_GRAD_D_RESIDUAL] = d_out[RESIDUAL_NORM_RESIDUAL], in[RESIDUAL_NORM_GRAD_D_NORMED] = d_out[RESIDUAL_NORM_NORMED];
    in[RESIDUAL_NORM_GRAD_RESIDUAL] = y[RESIDUAL_NORM_RESIDUAL], in[RESIDUAL_NORM_GRAD_STATISTICS] = y[RESIDUAL_NORM_STATISTICS];
    if (x[RESIDUAL_NORM_AFFINE]) in[RESIDUAL_NORM_GRAD_BLOCK] = x[RESIDUAL_NORM_BLOCK], in[RESIDUAL_NORM_GRAD_STREAM] = stream;
    Outputs out = {0};
    out[RESIDUAL_NORM_GRAD_D_BLOCK] = d_in[RESIDUAL_NORM_BLOCK] = graph_activation_like(graph, TYPE_COMPUTE, stream, "d_block");
    out[RESIDUAL_NORM_GRAD_D_STREAM] = d_in[RESIDUAL_NORM_STREAM] = graph_activation_like(graph, TYPE_WIDE, stream, "d_stream");
    out[RESIDUAL_NORM_GRAD_D_GAIN] = graph_parameter_gradient(graph, x[RESIDUAL_NORM_GAIN]);
    out[RESIDUAL_NORM_GRAD_D_BIAS] = graph_parameter_gradient(graph, x[RESIDUAL_NORM_BIAS]);
    for (int i = 0; i < AFFINE_VECTORS; i++) {
        in[RESIDUAL_NORM_GRAD_AFFINE + i] = x[RESIDUAL_NORM_AFFINE + i];
        out[RESIDUAL_NORM_GRAD_D_AFFINE + i] = graph_parameter_gradient(graph, x[RESIDUAL_NORM_AFFINE + i]);
    }
    graph_node(graph, OP_residual_norm_grad, in, out, node->attributes, 0);
}

/* Recomputes only the norm, from the stream, which is kept. */
static TensorId recompute_residual(Graph *graph, const Node *node, int index) {
    const NormAttributes *attributes = node->attributes;
    if (index != RESIDUAL_NORM_NORMED) return TENSOR_NONE;
    Norm norm = {attributes->kind, node->in[RESIDUAL_NORM_GAIN], node->in[RESIDUAL_NORM_BIAS], attributes->epsilon};
    return op_norm(graph, node->out[RESIDUAL_NORM_RESIDUAL], &norm);
}

int norm_leads_row(const Graph *graph, int reader, int64_t most) {
    if (reader == 0) return 0;
    const Node *norm = &graph->nodes[reader - 1];
    if (norm->op != OP_residual_norm || norm->absorbs || op_amax(norm) || norm->part != norm[1].part) return 0;
    TensorId normed = norm->out[RESIDUAL_NORM_NORMED];
    bool reads = false, plain = ((const NormAttributes *)norm->attributes)->kind == NORM_RMS && !norm->in[RESIDUAL_NORM_AFFINE];
    for (int i = 0; i < norm[1].inputs; i++) reads |= norm[1].in[i] == normed;
    bool alone = reads && op_readers(graph, normed) == 1 && op_readers(graph, norm->out[RESIDUAL_NORM_STATISTICS]) == 0;
    return plain && alone && graph_columns(graph, normed) <= most;
}

/* An element of an affine residual add takes four flops, of a plain one one; in the backward pass
 * seven and none. */
static double residual_flops(const Graph *graph, const Node *node) {
    double add = node->in[RESIDUAL_NORM_AFFINE] ? 4 : 1;
    return (add + norm_flops(node->attributes)) * graph_elements(graph, node->in[RESIDUAL_NORM_STREAM]);
}
static double residual_grad_flops(const Graph *graph, const Node *node) {
    double add = node->in[RESIDUAL_NORM_GRAD_AFFINE] ? 7 : 0;
    return (add + 2 * norm_flops(node->attributes)) * graph_elements(graph, node->in[RESIDUAL_NORM_GRAD_RESIDUAL]);
}

const Op op_rule_residual_norm = {.name = "residual_norm",
    .class = OP_CLASS_NORM,
    .measured = OPERAND(RESIDUAL_NORM_NORMED),
    .amax = OPERAND(RESIDUAL_NORM_AMAX),
    .kept = OPERAND(RESIDUAL_NORM_RESIDUAL),
    .gradient = residual_gradient,
    .recompute = recompute_residual,
    .flops = residual_flops};
const Op op_rule_residual_norm_grad = {.name = "residual_norm_grad",
    .adds_to = OPERANDS(RESIDUAL_NORM_GRAD_D_GAIN, RESIDUAL_NORM_GRAD_D_AFFINE + STREAM_BIAS),
    .measured = OPERAND(RESIDUAL_NORM_GRAD_D_BLOCK),
    .amax = OPERAND(RESIDUAL_NORM_GRAD_AMAX),
    .flops = residual_grad_flops};
