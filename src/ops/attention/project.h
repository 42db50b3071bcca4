/* The projection of one row directly into a key-value cache (project_gpu.c), for cached_gpu.c. */
#pragma once

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"

/* Returns whether attention_cached absorbs the GEMM of one row and its RoPE (OpKernel.absorbs); and
 * the launch of both. */
int attention_absorbs_projection(const Backend *backend, const Graph *graph, int index);
void attention_project(const OpCall *call);

#endif
