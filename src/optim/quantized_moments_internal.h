/* 8-bit codes of moments, for the kernels of CPUs and GPUs.
 *
 * A block of MOMENT_BLOCK elements has one scale, its amax in fp32. A code is an element over the
 * scale in dynamic tree quantization (Dettmers, arXiv 1511.04561; of optimizer states: arXiv
 * 2110.02861). Code c > 0 of `bits` bits has the value
 *
 *     10^(i + 1 - bits) (0.1 + 0.9 (c - 2^i + 1/2) / 2^i) / top,    i = floor(log2 c)
 *
 * so decade i has 2^i values at equal distances. `top` makes the largest value 1. A momentum has 7
 * bits and a sign; a variance has 8 bits. Encoding takes the value in the middle of the interval
 * that contains an element, except that a variance above zero stays above zero, because an update
 * divides by its root.
 *
 * The lines of neighboring decades meet where one decade ends and the next begins, and they become
 * flatter. A code is therefore the least of all lines, rounded down, and a value the greatest of
 * their inverses, without a search for the decade. */
#pragma once

#include <stdint.h>

enum { MOMENT_BLOCK = 64, MOMENTUM_BITS = 7, VARIANCE_BITS = 8 };

/* The distance of decade i's values; 10^(i - 7). */
#define DECADE_STEP(bits, i) (0.9 / (1 << (i)) * DECADE_END((i) + 8 - (bits)) / (1 - 0.45 / (1 << ((bits)-1))))
#define DECADE_END(i) \
    ((i) == 7 ? 1 : (i) == 6 ? 1e-1 : (i) == 5 ? 1e-2 : (i) == 4 ? 1e-3 : (i) == 3 ? 1e-4 : (i) == 2 ? 1e-5 : (i) == 1 ? 1e-6 : 1e-7)
#define DECADE_START(i) (8. / 9 * (1 << (i))) /* the code of 0 on decade i's line */

#define DECADES(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

/* Returns the code of x from 0 to 1. `bits` is a constant. */
static inline int32_t moment_encode(float x, const int bits) {
    float least = 1 << 8;
#define LINE(i) \
    { \
        float code = x * (float)(1 / DECADE_STEP(bits, i)) + (float)DECADE_START(i); \
        least = (i) < bits && code < least ? code : least; \
    }
    DECADES(LINE);
#undef LINE
    return (int32_t)least;
}

static inline float moment_decode(int32_t code, const int bits) {
    float middle = (float)code + 0.5f, greatest = 0;
#define LINE(i) \
    { \
        float value = middle * (float)DECADE_STEP(bits, i) - (float)(DECADE_START(i) * DECADE_STEP(bits, i)); \
        greatest = (i) < bits && value > greatest ? value : greatest; \
    }
    DECADES(LINE);
#undef LINE
    return greatest;
}

/* Returns the factor that takes a block to 0 .. 1. A block of subnormal numbers becomes zero. */
static inline float moment_inverse(float scale) { return scale >= 0x1p-126f ? 1 / scale : 0; }

/* `inverse` is that of the block's scale. */
static inline int32_t momentum_code(float m, float inverse) {
    float x = m * inverse;
    int32_t sign = x < 0 ? 0x80 : 0;
    return moment_encode(x < 0 ? -x : x, MOMENTUM_BITS) | sign;
}
static inline int32_t variance_code(float v, float inverse) {
    float x = v * inverse;
    int32_t code = moment_encode(x, VARIANCE_BITS), least = x > 0;
    return code > least ? code : least;
}
static inline float momentum_value(int32_t code, float scale) {
    float x = moment_decode(code & 0x7f, MOMENTUM_BITS) * scale;
    return code & 0x80 ? -x : x;
}
static inline float variance_value(int32_t code, float scale) { return moment_decode(code, VARIANCE_BITS) * scale; }
