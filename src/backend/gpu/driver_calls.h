/* The functions that smelt uses of a GPU's runtime library, under one name for both vendors: HIP's
 * module interface and the CUDA driver have the same functions with the same arguments.
 * tools/check-headers compiles these tables against the vendors' own headers. */
#pragma once

#include <stddef.h>

#include "device/handle.h"

/* (smelt's name, symbol of libamdhip64, symbol of libcuda, arguments). Every function returns 0 or
 * an error number. Handles and device addresses are void *; sizes as in both headers. An empty
 * symbol: the vendor has no such function, or smelt does not call it. */
#define GPU_API(CALL)                                                                                                                      \
    CALL(initialize, hipInit, cuInit, (unsigned flags))                                                                                \
    CALL(device_count, hipGetDeviceCount, cuDeviceGetCount, (int *count))                                                              \
    CALL(device_get, hipDeviceGet, cuDeviceGet, (int *device, int index))                                                              \
    CALL(device_name, hipDeviceGetName, cuDeviceGetName, (char *name, int size, int device))                                           \
    CALL(device_attribute, hipDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device))                       \
    CALL(device_use, hipSetDevice, , (int device))                                                                                     \
    CALL(context_retain, , cuDevicePrimaryCtxRetain, (void **context, int device))                                                     \
    CALL(context_use, , cuCtxSetCurrent, (void *context))                                                                              \
    CALL(context_release, , cuDevicePrimaryCtxRelease_v2, (int device))                                                                \
    CALL(memory_info, hipMemGetInfo, cuMemGetInfo_v2, (size_t *available, size_t *total))                                              \
    CALL(allocate, hipMalloc, cuMemAlloc_v2, (void **memory, size_t bytes))                                                            \
    CALL(release, hipFree, cuMemFree_v2, (void *memory))                                                                               \
    CALL(allocate_host, hipHostMalloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags))                                  \
    CALL(release_host, hipHostFree, cuMemFreeHost, (void *memory))                                                                     \
    CALL(allocate_shared, hipExtMallocWithFlags, , (void **memory, size_t bytes, unsigned flags))                                    \
    CALL(handle_get, hipIpcGetMemHandle, cuIpcGetMemHandle, (DeviceHandle * handle, void *memory))                                     \
    CALL(handle_open, hipIpcOpenMemHandle, cuIpcOpenMemHandle_v2, (void **memory, DeviceHandle handle, unsigned flags))                \
    CALL(handle_close, hipIpcCloseMemHandle, cuIpcCloseMemHandle, (void *memory))                                                      \
    CALL(upload, hipMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (void *to, const void *from, size_t bytes, void *stream))                   \
    CALL(download, hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *to, void *from, size_t bytes, void *stream))                       \
    CALL(copy, hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (void *to, void *from, size_t bytes, void *stream))                           \
    CALL(fill, hipMemsetD8Async, cuMemsetD8Async, (void *to, unsigned char byte, size_t bytes, void *stream))                          \
    CALL(stream_create, hipStreamCreateWithPriority, cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority))        \
    CALL(stream_wait, hipStreamWaitEvent, cuStreamWaitEvent, (void *stream, void *event, unsigned flags))                              \
    CALL(stream_synchronize, hipStreamSynchronize, cuStreamSynchronize, (void *stream))                                                \
    CALL(stream_destroy, hipStreamDestroy, cuStreamDestroy_v2, (void *stream))                                                         \
    CALL(event_create, hipEventCreateWithFlags, cuEventCreate, (void **event, unsigned flags))                                         \
    CALL(event_record, hipEventRecord, cuEventRecord, (void *event, void *stream))                                                     \
    CALL(event_query, hipEventQuery, cuEventQuery, (void *event))                                                                      \
    CALL(event_synchronize, hipEventSynchronize, cuEventSynchronize, (void *event))                                                    \
    CALL(event_elapsed, hipEventElapsedTime, cuEventElapsedTime, (float *milliseconds, void *start, void *end))                        \
    CALL(event_destroy, hipEventDestroy, cuEventDestroy_v2, (void *event))                                                             \
    CALL(module_load, hipModuleLoadData, cuModuleLoadData, (void **module, const void *image))                                         \
    CALL(module_unload, hipModuleUnload, cuModuleUnload, (void *module))                                                               \
    CALL(module_function, hipModuleGetFunction, cuModuleGetFunction, (void **function, void *module, const char *name))                \
    CALL(function_attribute, , cuFuncSetAttribute, (void *function, int attribute, int value))                          \
    CALL(launch, hipModuleLaunchKernel, cuLaunchKernel,                                                                                \
         (void *function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared, \
          void *stream, void **arguments, void **extra))                                                                                   \
    CALL(capture_begin, hipStreamBeginCapture, cuStreamBeginCapture_v2, (void *stream, int mode))                                      \
    CALL(capture_end, hipStreamEndCapture, cuStreamEndCapture, (void *stream, void **graph))                                           \
    CALL(graph_instantiate, hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags,                                                 \
         (void **executable, void *graph, unsigned long long flags))                                                                       \
    CALL(graph_launch, hipGraphLaunch, cuGraphLaunch, (void *executable, void *stream))                                                \
    CALL(graph_free, hipGraphDestroy, cuGraphDestroy, (void *graph))                                                                   \
    CALL(executable_free, hipGraphExecDestroy, cuGraphExecDestroy, (void *executable))

/* (smelt's name, number and name in HIP, number and name in CUDA). The first four are device
 * attributes, which each vendor numbers differently. Without a name, smelt does not use the
 * number there. */
#define GPU_NUMBERS(NUMBER)                                                                                                    \
    NUMBER(processors, 63, hipDeviceAttributeMultiprocessorCount, 16, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                \
    NUMBER(major, 23, hipDeviceAttributeComputeCapabilityMajor, 75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)              \
    NUMBER(minor, 61, hipDeviceAttributeComputeCapabilityMinor, 76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)              \
    NUMBER(shared_bytes, 74, hipDeviceAttributeMaxSharedMemoryPerBlock, 97, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)

/* (smelt's name, number, name in HIP, name in CUDA), for numbers that are the same in both. An
 * empty name is not checked: smelt does not use it, or it differs between versions of the
 * library. */
#define GPU_SHARED_NUMBERS(NUMBER)                                                                                   \
    NUMBER(STREAM_NON_BLOCKING, 1, hipStreamNonBlocking, CU_STREAM_NON_BLOCKING)                                     \
    NUMBER(EVENT_WITHOUT_TIME, 2, hipEventDisableTiming, CU_EVENT_DISABLE_TIMING)                                    \
    NUMBER(HANDLE_ENABLES_PEERS, 1, , CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)                                            \
    NUMBER(SHARED_COHERENT, 1, hipDeviceMallocFinegrained, )                                                         \
    NUMBER(CAPTURE_THREAD_LOCAL, 1, hipStreamCaptureModeThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)            \
    NUMBER(ATTRIBUTE_DYNAMIC_SHARED, 8, hipFuncAttributeMaxDynamicSharedMemorySize, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)

#define GPU_SHARED_NUMBER(name, value, hip, cuda) name = value,
enum { GPU_SHARED_NUMBERS(GPU_SHARED_NUMBER) };
