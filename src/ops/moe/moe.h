/* Moving rows to experts and back: builders, operands and attributes, for the rule and the kernels of both back
 * ends. */
#pragma once

#include "graph/op.h"

/* Rows sorted by expert, in row order within an expert: slot INT32 [R, k] of each row and choice, -1 where the row
 * skipped its expert; offset INT32 [experts + 1], the first slot of each expert. Slots from offset[experts] on have
 * no row and are zero in every tensor of slots. */
typedef struct Dispatch { TensorId slot, offset; } Dispatch;
Dispatch op_moe_sort(Graph *graph, TensorId index, int64_t experts);
/* x_slots[slot[r, j]] = x[r] */
TensorId op_moe_permute(Graph *graph, TensorId x, const Dispatch *dispatch);
/* y[r] = sum over j of gate[r, j] * y_slots[slot[r, j]] */
TensorId op_moe_combine(Graph *graph, TensorId y_slots, TensorId gate, const Dispatch *dispatch);

typedef enum MoeSortOperand {
    MOE_SORT_INDEX,    /* INT32 [R, k]: chosen experts; `experts` and more: skipped */
    MOE_SORT_SLOT = 0, /* INT32 [R, k] */
    MOE_SORT_OFFSET,   /* INT32 [experts + 1] */
} MoeSortOperand;
typedef struct MoeSortAttributes { int64_t experts; } MoeSortAttributes;

typedef enum MoePermuteOperand {
    MOE_PERMUTE_X,           /* COMPUTE [R, D] */
    MOE_PERMUTE_SLOT,        /* INT32 [R, k] */
    MOE_PERMUTE_OFFSET,      /* INT32 [experts + 1] */
    MOE_PERMUTE_X_SLOTS = 0, /* COMPUTE [R * k, D] */
} MoePermuteOperand;

typedef enum MoePermuteGradOperand {
    MOE_PERMUTE_GRAD_D_X_SLOTS, /* like x_slots */
    MOE_PERMUTE_GRAD_SLOT,      /* INT32 [R, k] */
    MOE_PERMUTE_GRAD_D_X = 0,   /* like x */
} MoePermuteGradOperand;

typedef enum MoeCombineOperand {
    MOE_COMBINE_Y_SLOTS, /* COMPUTE [R * k, D] */
    MOE_COMBINE_GATE,    /* WIDE [R, k] */
    MOE_COMBINE_SLOT,    /* INT32 [R, k] */
    MOE_COMBINE_OFFSET,  /* INT32 [experts + 1]; for the gradient */
    MOE_COMBINE_Y = 0,   /* COMPUTE [R, D] */
} MoeCombineOperand;

typedef enum MoeCombineGradOperand {
    MOE_COMBINE_GRAD_D_Y,           /* like y */
    MOE_COMBINE_GRAD_Y_SLOTS,       /* COMPUTE [R * k, D] */
    MOE_COMBINE_GRAD_GATE,          /* WIDE [R, k] */
    MOE_COMBINE_GRAD_SLOT,          /* INT32 [R, k] */
    MOE_COMBINE_GRAD_OFFSET,        /* INT32 [experts + 1] */
    MOE_COMBINE_GRAD_D_Y_SLOTS = 0, /* like y_slots */
    MOE_COMBINE_GRAD_D_GATE,        /* like gate */
} MoeCombineGradOperand;
