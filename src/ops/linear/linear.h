/* A linear layer, y = x w^T + bias: its builder, operands and attributes, for its rule and the kernels of both back
 * ends. */
#pragma once

#include "graph/op.h"
#include "ops/linear_gemm.h"

/* y = x w^T + bias; bias may be TENSOR_NONE. y is COMPUTE, or WIDE where `wide`. */
TensorId op_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, bool wide);

typedef enum LinearOperand {
    LINEAR_X,     /* COMPUTE [R, in] */
    LINEAR_W,     /* COMPUTE [out, in] */
    LINEAR_BIAS,  /* WIDE [out], optional */
    LINEAR_Y = 0, /* COMPUTE or WIDE [R, out] */
} LinearOperand;

typedef enum LinearGradInputOperand {
    LINEAR_GRAD_INPUT_D_Y,     /* like y */
    LINEAR_GRAD_INPUT_W,       /* like w */
    LINEAR_GRAD_INPUT_D_X = 0, /* like x */
} LinearGradInputOperand;

typedef enum LinearGradWeightOperand {
    LINEAR_GRAD_WEIGHT_D_Y,     /* like y */
    LINEAR_GRAD_WEIGHT_X,       /* like x */
    LINEAR_GRAD_WEIGHT_D_W = 0, /* gradient of w, added to */
    LINEAR_GRAD_WEIGHT_D_BIAS,  /* WIDE gradient of bias, added to, optional */
} LinearGradWeightOperand;

/* Of all three operations. */
typedef struct LinearAttributes { bool wide; } LinearAttributes; /* y and its gradient are WIDE */

/* Shape and weight (or its gradient) of a node of any of the three operations. */
LinearShape linear_node_shape(const Graph *graph, const Node *node);
TensorId linear_node_weight(const Node *node);
