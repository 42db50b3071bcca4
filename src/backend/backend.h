/* The back ends that this program was built with: opens a device, and gives the kernels of operations for it. The only place that knows them all. */
#pragma once

#include "graph/graph.h"

/* The kernels of a device for a precision. On the CPU those for the best instruction set that it has and `isa` names: "" or "avx512", "avx2", "generic".
 * GPUs have them for PRECISION_BF16: ERROR_USAGE. */
bool op_backend(Backend *backend, Device *device, Precision precision, const char *isa, Error *error);
/* The CPU's, which cannot fail. */
Backend op_cpu_backend(Precision precision);
