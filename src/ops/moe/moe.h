/* moe: builders, and what the rule and the kernels of both back ends share. */
#pragma once

#include "graph/op.h"

/* Rows sorted by expert, in row order within an expert; skipped rows have no slot. slot INT32 [R, k] (-1: none), offset INT32 [experts + 1]: where each
 * expert's slots begin. Slots from offset[experts] on have no row and are zero in every tensor of slots. */
typedef struct Dispatch { TensorId slot, offset; } Dispatch;
Dispatch op_moe_sort(Graph *graph, TensorId index, int64_t experts);
/* x_slots[slot[r, j]] = x[r]: COMPUTE [R, D] -> [R * k, D]. */
TensorId op_moe_permute(Graph *graph, TensorId x, const Dispatch *dispatch);
/* y[s] = x[s] w[e]^T for the slots of each expert; w [E, out, in]. */
TensorId op_grouped_linear(Graph *graph, TensorId x_slots, TensorId w, TensorId offset);
/* y[r] = sum over k of gate[r, k] * y_slots[slot[r, k]]: COMPUTE [R, D]. */
TensorId op_moe_combine(Graph *graph, TensorId y_slots, TensorId gate, const Dispatch *dispatch);

typedef struct MoeSortAttributes { int64_t experts; } MoeSortAttributes;
