/* See launches.h. One table for the process, since a test program opens one GPU (check_device). */
#include "launches.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/gpu/driver.h"

enum { MOST_COUNTS = 1 << 15, MOST_TIMED = 4096 };

/* A launch between two events, which later runs use again. */
typedef struct TimedLaunch {
    LaunchCount *count;
    DeviceEvent *event[2];
} TimedLaunch;

static struct {
    LaunchCount counts[MOST_COUNTS];
    int count;
    TimedLaunch timed[MOST_TIMED];
    int timed_count;
    Device *device;
    bool timing;
    uint64_t problem;
} launches;

static LaunchCount *count_of(const GpuKernel *kernel, const LaunchShape *shape) {
    for (int i = 0; i < launches.count; i++) {
        LaunchCount *c = &launches.counts[i];
        if (c->kernel == kernel->name && c->module == kernel->module && c->problem == launches.problem &&
            !memcmp(&c->shape, shape, sizeof *shape))
            return c;
    }
    if (launches.count == MOST_COUNTS) return NULL;
    LaunchCount *c = &launches.counts[launches.count++];
    *c = (LaunchCount){kernel->module, kernel->name, *shape, launches.problem, 0, 0};
    return c;
}

static void note_launch(void *observer, const GpuKernel *kernel, const LaunchShape *shape, bool after) {
    (void)observer;
    LaunchCount *count = count_of(kernel, shape);
    if (!count) return;
    count->launches += after;
    if (!launches.timing) return;
    if (launches.timed_count + !after > MOST_TIMED) fail_msg("more than %d launches between launches_time and launches_timed", MOST_TIMED);
    TimedLaunch *timed = &launches.timed[launches.timed_count - after];
    timed->count = count;
    if (!timed->event[after]) timed->event[after] = device_event_open(launches.device, true);
    device_event_record(launches.device, timed->event[after], NULL);
    launches.timed_count += !after;
}

static void observe_launches(Device *device) {
    launches.device = device;
    gpu_of(device)->observe = note_launch;
}

/* One write per line, since programs may end at the same time. */
static void write_counts(void) {
    FILE *file = fopen(getenv("SMELT_LAUNCHES"), "a");
    if (!file) {
        perror("SMELT_LAUNCHES");
        return;
    }
    setvbuf(file, NULL, _IOLBF, BUFSIZ);
    for (int i = 0; i < launches.count; i++) {
        const LaunchCount *c = &launches.counts[i];
        fprintf(file, "%s %016llx %lldx%lldx%lld %lld\n", c->kernel, (unsigned long long)c->problem, (long long)c->shape.x,
            (long long)c->shape.y, (long long)c->shape.z, (long long)c->launches);
    }
    fclose(file);
}

void launches_count(Device *device) {
    if (!getenv("SMELT_LAUNCHES")) return;
    observe_launches(device);
    atexit(write_counts);
}

void launches_time(Device *device) {
    launches.count = launches.timed_count = 0;
    launches.timing = true;
    observe_launches(device);
}

bool launches_are_timed(void) { return launches.timing; }

void launches_repeat(void (*work)(void *context), void *context) {
    enum { UNCOUNTED = 2 };
    for (int i = 0; i < (launches.timing ? UNCOUNTED + LAUNCH_RUNS : 1); i++) {
        if (launches.timing && i == UNCOUNTED) launches_time(launches.device);
        work(context);
    }
}

int launches_timed(Device *device, const LaunchCount **counts) {
    device_synchronize(device);
    for (int i = 0; i < launches.timed_count; i++) {
        TimedLaunch *timed = &launches.timed[i];
        timed->count->seconds += device_event_seconds(device, timed->event[0], timed->event[1]);
    }
    launches.timed_count = 0;
    *counts = launches.counts;
    return launches.count;
}

/* FNV-1a. */
static uint64_t hash_number(uint64_t hash, int64_t number) { return (hash ^ (uint64_t)number) * 0x100000001b3u; }
static const uint64_t HASH_START = 0xcbf29ce484222325u;

void launches_begin_problem(const Graph *graph) {
    uint64_t hash = HASH_START;
    for (int i = 0; i < graph->tensor_count; i++) {
        const Tensor *tensor = &graph->tensors[i];
        for (int d = 0; d < tensor->rank; d++) hash = hash_number(hash, tensor->shape[d]);
        hash = hash_number(hash, tensor->type);
    }
    launches.problem = hash;
}

void launches_begin_gemm(int64_t m, int64_t n, int64_t k) { launches.problem = hash_number(hash_number(hash_number(HASH_START, m), n), k); }
