/* smelt's GEMM kernels on a GPU, for launchers: for shapes that the vendor's library lacks or
 * computes more slowly, for grouped GEMM of experts, symmetric GEMM, and fp8. The same arguments
 * give the same bits on the same kind of GPU. */
#pragma once

#include "device/device.h"

/* Like gemm (device/gemm.h), for bf16 inputs; with `accumulate`, C may also be bf16, which is
 * rounded once. Full speed needs contiguous dimensions and leading dimensions that are multiples of
 * 8, and A and B aligned to 16 bytes; other operands are read element by element. On Hopper the TMA
 * kernels need this for C, D and bias too; otherwise the kernels of older GPUs run. Leading
 * dimensions are below 2^23. */
void gpu_gemm(Device *device, const Gemm *gemm);

/* Returns whether a GEMM must give each row of C the same bits with any number of rows
 * (device_set_exact): a product with the lines of a weight, as in forward passes. Then no kernel that
 * splits k runs, and the choice of the kernel does not depend on the rows. */
static inline bool gpu_gemm_must_be_exact(const Device *device, const Gemm *gemm) {
    return device_info(device)->exact && !gemm->transpose_a && gemm->transpose_b;
}

/* gpu_gemv computes a GEMM of one row at memory bandwidth (gpu_gemv.c). gpu_gemv_serves returns
 * whether it supports the arguments. */
bool gpu_gemv_serves(const Gemm *gemm);
void gpu_gemv(Device *device, const Gemm *gemm);

/* C[i] = alpha A[i] B[i] + beta D[i] (+ bias) for `count` problems of one shape, with operands
 * `stride` elements apart; `first` is the first problem, without accumulate. D (NULL: none) has the
 * shape, type and layout of C and may be C. With `symmetric`, A B and D are known to be symmetric
 * (m = n) and C is bf16: little over half of C is computed, and the rest is mirrored. */
typedef struct GemmBatch {
    Gemm first;
    int64_t count, stride_a, stride_b, stride_c;
    double alpha, beta;
    const void *d;
    bool symmetric;
} GemmBatch;
void gpu_gemm_batch(Device *device, const GemmBatch *batch);

/* gpu_gemm_batch for at most 64 rows or columns of C, at memory bandwidth (gpu_gemm_narrow.c).
 * Returns false and does nothing for other shapes, for operands that cannot be read at full speed,
 * and with factors (alpha, beta). */
bool gpu_gemm_narrow(Device *device, const GemmBatch *batch);

/* One problem per expert e, over its slots offset[e] .. offset[e + 1] - 1: rows of A and C or, with
 * `slots_are_depth`, steps along k, which are rows of A (transposed) and B. The m (k) of `first` is
 * the number of all slots; the operand without slots is a weight [experts, ...]. `offset`,
 * [experts + 1], is on the device. */
typedef struct GemmGrouped {
    Gemm first;
    const int32_t *offset;
    int64_t experts;
    bool slots_are_depth;
} GemmGrouped;
void gpu_gemm_grouped(Device *device, const GemmGrouped *grouped);

/* A second product in addition to C = A B: A2 [m, count * k] times B2. Part i takes columns i * k
 * .. of A2 and adds to `count` columns of C, starting at `first`. B2 has the layout of B and one
 * line per column of the parts, part after part: [lines, k] if B is transposed, otherwise
 * [k, lines]. */
enum { GEMM_MOST_PARTS = 4 };
typedef struct GemmPart { int64_t first, count; } GemmPart;
typedef struct GemmSecond {
    const void *a, *b;
    int64_t lda, ldb, k;
    int count;
    GemmPart parts[GEMM_MOST_PARTS];
} GemmSecond;
/* C = A B + bias and the second product, in bf16, rounded once; without accumulate and transpose_a.
 * Returns false and does nothing if there is no kernel: kernels exist for Hopper, operands that TMA
 * can read, and parts that begin and end at its tile boundaries. */
bool gpu_gemm_two(Device *device, const Gemm *gemm, const GemmSecond *second);

/* Like gpu_gemm and gpu_gemm_grouped, for fp8 (device/gemm.h). They return false and do nothing if
 * there is no kernel. Kernels exist for the targets of gpu_gemm_has_fp8 (sm_90a, gfx942, gfx950);
 * n, k and leading dimensions must be multiples of 16, and operands, C, bias and scale_b aligned to
 * 16 bytes. Scalings: ONE, TENSOR and LINE in any combination; for A in e4m3, GROUP with BLOCK or
 * GROUP for B; on gfx950 MX for both. With experts over rows, scale_a has the scales of the slots,
 * and scale_b has those of every expert, one after another: gemm_scale_count(scaling_b, n, k) each.
 * With slots_are_depth, `offset` counts pairs of fp8 values, in multiples of 64, no expert may be
 * empty, and scales are those of A and B over the k of all experts. */
bool gpu_gemm_has_fp8(const char *target);
bool gpu_gemm_fp8(Device *device, const Gemm *gemm);
bool gpu_gemm_grouped_fp8(Device *device, const GemmGrouped *grouped);
