/* Sums of two tensors: builders, operands and attributes, for the rule and the kernels of both back ends. op_add is
 * declared in graph/op.h. */
#pragma once

#include "graph/op.h"

/* x + previous * scale: a router's average over depth. */
TensorId op_scale_add(Graph *graph, TensorId x, TensorId previous, TensorId scale);

typedef enum AddOperand {
    ADD_A,       /* COMPUTE or WIDE, any shape */
    ADD_B,       /* like a */
    ADD_SUM = 0, /* like a */
} AddOperand;
typedef struct AddAttributes { bool wide; } AddAttributes; /* tensors are WIDE, not COMPUTE */

/* sum[i] += other[i] immediately, with the back end's kernel, outside a graph; WIDE or COMPUTE
 * elements. */
void op_add_run(const Backend *backend, void *sum, const void *other, int64_t count, bool wide);

typedef enum ScaleAddOperand {
    SCALE_ADD_X,        /* WIDE [R, D] */
    SCALE_ADD_PREVIOUS, /* WIDE [R, D] */
    SCALE_ADD_SCALE,    /* WIDE [D] */
    SCALE_ADD_SUM = 0,  /* WIDE [R, D] */
} ScaleAddOperand;

typedef enum ScaleAddGradOperand {
    SCALE_ADD_GRAD_D_SUM,          /* WIDE [R, D] */
    SCALE_ADD_GRAD_PREVIOUS,       /* WIDE [R, D] */
    SCALE_ADD_GRAD_SCALE,          /* WIDE [D] */
    SCALE_ADD_GRAD_D_PREVIOUS = 0, /* WIDE [R, D] */
    SCALE_ADD_GRAD_D_SCALE,        /* gradient of scale, added to */
} ScaleAddGradOperand;
