/* What smelt calls of a GPU's runtime library, under one name for both vendors. HIP's module interface and the CUDA driver's have the same functions with
 * the same arguments; GPU_API lists (our name, symbol of libamdhip64, symbol of libcuda, arguments). Every function returns 0 or an error number.
 * Handles are void *, device addresses void *; sizes as in both headers. NONE: the vendor has no such function or smelt does not call it. */
#pragma once

#include <stddef.h>

#define GPU_API(CALL)                                                                                                                      \
    CALL(initialize, hipInit, cuInit, (unsigned flags))                                                                                    \
    CALL(device_count, hipGetDeviceCount, cuDeviceGetCount, (int *count))                                                                  \
    CALL(device_get, hipDeviceGet, cuDeviceGet, (int *device, int index))                                                                  \
    CALL(device_name, hipDeviceGetName, cuDeviceGetName, (char *name, int size, int device))                                               \
    CALL(device_attribute, hipDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                           \
    CALL(device_use, hipSetDevice, NONE, (int device))                                                                                     \
    CALL(context_retain, NONE, cuDevicePrimaryCtxRetain, (void **context, int device))                                                     \
    CALL(context_use, NONE, cuCtxSetCurrent, (void *context))                                                                              \
    CALL(context_release, NONE, cuDevicePrimaryCtxRelease_v2, (int device))                                                                \
    CALL(memory_info, hipMemGetInfo, cuMemGetInfo_v2, (size_t *available, size_t *total))                                                  \
    CALL(allocate, hipMalloc, cuMemAlloc_v2, (void **memory, size_t bytes))                                                                \
    CALL(release, hipFree, cuMemFree_v2, (void *memory))                                                                                   \
    CALL(allocate_host, hipHostMalloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                                      \
    CALL(release_host, hipHostFree, cuMemFreeHost, (void *memory))                                                                         \
    CALL(upload, hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (void *to, const void *from, size_t bytes, void *stream))                       \
    CALL(download, hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *to, void *from, size_t bytes, void *stream))                           \
    CALL(copy, hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (void *to, void *from, size_t bytes, void *stream))                               \
    CALL(fill, hipMemsetD8Async, cuMemsetD8Async, (void *to, unsigned char byte, size_t bytes, void *stream))                              \
    CALL(stream_create, hipStreamCreateWithFlags, cuStreamCreate, (void **stream, unsigned flags))                                         \
    CALL(stream_wait, hipStreamWaitEvent, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                                  \
    CALL(stream_synchronize, hipStreamSynchronize, cuStreamSynchronize, (void *stream))                                                    \
    CALL(stream_destroy, hipStreamDestroy, cuStreamDestroy_v2, (void *stream))                                                             \
    CALL(event_create, hipEventCreateWithFlags, cuEventCreate, (void **event, unsigned flags))                                             \
    CALL(event_record, hipEventRecord, cuEventRecord, (void *event, void *stream))                                                         \
    CALL(event_query, hipEventQuery, cuEventQuery, (void *event))                                                                          \
    CALL(event_synchronize, hipEventSynchronize, cuEventSynchronize, (void *event))                                                        \
    CALL(event_elapsed, hipEventElapsedTime, cuEventElapsedTime, (float *milliseconds, void *start, void *end))                            \
    CALL(event_destroy, hipEventDestroy, cuEventDestroy_v2, (void *event))                                                                 \
    CALL(module_load, hipModuleLoadData, cuModuleLoadData, (void **module, const void *image))                                             \
    CALL(module_unload, hipModuleUnload, cuModuleUnload, (void *module))                                                                   \
    CALL(module_function, hipModuleGetFunction, cuModuleGetFunction, (void **function, void *module, const char *name))                    \
    CALL(function_attribute, NONE, cuFuncSetAttribute, (void *function, int attribute, int value))                          \
    CALL(launch, hipModuleLaunchKernel, cuLaunchKernel,                                                                                    \
         (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared, \
          void *stream, void **arguments, void **extra))                                                                                   \
    CALL(capture_begin, hipStreamBeginCapture, cuStreamBeginCapture_v2, (void *stream, int mode))                                          \
    CALL(capture_end, hipStreamEndCapture, cuStreamEndCapture, (void *stream, void **graph))                                               \
    CALL(graph_instantiate, hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                                                     \
         (void **executable, void *graph, unsigned long long flags))                                                                       \
    CALL(graph_launch, hipGraphLaunch, cuGraphLaunch, (void *executable, void *stream))                                                    \
    CALL(graph_free, hipGraphDestroy, cuGraphDestroy, (void *graph))                                                                       \
    CALL(executable_free, hipGraphExecDestroy, cuGraphExecDestroy, (void *executable))

typedef struct GpuApi {
#define FIELD(name, hip, cuda, arguments) int(*name) arguments;
    GPU_API(FIELD)
#undef FIELD
} GpuApi;
