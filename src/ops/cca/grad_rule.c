/* The backward pass of op_cca, in three steps with a barrier after each:
 *   1. through rotation, temperature and norm, row by row, to the gradient g of (convolution + mean). The norm is undone in the
 *      rotated frame, since a rotation keeps lengths: with y the rotated, normalised vector and s its factor,
 *      dx = s (dy - y (y . dy) / head_dim), turned back;
 *   2. through the convolutions, for tasks of CCA_CHUNK rows x one head: g goes back through the grouped weight by one product and
 *      adds to its gradient by another, a CCA_BLOCK of rows at a time; for what the rows after a block send back to it, the
 *      product takes two rows more;
 *   3. the sums of chunks are added to the parameters' gradients in order.
 * A document's first row also sends a gradient to the zeros before it; of those only the depthwise bias keeps something. */
#include "ops/cca/cca.h"

static CcaShape node_shape(const Graph *graph, const Node *node) { return cca_shape(node->attributes, graph_rows(graph, node->in[1])); }

/* Two products; and per channel the norm and rotation (12), the mean (4), the depthwise convolution again (4) and backward (9). */
static Cost cost(const Graph *graph, const Node *node) {
    CcaShape s = node_shape(graph, node);
    return (Cost){.flops = s.rows * s.convolved * (8.0 * s.dim + 29), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_cca_grad = {.name = "cca_grad", .adds_to = 0x3e, .cost = cost};
