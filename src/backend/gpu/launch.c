/* Kernels: the embedded code objects for a GPU's target. They are loaded on first use, all wanted
 * ones at once, and launched on the device's stream. Owns the loaded modules; called through
 * kernel_launch.h. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "backend/gpu/driver.h"
#include "base/memory.h"
#include "base/scope.h"

/* -- Modules ------------------------------------------------------------------------------------------------------- */

bool modules_open(Gpu *gpu, Error *error) {
    const DeviceInfo *info = &gpu->device.info;
    int objects = 0;
    while (gpu_objects[objects].module) objects++;
    gpu->modules = memory_allocate((objects + 1) * sizeof *gpu->modules);
    for (int i = 0; i < objects; i++)
        if (!strcmp(gpu_objects[i].target, info->target)) gpu->modules[gpu->module_count++] = (Module){.object = &gpu_objects[i]};
    return gpu->module_count > 0 ||
           error_set(error, ERROR_USAGE, "%s is %s, but this build has no kernels for it: build with GPU_TARGETS=%s, or set device=cpu",
               info->name, info->target, info->target);
}

void modules_close(Gpu *gpu) {
    for (int i = 0; i < gpu->module_count; i++)
        if (gpu->modules[i].handle) gpu->call.module_unload(gpu->modules[i].handle);
    free(gpu->modules);
}

static int load_module(Gpu *gpu, Module *module) {
    SCOPED_FREE void *code =
        gpu->ptx && module->object->kernel[0] ? ptx_compile(gpu->ptx, module->object->image, gpu->device.info.target) : NULL;
    driver_use_in_thread(gpu);
    return gpu->call.module_load(&module->handle, code ? code : module->object->image);
}

/* Loads in parallel: most of the time goes into compiling PTX. */
static void load_wanted(Gpu *gpu) {
    int results[gpu->module_count];
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < gpu->module_count; i++)
        results[i] = gpu->modules[i].wanted && !gpu->modules[i].handle ? load_module(gpu, &gpu->modules[i]) : 0;
    for (int i = 0; i < gpu->module_count; i++)
        if (results[i] && !gpu_failed(gpu))
            error_set(&gpu->failure, ERROR_DEVICE, "%s failed for %s.%s: %s (%d)", driver_symbol(gpu, "module_load"),
                gpu->modules[i].object->module, gpu->modules[i].object->kernel, driver_error_text(gpu, results[i]), results[i]);
}

static Module *find_module(Gpu *gpu, const GpuKernel *kernel) {
    for (int i = 0; i < gpu->module_count; i++) {
        const GpuObject *object = gpu->modules[i].object;
        if (!strcmp(object->module, kernel->module) && (!object->kernel[0] || !strcmp(object->kernel, kernel->name)))
            return &gpu->modules[i];
    }
    error_set(&gpu->failure, ERROR_DEVICE, "this build has no kernel %s of %s for this GPU", kernel->name, kernel->module);
    return NULL;
}

static bool load_function(Gpu *gpu, Function *function, const GpuKernel *kernel) {
    Module *module = find_module(gpu, kernel);
    if (!module) return false;
    module->wanted = true;
    if (gpu->preparing) return false;
    if (!module->handle) load_wanted(gpu);
    if (gpu_failed(gpu)) return false;
    int result = gpu->call.module_function(&function->handle, module->handle, kernel->name);
    if (result)
        return error_set(
            &gpu->failure, ERROR_DEVICE, "kernel %s of %s: %s (%d)", kernel->name, kernel->module, driver_error_text(gpu, result), result);
    function->kernel = kernel;
    return true;
}

static Function *find_function(Gpu *gpu, const GpuKernel *kernel) {
    size_t slot = (uintptr_t)kernel / sizeof *kernel % GPU_MAX_FUNCTIONS;
    while (gpu->functions[slot].kernel && gpu->functions[slot].kernel != kernel) slot = (slot + 1) % GPU_MAX_FUNCTIONS;
    Function *function = &gpu->functions[slot];
    return function->kernel || load_function(gpu, function, kernel) ? function : NULL;
}

/* -- Launches ------------------------------------------------------------------------------------------------------ */

/* NVIDIA requires an opt-in for blocks with over 48 KiB of shared memory, of which the kernel's static
 * memory is a part. Its size is not known here, so every size is allowed explicitly. */
static bool allow_shared(Gpu *gpu, Function *function, int bytes) {
    if (!gpu->call.function_attribute || bytes <= function->shared) return true;
    function->shared = bytes;
    return GPU_CALL(gpu, function_attribute, function->handle, ATTRIBUTE_DYNAMIC_SHARED, bytes);
}

/* CUlaunchAttribute and CUlaunchConfig as in cuda.h. */
typedef struct LaunchAttribute {
    int32_t id;
    _Alignas(8) union {
        int32_t number;
        char bytes[64];
    } value;
} LaunchAttribute;
typedef struct LaunchConfiguration {
    unsigned grid[3], block[3], shared;
    void *stream;
    const LaunchAttribute *attributes;
    unsigned attribute_count;
} LaunchConfiguration;

/* Launches a kernel that may begin before the preceding kernel in the stream has ended
 * (programmatic dependent launch). Kernels for Hopper first wait for that kernel themselves
 * (tools/embed-objects.sh), so only the launch overlaps. A token of an 8B model on two H200 takes
 * 0.3 of 5.2 ms less; a training step, with larger kernels, takes up to 1% more. */
static int launch_early(const Gpu *gpu, void *function, const unsigned grid[3], unsigned threads, unsigned shared, void **parameters) {
    enum { OVERLAPS = 6 /* CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION */ };
    static const LaunchAttribute overlaps = {.id = OVERLAPS, .value.number = 1};
    LaunchConfiguration configuration = {.grid = {grid[0], grid[1], grid[2]},
        .block = {threads, 1, 1},
        .shared = shared,
        .stream = gpu->stream,
        .attributes = &overlaps,
        .attribute_count = 1};
    return gpu->launch_early(&configuration, function, parameters, NULL);
}

void gpu_launch(Device *device, const GpuKernel *kernel, LaunchShape shape, const void *arguments) {
    Gpu *gpu = gpu_of(device);
    if (gpu_failed(gpu) || shape.x == 0) return;
    Function *function = find_function(gpu, kernel);
    if (!function || gpu->preparing || !allow_shared(gpu, function, shape.shared)) return;
    void *parameters[] = {(void *)arguments};
    unsigned grid[] = {(unsigned)shape.x, shape.y ? (unsigned)shape.y : 1, shape.z ? (unsigned)shape.z : 1};
    if (gpu->observe) gpu->observe(gpu->observer, kernel, &shape, false);
    int result = gpu->overlaps_launches
                     ? launch_early(gpu, function->handle, grid, (unsigned)shape.threads, (unsigned)shape.shared, parameters)
                     : gpu->call.launch(function->handle, grid[0], grid[1], grid[2], (unsigned)shape.threads, 1, 1, (unsigned)shape.shared,
                           gpu->stream, parameters, NULL);
    if (result)
        error_set(&gpu->failure, ERROR_DEVICE, "%s of kernel %s, %lld x %lld x %lld blocks of %d threads, failed: %s (%d)",
            driver_symbol(gpu, "launch"), kernel->name, (long long)shape.x, (long long)shape.y, (long long)shape.z, shape.threads,
            driver_error_text(gpu, result), result);
    if (gpu->observe) gpu->observe(gpu->observer, kernel, &shape, true);
}

void gpu_fail(Device *device, const char *message) {
    Gpu *gpu = gpu_of(device);
    if (!gpu_failed(gpu)) error_set(&gpu->failure, ERROR_DEVICE, "%s", message);
}

/* GpuApi does not include cuTensorMapEncodeTiled, because drivers without it run the kernels of
 * older GPUs. Numbers as in cuda.h. */
bool gpu_tensor_map(const Device *device, TensorMap *map, const void *data, const int64_t sizes[3], const int64_t strides[2]) {
    enum { BF16 = 9, INTERLEAVE_NONE = 0, SWIZZLE_128 = 3, PROMOTE_256 = 3, FILL_ZERO = 0 };
    const Gpu *gpu = gpu_of(device);
    if (strcmp(device->info.target, "sm_90a")) return false;
    int (*encode)(TensorMap *, int, uint32_t, const void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int,
        int, int, int) = NULL;
    *(void **)&encode = dlsym(gpu->library, "cuTensorMapEncodeTiled");
    uint64_t dimensions[3], bytes[2];
    for (int i = 0; i < 3; i++) dimensions[i] = (uint64_t)sizes[i];
    for (int i = 0; i < 2; i++) bytes[i] = (uint64_t)strides[i] * 2;
    return encode && encode(map, BF16, 3, data, dimensions, bytes, (uint32_t[]){64, 64, 1}, (uint32_t[]){1, 1, 1}, INTERLEAVE_NONE,
                         SWIZZLE_128, PROMOTE_256, FILL_ZERO) == 0;
}
