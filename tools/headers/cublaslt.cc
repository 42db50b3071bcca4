// cuBLASLt, NVIDIA's library of GEMMs.
#include <cublasLt.h>

#include "backend/gpu/vendor_gemm_calls_internal.h"
#include "match.h"

#define CALL(name, symbol, arguments) CHECK_CALL(cublasLt##symbol, arguments)
LT_API(CALL)
#define NUMBER(name, hip, hip_name, cuda, cuda_name) CHECK_NUMBER(cuda, cuda_name)
LT_NUMBERS(NUMBER)
#define SHARED(name, number, hip_name, cuda_name) CHECK_NUMBER(number, cuda_name)
LT_SHARED_NUMBERS(SHARED)
static_assert(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER + 1);
static_assert(CUBLASLT_MATMUL_DESC_B_SCALE_MODE == CUBLASLT_MATMUL_DESC_A_SCALE_MODE + 1);
static_assert(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + 3);
