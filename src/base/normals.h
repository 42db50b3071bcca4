/* The arithmetic of rng.c's normals, which GPUs also run: initial weights have the same bits on
 * every device. It uses only plain IEEE 754 operations and a correctly rounded root, without
 * branches; the compiler must not contract them to fused multiply-adds. */
#pragma once

#include "base/rng.h"

#ifdef GPU_DEVICE
#define NORMALS_ROOT __builtin_elementwise_sqrt
#define NORMALS_INLINE static inline __attribute__((always_inline))
#else
#include <math.h>
#define NORMALS_ROOT sqrtf
#define NORMALS_INLINE static inline /* not always_inline, with which gcc vectorizes half as well */
#endif

enum { NORMALS_OF_BITS = 4 };                  /* values per philox call */
enum { NORMALS_BATCH = 64 * NORMALS_OF_BITS }; /* values per batch of normals_batch.c */

/* The counter is (index, stream) and the key is the seed, low words first, as in the published test vectors. */
NORMALS_INLINE RngBits philox(uint64_t seed, uint64_t stream, uint64_t index) {
    enum { ROUNDS = 10 };
    const uint32_t multiplier_0 = 0xD2511F53u, multiplier_1 = 0xCD9E8D57u; /* SC'11, table 2 and section 4.3 */
    const uint32_t weyl_0 = 0x9E3779B9u, weyl_1 = 0xBB67AE85u;             /* golden ratio, sqrt(3) - 1 */
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t product_0 = (uint64_t)multiplier_0 * c0, product_1 = (uint64_t)multiplier_1 * c2;
        c0 = (uint32_t)(product_1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product_1;
        c2 = (uint32_t)(product_0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product_0;
        k0 += weyl_0;
        k1 += weyl_1;
    }
    return (RngBits){{c0, c1, c2, c3}};
}

/* Computes sqrt(-2 log u) of a uniform u in (0, 1]. u = 2^exponent m with m around 1, and log m = 2
 * atanh((m - 1) / (m + 1)) by its series, which is exact to fp32 after five terms. */
NORMALS_INLINE float normals_radius(uint32_t bits) {
    union {
        float value;
        uint32_t bits;
    } u = {.value = ((float)(int32_t)(bits >> 1) + 0.5f) * 0x1p-31f}, m;
    const uint32_t root_half = 0x3f3504f3u; /* m is in [sqrt(1/2), sqrt(2)) */
    int32_t exponent = (int32_t)(u.bits - root_half) >> 23;
    m.bits = u.bits - ((uint32_t)exponent << 23);
    float t = (m.value - 1.0f) / (m.value + 1.0f), t2 = t * t;
    float series = 2.0f * t * (1.0f + t2 * (1.0f / 3 + t2 * (1.0f / 5 + t2 * (1.0f / 7 + t2 * (1.0f / 9)))));
    float square = -2.0f * (series + 0.693147181f * (float)exponent);
    return NORMALS_ROOT(square > 0.0f ? square : 0.0f);
}

/* Computes cosine and sine of a uniform angle: a quarter turn from the two highest bits, and their
 * series from -pi/4 to pi/4. */
NORMALS_INLINE void normals_direction(uint32_t bits, float *cosine, float *sine) {
    const float step = (float)(1.57079632679489661923 * 0x1p-32); /* pi / 2 divided by 2^32 */
    float x = (float)(int32_t)(bits << 2) * step, x2 = x * x;
    float c = 1.0f + x2 * (-1.0f / 2 + x2 * (1.0f / 24 + x2 * (-1.0f / 720 + x2 * (1.0f / 40320))));
    float s = x + x * x2 * (-1.0f / 6 + x2 * (1.0f / 120 + x2 * (-1.0f / 5040 + x2 * (1.0f / 362880))));
    uint32_t quarter = bits >> 30;
    float along = quarter & 1 ? s : c, across = quarter & 1 ? c : s;
    *cosine = quarter == 1 || quarter == 2 ? -along : along;
    *sine = quarter >= 2 ? -across : across;
}

/* Makes two normals from two words. */
NORMALS_INLINE void normals_pair(uint32_t first, uint32_t second, float *a, float *b) {
    float cosine, sine, r = normals_radius(first);
    normals_direction(second, &cosine, &sine);
    *a = r * cosine;
    *b = r * sine;
}
