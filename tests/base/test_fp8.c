/* The four formats of fp8: all codes against the definitions of their numbers, and rounding between each two neighbors. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/float8.h"

static const struct Case {
    Fp8Kind kind;
    bool fnuz;
} cases[] = {{FP8_E4M3, false}, {FP8_E4M3, true}, {FP8_E5M2, false}, {FP8_E5M2, true}};
enum { CASES = sizeof cases / sizeof *cases };

static Fp8Format format_of(int i) { return fp8_format(cases[i].kind, cases[i].fnuz); }

/* By the definition, in double. */
static double number_of(uint8_t code, int i) {
    int mantissa = cases[i].kind == FP8_E4M3 ? 3 : 2, bias = (cases[i].kind == FP8_E4M3 ? 7 : 15) + cases[i].fnuz;
    int exponent = (code & 0x7f) >> mantissa, rest = code & ((1 << mantissa) - 1), all = cases[i].kind == FP8_E4M3 ? 15 : 31;
    if (cases[i].fnuz && code == 0x80) return NAN;
    if (!cases[i].fnuz && cases[i].kind == FP8_E4M3 && (code & 0x7f) == 0x7f) return NAN;
    if (!cases[i].fnuz && cases[i].kind == FP8_E5M2 && exponent == all) return rest ? NAN : code & 0x80 ? -INFINITY : INFINITY;
    double size = exponent ? ldexp((1 << mantissa) + rest, exponent - bias - mantissa) : ldexp(rest, 1 - bias - mantissa);
    return code & 0x80 ? -size : size;
}

static void each_code_is_its_number(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int code = 0; code < 256; code++) {
            double expected = number_of((uint8_t)code, i), x = fp8_to_float((uint8_t)code, format_of(i));
            assert_true(isnan(expected) ? isnan(x) : x == expected);
        }
}

static void known_codes_are_those_of_the_specifications(void **state) {
    (void)state;
    static const struct {
        int format;
        uint8_t code;
        float number;
    } known[] = {{0, 0x01, 0x1p-9f}, {0, 0x08, 0x1p-6f}, {0, 0x38, 1}, {0, 0xc1, -2.25f}, {0, 0x7e, 448}, {1, 0x01, 0x1p-10f}, {1, 0x40, 1},
        {1, 0x7f, 240}, {2, 0x01, 0x1p-16f}, {2, 0x3c, 1}, {2, 0x7b, 57344}, {2, 0x7c, INFINITY}, {3, 0x01, 0x1p-17f}, {3, 0x40, 1},
        {3, 0x7f, 57344}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(fp8_to_float(known[i].code, format_of(known[i].format)) == known[i].number);
}

/* Every number is its own nearest one; halfway between two neighbors the one with an even code is taken. */
static void numbers_are_rounded_to_the_nearest_and_to_even(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++)
        for (int code = 0; code < format_of(i).largest; code++) {
            float low = fp8_to_float((uint8_t)code, format_of(i)), high = fp8_to_float((uint8_t)(code + 1), format_of(i));
            float middle = (low + high) / 2;
            assert_int_equal(fp8_from_float(low, format_of(i)), code);
            assert_int_equal(fp8_from_float(middle, format_of(i)), code + code % 2);
            assert_int_equal(fp8_from_float(nextafterf(middle, 0), format_of(i)), code);
            assert_int_equal(fp8_from_float(nextafterf(middle, high), format_of(i)), code + 1);
            if (code) assert_int_equal(fp8_from_float(-low, format_of(i)), code | 0x80);
        }
}

static void what_is_too_large_becomes_the_largest_number(void **state) {
    (void)state;
    for (int i = 0; i < CASES; i++) {
        Fp8Format format = format_of(i);
        float largest = fp8_largest(cases[i].kind, cases[i].fnuz);
        assert_true(fp8_to_float(format.largest, format) == largest);
        const float large[] = {largest, largest * 1.001f, largest * 1.2f, 1e30f, INFINITY};
        for (int j = 0; j < 5; j++) {
            assert_int_equal(fp8_from_float(large[j], format), format.largest);
            assert_int_equal(fp8_from_float(-large[j], format), format.largest | 0x80);
        }
        assert_int_equal(fp8_from_float(NAN, format), format.nan);
        assert_int_equal(fp8_from_float(-0.0f, format), format.fnuz ? 0 : 0x80); /* FNUZ has no negative zero */
        assert_int_equal(fp8_from_float(-0x1p-30f, format), format.fnuz ? 0 : 0x80);
        assert_int_equal(fp8_from_float(0x1p-140f, format), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_code_is_its_number),
        cmocka_unit_test(known_codes_are_those_of_the_specifications),
        cmocka_unit_test(numbers_are_rounded_to_the_nearest_and_to_even),
        cmocka_unit_test(what_is_too_large_becomes_the_largest_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
