/* Who computes a product: on the CPU gemm.c; on a GPU the vendor's library where it is there and can, else our own kernels. Which of a library's algorithms
 * was quickest is remembered in $XDG_CACHE_HOME/smelt (else ~/.cache/smelt), so that the next run starts at once and gives the same bits. */
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "device/internal.h"
#include "device/vendor_gemm.h"
#include "kernel/gemm_launch.h"
#include "kernel/launch.h"

static char *choices_path(void) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/') return memory_format("%s/smelt/gemm", cache);
    return home && home[0] == '/' ? memory_format("%s/.cache/smelt/gemm", home) : NULL;
}

void gpu_gemm_open(Device *device) {
    char *path = choices_path();
    Error missing = {0};
    VendorGemmHost host = {.device = device, .stream = device->gpu->stream, .own = gpu_gemm, .narrow = gpu_cast, .choices = path};
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
    else if (gpu->failure.code == ERROR_NONE && !(gpu->vendor_gemm && vendor_gemm_run(gpu->vendor_gemm, product, gpu->recording))) gpu_gemm(device, product);
}
