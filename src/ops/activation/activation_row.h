/* The fused kernels of one row (activation_row_gpu.c). */
#pragma once

#include "backend/gpu/kernel_launch.h"

/* Returns whether an activation function absorbs the preceding GEMM of one row
 * (OpKernel.absorbs). */
int activation_absorbs_row(const Backend *backend, const Graph *graph, int index);
/* Launches both. */
void activation_launch_row(const OpCall *call);
