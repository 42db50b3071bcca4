/* The 8-bit floats of matrix instructions and conversions: e4m3 ("fp8") and e5m2 ("bf8"), on gfx942 in the FNUZ forms
 * (exponents one lower, no infinities, NaN is 0x80), on gfx950 in OCP's (e4m3 without infinities). */
#ifndef ROCEMU_FP8_H
#define ROCEMU_FP8_H

#include "lanes.h"

typedef enum Fp8Type { FP8_FNUZ, BF8_FNUZ, FP8_OCP, BF8_OCP } Fp8Type;

LANE_INLINE int fp8_mantissa_bits(Fp8Type type) { return type == FP8_FNUZ || type == FP8_OCP ? 3 : 2; }
LANE_INLINE int fp8_bias(Fp8Type type) { return (type == FP8_FNUZ || type == FP8_OCP ? 7 : 15) + (type == FP8_FNUZ || type == BF8_FNUZ); }

/* The lowest byte of x. Without branches or bytes, for loops over lanes. The smallest numbers, which have no leading one, are made of
 * whole numbers: hosts are slow at products of their own denormals. */
LANE_INLINE float fp8_to_float(uint32_t x, Fp8Type type) {
    int mantissa_bits = fp8_mantissa_bits(type), bias = fp8_bias(type);
    uint32_t magnitude = x & 0x7f, sign = x << 24 & 0x80000000u, nan = 0x7fc00000;
    uint32_t small = float_bits((float)(int32_t)magnitude * bits_float((uint32_t)(128 - bias - mantissa_bits) << 23)),
             large = (magnitude << (23 - mantissa_bits)) + ((uint32_t)(127 - bias) << 23),
             bits = (magnitude >> mantissa_bits ? large : small) | sign;
    if (type == FP8_OCP) bits = magnitude == 0x7f ? nan | sign : bits;
    else if (type == BF8_OCP) bits = magnitude > 0x7c ? nan | sign : magnitude == 0x7c ? 0x7f800000 | sign : bits;
    else bits = (x & 0xff) == 0x80 ? nan : bits;
    return bits_float(bits);
}

/* To nearest even. What is too large, infinity too, becomes infinity or, where there is none, NaN: MODE.FP16_OVFL, with
 * which it would become the largest number, is clear. */
static inline uint8_t fp8_from_float(float x, Fp8Type type) {
    bool fnuz = type == FP8_FNUZ || type == BF8_FNUZ;
    int mantissa_bits = fp8_mantissa_bits(type), bias = fp8_bias(type);
    uint8_t sign = signbit(x) ? 0x80 : 0, nan = fnuz ? 0x80 : sign | 0x7f, too_large = type == BF8_OCP ? sign | 0x7c : nan;
    if (x != x) return nan;
    if (isinf(x)) return too_large;
    float magnitude = fabsf(x);
    int exponent = (int)(float_bits(magnitude) >> 23) - 127, scale = exponent < 1 - bias ? 1 - bias : exponent;
    float steps = rintf(magnitude * bits_float((uint32_t)(127 + mantissa_bits - scale) << 23));
    /* A whole number of steps of the exponent `scale`; carries run into the next exponent by themselves. */
    uint32_t bits = magnitude == 0 ? 0 : (uint32_t)steps + ((uint32_t)(scale + bias - 1) << mantissa_bits);
    if (fnuz) return (uint8_t)(bits == 0 ? 0 : bits > 0x7f ? nan : bits | sign);
    return (uint8_t)(bits > (type == FP8_OCP ? 0x7e : 0x7b) ? too_large : bits | sign);
}

#endif
