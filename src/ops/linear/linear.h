/* linear: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* y = x w^T + bias; x COMPUTE [R, in], w [out, in], bias WIDE [out] or TENSOR_NONE; y COMPUTE, or WIDE when asked. */
TensorId op_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, bool wide);

#include <stdbool.h>

typedef struct LinearAttributes { bool wide; } LinearAttributes; /* y is WIDE, and so is its gradient */
