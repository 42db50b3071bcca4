// The CUDA driver, libcuda.
#include <cuda.h>

#include "backend/gpu/driver_calls.h"
#include "match.h"

#define CALL(name, hip, cuda, arguments) CHECK_CALL(cuda, arguments)
GPU_API(CALL)
#define NUMBER(name, hip, hip_name, cuda, cuda_name) CHECK_NUMBER(cuda, cuda_name)
GPU_NUMBERS(NUMBER)
#define SHARED(name, number, hip_name, cuda_name) CHECK_NUMBER(number, cuda_name)
GPU_SHARED_NUMBERS(SHARED)
