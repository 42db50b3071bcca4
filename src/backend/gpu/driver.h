/* Shared by the files of the GPU back end: the functions of the vendors' runtime libraries and the
 * state of one GPU.
 *
 * gpu_device.c implements device/device.h, driver.c opens the library and reports failures,
 * launch.c loads and launches kernels, staging.c copies large host memory, share.c opens memory of
 * other processes, vendor_gemm.c runs the GEMM library, ptx.c compiles PTX. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/gpu/driver_calls.h"
#include "backend/gpu/kernel_launch.h"
#include "device/device.h"

/* -- The functions that smelt calls ----------------------------------------------------------------------------------- */

#define GPU_FIELD(name, hip, cuda, arguments) int(*name) arguments;
typedef struct GpuApi { GPU_API(GPU_FIELD) } GpuApi;

/* -- One GPU ------------------------------------------------------------------------------------------------------- */

/* A code object embedded in the binary: one source file for one target; or, unless `kernel` is "",
 * the PTX of that kernel. */
typedef struct GpuObject {
    const char *module, *kernel, *target;
    const void *image;
} GpuObject;
extern const GpuObject gpu_objects[]; /* ends with a NULL module */

typedef struct Module {
    const GpuObject *object;
    void *handle; /* NULL: not loaded */
    bool wanted;  /* noted while preparing */
} Module;

typedef struct Function {
    const GpuKernel *kernel; /* NULL: a free slot */
    void *handle;
    int shared; /* bytes of dynamic shared memory that the driver has allowed */
} Function;
enum { GPU_MAX_FUNCTIONS = 512 }; /* slots of a hash table: more than twice the number of kernels */

typedef struct Gpu {
    Device device; /* first: a Device of this back end is a Gpu */
    GpuApi call;
    bool overlaps_launches; /* launches use launch_early (cuLaunchKernelEx; NULL: not on this GPU) */
    int (*launch_early)(const void *configuration, void *function, void **parameters, void **extra);
    void *library;
    int ordinal; /* index of the device in the library */
    void *context, *stream;
    struct PtxCompiler *ptx; /* NULL: the driver compiles */
    Module *modules;
    int module_count;
    Function functions[GPU_MAX_FUNCTIONS];
    struct VendorGemm *vendor_gemm; /* NULL: only smelt's own kernels */
    struct Staging *staging;        /* NULL: no large copy yet */
    struct Pinned *pinned;          /* blocks of pinned host memory */
    int pinned_count;
    bool recording, preparing;
    /* Called before and after each launch; NULL: nobody observes. Tests set it. */
    void (*observe)(void *observer, const GpuKernel *kernel, const LaunchShape *shape, bool after);
    void *observer;
    Error failure; /* the first failure; code ERROR_NONE: none yet */
} Gpu;

static inline Gpu *gpu_of(const Device *device) { return (Gpu *)device; }
static inline bool gpu_failed(const Gpu *gpu) { return gpu->failure.code != ERROR_NONE; }

/* Opens a GPU of this vendor; NULL with *error if there is none (gpu_device.c). */
Device *gpu_open(DeviceKind kind, int index, Error *error);
/* Sets the properties that all GPUs share, and those that follow from the target. */
void gpu_set_properties(DeviceInfo *info);

/* Opens library, context and stream of a GPU whose kind is set, and fills device.info. Call
 * driver_close after a failure too. */
bool driver_open(Gpu *gpu, int index, Error *error);
void driver_close(Gpu *gpu);
/* Opens a stream that does not wait for the default one; NULL after a failure. Blocks of an urgent
 * stream's kernels start before waiting blocks of other streams' kernels. */
void *driver_open_stream(Gpu *gpu, bool urgent);
/* Lets the calling thread use the GPU. */
void driver_use_in_thread(const Gpu *gpu);
/* Keeps the failure of a call (result != 0) in gpu->failure unless there is one already; returns
 * true if the call succeeded. */
bool gpu_check(Gpu *gpu, int result, const char *call);
/* Calls a function of GpuApi through gpu_check: GPU_CALL(gpu, fill, memory, 0, bytes, stream). */
#define GPU_CALL(gpu, name, ...) gpu_check(gpu, (gpu)->call.name(__VA_ARGS__), #name)
const char *driver_error_text(const Gpu *gpu, int result);
/* Returns the vendor's name of a function of GpuApi. */
const char *driver_symbol(const Gpu *gpu, const char *call);

/* Finds the code objects for the GPU's target; ERROR_USAGE if there are none (launch.c). */
bool modules_open(Gpu *gpu, Error *error);
void modules_close(Gpu *gpu);

/* Methods of device/device.h that are kernels (cast.c, normals.c). */
void gpu_cast_to_bf16(Device *device, bf16 *to, const float *from, int64_t count);
void gpu_cast_to_float(Device *device, float *to, const bf16 *from, int64_t count);
void gpu_normals(Device *device, void *to, int element_bytes, const Slice *slice, const Normals *normals);

/* Methods of device/device.h for memory that devices share (share.c). */
void *gpu_share(Device *device, int64_t bytes, DeviceHandle *handle);
void *gpu_share_open(Device *device, const DeviceHandle *handle);
void gpu_share_close(Device *device, void *memory);

typedef struct Staging Staging;
/* Copy as device_upload and device_download do, if the copy is large; otherwise return false and do
 * nothing (staging.c). */
bool staging_upload(Gpu *gpu, char *to, const char *from, int64_t bytes);
bool staging_download(Gpu *gpu, char *to, const char *from, int64_t bytes);
void staging_close(Gpu *gpu);
/* Allocates pinned host memory, whose copies are not staged. NULL if refused. */
void *staging_pin(Gpu *gpu, int64_t bytes);
void staging_unpin(Gpu *gpu, void *memory);
int64_t staging_pinned_bytes(const Gpu *gpu);

/* NVIDIA's libnvJitLink, opened at run time. It compiles one kernel per thread at once, while
 * the driver compiles them one after another (ptx.c). ptx_open returns NULL if the library is
 * missing. */
typedef struct PtxCompiler PtxCompiler;
PtxCompiler *ptx_open(void);
void ptx_close(PtxCompiler *compiler);
/* Returns machine code for `target`, such as sm_90a; the caller frees it. NULL: the driver must
 * compile the kernel. Thread-safe. */
void *ptx_compile(const PtxCompiler *compiler, const char *ptx, const char *target);
