/* The experts of one row (row_gpu.c), for gpu.c. */
#pragma once

#include "backend/gpu/kernel_launch.h"

/* Whether moe_combine absorbs the sort, the copies, the two layers and SwiGLU before it, of one row (OpKernel.absorbs), and the
 * launch of all of them. */
int moe_absorbs_row(const Graph *graph, int index);
void moe_launch_row(const OpCall *call);
