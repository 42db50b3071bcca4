/* Parameters, gradients and optimizer state that are bf16 (precision pure_bf16): a block of elements is cast to fp32,
 * goes through the fp32 kernels, and is cast back with stochastic rounding (optim_round), with different bits of noise
 * for the weight and its state. Called on the CPU for each chunk of a segment whose state dtype is bf16, by adamw.c,
 * muon.c and optimizer.c; the GPU's kernels do this in registers. Owns no memory. */
#include "base/bf16.h"
#include "base/math.h"
#include "optim/optim_internal.h"

enum { BLOCK = 1024 };

static void load_block(float *restrict to, const uint16_t *restrict from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = bf16_to_float(from[i]);
}

static uint16_t round_one(float x, uint32_t noise) { return (uint16_t)optim_round(float_to_bits(x), noise); }

/* `element` is the block's first of its parameter. `shift` chooses 16 bits of the noise. */
static void round_block(uint16_t *restrict to, const float *restrict from, int64_t count, uint32_t seed, int64_t element, int shift) {
    for (int64_t i = 0; i < count; i++) to[i] = round_one(from[i], optim_noise(seed, element + i) >> shift);
}

void bf16_adamw(const OptimKernels *kernels, const AdamwRates *rates, const Chunk *chunk, uint32_t seed, uint16_t *master,
    uint16_t *weights, const uint16_t *gradient, uint16_t *momentum, uint16_t *variance) {
    float p[BLOCK], g[BLOCK], m[BLOCK], v[BLOCK];
    uint16_t ignored[BLOCK];
    for (int64_t first = 0; first < chunk->count; first += BLOCK) {
        int64_t count = int_min(BLOCK, chunk->count - first), element = chunk->first + first;
        load_block(p, master + first, count);
        load_block(g, gradient + first, count);
        load_block(m, momentum + first, count);
        load_block(v, variance + first, count);
        kernels->adamw(rates, count, p, ignored, g, m, v);
        round_block(master + first, p, count, seed, element, 0);
        round_block(momentum + first, m, count, ~seed, element, 0);
        round_block(variance + first, v, count, ~seed, element, 16);
        for (int64_t i = first; i < first + count && weights != master; i++) weights[i] = master[i];
    }
}

double bf16_sum_squares(const OptimKernels *kernels, int64_t count, const uint16_t *gradient) {
    float g[BLOCK];
    double sum = 0;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t block = int_min(BLOCK, count - first);
        load_block(g, gradient + first, block);
        sum += kernels->sum_squares(block, g);
    }
    return sum;
}

double bf16_momentum(const OptimKernels *kernels, double decay, double scale, const Chunk *chunk, uint32_t seed, uint16_t *momentum,
    const uint16_t *gradient) {
    float m[BLOCK], g[BLOCK];
    double sum = 0;
    for (int64_t first = 0; first < chunk->count; first += BLOCK) {
        int64_t count = int_min(BLOCK, chunk->count - first);
        load_block(m, momentum + first, count);
        load_block(g, gradient + first, count);
        sum += kernels->momentum(decay, scale, count, m, g);
        round_block(momentum + first, m, count, ~seed, chunk->first + first, 0);
    }
    return sum;
}

void bf16_direction(const OptimKernels *kernels, double decay, double scale, double factor, int64_t count, uint16_t *x,
    const uint16_t *momentum, const uint16_t *gradient) {
    float m[BLOCK], g[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t block = int_min(BLOCK, count - first);
        load_block(m, momentum + first, block);
        load_block(g, gradient + first, block);
        kernels->direction(decay, scale, factor, block, x + first, m, g);
    }
}

void bf16_apply(const OptimKernels *kernels, double keep, double rate, const Chunk *chunk, uint32_t seed, uint16_t *master,
    uint16_t *weights, const uint16_t *x) {
    float p[BLOCK];
    uint16_t ignored[BLOCK];
    for (int64_t first = 0; first < chunk->count; first += BLOCK) {
        int64_t count = int_min(BLOCK, chunk->count - first);
        load_block(p, master + first, count);
        kernels->apply(keep, rate, count, p, ignored, x + first);
        round_block(master + first, p, count, seed, chunk->first + first, 0);
        for (int64_t i = first; i < first + count && weights != master; i++) weights[i] = master[i];
    }
}
