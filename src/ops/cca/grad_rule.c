/* The backward pass of op cca (see rule.c):
 *   1. through rotation, temperature and norm, row by row, to g [R, C], the gradient of (convolution + mean). The norm
 *      is undone in the rotated frame, since a rotation keeps lengths: with y the rotated, normalised vector and s its
 *      factor, g = s (dy - y (y . dy) / head_dim), rotated back;
 *   2. through the grouped convolution: g times its weight is the gradient of its input, g times that input the
 *      gradient of its weight; then through the depthwise convolution and the mean to du;
 *   3. the parameters' gradients are sums over rows, computed per chunk of rows and added in order of chunks.
 * A document's first row also sends a gradient to the zeros before it; only the depthwise bias keeps some of that. */
#include "ops/cca/cca.h"

/* Flops: of two matmuls; and per channel of norm and rotation (12), the mean (4), the depthwise convolution again (4)
 * and its backward pass (9). */
static double flops(const Graph *graph, const Node *node) {
    CcaShape s = cca_node_shape(graph, node);
    return s.rows * s.convolved * (8.0 * s.dim + 29);
}

const Op op_rule_cca_grad = {.name = "cca_grad", .adds_to = OPERANDS(CCA_GRAD_D_DEPTHWISE_WEIGHT, CCA_GRAD_D_GROUPED_BIAS), .flops = flops};
