// ROCm's library of a GPU's sensors and counters, librocm_smi64.
#include <rocm_smi/rocm_smi.h>

#include "launch/health_amd_calls_internal.h"
#include "match.h"

#define CALL(name, symbol, arguments) CHECK_CALL(symbol, arguments)
AMD_CALLS(CALL)
AMD_SENSORS(CALL)
#define NUMBER(name, number, symbol) CHECK_NUMBER(number, symbol)
AMD_NUMBERS(NUMBER)
AMD_BLOCKS(NUMBER)
