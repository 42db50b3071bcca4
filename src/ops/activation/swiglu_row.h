/* What SwiGLU's kernels share: the sigmoid, and the kernel of one row (swiglu_row_gpu.c). */
#pragma once

#include "backend/gpu/gpu.h"

#ifdef GPU_DEVICE

INLINE float sigmoid(float x) { return fast_reciprocal(1 + fast_exp(-x)); }

#else

#include "backend/gpu/kernel_launch.h"

/* Whether swiglu absorbs the GEMM of one row that comes before it (OpKernel.absorbs), and the launch of both. */
int swiglu_absorbs_row(const Graph *graph, int index);
void swiglu_launch_row(const OpCall *call);

#endif
