/* The up-projection of low-rank adapters (LoRA): its builder, operands and attributes, for its rule and the kernels
 * of both back ends. */
#pragma once

#include "graph/op.h"
#include "ops/linear_gemm.h"

enum { LORA_MAX_ADAPTERS = 4 };

/* Columns of y. */
typedef struct LoraColumns { int64_t first, count; } LoraColumns;

/* y with u_i b_i^T added to columns[i], for as many adapters, at most LORA_MAX_ADAPTERS, in the order of their columns, of
 * which no two have the same; rank is the width of each u_i. */
TensorId op_lora(Graph *graph, TensorId y, TensorId u, TensorId b, const LoraColumns *columns, int adapters);

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

/* Of all three operations. */
typedef struct LoraAttributes {
    int adapters;
    LoraColumns columns[LORA_MAX_ADAPTERS]; /* by adapter */
} LoraAttributes;
