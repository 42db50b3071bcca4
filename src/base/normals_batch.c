/* Standard normals, NORMALS_BATCH at a time. The weights of a large model are made before its first
 * step, so this code is vectorized. It is compiled once per instruction set, but never contracted
 * to fused multiply-adds (Makefile), which would change the bits. Owns no memory; called by
 * rng_normals. */
#include "base/normals.h"

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NORMALS_FUNCTION PASTE(normals_batch, KERNEL_VARIANT)

void NORMALS_FUNCTION(uint64_t seed, uint64_t stream, uint64_t first_block, float values[NORMALS_BATCH]);

void NORMALS_FUNCTION(uint64_t seed, uint64_t stream, uint64_t first_block, float values[NORMALS_BATCH]) {
    enum { BLOCKS = NORMALS_BATCH / NORMALS_OF_BITS };
    uint32_t words[4][BLOCKS];
#pragma omp simd
    for (int i = 0; i < BLOCKS; i++) {
        RngBits bits = philox(seed, stream, first_block + (uint64_t)i);
        for (int j = 0; j < 4; j++) words[j][i] = bits.word[j];
    }
#pragma omp simd
    for (int i = 0; i < BLOCKS; i++) {
        normals_pair(words[0][i], words[1][i], &values[4 * i], &values[4 * i + 1]);
        normals_pair(words[2][i], words[3][i], &values[4 * i + 2], &values[4 * i + 3]);
    }
}
