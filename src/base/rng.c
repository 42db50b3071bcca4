/* Random numbers: Philox4x32-10 and what is derived from it. Owns no memory, keeps no state, safe from any thread.
 * Called by weight initialisation, the data sampler and benchmarks. */
#include "base/rng.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The counter is (index, stream) and the key is the seed, low words first, as in the published test vectors. */
static inline RngBits philox(uint64_t seed, uint64_t stream, uint64_t index) {
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

RngBits rng_bits(uint64_t seed, uint64_t stream, uint64_t index) { return philox(seed, stream, index); }

static double unit_interval(uint32_t high, uint32_t low) {
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    RngBits bits = rng_bits(seed, stream, index);
    return unit_interval(bits.word[0], bits.word[1]);
}

/* -- Normals -------------------------------------------------------------------------------------------------------- */

/* Weights of a large model are made before its first step, so this runs in vectors: plain arithmetic without branches, compiled for several
 * instruction sets, and never contracted to fused multiply-adds (Makefile), which would tell them apart by their bits. */

enum { BLOCK_VALUES = 4, BATCH_BLOCKS = 64, BATCH_VALUES = BLOCK_VALUES * BATCH_BLOCKS };

/* sqrt(-2 log u) of a uniform u in (0, 1]: u = 2^exponent m with m around 1, and log m = 2 atanh((m - 1) / (m + 1)) by its series, which is exact to
 * fp32 after five terms. */
static inline float radius(uint32_t bits) {
    union { float value; uint32_t bits; } u = {.value = ((float)(int32_t)(bits >> 1) + 0.5f) * 0x1p-31f}, m;
    const uint32_t root_half = 0x3f3504f3u; /* m is in [sqrt(1/2), sqrt(2)) */
    int32_t exponent = (int32_t)(u.bits - root_half) >> 23;
    m.bits = u.bits - ((uint32_t)exponent << 23);
    float t = (m.value - 1.0f) / (m.value + 1.0f), t2 = t * t;
    float series = 2.0f * t * (1.0f + t2 * (1.0f / 3 + t2 * (1.0f / 5 + t2 * (1.0f / 7 + t2 * (1.0f / 9)))));
    float square = -2.0f * (series + 0.693147181f * (float)exponent);
    return sqrtf(square > 0.0f ? square : 0.0f);
}

/* Cosine and sine of a uniform angle: a quarter turn from the two highest bits, and within it, from -pi/4 to pi/4, the first terms of their series. */
static inline void direction(uint32_t bits, float *cosine, float *sine) {
    float x = (float)(int32_t)(bits << 2) * (float)(M_PI / 2 * 0x1p-32), x2 = x * x;
    float c = 1.0f + x2 * (-1.0f / 2 + x2 * (1.0f / 24 + x2 * (-1.0f / 720 + x2 * (1.0f / 40320))));
    float s = x + x * x2 * (-1.0f / 6 + x2 * (1.0f / 120 + x2 * (-1.0f / 5040 + x2 * (1.0f / 362880))));
    uint32_t quarter = bits >> 30;
    float along = quarter & 1 ? s : c, across = quarter & 1 ? c : s;
    *cosine = quarter == 1 || quarter == 2 ? -along : along;
    *sine = quarter >= 2 ? -across : across;
}

#ifdef __x86_64__
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
static void normal_batch(uint64_t seed, uint64_t stream, uint64_t first_block, float values[BATCH_VALUES]) {
    uint32_t words[4][BATCH_BLOCKS];
#pragma omp simd
    for (int i = 0; i < BATCH_BLOCKS; i++) {
        RngBits bits = philox(seed, stream, first_block + (uint64_t)i);
        for (int j = 0; j < 4; j++) words[j][i] = bits.word[j];
    }
#pragma omp simd
    for (int i = 0; i < BATCH_BLOCKS; i++) {
        float cosine, sine, r = radius(words[0][i]);
        direction(words[1][i], &cosine, &sine);
        values[4 * i] = r * cosine;
        values[4 * i + 1] = r * sine;
        r = radius(words[2][i]);
        direction(words[3][i], &cosine, &sine);
        values[4 * i + 2] = r * cosine;
        values[4 * i + 3] = r * sine;
    }
}

void rng_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, float *values) {
    float batch[BATCH_VALUES];
    while (count > 0) {
        int64_t skip = (int64_t)(first % BATCH_VALUES), take = BATCH_VALUES - skip < count ? BATCH_VALUES - skip : count;
        normal_batch(seed, stream, first / BATCH_VALUES * BATCH_BLOCKS, batch);
        memcpy(values, batch + skip, (size_t)take * sizeof *values);
        values += take;
        first += (uint64_t)take;
        count -= take;
    }
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    RngBits bits = philox(seed, stream, index / BLOCK_VALUES);
    float cosine, sine, r = radius(bits.word[index & 2]);
    direction(bits.word[(index & 2) + 1], &cosine, &sine);
    return r * (index & 1 ? sine : cosine);
}

/* -- Shuffles ------------------------------------------------------------------------------------------------------- */

/* One pass of the network over [0, 2^(left_bits + right_bits)). Halves may differ by one bit (or one be empty), which
 * keeps the domain under twice the count: on average less than two passes per index. */
static uint64_t feistel(uint64_t seed, uint64_t stream, uint64_t value, int left_bits, int right_bits) {
    enum { ROUNDS = 8 }; /* even a half of one bit is mixed often enough; see the test of small counts */
    uint64_t left_mask = (1ull << left_bits) - 1, right_mask = (1ull << right_bits) - 1;
    uint64_t left = value >> right_bits, right = value & right_mask;
    for (uint64_t round = 0; round < ROUNDS; round += 2) {
        left ^= rng_bits(seed, stream, round << 32 | right).word[0] & left_mask;
        right ^= rng_bits(seed, stream, (round + 1) << 32 | left).word[0] & right_mask;
    }
    return left << right_bits | right;
}

uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count) {
    assert(count >= 1 && index < count);
    int bits = count == 1 ? 0 : 64 - __builtin_clzll(count - 1);
    do
        index = feistel(seed, stream, index, bits / 2, bits - bits / 2);
    while (index >= count);
    return index;
}
