/* The memory benchmark's kernels on the GPU of SMELT_TEST_DEVICE (skipped without it) against loops: lengths that
 * fill tiles and that do not, more and fewer blocks than tiles, nothing written beyond the end. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/gpu/kernel_launch.h"
#include "base/memory.h"
#include "base/rng.h"
#include "bench/stream_internal.h"
#include "support/check.h"

enum { ARRAYS = 3, BEYOND = 16 /* floats that must stay as they are */, MOST_BLOCKS = 7 };
static const float FACTOR = 3;

typedef struct Arrays {
    int64_t count;
    float *host[ARRAYS], *device[ARRAYS];
} Arrays;

static int64_t array_bytes(const Arrays *s) { return (s->count + BEYOND) * (int64_t)sizeof(float); }

static Arrays arrays_new(int64_t count) {
    Arrays s = {.count = count};
    Error error = {0};
    for (int i = 0; i < ARRAYS; i++) {
        s.host[i] = memory_allocate((size_t)array_bytes(&s));
        for (int64_t j = 0; j < count + BEYOND; j++) s.host[i][j] = (float)rng_normal(5, (uint64_t)i, (uint64_t)j);
        s.device[i] = device_allocate(check_device(), array_bytes(&s), &error);
        if (!s.device[i]) fail_msg("%s", error.message);
    }
    return s;
}

static void arrays_free(Arrays *s) {
    for (int i = 0; i < ARRAYS; i++) device_free(check_device(), s->device[i], array_bytes(s)), free(s->host[i]);
}

/* Uploads, launches, and gives array `result` as the kernel left it. */
static float *run(const Arrays *s, const GpuKernel *kernel, int blocks, int result) {
    Error error = {0};
    StreamArguments arguments = {
        .a = s->device[0], .b = s->device[1], .c = s->device[2], .factor = FACTOR, .blocks = blocks, .count = s->count};
    float *got = memory_allocate((size_t)array_bytes(s));
    for (int i = 0; i < ARRAYS; i++) device_upload(check_device(), s->device[i], s->host[i], array_bytes(s));
    gpu_launch(check_device(), kernel, (LaunchShape){.x = blocks, .threads = STREAM_THREADS}, &arguments);
    device_download(check_device(), got, s->device[result], array_bytes(s));
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
    return got;
}

static float copied(const float *x) { return x[0]; }
static float scaled(const float *x) { return FACTOR * x[2]; }
static float added(const float *x) { return x[0] + x[1]; }
static float triad(const float *x) { return x[1] + FACTOR * x[2]; }
static float written(const float *x) { return (void)x, FACTOR; }

/* `expected` gets the three arrays' values at one place. */
static void check_each(const Arrays *s, const GpuKernel *kernel, int blocks, int result, float (*expected)(const float *x)) {
    float *got = run(s, kernel, blocks, result);
    for (int64_t j = 0; j < s->count + BEYOND; j++) {
        float x[ARRAYS] = {s->host[0][j], s->host[1][j], s->host[2][j]}, want = j < s->count ? expected(x) : x[result];
        /* One rounding may be saved by a fused product and sum. */
        if (!(fabsf(got[j] - want) <= 1e-6f * (1 + fabsf(want))))
            fail_msg("%s: element %lld is %g, not %g", kernel->name, (long long)j, got[j], want);
    }
    free(got);
}

static void check_read(const Arrays *s, const GpuKernel *kernel, int blocks) {
    float *got = run(s, kernel, blocks, 0);
    double sum = 0, expected = 0, magnitude = 0;
    for (int block = 0; block < blocks; block++) sum += got[block];
    for (int64_t j = 0; j < s->count; j++) expected += s->host[1][j], magnitude += fabs(s->host[1][j]);
    /* A float sum of n terms in any order: n / 2^24 of their magnitudes at most. */
    if (!(fabs(sum - expected) <= magnitude * (double)s->count / (1 << 24)))
        fail_msg("%lld floats sum to %g, not %g", (long long)s->count, sum, expected);
    free(got);
}

static void kernels_of_the_memory_benchmark_do_what_their_names_say(void **state) {
    static const GpuKernel copy = {"stream", "stream_copy"}, scale = {"stream", "stream_scale"}, add = {"stream", "stream_add"},
                           three = {"stream", "stream_triad"}, fill = {"stream", "stream_write"}, read = {"stream", "stream_read"};
    static const int64_t counts[] = {MOST_BLOCKS + 1, 1020, 4096, 4100, 40000};
    (void)state;
    check_gpu();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (int blocks = 1; blocks <= MOST_BLOCKS; blocks += 3) {
            Arrays s = arrays_new(counts[i]);
            check_each(&s, &copy, blocks, 2, copied);
            check_each(&s, &scale, blocks, 1, scaled);
            check_each(&s, &add, blocks, 2, added);
            check_each(&s, &three, blocks, 0, triad);
            check_each(&s, &fill, blocks, 0, written);
            check_read(&s, &read, blocks);
            arrays_free(&s);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(kernels_of_the_memory_benchmark_do_what_their_names_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
