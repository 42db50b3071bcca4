/* What the files of src/device share. */
#pragma once

#include "device/device.h"
#include "backend/gpu/driver_api.h"

/* A code object embedded in the binary: of a file of src/kernel for one target, or where `kernel` is not empty PTX of one of its kernels. */
typedef struct GpuObject {
    const char *module, *kernel, *target;
    const void *image;
} GpuObject;
extern const GpuObject gpu_objects[]; /* ends with a NULL module */

struct VendorGemm;

typedef struct Module {
    const GpuObject *object;
    void *handle;
    bool wanted;
} Module; /* wanted: noted while preparing */
typedef struct Function {
    const GpuKernel *kernel;
    void *handle;
    int shared;
} Function;
enum { GPU_MAX_FUNCTIONS = 512 }; /* slots of a hash table: more than twice the kernels there are */

typedef struct Gpu {
    DeviceKind kind;
    GpuApi call;
    void *library;
    int device;
    void *context, *stream, *timer[2];
    struct PtxCompiler *ptx; /* NULL: the driver compiles */
    const char *target;
    Module *modules;
    int module_count;
    Function functions[GPU_MAX_FUNCTIONS];
    struct VendorGemm *vendor_gemm; /* NULL: our own kernels only */
    struct Staging *staging;        /* NULL: no large copy yet */
    struct Pinned *pinned;
    int pinned_count; /* blocks of the host's memory */
    bool recording, preparing;
    Error failure; /* code ERROR_NONE: none yet */
} Gpu;

struct Device {
    DeviceInfo info;
    Gpu *gpu; /* NULL: the CPU */
};

/* NULL with *error where there is none of this vendor. Fills *info. */
Gpu *gpu_open(DeviceKind kind, int index, DeviceInfo *info, Error *error);
void gpu_close(Gpu *gpu);
/* The vendor's products, if its library is there. */
void gpu_gemm_open(Device *device);
void gpu_gemm_close(Device *device);
/* Copies as device_upload and device_download say (the latter waits), if they are large: false when nothing was done. */
typedef struct Staging Staging;
bool staging_upload(Gpu *gpu, char *to, const char *from, int64_t bytes);
bool staging_download(Gpu *gpu, char *to, const char *from, int64_t bytes);
void staging_close(Gpu *gpu);
/* A block of host memory that the GPU reaches itself: copies to and from it are not staged. NULL when refused. */
void *staging_pin(Gpu *gpu, int64_t bytes);
void staging_unpin(Gpu *gpu, void *memory);
/* Notes the failure of a call (result != 0) unless there was one before; whether all is well. */
bool gpu_check(Gpu *gpu, int result, const char *call);
