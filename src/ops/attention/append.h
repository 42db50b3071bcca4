/* Writes new rows' keys and values to a key-value cache, for cached_gpu.c. In append_gpu.c; for a single
 * row also in project_gpu.c. */
#pragma once

#ifndef GPU_DEVICE

#include "ops/attention/gpu_tile_kernels.h"

/* Returns how many nodes before attention_cached its kernels compute as well (OpKernel.absorbs): the
 * GEMM of one row with its RoPE, or RoPE alone. */
int attention_append_absorbs(const Backend *backend, const Graph *graph, int index);
/* Writes the keys and values of `new` rows to the cache of op attention_cached, after the nodes that it
 * absorbs. */
void attention_append(const OpCall *call, const Attention *new);

/* The same two functions for one row, whose GEMM and RoPE are in one kernel (project_gpu.c). */
int attention_absorbs_projection(const Backend *backend, const Graph *graph, int index);
void attention_project(const OpCall *call);

#endif
