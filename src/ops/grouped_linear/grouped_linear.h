/* One linear layer per expert: its builder and operands, for its rule and the kernels of both back ends. */
#pragma once

#include "graph/op.h"
#include "ops/linear_gemm.h"
#include "ops/moe/moe.h"

/* y[s] = x[s] w[e]^T for the slots s of each expert e, from offset[e] to offset[e + 1] - 1. */
TensorId op_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, const Dispatch *dispatch);
/* The same, added to `sum` [slots, out], whose memory y may take. */
TensorId op_grouped_linear_add(Graph *graph, TensorId sum, TensorId x_slots, TensorId w, const Dispatch *dispatch);

/* y[s] = x[s] + bias[e] for the slots s of each expert e, with bias WIDE [experts, D]; other slots are
 * copied. If x is a partial sum over the ranks of `sum`, only the first of them adds the bias. */
TensorId op_grouped_bias(Graph *graph, TensorId x_slots, TensorId bias, const Dispatch *dispatch, MeshAxes sum);

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

typedef enum GroupedBiasOperand {
    GROUPED_BIAS_X,      /* COMPUTE [slots, D] */
    GROUPED_BIAS_BIAS,   /* WIDE [experts, D] */
    GROUPED_BIAS_OFFSET, /* INT32 [experts + 1] */
    GROUPED_BIAS_Y = 0,  /* like x */
} GroupedBiasOperand;

typedef enum GroupedBiasGradOperand {
    GROUPED_BIAS_GRAD_D_Y,        /* like y */
    GROUPED_BIAS_GRAD_OFFSET,     /* like offset */
    GROUPED_BIAS_GRAD_D_BIAS = 0, /* gradient of bias, added to */
} GroupedBiasGradOperand;

typedef struct GroupedBiasAttributes { MeshAxes sum; } GroupedBiasAttributes; /* as in op_grouped_bias */

/* Returns whether this rank adds the bias. */
static inline bool grouped_bias_is_added(const OpCall *call) {
    return mesh_index(call->mesh, ((const GroupedBiasAttributes *)call->attributes)->sum) == 0;
}

typedef struct GroupedLinearAttributes { int64_t rows; } GroupedLinearAttributes; /* Dispatch.rows */

/* For a node of any of the three operations: grouped_linear_node_shape returns the expected rows
 * of all experts together (Dispatch.rows) and the features of an expert;
 * grouped_linear_node_weight returns its weight, or the weight's gradient. */
LinearShape grouped_linear_node_shape(const Graph *graph, const Node *node);
TensorId grouped_linear_node_weight(const Node *node);
