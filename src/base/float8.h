/* The four 8-bit floating-point formats of GPUs' matrix units, stored as bits. The OCP 8-bit
 * Floating Point Specification 1.0 defines e4m3 (4 bits of exponent, 3 of mantissa: up to 448) and
 * e5m2 (up to 57,344), which NVIDIA and gfx950 have. gfx942 has their FNUZ forms (arXiv
 * 2206.02915): the exponents are one lower, so that e4m3 ends at 240, and there are no infinities
 * and no negative zero. Loops over these functions vectorize. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/bf16.h"

typedef enum Fp8Kind { FP8_E4M3, FP8_E5M2 } Fp8Kind;

/* For e = (bits & 0x7f) >> mantissa and m the bits below, the absolute value is (1 + m /
 * 2^mantissa) 2^(e - bias), without the 1 if e is 0. Values above `largest` are infinite or NaN. */
typedef struct Fp8Format {
    int mantissa, bias;
    uint8_t largest, nan;
    bool fnuz;
} Fp8Format;

static inline Fp8Format fp8_format(Fp8Kind kind, bool fnuz) {
    if (kind == FP8_E4M3) return fnuz ? (Fp8Format){3, 8, 0x7f, 0x80, true} : (Fp8Format){3, 7, 0x7e, 0x7f, false};
    return fnuz ? (Fp8Format){2, 16, 0x7f, 0x80, true} : (Fp8Format){2, 15, 0x7b, 0x7f, false};
}

/* Returns the largest finite number: 448, 57344, 240, 57344. */
static inline float fp8_largest(Fp8Kind kind, bool fnuz) { return kind == FP8_E5M2 ? 57344 : fnuz ? 240 : 448; }

/* Rounds to nearest even. Larger numbers, including infinity, become the largest number; NaN stays
 * NaN. */
static inline uint8_t fp8_from_float(float x, Fp8Format f) {
    uint32_t bits = float_to_bits(x), magnitude = bits & 0x7fffffff, sign = bits >> 24 & 0x80;
    int shift = 23 - f.mantissa;
    uint32_t least_normal = (uint32_t)(128 - f.bias) << 23;
    uint32_t rounded = (magnitude + (1u << (shift - 1)) - 1 + (magnitude >> shift & 1)) >> shift;
    uint32_t normal = rounded - ((uint32_t)(127 - f.bias) << f.mantissa);
    /* Adding this power of two rounds to a multiple of the smallest subnormal number, counted in the low bits. */
    uint32_t unit = (uint32_t)(151 - f.bias - f.mantissa) << 23;
    uint32_t subnormal = float_to_bits(float_from_bits(magnitude < least_normal ? magnitude : 0) + float_from_bits(unit)) - unit;
    uint32_t code = magnitude < least_normal ? subnormal : normal;
    code = code > f.largest ? f.largest : code;
    code |= f.fnuz && code == 0 ? 0 : sign;
    return (uint8_t)(magnitude > 0x7f800000 ? f.nan : code);
}

/* Returns the factor that maps amax to `largest`, by which numbers are multiplied before rounding.
 * With `power_of_two` it is rounded down to a power of two, so that neither the product nor its
 * inverse, the scale, is rounded. */
static inline float fp8_multiplier(float amax, float largest, bool power_of_two) {
    float m = largest / (amax < 1e-12f ? 1e-12f : amax);
    return power_of_two && m == m ? float_from_bits(float_to_bits(m) & 0xff800000) : m;
}

static inline float fp8_to_float(uint8_t code, Fp8Format f) {
    uint32_t magnitude = code & 0x7f;
    float nan = float_from_bits(0x7fc00000), infinite = f.mantissa == 2 && magnitude == 0x7c ? float_from_bits(0x7f800000) : nan;
    float unit = float_from_bits((uint32_t)(254 - f.bias) << 23); /* 2^(127 - bias) */
    float value = magnitude > f.largest ? infinite : float_from_bits(magnitude << (23 - f.mantissa)) * unit;
    if (f.fnuz && code == f.nan) return nan;
    return code & 0x80 ? -value : value;
}
