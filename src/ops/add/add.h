/* add: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* x + previous * scale, WIDE [R, D], scale [D]: the router's depth averaging. */
TensorId op_scale_add(Graph *graph, TensorId x, TensorId previous, TensorId scale);

#include <stdbool.h>

typedef struct AddAttributes { bool wide; } AddAttributes; /* WIDE tensors, or COMPUTE ones */
