/* The CPU as a device: host memory, and functions that finish their work before they return. The
 * only such Device is static, lives as long as the process and owns nothing. Called through
 * device/device.h; opened by backend.c. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "backend/cpu/cpu_device.h"
#include "backend/cpu/cpu_gemm_fp8_internal.h"
#include "base/bf16.h"
#include "base/element.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"

#define UNUSED __attribute__((unused)) /* a parameter that only GPUs need */

struct DeviceEvent { double seconds; }; /* log_seconds() at its last record, when all earlier work was done */

/* -- Memory -------------------------------------------------------------------------------------------------------- */

static int64_t cpu_available(UNUSED const Device *device) { return memory_available(); }

static void *cpu_allocate(UNUSED Device *device, int64_t bytes, Error *error) { return memory_map((size_t)bytes, error); }

static void cpu_free(UNUSED Device *device, void *memory, int64_t bytes) { memory_unmap(memory, (size_t)bytes); }

static void cpu_fill(UNUSED Device *device, void *memory, int byte, int64_t bytes) {
    const int64_t block = 1 << 20;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < bytes; at += block) memset((char *)memory + at, byte, (size_t)int_min(block, bytes - at));
}

static void cpu_copy(UNUSED Device *device, void *to, const void *from, int64_t bytes) { memcpy(to, from, (size_t)bytes); }

static void cpu_stream_copy(Device *device, void *to, const void *from, int64_t bytes, UNUSED DeviceStream *stream) {
    cpu_copy(device, to, from, bytes);
}

/* -- Work ---------------------------------------------------------------------------------------------------------- */

static void cpu_cast_to_bf16(UNUSED Device *device, uint16_t *to, const float *from, int64_t count) { bf16_from_floats(to, from, count); }

static void cpu_cast_to_float(UNUSED Device *device, float *to, const uint16_t *from, int64_t count) { bf16_to_floats(to, from, count); }

/* Writes numbers [at, end) of the slice, in blocks whose noise stays in a core's cache. */
static void fill_normals(void *to, int element_bytes, const Slice *slice, int64_t at, int64_t end, const Normals *normals) {
    enum { BLOCK = 4096 };
    float noise[BLOCK] = {0};
    for (int64_t block; at < end; at += block) {
        block = int_min(int_min(BLOCK, end - at), slice_follow(slice, at));
        if (normals->deviation > 0) rng_normals(normals->seed, normals->stream, (uint64_t)slice_at(slice, at), block, noise);
        for (int64_t j = 0; j < block; j++) element_set((size_t)element_bytes, to, at + j, normals->mean + normals->deviation * noise[j]);
    }
}

static void cpu_normals(UNUSED Device *device, void *to, int element_bytes, const Slice *slice, const Normals *normals) {
    const int64_t task = 1 << 18;
#pragma omp parallel for schedule(static)
    for (int64_t at = 0; at < slice->count; at += task)
        fill_normals(to, element_bytes, slice, at, int_min(at + task, slice->count), normals);
}

static void cpu_gemm(UNUSED Device *device, const Gemm *g) { gemm(g); }

static bool cpu_device_gemm_fp8(Device *device, const Gemm *g) {
    cpu_gemm_fp8(g, device->info.fp8_fnuz);
    return true;
}

static double cpu_gemm_rounding(UNUSED const Device *device, GemmType input) { return gemm_rounding(input); }

/* -- Events, time -------------------------------------------------------------------------------------------------- */

static DeviceEvent *cpu_event_open(UNUSED Device *device, UNUSED bool timed) { return memory_allocate(sizeof(DeviceEvent)); }

static void cpu_event_close(UNUSED Device *device, DeviceEvent *event) { free(event); }

static void cpu_event_record(UNUSED Device *device, DeviceEvent *event, UNUSED DeviceStream *stream) { event->seconds = log_seconds(); }

static double cpu_event_seconds(UNUSED const Device *device, DeviceEvent *from, DeviceEvent *to) { return to->seconds - from->seconds; }

/* -- The device ---------------------------------------------------------------------------------------------------- */

/* Every function finishes its work before it returns, nothing is loaded or recorded, and there is
 * one stream. So all optional methods are left out, except gemm_fp8 and gemm_rounding. */
static const DeviceMethods methods = {
#define CPU(name) .name = cpu_##name
    CPU(available), CPU(allocate), CPU(free), .allocate_host = cpu_allocate, .free_host = cpu_free, CPU(fill), .upload = cpu_copy,
    .download = cpu_copy, .stream_upload = cpu_stream_copy, .stream_download = cpu_stream_copy, CPU(copy), CPU(cast_to_bf16),
    CPU(cast_to_float), CPU(normals), CPU(gemm), .gemm_fp8 = cpu_device_gemm_fp8, CPU(gemm_rounding), CPU(event_open), CPU(event_close),
    CPU(event_record), CPU(event_seconds)
#undef CPU
};

static Device cpu = {.info = {.kind = DEVICE_CPU,
                         .name = "CPU",
                         .target = "host",
                         .wave = 1,
                         .host_memory = true,
                         .exact_groups = true,
                         .gemm_inputs = 1u << GEMM_F32 | 1u << GEMM_BF16 | 1u << GEMM_F64 | 1u << GEMM_E4M3 | 1u << GEMM_E5M2,
                         .fp8_mx = true,
                         .collective_bytes = 64 << 20},
    .methods = &methods};

static void find_cache(void) {
    const int levels[] = {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE};
    cpu.info.cache_bytes = 32 << 20; /* if the system does not say */
    for (int i = 1; i >= 0; i--)
        if (sysconf(levels[i]) > 0) cpu.info.cache_bytes = sysconf(levels[i]);
}

Device *device_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, find_cache);
    return &cpu;
}
