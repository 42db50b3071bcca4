/* Collectives as nodes of a program: builders, operands and attributes. all_gather and
 * reduce_scatter are each other's gradients; all_reduce is its own. If the axes have one rank, the
 * builders append nothing and return x.
 *
 * Rows over AXES_TENSOR (sequence parallelism) are divided block by block: the whole rows form
 * mesh->row_blocks equal blocks, and rank t of n has the t-th n-th of each block. Blocks are
 * gathered or scattered one after another, so that a GEMM on one block can overlap with the next
 * block's collective. Other axes have one block: rank t has the t-th n-th of all rows. A collective
 * overlaps with later nodes and ends before the first node that reads its result. */
#pragma once

#include "graph/op.h"

/* Gathers x [R / n, D] of each rank of the axes to [R, D] on all of them. */
TensorId op_all_gather(Graph *graph, TensorId x, MeshAxes axes);
/* Reduces x [R, D] of each rank to this rank's rows [R / n, D] of the sum. */
TensorId op_reduce_scatter(Graph *graph, TensorId x, MeshAxes axes);
/* Gathers x [R, columns of the rank's cut_share] of each rank of the axes to [R, columns] on all.
 * No gradient. */
TensorId op_gather_columns(Graph *graph, TensorId x, int64_t columns, MeshAxes axes);
/* Sums x over the axes. If each rank of the axes counts an equal part of a loss, the gradient is
 * this sum too. */
TensorId op_all_reduce(Graph *graph, TensorId x, MeshAxes axes);

enum { COLLECTIVE_X };     /* COMPUTE, WIDE, or INT32 if it is gathered */
enum { COLLECTIVE_Y = 0 }; /* of the same type */

typedef struct CollectiveAttributes {
    MeshAxes axes;
    int blocks;
    TypeClass type;
} CollectiveAttributes;

/* Limit in bytes per rank for direct collectives (Op.direct). They need windows (comm_open_windows)
 * of collective_window_bytes over groups of `size` ranks. */
enum { COLLECTIVE_DIRECT_BYTES = 320 << 10 };
int64_t collective_window_bytes(int size);

/* Returns the scratch of gather_columns: the shares of all ranks, one after another. */
int64_t collective_columns_workspace(const Graph *graph, const Node *node);
/* The kernels of every back end. `compute` and `wide` are the bytes of an element of COMPUTE and
 * WIDE tensors. */
void collective_all_gather(const OpCall *call, size_t compute, size_t wide);
void collective_reduce_scatter(const OpCall *call, size_t compute, size_t wide);
void collective_gather_columns(const OpCall *call, size_t compute, size_t wide);
void collective_all_reduce(const OpCall *call, size_t compute, size_t wide);
