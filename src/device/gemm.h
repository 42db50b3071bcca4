/* Matrix products on the CPU: C = A B (+ C) (+ bias), row-major with leading dimensions. The one place that decides who
 * computes a product: our own packed kernels, for AVX-512, AVX2 or any CPU, chosen once by what the CPU can do. oneDNN 2.6.3 was measured
 * as the alternative and left out, on an Intel CPU without AMX: in bf16 ours is 3.2 to 3.4 times faster, in fp32 oneDNN is 0 to 10%
 * faster at widths of 256 and more, 10 to 25% at 64 and 128; bench/machine.py measures it again.
 *
 * Every call gives the same bits for the same arguments, whatever the number of threads and whichever of the three functions runs it:
 * K is cut by k alone (by m, n and k where A is transposed), and each element's sum never depends on how rows and columns were shared
 * out. Another instruction set may round differently. bf16 results are rounded to nearest even; NaN stays NaN. No input is checked. A
 * failed allocation of scratch aborts.
 *
 * bf16 operands are multiplied as what this CPU multiplies fastest. With AVX-512 VNNI, but for AMD's CPUs that are as quick in bf16
 * itself, that is 16-bit integers, at twice the rate of fp32: 128 neighbours along k of a row of A, or a column of B, share a scale, the
 * least power of two with which the integers' squares add up to less than 2^30. So 32-bit sums of their products cannot overflow, whatever
 * the other line (Cauchy and Schwarz); they are exact, and added in fp32. Elements are rounded to a multiple of the scale: of normal
 * numbers those of an eleventh of a deviation and more keep all their 8 bits, and results are off by a tenth of what rounding the operands
 * to bf16 had cost (tests/backend/cpu/test_cpu_gemm.c). An infinity makes its row or column NaN. Where a root of a sum of squares is below 2^-48 or above
 * 2^61, lines keep up to 4 bits fewer; numbers below 2^-127 count as zero, and columns of B with numbers above 2^97 may overflow.
 * Networks train so as in fp32: Das et al. 2018, arXiv 1802.00930, with these instructions' predecessors and one scale a tensor; Drumond
 * et al. 2018, arXiv 1804.01526, with 12 bits and a scale a block. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum GemmType { GEMM_F32, GEMM_BF16, GEMM_F64, GEMM_FP8 } GemmType; /* FP8: e4m3, for device_gemm_fp8 alone */

/* A is m x k (stored k x m when transpose_a), B is k x n (stored n x k when transpose_b), C is m x n.
 * `input` is the type of A and B, `output` the type of C; sums are fp32 (fp64 for GEMM_F64).
 * `bias` (may be NULL) has n elements of the sum's type and is added to every row.
 * With `accumulate`, C += A B, rounded once. No operand may overlap C. m, n or k may be 0:
 * without k, C becomes 0 (or bias, or C + bias). With zero rows or columns pointers may be NULL. */
typedef struct Gemm {
    bool transpose_a, transpose_b;
    bool accumulate;
    GemmType input, output;
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
    const void *bias;
} Gemm;

/* Runs on all threads; call it outside parallel regions. */
void gemm(const Gemm *g);
/* Runs on the calling thread; may be called from inside a parallel region. Same bits as gemm. */
void gemm_serial(const Gemm *g);
/* C[i] = A[i] B[i] for `count` independent products of any sizes (experts, heads), shared out over all threads. */
void gemm_batch(const Gemm *products, int64_t count);
/* From now on bf16 is multiplied as it is, however slow, or (the default) as the CPU is fastest. Not to be called while products run. */
void gemm_exact(bool exact);
/* By how much at most an element of A or B is rounded, relative to the root mean square of those that it shares a scale with: 0 or 2^-11.5. */
double gemm_rounding(GemmType input);
