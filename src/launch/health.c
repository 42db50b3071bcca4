/* Counters are sysfs files, found once by pattern, and values from the vendors' management
 * libraries, which are opened at run time. Owns the list. */
#include "launch/health_internal.h"

#include <glob.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/library.h"
#include "base/memory.h"
#include "base/scope.h"

typedef struct HealthSource { const char *pattern, *meaning; } HealthSource;
static const HealthSource sources[] = {
    {"/sys/class/net/*/carrier_down_count", "the link went down"},
    {"/sys/class/net/*/statistics/rx_errors", "packets were received with errors"},
    {"/sys/class/net/*/statistics/tx_errors", "packets could not be sent"},
    {"/sys/class/infiniband/*/ports/*/counters/link_downed", "the link went down"},
    {"/sys/class/infiniband/*/ports/*/counters/symbol_error", "symbols were received with errors"},
    {"/sys/class/infiniband/*/ports/*/counters/port_rcv_errors", "packets were received with errors"},
    {"/sys/class/infiniband/*/ports/*/hw_counters/local_ack_timeout_err", "packets were not acknowledged in time"},
    {"/sys/class/drm/card*/device/ras/*_err_count", "the GPU memory had uncorrectable errors"},
    {"/sys/devices/system/edac/mc/mc*/ue_count", "the host memory had uncorrectable errors"},
};

typedef struct Counter {
    char *path;
    const HealthSource *source;
    int64_t value;
} Counter;

/* The functions of libnvidia-ml that are used: (our name, symbol, arguments). Counter type 0: since
 * the driver was loaded; error type 1: not corrected. */
#define NVML_CALLS(CALL)                                                                                               \
    CALL(initialize, nvmlInit_v2, (void))                                                                              \
    CALL(count, nvmlDeviceGetCount_v2, (unsigned *count))                                                              \
    CALL(device, nvmlDeviceGetHandleByIndex_v2, (unsigned index, void **device))                                       \
    CALL(errors, nvmlDeviceGetTotalEccErrors, (void *device, int error_type, int counter_type, unsigned long long *errors)) \
    CALL(throttled, nvmlDeviceGetCurrentClocksThrottleReasons, (void *device, unsigned long long *reasons))
typedef struct Nvml { NVML_CALLS(LIBRARY_FIELD) } Nvml;
enum { NVML_UNCORRECTED = 1, NVML_VOLATILE = 0, NVML_THERMAL = 0x20 | 0x40, MOST_GPUS = 16 };

struct Health {
    size_t root_length;
    Counter *counters;
    size_t count;
    HealthAmd *amd; /* NULL: the library is missing */
    void *nvml_library;
    Nvml nvml;
    unsigned gpus;
    unsigned long long gpu_errors[MOST_GPUS];
};

/* Reads a file that is a single number, or has lines like AMD's RAS counters; there "ue: " precedes
 * the uncorrected errors. Returns -1 if it is unreadable. */
static int64_t read_counter(const char *path) {
    char text[256];
    if (file_read_start(path, text, sizeof text) < 0) return -1;
    const char *start = strstr(text, "ue: ");
    char *end;
    start = start ? start + 4 : text;
    long long value = strtoll(start, &end, 10);
    return end == start ? -1 : value;
}

static void find_counters(Health *health, const char *root) {
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        glob_t found = {0};
        if (health->amd && strstr(sources[i].pattern, "/ras/")) continue; /* the library counts these errors */
        SCOPED_FREE char *pattern = memory_format("%s%s", root, sources[i].pattern);
        glob(pattern, 0, NULL, &found); /* without a match the list is empty */
        for (size_t j = 0; j < found.gl_pathc; j++)
            array_append(health->counters, health->count,
                (Counter){memory_copy_string(found.gl_pathv[j]), &sources[i], read_counter(found.gl_pathv[j])});
        globfree(&found);
    }
}

static bool load_nvml(Health *health) {
    static const char *const names[] = {NVML_CALLS(LIBRARY_NAME)};
    health->nvml_library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return health->nvml_library && !library_find(health->nvml_library, names, &health->nvml) && health->nvml.initialize() == 0;
}

static unsigned long long gpu_errors(const Nvml *nvml, unsigned index) {
    void *device;
    unsigned long long errors = 0;
    return nvml->device(index, &device) == 0 && nvml->errors(device, NVML_UNCORRECTED, NVML_VOLATILE, &errors) == 0 ? errors : 0;
}

Health *health_open(const char *root) {
    Health *health = memory_allocate(sizeof *health);
    health->root_length = strlen(root);
    health->amd = health_amd_open(root);
    find_counters(health, root);
    if (!*root && load_nvml(health) && health->nvml.count(&health->gpus) != 0) health->gpus = 0;
    if (health->gpus > MOST_GPUS) health->gpus = MOST_GPUS;
    for (unsigned i = 0; i < health->gpus; i++) health->gpu_errors[i] = gpu_errors(&health->nvml, i);
    return health;
}

void health_report(HealthListener listener, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (listener.report) listener.report(listener.context, line);
}

static void look_at_gpu(Health *health, unsigned index, HealthListener listener) {
    void *device;
    unsigned long long errors = gpu_errors(&health->nvml, index), before = health->gpu_errors[index], reasons = 0;
    if (errors > before)
        health_report(listener, "GPU %u: its memory had %llu more uncorrectable errors, %llu in total", index, errors - before, errors);
    health->gpu_errors[index] = errors;
    if (health->nvml.device(index, &device) == 0 && health->nvml.throttled(device, &reasons) == 0 && (reasons & NVML_THERMAL))
        health_report(listener, "GPU %u is throttled because it is too hot", index);
}

void health_look(Health *health, HealthListener listener) {
    for (size_t i = 0; i < health->count; i++) {
        Counter *counter = &health->counters[i];
        int64_t value = read_counter(counter->path);
        if (value > counter->value && counter->value >= 0)
            health_report(listener, "%.300s: %s, %lld more, %lld in total", counter->path + health->root_length, counter->source->meaning,
                (long long)(value - counter->value), (long long)value);
        counter->value = value;
    }
    for (unsigned i = 0; i < health->gpus; i++) look_at_gpu(health, i, listener);
    if (health->amd) health_amd_look(health->amd, listener);
}

void health_close(Health *health) {
    if (!health) return;
    for (size_t i = 0; i < health->count; i++) free(health->counters[i].path);
    free(health->counters);
    health_amd_close(health->amd);
    if (health->nvml_library) dlclose(health->nvml_library);
    free(health);
}
