/* Device functions: on the CPU plain memory operations, on a GPU calls of its library. The choice between them is made here and nowhere else. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "backend/gpu/driver_internal.h"

Device *device_cpu(void) {
    static Device cpu = {.info = {.kind = DEVICE_CPU, .name = "CPU", .target = "host", .wave = 1}};
    return &cpu;
}

static Device *open_gpu(DeviceKind kind, int index, Error *error) {
    DeviceInfo info = {.kind = kind};
    Gpu *gpu = gpu_open(kind, index, &info, error);
    if (!gpu) return NULL;
    Device *device = memory_allocate(sizeof *device);
    *device = (Device){.info = info, .gpu = gpu};
    gpu_gemm_open(device);
    return device;
}

Device *device_open(DeviceKind choice, int index, Error *error) {
    if (choice == DEVICE_CPU) return device_cpu();
    if (choice != DEVICE_AUTO) return open_gpu(choice, index, error);
    Error none = {0};
    Device *device = open_gpu(DEVICE_HIP, index, &none);
    if (!device) device = open_gpu(DEVICE_CUDA, index, &none);
    return device ? device : device_cpu();
}

void device_close(Device *device) {
    if (!device || device == device_cpu()) return;
    if (device->gpu) {
        gpu_gemm_close(device);
        gpu_close(device->gpu);
    }
    free(device);
}

Device *device_describe(const DeviceInfo *info) {
    Device *device = memory_allocate(sizeof *device);
    *device = (Device){.info = *info};
    return device;
}

const DeviceInfo *device_info(const Device *device) { return &device->info; }

bool device_ok(Device *device, Error *error) {
    if (!device->gpu || device->gpu->failure.code == ERROR_NONE) return true;
    *error = device->gpu->failure;
    return false;
}

static bool gpu_ready(const Gpu *gpu) { return gpu->failure.code == ERROR_NONE && !gpu->preparing; }

/* -- Memory -------------------------------------------------------------------------------------------------------- */

int64_t device_available(const Device *device) {
    size_t available = 0, total = 0;
    if (!device->gpu) return memory_available();
    return gpu_check(device->gpu, device->gpu->call.memory_info(&available, &total), "memory_info") ? (int64_t)available : -1;
}

void *device_allocate(Device *device, int64_t bytes, Error *error) {
    Gpu *gpu = device->gpu;
    void *memory = NULL;
    if (!gpu) return memory_map((size_t)bytes, error);
    if (gpu->call.allocate(&memory, bytes ? (size_t)bytes : 1) != 0) {
        error_set(error, ERROR_MEMORY, "%s refused %lld bytes: %lld are free", device->info.name, (long long)bytes,
            (long long)device_available(device));
        return NULL;
    }
    device_fill(device, memory, 0, bytes);
    return memory;
}

void device_free(Device *device, void *memory, int64_t bytes) {
    if (!device->gpu) {
        memory_unmap(memory, (size_t)bytes);
    } else if (memory) {
        device_synchronize(device);
        gpu_check(device->gpu, device->gpu->call.release(memory), "release");
    }
}

void *device_allocate_host(Device *device, int64_t bytes, Error *error) {
    if (!device->gpu) return memory_map((size_t)bytes, error);
    void *memory = staging_pin(device->gpu, bytes);
    if (!memory)
        error_set(error, ERROR_MEMORY, "the driver of %s refused %lld bytes of the host's memory", device->info.name, (long long)bytes);
    return memory;
}

void device_free_host(Device *device, void *memory, int64_t bytes) {
    if (!device->gpu) memory_unmap(memory, (size_t)bytes);
    else if (memory) staging_unpin(device->gpu, memory);
}

static void fill_host(char *memory, int byte, int64_t bytes) {
    const int64_t piece = 1 << 20;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < bytes; at += piece) memset(memory + at, byte, bytes - at < piece ? bytes - at : piece);
}

void device_fill(Device *device, void *memory, int byte, int64_t bytes) {
    Gpu *gpu = device->gpu;
    if (!gpu) fill_host(memory, byte, bytes);
    else if (bytes && gpu_ready(gpu)) gpu_check(gpu, gpu->call.fill(memory, (unsigned char)byte, (size_t)bytes, gpu->stream), "fill");
}

void device_upload(Device *device, void *to, const void *from, int64_t bytes) {
    Gpu *gpu = device->gpu;
    if (!gpu) memcpy(to, from, (size_t)bytes);
    else if (bytes && gpu_ready(gpu) && !staging_upload(gpu, to, from, bytes))
        gpu_check(gpu, gpu->call.upload(to, from, (size_t)bytes, gpu->stream), "upload");
}

void device_copy(Device *device, void *to, const void *from, int64_t bytes) {
    Gpu *gpu = device->gpu;
    if (!gpu) memcpy(to, from, (size_t)bytes);
    else if (bytes && gpu_ready(gpu)) gpu_check(gpu, gpu->call.copy(to, (void *)from, (size_t)bytes, gpu->stream), "copy");
}

void device_download(Device *device, void *to, const void *from, int64_t bytes) {
    Gpu *gpu = device->gpu;
    if (!gpu) memcpy(to, from, (size_t)bytes);
    else if (bytes && gpu_ready(gpu) && !staging_download(gpu, to, from, bytes))
        gpu_check(gpu, gpu->call.download(to, (void *)from, (size_t)bytes, gpu->stream), "download");
    device_synchronize(device);
}

void device_synchronize(Device *device) {
    Gpu *gpu = device->gpu;
    if (gpu && gpu_ready(gpu)) gpu_check(gpu, gpu->call.stream_synchronize(gpu->stream), "stream_synchronize");
}

void *device_view(Device *device, void *memory, int64_t bytes, ViewAccess access, Error *error) {
    if (!device->gpu) return memory;
    void *view = memory_map((size_t)bytes, error);
    if (view && access & VIEW_READ) device_download(device, view, memory, bytes);
    return view;
}

void device_view_close(Device *device, void *view, void *memory, int64_t bytes, ViewAccess access) {
    if (!device->gpu) return;
    if (view && access & VIEW_WRITE) device_upload(device, memory, view, bytes);
    device_synchronize(device);
    memory_unmap(view, (size_t)bytes);
}
