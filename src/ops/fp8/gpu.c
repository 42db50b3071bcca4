/* fp8 on a GPU: placeholder until its kernels follow. */
#include "backend/gpu/gpu.h"
#ifndef GPU_DEVICE
#include "backend/gpu/kernel_launch.h"
#include "ops/fp8/fp8.h"
GPU_OP(fp8_amax) { (void)call; }
GPU_OP(fp8_cast) { (void)call; }
GPU_OP(fp8_linear) { (void)call; }
GPU_OP(fp8_linear_grad_weight) { (void)call; }
#endif
