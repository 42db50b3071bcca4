/* bfloat16 (the upper half of an fp32) and IEEE fp16 on the CPU, as bits in a uint16_t. Loops over
 * these functions vectorize. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* The bits of an fp32, and back. */
typedef union FloatBits {
    float value;
    uint32_t bits;
} FloatBits;
static inline uint32_t float_to_bits(float x) { return (FloatBits){.value = x}.bits; }
static inline float float_from_bits(uint32_t bits) { return (FloatBits){.bits = bits}.value; }

static inline float bf16_to_float(uint16_t x) { return float_from_bits((uint32_t)x << 16); }

/* The exponents of fp16 are 112 below those of fp32; a multiplication also normalizes subnormal
 * numbers. */
static inline float fp16_to_float(uint16_t x) {
    uint32_t rest = (uint32_t)(x & 0x7fff) << 13;
    bool finite = rest < 0x0f800000;
    float magnitude = finite ? float_from_bits(rest) * 0x1p112f : float_from_bits(rest | 0x7f800000);
    return x & 0x8000 ? -magnitude : magnitude;
}

/* Rounds to nearest even; NaN stays NaN. */
static inline uint16_t bf16_from_float(float x) {
    uint32_t bits = float_to_bits(x), rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0 : rounded);
}

/* Convert `count` elements on all threads; to bf16 with rounding to nearest even. */
void bf16_from_floats(uint16_t *to, const float *from, int64_t count);
void bf16_to_floats(float *to, const uint16_t *from, int64_t count);
