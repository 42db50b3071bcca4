/* AdamW on a GPU (optim/adamw.c says which): one pass that reads master, gradient, momentum and variance once and
 * writes three of them and the bf16 weights, 30 bytes a parameter (14 where all of them are bf16) and nothing but
 * memory to wait for. Owns no memory. */
#include "optim/optim_gpu_internal.h"

typedef struct AdamwArguments {
    const Chunk GLOBAL *chunks;
    OptimArenas arenas;
    AdamwRates rates[RATES_COUNT];
} AdamwArguments;

#ifdef GPU_DEVICE

/* The rates in fp32 and the memory of one chunk. */
typedef struct ChunkUpdate {
    float scale, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root_bias2, epsilon, keep;
    OptimArenas arenas;
    int64_t index, second_index, first;
    uint32_t seed;
} ChunkUpdate;

INLINE ChunkUpdate update_of(const Chunk GLOBAL *chunk, const OptimArenas *arenas, const AdamwRates *r) {
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

/* The elements i .. i + unit - 1. */
INLINE void update(const ChunkUpdate *u, int64_t i, bool pure_bf16, int unit) {
    const OptimArenas *a = &u->arenas;
    int64_t at = u->index + i;
    f32x4 p = load_state(a->master, at, pure_bf16, unit), g = load_state(a->gradients, at, pure_bf16, unit) * u->scale;
    f32x4 m = load_state(a->momentum, at, pure_bf16, unit), v = load_state(a->variance, u->second_index + i, pure_bf16, unit);
    m += (g - m) * u->one_minus_beta1;
    v = v * u->beta2 + g * g * u->one_minus_beta2;
    p *= u->keep;
    UNROLL for (int j = 0; j < unit; j++) p[j] -= u->step_size * m[j] / (__builtin_sqrtf(v[j]) * u->inverse_root_bias2 + u->epsilon);
    u32x4 of_weights = 0, of_state = 0;
    if (pure_bf16) of_weights = noise_of(u->seed, u->first + i), of_state = noise_of(~u->seed, u->first + i);
    store_state(a->master, at, p, of_weights, pure_bf16, unit);
    store_state(a->momentum, at, m, of_state, pure_bf16, unit);
    store_state(a->variance, u->second_index + i, v, of_state >> 16, pure_bf16, unit);
    if (!a->weights) return;
    if (pure_bf16) store_state(a->weights, at, p, of_weights, true, unit);
    else store4_bf16(a->weights + at, p, unit);
}

INLINE void update_chunk(const AdamwArguments *a, bool pure_bf16) {
    const Chunk GLOBAL *chunk = a->chunks + block_x();
    ChunkUpdate u = update_of(chunk, &a->arenas, &a->rates[chunk->rates]);
    int64_t fours = chunk_fours(chunk), i;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) update(&u, i, pure_bf16, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) update(&u, i, pure_bf16, 1);
}

KERNEL(adamw, AdamwArguments) { update_chunk(&a, false); }
KERNEL(adamw_bf16, AdamwArguments) { update_chunk(&a, true); }

#else

#include <string.h>

LAUNCHERS(adamw, AdamwArguments, adamw, adamw_bf16)

void gpu_adamw(const Optimizer *optimizer, const Segment *segment, const Update *update, const AdamwRates rates[RATES_COUNT]) {
    AdamwArguments arguments = {.chunks = optimizer->device_chunks + segment->first, .arenas = optim_arenas(optimizer, segment, update)};
    memcpy(arguments.rates, rates, sizeof arguments.rates);
    LaunchShape shape = {.x = segment->end - segment->first, .threads = OPTIM_THREADS};
    launch_adamw(optimizer->device, segment->pure_bf16, shape, &arguments);
}

#endif
