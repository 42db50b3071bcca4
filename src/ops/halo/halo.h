/* Context parallelism for operations that look a few rows back: builder, operands and attributes.
 *
 * A sequence is in 2 cp chunks; rank r of AXIS_CP has chunk r, then chunk 2 cp - 1 - r. Its rows
 * are these two chunks of each sequence, sequence after sequence. The halo of a chunk is the last
 * rows of the previous chunk, which a neighbor has: rank r - 1 for a rank's first chunk, rank r + 1
 * for its second, and the rank itself between the two chunks in the middle of the sequence. The
 * first chunk of a sequence has a halo of zeros. */
#pragma once

#include "graph/op.h"

typedef struct HaloSpec {
    int64_t sequences;
    int64_t rows; /* of a halo; a chunk has at least as many */
} HaloSpec;

/* Returns the halos of the chunks of x COMPUTE [R, D], one after another, COMPUTE
 * [2 sequences * rows, D]; TENSOR_NONE if AXIS_CP has one rank. Their gradient is added to that of
 * x, which must have other readers, all of them later. */
TensorId op_halo(Graph *graph, TensorId x, const HaloSpec *spec);

enum { HALO_X };     /* COMPUTE, all rows of each chunk; the last ones are sent */
enum { HALO_Y = 0 }; /* COMPUTE [2 sequences * rows, D] */

typedef struct HaloAttributes {
    HaloSpec spec;
    bool back; /* sends to the previous chunk, as for gradients, instead of the next one */
} HaloAttributes;

/* x COMPUTE [R, D], ends like HALO_Y -> x with the ends added to the last rows of its chunks */
enum { HALO_ADD_X, HALO_ADD_ENDS };
enum { HALO_ADD_SUM = 0 };

/* The kernel of halo for every device; `element` is the bytes of an element. */
void halo_send(const OpCall *call, size_t element);

/* The number of chunks; elements of a chunk of the call's x, and of its ends. */
typedef struct HaloChunks { int64_t count, chunk, ends; } HaloChunks;
static inline HaloChunks halo_chunks(const OpCall *call) {
    const HaloAttributes *attributes = call->attributes;
    int64_t count = 2 * attributes->spec.sequences, columns = call->in_shape[HALO_X][1];
    return (HaloChunks){.count = count, .chunk = call->in_shape[HALO_X][0] / count * columns, .ends = attributes->spec.rows * columns};
}
