/* One linear layer per expert: its builder and operands, for its rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"
#include "ops/linear_gemm.h"
#include "ops/moe/moe.h"

/* y[s] = x[s] w[e]^T for the slots s of each expert e, from offset[e] to offset[e + 1] - 1. */
TensorId op_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, const Dispatch *dispatch);
/* The same, added to `sum` [slots, out], whose memory y may take. */
TensorId op_grouped_linear_add(Graph *graph, TensorId sum, TensorId x_slots, TensorId w, const Dispatch *dispatch);

typedef enum GroupedLinearOperand {
    GROUPED_LINEAR_X,      /* COMPUTE [slots, in] */
    GROUPED_LINEAR_W,      /* COMPUTE [experts, out, in] */
    GROUPED_LINEAR_OFFSET, /* INT32 [experts + 1] */
    GROUPED_LINEAR_SUM,    /* like y, optional */
    GROUPED_LINEAR_Y = 0,  /* COMPUTE [slots, out] */
} GroupedLinearOperand;

typedef enum GroupedLinearGradInputOperand {
    GROUPED_LINEAR_GRAD_INPUT_D_Y,     /* like y */
    GROUPED_LINEAR_GRAD_INPUT_W,       /* like w */
    GROUPED_LINEAR_GRAD_INPUT_OFFSET,  /* like offset */
    GROUPED_LINEAR_GRAD_INPUT_D_X = 0, /* like x */
} GroupedLinearGradInputOperand;

typedef enum GroupedLinearGradWeightOperand {
    GROUPED_LINEAR_GRAD_WEIGHT_D_Y,     /* like y */
    GROUPED_LINEAR_GRAD_WEIGHT_X,       /* like x */
    GROUPED_LINEAR_GRAD_WEIGHT_OFFSET,  /* like offset */
    GROUPED_LINEAR_GRAD_WEIGHT_D_W = 0, /* gradient of w, added to */
} GroupedLinearGradWeightOperand;

typedef struct GroupedLinearAttributes { int64_t rows; } GroupedLinearAttributes; /* Dispatch.rows */

/* For a node of any of the three operations: grouped_linear_node_shape returns the expected rows
 * of all experts together (Dispatch.rows) and the features of an expert;
 * grouped_linear_node_weight returns its weight, or the weight's gradient. */
LinearShape grouped_linear_node_shape(const Graph *graph, const Node *node);
TensorId grouped_linear_node_weight(const Node *node);
