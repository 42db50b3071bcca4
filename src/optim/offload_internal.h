/* The streaming of optimizer state that is in host memory (OptimizerOffload in optim.h): its arena
 * there, two buffers in device memory, and the copies between them. A portion is what one buffer
 * holds at a time: some chunks of a bucket, with their state and master weights. Portions are in
 * order of chunks and do not overlap, so that a copy back never overwrites another portion.
 *
 * Uploads have a stream, and downloads have another one. Portion k is copied into buffer k % 2 as
 * soon as portion k - 2 has left it, while portion k - 1 is updated and portion k - 2 may still be
 * on its way back. The host only queues all this, so copies run ahead of the kernels that need
 * them, as far as the two buffers allow.
 *
 * Kernels know nothing of it: they get a copy of the optimizer whose arenas are addresses in the
 * buffer, from which the portion's offset in the arena is subtracted. */
#pragma once

#include "optim/optim_internal.h"

/* The arrays of a portion. */
typedef enum HostedArray {
    HOSTED_MASTER,
    HOSTED_MOMENTUM,
    HOSTED_VARIANCE,
    HOSTED_MOMENTUM_VALUES, /* quantized, as bytes, and their scales */
    HOSTED_VARIANCE_VALUES,
    HOSTED_MOMENTUM_SCALES,
    HOSTED_VARIANCE_SCALES,
    HOSTED_COUNT
} HostedArray;

typedef struct HostedPortion {
    int bucket;
    int first_segment, end_segment; /* of Muon all segments of a bucket; else one segment, or chunks of it */
    int64_t first, end;             /* chunks */
    ByteSpan spans[HOSTED_COUNT];   /* in the arrays, at the offsets that chunks have there; empty: not used */
    int64_t places[HOSTED_COUNT];   /* where a span begins in the buffer */
    int64_t turn;                   /* the latest one in which it was copied; -1: never */
} HostedPortion;

struct Offload {
    HostedPortion *portions;
    int portion_count;
    int64_t buffer_bytes;
    int64_t resident_momentum, resident_variance; /* bytes of these arenas, those of vectors, that are in device memory */
    int64_t host_bytes;                           /* of state; master weights are not the optimizer's */

    Device *device; /* NULL: only laid out */
    char *memory;
    char *arrays[HOSTED_COUNT]; /* host addresses to which offsets are added */
    char *buffers[2];
    DeviceStream *uploads, *downloads; /* NULL on a CPU */
    DeviceEvent *filled[2], *updated[2], *emptied[2];
    int64_t turn; /* of the next portion */
};

/* Returns whether the state of a parameter's elements at a local offset is in host memory. */
static inline bool offload_hosts(const OptimizerOffload *offload, int64_t offset) {
    return offload->portion_bytes && offset >= offload->resident;
}

/* Lists the portions of an optimizer whose chunks and places are laid out. NULL: no offload. */
Offload *offload_lay_out(const Optimizer *optimizer);
/* Allocates host memory, zeroed, and the buffers. ERROR_MEMORY. */
/* Returns the bytes of state in host memory. */
int64_t offload_host_bytes(Offload *offload, const Optimizer *optimizer);
bool offload_start(Offload *offload, const Optimizer *optimizer, Error *error);
void offload_free(Offload *offload);

/* Queues the copies of a portion before its update, and returns the optimizer that updates it,
 * which borrows everything of `optimizer`. *master is then the address of its master weights, if
 * they are copied. offload_finish queues the copies back. */
Optimizer offload_begin(const Optimizer *optimizer, HostedPortion *portion, void **master);
void offload_finish(const Optimizer *optimizer, HostedPortion *portion);
