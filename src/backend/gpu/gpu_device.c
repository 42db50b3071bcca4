/* A GPU of AMD or NVIDIA as a device: device/device.h over the vendor's runtime library. Work is
 * asynchronous and in order on one stream; the first failure is kept, and all later work is
 * skipped. Owns the Gpu. Opened by backend.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "backend/gpu/autotune_cache_internal.h"
#include "backend/gpu/driver.h"
#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/vendor_gemm_internal.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"

static bool is_ready(const Gpu *gpu) { return !gpu_failed(gpu) && !gpu->preparing; }

static bool gpu_ok(const Device *device, Error *error) {
    if (!gpu_failed(gpu_of(device))) return true;
    *error = gpu_of(device)->failure;
    return false;
}

/* -- Memory -------------------------------------------------------------------------------------------------------- */

static int64_t gpu_available(const Device *device) {
    Gpu *gpu = gpu_of(device);
    size_t available = 0, total = 0;
    return GPU_CALL(gpu, memory_info, &available, &total) ? (int64_t)available : -1;
}

static void gpu_synchronize(Device *device) {
    Gpu *gpu = gpu_of(device);
    if (is_ready(gpu)) GPU_CALL(gpu, stream_synchronize, gpu->stream);
}

static void gpu_fill(Device *device, void *memory, int byte, int64_t bytes) {
    Gpu *gpu = gpu_of(device);
    if (bytes && is_ready(gpu)) GPU_CALL(gpu, fill, memory, (unsigned char)byte, (size_t)bytes, gpu->stream);
}

static void *gpu_allocate(Device *device, int64_t bytes, Error *error) {
    void *memory = NULL;
    if (gpu_of(device)->call.allocate(&memory, bytes ? (size_t)bytes : 1) != 0) {
        error_set(error, ERROR_MEMORY, "%s cannot allocate %lld bytes: only %lld are free", device->info.name, (long long)bytes,
            (long long)gpu_available(device));
        return NULL;
    }
    gpu_fill(device, memory, 0, bytes);
    return memory;
}

static void gpu_free(Device *device, void *memory, int64_t bytes) {
    Gpu *gpu = gpu_of(device);
    (void)bytes;
    if (!memory) return;
    gpu_synchronize(device);
    GPU_CALL(gpu, release, memory);
}

/* Some drivers count pinned memory as locked memory of the process. */
static bool refuse_pinned(const Device *device, int64_t bytes, Error *error) {
    char limit[32] = "unlimited";
    struct rlimit locked;
    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur != RLIM_INFINITY)
        snprintf(limit, sizeof limit, "%lld KiB", (long long)(locked.rlim_cur >> 10));
    return error_set(error, ERROR_MEMORY,
        "the driver of %s cannot pin %lld bytes of host memory: %lld are pinned already, %lld are available, and ulimit -l is %s. Raise "
        "ulimit -l, or use a machine with more host memory",
        device->info.name, (long long)bytes, (long long)staging_pinned_bytes(gpu_of(device)), (long long)memory_available(), limit);
}

static void clear_pinned(char *memory, int64_t bytes) {
    const int64_t block = 1 << 20;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < bytes; at += block) memset(memory + at, 0, (size_t)(bytes - at < block ? bytes - at : block));
}

static void *gpu_allocate_host(Device *device, int64_t bytes, Error *error) {
    void *memory = staging_pin(gpu_of(device), bytes);
    if (!memory && !refuse_pinned(device, bytes, error)) return NULL;
    clear_pinned(memory, bytes);
    return memory;
}

static void gpu_free_host(Device *device, void *memory, int64_t bytes) {
    (void)bytes;
    if (memory) staging_unpin(gpu_of(device), memory);
}

static void gpu_upload(Device *device, void *to, const void *from, int64_t bytes) {
    Gpu *gpu = gpu_of(device);
    if (bytes && is_ready(gpu) && !staging_upload(gpu, to, from, bytes)) GPU_CALL(gpu, upload, to, from, (size_t)bytes, gpu->stream);
}

static void gpu_download(Device *device, void *to, const void *from, int64_t bytes) {
    Gpu *gpu = gpu_of(device);
    if (bytes && is_ready(gpu) && !staging_download(gpu, to, from, bytes))
        GPU_CALL(gpu, download, to, (void *)from, (size_t)bytes, gpu->stream);
    gpu_synchronize(device);
}

static void gpu_copy(Device *device, void *to, const void *from, int64_t bytes) {
    Gpu *gpu = gpu_of(device);
    if (bytes && is_ready(gpu)) GPU_CALL(gpu, copy, to, (void *)from, (size_t)bytes, gpu->stream);
}

static void *stream_of(const Gpu *gpu, DeviceStream *stream) { return stream ? (void *)stream : gpu->stream; }

static void gpu_stream_upload(Device *device, void *to, const void *from, int64_t bytes, DeviceStream *stream) {
    Gpu *gpu = gpu_of(device);
    if (bytes && is_ready(gpu)) GPU_CALL(gpu, upload, to, from, (size_t)bytes, stream_of(gpu, stream));
}

static void gpu_stream_download(Device *device, void *to, const void *from, int64_t bytes, DeviceStream *stream) {
    Gpu *gpu = gpu_of(device);
    if (bytes && is_ready(gpu)) GPU_CALL(gpu, download, to, (void *)from, (size_t)bytes, stream_of(gpu, stream));
}

static void *gpu_view(Device *device, void *memory, int64_t bytes, ViewAccess access, Error *error) {
    void *view = memory_map((size_t)bytes, error);
    if (view && access & VIEW_READ) gpu_download(device, view, memory, bytes);
    return view;
}

static void gpu_view_close(Device *device, void *view, void *memory, int64_t bytes, ViewAccess access) {
    if (view && access & VIEW_WRITE) gpu_upload(device, memory, view, bytes);
    gpu_synchronize(device);
    memory_unmap(view, (size_t)bytes);
}

/* -- GEMM ---------------------------------------------------------------------------------------------------------- */

static bool gpu_gemm_own(Device *device, const Gemm *gemm) {
    if (gemm_is_fp8(gemm->input)) return gpu_gemm_fp8(device, gemm);
    gpu_gemm(device, gemm);
    return true;
}

static void open_vendor_gemm(Gpu *gpu) {
    SCOPED_FREE char *path = autotune_cache_default_path();
    Error missing = {0};
    VendorGemmHost host = {&gpu->device, gpu->stream, path, gpu_gemm_own, .reference_races = true};
    gpu->vendor_gemm = vendor_gemm_open(&host, &missing);
    if (gpu->vendor_gemm) return;
    gpu->device.info.gemm_trial = 0;
    log_info("GEMM on smelt's own kernels: %s", missing.message);
}

/* Uses the vendor's library if it is present, supports the GEMM and is faster; otherwise smelt's
 * own kernels. */
static void gpu_gemm_fastest(Device *device, const Gemm *gemm) {
    Gpu *gpu = gpu_of(device);
    bool own = gpu->preparing || !gpu->vendor_gemm || gpu_gemm_must_be_exact(device, gemm);
    if (own || !vendor_gemm_run(gpu->vendor_gemm, gemm, gpu->recording)) gpu_gemm(device, gemm);
}

/* Uses the library if it supports the GEMM; otherwise smelt's own kernels (vendor_gemm.c explains
 * why). */
static bool gpu_gemm_fp8_chosen(Device *device, const Gemm *gemm) {
    Gpu *gpu = gpu_of(device);
    bool done = !gpu->preparing && gpu->vendor_gemm && vendor_gemm_run(gpu->vendor_gemm, gemm, gpu->recording);
    return done || gpu_gemm_fp8(device, gemm);
}

static const char *gpu_gemm_library(const Device *device) {
    return gpu_of(device)->vendor_gemm ? vendor_gemm_name(gpu_of(device)->vendor_gemm) : NULL;
}

/* -- Preparing, recordings ----------------------------------------------------------------------------------------- */

static bool gpu_prepare_begin(Device *device) { return gpu_of(device)->preparing = true; }

static void gpu_prepare_end(Device *device) { gpu_of(device)->preparing = false; }

struct DeviceRecording { void *graph, *executable; };

static bool gpu_record_begin(Device *device) {
    Gpu *gpu = gpu_of(device);
    gpu->recording = !gpu_failed(gpu) && gpu->call.capture_begin(gpu->stream, CAPTURE_THREAD_LOCAL) == 0;
    return gpu->recording;
}

static void gpu_recording_free(Device *device, DeviceRecording *recording) {
    if (!recording) return;
    if (recording->executable) gpu_of(device)->call.executable_free(recording->executable);
    if (recording->graph) gpu_of(device)->call.graph_free(recording->graph);
    free(recording);
}

static DeviceRecording *gpu_record_end(Device *device) {
    Gpu *gpu = gpu_of(device);
    DeviceRecording *recording = memory_allocate(sizeof *recording);
    bool recorded = GPU_CALL(gpu, capture_end, gpu->stream, &recording->graph) &&
                    GPU_CALL(gpu, graph_instantiate, &recording->executable, recording->graph, 0);
    gpu->recording = false;
    if (recorded) return recording;
    gpu_recording_free(device, recording);
    return NULL;
}

static void gpu_replay(Device *device, DeviceRecording *recording) {
    Gpu *gpu = gpu_of(device);
    if (!gpu_failed(gpu)) GPU_CALL(gpu, graph_launch, recording->executable, gpu->stream);
}

static void gpu_overlap_launches(Device *device, bool overlap) {
    gpu_of(device)->overlaps_launches = overlap && gpu_of(device)->launch_early;
}

/* -- Streams, events, time ----------------------------------------------------------------------------------------- */

static DeviceStream *gpu_stream_open(Device *device, bool urgent) { return driver_open_stream(gpu_of(device), urgent); }

static void gpu_stream_close(Device *device, DeviceStream *stream) {
    if (stream) gpu_of(device)->call.stream_destroy(stream);
}

static DeviceEvent *gpu_event_open(Device *device, bool timed) {
    void *event = NULL;
    unsigned flags = timed ? 0 : EVENT_WITHOUT_TIME;
    return gpu_check(gpu_of(device), gpu_of(device)->call.event_create(&event, flags), "event_create") ? event : NULL;
}

static void gpu_event_close(Device *device, DeviceEvent *event) {
    if (event) gpu_of(device)->call.event_destroy(event);
}

static void gpu_event_record(Device *device, DeviceEvent *event, DeviceStream *stream) {
    Gpu *gpu = gpu_of(device);
    if (!gpu_failed(gpu)) GPU_CALL(gpu, event_record, event, stream_of(gpu, stream));
}

static void gpu_event_wait(Device *device, DeviceEvent *event, DeviceStream *stream) {
    Gpu *gpu = gpu_of(device);
    if (!gpu_failed(gpu)) GPU_CALL(gpu, stream_wait, stream_of(gpu, stream), event, 0);
}

static bool gpu_event_done(const Device *device, DeviceEvent *event) { return gpu_of(device)->call.event_query(event) == 0; }

static double gpu_event_seconds(const Device *device, DeviceEvent *from, DeviceEvent *to) {
    float milliseconds = 0;
    return gpu_of(device)->call.event_elapsed(&milliseconds, from, to) == 0 ? milliseconds / 1e3 : 0;
}

static void gpu_use_thread(const Device *device) { driver_use_in_thread(gpu_of(device)); }

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static void gpu_close(Device *device) {
    Gpu *gpu = gpu_of(device);
    vendor_gemm_close(gpu->vendor_gemm);
    for (int i = 0; i < 2; i++) gpu_event_close(device, device->timer[i]);
    staging_close(gpu);
    modules_close(gpu);
    ptx_close(gpu->ptx);
    driver_close(gpu);
    free(gpu);
}

static const DeviceMethods methods = {
#define GPU(name) .name = gpu_##name
    GPU(close), GPU(ok), GPU(available), GPU(allocate), GPU(free), GPU(allocate_host), GPU(free_host), GPU(view), GPU(view_close),
    GPU(fill), GPU(upload), GPU(download), GPU(stream_upload), GPU(stream_download), GPU(copy), GPU(synchronize), GPU(share),
    GPU(share_open), GPU(share_close), GPU(overlap_launches), GPU(cast_to_bf16), GPU(cast_to_float), GPU(normals), .gemm = gpu_gemm_fastest,
    GPU(gemm_own), .gemm_fp8 = gpu_gemm_fp8_chosen, GPU(gemm_library), GPU(prepare_begin), GPU(prepare_end), GPU(record_begin),
    GPU(record_end), GPU(replay), GPU(recording_free), GPU(stream_open), GPU(stream_close), GPU(event_open), GPU(event_close),
    GPU(event_record), GPU(event_wait), GPU(event_done), GPU(event_seconds), GPU(use_thread)
#undef GPU
};

void gpu_set_properties(DeviceInfo *info) {
    bool amd = info->kind == DEVICE_HIP;
    info->emulated = strstr(info->name, "emulated"); /* tools/rocemu */
    info->cache_bytes = 256 << 20;                   /* more than any GPU has */
    info->massively_parallel = info->records = true;
    info->gemm_inputs = 1u << GEMM_BF16 | (gpu_gemm_has_fp8(info->target) ? 1u << GEMM_E4M3 | 1u << GEMM_E5M2 : 0);
    info->fp8_fnuz = !strcmp(info->target, "gfx942");
    info->fp8_mx = !strcmp(info->target, "gfx950");
    info->collective_bytes = amd ? 256 << 20 : 64 << 20;
    info->first_communicator = info->emulated ? 0 : FIRST_COMMUNICATOR;
    info->further_communicator = info->emulated ? 0 : FURTHER_COMMUNICATOR;
    info->gemm_trial = VENDOR_GEMM_TRIAL_BYTES;
    info->collectives = amd ? "RCCL" : "NCCL";
    info->collectives_file = amd ? "librccl.so.1" : "libnccl.so.2";
}

Device *gpu_open(DeviceKind kind, int index, Error *error) {
    Gpu *gpu = memory_allocate(sizeof *gpu);
    gpu->device = (Device){.info.kind = kind, .methods = &methods};
    if (!driver_open(gpu, index, error) || !modules_open(gpu, error)) {
        gpu_close(&gpu->device);
        return NULL;
    }
    gpu_set_properties(&gpu->device.info);
    if (kind == DEVICE_CUDA) gpu->ptx = ptx_open();
    open_vendor_gemm(gpu);
    return &gpu->device;
}
