/* How the optimizer's work is cut; shared by its CPU loops (optim_internal.h) and its GPU kernels (optim_gpu_internal.h).
 *
 * A chunk is at most OPTIM_CHUNK consecutive elements of one parameter, or of one matrix under Muon. Chunks are listed
 * once, at creation. Every pass is one parallel loop over chunks, or one grid with a block for each, so that thousands
 * of tiny vectors cost no more than one large matrix; partial sums are kept per chunk and added in an order that the
 * list alone decides. */
#pragma once

#include <stdint.h>

enum { OPTIM_CHUNK = 1 << 14 };

/* Noise for stochastic rounding of parameters and optimizer state that are bf16: 32 bits that look random, a function
 * of the step, the parameter's name (`key`) and the element's index in the parameter alone, whichever rank holds it.
 * The mixer is "lowbias32", the least biased of its form that H. Wellons' search found. */
static inline uint32_t optim_mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
static inline uint32_t optim_noise_seed(uint32_t key, int64_t step) { return optim_mix(key + (uint32_t)step * 0x9e3779b9u); }
static inline uint32_t optim_noise(uint32_t seed, int64_t element) { return optim_mix(seed + (uint32_t)element * 0x9e3779b9u); }
/* Stochastic rounding of fp32 bits to bf16 with 16 bits of `noise`: the expected value is the unrounded one, so many
 * updates that are each below half a unit in the last place add up. Infinity and NaN stay what they are. */
static inline uint32_t optim_round(uint32_t bits, uint32_t noise) {
    uint32_t rounded = (bits + (noise & 0xffff)) >> 16;
    return (bits & 0x7f800000u) != 0x7f800000u ? rounded : bits >> 16 | ((bits & 0x7fffffu) != 0 ? 0x40 : 0);
}

/* The numbers of one update of elements, as kernels need them; each optimizer says what it makes of them (NAME.c). g is multiplied
 * by `scale`, and p by `keep` (decay). */
typedef struct ElementRates { double scale, beta1, beta2, step_size, inverse_root_bias2, epsilon, keep; } ElementRates;

typedef enum RateGroup { RATES_BALANCE_BIAS, RATES_PLAIN, RATES_DECAYED, RATES_COUNT } RateGroup;

/* Kernels index arrays, so a chunk counts elements, not bytes. All of a chunk's arenas have the state dtype of its
 * segment. */
typedef struct Chunk {
    int64_t index, count; /* its first element in the MASTER arena, and its elements */
    int64_t second_index; /* its first element in the variance arena; under Muon in its matrix, or among the slices to be sent */
    int64_t first;        /* its first element in its parameter */
    uint32_t key;         /* of its parameter, for optim_noise_seed */
    int32_t rates;        /* a RateGroup; not under Muon */
    int32_t matrix;       /* its index in the list of matrices; Muon only */
} Chunk;

/* Added to the Frobenius norm of Muon's direction, so that a zero gradient's stays zero. */
#define MUON_EPSILON 1e-7
