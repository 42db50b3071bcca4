/* What the emulator's tests share: the library as programs find it (ROCEMU_LIBRARY), the code objects of
 * tests/rocemu/kernels (in the folder ROCEMU_KERNELS, for the GPU that ROCEMU_GPU names), memory and launches, random
 * values. Everything is static inline, so a test program uses what it needs. */
#pragma once

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef uint32_t u32;
typedef unsigned long long u64;
enum { LANES = 64 };

/* -- The library --------------------------------------------------------------------------------------------------- */

#define HIP_FUNCTIONS(X)                                                                                                                     \
    X(hipGetDeviceCount, (int *))                                                                                                            \
    X(hipDeviceGetName, (char *, int, int))                                                                                                  \
    X(hipDeviceGetAttribute, (int *, int, int))                                                                                              \
    X(hipMalloc, (void **, size_t))                                                                                                          \
    X(hipFree, (void *))                                                                                                                     \
    X(hipMemcpyHtoD, (void *, const void *, size_t))                                                                                         \
    X(hipMemcpyDtoH, (void *, const void *, size_t))                                                                                         \
    X(hipMemsetD32Async, (void *, int, size_t, void *))                                                                                      \
    X(hipStreamCreate, (void **))                                                                                                            \
    X(hipStreamDestroy, (void *))                                                                                                            \
    X(hipStreamBeginCapture, (void *, int))                                                                                                  \
    X(hipStreamEndCapture, (void *, void **))                                                                                                \
    X(hipGraphInstantiateWithFlags, (void **, void *, unsigned long long))                                                                   \
    X(hipGraphLaunch, (void *, void *))                                                                                                      \
    X(hipGraphDestroy, (void *))                                                                                                             \
    X(hipGraphExecDestroy, (void *))                                                                                                         \
    X(hipDeviceSynchronize, (void))                                                                                                          \
    X(hipEventCreate, (void **))                                                                                                             \
    X(hipEventRecord, (void *, void *))                                                                                                      \
    X(hipEventElapsedTime, (float *, void *, void *))                                                                                        \
    X(hipEventDestroy, (void *))                                                                                                             \
    X(hipModuleLoadData, (void **, const void *))                                                                                            \
    X(hipModuleUnload, (void *))                                                                                                             \
    X(hipModuleGetFunction, (void **, void *, const char *))                                                                                 \
    X(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, (int *, void *, int, size_t))                                                      \
    X(hipModuleLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **))

typedef struct Hip {
    void *library;
#define X(name, parameters) int(*name) parameters;
    HIP_FUNCTIONS(X)
#undef X
    void *basic, *memory, *faults, *undefined; /* modules */
} Hip;
static Hip hip; /* set once, by open_library */

static inline char *read_object(const char *name, size_t *bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s.co", getenv("ROCEMU_KERNELS"), name);
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    fseek(file, 0, SEEK_END);
    *bytes = (size_t)ftell(file);
    rewind(file);
    char *object = malloc(*bytes);
    if (object && fread(object, 1, *bytes, file) != *bytes) *object = 0;
    fclose(file);
    return object;
}

static inline void *load(const char *name) {
    size_t bytes;
    void *module = NULL;
    char *object = read_object(name, &bytes);
    if (object && hip.hipModuleLoadData(&module, object)) module = NULL;
    if (!module) fprintf(stderr, "the code object %s cannot be loaded from the folder ROCEMU_KERNELS\n", name);
    free(object);
    return module;
}

static inline bool open_library(void) {
    hip.library = dlopen(getenv("ROCEMU_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    if (!hip.library) {
        fprintf(stderr, "%s\n", dlerror());
        return false;
    }
#define X(name, parameters)                                       \
    if (!(*(void **)&hip.name = dlsym(hip.library, #name))) {     \
        fprintf(stderr, "the library has no %s\n", #name);        \
        return false;                                             \
    }
    HIP_FUNCTIONS(X)
#undef X
    return (hip.basic = load("basic")) && (hip.memory = load("memory")) && (hip.faults = load("faults")) &&
           (hip.undefined = load("undefined"));
}

static inline void *device_memory(size_t bytes) {
    void *memory = NULL;
    assert_int_equal(hip.hipMalloc(&memory, bytes), 0);
    return memory;
}

static inline void *device_copy(const void *from, size_t bytes) {
    void *memory = device_memory(bytes);
    assert_int_equal(hip.hipMemcpyHtoD(memory, from, bytes), 0);
    return memory;
}

typedef struct Shape { unsigned x, y, z, threads_x, threads_y, threads_z, shared; } Shape;

static inline int launch(void *module, const char *name, Shape s, void **arguments, void *stream) {
    void *function = NULL;
    int error = hip.hipModuleGetFunction(&function, module, name);
    return error ? error
                 : hip.hipModuleLaunchKernel(
                       function, s.x, s.y, s.z, s.threads_x, s.threads_y, s.threads_z, s.shared, stream, arguments, NULL);
}
static inline Shape line(unsigned blocks, unsigned threads) { return (Shape){blocks, 1, 1, threads, 1, 1, 0}; }

static inline bool on_gpu(const char *name) { return getenv("ROCEMU_GPU") && !strcmp(getenv("ROCEMU_GPU"), name); }
static inline bool on_gfx950(void) { return on_gpu("gfx950"); }
static inline bool on_gfx90a(void) { return on_gpu("gfx90a"); }
static inline bool emulator_is_given(void) { return getenv("ROCEMU_LIBRARY") && getenv("ROCEMU_KERNELS"); }

static inline void skip_test(void **state) {
    (void)state;
    print_message("skipped: ROCEMU_LIBRARY and ROCEMU_KERNELS are not set (make test-amd sets them)\n");
    skip();
}

/* Runs the tests on the emulator's library, or skips them all where none is given. */
static inline int run_on_emulator(struct CMUnitTest *tests, size_t count) {
    if (emulator_is_given() && !open_library()) return 1;
    for (size_t i = 0; !emulator_is_given() && i < count; i++) tests[i].test_func = skip_test;
    return _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
}

/* -- Values -------------------------------------------------------------------------------------------------------- */

static u64 random_state;
static inline u64 random_bits(void) {
    random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
    return (random_state >> 33) ^ random_state << 31;
}

static inline float f(u32 bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline u32 fb(float x) {
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline float bf16(uint16_t bits) { return f((u32)bits << 16); }
static inline uint16_t to_bf16(float x) { return (uint16_t)(fb(x) >> 16); }

/* A small whole number, exact in every type, so that the order of sums cannot matter. */
static inline int small_value(int i, int seed) { return (i * 7 + seed * 5 + i / 9) % 9 - 4; }
