/* The back ends of this program, known here alone: opens devices, and gives their kernels of the operations. */
#pragma once

#include "backend/cpu/cpu_device.h"
#include "graph/graph.h"

/* DEVICE_AUTO: a GPU if there is one, else the CPU. The vendors' variables (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES
 * ...) choose among several GPUs, by `index` among those visible. ERROR_USAGE when what was asked for is not here, with
 * what is missing. The caller closes it. */
Device *device_open(DeviceKind choice, int index, Error *error);
/* The device of the local_rank-th process of a machine: the GPU of that index, or the only one it sees. */
Device *device_open_local(DeviceKind choice, int local_rank, Error *error);
/* A device that need not be here, for planning: has `info` and the properties of its kind, and no methods but close. */
Device *device_describe(const DeviceInfo *info);

/* The kernels of a device for a precision. On the CPU those that cpu_isa_runs. GPUs have them for
 * PRECISION_BF16: ERROR_USAGE. */
bool op_backend(Backend *backend, Device *device, Precision precision, Error *error);
/* What decides the last bits of results beside configuration and ranks: "CPU, kernels for avx512, GEMM for avx512vnni",
 * "NVIDIA H200 (sm_90a), cuBLASLt 130100". The caller frees. */
char *op_describe(const Backend *backend);
/* The CPU's, which cannot fail. */
Backend op_cpu_backend(Precision precision);
