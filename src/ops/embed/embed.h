/* embed: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* h[r] = (table[token[r]] + bias) * scale, WIDE [R, D]. bias and scale [D] are both given or both TENSOR_NONE. */
TensorId op_embed(Graph *graph, TensorId tokens, TensorId table, TensorId bias, TensorId scale);
