/* The only interface to hardware: memory, copies, launches, products, timing. A device is the CPU or one GPU; GPUs of AMD and NVIDIA share one
 * implementation (gpu.c) over the symbol table of HIP or of the CUDA driver (gpu_api.h), whose library is opened at run time.
 *
 * Work on a GPU is asynchronous, in order on one stream. So a failure shows late: the first one is kept, with the name of the call, and everything
 * after it is skipped; device_ok tells. On the CPU every function acts at once and cannot fail but for memory.
 *
 * Made by the command; whoever takes memory from a device gives it back before the device is closed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "device/gemm.h"
#include "backend/gpu/tensor_map.h"

typedef enum DeviceKind { DEVICE_AUTO, DEVICE_CPU, DEVICE_HIP, DEVICE_CUDA } DeviceKind; /* AUTO only to ask for one */

typedef struct DeviceInfo {
    DeviceKind kind;
    char name[128];   /* as the vendor's library gives it */
    char target[16];  /* gfx942, sm_90a: whose code objects run */
    int processors;   /* compute units, multiprocessors; 0 on the CPU */
    int wave;         /* lanes: 64 or 32; 1 on the CPU */
    int shared_bytes; /* most that a block may have */
    int64_t memory;   /* bytes in all */
} DeviceInfo;

typedef struct Device Device;

/* DEVICE_AUTO: a GPU if there is one, else the CPU. The vendors' variables (HIP_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES ...) choose among
 * several GPUs, by `index` among those visible. ERROR_USAGE when what was asked for is not here, with what is missing. */
Device *device_open(DeviceKind choice, int index, Error *error);
void device_close(Device *device);
/* A device that need not be here, to plan for: only device_info may be asked of it. Closed like any other. */
Device *device_describe(const DeviceInfo *info);
/* The CPU: always there, needs no closing. */
Device *device_cpu(void);
const DeviceInfo *device_info(const Device *device);
static inline bool device_is_gpu(const Device *device) { return device_info(device)->kind != DEVICE_CPU; }
/* False after a failure, which it describes. ERROR_DEVICE, ERROR_MEMORY. */
bool device_ok(Device *device, Error *error);

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Bytes that can be allocated now; -1 when unknown. */
int64_t device_available(const Device *device);
/* Zeroed, aligned to 256 bytes. ERROR_MEMORY. */
void *device_allocate(Device *device, int64_t bytes, Error *error);
void device_free(Device *device, void *memory, int64_t bytes);
void device_fill(Device *device, void *memory, int byte, int64_t bytes);
/* From host memory, which may change again when this returns. */
void device_upload(Device *device, void *to, const void *from, int64_t bytes);
/* Within the device; the two must not overlap. */
void device_copy(Device *device, void *to, const void *from, int64_t bytes);
/* Host memory that the device reaches itself (pinned; on the CPU just memory), zeroed or not: uploads from it may still read it when they return. Much of it takes
 * seconds. ERROR_MEMORY. */
void *device_allocate_host(Device *device, int64_t bytes, Error *error);
void device_free_host(Device *device, void *memory, int64_t bytes);
/* To host memory; waits. Large copies of other memory than pinned, either way, take all cores. */
void device_download(Device *device, void *to, const void *from, int64_t bytes);
void device_synchronize(Device *device);

/* Device memory as the host sees it: the memory itself on the CPU, a copy of a GPU's. What a view with VIEW_WRITE holds when it is closed is uploaded; one without
 * VIEW_READ starts undefined. NULL with ERROR_MEMORY. */
typedef enum ViewAccess { VIEW_READ = 1, VIEW_WRITE = 2 } ViewAccess;
void *device_view(Device *device, void *memory, int64_t bytes, ViewAccess access, Error *error);
void device_view_close(Device *device, void *view, void *memory, int64_t bytes, ViewAccess access);

/* -- Work ---------------------------------------------------------------------------------------------------------- */

/* C = A B on the device, as gemm.h says, on the vendor's library or on our own kernels. On a GPU: bf16 inputs. */
void device_gemm(Device *device, const Gemm *product);
/* The same with A and B in fp8 and C in bf16 or fp32, which only the vendors' libraries do: false, with nothing done, where there is none or it declines. */
bool device_gemm_fp8(Device *device, const Gemm *product);
/* Whether the device's e4m3 is the FNUZ one (base/fp8.h). */
bool device_fp8_is_fnuz(const Device *device);
/* The vendor's library of products with its version, "cuBLASLt 130100"; NULL without one. */
const char *device_gemm_library(const Device *device);

/* A kernel of src/kernel/MODULE.c. */
typedef struct GpuKernel { const char *module, *name; } GpuKernel;
/* Blocks in x, y and z (0 counts as 1), threads of a block, bytes of dynamic shared memory. A grid with x = 0 launches nothing. */
typedef struct LaunchShape {
    int64_t x, y, z;
    int threads, shared;
} LaunchShape;
/* `arguments` is the kernel's struct. Identity of `kernel` is its address: use static constants. GPU only. */
void device_launch(Device *device, const GpuKernel *kernel, LaunchShape shape, const void *arguments);

/* Describes a tensor of bf16 [sizes[2]][sizes[1]][sizes[0]], rows and sheets `strides` elements apart, for copies of boxes of 64 x 64 to shared memory in
 * 128-byte rows with the 128-byte swizzle. Multiples of 16 bytes throughout. False where the device has no such engine or its driver does not know it. */
bool device_tensor_map(const Device *device, TensorMap *map, const void *data, const int64_t sizes[3], const int64_t strides[2]);

/* Between begin and end nothing is done: launches only note which kernels they need. The first launch of one that is not loaded loads all that were noted, on
 * all threads. GPU only. */
void device_prepare_begin(Device *device);
void device_prepare_end(Device *device);

/* Recording of everything that is launched between begin and end, for replay as one unit. GPU only; recordings hold the pointers that they saw. */
typedef struct DeviceRecording DeviceRecording;
/* False when the driver cannot record. */
bool device_record_begin(Device *device);
/* What was recorded was not run. NULL after a failure. */
DeviceRecording *device_record_end(Device *device);
void device_replay(Device *device, DeviceRecording *recording);
void device_recording_free(Device *device, DeviceRecording *recording);

/* Streams beside the device's own, for communication, and events that order them. GPU only. A stream is the vendor's own handle, for its libraries. */
typedef struct DeviceStream DeviceStream;
typedef struct DeviceEvent DeviceEvent;
/* NULL after a failure. */
DeviceStream *device_stream_open(Device *device);
void device_stream_close(Device *device, DeviceStream *stream);
DeviceEvent *device_event_open(Device *device);
/* One that knows when it happened. */
DeviceEvent *device_event_open_timed(Device *device);
void device_event_close(Device *device, DeviceEvent *event);
/* The event happens when what the stream holds now is done. NULL: the device's own stream. */
void device_event_record(Device *device, DeviceEvent *event, DeviceStream *stream);
/* What the stream gets from now on runs after the event's last record. */
void device_event_wait(Device *device, DeviceEvent *event, DeviceStream *stream);
/* Whether it happened. Any thread may ask that called device_use_thread. */
bool device_event_done(const Device *device, DeviceEvent *event);
/* Seconds between two timed events that happened. */
double device_event_seconds(const Device *device, DeviceEvent *from, DeviceEvent *to);
/* Lets the calling thread ask for events. */
void device_use_thread(const Device *device);

/* Seconds of the device between two marks; the second call waits. */
void device_timer_start(Device *device);
double device_timer_stop(Device *device);
