/* A linear layer, y = x w^T + bias: its builder, operands and attributes, for its rule and the kernels of both back
 * ends. */
#pragma once

#include "graph/op.h"
#include "ops/linear_gemm.h"

/* y = x w^T + bias; bias may be TENSOR_NONE. y is COMPUTE, or WIDE if `wide`. */
TensorId op_linear(Graph *graph, TensorId x, TensorId w, TensorId bias, bool wide);

/* A layer: w [out, in] and bias [out] or TENSOR_NONE. */
typedef struct LinearPart { TensorId w, bias; } LinearPart;
enum { LINEAR_PARTS = 2 };
/* Layers with one input whose weights are not contiguous: y [R, sum of out], COMPUTE, has the
 * columns of each part after those of the previous one. The second part may be absent. If y is a
 * partial sum over the ranks of `sum`, the first of them adds the bias. */
TensorId op_linear_parts(Graph *graph, TensorId x, const LinearPart parts[LINEAR_PARTS], MeshAxes sum);

typedef enum LinearOperand {
    LINEAR_X,                              /* COMPUTE [R, in] */
    LINEAR_W,                              /* COMPUTE [out, in], for each part */
    LINEAR_BIAS = LINEAR_W + LINEAR_PARTS, /* WIDE [out], optional */
    LINEAR_Y = 0,                          /* COMPUTE or WIDE [R, out] */
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

/* The gradient of only a bias, if another operation computes that of the weight. */
typedef enum BiasGradOperand {
    BIAS_GRAD_D_Y,        /* COMPUTE [R, out] */
    BIAS_GRAD_D_BIAS = 0, /* WIDE gradient of bias, added to */
} BiasGradOperand;

/* Attributes of all these operations. A gradient is of one part, whose columns of y begin at
 * `first`. */
typedef struct LinearAttributes {
    bool wide;    /* y and its gradient are WIDE */
    bool lasts;   /* the weights are parameters, which no node makes */
    MeshAxes sum; /* as in op_linear_parts */
    int64_t first;
} LinearAttributes;

/* Returns whether this rank adds the bias and has its gradient. */
static inline bool linear_has_bias(const OpCall *call) {
    return mesh_index(call->mesh, ((const LinearAttributes *)call->attributes)->sum) == 0;
}

/* Returns whether a node multiplies one row by one matrix into a COMPUTE row, so that the same
 * kernel can do later work (OpKernel.absorbs). */
bool linear_is_row(const Graph *graph, const Node *node);

/* The shape and weight (or its gradient) of a node of any of the three operations with a GEMM, for
 * the first part. */
LinearShape linear_node_shape(const Graph *graph, const Node *node);
TensorId linear_node_weight(const Node *node);
