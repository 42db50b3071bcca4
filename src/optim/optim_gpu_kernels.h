/* Shared by the optimizers' GPU files. A pass is one grid with a block of OPTIM_THREADS threads per
 * chunk. The formulas are those of passes_cpu.c in fp32, with sums of squares in double. Owns no
 * memory: all pointers are device memory; lists of chunks are parts of the list that
 * optimizer_create has put there. */
#pragma once

#include "backend/gpu/gpu.h"
#include "optim/chunk_internal.h"

enum { OPTIM_THREADS = 256 };

/* fp32 except the weights; all bf16 if `pure_bf16`. `variance` has offsets of its own
 * (Chunk.second_index); the other arenas share theirs. */
typedef struct OptimArenas {
    void GLOBAL *master;
    bf16 GLOBAL *weights; /* NULL: the program reads the master weights */
    const void GLOBAL *gradients;
    void GLOBAL *momentum, *variance;
    int64_t step;
    bool pure_bf16;
} OptimArenas;

/* The arguments of an update of elements. */
typedef struct ElementArguments {
    const Chunk GLOBAL *chunks;
    OptimArenas arenas;
    ElementRates rates[RATES_COUNT];
} ElementArguments;

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"
#include "optim/optim_internal.h"

static inline OptimArenas optim_arenas(const Optimizer *optimizer, const Segment *segment, const Update *update) {
    return (OptimArenas){update->master, update->weights, update->gradients, optim_momentum(optimizer, segment), optimizer->variance,
        update->step, segment->pure_bf16};
}

ElementArguments optim_element_arguments(
    const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]);
LaunchShape optim_element_shape(const Segment *segment);
/* The launchers of optimizers of elements, each in its NAME_gpu.c. */
#define ELEMENTS(name) ElementStep gpu_update_##name;
#define MATRICES(name)
#define OPTIMIZER(name, kind) kind(name)
#include "config/optimizer_list.h"
#undef OPTIMIZER
#undef MATRICES
#undef ELEMENTS

/* sums[i] = the sum of partials[i * each .. (i + 1) * each - 1], for i < count (gradient_norm_gpu.c). */
void gpu_sum_partials(Device *device, int64_t each, int64_t count, const double *partials, double *sums);

#else

#include "backend/gpu/vector.h"

/* Returns how many elements of a chunk a thread processes four at a time (vector.h's unit): the
 * chunk must start at a multiple of four, as most do. The rest goes one by one. */
INLINE int64_t chunk_fours(const Chunk GLOBAL *chunk) { return (chunk->index | chunk->second_index) % 4 == 0 ? chunk->count / 4 * 4 : 0; }

enum { OPTIM_STEP = 4 * OPTIM_THREADS }; /* elements that a block processes at once, four per thread */

/* Loads elements of an arena that is bf16 or fp32. `pure_bf16` is a constant in every kernel. */
INLINE f32x4 load_state(const void GLOBAL *arena, int64_t at, bool pure_bf16, int unit) {
    return pure_bf16 ? load4_bf16((const bf16 GLOBAL *)arena + at, unit) : load4_wide((const float GLOBAL *)arena + at, unit);
}

/* Rounds stochastically with the bits of `noise` if the state dtype is bf16. */
INLINE void store_state(void GLOBAL *arena, int64_t at, f32x4 x, u32x4 noise, bool pure_bf16, int unit) {
    if (!pure_bf16) {
        store4_wide((float GLOBAL *)arena + at, x, unit);
        return;
    }
    u32x4 bits = __builtin_bit_cast(u32x4, x);
    UNROLL for (int i = 0; i < unit; i++) bits[i] = optim_round(bits[i], noise[i]);
    bf16 GLOBAL *to = (bf16 GLOBAL *)arena + at;
    if (unit == 1) *to = (bf16)bits.x;
    else *(u32x2 GLOBAL *)to = (u32x2){bits.x | bits.y << 16, bits.z | bits.w << 16};
}

/* Returns the noise of four elements of a parameter, starting at `element`. */
INLINE u32x4 noise_of(uint32_t seed, int64_t element) {
    u32x4 noise;
    UNROLL for (int i = 0; i < 4; i++) noise[i] = optim_noise(seed, element + i);
    return noise;
}

/* Stores parameters at `at` of the master arena, and of the weights if these are apart. `element`: of
 * the parameter, for the noise. Comes after the stores of moments, which would wait for its branch. */
INLINE void store_parameters(const OptimArenas *a, int64_t at, f32x4 p, uint32_t seed, int64_t element, bool pure_bf16, int unit) {
    u32x4 noise = pure_bf16 ? noise_of(seed, element) : (u32x4)0;
    store_state(a->master, at, p, noise, pure_bf16, unit);
    if (!a->weights) return;
    if (pure_bf16) store_state(a->weights, at, p, noise, true, unit);
    else store4_bf16(a->weights + at, p, unit);
}

INLINE double add_squares(double sum, f32x4 x) {
    UNROLL for (int i = 0; i < 4; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

/* The rates in fp32 and the memory of one chunk. */
typedef struct ChunkUpdate {
    float scale, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root_bias2, epsilon, keep;
    OptimArenas arenas;
    int64_t index, second_index, first;
    uint32_t seed;
} ChunkUpdate;

INLINE ChunkUpdate update_of(const Chunk GLOBAL *chunk, const OptimArenas *arenas, const ElementRates *r) {
    return (ChunkUpdate){
        .scale = (float)r->scale,
        .one_minus_beta1 = (float)(1 - r->beta1),
        .beta2 = (float)r->beta2,
        .one_minus_beta2 = (float)(1 - r->beta2),
        .step_size = (float)r->step_size,
        .inverse_root_bias2 = (float)r->inverse_root_bias2,
        .epsilon = (float)r->epsilon,
        .keep = (float)r->keep,
        .arenas = *arenas,
        .index = chunk->index,
        .second_index = chunk->second_index,
        .first = chunk->first,
        .seed = optim_noise_seed(chunk->key, arenas->step),
    };
}

/* Returns `unit` parameters p after AdamW's update with gradients g; updates both moments. Uses the
 * hardware's square root and reciprocal, within 2 units in the last place, because exactly rounded
 * ones take as long as the memory accesses. */
INLINE f32x4 adamw_step(const ChunkUpdate *u, f32x4 p, f32x4 g, f32x4 *m, f32x4 *v, int unit) {
    *m += (g - *m) * u->one_minus_beta1;
    *v = *v * u->beta2 + g * g * u->one_minus_beta2;
    p *= u->keep;
    UNROLL for (int j = 0; j < unit; j++) p[j] -=
        u->step_size * (*m)[j] * fast_reciprocal(fast_sqrt((*v)[j]) * u->inverse_root_bias2 + u->epsilon);
    return p;
}

/* Updates the block's chunk with `update` for elements i .. i + unit - 1. */
INLINE void update_chunk(
    const ElementArguments *a, void (*update)(const ChunkUpdate *u, int64_t i, bool pure_bf16, int unit), bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    ChunkUpdate u = update_of(chunk, &a->arenas, &a->rates[chunk->rates]);
    int64_t fours = chunk_fours(chunk), i;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) update(&u, i, pure_bf16, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) update(&u, i, pure_bf16, 1);
}

/* Returns the sum over the block in thread 0: lanes in a fixed tree, then waves in order. Call it
 * once per kernel. */
INLINE double block_sum_double(double x) {
    static SHARED double sums[OPTIM_THREADS / WAVE];
    UNROLL for (int mask = WAVE / 2; mask > 0; mask /= 2) {
        u32x2 words = __builtin_bit_cast(u32x2, x);
        words = (u32x2){shuffle(words.x, lane_id() ^ mask), shuffle(words.y, lane_id() ^ mask)};
        x += __builtin_bit_cast(double, words);
    }
    if (lane_id() == 0) sums[wave_id()] = x;
    barrier();
    x = 0;
    UNROLL for (int i = 0; i < OPTIM_THREADS / WAVE; i++) x += sums[i];
    return x;
}

#endif
