/* The instruction sets of our GEMM: gemm_template.h instantiated for AVX-512, AVX2 and plain 128-bit vectors, by function attributes,
 * so that one object file, built with any flags, holds them all and gemm.c picks at run time.
 *
 * bf16 has three ways. Widening to fp32 while packing and running the fp32 kernel gives exactly the fp32 rate. vdpbf16ps multiplies pairs,
 * at twice the fp32 rate on AMD (Zen 4 and later), but at half of it on Intel: measured on an Emerald Rapids core, 85 GFLOP/s against
 * 172 for fp32 FMA. So vdpbf16ps is preferred on AMD alone. vpdpwssd multiplies pairs of 16-bit integers, exactly, at twice the fp32 rate
 * on Intel too; gemm.h says how bf16 becomes integers. Both flush subnormals to zero; widening does not. */
#include "backend/cpu/cpu_gemm_internal.h"

#include <string.h>

#define GEMM_PASTE(a, b) a##b
#define GEMM_CONCAT(a, b) GEMM_PASTE(a, b)

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define SCALED_DEPTHS 64 /* pairs that share a scale: more would cost bits, fewer time */

#define FOR_ROWS_4(X) X(1) X(2) X(3) X(4)
#define FOR_ROWS_6(X) FOR_ROWS_4(X) X(5) X(6)
#define FOR_ROWS_14(X) FOR_ROWS_6(X) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14)

#define ZIP_LOW_2(a, b) __builtin_shufflevector(a, b, 0, 2)
#define ZIP_HIGH_2(a, b) __builtin_shufflevector(a, b, 1, 3)
#define ZIP_LOW_4(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define ZIP_HIGH_4(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#define ZIP_LOW_8(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define ZIP_HIGH_8(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#define ZIP_LOW_16(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define ZIP_HIGH_16(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512 "avx512f,avx512bw,avx512vl,avx512dq,fma"

#define GEMM_NAME(x) GEMM_CONCAT(x, _avx512_f32)
#define GEMM_TARGET __attribute__((target(AVX512)))
#define GEMM_SUM float
#define GEMM_LANES 16
#define GEMM_ROWS 14
#define GEMM_STRIDE 16
#define GEMM_PAIRS 0
#define GEMM_SCALED 0
#define GEMM_FROM_BF16 1
#define GEMM_MASKS 1
#define GEMM_FMA(sum, scalar, vector) (Vector_avx512_f32)_mm512_fmadd_ps(_mm512_set1_ps(scalar), (__m512)(vector), (__m512)(sum))
#include "backend/cpu/cpu_gemm_template.h"

#define GEMM_NAME(x) GEMM_CONCAT(x, _avx512_bf16)
#define GEMM_TARGET __attribute__((target(AVX512 ",avx512bf16")))
#define GEMM_SUM float
#define GEMM_LANES 16
#define GEMM_ROWS 14
#define GEMM_STRIDE 16
#define GEMM_PAIRS 1
#define GEMM_SCALED 0
#define GEMM_FROM_BF16 1
#define GEMM_MASKS 1
#define GEMM_FMA(sum, scalar, vector) (Vector_avx512_bf16)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)_mm512_set1_ps(scalar), (__m512bh)(vector))
#include "backend/cpu/cpu_gemm_template.h"

#define GEMM_NAME(x) GEMM_CONCAT(x, _avx512_i16)
#define GEMM_TARGET __attribute__((target(AVX512 ",avx512vnni")))
#define GEMM_SUM float
#define GEMM_LANES 16
#define GEMM_ROWS 14
#define GEMM_STRIDE 16
#define GEMM_PAIRS 1
#define GEMM_SCALED SCALED_DEPTHS
#define GEMM_FROM_BF16 1
#define GEMM_MASKS 1
#define GEMM_FMA(sum, scalar, vector) (Accumulator_avx512_i16)_mm512_dpwssd_epi32((__m512i)(sum), (__m512i)_mm512_set1_ps(scalar), (__m512i)(vector))
#include "backend/cpu/cpu_gemm_template.h"

#define GEMM_NAME(x) GEMM_CONCAT(x, _avx512_f64)
#define GEMM_TARGET __attribute__((target(AVX512)))
#define GEMM_SUM double
#define GEMM_LANES 8
#define GEMM_ROWS 14
#define GEMM_STRIDE 16
#define GEMM_PAIRS 0
#define GEMM_SCALED 0
#define GEMM_FROM_BF16 0
#define GEMM_MASKS 1
#define GEMM_FMA(sum, scalar, vector) (Vector_avx512_f64)_mm512_fmadd_pd(_mm512_set1_pd(scalar), (__m512d)(vector), (__m512d)(sum))
#include "backend/cpu/cpu_gemm_template.h"

#define GEMM_NAME(x) GEMM_CONCAT(x, _avx2_f32)
#define GEMM_TARGET __attribute__((target("avx2,fma")))
#define GEMM_SUM float
#define GEMM_LANES 8
#define GEMM_ROWS 6
#define GEMM_STRIDE 8
#define GEMM_PAIRS 0
#define GEMM_SCALED 0
#define GEMM_FROM_BF16 1
#define GEMM_MASKS 0
#define GEMM_FMA(sum, scalar, vector) (Vector_avx2_f32)_mm256_fmadd_ps(_mm256_set1_ps(scalar), (__m256)(vector), (__m256)(sum))
#include "backend/cpu/cpu_gemm_template.h"

#define GEMM_NAME(x) GEMM_CONCAT(x, _avx2_f64)
#define GEMM_TARGET __attribute__((target("avx2,fma")))
#define GEMM_SUM double
#define GEMM_LANES 4
#define GEMM_ROWS 6
#define GEMM_STRIDE 8
#define GEMM_PAIRS 0
#define GEMM_SCALED 0
#define GEMM_FROM_BF16 0
#define GEMM_MASKS 0
#define GEMM_FMA(sum, scalar, vector) (Vector_avx2_f64)_mm256_fmadd_pd(_mm256_set1_pd(scalar), (__m256d)(vector), (__m256d)(sum))
#include "backend/cpu/cpu_gemm_template.h"

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
}
static bool has_avx512_bf16(void) { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
static bool has_avx512_vnni(void) { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool is_amd(void) { return __builtin_cpu_is("amd"); }
#endif

#define GEMM_NAME(x) GEMM_CONCAT(x, _generic_f32)
#define GEMM_TARGET
#define GEMM_SUM float
#define GEMM_LANES 4
#define GEMM_ROWS 4
#define GEMM_STRIDE 4
#define GEMM_PAIRS 0
#define GEMM_SCALED 0
#define GEMM_FROM_BF16 1
#define GEMM_MASKS 0
#define GEMM_FMA(sum, scalar, vector) ((sum) + (scalar) * (vector))
#include "backend/cpu/cpu_gemm_template.h"

#define GEMM_NAME(x) GEMM_CONCAT(x, _generic_f64)
#define GEMM_TARGET
#define GEMM_SUM double
#define GEMM_LANES 2
#define GEMM_ROWS 4
#define GEMM_STRIDE 4
#define GEMM_PAIRS 0
#define GEMM_SCALED 0
#define GEMM_FROM_BF16 0
#define GEMM_MASKS 0
#define GEMM_FMA(sum, scalar, vector) ((sum) + (scalar) * (vector))
#include "backend/cpu/cpu_gemm_template.h"

static bool always(void) { return true; }

/* rows, stride of rows, columns, k in a depth, depths that share scales, sum type, suffix of the names */
#define KERNEL(rows, stride, columns, unit, scaled, sum, name) {rows, stride, columns, unit, scaled, sizeof(sum), GEMM_CONCAT(pack_, name), GEMM_CONCAT(multiply_panels_, name)}

const GemmIsa gemm_isas[] = {
#if defined(__x86_64__)
    {"avx512bf16", has_avx512_bf16, is_amd,
        {[GEMM_F32] = KERNEL(14, 16, 32, 1, 0, float, avx512_f32),
            [GEMM_BF16] = KERNEL(14, 16, 32, 2, 0, float, avx512_bf16),
            [GEMM_F64] = KERNEL(14, 16, 16, 1, 0, double, avx512_f64)}},
    {"avx512vnni", has_avx512_vnni, always,
        {[GEMM_F32] = KERNEL(14, 16, 32, 1, 0, float, avx512_f32),
            [GEMM_BF16] = KERNEL(14, 16, 32, 2, SCALED_DEPTHS, float, avx512_i16),
            [GEMM_F64] = KERNEL(14, 16, 16, 1, 0, double, avx512_f64)}},
    {"avx512", has_avx512, always,
        {[GEMM_F32] = KERNEL(14, 16, 32, 1, 0, float, avx512_f32),
            [GEMM_BF16] = KERNEL(14, 16, 32, 1, 0, float, avx512_f32),
            [GEMM_F64] = KERNEL(14, 16, 16, 1, 0, double, avx512_f64)}},
    {"avx2", has_avx2, always,
        {[GEMM_F32] = KERNEL(6, 8, 16, 1, 0, float, avx2_f32),
            [GEMM_BF16] = KERNEL(6, 8, 16, 1, 0, float, avx2_f32),
            [GEMM_F64] = KERNEL(6, 8, 8, 1, 0, double, avx2_f64)}},
#endif
    {"generic", always, always,
        {[GEMM_F32] = KERNEL(4, 4, 8, 1, 0, float, generic_f32),
            [GEMM_BF16] = KERNEL(4, 4, 8, 1, 0, float, generic_f32),
            [GEMM_F64] = KERNEL(4, 4, 4, 1, 0, double, generic_f64)}},
};
const int gemm_isa_count = sizeof gemm_isas / sizeof *gemm_isas;
