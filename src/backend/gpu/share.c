/* GPU memory that other GPUs of the machine write directly, over NVLink, Infinity Fabric or
 * PCIe: the vendors' calls for memory of other processes. A refusal is not a device failure,
 * because collectives have other ways; so these calls do not use GPU_CALL. Called through
 * device/device.h. */
#include "backend/gpu/driver.h"

/* A handle refers to a whole driver allocation. The driver packs allocations below this size
 * together. */
static const size_t LEAST_BYTES = 2 << 20;

static void *refuse_share(Gpu *gpu, void *memory) {
    if (memory) gpu->call.release(memory);
    return NULL;
}

/* On AMD, caches must not keep data that another GPU writes. */
static void *allocate_share(Gpu *gpu, size_t bytes) {
    void *memory = NULL;
    int result = gpu->device.info.kind == DEVICE_HIP ? gpu->call.allocate_shared(&memory, bytes, SHARED_COHERENT)
                                                     : gpu->call.allocate(&memory, bytes);
    return result == 0 ? memory : NULL;
}

void *gpu_share(Device *device, int64_t bytes, DeviceHandle *handle) {
    Gpu *gpu = gpu_of(device);
    size_t size = (size_t)bytes > LEAST_BYTES ? (size_t)bytes : LEAST_BYTES;
    void *memory = gpu_failed(gpu) ? NULL : allocate_share(gpu, size);
    bool shared = memory && gpu->call.handle_get(handle, memory) == 0 && gpu->call.fill(memory, 0, size, gpu->stream) == 0 &&
                  gpu->call.stream_synchronize(gpu->stream) == 0;
    return shared ? memory : refuse_share(gpu, memory);
}

void *gpu_share_open(Device *device, const DeviceHandle *handle) {
    Gpu *gpu = gpu_of(device);
    void *memory = NULL;
    return !gpu_failed(gpu) && gpu->call.handle_open(&memory, *handle, HANDLE_ENABLES_PEERS) == 0 ? memory : NULL;
}

void gpu_share_close(Device *device, void *memory) {
    if (memory) gpu_of(device)->call.handle_close(memory);
}
