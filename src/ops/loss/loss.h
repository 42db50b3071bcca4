/* loss: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* loss[0] += scale[0] * sum over rows with target >= 0 of -log softmax(x w^T)[target]. A chunk of rows at a time, so all logits never
 * exist at once. In training it makes the gradients in the same pass: dx (COMPUTE) and an addition to w's gradient. scale: INPUT WIDE [1]. */
void op_linear_cross_entropy(Graph *graph, TensorId x, TensorId w, TensorId targets, TensorId scale, TensorId loss);

/* The last row of x: [1, D]. */
TensorId op_last_row(Graph *graph, TensorId x);
