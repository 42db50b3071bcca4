/* See backend.h. */
#include "backend/backend.h"

#include <stdlib.h>

#include "backend/gpu/driver.h"
#include "backend/gpu/kernel_launch.h"
#include "base/cpu_isa.h"
#include "base/memory.h"

/* -- Devices ------------------------------------------------------------------------------------------------------- */

Device *device_open(DeviceKind choice, int index, Error *error) {
    if (choice == DEVICE_CPU) return device_cpu();
    if (choice != DEVICE_AUTO) return gpu_open(choice, index, error);
    Error none = {0};
    Device *device = gpu_open(DEVICE_HIP, index, &none);
    if (!device) device = gpu_open(DEVICE_CUDA, index, &none);
    return device ? device : device_cpu();
}

Device *device_open_local(DeviceKind choice, int local_rank, Error *error) {
    Device *device = device_open(choice, local_rank, error);
    return local_rank == 0 || (device && device != device_cpu()) ? device : device_open(choice, 0, error);
}

static void close_described(Device *device) { free(device); }

Device *device_describe(const DeviceInfo *info) {
    static const DeviceMethods described = {.close = close_described};
    Device *device = memory_allocate(sizeof *device);
    *device = (Device){.info = *info, .methods = &described};
    if (info->kind != DEVICE_CPU) {
        gpu_set_properties(&device->info);
        return device;
    }
    const DeviceInfo *cpu = device_info(device_cpu());
    device->info.host_memory = true;
    device->info.gemm_inputs = cpu->gemm_inputs;
    device->info.collective_bytes = cpu->collective_bytes;
    return device;
}

/* -- Kernels ------------------------------------------------------------------------------------------------------- */

typedef const OpKernel *const KernelTable[];
extern KernelTable kernel_table_generic_fp64, kernel_table_generic_fp32, kernel_table_generic_bf16;
#ifdef __x86_64__
extern KernelTable kernel_table_avx2_fp32, kernel_table_avx2_bf16, kernel_table_avx512_fp32, kernel_table_avx512_bf16;
#endif

/* Best first; the last one runs anywhere. */
static const struct CpuVariant {
    CpuIsa isa;
    const OpKernel *const *fp32, *const *bf16;
} cpu_variants[] = {
#ifdef __x86_64__
    {CPU_AVX512, kernel_table_avx512_fp32, kernel_table_avx512_bf16},
    {CPU_AVX2, kernel_table_avx2_fp32, kernel_table_avx2_bf16},
#endif
    {CPU_GENERIC, kernel_table_generic_fp32, kernel_table_generic_bf16},
};

static const OpKernel *const *cpu_kernels(Precision precision) {
    const struct CpuVariant *variant = cpu_variants;
    if (precision == PRECISION_FP64) return kernel_table_generic_fp64;
    while (!cpu_isa_runs(variant->isa)) variant++;
    return precision_is_bf16(precision) ? variant->bf16 : variant->fp32;
}

static const char *kernels_name(const OpKernel *const *kernels) {
    const struct CpuVariant *variant = cpu_variants;
    while (variant->isa != CPU_GENERIC && kernels != variant->fp32 && kernels != variant->bf16) variant++;
    return cpu_isa_name(variant->isa);
}

char *op_describe(const Backend *backend) {
    const DeviceInfo *info = device_info(backend->device);
    const char *library = device_gemm_library(backend->device);
    if (info->kind == DEVICE_CPU) return memory_format("CPU, kernels for %s, GEMM for %s", kernels_name(backend->kernels), gemm_variant());
    return memory_format("%s (%s), %s", info->name, info->target, library ? library : "smelt's own GEMM");
}

bool op_backend(Backend *backend, Device *device, Precision precision, Error *error) {
    *backend = (Backend){.device = device, .kernels = gpu_kernels};
    if (device_info(device)->kind == DEVICE_CPU) *backend = (Backend){.device = device, .kernels = cpu_kernels(precision)};
    else if (!precision_is_bf16(precision))
        return error_set(error, ERROR_USAGE, "GPUs support only bf16: set precision=bf16 or pure_bf16, or device=cpu");
    return true;
}

Backend op_cpu_backend(Precision precision) { return (Backend){.device = device_cpu(), .kernels = cpu_kernels(precision)}; }
