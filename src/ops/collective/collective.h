/* Collectives as nodes of a program: builders, operands and attributes. Each is the other's gradient; all_reduce is its
 * own. Where the axes have one rank they append nothing and give back x.
 *
 * Rows over AXES_TENSOR (sequence parallelism) are shared out block by block: the whole rows are in mesh->row_blocks equal
 * blocks, and of each the rank that is number t of n has the t-th n-th. One block is gathered or scattered after the
 * other, so that a GEMM on a block can run beside the next one's collective. Other axes have one block: rank t has the
 * t-th n-th of all rows. Collectives end before the first node that reads their result, beside the nodes until then. */
#pragma once

#include "graph/op.h"

/* x [R / n, D] of each rank of the axes to [R, D] on all of them. */
TensorId op_all_gather(Graph *graph, TensorId x, MeshAxes axes);
/* x [R, D] of each rank to this rank's rows [R / n, D] of their sum. */
TensorId op_reduce_scatter(Graph *graph, TensorId x, MeshAxes axes);
/* x [R, columns that cut_share gives the rank of `columns`] of each rank of the axes to [R, columns] on all. No gradient. */
TensorId op_gather_columns(Graph *graph, TensorId x, int64_t columns, MeshAxes axes);
/* The sum of x over the axes. Of a loss that every rank of the axes counts an equal part of, the gradient is the sum too. */
TensorId op_all_reduce(Graph *graph, TensorId x, MeshAxes axes);

enum { COLLECTIVE_X };     /* COMPUTE, WIDE, or INT32 where it is gathered */
enum { COLLECTIVE_Y = 0 }; /* of the same type */

typedef struct CollectiveAttributes {
    MeshAxes axes;
    int blocks;
    TypeClass type;
} CollectiveAttributes;

/* Collectives of up to so many bytes a rank can be direct (Op.direct), with windows (comm_open_windows) of
 * collective_window_bytes over groups of `size` ranks. */
enum { COLLECTIVE_DIRECT_BYTES = 320 << 10 };
int64_t collective_window_bytes(int size);

/* Scratch of gather_columns: the shares of all ranks, one after another. */
int64_t collective_columns_workspace(const Graph *graph, const Node *node);
/* What the kernels of every back end do; elements of COMPUTE tensors take so many bytes, those of WIDE ones so many. */
void collective_all_gather(const OpCall *call, size_t compute, size_t wide);
void collective_reduce_scatter(const OpCall *call, size_t compute, size_t wide);
void collective_gather_columns(const OpCall *call, size_t compute, size_t wide);
void collective_all_reduce(const OpCall *call, size_t compute, size_t wide);
