/* Who computes a product: on the CPU gemm.c; on a GPU the vendor's library where it is there, can and is quicker, else our own kernels. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "backend/gpu/autotune_cache.h"
#include "backend/gpu/driver_internal.h"
#include "backend/gpu/vendor_gemm.h"
#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

void gpu_gemm_open(Device *device) {
    char *path = autotune_cache_default_path();
    Error missing = {0};
    VendorGemmHost host = {
        .device = device, .stream = device->gpu->stream, .own = gpu_gemm, .own_races = true, .cast = gpu_cast_to_bf16, .choices = path};
    device->gpu->vendor_gemm = vendor_gemm_open(&host, &missing);
    if (!device->gpu->vendor_gemm) log_info("products on smelt's own kernels: %s", missing.message);
    free(path);
}

void gpu_gemm_close(Device *device) {
    if (device->gpu->vendor_gemm) vendor_gemm_close(device->gpu->vendor_gemm);
}

void device_gemm(Device *device, const Gemm *product) {
    Gpu *gpu = device->gpu;
    if (!gpu) gemm(product);
    else if (gpu->preparing || !gpu->vendor_gemm || !vendor_gemm_run(gpu->vendor_gemm, product, gpu->recording)) gpu_gemm(device, product);
}

bool device_gemm_fp8(Device *device, const Gemm *product) {
    Gpu *gpu = device->gpu;
    return gpu && gpu->vendor_gemm && vendor_gemm_run(gpu->vendor_gemm, product, gpu->recording);
}

bool device_fp8_is_fnuz(const Device *device) { return !strcmp(device->info.target, "gfx942"); }

const char *device_gemm_library(const Device *device) {
    return device->gpu && device->gpu->vendor_gemm ? vendor_gemm_name(device->gpu->vendor_gemm) : NULL;
}
