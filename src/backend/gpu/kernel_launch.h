/* The common definitions for the host halves of kernel files. An operation's GPU form is a function
 * like its CPU kernel: it takes the same OpCall, with pointers to device memory, and launches
 * kernels instead of looping. */
#pragma once

#include "base/math.h"
#include "device/device.h"
#include "backend/gpu/gpu.h"
#include "graph/op.h"

/* A kernel of the code object of one source file. Its address is its identity, so use static
 * constants. */
typedef struct GpuKernel { const char *module, *name; } GpuKernel;
/* Blocks in x, y and z (0 counts as 1), threads per block, bytes of dynamic shared memory. x = 0:
 * no launch. */
typedef struct LaunchShape {
    int64_t x, y, z;
    int threads, shared;
} LaunchShape;
/* Launches on the device's stream. `arguments` is the kernel's struct. */
void gpu_launch(Device *device, const GpuKernel *kernel, LaunchShape shape, const void *arguments);
/* Sets `message` as the device's failure, unless it has one already: for a call that no kernel
 * supports. */
void gpu_fail(Device *device, const char *message);

/* Describes a bf16 tensor [sizes[2], sizes[1], sizes[0]], with rows and sheets `strides` elements
 * apart, for TMA copies of 64 x 64 boxes to shared memory, in 128-byte rows with the 128-byte
 * swizzle. Address and strides must be multiples of 16 bytes. Returns false if the device or its
 * driver has no TMA. */
bool gpu_tensor_map(const Device *device, TensorMap *map, const void *data, const int64_t sizes[3], const int64_t strides[2]);

/* Defines how a GPU runs an operation and, if it needs scratch, names the function that returns its
 * size: GPU_OP(norm_grad, scratch) { ... } */
#define GPU_OP(name, ...) \
    static void run_##name(const OpCall *call); \
    const OpKernel gpu_kernel_##name = {run_##name, __VA_ARGS__}; \
    static void run_##name(const OpCall *call)

/* launch_NAME(device, shape, &arguments) launches kernel NAME of this file and checks its
 * arguments' type. The build defines GPU_MODULE for each file. */
#define LAUNCHER(name, Arguments) \
    static void launch_##name(Device *device, LaunchShape shape, const Arguments *arguments) { \
        static const GpuKernel kernel = {GPU_MODULE, #name}; \
        gpu_launch(device, &kernel, shape, arguments); \
    }

/* LAUNCHERS(sum, SumArguments, sum_8, sum_1): launch_sum(device, form, shape, &arguments) launches
 * the listed kernel of index `form`. Use it for kernels that exist once per width, unit or type, at
 * most 9. */
#define LAUNCHERS(name, Arguments, ...) \
    static void launch_##name(Device *device, int form, LaunchShape shape, const Arguments *arguments) { \
        static const GpuKernel kernels[] = {LIST_EXPAND(LIST_KERNELS(__VA_ARGS__))}; \
        assert(form >= 0 && (size_t)form < sizeof kernels / sizeof *kernels); \
        gpu_launch(device, &kernels[form], shape, arguments); \
    }
/* A macro does not expand inside itself: LIST_NEXT is expanded when LIST_EXPAND scans its argument once more. */
#define LIST_KERNELS(name, ...) {GPU_MODULE, #name}, __VA_OPT__(LIST_NEXT LIST_PARENTHESES(__VA_ARGS__))
#define LIST_NEXT() LIST_KERNELS
#define LIST_PARENTHESES ()
#define LIST_EXPAND(...) LIST_TWICE(LIST_TWICE(LIST_TWICE(__VA_ARGS__)))
#define LIST_TWICE(...) LIST_ONCE(LIST_ONCE(__VA_ARGS__))
#define LIST_ONCE(...) __VA_ARGS__

/* Indexed by OpId. */
extern const OpKernel *const gpu_kernels[OP_COUNT];

/* Returns the type of a COMPUTE parameter's gradient. */
static inline GemmType gpu_gradient_type(const OpCall *call) { return call->compute_gradients ? GEMM_BF16 : GEMM_F32; }

/* -- Shared by several files --------------------------------------------------------------------------------------- */

/* Rows that one block sums into a partial sum per column. Partial sums are then added in block
 * order (column_sums.c), so bits depend only on shapes. */
enum { REDUCE_ROWS = 64 };
/* target[j] += sum over b of partials[b * columns + j]; fp32, 16-byte aligned. */
void gpu_add_partials(Device *device, float *target, const float *partials, int64_t blocks, int64_t columns);
/* Runs gpu_add_partials for a target that is the gradient of a COMPUTE parameter: bf16 if
 * call->compute_gradients, else fp32. */
void gpu_add_partials_to_gradient(const OpCall *call, void *target, const float *partials, int64_t blocks, int64_t columns);
/* Runs gpu_add_partials for `count` targets (at most 6) with partials [blocks, count, columns];
 * skips NULL targets. */
void gpu_add_partial_sums(Device *device, float *const *targets, int count, const float *partials, int64_t blocks, int64_t columns);
/* target[i] [samples, columns] = sums over b of partials [samples, blocks, count, columns], for
 * `count` targets, at most 6; skips NULL targets. */
void gpu_put_partial_sums(
    Device *device, float *const *targets, int count, const float *partials, int64_t samples, int64_t blocks, int64_t columns);
/* Zeroes rows offset[experts] .. count - 1 of bf16 slots [count, columns]. `offset` is device
 * memory. */
void gpu_zero_unused(Device *device, bf16 *slots, const int32_t *offset, int64_t experts, int64_t count, int64_t columns);
