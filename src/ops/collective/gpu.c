/* Collectives between GPUs: no kernels of our own. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"
#include "ops/collective/collective.h"

GPU_OP(all_gather) { collective_all_gather(call, sizeof(bf16), sizeof(float)); }
GPU_OP(reduce_scatter) { collective_reduce_scatter(call, sizeof(bf16), sizeof(float)); }
GPU_OP(gather_columns, collective_columns_workspace) { collective_gather_columns(call, sizeof(bf16), sizeof(float)); }
GPU_OP(all_reduce) { collective_all_reduce(call, sizeof(bf16), sizeof(float)); }

#endif
