/* The GPU kernels as an array in the order of OpId. */
#include "backend/gpu/kernel_launch.h"

#define OP(name) extern const OpKernel gpu_kernel_##name;
#include "graph/op_list.h"
#undef OP

const OpKernel *const gpu_kernels[OP_COUNT] = {
#define OP(name) &gpu_kernel_##name,
#include "graph/op_list.h"
#undef OP
};
