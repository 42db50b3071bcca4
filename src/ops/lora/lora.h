/* Low-rank adapters (LoRA): the up-projection, and a frozen linear layer together with its own. Builders, operands and
 * attributes, for their rules and the kernels of both back ends. */
#pragma once

#include "graph/op.h"
#include "ops/linear_gemm.h"

enum { LORA_MAX_ADAPTERS = 4 };

/* Columns of y. */
typedef struct LoraColumns { int64_t first, count; } LoraColumns;

/* y with u_i b_i^T added to columns[i], for as many adapters, at most LORA_MAX_ADAPTERS, in the order of their columns, of
 * which no two have the same; rank is the width of each u_i. */
TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const LoraColumns *columns, int adapters);

/* A frozen layer and its adapters: y = x w^T + bias, and u_i b_i^T added to columns[i]. u [R, adapters * rank] is factor x a^T,
 * which the caller makes; a [adapters * rank, in] is here for the gradients, which this operation has of a, b and x. */
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
    ADAPTED_LINEAR_A,     /* COMPUTE [adapters * rank, in], for the gradients alone */
    ADAPTED_LINEAR_Y = 0, /* COMPUTE [R, out] */
} AdaptedLinearOperand;

typedef enum AdaptedLinearGradInputOperand {
    ADAPTED_LINEAR_GRAD_INPUT_D_Y,     /* like y */
    ADAPTED_LINEAR_GRAD_INPUT_W,       /* like w */
    ADAPTED_LINEAR_GRAD_INPUT_D_U,     /* like u: the gradient of x a^T */
    ADAPTED_LINEAR_GRAD_INPUT_A,       /* like a */
    ADAPTED_LINEAR_GRAD_INPUT_D_X = 0, /* like x */
} AdaptedLinearGradInputOperand;

/* Of all these operations but adapted_linear_grad_input. */
typedef struct LoraAttributes {
    int adapters;
    LoraColumns columns[LORA_MAX_ADAPTERS]; /* by adapter */
} LoraAttributes;

typedef struct AdaptedLinearAttributes {
    LoraAttributes lora;
    MeshAxes sum;
    bool lasts; /* w is a parameter, which no node makes */
    double factor;
} AdaptedLinearAttributes;

/* Whether this rank adds the bias. */
static inline bool adapted_linear_has_bias(const OpCall *call) {
    return mesh_index(call->mesh, ((const AdaptedLinearAttributes *)call->attributes)->sum) == 0;
}

/* The frozen GEMM of a node of either operation. */
LinearShape adapted_linear_shape(const Graph *graph, const Node *node);
