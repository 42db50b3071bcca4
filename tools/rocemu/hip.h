/* Names and numbers of HIP's interface (ROCm 6) that the emulator answers to: error codes and device attributes.
 * Handles are pointers to structures of ours. */
#ifndef ROCEMU_HIP_H
#define ROCEMU_HIP_H

#include <stddef.h>
#include <stdint.h>

/* X(name, HIP's name, value, text) */
#define HIP_ERRORS(X)                                                                                   \
    X(SUCCESS, hipSuccess, 0, "no error")                                                               \
    X(INVALID_VALUE, hipErrorInvalidValue, 1, "invalid argument")                                       \
    X(OUT_OF_MEMORY, hipErrorOutOfMemory, 2, "out of memory")                                           \
    X(NOT_INITIALIZED, hipErrorNotInitialized, 3, "initialization error")                               \
    X(INVALID_CONFIGURATION, hipErrorInvalidConfiguration, 9, "invalid configuration argument")         \
    X(INVALID_DEVICE_POINTER, hipErrorInvalidDevicePointer, 17, "invalid device pointer")               \
    X(INVALID_DEVICE, hipErrorInvalidDevice, 101, "invalid device ordinal")                             \
    X(INVALID_IMAGE, hipErrorInvalidImage, 200, "device kernel image is invalid")                       \
    X(NO_BINARY_FOR_GPU, hipErrorNoBinaryForGpu, 209, "no kernel image is available for execution on the device") \
    X(INVALID_HANDLE, hipErrorInvalidHandle, 400, "invalid resource handle")                            \
    X(NOT_FOUND, hipErrorNotFound, 500, "named symbol not found")                                       \
    X(ILLEGAL_ADDRESS, hipErrorIllegalAddress, 700, "an illegal memory access was encountered")         \
    X(LAUNCH_OUT_OF_RESOURCES, hipErrorLaunchOutOfResources, 701, "too many resources requested for launch") \
    X(LAUNCH_FAILURE, hipErrorLaunchFailure, 719, "unspecified launch failure")                         \
    X(NOT_SUPPORTED, hipErrorNotSupported, 801, "operation not supported")                              \
    X(CAPTURE_UNSUPPORTED, hipErrorStreamCaptureUnsupported, 900, "operation not permitted when stream is capturing") \
    X(CAPTURE_UNMATCHED, hipErrorStreamCaptureUnmatched, 903, "capture was not initiated in this stream") \
    X(UNKNOWN, hipErrorUnknown, 999, "unknown error")

#define X(name, hip_name, value, text) HIP_ERROR_##name = value,
typedef enum HipError { HIP_ERRORS(X) } HipError;
#undef X

#endif
