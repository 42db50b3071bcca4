/* smelt's own matrix products on a GPU, for launchers: what stands behind the vendors' libraries, and what those do not
 * offer, products of experts and symmetric ones. All give the same bits for the same arguments on the same kind of GPU. */
#pragma once

#include "device/device.h"

/* As gemm (device/gemm.h), for bf16 inputs; with `accumulate` C may also be bf16, which is rounded once. At full speed
 * where the dimensions that lie in memory side by side and the leading dimensions are multiples of 8 and A and B are
 * aligned to 16 bytes; any others are read element by element. On Hopper the same is asked of C, D and bias, or
 * products go the way of older GPUs. Leading dimensions are below 2^23. */
void gpu_gemm(Device *device, const Gemm *product);

/* C[i] = alpha A[i] B[i] + beta D[i] (+ bias) for `count` products of one shape, their operands `stride` elements
 * apart; `first` is the first of them, without accumulate. D (NULL: none) has the shape, type and layout of C and may
 * be C. With `symmetric`, A B and D are known to be symmetric (m = n) and C is bf16: little over half of the work is
 * done, and the other half of C is mirrored. */
typedef struct GemmBatch {
    Gemm first;
    int64_t count, stride_a, stride_b, stride_c;
    double alpha, beta;
    const void *d;
    bool symmetric;
} GemmBatch;
void gpu_gemm_batch(Device *device, const GemmBatch *batch);

/* One product per expert, over the slots offset[e] .. offset[e + 1] - 1 of expert e: rows of A and C, or with
 * `slots_are_depth` the depth, rows of A (transposed) and B. `first` has all slots there are as its m (k); what has no
 * slots is a weight, one after another. offset, [experts + 1], is on the device. */
typedef struct GemmGrouped {
    Gemm first;
    const int32_t *offset;
    int64_t experts;
    bool slots_are_depth;
} GemmGrouped;
void gpu_gemm_grouped(Device *device, const GemmGrouped *grouped);
