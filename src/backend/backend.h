/* The back ends of this program; no other code knows them. Opens devices and returns their kernels
 * of the operations. */
#pragma once

#include "backend/cpu/cpu_device.h"
#include "graph/graph.h"

/* Opens a device. DEVICE_AUTO: a GPU if there is one, otherwise the CPU. The vendors' variables
 * (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES ...) select visible GPUs; `index` counts among them.
 * ERROR_USAGE if the requested device is not available, with the missing part. The caller closes
 * the device. */
Device *device_open(DeviceKind choice, int index, Error *error);
/* Opens the device of the local_rank-th process of a machine: the GPU of that index, or the only
 * visible one. */
Device *device_open_local(DeviceKind choice, int local_rank, Error *error);
/* Returns a device that need not be present, for planning: it has `info` and the properties of its
 * kind, and no methods except close. */
Device *device_describe(const DeviceInfo *info);

/* Sets the kernels of a device for a precision; on the CPU, the best that cpu_isa_runs allows. GPUs
 * have kernels only for PRECISION_BF16 and PRECISION_PURE_BF16; otherwise ERROR_USAGE. */
bool op_backend(Backend *backend, Device *device, Precision precision, Error *error);
/* Returns a description of the hardware and libraries that affect the last bits of results: "CPU,
 * kernels for avx512, GEMM for avx512vnni", "NVIDIA H200 (sm_90a), cuBLASLt 130100". The caller
 * frees it. */
char *op_describe(const Backend *backend);
/* Returns the CPU's back end, which cannot fail. */
Backend op_cpu_backend(Precision precision);
