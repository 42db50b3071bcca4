/* The instruction sets of our GEMM: which variant of cpu_gemm_kernel.c multiplies which type. Owns no memory; read by cpu_gemm.c. */
#include "backend/cpu/cpu_gemm_internal.h"

extern const GemmKernel kernel_gemm_generic_fp32, kernel_gemm_generic_fp64;
#ifdef __x86_64__
extern const GemmKernel kernel_gemm_avx2_fp32, kernel_gemm_avx2_fp64, kernel_gemm_avx512_fp32, kernel_gemm_avx512_fp64;
extern const GemmKernel kernel_gemm_avx512vnni_bf16, kernel_gemm_avx512bf16_bf16;
#endif

#define KERNELS(f32, bf16, f64) {[GEMM_F32] = &kernel_gemm_##f32, [GEMM_BF16] = &kernel_gemm_##bf16, [GEMM_F64] = &kernel_gemm_##f64}

const GemmIsa gemm_isas[] = {
#ifdef __x86_64__
    {CPU_AVX512BF16, KERNELS(avx512_fp32, avx512bf16_bf16, avx512_fp64)},
    {CPU_AVX512VNNI, KERNELS(avx512_fp32, avx512vnni_bf16, avx512_fp64)},
    {CPU_AVX512, KERNELS(avx512_fp32, avx512_fp32, avx512_fp64)},
    {CPU_AVX2, KERNELS(avx2_fp32, avx2_fp32, avx2_fp64)},
#endif
    {CPU_GENERIC, KERNELS(generic_fp32, generic_fp32, generic_fp64)},
};
const int gemm_isa_count = sizeof gemm_isas / sizeof *gemm_isas;
