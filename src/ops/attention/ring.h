/* Ring attention's two passes, for the kernels of every back end (ring.c). */
#pragma once

#include "ops/attention/attention.h"

/* A back end's kernels by OpId, which compute, and the bytes of an element of COMPUTE and WIDE
 * tensors. */
typedef struct RingKernels {
    const OpKernel *const *kernels;
    int64_t compute, wide;
} RingKernels;

void ring_attend(const OpCall *call, const RingKernels *by);
void ring_gradient(const OpCall *call, const RingKernels *by);
/* OpKernel.rehearse of each pass. */
void ring_rehearse(const OpCall *call, const RingKernels *by);
void ring_rehearse_gradient(const OpCall *call, const RingKernels *by);
/* Return the bytes of scratch of each pass. */
int64_t ring_workspace(const Graph *graph, const Node *node, const RingKernels *by);
int64_t ring_gradient_workspace(const Graph *graph, const Node *node, const RingKernels *by);
