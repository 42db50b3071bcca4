/* narrow rounds the residual stream for the next matrix if no norm precedes that matrix; widen is
 * its inverse, for norms of COMPUTE rows. Builders and operands, which the rule and the kernels of both
 * back ends share. */
#pragma once

#include "graph/op.h"

/* x WIDE [R, D], rounded to COMPUTE [R, D]. */
TensorId op_narrow(Graph *graph, TensorId x);
/* x COMPUTE [R, D], as WIDE [R, D]. */
TensorId op_widen(Graph *graph, TensorId x);

typedef enum NarrowOperand {
    NARROW_X,     /* WIDE [R, D] */
    NARROW_Y = 0, /* COMPUTE [R, D] */
} NarrowOperand;

typedef enum WidenOperand {
    WIDEN_X,     /* COMPUTE [R, D] */
    WIDEN_Y = 0, /* WIDE [R, D] */
} WidenOperand;
