/* bfloat16, the upper half of an fp32, as the CPU reads and writes it one by one: loops over these vectorise. Kept as its bits. */
#pragma once

#include <stdint.h>

static inline float bf16_to_float(uint16_t x) {
    union {
        uint32_t bits;
        float value;
    } u = {.bits = (uint32_t)x << 16};
    return u.value;
}

/* Round to nearest even; NaN stays NaN. */
static inline uint16_t bf16_from_float(float x) {
    union {
        float value;
        uint32_t bits;
    } u = {.value = x};
    uint32_t rounded = (u.bits + 0x7fff + (u.bits >> 16 & 1)) >> 16;
    return (uint16_t)(x != x ? 0x7fc0 : rounded);
}

/* to[i] = from[i] rounded to nearest even, and back, on all threads. */
void bf16_from_floats(uint16_t *to, const float *from, int64_t count);
void bf16_to_floats(float *to, const uint16_t *from, int64_t count);
