/* smelt's GEMM kernels on a GPU, for launchers: where the vendor's library is missing or slower, and for grouped GEMM
 * of experts and symmetric GEMM. The same arguments give the same bits on the same kind of GPU. */
#pragma once

#include "device/device.h"

/* As gemm (device/gemm.h), for bf16 inputs; with `accumulate` C may also be bf16, which is rounded once. Full speed
 * needs contiguous dimensions and leading dimensions that are multiples of 8, and A and B aligned to 16 bytes; others
 * are read element by element. On Hopper the TMA kernels need this of C, D and bias too; else the kernels of older GPUs
 * run. Leading dimensions are below 2^23. */
void gpu_gemm(Device *device, const Gemm *gemm);

/* C[i] = alpha A[i] B[i] + beta D[i] (+ bias) for `count` problems of one shape, their operands `stride` elements
 * apart; `first` is the first of them, without accumulate. D (NULL: none) has the shape, type and layout of C and may
 * be C. With `symmetric`, A B and D are known to be symmetric (m = n) and C is bf16: little over half of C is computed,
 * and the rest mirrored. */
typedef struct GemmBatch {
    Gemm first;
    int64_t count, stride_a, stride_b, stride_c;
    double alpha, beta;
    const void *d;
    bool symmetric;
} GemmBatch;
void gpu_gemm_batch(Device *device, const GemmBatch *batch);

/* One problem per expert e, over its slots offset[e] .. offset[e + 1] - 1: rows of A and C, or with `slots_are_depth`
 * steps along k, rows of A (transposed) and B. `first` has the number of all slots as its m (k); the operand without
 * slots is a weight [experts, ...]. offset, [experts + 1], is on the device. */
typedef struct GemmGrouped {
    Gemm first;
    const int32_t *offset;
    int64_t experts;
    bool slots_are_depth;
} GemmGrouped;
void gpu_gemm_grouped(Device *device, const GemmGrouped *grouped);
