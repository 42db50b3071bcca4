/* The only interface to hardware: memory, copies, casts, GEMM, recording, streams and timing of one device, the CPU or
 * a GPU. Interface alone: src/backend/cpu and src/backend/gpu implement DeviceMethods, and backend/backend.h opens
 * devices. Callers ask DeviceInfo for properties of one meaning each, never which back end they have.
 *
 * A GPU works asynchronously, in order, on one stream, so failures show late: the first one is kept, with the name of
 * the call, and all later work is skipped; device_ok reports it. On the CPU every function acts at once, and only
 * allocation can fail.
 *
 * The command opens a device and closes it; device memory is freed before that by whoever allocated it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "device/gemm.h"

typedef enum DeviceKind { DEVICE_AUTO, DEVICE_CPU, DEVICE_HIP, DEVICE_CUDA } DeviceKind; /* AUTO only to ask for one */

typedef struct DeviceInfo {
    DeviceKind kind;     /* for reports, and for what two vendors do differently */
    char name[128];      /* as the vendor's library gives it */
    char target[16];     /* gfx942, sm_90a: the architecture whose code objects run */
    int processors;      /* compute units, multiprocessors; 0 on the CPU */
    int wave;            /* lanes of a wavefront or warp: 64 or 32; 1 on the CPU */
    int shared_bytes;    /* most shared memory that a block may have */
    int64_t memory;      /* bytes in all */
    int64_t cache_bytes; /* of the last-level cache, or an upper bound: after reading twice as much, data is cold */
    /* Its memory is the host's: the CPU reads and writes it by pointer, the processes of a machine share it, and what a
     * process uses of it counts in the process's resident set. Otherwise it is memory of its own, which only copies and
     * kernels reach. */
    bool host_memory;
    bool massively_parallel; /* work of CPU size leaves most of it idle: measurements take larger problems */
    bool records;            /* device_record_begin may succeed */
    unsigned gemm_inputs;    /* bit t: A and B of a GEMM may be of GemmType t */
    bool fp8_fnuz;           /* its e4m3 is the FNUZ one (base/fp8.h) */
} DeviceInfo;

/* Back ends embed it as the first member of their own struct. */
typedef struct Device {
    DeviceInfo info;
    const struct DeviceMethods *methods;
    struct DeviceEvent *timer[2]; /* of device_timer_start and device_timer_stop, which open them */
} Device;

typedef enum ViewAccess { VIEW_READ = 1, VIEW_WRITE = 2 } ViewAccess;
typedef struct DeviceRecording DeviceRecording;
typedef struct DeviceStream DeviceStream; /* a vendor's own handle, which its libraries take */
typedef struct DeviceEvent DeviceEvent;

/* Independent normal numbers: element i is mean + deviation * rng_normal(seed, stream, i), computed in double, then
 * rounded. */
typedef struct Normals {
    uint64_t seed, stream;
    double mean, deviation;
} Normals;

/* What a back end implements: the function device_NAME below forwards to NAME and says what it does. A method marked
 * `optional` may be NULL: then its function does nothing, or returns what the mark says. */
typedef struct DeviceMethods {
    void (*close)(Device *device);                  /* optional */
    bool (*ok)(const Device *device, Error *error); /* optional: true */

    int64_t (*available)(const Device *device);
    void *(*allocate)(Device *device, int64_t bytes, Error *error);
    void (*free)(Device *device, void *memory, int64_t bytes);
    void *(*allocate_host)(Device *device, int64_t bytes, Error *error);
    void (*free_host)(Device *device, void *memory, int64_t bytes);
    void *(*view)(Device *device, void *memory, int64_t bytes, ViewAccess access, Error *error);    /* optional */
    void (*view_close)(Device *device, void *view, void *memory, int64_t bytes, ViewAccess access); /* optional */
    void (*fill)(Device *device, void *memory, int byte, int64_t bytes);
    void (*upload)(Device *device, void *to, const void *from, int64_t bytes);
    void (*download)(Device *device, void *to, const void *from, int64_t bytes);
    void (*copy)(Device *device, void *to, const void *from, int64_t bytes);
    void (*synchronize)(Device *device); /* optional */

    void (*cast_to_bf16)(Device *device, uint16_t *to, const float *from, int64_t count);
    void (*cast_to_float)(Device *device, float *to, const uint16_t *from, int64_t count);
    void (*normals)(Device *device, void *to, int element_bytes, int64_t first, int64_t count, const Normals *normals);
    void (*gemm)(Device *device, const Gemm *gemm);
    void (*gemm_own)(Device *device, const Gemm *gemm);            /* optional: gemm */
    bool (*gemm_fp8)(Device *device, const Gemm *gemm);            /* optional: false */
    double (*gemm_rounding)(const Device *device, GemmType input); /* optional: 0 */
    const char *(*gemm_library)(const Device *device);             /* optional: NULL */

    bool (*prepare_begin)(Device *device); /* optional: false */
    void (*prepare_end)(Device *device);
    bool (*record_begin)(Device *device); /* optional: false */
    DeviceRecording *(*record_end)(Device *device);
    void (*replay)(Device *device, DeviceRecording *recording);
    void (*recording_free)(Device *device, DeviceRecording *recording);

    DeviceStream *(*stream_open)(Device *device);               /* optional: NULL */
    void (*stream_close)(Device *device, DeviceStream *stream); /* optional */
    DeviceEvent *(*event_open)(Device *device, bool timed);
    void (*event_close)(Device *device, DeviceEvent *event);
    void (*event_record)(Device *device, DeviceEvent *event, DeviceStream *stream);
    void (*event_wait)(Device *device, DeviceEvent *event, DeviceStream *stream); /* optional */
    bool (*event_done)(const Device *device, DeviceEvent *event);                 /* optional: true */
    double (*event_seconds)(const Device *device, DeviceEvent *from, DeviceEvent *to);
    void (*use_thread)(const Device *device); /* optional */
} DeviceMethods;

static inline const DeviceInfo *device_info(const Device *device) { return &device->info; }
/* NULL is fine. */
static inline void device_close(Device *device) {
    if (device && device->methods->close) device->methods->close(device);
}
/* False after a failure, which it describes. ERROR_DEVICE, ERROR_MEMORY. */
static inline bool device_ok(const Device *device, Error *error) { return !device->methods->ok || device->methods->ok(device, error); }

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Bytes that can be allocated now; -1 when unknown. */
static inline int64_t device_available(const Device *device) { return device->methods->available(device); }
/* Zeroed, aligned to 256 bytes. NULL with ERROR_MEMORY. */
static inline void *device_allocate(Device *device, int64_t bytes, Error *error) { return device->methods->allocate(device, bytes, error); }
/* NULL is fine. */
static inline void device_free(Device *device, void *memory, int64_t bytes) { device->methods->free(device, memory, bytes); }
/* Host memory that the device reaches itself (pinned; on the CPU plain memory), zeroed or not: an upload from it may
 * still read it when device_upload returns. Pinning many gigabytes takes seconds. NULL with ERROR_MEMORY. */
static inline void *device_allocate_host(Device *device, int64_t bytes, Error *error) {
    return device->methods->allocate_host(device, bytes, error);
}
static inline void device_free_host(Device *device, void *memory, int64_t bytes) { device->methods->free_host(device, memory, bytes); }

/* Device memory as the host sees it: the memory itself where it is the host's, else a copy. Closing a view with
 * VIEW_WRITE uploads what it holds; one without VIEW_READ starts undefined. NULL with ERROR_MEMORY. */
static inline void *device_view(Device *device, void *memory, int64_t bytes, ViewAccess access, Error *error) {
    return device->methods->view ? device->methods->view(device, memory, bytes, access, error) : memory;
}
static inline void device_view_close(Device *device, void *view, void *memory, int64_t bytes, ViewAccess access) {
    if (device->methods->view_close) device->methods->view_close(device, view, memory, bytes, access);
}

static inline void device_fill(Device *device, void *memory, int byte, int64_t bytes) {
    device->methods->fill(device, memory, byte, bytes);
}
/* From host memory, which may change again when this returns. */
static inline void device_upload(Device *device, void *to, const void *from, int64_t bytes) {
    device->methods->upload(device, to, from, bytes);
}
/* To host memory; waits. Large copies to or from memory that is not pinned use all cores. */
static inline void device_download(Device *device, void *to, const void *from, int64_t bytes) {
    device->methods->download(device, to, from, bytes);
}
/* Within the device; the two must not overlap. */
static inline void device_copy(Device *device, void *to, const void *from, int64_t bytes) {
    device->methods->copy(device, to, from, bytes);
}
/* Waits for all work so far. */
static inline void device_synchronize(Device *device) {
    if (device->methods->synchronize) device->methods->synchronize(device);
}

/* -- Work ---------------------------------------------------------------------------------------------------------- */

/* to[i] = from[i] rounded to nearest even, and back without rounding; both 16-byte aligned. */
static inline void device_cast_to_bf16(Device *device, uint16_t *to, const float *from, int64_t count) {
    device->methods->cast_to_bf16(device, to, from, count);
}
static inline void device_cast_to_float(Device *device, float *to, const uint16_t *from, int64_t count) {
    device->methods->cast_to_float(device, to, from, count);
}
/* to[i] = element first + i of the normals, with `element_bytes` 2 in bf16, 4 in fp32, 8 (host memory alone) in fp64:
 * the same bits on every device. */
static inline void device_normals(Device *device, void *to, int element_bytes, int64_t first, int64_t count, const Normals *normals) {
    device->methods->normals(device, to, element_bytes, first, count, normals);
}

/* C = A B as device/gemm.h says, by the vendor's library or smelt's own kernels, whichever is faster. Inputs: those of
 * DeviceInfo.gemm_inputs but fp8. */
static inline void device_gemm(Device *device, const Gemm *gemm) { device->methods->gemm(device, gemm); }
/* C = A B by smelt's own kernels, whatever the vendor's library offers. */
static inline void device_gemm_own(Device *device, const Gemm *gemm) {
    (device->methods->gemm_own ? device->methods->gemm_own : device->methods->gemm)(device, gemm);
}
/* C = A B with A and B in fp8 and C in bf16 or fp32, which only the vendors' libraries do: false, with nothing done,
 * where there is none or it declines. */
static inline bool device_gemm_fp8(Device *device, const Gemm *gemm) {
    return device->methods->gemm_fp8 && device->methods->gemm_fp8(device, gemm);
}
/* By how much at most a GEMM rounds an element of A or B of this type, relative to the root mean square of those around
 * it (device/gemm.h). */
static inline double device_gemm_rounding(const Device *device, GemmType input) {
    return device->methods->gemm_rounding ? device->methods->gemm_rounding(device, input) : 0;
}
/* The vendor's GEMM library with its version, "cuBLASLt 130100"; NULL without one. */
static inline const char *device_gemm_library(const Device *device) {
    return device->methods->gemm_library ? device->methods->gemm_library(device) : NULL;
}

/* Between begin and end nothing is done: launches only note which kernels they need. The first launch of one that is
 * not loaded loads all that were noted, on all threads. False, and then without an end, where the device has no kernels
 * to load. */
static inline bool device_prepare_begin(Device *device) { return device->methods->prepare_begin && device->methods->prepare_begin(device); }
static inline void device_prepare_end(Device *device) { device->methods->prepare_end(device); }

/* Captures what is launched between begin and end, for replay as one unit; recordings hold the pointers that they saw.
 * False where it cannot be captured. */
static inline bool device_record_begin(Device *device) { return device->methods->record_begin && device->methods->record_begin(device); }
/* What was recorded was not run. NULL after a failure. */
static inline DeviceRecording *device_record_end(Device *device) { return device->methods->record_end(device); }
static inline void device_replay(Device *device, DeviceRecording *recording) { device->methods->replay(device, recording); }
/* NULL is fine. */
static inline void device_recording_free(Device *device, DeviceRecording *recording) {
    if (recording) device->methods->recording_free(device, recording);
}

/* -- Streams, events, time ----------------------------------------------------------------------------------------- */

/* A stream beside the main one, for communication; neither waits for the other. NULL after a failure, and on the CPU,
 * which has none. */
static inline DeviceStream *device_stream_open(Device *device) {
    return device->methods->stream_open ? device->methods->stream_open(device) : NULL;
}
static inline void device_stream_close(Device *device, DeviceStream *stream) {
    if (device->methods->stream_close) device->methods->stream_close(device, stream);
}
/* An event orders streams; a `timed` one also knows when it happened. NULL after a failure. */
static inline DeviceEvent *device_event_open(Device *device, bool timed) { return device->methods->event_open(device, timed); }
static inline void device_event_close(Device *device, DeviceEvent *event) { device->methods->event_close(device, event); }
/* The event happens when what the stream holds now is done. NULL: the device's own stream. */
static inline void device_event_record(Device *device, DeviceEvent *event, DeviceStream *stream) {
    device->methods->event_record(device, event, stream);
}
/* What the stream gets from now on runs after the event's last record. */
static inline void device_event_wait(Device *device, DeviceEvent *event, DeviceStream *stream) {
    if (device->methods->event_wait) device->methods->event_wait(device, event, stream);
}
/* Whether it happened. Any thread may ask that called device_use_thread. */
static inline bool device_event_done(const Device *device, DeviceEvent *event) {
    return !device->methods->event_done || device->methods->event_done(device, event);
}
/* Seconds between two timed events that happened. */
static inline double device_event_seconds(const Device *device, DeviceEvent *from, DeviceEvent *to) {
    return device->methods->event_seconds(device, from, to);
}
/* Lets the calling thread ask for events. */
static inline void device_use_thread(const Device *device) {
    if (device->methods->use_thread) device->methods->use_thread(device);
}

/* Seconds of the device between two marks; the second call waits. */
static inline void device_timer_start(Device *device) {
    for (int i = 0; i < 2 && !device->timer[i]; i++) device->timer[i] = device_event_open(device, true);
    device_event_record(device, device->timer[0], NULL);
}
static inline double device_timer_stop(Device *device) {
    device_event_record(device, device->timer[1], NULL);
    device_synchronize(device);
    return device_event_seconds(device, device->timer[0], device->timer[1]);
}
