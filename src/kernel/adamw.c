/* AdamW on a GPU (optim/adamw.c says which): one pass that reads master, gradient, momentum and variance once and writes three of them and the bf16
 * weights, 30 bytes a parameter and nothing but memory to wait for. Owns no memory. */
#include "kernel/optim.h"

typedef struct AdamwArguments {
    const Chunk GLOBAL *chunks;
    OptimArenas arenas;
    AdamwRates rates[RATES_COUNT];
} AdamwArguments;

#ifdef GPU_DEVICE

/* The rates in fp32 and the memory of one chunk. */
typedef struct Update {
    float scale, one_minus_beta1, beta2, one_minus_beta2, step_size, inverse_root_bias2, epsilon, keep;
    float GLOBAL *master, *momentum, *variance;
    const float GLOBAL *gradients;
    bf16 GLOBAL *weights;
} Update;

INLINE Update update_of(const Chunk GLOBAL *chunk, const OptimArenas *arenas, const AdamwRates *r) {
    return (Update){
        .scale = (float)r->scale,
        .one_minus_beta1 = (float)(1 - r->beta1),
        .beta2 = (float)r->beta2,
        .one_minus_beta2 = (float)(1 - r->beta2),
        .step_size = (float)r->step_size,
        .inverse_root_bias2 = (float)r->inverse_root_bias2,
        .epsilon = (float)r->epsilon,
        .keep = (float)r->keep,
        .master = arenas->master + chunk->offset,
        .momentum = arenas->momentum + chunk->offset,
        .variance = arenas->variance + chunk->inner,
        .gradients = arenas->gradients + chunk->offset,
        .weights = arenas->weights + chunk->offset,
    };
}

/* The elements i .. i + unit - 1. */
INLINE void update(const Update *u, int64_t i, int unit) {
    f32x4 p = load4_wide(u->master + i, unit), g = load4_wide(u->gradients + i, unit) * u->scale;
    f32x4 m = load4_wide(u->momentum + i, unit), v = load4_wide(u->variance + i, unit);
    m += (g - m) * u->one_minus_beta1;
    v = v * u->beta2 + g * g * u->one_minus_beta2;
    p *= u->keep;
    UNROLL for (int j = 0; j < unit; j++) p[j] -= u->step_size * m[j] / (__builtin_sqrtf(v[j]) * u->inverse_root_bias2 + u->epsilon);
    store4_wide(u->master + i, p, unit);
    store4_wide(u->momentum + i, m, unit);
    store4_wide(u->variance + i, v, unit);
    store4_narrow(u->weights + i, p, unit);
}

KERNEL(adamw, AdamwArguments) {
    const Chunk GLOBAL *chunk = a.chunks + block_x();
    Update u = update_of(chunk, &a.arenas, &a.rates[chunk->rates]);
    int64_t fours = chunk_fours(chunk), i;
    for (i = 4 * thread_id(); i < fours; i += OPTIM_STEP) update(&u, i, 4);
    for (i = fours + thread_id(); i < chunk->count; i += OPTIM_THREADS) update(&u, i, 1);
}

#else

#include <string.h>

#include "kernel/launch.h"

LAUNCHER(adamw, adamw, AdamwArguments)

void gpu_adamw(Device *device, const Chunk *chunks, int64_t count, const OptimArenas *arenas, const AdamwRates rates[RATES_COUNT]) {
    AdamwArguments arguments = {.chunks = chunks, .arenas = *arenas};
    memcpy(arguments.rates, rates, sizeof arguments.rates);
    launch_adamw(device, (LaunchShape){.x = count, .threads = OPTIM_THREADS}, &arguments);
}

#endif
