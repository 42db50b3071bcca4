/* The only interface to hardware: memory, copies, casts, GEMM, recording, streams and timing of one
 * device, the CPU or a GPU. This is only the interface: src/backend/cpu and src/backend/gpu
 * implement DeviceMethods, and backend/backend.h opens devices. Callers test properties in
 * DeviceInfo, each with a single meaning, never the kind of back end.
 *
 * A GPU works asynchronously, in order, on one stream, so failures appear late: the first failure
 * is kept with the name of the call, and all later work is skipped; device_ok reports it. On the
 * CPU every function acts at once, and only allocation can fail.
 *
 * The command opens a device and closes it; the code that allocated device memory frees it before
 * that. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/slice.h"
#include "device/gemm.h"
#include "device/handle.h"

/* Bytes of DeviceInfo.first_communicator and further_communicator of a GPU. */
enum { FIRST_COMMUNICATOR = 900 << 20, FURTHER_COMMUNICATOR = 600 << 20 };

typedef enum DeviceKind { DEVICE_AUTO, DEVICE_CPU, DEVICE_HIP, DEVICE_CUDA } DeviceKind; /* AUTO only to request one */

typedef struct DeviceInfo {
    DeviceKind kind;     /* for back ends alone */
    char name[128];      /* from the vendor's library */
    char target[16];     /* gfx942, sm_90a: the architecture whose code objects run */
    int processors;      /* compute units or multiprocessors; 0 on the CPU */
    int wave;            /* lanes of a wavefront or warp: 64 or 32; 1 on the CPU */
    int shared_bytes;    /* most shared memory that a block may have */
    int64_t memory;      /* total bytes */
    int64_t cache_bytes; /* of the last-level cache, or an upper bound: reading twice as much evicts all data */
    /* The device memory is host memory: the CPU reads and writes it by pointer, the processes of a
     * machine share it, and it counts in the process's resident set. If false, only copies and
     * kernels reach it. */
    bool host_memory;
    bool emulated;            /* runs in software: for checks, not for speed */
    bool exact;               /* device_set_exact */
    bool exact_groups;        /* adapters in groups (op_lora_groups) have the bits of those in training (op_adapted_linear) */
    bool massively_parallel;  /* CPU-sized work leaves most of it idle: measurements use larger problems */
    bool records;             /* device_record_begin may succeed */
    bool rehearses;           /* computes nothing and has no memory, only addresses (backend/idle_device.h) */
    unsigned gemm_inputs;     /* bit t: A and B of a GEMM may be of GemmType t */
    bool fp8_fnuz;            /* its fp8 formats are the FNUZ ones (base/float8.h) */
    bool fp8_mx;              /* it has GEMMs of fp8 with scales of GEMM_SCALE_MX */
    int64_t collective_bytes; /* a collective of this size reaches the full bandwidth of the links */
    /* Margins for the buffers of NCCL or RCCL: of the first communicator, and of each further one. The libraries do not
     * report what they will allocate, so the margins were fitted to measurements (docs/forecast.md). 0: the memory is the
     * host's, or emulated. */
    int64_t first_communicator, further_communicator;
    /* The most device memory in which the first run of a GEMM compares the algorithms of the vendor's library. The comparison
     * frees it at its end. 0: there is no library. */
    int64_t gemm_trial;
    /* The library of collectives and its file, with NCCL's interface; NULL: ranks use the host's. */
    const char *collectives, *collectives_file;
} DeviceInfo;

/* Back ends embed it as the first member of their own struct. */
typedef struct Device {
    DeviceInfo info;
    const struct DeviceMethods *methods;
    struct DeviceEvent *timer[2]; /* device_timer_start and device_timer_stop open them */
} Device;

typedef enum ViewAccess { VIEW_READ = 1, VIEW_WRITE = 2 } ViewAccess;
typedef struct DeviceRecording DeviceRecording;
typedef struct DeviceStream DeviceStream; /* the vendor's own handle, which its libraries accept */
typedef struct DeviceEvent DeviceEvent;

/* Independent normal numbers: element i is mean + deviation * rng_normal(seed, stream, i) in
 * double, then rounded. */
typedef struct Normals {
    uint64_t seed, stream;
    double mean, deviation;
} Normals;

/* The methods of a back end, one pointer per line of device/method_list.h, which documents
 * device_NAME. */
typedef struct DeviceMethods {
    void (*close)(Device *device); /* may be NULL */
#define METHOD(Result, name, parameters, arguments) Result(*name) parameters;
#define OPTIONAL(Result, name, parameters, arguments, otherwise) Result(*name) parameters;
#include "device/method_list.h"
#undef METHOD
#undef OPTIONAL
} DeviceMethods;

#define METHOD(Result, name, parameters, arguments) \
    static inline Result device_##name parameters { return device->methods->name arguments; }
#define OPTIONAL(Result, name, parameters, arguments, otherwise) \
    static inline Result device_##name parameters { return device->methods->name ? device->methods->name arguments : otherwise; }
#include "device/method_list.h"
#undef METHOD
#undef OPTIONAL

/* Sets whether the bits of a row in a forward pass depend on nothing but its sequence up to it: not on
 * the other rows, nor on whether keys come from a cache. Otherwise, the default, a GPU chooses the
 * fastest kernels for the number of rows. A CPU is exact in any case. Before programs are planned.
 * Attention sums keys in blocks, so a document that follows others in a row of a batch begins at a
 * multiple of EXACT_ROWS there. */
enum { EXACT_ROWS = 128 };
static inline void device_set_exact(Device *device, bool exact) { device->info.exact = exact; }
static inline const DeviceInfo *device_info(const Device *device) { return &device->info; }
/* Accepts NULL. */
static inline void device_close(Device *device) {
    if (device && device->methods->close) device->methods->close(device);
}

/* Measures the device's seconds between two marks; the second call waits. */
static inline void device_timer_start(Device *device) {
    for (int i = 0; i < 2 && !device->timer[i]; i++) device->timer[i] = device_event_open(device, true);
    device_event_record(device, device->timer[0], NULL);
}
static inline double device_timer_stop(Device *device) {
    device_event_record(device, device->timer[1], NULL);
    device_synchronize(device);
    return device_event_seconds(device, device->timer[0], device->timer[1]);
}
