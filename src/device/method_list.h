/* The methods of a device. METHOD(Result, name, parameters, arguments) declares a function pointer
 * that a back end sets and a function device_NAME that calls it. OPTIONAL declares one that may be
 * NULL; its last argument is then the result. device.h explains when failures appear. */

/* Returns false after a failure, which it describes. ERROR_DEVICE, ERROR_MEMORY. */
OPTIONAL(bool, ok, (const Device *device, Error *error), (device, error), true)

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Returns the bytes that can be allocated now; -1: unknown. */
METHOD(int64_t, available, (const Device *device), (device))
/* Allocates zeroed memory, aligned to 256 bytes. NULL with ERROR_MEMORY. */
METHOD(void *, allocate, (Device *device, int64_t bytes, Error *error), (device, bytes, error))
/* Accepts NULL. */
METHOD(void, free, (Device *device, void *memory, int64_t bytes), (device, memory, bytes))
/* Allocates zeroed host memory that the device accesses directly (pinned; on the CPU plain memory).
 * An upload from it may still read it after device_upload returns. Pinning
 * many gigabytes takes seconds. NULL with ERROR_MEMORY. */
METHOD(void *, allocate_host, (Device *device, int64_t bytes, Error *error), (device, bytes, error))
METHOD(void, free_host, (Device *device, void *memory, int64_t bytes), (device, memory, bytes))

/* Opens a host view of device memory: the memory itself if it is host memory, otherwise a copy.
 * Closing a view with VIEW_WRITE uploads its content; one without VIEW_READ starts undefined. NULL
 * with ERROR_MEMORY. */
OPTIONAL(void *, view, (Device *device, void *memory, int64_t bytes, ViewAccess access, Error *error),
    (device, memory, bytes, access, error), memory)
OPTIONAL(void, view_close, (Device *device, void *view, void *memory, int64_t bytes, ViewAccess access),
    (device, view, memory, bytes, access), (void)0)

METHOD(void, fill, (Device *device, void *memory, int byte, int64_t bytes), (device, memory, byte, bytes))
/* Copies from host memory, which the caller may change again after this returns. */
METHOD(void, upload, (Device *device, void *to, const void *from, int64_t bytes), (device, to, from, bytes))
/* Copies to host memory; waits. Large copies to or from memory that is not pinned use all cores. */
METHOD(void, download, (Device *device, void *to, const void *from, int64_t bytes), (device, to, from, bytes))
/* Copies within the device; the ranges must not overlap. */
METHOD(void, copy, (Device *device, void *to, const void *from, int64_t bytes), (device, to, from, bytes))
/* Copy between device memory and memory of allocate_host, in order with the other work of the stream;
 * the caller may change or free either only after an event that follows the copy. */
METHOD(void, stream_upload, (Device *device, void *to, const void *from, int64_t bytes, DeviceStream *stream),
    (device, to, from, bytes, stream))
METHOD(void, stream_download, (Device *device, void *to, const void *from, int64_t bytes, DeviceStream *stream),
    (device, to, from, bytes, stream))
/* Waits for all work queued so far on the device's own stream. */
OPTIONAL(void, synchronize, (Device *device), (device), (void)0)

/* -- Memory that devices of one machine share ----------------------------------------------------------------------- */

/* Allocates zeroed memory that kernels of other processes' devices may write while kernels of this
 * device read it, and returns its handle for them. NULL if the device has no such memory; this is
 * not a failure. */
OPTIONAL(void *, share, (Device *device, int64_t bytes, DeviceHandle *handle), (device, bytes, handle), NULL)
/* Maps another process's shared memory for kernels of this device, until share_close. The owner
 * frees the memory only after share_close. NULL if the devices cannot reach each other. */
OPTIONAL(void *, share_open, (Device *device, const DeviceHandle *handle), (device, handle), NULL)
OPTIONAL(void, share_close, (Device *device, void *memory), (device, memory), (void)0)

/* -- Work ---------------------------------------------------------------------------------------------------------- */

/* to[i] = from[i], rounded to nearest even for bf16 and exact for float; both 16-byte aligned. */
METHOD(void, cast_to_bf16, (Device *device, uint16_t *to, const float *from, int64_t count), (device, to, from, count))
METHOD(void, cast_to_float, (Device *device, float *to, const uint16_t *from, int64_t count), (device, to, from, count))
/* to[i] = normal number slice_at(slice, i), with the same bits on every device. `element_bytes`: 2
 * for bf16, 4 for fp32, 8 for fp64 (CPU). */
METHOD(void, normals, (Device *device, void *to, int element_bytes, const Slice *slice, const Normals *normals),
    (device, to, element_bytes, slice, normals))

/* C = A B (device/gemm.h) with the vendor's library or smelt's own kernels, whichever is faster.
 * Not for fp8. */
METHOD(void, gemm, (Device *device, const Gemm *gemm), (device, gemm))
/* C = A B with smelt's own kernels, regardless of the vendor's library. Returns false and does
 * nothing if there is no kernel, which happens only for fp8 GEMMs. */
OPTIONAL(bool, gemm_own, (Device *device, const Gemm *gemm), (device, gemm), (device->methods->gemm(device, gemm), true))
/* C = A B for A in e4m3 or e5m2 and B in e4m3, with the vendor's library or smelt's own kernels.
 * Returns false and does nothing if neither supports the arguments. */
OPTIONAL(bool, gemm_fp8, (Device *device, const Gemm *gemm), (device, gemm), false)
/* Returns the largest rounding error of an element of A or B in a GEMM, relative to the root mean
 * square around it (device/gemm.h). */
OPTIONAL(double, gemm_rounding, (const Device *device, GemmType input), (device, input), 0)
/* Returns the vendor's GEMM library with its version, "cuBLASLt 130100"; NULL: none. */
OPTIONAL(const char *, gemm_library, (const Device *device), (device), NULL)

/* Between begin and end, launches only note which kernels they need. The first later launch of an
 * unloaded kernel loads all noted kernels, on all threads. Returns false if the device loads
 * nothing; do not call end then. */
OPTIONAL(bool, prepare_begin, (Device *device), (device), false)
METHOD(void, prepare_end, (Device *device), (device))

/* Captures the launches between begin and end, for replay as one unit. The launches are not run. A
 * recording keeps the pointers that it saw. record_begin returns false if the device cannot
 * capture; record_end returns NULL after a failure. */
OPTIONAL(bool, record_begin, (Device *device), (device), false)
METHOD(DeviceRecording *, record_end, (Device *device), (device))
METHOD(void, replay, (Device *device, DeviceRecording *recording), (device, recording))
/* Accepts NULL. */
OPTIONAL(void, recording_free, (Device *device, DeviceRecording *recording), (device, recording), (void)0)

/* Sets whether a kernel may start while the preceding kernels end. It pays off for small kernels,
 * as when generating tokens. Initially off. */
OPTIONAL(void, overlap_launches, (Device *device, bool overlap), (device, overlap), (void)0)

/* For a device that computes nothing (backend/idle_device.h): `part` of the work of a program's node,
 * counted from 1, is done at this point. */
OPTIONAL(void, rehearse, (Device *device, int node, double part), (device, node, part), (void)0)

/* -- Streams, events ----------------------------------------------------------------------------------------------- */

/* Opens a stream beside the main one, for communication; neither waits for the other. Kernels of an
 * `urgent` stream have priority over waiting kernels of other streams. NULL after a failure, and on
 * a CPU. */
OPTIONAL(DeviceStream *, stream_open, (Device *device, bool urgent), (device, urgent), NULL)
OPTIONAL(void, stream_close, (Device *device, DeviceStream *stream), (device, stream), (void)0)
/* Opens an event, which orders streams; a `timed` event also records its time. NULL after a
 * failure. */
METHOD(DeviceEvent *, event_open, (Device *device, bool timed), (device, timed))
METHOD(void, event_close, (Device *device, DeviceEvent *event), (device, event))
/* Makes the event happen when all work now in the stream is done. NULL: the device's own stream. */
METHOD(void, event_record, (Device *device, DeviceEvent *event, DeviceStream *stream), (device, event, stream))
/* Makes later work of the stream wait for the event's latest record. */
OPTIONAL(void, event_wait, (Device *device, DeviceEvent *event, DeviceStream *stream), (device, event, stream), (void)0)
/* Returns whether the event happened. Any thread that called device_use_thread may call it. */
OPTIONAL(bool, event_done, (const Device *device, DeviceEvent *event), (device, event), true)
/* Returns the seconds between two timed events that happened. */
METHOD(double, event_seconds, (const Device *device, DeviceEvent *from, DeviceEvent *to), (device, from, to))
/* Lets the calling thread query events. */
OPTIONAL(void, use_thread, (const Device *device), (device), (void)0)
