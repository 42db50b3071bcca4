/* How the optimizer's work is divided; shared by its CPU loops (optim_internal.h) and its GPU
 * kernels (optim_gpu_kernels.h).
 *
 * A chunk is at most OPTIM_CHUNK consecutive elements of one parameter, or of one matrix under
 * Muon. Chunks are listed once, at creation. Every pass is one parallel loop over chunks, or one
 * grid with a block per chunk, so that thousands of tiny vectors cost no more than one large
 * matrix; partial sums are kept per chunk and added in list order. */
#pragma once

#include <stdint.h>

enum { OPTIM_CHUNK = 1 << 14 };

/* Noise for stochastic rounding of bf16 parameters and optimizer state: 32 pseudorandom bits. They
 * depend only on the step, the parameter's name (`key`) and the element's index in the parameter,
 * on any rank. The mixer is "lowbias32", the least biased of its form that H. Wellons' search
 * found. */
static inline uint32_t optim_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
static inline uint32_t optim_noise_seed(uint32_t key, int64_t step) { return optim_mix(key + (uint32_t)step * 0x9e3779b9u); }
static inline uint32_t optim_noise(uint32_t seed, int64_t element) { return optim_mix(seed + (uint32_t)element * 0x9e3779b9u); }
/* Rounds fp32 bits stochastically to bf16 with 16 bits of `noise`. The expected value is the
 * unrounded one, so many updates below half a unit in the last place add up. Infinity and NaN are
 * kept. */
static inline uint32_t optim_round(uint32_t bits, uint32_t noise) {
    uint32_t magnitude = bits & 0x7fffffffu, finite = 0u - (magnitude < 0x7f800000u); /* a mask: GPUs would branch */
    return (bits + (noise & 0xffff & finite)) >> 16 | (uint32_t)(magnitude > 0x7f800000u) << 6;
}

/* Coefficients of one update of elements as the kernels need them; each optimizer defines their use
 * (NAME.c). g is multiplied by `scale`, and p by `keep` (decay). */
typedef struct ElementRates { double scale, beta1, beta2, step_size, inverse_root_bias2, epsilon, keep; } ElementRates;

typedef enum RateGroup { RATES_BALANCE_BIAS, RATES_PLAIN, RATES_DECAYED, RATES_VALUE_HEAD, RATES_COUNT } RateGroup;

/* Kernels index arrays, so a chunk counts elements, not bytes. All arenas of a chunk have the state
 * dtype of its segment. */
typedef struct Chunk {
    int64_t index, count; /* its first element in the MASTER arena, and its element count */
    int64_t second_index; /* first element in the variance arena; for Muon, in its matrix or among the slices to send */
    int64_t first;        /* first element in its parameter */
    uint32_t key;         /* of the parameter, for optim_noise_seed */
    int32_t rates;        /* a RateGroup; not under Muon */
    int32_t matrix;       /* index in the list of matrices; Muon only */
} Chunk;

/* Added to the Frobenius norm of Muon's direction, so that the direction of a zero gradient stays
 * zero. */
#define MUON_EPSILON 1e-7
