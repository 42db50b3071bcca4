/* Random numbers: Philox4x32-10 and what is derived from it. Owns no memory, keeps no state, safe from any thread.
 * Called by weight initialisation, the data sampler and benchmarks. */
#include "base/rng.h"

#include <assert.h>
#include <string.h>

#include "base/normals.h"

RngBits rng_bits(uint64_t seed, uint64_t stream, uint64_t index) { return philox(seed, stream, index); }

static double unit_interval(uint32_t high, uint32_t low) { return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53; }

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    RngBits bits = rng_bits(seed, stream, index);
    return unit_interval(bits.word[0], bits.word[1]);
}

/* -- Normals -------------------------------------------------------------------------------------------------------- */

/* Weights of a large model are made before its first step, so this runs in vectors, compiled for several instruction sets; never contracted to fused
 * multiply-adds (Makefile), which would tell them apart by their bits. */

enum { BATCH_BLOCKS = 64, BATCH_VALUES = NORMALS_OF_BITS * BATCH_BLOCKS };

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
        normals_pair(words[0][i], words[1][i], &values[4 * i], &values[4 * i + 1]);
        normals_pair(words[2][i], words[3][i], &values[4 * i + 2], &values[4 * i + 3]);
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
    RngBits bits = philox(seed, stream, index / NORMALS_OF_BITS);
    float pair[2];
    normals_pair(bits.word[index & 2], bits.word[(index & 2) + 1], &pair[0], &pair[1]);
    return pair[index & 1];
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
    do index = feistel(seed, stream, index, bits / 2, bits - bits / 2);
    while (index >= count);
    return index;
}
