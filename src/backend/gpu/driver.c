/* One GPU of AMD or NVIDIA: its library opened at run time, the code objects of src/kernel that suit it, launches, recordings and timers. Owns the
 * context, one stream, loaded modules. Called by device.c and through device.h. */
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "backend/gpu/driver_internal.h"
#include "backend/gpu/ptx.h"

enum {
    STREAM_NON_BLOCKING = 1,
    CAPTURE_THREAD_LOCAL = 1,
    EVENT_WITHOUT_TIME = 2,
    ATTRIBUTE_DYNAMIC_SHARED = 8,
    SHARED_WITHOUT_ASKING = 48 << 10
};

typedef struct Attributes { int processors, major, minor, shared_bytes; } Attributes; /* numbers in the vendor's enumeration */
typedef struct Symbol {
    const char *hip, *cuda;
    size_t offset;
} Symbol;

typedef struct Vendor {
    const char *name, *libraries[4];
    Attributes attributes;
} Vendor;

static const Vendor vendors[] = {
    [DEVICE_HIP] = {"HIP", {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"}, {63, 23, 61, 74}},
    [DEVICE_CUDA] = {"CUDA", {"libcuda.so.1", "libcuda.so"}, {16, 75, 76, 97}},
};

static const Symbol symbols[] = {
#define SYMBOL(name, hip, cuda, arguments) {#hip, #cuda, offsetof(GpuApi, name)},
    GPU_API(SYMBOL)
#undef SYMBOL
};

/* -- Failures ------------------------------------------------------------------------------------------------------ */

static const char *symbol_of(const Gpu *gpu, const char *call) {
    const char *names[] = {
#define NAME(name, hip, cuda, arguments) #name,
        GPU_API(NAME)
#undef NAME
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], call)) return gpu->kind == DEVICE_HIP ? symbols[i].hip : symbols[i].cuda;
    return call;
}

static const char *error_text(const Gpu *gpu, int result) {
    const char *text = NULL;
    if (gpu->kind == DEVICE_HIP) {
        const char *(*describe)(int) = (const char *(*)(int))dlsym(gpu->library, "hipGetErrorString");
        text = describe ? describe(result) : NULL;
    } else {
        int (*describe)(int, const char **) = (int (*)(int, const char **))dlsym(gpu->library, "cuGetErrorString");
        if (describe) describe(result, &text);
    }
    return text ? text : "an error without a name";
}

bool gpu_check(Gpu *gpu, int result, const char *call) {
    if (result == 0) return true;
    if (gpu->failure.code == ERROR_NONE)
        error_set(&gpu->failure, ERROR_DEVICE, "%s failed: %s (%d)", symbol_of(gpu, call), error_text(gpu, result), result);
    return false;
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool load_library(Gpu *gpu, Error *error) {
    const Vendor *vendor = &vendors[gpu->kind];
    for (int i = 0; vendor->libraries[i] && !gpu->library; i++) gpu->library = dlopen(vendor->libraries[i], RTLD_NOW | RTLD_LOCAL);
    if (!gpu->library)
        return error_set(error, ERROR_USAGE,
            "device=%s: %s was not found; install the driver, or add its folder to LD_LIBRARY_PATH, or give device=cpu",
            gpu->kind == DEVICE_HIP ? "hip" : "cuda", vendor->libraries[0]);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        const char *name = gpu->kind == DEVICE_HIP ? symbols[i].hip : symbols[i].cuda;
        if (!strcmp(name, "NONE")) continue;
        void *symbol = dlsym(gpu->library, name);
        if (!symbol) return error_set(error, ERROR_DEVICE, "%s has no %s: the driver is too old", vendor->libraries[0], name);
        memcpy((char *)&gpu->call + symbols[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

static bool find_device(Gpu *gpu, int index, Error *error) {
    int count = 0, result = gpu->call.initialize(0);
    if (result == 0) result = gpu->call.device_count(&count);
    if (result != 0 || count == 0)
        return error_set(error, ERROR_USAGE,
            "%s finds no GPU (%s); look at the driver, at HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES, or give device=cpu",
            vendors[gpu->kind].name, result ? error_text(gpu, result) : "none is visible");
    if (index >= count) return error_set(error, ERROR_USAGE, "GPU %d was asked for and %d are visible", index, count);
    return gpu_check(gpu, gpu->call.device_get(&gpu->device, index), "device_get");
}

static bool describe(Gpu *gpu, DeviceInfo *info) {
    const Attributes *attributes = &vendors[gpu->kind].attributes;
    size_t available, total = 0;
    int major = 0, minor = 0;
    bool done =
        gpu_check(gpu, gpu->call.device_name(info->name, sizeof info->name, gpu->device), "device_name") &&
        gpu_check(gpu, gpu->call.device_attribute(&info->processors, attributes->processors, gpu->device), "device_attribute") &&
        gpu_check(gpu, gpu->call.device_attribute(&major, attributes->major, gpu->device), "device_attribute") &&
        gpu_check(gpu, gpu->call.device_attribute(&minor, attributes->minor, gpu->device), "device_attribute") &&
        gpu_check(gpu, gpu->call.device_attribute(&info->shared_bytes, attributes->shared_bytes, gpu->device), "device_attribute") &&
        gpu_check(gpu, gpu->call.memory_info(&available, &total), "memory_info");
    info->memory = (int64_t)total;
    info->wave = gpu->kind == DEVICE_HIP ? 64 : 32;
    /* AMD: 9.0 is gfx90a, 9.4 gfx942, 9.5 gfx950. NVIDIA: PTX for 8.0 also runs on what came after, that for 9.0a on Hopper alone. */
    if (gpu->kind == DEVICE_HIP)
        snprintf(info->target, sizeof info->target, "gfx%d%s", major, minor == 0 ? "0a" : minor == 4 ? "42" : minor == 5 ? "50" : "?");
    else snprintf(info->target, sizeof info->target, major == 9 ? "sm_90a" : major >= 8 ? "sm_80" : "sm_%d%d", major, minor);
    return done;
}

static bool list_modules(Gpu *gpu, const DeviceInfo *info, Error *error) {
    int objects = 0;
    while (gpu_objects[objects].module) objects++;
    gpu->modules = memory_allocate((objects + 1) * sizeof *gpu->modules);
    for (int i = 0; i < objects; i++)
        if (!strcmp(gpu_objects[i].target, info->target)) gpu->modules[gpu->module_count++] = (Module){.object = &gpu_objects[i]};
    gpu->target = gpu->module_count ? gpu->modules[0].object->target : NULL;
    return gpu->module_count > 0 ||
           error_set(error, ERROR_USAGE, "%s is %s, for which this smelt has no kernels: build with GPU_TARGETS=%s, or give device=cpu",
               info->name, info->target, info->target);
}

static bool use_device(Gpu *gpu) {
    if (gpu->kind == DEVICE_HIP) return gpu_check(gpu, gpu->call.device_use(gpu->device), "device_use");
    return gpu_check(gpu, gpu->call.context_retain(&gpu->context, gpu->device), "context_retain") &&
           gpu_check(gpu, gpu->call.context_use(gpu->context), "context_use");
}

static bool create_stream(Gpu *gpu) {
    bool done = gpu_check(gpu, gpu->call.stream_create(&gpu->stream, STREAM_NON_BLOCKING), "stream_create");
    for (int i = 0; i < 2; i++) done = done && gpu_check(gpu, gpu->call.event_create(&gpu->timer[i], 0), "event_create");
    return done;
}

Gpu *gpu_open(DeviceKind kind, int index, DeviceInfo *info, Error *error) {
    Gpu *gpu = memory_allocate(sizeof *gpu);
    gpu->kind = kind;
    bool opened = load_library(gpu, error) && find_device(gpu, index, error) && use_device(gpu) && describe(gpu, info) &&
                  list_modules(gpu, info, error) && create_stream(gpu);
    if (opened && kind == DEVICE_CUDA) gpu->ptx = ptx_open();
    if (opened) return gpu;
    if (gpu->failure.code != ERROR_NONE) *error = gpu->failure;
    gpu_close(gpu);
    return NULL;
}

void gpu_close(Gpu *gpu) {
    staging_close(gpu);
    for (int i = 0; i < gpu->module_count; i++)
        if (gpu->modules[i].handle) gpu->call.module_unload(gpu->modules[i].handle);
    for (int i = 0; i < 2; i++)
        if (gpu->timer[i]) gpu->call.event_destroy(gpu->timer[i]);
    if (gpu->stream) gpu->call.stream_destroy(gpu->stream);
    ptx_close(gpu->ptx);
    if (gpu->context) gpu->call.context_release(gpu->device);
    if (gpu->library) dlclose(gpu->library);
    free(gpu->modules);
    free(gpu);
}

/* -- Launches ------------------------------------------------------------------------------------------------------ */

static void use_in_thread(const Gpu *gpu) {
    if (gpu->context) gpu->call.context_use(gpu->context);
    else gpu->call.device_use(gpu->device);
}

static int load_module(Gpu *gpu, Module *module) {
    void *code = gpu->ptx && module->object->kernel[0] ? ptx_compile(gpu->ptx, module->object->image, gpu->target) : NULL;
    use_in_thread(gpu);
    int result = gpu->call.module_load(&module->handle, code ? code : module->object->image);
    free(code);
    return result;
}

/* Side by side: most of the time goes into compiling PTX. */
static void load_wanted(Gpu *gpu) {
    int results[gpu->module_count];
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < gpu->module_count; i++)
        results[i] = gpu->modules[i].wanted && !gpu->modules[i].handle ? load_module(gpu, &gpu->modules[i]) : 0;
    for (int i = 0; i < gpu->module_count; i++)
        if (results[i] && gpu->failure.code == ERROR_NONE)
            error_set(&gpu->failure, ERROR_DEVICE, "%s failed for %s.%s: %s (%d)", symbol_of(gpu, "module_load"),
                gpu->modules[i].object->module, gpu->modules[i].object->kernel, error_text(gpu, results[i]), results[i]);
}

static Module *find_module(Gpu *gpu, const GpuKernel *kernel) {
    for (int i = 0; i < gpu->module_count; i++) {
        const GpuObject *object = gpu->modules[i].object;
        if (!strcmp(object->module, kernel->module) && (!object->kernel[0] || !strcmp(object->kernel, kernel->name)))
            return &gpu->modules[i];
    }
    error_set(&gpu->failure, ERROR_DEVICE, "this smelt has no kernel %s of %s for this GPU", kernel->name, kernel->module);
    return NULL;
}

void device_prepare_begin(Device *device) { device->gpu->preparing = true; }

void device_prepare_end(Device *device) { device->gpu->preparing = false; }

static bool load_function(Gpu *gpu, Function *function, const GpuKernel *kernel) {
    Module *module = find_module(gpu, kernel);
    if (!module) return false;
    module->wanted = true;
    if (gpu->preparing) return false;
    if (!module->handle) load_wanted(gpu);
    if (gpu->failure.code != ERROR_NONE) return false;
    int result = gpu->call.module_function(&function->handle, module->handle, kernel->name);
    if (result)
        return error_set(
            &gpu->failure, ERROR_DEVICE, "kernel %s of %s: %s (%d)", kernel->name, kernel->module, error_text(gpu, result), result);
    function->kernel = kernel;
    return true;
}

static Function *find_function(Gpu *gpu, const GpuKernel *kernel) {
    size_t slot = (uintptr_t)kernel / sizeof *kernel % GPU_MAX_FUNCTIONS;
    while (gpu->functions[slot].kernel && gpu->functions[slot].kernel != kernel) slot = (slot + 1) % GPU_MAX_FUNCTIONS;
    Function *function = &gpu->functions[slot];
    return function->kernel || load_function(gpu, function, kernel) ? function : NULL;
}

/* NVIDIA wants to be asked before a block may have much shared memory. */
static bool allow_shared(Gpu *gpu, Function *function, int bytes) {
    if (!gpu->call.function_attribute || bytes <= SHARED_WITHOUT_ASKING || bytes <= function->shared) return true;
    function->shared = bytes;
    return gpu_check(gpu, gpu->call.function_attribute(function->handle, ATTRIBUTE_DYNAMIC_SHARED, bytes), "function_attribute");
}

void device_launch(Device *device, const GpuKernel *kernel, LaunchShape shape, const void *arguments) {
    Gpu *gpu = device->gpu;
    if (gpu->failure.code != ERROR_NONE || shape.x == 0) return;
    Function *function = find_function(gpu, kernel);
    if (!function || !allow_shared(gpu, function, shape.shared)) return;
    void *parameters[] = {(void *)arguments};
    int result = gpu->call.launch(function->handle, (unsigned)shape.x, shape.y ? (unsigned)shape.y : 1, shape.z ? (unsigned)shape.z : 1,
        (unsigned)shape.threads, 1, 1, (unsigned)shape.shared, gpu->stream, parameters, NULL);
    if (result)
        error_set(&gpu->failure, ERROR_DEVICE, "%s of kernel %s, %lld x %lld x %lld blocks of %d threads, failed: %s (%d)",
            symbol_of(gpu, "launch"), kernel->name, (long long)shape.x, (long long)shape.y, (long long)shape.z, shape.threads,
            error_text(gpu, result), result);
}

/* Looked up only here: drivers that are too old to know it run the other kernels. Numbers are the header's: bf16, 128-byte swizzle, 256 bytes at once into
 * the second-level cache. */
bool device_tensor_map(const Device *device, TensorMap *map, const void *data, const int64_t sizes[3], const int64_t strides[2]) {
    enum { BF16 = 9, INTERLEAVE_NONE = 0, SWIZZLE_128 = 3, PROMOTE_256 = 3, FILL_ZERO = 0 };
    const Gpu *gpu = device->gpu;
    if (!gpu || gpu->kind != DEVICE_CUDA || strcmp(device->info.target, "sm_90a")) return false;
    int (*encode)(TensorMap *, int, uint32_t, const void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *, int,
        int, int, int) = NULL;
    *(void **)&encode = dlsym(gpu->library, "cuTensorMapEncodeTiled");
    uint64_t dimensions[3], bytes[2];
    for (int i = 0; i < 3; i++) dimensions[i] = (uint64_t)sizes[i];
    for (int i = 0; i < 2; i++) bytes[i] = (uint64_t)strides[i] * 2;
    return encode && encode(map, BF16, 3, data, dimensions, bytes, (uint32_t[]){64, 64, 1}, (uint32_t[]){1, 1, 1}, INTERLEAVE_NONE,
                         SWIZZLE_128, PROMOTE_256, FILL_ZERO) == 0;
}

/* -- Recordings ---------------------------------------------------------------------------------------------------- */

struct DeviceRecording { void *graph, *executable; };

bool device_record_begin(Device *device) {
    Gpu *gpu = device->gpu;
    gpu->recording = gpu->failure.code == ERROR_NONE && gpu->call.capture_begin(gpu->stream, CAPTURE_THREAD_LOCAL) == 0;
    return gpu->recording;
}

DeviceRecording *device_record_end(Device *device) {
    Gpu *gpu = device->gpu;
    DeviceRecording *recording = memory_allocate(sizeof *recording);
    bool recorded = gpu_check(gpu, gpu->call.capture_end(gpu->stream, &recording->graph), "capture_end") &&
                    gpu_check(gpu, gpu->call.graph_instantiate(&recording->executable, recording->graph, 0), "graph_instantiate");
    gpu->recording = false;
    if (recorded) return recording;
    device_recording_free(device, recording);
    return NULL;
}

void device_replay(Device *device, DeviceRecording *recording) {
    Gpu *gpu = device->gpu;
    if (gpu->failure.code == ERROR_NONE) gpu_check(gpu, gpu->call.graph_launch(recording->executable, gpu->stream), "graph_launch");
}

void device_recording_free(Device *device, DeviceRecording *recording) {
    if (!recording) return;
    if (recording->executable) device->gpu->call.executable_free(recording->executable);
    if (recording->graph) device->gpu->call.graph_free(recording->graph);
    free(recording);
}

/* -- Streams and events ---------------------------------------------------------------------------------------------- */

static void *stream_of(const Gpu *gpu, DeviceStream *stream) { return stream ? (void *)stream : gpu->stream; }

DeviceStream *device_stream_open(Device *device) {
    void *stream = NULL;
    return gpu_check(device->gpu, device->gpu->call.stream_create(&stream, STREAM_NON_BLOCKING), "stream_create") ? stream : NULL;
}

void device_stream_close(Device *device, DeviceStream *stream) {
    if (stream) device->gpu->call.stream_destroy(stream);
}

static DeviceEvent *open_event(Device *device, unsigned flags) {
    void *event = NULL;
    return gpu_check(device->gpu, device->gpu->call.event_create(&event, flags), "event_create") ? event : NULL;
}

DeviceEvent *device_event_open(Device *device) { return open_event(device, EVENT_WITHOUT_TIME); }
DeviceEvent *device_event_open_timed(Device *device) { return open_event(device, 0); }

void device_event_close(Device *device, DeviceEvent *event) {
    if (event) device->gpu->call.event_destroy(event);
}

void device_event_record(Device *device, DeviceEvent *event, DeviceStream *stream) {
    Gpu *gpu = device->gpu;
    if (gpu->failure.code == ERROR_NONE) gpu_check(gpu, gpu->call.event_record(event, stream_of(gpu, stream)), "event_record");
}

void device_event_wait(Device *device, DeviceEvent *event, DeviceStream *stream) {
    Gpu *gpu = device->gpu;
    if (gpu->failure.code == ERROR_NONE) gpu_check(gpu, gpu->call.stream_wait(stream_of(gpu, stream), event, 0), "stream_wait");
}

bool device_event_done(const Device *device, DeviceEvent *event) { return device->gpu->call.event_query(event) == 0; }

double device_event_seconds(const Device *device, DeviceEvent *from, DeviceEvent *to) {
    float milliseconds = 0;
    return device->gpu->call.event_elapsed(&milliseconds, from, to) == 0 ? milliseconds / 1e3 : 0;
}

void device_use_thread(const Device *device) { use_in_thread(device->gpu); }

/* -- Time ---------------------------------------------------------------------------------------------------------- */

void device_timer_start(Device *device) {
    Gpu *gpu = device->gpu;
    if (gpu->failure.code == ERROR_NONE) gpu_check(gpu, gpu->call.event_record(gpu->timer[0], gpu->stream), "event_record");
}

double device_timer_stop(Device *device) {
    Gpu *gpu = device->gpu;
    float milliseconds = 0;
    if (gpu->failure.code == ERROR_NONE && gpu_check(gpu, gpu->call.event_record(gpu->timer[1], gpu->stream), "event_record") &&
        gpu_check(gpu, gpu->call.event_synchronize(gpu->timer[1]), "event_synchronize"))
        gpu_check(gpu, gpu->call.event_elapsed(&milliseconds, gpu->timer[0], gpu->timer[1]), "event_elapsed");
    return milliseconds / 1e3;
}
