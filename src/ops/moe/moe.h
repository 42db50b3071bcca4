/* Moving rows to experts and back, on one rank and between ranks: builders, operands and
 * attributes, for the rules and the kernels of both back ends. */
#pragma once

#include "graph/op.h"

/* -- On one rank --------------------------------------------------------------------------------------------------- */

/* Rows sorted by expert, in row order within an expert: slot INT32 [R, k] of each row and choice,
 * -1 if the row skipped its expert; offset INT32 [experts + 1], the first slot of each expert.
 * Slots from offset[experts] on have no row and are zero in every tensor of slots. */
typedef struct Dispatch {
    TensorId slot, offset;
    int64_t rows; /* rows in slots if experts are balanced and no row skips them: the basis of the experts' costs */
} Dispatch;
Dispatch op_moe_sort(Graph *graph, TensorId index, int64_t experts);
/* x_slots[slot[r, j]] = x[r] */
TensorId op_moe_permute(Graph *graph, TensorId x, const Dispatch *dispatch);
/* x[r] = sum over j of x_slots[slot[r, j]] */
TensorId op_moe_unpermute(Graph *graph, TensorId x_slots, const Dispatch *dispatch);
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
    MOE_PERMUTE_AMAX,        /* WIDE [1], optional: the amax of x_slots (Op.amax), if D % 8 == 0 */
} MoePermuteOperand;

typedef enum MoeUnpermuteOperand {
    MOE_UNPERMUTE_X_SLOTS, /* COMPUTE [R * k, D] */
    MOE_UNPERMUTE_SLOT,    /* INT32 [R, k] */
    MOE_UNPERMUTE_OFFSET,  /* INT32 [experts + 1]; for the gradient */
    MOE_UNPERMUTE_X = 0,   /* COMPUTE [R, D] */
} MoeUnpermuteOperand;

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
    MOE_COMBINE_GRAD_AMAX,          /* like MOE_PERMUTE_AMAX, for d_y_slots */
} MoeCombineGradOperand;

/* moe_absorbs_row: on a GPU, moe_combine of one row absorbs the preceding sort, copy, two layers
 * and SwiGLU (OpKernel.absorbs). moe_launch_row launches all of them
 * (grouped_linear/experts_row_gpu.c). */
int moe_absorbs_row(const Backend *backend, const Graph *graph, int index);
void moe_launch_row(const OpCall *call);

/* -- Between ranks ------------------------------------------------------------------------------------------------- */

/* Each of the n ranks of AXES_EXPERTS holds E / n of the E experts, in rank order. A rank sorts its
 * rows by expert (op_moe_sort), which sorts them by rank as well, and sends each rank the slots of
 * its experts. Arriving rows, in sender order, are sorted by expert again. So an expert has its
 * rows in the order of the ranks they come from, and in row order within a rank. No row is dropped:
 * all rows of all ranks may choose experts of one rank. */
typedef struct ExpertExchange {
    TensorId offsets; /* HOST INT32 [n, E + 1]: `offset` of every rank; TENSOR_NONE: n is 1 */
    Dispatch local;   /* of the arriving rows, with k = 1; if n is 1, the given dispatch */
} ExpertExchange;
/* Exchanges the offsets of all ranks, once per layer: the backward pass reads them again. */
ExpertExchange op_moe_exchange(Graph *graph, const Dispatch *dispatch);
/* Sends x_slots [R * k, D] of this rank's rows to the slots of the arriving rows, sorted by expert;
 * and back. If n is 1, both return their input. */
TensorId op_moe_dispatch(Graph *graph, TensorId x_slots, const ExpertExchange *exchange);
TensorId op_moe_return(Graph *graph, TensorId y_slots, const ExpertExchange *exchange, const Dispatch *dispatch);

typedef enum MoeOffsetsOperand {
    MOE_OFFSETS_OFFSET,      /* INT32 [E + 1] */
    MOE_OFFSETS_OFFSETS = 0, /* HOST INT32 [n, E + 1] */
} MoeOffsetsOperand;

typedef enum MoeArrivalsOperand {
    MOE_ARRIVALS_OFFSETS,  /* HOST INT32 [n, E + 1] */
    MOE_ARRIVALS_SLOT = 0, /* INT32 [arrivals, 1]: by position among arriving rows, -1 for none */
    MOE_ARRIVALS_OFFSET,   /* INT32 [E / n + 1] */
} MoeArrivalsOperand;
typedef struct MoeOffsetsAttributes { int64_t slots; } MoeOffsetsAttributes;   /* of this rank, for all experts */
typedef struct MoeArrivalsAttributes { int64_t first; } MoeArrivalsAttributes; /* first expert of this rank */

/* moe_send sends slots to the ranks of their experts; moe_send_back returns arrived slots to their
 * senders; each is the other's gradient. Slots without a row are zero. */
typedef enum MoeSendOperand {
    MOE_SEND_X,       /* COMPUTE [slots, D]; back: [arrivals, D] */
    MOE_SEND_OFFSETS, /* HOST INT32 [n, E + 1] */
    MOE_SEND_Y = 0,   /* COMPUTE [arrivals, D]; back: [slots, D] */
} MoeSendOperand;

/* The kernels of every back end; `compute` is the bytes of an element of COMPUTE tensors. */
void moe_offsets_run(const OpCall *call);
/* OpKernel.rehearse: as if every expert had as many rows. */
void moe_offsets_rehearse(const OpCall *call);
int64_t moe_offsets_workspace(const Graph *graph, const Node *node);
void moe_send_run(const OpCall *call, bool back, size_t compute);
