/* Matrices in few bits, against bitsandbytes (tests/golden/quantize.py) and the definition of FP8. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/float8.h"
#include "base/memory.h"
#include "base/quantize.h"
#include "base/rng.h"
#include "base/scope.h"
#include "ckpt/ckpt.h"

static const StoredTensor *expect(const Safetensors *file, const char *kind, const char *name) {
    SCOPED_FREE char *full = memory_format("%s/%s", kind, name);
    const StoredTensor *tensor = safetensors_find(file, full);
    if (!tensor) fail_msg("there is no %s", full);
    return tensor;
}

static void assert_near(float a, float b) {
    if (!(fabsf(a - b) <= 1e-6f * fabsf(b))) fail_msg("%.9g is not %.9g", (double)a, (double)b);
}

/* Codes are the same bits. Offsets are sums in another order, so that what they enter may differ in its last bit. */
static void nf4_has_the_codes_of_bitsandbytes(void **state) {
    (void)state;
    static const char *const cases[] = {"normal", "bf16", "outliers", "zeros", "tail"};
    Safetensors file;
    Error error = {0};
    if (!safetensors_open(&file, "tests/golden/quantize.safetensors", &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const StoredTensor *stored = expect(&file, "values", cases[i]);
        int64_t columns = stored->shape[1], count = stored->shape[0] * columns, outers = nf4_outers(count);
        SCOPED_FREE float *values = memory_allocate((size_t)count * sizeof *values),
                          *outer = memory_allocate((size_t)outers * sizeof *outer),
                          *result = memory_allocate((size_t)count * sizeof *result);
        SCOPED_FREE uint8_t *codes = memory_allocate((size_t)quantized_code_bytes(QUANTIZE_NF4, count));
        SCOPED_FREE Nf4Head *head = memory_allocate((size_t)quantized_scale_bytes(QUANTIZE_NF4, count, columns));
        float offset;
        memcpy(values, stored->data, (size_t)count * sizeof *values);
        memcpy(outer, expect(&file, "outer", cases[i])->data, (size_t)outers * sizeof *outer);
        memcpy(result, expect(&file, "result", cases[i])->data, (size_t)count * sizeof *result);
        memcpy(&offset, expect(&file, "offset", cases[i])->data, sizeof offset);
        assert_true(quantize(QUANTIZE_NF4, values, count, columns, codes, head));
        const float *own = (const float *)(head + 1);
        assert_memory_equal(codes, expect(&file, "codes", cases[i])->data, (size_t)(count + 1) / 2);
        assert_memory_equal(own + outers, expect(&file, "inner", cases[i])->data, (size_t)nf4_blocks(count));
        assert_near(head->offset, offset);
        for (int64_t o = 0; o < outers; o++) assert_near(own[o], outer[o]);
        for (int64_t j = 0; j < count; j++) {
            float x = head->values[j % 2 ? codes[j / 2] & 15 : codes[j / 2] >> 4] * nf4_scale(head, count, j / NF4_BLOCK);
            if (!(fabsf(x - result[j]) <= 1e-6f * fabsf(result[j]) + 1e-8f))
                fail_msg("%s: element %lld is %g and not %g", cases[i], (long long)j, (double)x, (double)result[j]);
        }
    }
    safetensors_close(&file);
}

/* Half an ulp of e4m3 is 1/16 of a power of two; the least are multiples of 2^-9 of what 448 stands for. */
static void fp8_is_near_and_has_the_largest_of_a_row(void **state) {
    (void)state;
    enum { ROWS = 7, COLUMNS = 50 };
    float values[ROWS * COLUMNS], scales[ROWS];
    uint8_t codes[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) values[i] = (float)rng_normal(5, 0, (uint64_t)i) * (float)(1 + i / COLUMNS * 10);
    values[3] = 0;
    assert_int_equal(quantized_scale_bytes(QUANTIZE_FP8, ROWS * COLUMNS, COLUMNS), sizeof scales);
    assert_true(quantize(QUANTIZE_FP8, values, ROWS * COLUMNS, COLUMNS, codes, scales));
    for (int r = 0; r < ROWS; r++) {
        float largest = 0, read = 0;
        for (int c = r * COLUMNS; c < (r + 1) * COLUMNS; c++) {
            float x = fp8_to_float(codes[c], fp8_format(FP8_E4M3, false)) * scales[r];
            assert_true(fabsf(x - values[c]) <= fabsf(values[c]) / 16 + scales[r] * 0x1p-10f);
            largest = fmaxf(largest, fabsf(values[c]));
            read = fmaxf(read, fabsf(x));
        }
        assert_near(read, largest);
    }
}

static void what_is_not_finite_is_refused(void **state) {
    (void)state;
    uint8_t codes[64];
    float values[64] = {0}, bad[] = {NAN, INFINITY, -INFINITY};
    SCOPED_FREE void *scales = memory_allocate((size_t)quantized_scale_bytes(QUANTIZE_NF4, 64, 64));
    for (int i = 0; i < 3; i++) {
        values[63] = bad[i];
        assert_false(quantize(QUANTIZE_NF4, values, 64, 64, codes, scales));
        assert_false(quantize(QUANTIZE_FP8, values, 64, 64, codes, scales));
    }
    values[63] = 0;
    assert_true(quantize(QUANTIZE_NF4, values, 64, 64, codes, scales)); /* of zeros alone */
    assert_true(nf4_scale(scales, 64, 0) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_has_the_codes_of_bitsandbytes),
        cmocka_unit_test(fp8_is_near_and_has_the_largest_of_a_row),
        cmocka_unit_test(what_is_not_finite_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
