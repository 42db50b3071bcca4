// HIP's runtime, libamdhip64.
#define __HIP_PLATFORM_AMD__
#define __HIP_DISABLE_CPP_FUNCTIONS__ // its overloads for C++ hide the functions of C
#include <hip/hip_runtime_api.h>

#include "backend/gpu/driver_calls.h"
#include "match.h"

#define CALL(name, hip, cuda, arguments) CHECK_CALL(hip, arguments)
GPU_API(CALL)
#define NUMBER(name, hip, hip_name, cuda, cuda_name) CHECK_NUMBER(hip, hip_name)
GPU_NUMBERS(NUMBER)
#define SHARED(name, number, hip_name, cuda_name) CHECK_NUMBER(number, hip_name)
GPU_SHARED_NUMBERS(SHARED)
