/* The kernels of adapters of groups of rows for few rows (groups_gpu.c). */
#pragma once

#include "backend/gpu/kernel_launch.h"

/* Returns whether lora_groups absorbs the preceding product with A (OpKernel.absorbs). */
int lora_groups_absorb_down(const Backend *backend, const Graph *graph, int index);
/* Launches both. */
void lora_groups_launch_rows(const OpCall *call);
