/* fp8 with 4 bits of exponent and 3 of mantissa, e4m3, kept as its bits: OCP's (up to 448, NVIDIA and gfx950) or,
 * `fnuz`, that of gfx942 (up to 240, every exponent one lower, no negative zero). OCP 8-bit Floating Point
 * Specification 1.0; Noune et al., arXiv 2206.02915. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* Round to nearest even; what is too large becomes the largest number, NaN stays NaN. */
static inline uint8_t fp8_from_float(float x, bool fnuz) {
    const int bias = fnuz ? 8 : 7, largest = fnuz ? 0x7f : 0x7e, least_exponent = 1 - bias;
    if (isnan(x)) return fnuz ? 0x80 : 0x7f;
    if (!(fabsf(x) < 512)) return (uint8_t)(largest | (signbit(x) ? 0x80 : 0));
    int exponent = ilogbf(x) > least_exponent ? ilogbf(x) : least_exponent;
    int code = (int)rintf(ldexpf(fabsf(x), 3 - exponent)) + 8 * (exponent - least_exponent);
    if (code > largest) code = largest;
    return (uint8_t)(code | (signbit(x) && (code || !fnuz) ? 0x80 : 0));
}

static inline float fp8_to_float(uint8_t code, bool fnuz) {
    int bias = fnuz ? 8 : 7, exponent = code >> 3 & 15, mantissa = code & 7;
    if (fnuz ? code == 0x80 : (code & 0x7f) == 0x7f) return NAN;
    float magnitude = exponent ? ldexpf((float)(8 + mantissa), exponent - bias - 3) : ldexpf((float)mantissa, -2 - bias);
    return code & 0x80 ? -magnitude : magnitude;
}
