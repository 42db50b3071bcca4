/* The methods of a device. METHOD(Result, name, parameters, arguments) stands for the function pointer that a back end
 * fills in and for the function device_NAME that calls it; OPTIONAL for one that may be NULL, in whose place the last
 * argument is the result. device.h says when failures show. */

/* False after a failure, which it describes. ERROR_DEVICE, ERROR_MEMORY. */
OPTIONAL(bool, ok, (const Device *device, Error *error), (device, error), true)

/* -- Memory -------------------------------------------------------------------------------------------------------- */

/* Bytes that can be allocated now; -1 when unknown. */
METHOD(int64_t, available, (const Device *device), (device))
/* Zeroed, aligned to 256 bytes. NULL with ERROR_MEMORY. */
METHOD(void *, allocate, (Device *device, int64_t bytes, Error *error), (device, bytes, error))
/* NULL is fine. */
METHOD(void, free, (Device *device, void *memory, int64_t bytes), (device, memory, bytes))
/* Host memory that the device reaches itself (pinned; on the CPU plain memory), zeroed or not: an upload from it may
 * still read it when device_upload returns. Pinning many gigabytes takes seconds. NULL with ERROR_MEMORY. */
METHOD(void *, allocate_host, (Device *device, int64_t bytes, Error *error), (device, bytes, error))
METHOD(void, free_host, (Device *device, void *memory, int64_t bytes), (device, memory, bytes))

/* Device memory as the host sees it: the memory itself where it is the host's, else a copy. Closing a view with
 * VIEW_WRITE uploads what it holds; one without VIEW_READ starts undefined. NULL with ERROR_MEMORY. */
OPTIONAL(void *, view, (Device *device, void *memory, int64_t bytes, ViewAccess access, Error *error),
    (device, memory, bytes, access, error), memory)
OPTIONAL(void, view_close, (Device *device, void *view, void *memory, int64_t bytes, ViewAccess access),
    (device, view, memory, bytes, access), (void)0)

METHOD(void, fill, (Device *device, void *memory, int byte, int64_t bytes), (device, memory, byte, bytes))
/* From host memory, which may change again when this returns. */
METHOD(void, upload, (Device *device, void *to, const void *from, int64_t bytes), (device, to, from, bytes))
/* To host memory; waits. Large copies to or from memory that is not pinned use all cores. */
METHOD(void, download, (Device *device, void *to, const void *from, int64_t bytes), (device, to, from, bytes))
/* Within the device; the two must not overlap. */
METHOD(void, copy, (Device *device, void *to, const void *from, int64_t bytes), (device, to, from, bytes))
/* Waits for all work so far. */
OPTIONAL(void, synchronize, (Device *device), (device), (void)0)

/* -- Memory that devices of one machine share ----------------------------------------------------------------------- */

/* Zeroed memory that kernels of other processes' devices may write while kernels of this one read it, and its handle for
 * them. NULL where there is none; nothing has failed then. */
OPTIONAL(void *, share, (Device *device, int64_t bytes, DeviceHandle *handle), (device, bytes, handle), NULL)
/* Another process's shared memory as kernels of this device reach it; until share_close, which comes before its owner
 * frees it. NULL where the devices do not reach each other. */
OPTIONAL(void *, share_open, (Device *device, const DeviceHandle *handle), (device, handle), NULL)
OPTIONAL(void, share_close, (Device *device, void *memory), (device, memory), (void)0)

/* -- Work ---------------------------------------------------------------------------------------------------------- */

/* to[i] = from[i] rounded to nearest even, and back without rounding; both 16-byte aligned. */
METHOD(void, cast_to_bf16, (Device *device, uint16_t *to, const float *from, int64_t count), (device, to, from, count))
METHOD(void, cast_to_float, (Device *device, float *to, const uint16_t *from, int64_t count), (device, to, from, count))
/* to[i] = normal number slice_at(slice, i), the same bits on every device: `element_bytes` 2 in bf16, 4 in fp32, 8 in
 * fp64 (CPU). */
METHOD(void, normals, (Device *device, void *to, int element_bytes, const Slice *slice, const Normals *normals),
    (device, to, element_bytes, slice, normals))

/* C = A B (device/gemm.h) by the vendor's library or smelt's own kernels, whichever is faster. Not for fp8. */
METHOD(void, gemm, (Device *device, const Gemm *gemm), (device, gemm))
/* C = A B by smelt's own kernels, whatever the vendor's library offers. False, with nothing done, where there is none, which
 * only GEMMs of fp8 meet. */
OPTIONAL(bool, gemm_own, (Device *device, const Gemm *gemm), (device, gemm), (device->methods->gemm(device, gemm), true))
/* C = A B for A in e4m3 or e5m2 and B in e4m3, by the vendor's library or smelt's own kernels. False, with nothing done,
 * where the device has neither for these arguments. */
OPTIONAL(bool, gemm_fp8, (Device *device, const Gemm *gemm), (device, gemm), false)
/* How far a GEMM rounds an element of A or B at most, as a part of the root mean square around it (device/gemm.h). */
OPTIONAL(double, gemm_rounding, (const Device *device, GemmType input), (device, input), 0)
/* The vendor's GEMM library with its version, "cuBLASLt 130100"; NULL without one. */
OPTIONAL(const char *, gemm_library, (const Device *device), (device), NULL)

/* Between begin and end nothing is done: launches only note which kernels they need. The first launch of one that is
 * not loaded loads all that were noted, on all threads. False, and then without an end, where nothing is loaded. */
OPTIONAL(bool, prepare_begin, (Device *device), (device), false)
METHOD(void, prepare_end, (Device *device), (device))

/* Captures what is launched between begin and end, for replay as one unit; recordings hold the pointers that they saw.
 * False where it cannot be captured. What was recorded was not run; NULL after a failure. */
OPTIONAL(bool, record_begin, (Device *device), (device), false)
METHOD(DeviceRecording *, record_end, (Device *device), (device))
METHOD(void, replay, (Device *device, DeviceRecording *recording), (device, recording))
/* NULL is fine. */
OPTIONAL(void, recording_free, (Device *device, DeviceRecording *recording), (device, recording), (void)0)

/* Whether kernels may be launched while those ahead of them end. It pays where they are small, as those of a token; not at first. */
OPTIONAL(void, overlap_launches, (Device *device, bool overlap), (device, overlap), (void)0)

/* -- Streams, events ----------------------------------------------------------------------------------------------- */

/* A stream beside the main one, for communication; neither waits for the other. Kernels of an `urgent` one come before those
 * of others that wait for a place on the device. NULL after a failure, and on a CPU. */
OPTIONAL(DeviceStream *, stream_open, (Device *device, bool urgent), (device, urgent), NULL)
OPTIONAL(void, stream_close, (Device *device, DeviceStream *stream), (device, stream), (void)0)
/* An event orders streams; a `timed` one also knows when it happened. NULL after a failure. */
METHOD(DeviceEvent *, event_open, (Device *device, bool timed), (device, timed))
METHOD(void, event_close, (Device *device, DeviceEvent *event), (device, event))
/* The event happens when what the stream holds now is done. NULL: the device's own stream. */
METHOD(void, event_record, (Device *device, DeviceEvent *event, DeviceStream *stream), (device, event, stream))
/* What the stream gets from now on runs after the event's last record. */
OPTIONAL(void, event_wait, (Device *device, DeviceEvent *event, DeviceStream *stream), (device, event, stream), (void)0)
/* Whether it happened. Any thread may ask that called device_use_thread. */
OPTIONAL(bool, event_done, (const Device *device, DeviceEvent *event), (device, event), true)
/* Seconds between two timed events that happened. */
METHOD(double, event_seconds, (const Device *device, DeviceEvent *from, DeviceEvent *to), (device, from, to))
/* Lets the calling thread ask for events. */
OPTIONAL(void, use_thread, (const Device *device), (device), (void)0)
