/* The runtime library of AMD's or NVIDIA's GPUs, opened at run time: its functions, the description
 * of a GPU, its context and stream, and failures of calls. Sets and clears these fields of a Gpu;
 * called by gpu_device.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "backend/gpu/driver.h"

/* Numbers of the vendors' enumerations of device attributes. */
#define ATTRIBUTE(name, hip, hip_name, cuda, cuda_name) int name;
typedef struct Attributes { GPU_NUMBERS(ATTRIBUTE) } Attributes;
#define HIP_ATTRIBUTE(name, hip, hip_name, cuda, cuda_name) .name = hip,
#define CUDA_ATTRIBUTE(name, hip, hip_name, cuda, cuda_name) .name = cuda,
typedef struct Vendor {
    const char *name, *libraries[4];
    Attributes attributes;
} Vendor;

static const Vendor vendors[] = {
    [DEVICE_HIP] = {"HIP", {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"}, {GPU_NUMBERS(HIP_ATTRIBUTE)}},
    [DEVICE_CUDA] = {"CUDA", {"libcuda.so.1", "libcuda.so"}, {GPU_NUMBERS(CUDA_ATTRIBUTE)}},
};

/* The functions of GpuApi in order: smelt's names, and the library's names by vendor. */
enum { CALLS = sizeof(GpuApi) / sizeof(void *) };
#define OUR_NAME(name, hip, cuda, arguments) #name,
#define HIP_NAME(name, hip, cuda, arguments) #hip,
#define CUDA_NAME(name, hip, cuda, arguments) #cuda,
static const char *const calls[CALLS] = {GPU_API(OUR_NAME)};
static const char *const symbols[][CALLS] = {[DEVICE_HIP] = {GPU_API(HIP_NAME)}, [DEVICE_CUDA] = {GPU_API(CUDA_NAME)}};

/* -- Failures ------------------------------------------------------------------------------------------------------ */

const char *driver_symbol(const Gpu *gpu, const char *call) {
    for (int i = 0; i < CALLS; i++)
        if (!strcmp(calls[i], call)) return symbols[gpu->device.info.kind][i];
    return call;
}

const char *driver_error_text(const Gpu *gpu, int result) {
    const char *text = NULL;
    if (gpu->device.info.kind == DEVICE_HIP) {
        const char *(*describe)(int) = (const char *(*)(int))dlsym(gpu->library, "hipGetErrorString");
        text = describe ? describe(result) : NULL;
    } else {
        int (*describe)(int, const char **) = (int (*)(int, const char **))dlsym(gpu->library, "cuGetErrorString");
        if (describe) describe(result, &text);
    }
    return text ? text : "an unknown error";
}

bool gpu_check(Gpu *gpu, int result, const char *call) {
    if (result == 0) return true;
    if (!gpu_failed(gpu))
        error_set(&gpu->failure, ERROR_DEVICE, "%s failed: %s (%d)", driver_symbol(gpu, call), driver_error_text(gpu, result), result);
    return false;
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool open_driver_library(Gpu *gpu, Error *error) {
    const Vendor *vendor = &vendors[gpu->device.info.kind];
    gpu->library = library_open(vendor->libraries, RTLD_NOW | RTLD_LOCAL);
    if (!gpu->library)
        return error_set(error, ERROR_USAGE,
            "device=%s: %s was not found: install the driver, add its folder to LD_LIBRARY_PATH, or set device=cpu",
            gpu->device.info.kind == DEVICE_HIP ? "hip" : "cuda", vendor->libraries[0]);
    const char *missing = library_find(gpu->library, symbols[gpu->device.info.kind], &gpu->call);
    return !missing || error_set(error, ERROR_DEVICE, "%s has no symbol %s: install a newer driver", vendor->libraries[0], missing);
}

static bool find_device(Gpu *gpu, int index, Error *error) {
    int count = 0, result = gpu->call.initialize(0);
    if (result == 0) result = gpu->call.device_count(&count);
    if (result != 0 || count == 0)
        return error_set(error, ERROR_USAGE,
            "%s finds no GPU (%s): check the driver and HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, or set device=cpu",
            vendors[gpu->device.info.kind].name, result ? driver_error_text(gpu, result) : "none is visible");
    if (index >= count) return error_set(error, ERROR_USAGE, "GPU %d is needed, but only %d are visible: start fewer ranks", index, count);
    return GPU_CALL(gpu, device_get, &gpu->ordinal, index);
}

static bool read_properties(Gpu *gpu) {
    DeviceInfo *info = &gpu->device.info;
    const Attributes *attributes = &vendors[info->kind].attributes;
    size_t available, total = 0;
    int major = 0, minor = 0;
    bool done = GPU_CALL(gpu, device_name, info->name, sizeof info->name, gpu->ordinal) &&
                GPU_CALL(gpu, device_attribute, &info->processors, attributes->processors, gpu->ordinal) &&
                GPU_CALL(gpu, device_attribute, &major, attributes->major, gpu->ordinal) &&
                GPU_CALL(gpu, device_attribute, &minor, attributes->minor, gpu->ordinal) &&
                GPU_CALL(gpu, device_attribute, &info->shared_bytes, attributes->shared_bytes, gpu->ordinal) &&
                GPU_CALL(gpu, memory_info, &available, &total);
    info->memory = (int64_t)total;
    info->wave = info->kind == DEVICE_HIP ? 64 : 32;
    /* AMD: 9.0 is gfx90a, 9.4 gfx942, 9.5 gfx950. NVIDIA: PTX for 8.0 also runs on later GPUs; PTX
     * for 9.0a runs only on Hopper. */
    if (info->kind == DEVICE_HIP)
        snprintf(info->target, sizeof info->target, "gfx%d%s", major, minor == 0 ? "0a" : minor == 4 ? "42" : minor == 5 ? "50" : "?");
    else snprintf(info->target, sizeof info->target, major == 9 ? "sm_90a" : major >= 8 ? "sm_80" : "sm_%d%d", major, minor);
    return done;
}

static bool use_device(Gpu *gpu) {
    if (gpu->device.info.kind == DEVICE_HIP) return GPU_CALL(gpu, device_use, gpu->ordinal);
    return GPU_CALL(gpu, context_retain, &gpu->context, gpu->ordinal) && GPU_CALL(gpu, context_use, gpu->context);
}

/* Stream priorities of both vendors: lower numbers come first; numbers out of range are clamped. */
enum { PRIORITY_DEFAULT = 0, PRIORITY_URGENT = -1 };

void *driver_open_stream(Gpu *gpu, bool urgent) {
    void *stream = NULL;
    int priority = urgent ? PRIORITY_URGENT : PRIORITY_DEFAULT;
    return GPU_CALL(gpu, stream_create, &stream, STREAM_NON_BLOCKING, priority) ? stream : NULL;
}

bool driver_open(Gpu *gpu, int index, Error *error) {
    bool opened = open_driver_library(gpu, error) && find_device(gpu, index, error) && use_device(gpu) && read_properties(gpu) &&
                  (gpu->stream = driver_open_stream(gpu, false));
    if (gpu_failed(gpu)) *error = gpu->failure;
    if (opened && !strcmp(gpu->device.info.target, "sm_90a")) *(void **)&gpu->launch_early = dlsym(gpu->library, "cuLaunchKernelEx");
    return opened;
}

void driver_close(Gpu *gpu) {
    if (gpu->stream) gpu->call.stream_destroy(gpu->stream);
    if (gpu->context) gpu->call.context_release(gpu->ordinal);
    if (gpu->library) dlclose(gpu->library);
}

void driver_use_in_thread(const Gpu *gpu) {
    if (gpu->context) gpu->call.context_use(gpu->context);
    else gpu->call.device_use(gpu->ordinal);
}
