/* Streams optimizer state that is in host memory (OptimizerOffload in optim.h) through two buffers in
 * device memory. A portion is what one buffer holds at a time: some chunks of a bucket, with their
 * state and master weights. Portions are in the order of chunks and do not overlap, so that a copy
 * back never overwrites another portion.
 *
 * Uploads have a stream, and downloads have another one. Portion k is copied into buffer k % 2 as
 * soon as portion k - 2 has left it, while portion k - 1 is updated. The host only queues this work,
 * so copies run ahead of the kernels that need them, as far as the two buffers allow.
 *
 * Kernels do not know of offload: they get a copy of the optimizer whose arenas are addresses in the
 * buffer minus the portion's offset in the arena. */
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
    int first_segment, end_segment; /* with Muon all segments of a bucket; else one segment, or chunks of it */
    int64_t first, end;             /* chunks */
    ByteSpan spans[HOSTED_COUNT];   /* in the arrays, at the offsets that chunks have there; empty: not used */
    int64_t places[HOSTED_COUNT];   /* offsets of the spans in the buffer */
    int64_t turn;                   /* the latest turn in which it was copied; -1: never */
} HostedPortion;

struct Offload {
    HostedPortion *portions;
    int portion_count;
    int64_t buffer_bytes;
    int64_t resident_momentum, resident_variance; /* bytes of these arenas that are in device memory: those of vectors */
    int64_t host_bytes;                           /* of state; the optimizer does not own master weights */

    Device *device; /* NULL: only laid out */
    char *memory;
    char *arrays[HOSTED_COUNT]; /* host addresses to which offsets are added */
    char *buffers[2];
    DeviceStream *uploads, *downloads; /* NULL on a CPU */
    DeviceEvent *filled[2], *updated[2], *emptied[2];
    int64_t turn; /* the number of portions copied so far; a turn's buffer is turn % 2 */
};

/* Returns whether the state of a parameter's elements at a local offset is in host memory. */
static inline bool offload_hosts(const OptimizerOffload *offload, int64_t offset) {
    return offload->portion_bytes && offset >= offload->resident;
}

/* Lists the portions of an optimizer whose chunks and places are laid out. NULL: no offload. */
Offload *offload_lay_out(const Optimizer *optimizer);
/* Returns the bytes of state in host memory. */
int64_t offload_host_bytes(Offload *offload, const Optimizer *optimizer);
/* Allocates host memory, zeroed, and the buffers. ERROR_MEMORY. */
bool offload_start(Offload *offload, const Optimizer *optimizer, Error *error);
void offload_free(Offload *offload);

/* Queues the copies of a portion before its update, and returns the optimizer that updates it,
 * which borrows everything of `optimizer`. Sets *master to the address of the master weights if they
 * are copied. offload_finish queues the copies back. */
Optimizer offload_begin(const Optimizer *optimizer, HostedPortion *portion, void **master);
void offload_finish(const Optimizer *optimizer, HostedPortion *portion);
