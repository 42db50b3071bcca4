/* Random numbers: Philox4x32-10 and what is derived from it. Owns no memory, keeps no state,
 * thread-safe. Called by weight initialization, the data sampler and benchmarks. */
#include "base/rng.h"

#include <assert.h>
#include <string.h>

#include "base/cpu_isa.h"
#include "base/normals.h"

RngBits rng_bits(uint64_t seed, uint64_t stream, uint64_t index) { return philox(seed, stream, index); }

static double unit_interval(uint32_t high, uint32_t low) { return (double)(((uint64_t)high << 32 | low) >> 11) * 0x1p-53; }

double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index) {
    RngBits bits = rng_bits(seed, stream, index);
    return unit_interval(bits.word[0], bits.word[1]);
}

/* -- Normals ------------------------------------------------------------------------------------------------------- */

typedef void NormalsBatch(uint64_t seed, uint64_t stream, uint64_t first_block, float values[NORMALS_BATCH]);
extern NormalsBatch normals_batch_generic_fp32;
#ifdef __x86_64__
extern NormalsBatch normals_batch_avx2_fp32, normals_batch_avx512_fp32;
#endif

static NormalsBatch *choose_batch(void) {
#ifdef __x86_64__
    if (cpu_isa_runs(CPU_AVX512)) return normals_batch_avx512_fp32;
    if (cpu_isa_runs(CPU_AVX2)) return normals_batch_avx2_fp32;
#endif
    return normals_batch_generic_fp32;
}

void rng_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, float *values) {
    NormalsBatch *fill_batch = choose_batch();
    float batch[NORMALS_BATCH];
    while (count > 0) {
        int64_t skip = (int64_t)(first % NORMALS_BATCH), take = NORMALS_BATCH - skip < count ? NORMALS_BATCH - skip : count;
        fill_batch(seed, stream, first / NORMALS_BATCH * (NORMALS_BATCH / NORMALS_OF_BITS), batch);
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

/* -- Shuffles ------------------------------------------------------------------------------------------------------ */

/* Makes one pass of the network over [0, 2^(left_bits + right_bits)). The halves may differ by one
 * bit (or one may be empty), which keeps the domain under twice the count: on average less than two
 * passes per index. */
static uint64_t feistel(uint64_t seed, uint64_t stream, uint64_t value, int left_bits, int right_bits) {
    enum { ROUNDS = 8 }; /* enough to mix even a half of one bit; see the test of small counts */
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
