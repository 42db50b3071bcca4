/* fp32 to bf16 and back on the GPU of SMELT_TEST_DEVICE (skipped without it) against the host's rounding: lengths
 * that fill units and that do not, numbers and what is none, nothing written beyond the end. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bf16.h"
#include "base/memory.h"
#include "base/rng.h"
#include "support/check.h"
#include "backend/gpu/kernel_launch.h"

enum { BEYOND = 16 /* elements that must stay as they are */, UNTOUCHED = 0xa5a5 };

static void check_casts(int64_t count) {
    Device *gpu = check_device();
    Error error = {0};
    int64_t elements = count + BEYOND, wide_bytes = elements * (int64_t)sizeof(float), narrow_bytes = elements * (int64_t)sizeof(uint16_t);
    float *wide = memory_allocate((size_t)wide_bytes), *back = memory_allocate((size_t)wide_bytes);
    uint16_t *narrow = memory_allocate((size_t)narrow_bytes);
    void *on_wide = device_allocate(gpu, wide_bytes, &error), *on_narrow = device_allocate(gpu, narrow_bytes, &error);
    assert_true(on_wide && on_narrow);
    for (int64_t i = 0; i < elements; i++) wide[i] = (float)rng_normal(5, 1, (uint64_t)i), narrow[i] = UNTOUCHED;
    wide[0] = NAN;
    if (count > 2) wide[1] = -INFINITY, wide[2] = 3.4e38f;
    device_upload(gpu, on_wide, wide, wide_bytes);
    device_upload(gpu, on_narrow, narrow, narrow_bytes);
    device_cast_to_bf16(gpu, on_narrow, on_wide, count);
    device_cast_to_float(gpu, on_wide, on_narrow, count);
    device_download(gpu, narrow, on_narrow, narrow_bytes);
    device_download(gpu, back, on_wide, wide_bytes);
    if (!device_ok(gpu, &error)) fail_msg("%s", error.message);
    assert_true(isnan(bf16_to_float(narrow[0])) && isnan(back[0]));
    for (int64_t i = 1; i < elements; i++) {
        assert_int_equal(narrow[i], i < count ? bf16_from_float(wide[i]) : UNTOUCHED);
        float expected = i < count ? bf16_to_float(bf16_from_float(wide[i])) : wide[i];
        assert_memory_equal(&back[i], &expected, sizeof expected);
    }
    device_free(gpu, on_wide, wide_bytes);
    device_free(gpu, on_narrow, narrow_bytes);
    free(wide), free(back), free(narrow);
}

static void casts_round_as_the_host_does(void **state) {
    (void)state;
    static const int64_t counts[] = {1, 7, 8, 9, 2048, 2051};
    check_gpu();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) check_casts(counts[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(casts_round_as_the_host_does)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
