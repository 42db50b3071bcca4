/* GEMM on the CPU: C = A B (+ C) (+ bias), row-major with leading dimensions, with packed kernels
 * for AVX-512, AVX2 or any CPU, selected once by the CPU's features. oneDNN 2.6.3 was measured as
 * an alternative on an Intel CPU without AMX, and rejected: in bf16 it is 3.2 to 3.4 times slower;
 * in fp32 it is 0 to 10% faster at widths of 256 and more, 10 to 25% at 64 and 128
 * (bench/machine.py measures it again).
 *
 * Every call gives the same bits for the same arguments, with any number of threads and in each of
 * the three functions: the split of K depends only on k (on m, n and k if A is transposed), and no
 * sum depends on how rows and columns are divided among threads. Another instruction set may round
 * differently. bf16 results are rounded to nearest even; NaN stays NaN. Inputs are not checked. A
 * failed allocation of scratch aborts.
 *
 * bf16 operands are multiplied in the format that this CPU multiplies fastest. With AVX-512 VNNI
 * this is 16-bit integers, at twice the rate of fp32, except on AMD CPUs, whose bf16 instructions
 * are as fast. A block of 128 elements along k of a row of A or a column of B shares a scale, the
 * smallest power of two with which the integers' squares sum to less than 2^30. By Cauchy-Schwarz,
 * 32-bit sums of their products cannot overflow. These sums are exact, and they are added in fp32.
 * Elements are rounded to a multiple of the scale: normally distributed elements above 1/11 of a
 * standard deviation keep all 8 bits, and the error of results is a tenth of the error from
 * rounding the operands to bf16 (tests/backend/cpu/test_cpu_gemm.c). An infinity makes its row or
 * column NaN. If the root of a block's sum of squares is below 2^-48 or above 2^61, up to 4 more
 * bits are lost; numbers below 2^-127 count as zero, and columns of B with numbers above 2^97 may
 * overflow. Networks train as in fp32 with predecessors of these instructions and one scale per
 * tensor (arXiv 1802.00930), and with 12 bits and a scale per block (arXiv 1804.01526). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/float8.h"

typedef enum GemmType { GEMM_F32, GEMM_BF16, GEMM_F64, GEMM_E4M3, GEMM_E5M2 } GemmType; /* the last two: fp8 (base/float8.h) */
static inline bool gemm_is_fp8(GemmType input) { return input == GEMM_E4M3 || input == GEMM_E5M2; }
static inline Fp8Format gemm_fp8_format(GemmType input, bool fnuz) { return fp8_format(input == GEMM_E5M2 ? FP8_E5M2 : FP8_E4M3, fnuz); }

/* How the elements of an fp8 operand are scaled: an element is its quantized value times its scale.
 * An operand has `lines` of k elements: rows of A, columns of B. GROUP, BLOCK and MX scales are
 * powers of two. */
typedef enum GemmScaling {
    GEMM_SCALE_ONE,    /* not at all */
    GEMM_SCALE_TENSOR, /* one scale */
    GEMM_SCALE_LINE,   /* [lines] */
    GEMM_SCALE_GROUP,  /* [lines, k / 128], rounded up: one per 128 elements along k of a line */
    GEMM_SCALE_BLOCK,  /* [lines / 128, k / 128], rounded up: one per 128 x 128 elements */
    GEMM_SCALE_MX,     /* [lines, k / 32], rounded up: like GROUP, with 32 elements (OCP Microscaling Formats 1.0: MXFP8) */
} GemmScaling;
enum { GEMM_SCALE_GROUP_SIZE = 128, GEMM_SCALE_MX_SIZE = 32 };
/* Returns how many elements along k share a scale, for scalings with several scales per line. */
static inline int64_t gemm_scale_size(GemmScaling scaling) { return scaling == GEMM_SCALE_MX ? GEMM_SCALE_MX_SIZE : GEMM_SCALE_GROUP_SIZE; }
/* Returns whether each line has scales of its own. */
static inline bool gemm_scales_lines(GemmScaling scaling) {
    return scaling == GEMM_SCALE_LINE || scaling == GEMM_SCALE_GROUP || scaling == GEMM_SCALE_MX;
}
/* Returns the number of scales of an operand. */
static inline int64_t gemm_scale_count(GemmScaling scaling, int64_t lines, int64_t k) {
    const int64_t size = gemm_scale_size(scaling), groups = (k + size - 1) / size;
    switch (scaling) {
    case GEMM_SCALE_ONE: return 0;
    case GEMM_SCALE_TENSOR: return 1;
    case GEMM_SCALE_LINE: return lines;
    case GEMM_SCALE_GROUP:
    case GEMM_SCALE_MX: return groups * lines;
    case GEMM_SCALE_BLOCK: return groups * ((lines + size - 1) / size);
    }
    return 0;
}

/* A is m x k (stored k x m when transpose_a), B is k x n (stored n x k when transpose_b), C is m x
 * n. `input` is the type of A and B, `output` the type of C; sums are fp32 (fp64 for GEMM_F64).
 * `bias` (may be NULL) has n elements of the sum's type and is added to every row. With
 * `accumulate`, C += A B, rounded once. No operand may overlap C. m, n or k may be 0: without k, C
 * becomes 0 (or bias, or C + bias). With zero rows or columns pointers may be NULL. The scales are
 * for fp8 GEMMs (device_gemm_fp8): A is of type `input`, B is e4m3, transpose_b is set and
 * transpose_a is not, so that the elements of a line are contiguous. */
typedef struct Gemm {
    bool transpose_a, transpose_b;
    bool accumulate;
    bool b_lasts; /* B was written before the device's latest work, which may still run when B is read */
    GemmType input, output;
    int64_t m, n, k;
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
    const void *bias;
    GemmScaling scaling_a, scaling_b;
    const float *scale_a, *scale_b;
} Gemm;

/* Runs on all threads; call it outside parallel regions. */
void gemm(const Gemm *g);
/* Runs on the calling thread; may be called from inside a parallel region. Same bits as gemm. */
void gemm_serial(const Gemm *g);
/* C[i] = A[i] B[i] for `count` independent GEMMs of any shapes (experts, heads), divided among all
 * threads. */
void gemm_batch(const Gemm *gemms, int64_t count);
/* Sets whether bf16 is multiplied in bf16, even if slow, or in the CPU's fastest format (the
 * default). Not thread-safe. */
void gemm_exact(bool exact);
/* Returns the instruction set of the kernels on this CPU: "avx512vnni". */
const char *gemm_variant(void);
/* Returns the largest rounding error of an element of A or B, relative to the root mean square of
 * its block: 0 or 2^-11.5. */
double gemm_rounding(GemmType input);
