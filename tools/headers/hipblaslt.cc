// hipBLASLt, AMD's library of GEMMs.
#define __HIP_PLATFORM_AMD__
#include <hipblaslt/hipblaslt.h>

#include "backend/gpu/vendor_gemm_calls_internal.h"
#include "match.h"

#define CALL(name, symbol, arguments) CHECK_CALL(hipblasLt##symbol, arguments)
LT_API(CALL)
#define NUMBER(name, hip, hip_name, cuda, cuda_name) CHECK_NUMBER(hip, hip_name)
LT_NUMBERS(NUMBER)
#define SHARED(name, number, hip_name, cuda_name) CHECK_NUMBER(number, hip_name)
LT_SHARED_NUMBERS(SHARED)
static_assert(HIPBLASLT_MATMUL_DESC_B_SCALE_POINTER == HIPBLASLT_MATMUL_DESC_A_SCALE_POINTER + 1);
static_assert(HIPBLASLT_MATMUL_DESC_B_SCALE_MODE == HIPBLASLT_MATMUL_DESC_A_SCALE_MODE + 1);
