/* Counters from librocm_smi64, which is opened at run time; its functions and numbers are in
 * health_amd_calls_internal.h. Values that a GPU or a library version does not report are not
 * watched. Owns the library and the latest values. */
#include "launch/health_internal.h"
#include "launch/health_amd_calls_internal.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/library.h"
#include "base/memory.h"
#include "base/scope.h"

enum { MOST_GPUS = 64, METRICS_BYTES = 1 << 15 };

/* The library's block numbers, one bit each, and their names. */
#define BLOCK_NAME(name, bit, symbol) #name,
#define BLOCK_BIT(name, bit, symbol) bit,
static const char *const blocks[] = {AMD_BLOCKS(BLOCK_NAME)};
static const uint64_t bits[] = {AMD_BLOCKS(BLOCK_BIT)};
enum { BLOCKS = sizeof blocks / sizeof *blocks };

typedef struct AmdGpu {
    ErrorCount errors[BLOCKS];
    int xgmi;
    bool hot, slowed;
} AmdGpu;

struct HealthAmd {
    void *library;
    struct { AMD_CALLS(LIBRARY_FIELD) } call;
    bool initialized;
    uint32_t count;
    AmdGpu gpus[MOST_GPUS];
    unsigned char *metrics;
};

/* -- The library --------------------------------------------------------------------------------------------------- */

void *rocm_smi_open(const char *root) {
    static const char *const files[] = {
        "librocm_smi64.so", "librocm_smi64.so.1", "librocm_smi64.so.7", "librocm_smi64.so.6", "librocm_smi64.so.5"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof files / sizeof *files; i++) {
        SCOPED_FREE char *path = memory_format("%s%s%s", root, *root ? "/" : "", files[i]);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

/* Returns whether the driver is loaded. Without it the library only prints complaints. */
static bool has_driver(const char *root) {
    SCOPED_FREE char *path = memory_format("%s/sys/module/amdgpu/", root);
    return file_exists(path);
}

HealthAmd *health_amd_open(const char *root) {
    static const char *const names[] = {AMD_CALLS(LIBRARY_NAME)};
    if (!has_driver(root)) return NULL;
    HealthAmd *amd = memory_allocate(sizeof *amd);
    *amd = (HealthAmd){.library = rocm_smi_open(root), .metrics = memory_allocate(METRICS_BYTES)};
    amd->initialized = amd->library && !library_find(amd->library, names, &amd->call) && amd->call.initialize(0) == 0;
    if (amd->initialized && amd->call.count(&amd->count) != 0) amd->count = 0;
    if (amd->count > MOST_GPUS) amd->count = MOST_GPUS;
    health_amd_look(amd, (HealthListener){0});
    if (amd->count) return amd;
    health_amd_close(amd);
    return NULL;
}

void health_amd_close(HealthAmd *amd) {
    if (!amd) return;
    if (amd->initialized) amd->call.shut_down();
    if (amd->library) dlclose(amd->library);
    free(amd->metrics);
    free(amd);
}

/* -- A look -------------------------------------------------------------------------------------------------------- */

static void look_at_errors(HealthAmd *amd, uint32_t index, HealthListener listener) {
    for (int block = 0; block < BLOCKS; block++) {
        ErrorCount now = {0}, *before = &amd->gpus[index].errors[block];
        if (amd->call.errors(index, bits[block], &now) != 0) continue;
        if (now.uncorrected > before->uncorrected)
            health_report(listener, "AMD GPU %u: block %s had %llu more uncorrectable errors, %llu in total, and %llu corrected errors",
                index, blocks[block], (unsigned long long)(now.uncorrected - before->uncorrected), (unsigned long long)now.uncorrected,
                (unsigned long long)now.corrected);
        *before = now;
    }
}

static void look_at_links(HealthAmd *amd, uint32_t index, HealthListener listener) {
    int status = 0, before = amd->gpus[index].xgmi;
    if (amd->call.xgmi(index, &status) != 0) return;
    amd->gpus[index].xgmi = status;
    if (status > before) health_report(listener, "AMD GPU %u: its xGMI links had %s", index, status > 1 ? "several errors" : "an error");
}

/* Temperatures are in thousandths of a degree. */
static bool is_too_hot(const HealthAmd *amd, uint32_t index, uint32_t sensor, int64_t *now) {
    int64_t critical = 0;
    return amd->call.temperature(index, sensor, TEMPERATURE_NOW, now) == 0 &&
           amd->call.temperature(index, sensor, TEMPERATURE_CRITICAL, &critical) == 0 && critical > 0 && *now >= critical;
}

/* Returns whether heat slows the GPU: bits 32 to 47 of the throttle status that has one meaning on
 * all GPUs (heat of the chip, of memory, of regulators). Version 1.3 of the metrics (MI200) has
 * this status; MI300 has none. If all bits are set, the status is unknown. */
static bool is_slowed_by_heat(const HealthAmd *amd, uint32_t index) {
    enum { FORMAT = 2, CONTENT = 3, STATUS = 112 };
    uint64_t status;
    memset(amd->metrics, 0, METRICS_BYTES);
    if (amd->call.metrics(index, amd->metrics) != 0 || amd->metrics[FORMAT] != 1 || amd->metrics[CONTENT] != 3) return false;
    memcpy(&status, amd->metrics + STATUS, sizeof status);
    return status != UINT64_MAX && (status >> 32 & 0xffff) != 0;
}

static void look_at_heat(HealthAmd *amd, uint32_t index, HealthListener listener) {
    AmdGpu *gpu = &amd->gpus[index];
    int64_t junction = 0, memory = 0;
    bool hot = is_too_hot(amd, index, SENSOR_JUNCTION, &junction), warm = is_too_hot(amd, index, SENSOR_MEMORY, &memory);
    bool slowed = is_slowed_by_heat(amd, index), began = ((hot || warm) && !gpu->hot) || (slowed && !gpu->slowed);
    gpu->hot = hot || warm;
    gpu->slowed = slowed;
    if (began)
        health_report(listener, "AMD GPU %u %s: %lld C at the junction, %lld C in its memory", index,
            slowed ? "is throttled because it is too hot" : "is too hot", (long long)(junction / 1000), (long long)(memory / 1000));
}

void health_amd_look(HealthAmd *amd, HealthListener listener) {
    for (uint32_t i = 0; i < amd->count; i++) {
        look_at_errors(amd, i, listener);
        look_at_links(amd, i, listener);
        look_at_heat(amd, i, listener);
    }
}
