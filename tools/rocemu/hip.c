/* The HIP functions that programs find in libamdhip64.so: one emulated MI300X, MI355X or half an MI250X. Streams run at
 * once and in order, so that waiting is free; a stream that captures records instead (graph.c). A kernel that failed
 * leaves an error that every later call returns, as on hardware. Modules, streams, events and memory belong to the
 * caller until destroyed by the matching call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "emulator.h"
#include "graph.h"
#include "hip.h"
#include "timing.h"

#define EXPORT __attribute__((visibility("default")))

struct hipEvent {
    double seconds;
    bool recorded;
};
typedef struct hipEvent hipEvent;
typedef struct Module {
    Program *program;
    struct Function *functions;
} Module;
typedef struct Function {
    struct Function *next;
    Kernel kernel;
} Function;

/* The first failure of a kernel; it stays. hipGetLastError's error is per thread and is cleared by reading. */
static int sticky_error;
static _Thread_local int last_error;

static int finish(int error) {
    if (!error) error = __atomic_load_n(&sticky_error, __ATOMIC_RELAXED);
    if (error) last_error = error;
    return error;
}
int hip_fail(int error) {
    int none = 0;
    if (error) __atomic_compare_exchange_n(&sticky_error, &none, error, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return finish(error);
}

/* -- Device -------------------------------------------------------------------------------------------------------- */

enum {
    VERSION = 60300000,
    COMPUTE_MINOR = 61,
    COMPUTE_UNITS = 63,
    LDS_PER_BLOCK = 74,
    LDS_BY_REQUEST = 75,
    LDS_PER_UNIT = 76,
    LDS_PER_UNIT_AMD = 10002
};

/* The MI300X, or what ROCEMU_GPU names: half an MI250X or an MI355X, whose other properties that programs ask for are
 * alike. */
static const Architecture *card(void) { return architecture_named(getenv("ROCEMU_GPU")); }

static int attribute_of_card(int attribute) {
    switch (attribute) {
    case COMPUTE_MINOR: return card()->minor;
    case COMPUTE_UNITS: return card()->compute_units;
    case LDS_PER_BLOCK:
    case LDS_BY_REQUEST:
    case LDS_PER_UNIT:
    case LDS_PER_UNIT_AMD: return (int)card()->lds_bytes;
    }
    return -1;
}

/* Numbers of hipDeviceAttribute_t and an MI300X's values; attribute_of_card() has those that differ. */
static const struct {
    int attribute, value;
} attributes[] = {
    {0, 1},        /* ECC */
    {2, 8},        /* asynchronous engines */
    {3, 1},        /* can map host memory */
    {5, 2100000},  /* clock, kHz */
    {6, 0},        /* compute mode */
    {8, 1},        /* concurrent kernels */
    {10, 0},       /* cooperative launch */
    {16, 0},       /* integrated */
    {17, 0},       /* board of several GPUs */
    {18, 0},       /* time limit on kernels */
    {19, 4 << 20}, /* L2, bytes */
    {23, 9},       /* compute capability, major */
    {24, 0},       /* managed memory */
    {26, 1024},
    {27, 1024},
    {28, 1024}, /* threads of a block in x, y, z */
    {29, 2147483647},
    {30, 65536},
    {31, 65536},   /* blocks of a grid */
    {56, 1024},    /* threads per block */
    {57, 2048},    /* threads per compute unit */
    {59, 8192},    /* memory bus, bits */
    {60, 1300000}, /* memory clock, kHz */
    {65, 0},       /* pageable memory access */
    {67, 0},
    {68, 0},
    {69, 0}, /* PCI bus, device, domain */
    {71, 65536},
    {72, 131072},     /* registers per block and per compute unit */
    {83, 2147483647}, /* constant memory */
    {85, 1},          /* unified addressing */
    {87, LANES},      /* wavefront */
    {10000, 100000},  /* timer, kHz */
    {10011, 0},       /* large BAR */
    {10012, 1},       /* revision */
};

EXPORT int hipInit(unsigned flags) { return finish(flags ? HIP_ERROR_INVALID_VALUE : 0); }
EXPORT int hipDriverGetVersion(int *version) { return version ? (*version = VERSION, 0) : finish(HIP_ERROR_INVALID_VALUE); }
EXPORT int hipRuntimeGetVersion(int *version) { return hipDriverGetVersion(version); }
/* Every process has memory of its own, so of the ROCEMU_CARDS cards that it sees it can use any, but one. */
static int card_count(void) {
    const char *cards = getenv("ROCEMU_CARDS");
    return cards ? atoi(cards) : 1;
}
static bool is_card(int device) { return device >= 0 && device < card_count(); }
static int current_card;

EXPORT int hipGetDeviceCount(int *count) { return count ? (*count = card_count(), 0) : finish(HIP_ERROR_INVALID_VALUE); }
EXPORT int hipSetDevice(int device) {
    if (!is_card(device)) return finish(HIP_ERROR_INVALID_DEVICE);
    current_card = device;
    return finish(0);
}
EXPORT int hipGetDevice(int *device) { return device ? (*device = current_card, finish(0)) : finish(HIP_ERROR_INVALID_VALUE); }
EXPORT int hipDeviceGet(int *device, int ordinal) {
    if (!device || !is_card(ordinal)) return finish(HIP_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return 0;
}
EXPORT int hipDeviceGetName(char *name, int bytes, int device) {
    if (!name || bytes <= 0 || !is_card(device)) return finish(HIP_ERROR_INVALID_VALUE);
    snprintf(name, (size_t)bytes, "%s", card()->card);
    return 0;
}
EXPORT int hipDeviceTotalMem(size_t *bytes, int device) {
    if (!bytes || !is_card(device)) return finish(HIP_ERROR_INVALID_VALUE);
    *bytes = arena_capacity();
    return 0;
}
EXPORT int hipDeviceGetAttribute(int *value, int attribute, int device) {
    if (!value || !is_card(device)) return finish(HIP_ERROR_INVALID_VALUE);
    if ((*value = attribute_of_card(attribute)) >= 0) return 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute) {
            *value = attributes[i].value;
            return 0;
        }
    return finish(HIP_ERROR_INVALID_VALUE);
}
EXPORT int hipDeviceSynchronize(void) { return finish(0); }

EXPORT const char *hipGetErrorName(int error) {
    switch (error) {
#define X(name, hip_name, value, text) case value: return #hip_name;
        HIP_ERRORS(X)
#undef X
    }
    return "hipErrorUnknown";
}
EXPORT const char *hipGetErrorString(int error) {
    switch (error) {
#define X(name, hip_name, value, text) case value: return text;
        HIP_ERRORS(X)
#undef X
    }
    return "unknown error";
}
EXPORT int hipGetLastError(void) {
    int error = last_error;
    last_error = 0;
    return error;
}
EXPORT int hipPeekAtLastError(void) { return last_error; }

/* -- Memory -------------------------------------------------------------------------------------------------------- */

static int allocate(void **memory, size_t bytes, bool host) {
    if (!memory) return finish(HIP_ERROR_INVALID_VALUE);
    *memory = NULL;
    if (!bytes) return finish(0);
    *memory = (void *)arena_allocate(bytes, host);
    return finish(*memory ? 0 : HIP_ERROR_OUT_OF_MEMORY);
}
EXPORT int hipMalloc(void **memory, size_t bytes) { return allocate(memory, bytes, false); }
EXPORT int hipFree(void *memory) { return finish(!memory || arena_free((uint64_t)memory, false) ? 0 : HIP_ERROR_INVALID_VALUE); }
EXPORT int hipHostMalloc(void **memory, size_t bytes, unsigned flags) {
    (void)flags;
    return allocate(memory, bytes, true);
}
EXPORT int hipHostFree(void *memory) { return finish(!memory || arena_free((uint64_t)memory, true) ? 0 : HIP_ERROR_INVALID_VALUE); }
/* Fine-grained memory is what smelt shares with other processes. */
enum { FINE_GRAINED = 1 };
EXPORT int hipExtMallocWithFlags(void **memory, size_t bytes, unsigned flags) {
    if (!memory || flags != FINE_GRAINED) return finish(HIP_ERROR_INVALID_VALUE);
    *memory = (void *)arena_allocate_shared(bytes);
    return finish(*memory ? 0 : HIP_ERROR_OUT_OF_MEMORY);
}
typedef struct hipIpcMemHandle { char reserved[64]; } hipIpcMemHandle;
EXPORT int hipIpcGetMemHandle(hipIpcMemHandle *handle, void *memory) {
    if (!handle) return finish(HIP_ERROR_INVALID_VALUE);
    memset(handle, 0, sizeof *handle);
    return finish(arena_handle((uint64_t)memory, handle) ? 0 : HIP_ERROR_INVALID_VALUE);
}
EXPORT int hipIpcOpenMemHandle(void **memory, hipIpcMemHandle handle, unsigned flags) {
    (void)flags;
    if (!memory) return finish(HIP_ERROR_INVALID_VALUE);
    *memory = (void *)arena_open(&handle);
    return finish(*memory ? 0 : HIP_ERROR_INVALID_VALUE);
}
EXPORT int hipIpcCloseMemHandle(void *memory) { return hipFree(memory); }
EXPORT int hipMemGetInfo(size_t *available, size_t *total) {
    if (!available || !total) return finish(HIP_ERROR_INVALID_VALUE);
    *total = arena_capacity();
    *available = *total - arena_used();
    return finish(0);
}

/* A range is whole if it lies in one live allocation; `device` says that it must, other addresses being the host's
 * own. */
static int check_range(const void *memory, size_t bytes, bool device) {
    Allocation found = {0};
    uint64_t address = (uint64_t)memory;
    if (!memory) return HIP_ERROR_INVALID_VALUE;
    bool near = arena_find(address, &found) && address - found.base < found.bytes;
    if (!near) return device ? HIP_ERROR_INVALID_VALUE : 0;
    if (found.live && bytes <= found.bytes - (address - found.base)) return 0;
    fprintf(stderr, "rocemu: a copy or fill of %zu bytes at %p does not fit the %s allocation of %llu bytes at 0x%llx\n", bytes, memory,
        found.live ? "live" : "freed", (unsigned long long)found.bytes, (unsigned long long)found.base);
    return HIP_ERROR_INVALID_VALUE;
}

static int copy(void *to, const void *from, size_t bytes, bool device_to, bool device_from, Stream *stream) {
    if (!bytes) return finish(0);
    int error = check_range(to, bytes, device_to);
    if (!error) error = check_range(from, bytes, device_from);
    if (error) return finish(error);
    if (stream_captures(stream)) return finish(graph_record_copy(stream, to, from, bytes));
    memmove(to, from, bytes);
    return finish(0);
}
typedef enum CopyKind { HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, BY_ADDRESS } CopyKind;
static int copy_kind(void *to, const void *from, size_t bytes, int kind, Stream *stream) {
    if (kind < HOST_TO_HOST || kind > BY_ADDRESS) return finish(HIP_ERROR_INVALID_VALUE);
    return copy(
        to, from, bytes, kind == HOST_TO_DEVICE || kind == DEVICE_TO_DEVICE, kind == DEVICE_TO_HOST || kind == DEVICE_TO_DEVICE, stream);
}
EXPORT int hipMemcpy(void *to, const void *from, size_t bytes, int kind) { return copy_kind(to, from, bytes, kind, NULL); }
EXPORT int hipMemcpyAsync(void *to, const void *from, size_t bytes, int kind, Stream *stream) {
    return copy_kind(to, from, bytes, kind, stream);
}
EXPORT int hipMemcpyHtoD(void *to, const void *from, size_t bytes) { return copy(to, from, bytes, true, false, NULL); }
EXPORT int hipMemcpyDtoH(void *to, const void *from, size_t bytes) { return copy(to, from, bytes, false, true, NULL); }
EXPORT int hipMemcpyDtoD(void *to, const void *from, size_t bytes) { return copy(to, from, bytes, true, true, NULL); }
EXPORT int hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, Stream *stream) {
    return copy(to, from, bytes, true, false, stream);
}
EXPORT int hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, Stream *stream) {
    return copy(to, from, bytes, false, true, stream);
}
EXPORT int hipMemcpyDtoDAsync(void *to, const void *from, size_t bytes, Stream *stream) {
    return copy(to, from, bytes, true, true, stream);
}

static int fill(void *memory, uint32_t value, size_t count, unsigned width, Stream *stream) {
    if (!count) return finish(0);
    int error = check_range(memory, count * width, true);
    if (error) return finish(error);
    if (stream_captures(stream)) return finish(graph_record_fill(stream, memory, value, count, width));
    graph_fill(memory, value, count, width);
    return finish(0);
}
EXPORT int hipMemset(void *memory, int value, size_t bytes) { return fill(memory, (uint8_t)value, bytes, 1, NULL); }
EXPORT int hipMemsetAsync(void *memory, int value, size_t bytes, Stream *stream) { return fill(memory, (uint8_t)value, bytes, 1, stream); }
EXPORT int hipMemsetD8(void *memory, unsigned char value, size_t count) { return fill(memory, value, count, 1, NULL); }
EXPORT int hipMemsetD8Async(void *memory, unsigned char value, size_t count, Stream *stream) {
    return fill(memory, value, count, 1, stream);
}
EXPORT int hipMemsetD16(void *memory, unsigned short value, size_t count) { return fill(memory, value, count, 2, NULL); }
EXPORT int hipMemsetD16Async(void *memory, unsigned short value, size_t count, Stream *stream) {
    return fill(memory, value, count, 2, stream);
}
EXPORT int hipMemsetD32(void *memory, int value, size_t count) { return fill(memory, (uint32_t)value, count, 4, NULL); }
EXPORT int hipMemsetD32Async(void *memory, int value, size_t count, Stream *stream) {
    return fill(memory, (uint32_t)value, count, 4, stream);
}

/* -- Streams and events -------------------------------------------------------------------------------------------- */

EXPORT int hipStreamCreateWithFlags(Stream **stream, unsigned flags) {
    (void)flags;
    if (!stream) return finish(HIP_ERROR_INVALID_VALUE);
    *stream = stream_create();
    return finish(*stream ? 0 : HIP_ERROR_OUT_OF_MEMORY);
}
EXPORT int hipStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    (void)priority;
    return hipStreamCreateWithFlags(stream, flags);
}
EXPORT int hipStreamCreate(Stream **stream) { return hipStreamCreateWithFlags(stream, 0); }
EXPORT int hipStreamDestroy(Stream *stream) {
    stream_destroy(stream);
    return finish(0);
}
EXPORT int hipStreamSynchronize(Stream *stream) { return finish(stream_captures(stream) ? HIP_ERROR_CAPTURE_UNSUPPORTED : 0); }
EXPORT int hipStreamQuery(Stream *stream) { return hipStreamSynchronize(stream); }
EXPORT int hipStreamWaitEvent(Stream *stream, hipEvent *event, unsigned flags) {
    (void)stream, (void)flags;
    return finish(event ? 0 : HIP_ERROR_INVALID_HANDLE);
}

EXPORT int hipEventCreateWithFlags(hipEvent **event, unsigned flags) {
    (void)flags;
    if (!event) return finish(HIP_ERROR_INVALID_VALUE);
    *event = calloc(1, sizeof **event);
    return finish(*event ? 0 : HIP_ERROR_OUT_OF_MEMORY);
}
EXPORT int hipEventCreate(hipEvent **event) { return hipEventCreateWithFlags(event, 0); }
EXPORT int hipEventDestroy(hipEvent *event) {
    free(event);
    return finish(event ? 0 : HIP_ERROR_INVALID_HANDLE);
}
static double host_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
/* Where launches are timed by the model, events tell its time. */
EXPORT int hipEventRecord(hipEvent *event, Stream *stream) {
    if (!event) return finish(HIP_ERROR_INVALID_HANDLE);
    if (stream_captures(stream)) return finish(0);
    event->seconds = timing_enabled() ? timing_seconds() : host_seconds();
    event->recorded = true;
    return finish(0);
}
EXPORT int hipEventSynchronize(hipEvent *event) { return finish(event ? 0 : HIP_ERROR_INVALID_HANDLE); }
EXPORT int hipEventQuery(hipEvent *event) { return hipEventSynchronize(event); }
EXPORT int hipEventElapsedTime(float *milliseconds, hipEvent *begin, hipEvent *end) {
    if (!milliseconds || !begin || !end || !begin->recorded || !end->recorded) return finish(HIP_ERROR_INVALID_HANDLE);
    *milliseconds = (float)(1e3 * (end->seconds - begin->seconds));
    return finish(0);
}

/* -- Modules ------------------------------------------------------------------------------------------------------- */

EXPORT int hipModuleLoadData(Module **module, const void *image) {
    char why[256] = "";
    if (!module || !image) return finish(HIP_ERROR_INVALID_VALUE);
    *module = calloc(1, sizeof **module);
    if (!*module) return finish(HIP_ERROR_OUT_OF_MEMORY);
    (*module)->program = program_load(image, why);
    const Architecture *architecture = (*module)->program ? (*module)->program->architecture : NULL;
    if (architecture == card()) return finish(0);
    if (architecture) snprintf(why, sizeof why, "a code object for another GPU (%s); this one is %s", architecture->name, card()->name);
    program_unload((*module)->program);
    fprintf(stderr, "rocemu: %s\n", why);
    free(*module);
    *module = NULL;
    return finish(strstr(why, "another GPU") ? HIP_ERROR_NO_BINARY_FOR_GPU : HIP_ERROR_INVALID_IMAGE);
}
EXPORT int hipModuleLoadDataEx(Module **module, const void *image, unsigned count, void *options, void **values) {
    (void)count, (void)options, (void)values;
    return hipModuleLoadData(module, image);
}
EXPORT int hipModuleUnload(Module *module) {
    if (!module) return finish(HIP_ERROR_INVALID_HANDLE);
    for (Function *function = module->functions; function;) {
        Function *next = function->next;
        free(function);
        function = next;
    }
    program_unload(module->program);
    free(module);
    return finish(0);
}
EXPORT int hipModuleGetFunction(Function **result, Module *module, const char *name) {
    char why[256] = "";
    if (!result || !module || !name) return finish(HIP_ERROR_INVALID_VALUE);
    for (Function *function = module->functions; function; function = function->next)
        if (!strcmp(function->kernel.name, name)) {
            *result = function;
            return finish(0);
        }
    Function *function = calloc(1, sizeof *function);
    if (!function) return finish(HIP_ERROR_OUT_OF_MEMORY);
    if (!program_kernel(module->program, name, &function->kernel, why)) {
        fprintf(stderr, "rocemu: %s\n", why);
        free(function);
        return finish(HIP_ERROR_NOT_FOUND);
    }
    function->next = module->functions;
    module->functions = function;
    *result = function;
    return finish(0);
}
EXPORT int hipFuncSetAttribute(const void *function, int attribute, int value) {
    (void)attribute;
    return finish(function && value >= 0 && value <= (int)card()->lds_bytes ? 0 : HIP_ERROR_INVALID_VALUE);
}
EXPORT int hipFuncSetCacheConfig(const void *function, int configuration) {
    (void)configuration;
    return finish(function ? 0 : HIP_ERROR_INVALID_VALUE);
}

EXPORT int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Function *function, int threads, size_t dynamic_bytes) {
    if (!blocks || !function || threads <= 0) return finish(HIP_ERROR_INVALID_VALUE);
    const Kernel *kernel = &function->kernel;
    *blocks = machine_occupancy(
        machine_find(kernel->program->architecture->name), kernel, (unsigned)threads, kernel->group_bytes + dynamic_bytes);
    return finish(0);
}

/* -- Launches ------------------------------------------------------------------------------------------------------ */

enum { PARAM_END = 0x03, PARAM_BUFFER = 0x01, PARAM_SIZE = 0x02 };

/* The caller's arguments, from an array of pointers or from one packed buffer, into the kernel's argument segment. */
static int gather_arguments(const Kernel *kernel, void **parameters, void **extra, uint8_t *kernarg) {
    if (parameters) {
        for (int i = 0; i < kernel->arguments; i++) memcpy(kernarg + kernel->argument[i].offset, parameters[i], kernel->argument[i].size);
        return 0;
    }
    const void *buffer = NULL;
    size_t bytes = 0;
    for (int i = 0; extra && extra[i] != (void *)PARAM_END; i += 2) {
        if (extra[i] == (void *)PARAM_BUFFER) buffer = extra[i + 1];
        if (extra[i] == (void *)PARAM_SIZE) bytes = *(const size_t *)extra[i + 1];
    }
    if (!buffer) return kernel->arguments ? HIP_ERROR_INVALID_VALUE : 0;
    memcpy(kernarg, buffer, bytes < kernel->kernarg_bytes ? bytes : kernel->kernarg_bytes);
    return 0;
}

static int refuse(const Kernel *kernel, const char *what, unsigned long long value, unsigned long long limit) {
    fprintf(stderr, "rocemu: kernel %s: a launch with %s of %llu; the limit is %llu\n", kernel->name, what, value, limit);
    return HIP_ERROR_INVALID_CONFIGURATION;
}

static int check_shape(const Kernel *kernel, const uint32_t grid[3], const uint32_t block[3], size_t shared) {
    for (int i = 0; i < 3; i++) {
        if (!grid[i] || !block[i]) return refuse(kernel, "an extent", 0, 1);
        if (block[i] > 1024) return refuse(kernel, "a block extent", block[i], 1024);
    }
    uint64_t threads = (uint64_t)block[0] * block[1] * block[2];
    if (threads > kernel->max_threads || threads > MAX_WAVES * LANES) return refuse(kernel, "a block", threads, kernel->max_threads);
    if (kernel->group_bytes + shared > card()->lds_bytes) return refuse(kernel, "LDS", kernel->group_bytes + shared, card()->lds_bytes);
    return 0;
}

EXPORT int hipModuleLaunchKernel(Function *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
    unsigned block_z, unsigned shared, Stream *stream, void **parameters, void **extra) {
    if (!function) return finish(HIP_ERROR_INVALID_HANDLE);
    const Kernel *kernel = &function->kernel;
    uint32_t grid[3] = {grid_x, grid_y, grid_z}, block[3] = {block_x, block_y, block_z};
    int error = finish(check_shape(kernel, grid, block, shared));
    if (error) return error;
    uint8_t *kernarg = calloc(1, kernel->kernarg_bytes + 8);
    if (!kernarg) return finish(HIP_ERROR_OUT_OF_MEMORY);
    error = gather_arguments(kernel, parameters, extra, kernarg);
    Launch launch;
    if (!error) launch_prepare(&launch, kernel, grid, block, shared, kernarg);
    if (!error && stream_captures(stream)) return finish(graph_record_launch(stream, &launch)); /* takes kernarg over */
    if (!error) error = launch_run(&launch);
    free(kernarg);
    return error == HIP_ERROR_INVALID_VALUE ? finish(error) : hip_fail(error);
}

/* -- Graphs -------------------------------------------------------------------------------------------------------- */

EXPORT int hipStreamBeginCapture(Stream *stream, int mode) {
    (void)mode;
    return finish(graph_begin(stream));
}
EXPORT int hipStreamEndCapture(Stream *stream, Graph **graph) { return finish(graph_end(stream, graph)); }
EXPORT int hipStreamIsCapturing(Stream *stream, int *status) {
    return status ? (*status = stream_captures(stream), finish(0)) : finish(HIP_ERROR_INVALID_VALUE);
}
EXPORT int hipLaunchHostFunc(Stream *stream, void (*run)(void *), void *data) {
    if (!run) return finish(HIP_ERROR_INVALID_VALUE);
    if (stream_captures(stream)) return finish(graph_record_host(stream, run, data));
    int error = finish(0);
    if (!error) run(data);
    return error;
}
/* An executable graph is the graph itself, with another owner. */
EXPORT int hipGraphInstantiate(Graph **executable, Graph *graph, void **error_node, char *log, size_t log_bytes) {
    (void)error_node, (void)log, (void)log_bytes;
    if (!executable || !graph) return finish(HIP_ERROR_INVALID_VALUE);
    *executable = graph_retain(graph);
    return finish(0);
}
EXPORT int hipGraphInstantiateWithFlags(Graph **executable, Graph *graph, unsigned long long flags) {
    (void)flags;
    return hipGraphInstantiate(executable, graph, NULL, NULL, 0);
}
EXPORT int hipGraphLaunch(Graph *graph, Stream *stream) {
    if (!graph) return finish(HIP_ERROR_INVALID_HANDLE);
    if (stream_captures(stream)) return finish(HIP_ERROR_CAPTURE_UNSUPPORTED);
    int error = finish(0);
    return error ? error : hip_fail(graph_run(graph));
}
EXPORT int hipGraphExecDestroy(Graph *graph) {
    graph_release(graph);
    return finish(0);
}
EXPORT int hipGraphDestroy(Graph *graph) { return hipGraphExecDestroy(graph); }
