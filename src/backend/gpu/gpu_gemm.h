/* smelt's GEMM kernels on a GPU, for launchers: where the vendor's library is missing or slower, and for grouped GEMM
 * of experts and symmetric GEMM, and for fp8. The same arguments give the same bits on the same kind of GPU. */
#pragma once

#include "device/device.h"

/* As gemm (device/gemm.h), for bf16 inputs; with `accumulate` C may also be bf16, which is rounded once. Full speed
 * needs contiguous dimensions and leading dimensions that are multiples of 8, and A and B aligned to 16 bytes; others
 * are read element by element. On Hopper the TMA kernels need this of C, D and bias too; else the kernels of older GPUs
 * run. Leading dimensions are below 2^23. */
void gpu_gemm(Device *device, const Gemm *gemm);

/* gpu_gemm of one row, at the speed of memory (gpu_gemv.c); and whether it is for these arguments. */
bool gpu_gemv_serves(const Gemm *gemm);
void gpu_gemv(Device *device, const Gemm *gemm);

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

/* gpu_gemm_batch of at most 64 rows or columns of C, at the speed of memory (gpu_gemm_narrow.c). False, with nothing done, for
 * others, for operands that are not read at full speed, and with factors. */
bool gpu_gemm_narrow(Device *device, const GemmBatch *batch);

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

/* A second product beside C = A B: A2 [m, count * k] times B2, of which part i takes columns i * k .. of A2 and adds to `count`
 * columns of C from `first` on. B2 has the layout of B and as many lines as the parts have columns, part after part: [lines, k]
 * where B is transposed, else [k, lines]. */
enum { GEMM_MOST_PARTS = 4 };
typedef struct GemmPart { int64_t first, count; } GemmPart;
typedef struct GemmSecond {
    const void *a, *b;
    int64_t lda, ldb, k;
    int count;
    GemmPart parts[GEMM_MOST_PARTS];
} GemmSecond;
/* C = A B + bias and the second product, in bf16, rounded once; without accumulate and transpose_a. False, with nothing done, where
 * there is no kernel: it is for Hopper, for operands that TMA can read and for parts that begin and end with its tiles. */
bool gpu_gemm_two(Device *device, const Gemm *gemm, const GemmSecond *second);

/* As gpu_gemm and gpu_gemm_grouped, for fp8 (device/gemm.h). False, with nothing done, where there is no kernel:
 * they are for the targets of gpu_gemm_has_fp8 (sm_90a, gfx942, gfx950); for n, k and leading dimensions that are multiples of 16,
 * and operands, C, bias and scale_b aligned to 16 bytes; for the scalings ONE, TENSOR and LINE in any combination, and for A in
 * e4m3 with GROUP and B with BLOCK or GROUP, on gfx950 both with MX. With experts over rows, scale_a is that of the slots, and every
 * expert has scale_b of its own, one after the other: gemm_scale_count(scaling_b, n, k) for each. With slots_are_depth `offset` counts
 * pairs of codes, multiples of 64 with no expert that has none, and scales are those of A and B with the k of all of them. */
bool gpu_gemm_has_fp8(const char *target);
bool gpu_gemm_fp8(Device *device, const Gemm *gemm);
bool gpu_gemm_grouped_fp8(Device *device, const GemmGrouped *grouped);
