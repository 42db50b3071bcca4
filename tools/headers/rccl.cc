// RCCL, AMD's library of collectives.
#define __HIP_PLATFORM_AMD__
#include <rccl/rccl.h>

#include "comm/nccl_calls_internal.h"
#include "match.h"

#define CALL(name, symbol, arguments) CHECK_CALL(symbol, arguments)
NCCL_CALLS(CALL)
#define NUMBER(ours, number, symbol) CHECK_NUMBER(number, symbol)
NCCL_TYPES(NUMBER)
NCCL_REDUCTIONS(NUMBER)
static_assert(ID_BYTES == NCCL_UNIQUE_ID_BYTES);
static_assert(NCCL_UNHANDLED_CUDA_ERROR == ncclUnhandledCudaError && NCCL_SYSTEM_ERROR == ncclSystemError);
static_assert(NCCL_INTERNAL_ERROR == ncclInternalError);
static_assert(std::is_same_v<decltype(ncclGetLastError(nullptr)), const char *>);
