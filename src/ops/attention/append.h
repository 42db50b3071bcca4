/* The way of new rows' keys and values into a key-value cache, for cached_gpu.c: append_gpu.c, and
 * project_gpu.c for a single row. */
#pragma once

#ifndef GPU_DEVICE

#include "ops/attention/gpu_tile_kernels.h"

/* Returns how many nodes before attention_cached its kernels compute as well (OpKernel.absorbs): the
 * GEMM of one row with its RoPE, or RoPE alone. */
int attention_append_absorbs(const Backend *backend, const Graph *graph, int index);
/* Writes the keys and values of `new` rows to the cache of op attention_cached, after the nodes that it
 * absorbs. */
void attention_append(const OpCall *call, const Attention *new);

/* The same for the GEMM of one row and its RoPE. */
int attention_absorbs_projection(const Backend *backend, const Graph *graph, int index);
void attention_project(const OpCall *call);

#endif
