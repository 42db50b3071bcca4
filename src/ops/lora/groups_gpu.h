/* Adapters of groups of rows, if the rows are few (groups_gpu.c). */
#pragma once

#include "backend/gpu/kernel_launch.h"

/* Returns whether lora_groups absorbs the preceding product with A (OpKernel.absorbs). */
int lora_groups_absorb_down(const Backend *backend, const Graph *graph, int index);
/* Launches the product with A, then the one with B. */
void lora_groups_launch_rows(const OpCall *call);
