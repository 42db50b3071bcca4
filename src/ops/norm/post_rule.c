/* The RMSNorm of a block's output before it is added to the residual stream, in one pass over memory
 * (OLMo 2, arXiv 2501.00656, section 3.2). The sum is also rounded to COMPUTE for the next block,
 * because no norm precedes that block. Recomputation keeps the rounded sum: the stream is twice as
 * large, and the backward pass does not read it. Backward, with ds = d_residual + d_narrow:
 *     d_stream = ds,   d_block and d_gain are those of a norm of `block` whose output has the gradient ds */
#include "ops/norm/norm.h"

ResidualNorm op_post_norm(Graph *graph, TensorId block, TensorId stream, const Norm *norm) {
    int64_t columns = graph_columns(graph, stream);
    assert(graph_elements(graph, block) == graph_elements(graph, stream));
    assert(norm->kind == NORM_RMS && columns % 4 == 0 && columns <= FUSED_NORM_MOST_COLUMNS);
    norm_assert_vectors(graph, norm, columns);
    Inputs in = {[POST_NORM_BLOCK] = block, [POST_NORM_STREAM] = stream, [POST_NORM_GAIN] = norm->gain};
    Outputs out = {[POST_NORM_RESIDUAL] = graph_activation_like(graph, TYPE_WIDE, stream, "stream")};
    out[POST_NORM_NARROW] = graph_activation_like(graph, TYPE_COMPUTE, stream, "narrow");
    out[POST_NORM_STATISTICS] = graph_activation(graph, TYPE_WIDE, graph_rows(graph, stream), norm_statistics(norm->kind), "statistics");
    NormAttributes attributes = {norm->kind, norm->epsilon};
    graph_node(graph, OP_post_norm, in, out, &attributes, sizeof attributes);
    return (ResidualNorm){.stream = out[POST_NORM_RESIDUAL], .normed = out[POST_NORM_NARROW]};
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    TensorId block = node->in[POST_NORM_BLOCK], gain = node->in[POST_NORM_GAIN];
    Inputs in = {[POST_NORM_GRAD_D_RESIDUAL] = d_out[POST_NORM_RESIDUAL], [POST_NORM_GRAD_D_NARROW] = d_out[POST_NORM_NARROW]};
    in[POST_NORM_GRAD_BLOCK] = block, in[POST_NORM_GRAD_GAIN] = gain, in[POST_NORM_GRAD_STATISTICS] = node->out[POST_NORM_STATISTICS];
    Outputs out = {[POST_NORM_GRAD_D_GAIN] = graph_parameter_gradient(graph, gain)};
    out[POST_NORM_GRAD_D_BLOCK] = d_in[POST_NORM_BLOCK] = graph_activation_like(graph, TYPE_COMPUTE, block, "d_block");
    out[POST_NORM_GRAD_D_STREAM] = d_in[POST_NORM_STREAM] = graph_activation_like(graph, TYPE_WIDE, block, "d_stream");
    graph_node(graph, OP_post_norm_grad, in, out, node->attributes, 0);
}

static double flops(const Graph *graph, const Node *node) {
    return (1 + norm_flops(node->attributes)) * graph_elements(graph, node->in[POST_NORM_STREAM]);
}
static double grad_flops(const Graph *graph, const Node *node) {
    return (1 + 2 * norm_flops(node->attributes)) * graph_elements(graph, node->in[POST_NORM_GRAD_BLOCK]);
}

const Op op_rule_post_norm = {.name = "post_norm", .class = OP_CLASS_NORM, .gradient = gradient, .flops = flops};
const Op op_rule_post_norm_grad = {.name = "post_norm_grad", .adds_to = OPERAND(POST_NORM_GRAD_D_GAIN), .flops = grad_flops};
