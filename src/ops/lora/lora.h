/* Low-rank adapters (LoRA): the up-projection, and a frozen linear layer together with its
 * adapters. Builders, operands and attributes, for their rules and the kernels of both back
 * ends. */
#pragma once

#include "graph/op.h"
#include "ops/linear_gemm.h"

enum { LORA_MAX_ADAPTERS = 4 };

/* Columns of y. */
typedef struct LoraColumns { int64_t first, count; } LoraColumns;

/* Adds u_i b_i^T to columns[i] of y for `adapters` adapters, at most LORA_MAX_ADAPTERS. Columns
 * must be in ascending order and must not overlap; the rank is the width of each u_i. */
TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const LoraColumns *columns, int adapters);

/* Adapters of groups of rows: rows offset[g] to offset[g + 1] - 1 are group g. b has b_1 of every group,
 * then b_2 of every group, and so on. */
typedef struct LoraGroups {
    TensorId u, b, offset; /* offset INT32 [groups + 1] */
    int adapters;
    LoraColumns columns[LORA_MAX_ADAPTERS];
} LoraGroups;
/* Like op_lora, but each group has its own adapters: y + u_i b_i[g]^T. Rows from offset[groups] on do not
 * change. No gradient. */
TensorId op_lora_groups(Graph *graph, TensorId y, const LoraGroups *groups);

/* A frozen layer and its adapters: y = x w^T + bias, with u_i b_i^T added to columns[i]. The caller
 * computes u [R, adapters * rank] = factor x a^T. a [adapters * rank, in] is needed only for the
 * gradients; this operation computes those of a, b and x. */
typedef struct AdaptedLinear {
    TensorId w, bias; /* bias may be TENSOR_NONE */
    MeshAxes sum;     /* as in op_linear_parts */
    TensorId u, a, b;
    double factor;
    int adapters;
    LoraColumns columns[LORA_MAX_ADAPTERS];
} AdaptedLinear;
TensorId op_adapted_linear(Graph *graph, TensorId x, const AdaptedLinear *layer);

typedef enum LoraOperand {
    LORA_Y,           /* COMPUTE [R, out] */
    LORA_U,           /* COMPUTE [R, adapters * rank] */
    LORA_B,           /* COMPUTE [sum of columns, rank] */
    LORA_ADAPTED = 0, /* like y */
} LoraOperand;

typedef enum LoraGroupsOperand {
    LORA_GROUPS_Y,           /* COMPUTE [R, out] */
    LORA_GROUPS_U,           /* COMPUTE [R, adapters * rank] */
    LORA_GROUPS_B,           /* COMPUTE [groups * sum of columns, rank] */
    LORA_GROUPS_OFFSET,      /* INT32 [groups + 1] */
    LORA_GROUPS_ADAPTED = 0, /* like y */
} LoraGroupsOperand;

typedef enum LoraGradInputOperand {
    LORA_GRAD_INPUT_D_ADAPTED, /* like y */
    LORA_GRAD_INPUT_B,         /* like b */
    LORA_GRAD_INPUT_D_U = 0,   /* like u */
} LoraGradInputOperand;

typedef enum LoraGradWeightOperand {
    LORA_GRAD_WEIGHT_D_ADAPTED, /* like y */
    LORA_GRAD_WEIGHT_U,         /* like u */
    LORA_GRAD_WEIGHT_D_B = 0,   /* gradient of b, added to */
} LoraGradWeightOperand;

typedef enum AdaptedLinearOperand {
    ADAPTED_LINEAR_X,     /* COMPUTE [R, in] */
    ADAPTED_LINEAR_W,     /* COMPUTE [out, in] */
    ADAPTED_LINEAR_BIAS,  /* WIDE [out], optional */
    ADAPTED_LINEAR_U,     /* COMPUTE [R, adapters * rank] */
    ADAPTED_LINEAR_B,     /* COMPUTE [sum of columns, rank] */
    ADAPTED_LINEAR_A,     /* COMPUTE [adapters * rank, in], only for the gradients */
    ADAPTED_LINEAR_Y = 0, /* COMPUTE [R, out] */
} AdaptedLinearOperand;

typedef enum AdaptedLinearGradInputOperand {
    ADAPTED_LINEAR_GRAD_INPUT_D_Y,     /* like y */
    ADAPTED_LINEAR_GRAD_INPUT_W,       /* like w */
    ADAPTED_LINEAR_GRAD_INPUT_D_U,     /* like u: the gradient of x a^T */
    ADAPTED_LINEAR_GRAD_INPUT_A,       /* like a */
    ADAPTED_LINEAR_GRAD_INPUT_D_X = 0, /* like x */
} AdaptedLinearGradInputOperand;

/* Attributes of all these operations except adapted_linear_grad_input. */
typedef struct LoraAttributes {
    int adapters;
    LoraColumns columns[LORA_MAX_ADAPTERS]; /* by adapter */
} LoraAttributes;

typedef struct AdaptedLinearAttributes {
    LoraAttributes lora;
    MeshAxes sum;
    bool lasts; /* w is a parameter that no node computes */
    double factor;
} AdaptedLinearAttributes;

/* Returns whether this rank adds the bias. */
static inline bool adapted_linear_has_bias(const OpCall *call) {
    return mesh_index(call->mesh, ((const AdaptedLinearAttributes *)call->attributes)->sum) == 0;
}

/* Returns the frozen GEMM of a node of either operation. */
LinearShape adapted_linear_shape(const Graph *graph, const Node *node);
