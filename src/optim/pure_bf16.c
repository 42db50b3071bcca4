/* Passes over bf16 parameters, gradients and optimizer state (precision pure_bf16). A block of
 * elements is cast to fp32, runs through the fp32 kernels, and is cast back with stochastic
 * rounding (optim_round). A weight and its state use different bits of noise. cpu_loops.c calls it
 * for each chunk of a segment whose state dtype is bf16; GPU kernels do this in registers. Owns no
 * memory. */
#include "base/bf16.h"
#include "base/math.h"
#include "optim/quantized_moments_internal.h"
#include "optim/optim_internal.h"

#include <string.h>

enum { BLOCK = 1024 };
enum { MASTER = 1, GRADIENT = 2, MOMENTUM = 4, VARIANCE = 8 };

/* The memory that each pass reads and writes. */
typedef struct Touched { int reads, writes; } Touched;
static const Touched touched[PASS_UPDATE] = {
    [PASS_SQUARES] = {GRADIENT, 0},
    [PASS_MOMENTUM] = {GRADIENT | MOMENTUM, MOMENTUM},
    [PASS_DIRECTION] = {GRADIENT | MOMENTUM, 0},
    [PASS_APPLY] = {MASTER, MASTER},
};

static Touched touched_by(OptimPass pass) {
    if (pass < PASS_UPDATE) return touched[pass];
    const OptimizerRule *rule = optimizer_rules[pass - PASS_UPDATE];
    int state = rule->quantizes_moments ? 0 : rule->keeps_variance ? MOMENTUM | VARIANCE : MOMENTUM;
    return (Touched){MASTER | GRADIENT | state, MASTER | state};
}

static void load_bf16_block(float *restrict to, const uint16_t *restrict from, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] = bf16_to_float(from[i]);
}

static uint16_t round_one(float x, uint32_t noise) { return (uint16_t)optim_round(float_to_bits(x), noise); }

/* `element` is the index of the block's first element in its parameter. `shift` selects 16 bits of
 * the noise. */
static void round_block_stochastic(
    uint16_t *restrict to, const float *restrict from, int64_t count, uint32_t seed, int64_t element, int shift) {
    for (int64_t i = 0; i < count; i++) to[i] = round_one(from[i], optim_noise(seed, element + i) >> shift);
}

PreciseSum bf16_pass(
    const OptimKernels *kernels, OptimPass pass, const PassRates *rates, const PassMemory *memory, uint32_t seed, int64_t first) {
    float p[BLOCK], g[BLOCK], m[BLOCK], v[BLOCK];
    uint16_t ignored[BLOCK], *master = memory->master, *weights = memory->weights, *momentum = memory->momentum,
                             *variance = memory->variance;
    const uint16_t *gradient = memory->gradient;
    int reads = touched_by(pass).reads, writes = touched_by(pass).writes;
    PreciseSum sum = {0};
    for (int64_t at = 0; at < memory->count; at += BLOCK) {
        int64_t count = int_min(BLOCK, memory->count - at), element = first + at;
        PassMemory block = {count, p, ignored, m, v, optim_at(memory->x, at, sizeof(uint16_t)), .gradient = g};
        if (memory->momentum_scales) { /* 8-bit moments: one byte per element, not two */
            block.momentum = (uint8_t *)memory->momentum + at, block.variance = (uint8_t *)memory->variance + at;
            block.momentum_scales = memory->momentum_scales + at / MOMENT_BLOCK;
            block.variance_scales = memory->variance_scales + at / MOMENT_BLOCK;
        }
        if (reads & MASTER) load_bf16_block(p, master + at, count);
        if (reads & GRADIENT) load_bf16_block(g, gradient + at, count);
        if (reads & MOMENTUM) load_bf16_block(m, momentum + at, count);
        if (reads & VARIANCE) load_bf16_block(v, variance + at, count);
        precise_join(&sum, kernels->pass[pass](rates, &block));
        if (writes & MASTER) round_block_stochastic(master + at, p, count, seed, element, 0);
        if (writes & MOMENTUM) round_block_stochastic(momentum + at, m, count, ~seed, element, 0);
        if (writes & VARIANCE) round_block_stochastic(variance + at, v, count, ~seed, element, 16);
        if (writes & MASTER && weights != master) memcpy(weights + at, master + at, (size_t)count * sizeof *weights);
    }
    return sum;
}
