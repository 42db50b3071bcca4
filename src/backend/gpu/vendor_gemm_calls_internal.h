/* The functions and numbers that vendor_gemm.c uses from NVIDIA's cublasLt.h (12 and 13) and AMD's
 * hipblaslt.h (0.8, of ROCm 6.2, and later). tools/check-headers compiles these tables against the
 * vendors' own headers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* (smelt's name, symbol without its prefix, arguments). Each returns 0 or an error number. */
#define LT_API(CALL)                                                                                                                           \
    CALL(create, Create, (void **handle))                                                                                                    \
    CALL(destroy, Destroy, (void *handle))                                                                                                   \
    CALL(layout_create, MatrixLayoutCreate, (void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                     \
    CALL(layout_destroy, MatrixLayoutDestroy, (void *layout))                                                                                \
    CALL(operation_create, MatmulDescCreate, (void **operation, int compute_type, int scale_type))                                           \
    CALL(operation_destroy, MatmulDescDestroy, (void *operation))                                                                            \
    CALL(operation_set, MatmulDescSetAttribute, (void *operation, int attribute, const void *value, size_t bytes))                           \
    CALL(preference_create, MatmulPreferenceCreate, (void **preference))                                                                     \
    CALL(preference_destroy, MatmulPreferenceDestroy, (void *preference))                                                                    \
    CALL(preference_set, MatmulPreferenceSetAttribute, (void *preference, int attribute, const void *value, size_t bytes))                   \
    CALL(propose, MatmulAlgoGetHeuristic,                                                                                                    \
         (void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most, void *results, int *count))           \
    CALL(multiply, Matmul,                                                                                                                   \
         (void *handle, void *operation, const void *alpha, const void *a, void *layout_a, const void *b, void *layout_b, const void *beta,    \
          const void *c, void *layout_c, void *d, void *layout_d, const void *algorithm, void *workspace, size_t workspace_bytes, void *stream))

/* (smelt's name, number and name in hipBLASLt, number and name in cuBLASLt); 0 without a name: the
 * library has none. The attribute of B's scale follows that of A's. */
#define LT_NUMBERS(NUMBER) \
    NUMBER(compute_f32, 2, HIPBLAS_COMPUTE_32F, 68, CUBLAS_COMPUTE_32F) \
    NUMBER(straight, 111, HIPBLAS_OP_N, 0, CUBLAS_OP_N) \
    NUMBER(transposed, 112, HIPBLAS_OP_T, 1, CUBLAS_OP_T) \
    NUMBER(set_transpose_a, 0, HIPBLASLT_MATMUL_DESC_TRANSA, 3, CUBLASLT_MATMUL_DESC_TRANSA) \
    NUMBER(set_transpose_b, 1, HIPBLASLT_MATMUL_DESC_TRANSB, 4, CUBLASLT_MATMUL_DESC_TRANSB) \
    NUMBER(set_epilogue, 2, HIPBLASLT_MATMUL_DESC_EPILOGUE, 7, CUBLASLT_MATMUL_DESC_EPILOGUE) \
    NUMBER(set_bias, 3, HIPBLASLT_MATMUL_DESC_BIAS_POINTER, 8, CUBLASLT_MATMUL_DESC_BIAS_POINTER) \
    NUMBER(set_bias_type, 4, HIPBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, 26, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) \
    NUMBER(set_a_scale, 5, HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) \
    NUMBER(algorithm_bytes, 24, sizeof(hipblasLtMatmulAlgo_t), 64, sizeof(cublasLtMatmulAlgo_t)) \
    NUMBER(result_bytes, 56, sizeof(hipblasLtMatmulHeuristicResult_t), 96, sizeof(cublasLtMatmulHeuristicResult_t))

/* (smelt's name, number, its name in hipBLASLt, in cuBLASLt): the same in both, or only in
 * cuBLASLt. The attribute of B's scaling mode follows that of A's; the alignments of B, C and D
 * follow that of A. Split-K sums may be reduced in fp32 in the workspace, not in C itself.
 * SET_FAST_SUMS is an int8_t: whether fp8 sums stay in the matrix unit, which keeps about 14
 * bits. */
#define LT_SHARED_NUMBERS(NUMBER) \
    NUMBER(TYPE_F32, 0, HIP_R_32F, CUDA_R_32F) \
    NUMBER(TYPE_BF16, 14, HIP_R_16BF, CUDA_R_16BF) \
    NUMBER(TYPE_E4M3, 28, HIP_R_8F_E4M3, CUDA_R_8F_E4M3) \
    NUMBER(TYPE_E5M2, 29, HIP_R_8F_E5M2, CUDA_R_8F_E5M2) \
    NUMBER(TYPE_E4M3_FNUZ, 1000, HIP_R_8F_E4M3_FNUZ, ) \
    NUMBER(TYPE_E5M2_FNUZ, 1001, HIP_R_8F_E5M2_FNUZ, ) \
    NUMBER(EPILOGUE_BIAS, 4, HIPBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS) \
    NUMBER(PREFERENCE_WORKSPACE, 1, HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) \
    NUMBER(SET_A_SCALE_MODE, 31, HIPBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_MODE) \
    NUMBER(SCALE_OUTER_VECTOR, 3, HIPBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F) \
    NUMBER(NVIDIA_PREFERENCE_REDUCTION, 3, , CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) \
    NUMBER(NVIDIA_REDUCTION_COMPUTE_TYPE, 2, , CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) \
    NUMBER(NVIDIA_PREFERENCE_ALIGNMENT, 5, , CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) \
    NUMBER(NVIDIA_SET_FAST_SUMS, 25, , CUBLASLT_MATMUL_DESC_FAST_ACCUM)

#define LT_SHARED_NUMBER(name, value, hip, cuda) name = value,
enum { LT_SHARED_NUMBERS(LT_SHARED_NUMBER) };
