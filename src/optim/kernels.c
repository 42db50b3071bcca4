/* The optimizer's passes over memory: kernel_template.h instantiated for each precision and, by function attributes, for AVX-512, AVX2
 * and plain C, so that one object file, built with any flags, holds them all and optimizer_create picks at run time. Owns no memory. */
#include "base/bf16.h"
#include "optim/optim_internal.h"

#include <math.h>
#include <string.h>

static bool always(void) { return true; }

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma")))
#define AVX2 __attribute__((target("avx2,fma")))

static bool has_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
}
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

#define OPTIM_NAME(x) x##_bf16_avx512
#define OPTIM_TARGET AVX512
#define T uint16_t
#define W float
#define widen bf16_to_float
#define pure_bf16 bf16_from_float
#define LANES 16
#define ROOT(v) (VECTOR) _mm512_sqrt_ps((__m512)(v))
#include "optim/kernel_template.h"

#define OPTIM_NAME(x) x##_fp32_avx512
#define OPTIM_TARGET AVX512
#define T float
#define W float
#define widen
#define pure_bf16
#define LANES 16
#define ROOT(v) (VECTOR) _mm512_sqrt_ps((__m512)(v))
#include "optim/kernel_template.h"

#define OPTIM_NAME(x) x##_bf16_avx2
#define OPTIM_TARGET AVX2
#define T uint16_t
#define W float
#define widen bf16_to_float
#define pure_bf16 bf16_from_float
#define LANES 8
#define ROOT(v) (VECTOR) _mm256_sqrt_ps((__m256)(v))
#include "optim/kernel_template.h"

#define OPTIM_NAME(x) x##_fp32_avx2
#define OPTIM_TARGET AVX2
#define T float
#define W float
#define widen
#define pure_bf16
#define LANES 8
#define ROOT(v) (VECTOR) _mm256_sqrt_ps((__m256)(v))
#include "optim/kernel_template.h"
#endif

#define ROOT_OF_FOUR(v)                                                                                                                    \
    (VECTOR) { sqrtf((v)[0]), sqrtf((v)[1]), sqrtf((v)[2]), sqrtf((v)[3]) }

#define OPTIM_NAME(x) x##_bf16_generic
#define OPTIM_TARGET
#define T uint16_t
#define W float
#define widen bf16_to_float
#define pure_bf16 bf16_from_float
#define LANES 4
#define ROOT(v) ROOT_OF_FOUR(v)
#include "optim/kernel_template.h"

#define OPTIM_NAME(x) x##_fp32_generic
#define OPTIM_TARGET
#define T float
#define W float
#define widen
#define pure_bf16
#define LANES 4
#define ROOT(v) ROOT_OF_FOUR(v)
#include "optim/kernel_template.h"

#define OPTIM_NAME(x) x##_fp64_generic
#define OPTIM_TARGET
#define T double
#define W double
#define widen
#define pure_bf16
#define LANES 2
#define ROOT(v)                                                                                                                            \
    (VECTOR) { sqrt((v)[0]), sqrt((v)[1]) }
#include "optim/kernel_template.h"

#define TABLE(isa, supported, precision, compute, wide, suffix)                                                                            \
    {                                                                                                                                      \
        isa, supported, precision, compute, wide, adamw_##suffix, sum_squares_##suffix, momentum_##suffix, direction_##suffix,             \
            polynomial_##suffix, mirror_##suffix, apply_##suffix                                                                           \
    }

const OptimKernels optim_kernels[] = {
#if defined(__x86_64__)
    TABLE("avx512", has_avx512, PRECISION_BF16, GEMM_BF16, GEMM_F32, bf16_avx512),
    TABLE("avx512", has_avx512, PRECISION_FP32, GEMM_F32, GEMM_F32, fp32_avx512),
    TABLE("avx2", has_avx2, PRECISION_BF16, GEMM_BF16, GEMM_F32, bf16_avx2),
    TABLE("avx2", has_avx2, PRECISION_FP32, GEMM_F32, GEMM_F32, fp32_avx2),
#endif
    TABLE("generic", always, PRECISION_BF16, GEMM_BF16, GEMM_F32, bf16_generic),
    TABLE("generic", always, PRECISION_FP32, GEMM_F32, GEMM_F32, fp32_generic),
    TABLE("generic", always, PRECISION_FP64, GEMM_F64, GEMM_F64, fp64_generic),
};
const int optim_kernels_count = sizeof optim_kernels / sizeof *optim_kernels;
