/* GEMM on Hopper in tiles of 128 columns, C = A B^T (gpu_gemm_hopper_kernels.h). Owns no memory. */
#define HOPPER_WIDTH 128
#include "backend/gpu/gpu_gemm_hopper_kernels.h"

#ifdef GPU_DEVICE

#if defined __CUDA_ARCH_FEAT_SM90_ALL
HOPPER_KERNEL(gemm_hopper_128, LAYOUT_DEPTH, LAYOUT_DEPTH)
#endif

#else

LAUNCHER(gemm_hopper_128, GemmHopper)

void gpu_gemm_launch_128(Device *device, const GemmHopper *h) { launch_gemm_hopper_128(device, hopper_launch_shape(device, &h->gemm), h); }

#endif
