/* The 8-bit floats of matrix instructions and conversions: e4m3 ("fp8") and e5m2 ("bf8"), on gfx942 in the FNUZ forms
 * (exponents one lower, no infinities, NaN is 0x80), on gfx950 in OCP's (e4m3 without infinities). */
#ifndef ROCEMU_FP8_H
#define ROCEMU_FP8_H

#include "lanes.h"

typedef enum Fp8Type { FP8_FNUZ, BF8_FNUZ, FP8_OCP, BF8_OCP } Fp8Type;

LANE_INLINE int fp8_mantissa_bits(Fp8Type type) { return type == FP8_FNUZ || type == FP8_OCP ? 3 : 2; }
LANE_INLINE int fp8_bias(Fp8Type type) { return (type == FP8_FNUZ || type == FP8_OCP ? 7 : 15) + (type == FP8_FNUZ || type == BF8_FNUZ); }

LANE_INLINE float fp8_to_float(uint8_t x, Fp8Type type) {
    uint32_t magnitude = x & 0x7f;
    float value = bits_float(magnitude << (23 - fp8_mantissa_bits(type))) * bits_float((uint32_t)(254 - fp8_bias(type)) << 23);
    if (type == FP8_OCP && magnitude == 0x7f) value = NAN;
    if (type == BF8_OCP && magnitude >= 0x7c) value = magnitude == 0x7c ? INFINITY : NAN;
    if ((type == FP8_FNUZ || type == BF8_FNUZ) && x == 0x80) return NAN;
    return x & 0x80 ? -value : value;
}

/* To nearest even. What is too large, infinity too, becomes infinity or, where there is none, NaN: MODE.FP16_OVFL, with
 * which it would become the largest number, is clear. */
static inline uint8_t fp8_from_float(float x, Fp8Type type) {
    bool fnuz = type == FP8_FNUZ || type == BF8_FNUZ;
    int mantissa_bits = fp8_mantissa_bits(type), bias = fp8_bias(type), exponent = 0;
    uint8_t sign = signbit(x) ? 0x80 : 0, nan = fnuz ? 0x80 : sign | 0x7f, too_large = type == BF8_OCP ? sign | 0x7c : nan;
    if (x != x) return nan;
    if (isinf(x)) return too_large;
    float magnitude = fabsf(x);
    frexpf(magnitude, &exponent);
    int scale = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    float steps = rintf(ldexpf(magnitude, mantissa_bits - scale));
    /* A whole number of steps of the exponent `scale`; carries run into the next exponent by themselves. */
    uint32_t bits = magnitude == 0 ? 0 : (uint32_t)steps + ((uint32_t)(scale + bias - 1) << mantissa_bits);
    if (fnuz) return (uint8_t)(bits == 0 ? 0 : bits > 0x7f ? nan : bits | sign);
    return (uint8_t)(bits > (type == FP8_OCP ? 0x7e : 0x7b) ? too_large : bits | sign);
}

#endif
