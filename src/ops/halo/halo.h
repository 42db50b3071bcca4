/* Context parallelism for operations that look a few rows back: builder, operands and attributes.
 *
 * A sequence is in 2 cp chunks, of which rank r of AXIS_CP has number r, then number 2 cp - 1 - r; its rows are these two
 * chunks of each sequence, sequence after sequence. The halo of a chunk is the last rows of the chunk before, which a
 * neighbour has: rank r - 1 for a rank's first chunk, rank r + 1 for its second, the rank itself between the two chunks in
 * the middle of the sequence. The first chunk of a sequence has a halo of zeros. */
#pragma once

#include "graph/op.h"

typedef struct HaloSpec {
    int64_t sequences;
    int64_t rows; /* of a halo; a chunk has at least as many */
} HaloSpec;

/* x COMPUTE [R, D] -> the halos of its chunks, one after another, COMPUTE [2 sequences * rows, D]; TENSOR_NONE where
 * AXIS_CP has one rank. Its gradient is added to that of x, which must have other readers, all of them later. */
TensorId op_halo(Graph *graph, TensorId x, const HaloSpec *spec);

enum { HALO_X };     /* COMPUTE, for each chunk as many rows as there are, of which the last are sent */
enum { HALO_Y = 0 }; /* COMPUTE [2 sequences * rows, D] */

typedef struct HaloAttributes {
    HaloSpec spec;
    bool back; /* what is sent goes to the chunk before, as gradients do, not to the one after */
} HaloAttributes;

/* x COMPUTE [R, D], ends like HALO_Y -> x with the ends added to the last rows of its chunks */
enum { HALO_ADD_X, HALO_ADD_ENDS };
enum { HALO_ADD_SUM = 0 };

/* What the kernel of halo does on every device, for elements of so many bytes. */
void halo_send(const OpCall *call, size_t element);

/* Elements of a chunk of the call's x and of its ends. */
typedef struct HaloChunks { int64_t count, chunk, ends; } HaloChunks;
static inline HaloChunks halo_chunks(const OpCall *call) {
    const HaloAttributes *attributes = call->attributes;
    int64_t count = 2 * attributes->spec.sequences, columns = call->in_shape[HALO_X][1];
    return (HaloChunks){.count = count, .chunk = call->in_shape[HALO_X][0] / count * columns, .ends = attributes->spec.rows * columns};
}
