/* Random numbers as a pure function. Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC'11) maps (seed, stream, index) to 128 random bits. Nothing is stored, so weights and data order depend on the seed
 * alone, never on ranks, threads or history, and resuming needs no generator state. */
#pragma once

#include <stdint.h>

typedef struct RngBits { uint32_t word[4]; } RngBits;

/* Streams separate the uses of one seed; a parameter's stream is the hash of its name. */
enum {
    RNG_STREAM_SHUFFLE = 1,
    RNG_STREAM_SAMPLE = 2,
    RNG_STREAM_BENCH = 3,
    RNG_STREAM_MIXTURE = 4,
    RNG_STREAM_PIECES = 5,
    RNG_STREAM_NOISE = 6,
    RNG_STREAM_TIME = 7,
    RNG_STREAM_CAPTION = 8,
    RNG_STREAM_REFILL = 9,
    RNG_STREAM_BENCH_ROUTING = 10,
};

/* Key: seed; counter: stream, index (low words first). */
RngBits rng_bits(uint64_t seed, uint64_t stream, uint64_t index);
/* Returns a uniform number in [0, 1) with 53 bits. */
double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index);
/* Return standard normals by Box-Muller, to fp32's precision and up to 6.66 deviations: the value
 * at `index`, or the values from `first` to first + count - 1. IEEE 754 arithmetic gives the same
 * bits on every machine. */
double rng_normal(uint64_t seed, uint64_t stream, uint64_t index);
void rng_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t count, float *values);
/* Returns the image of `index` under a bijection of [0, count) chosen by (seed, stream). It is a
 * Feistel network with cycle walking, so a shuffle of any length needs no memory. count >= 1, index
 * < count. */
uint64_t rng_permute(uint64_t seed, uint64_t stream, uint64_t index, uint64_t count);
