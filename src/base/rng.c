/* Random numbers: Philox4x32-10 and what is derived from it. Owns no memory, keeps no state, safe from any thread.
 * Called by weight initialisation, the data sampler and benchmarks. */
#include "base/rng.h"

#include <assert.h>
#include <math.h>

/* The counter is (index, stream) and the key is the seed, low words first, as in the published test vectors. */
RngBits rng_bits(uint64_t seed, uint64_t stream, uint64_t index) {
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

static double unit_interval(uint32_t high, uint32_t low) {
    return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53;
}

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    RngBits bits = rng_bits(seed, stream, index);
    return unit_interval(bits.word[0], bits.word[1]);
}

double rng_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    RngBits bits = rng_bits(seed, stream, index);
    double radius_uniform = 1.0 - unit_interval(bits.word[0], bits.word[1]); /* (0, 1]: the logarithm is finite */
    double angle = 2.0 * M_PI * unit_interval(bits.word[2], bits.word[3]);
    return sqrt(-2.0 * log(radius_uniform)) * cos(angle);
}

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
