/* What the host halves of kernel files are written in. An operation's GPU form is a function like its CPU kernel: it takes the same OpCall, whose pointers
 * are then device memory, and launches kernels instead of looping. kernel/list.h says which operations have one and which need scratch. */
#pragma once

#include "base/math.h"
#include "device/device.h"
#include "backend/gpu/gpu.h"
#include "graph/op.h"

/* Defines how a GPU runs an operation, with the function that gives its scratch where it needs some: GPU_OP(norm_grad, scratch) { ... call->in ... } */
#define GPU_OP(name, ...) \
    static void run_##name(const OpCall *call); \
    const OpKernel gpu_kernel_##name = {run_##name, __VA_ARGS__}; \
    static void run_##name(const OpCall *call)

/* launch_NAME(device, shape, &arguments): launches kernel NAME of this file, with its arguments' type checked. The build defines GPU_MODULE for each file. */
#define LAUNCHER(name, Arguments) \
    static void launch_##name(Device *device, LaunchShape shape, const Arguments *arguments) { \
        static const GpuKernel kernel = {GPU_MODULE, #name}; \
        device_launch(device, &kernel, shape, arguments); \
    }

/* By OpId. */
extern const OpKernel *const gpu_kernels[OP_COUNT];

/* The type of a COMPUTE parameter's gradient. */
static inline GemmType gpu_gradient_type(const OpCall *call) { return call->compute_gradients ? GEMM_BF16 : GEMM_F32; }

/* -- Shared by several files --------------------------------------------------------------------------------------- */

/* Rows whose column sums one block makes; partial sums are then added in order of blocks (reduce.c), so bits depend on shapes alone. */
enum { REDUCE_ROWS = 64 };
/* target[j] += sum over b of partials[b * columns + j]; fp32, 16-byte aligned. */
void gpu_add_partials(Device *device, float *target, const float *partials, int64_t blocks, int64_t columns);
/* The same where target is the gradient of a COMPUTE parameter: bf16 when the call says so. */
void gpu_add_partials_to_gradient(const OpCall *call, void *target, const float *partials, int64_t blocks, int64_t columns);
/* The same for `count` sums (at most 6) of each block, which lie one after another in partials [blocks, count, columns]; NULL targets are left out. */
void gpu_add_partial_sums(Device *device, float *const *targets, int count, const float *partials, int64_t blocks, int64_t columns);
/* to[i] = from[i] rounded to bf16, and widened; both 16-byte aligned (cast.c). */
void gpu_cast_to_bf16(Device *device, bf16 *to, const float *from, int64_t count);
void gpu_cast_to_float(Device *device, float *to, const bf16 *from, int64_t count);
/* to[i] = mean + deviation * rng_normal(seed, stream, first + i), computed in double and rounded to fp32, then to bf16 if `narrow`: the bits of the same on
 * the host (normals.c). */
typedef struct Normals {
    uint64_t seed, stream;
    double mean, deviation;
    bool narrow;
} Normals;
void gpu_normals(Device *device, void *to, int64_t first, int64_t count, const Normals *normals);
/* Zeroes rows offset[experts] .. count - 1 of bf16 slots [count, columns]. offset is on the device. */
void gpu_zero_unused(Device *device, bf16 *slots, const int32_t *offset, int64_t experts, int64_t count, int64_t columns);
