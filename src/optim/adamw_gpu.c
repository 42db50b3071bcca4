/* AdamW on a GPU (optim/adamw.c explains the method) in one pass. It reads master, gradient,
 * momentum and variance once and writes three of them and the bf16 weights: 30 bytes per parameter
 * (14 if all of them are bf16). The pass is bound by memory bandwidth. Owns no memory. */
#include "optim/optim_gpu_kernels.h"

#ifdef GPU_DEVICE

/* Updates the elements i .. i + unit - 1. */
INLINE void adamw_element(const ChunkUpdate *u, int64_t i, bool pure_bf16, int unit) {
    const OptimArenas *a = &u->arenas;
    int64_t at = u->index + i;
    f32x4 p = load_state(a->master, at, pure_bf16, unit), g = load_state(a->gradients, at, pure_bf16, unit) * u->scale;
    f32x4 m = load_state(a->momentum, at, pure_bf16, unit), v = load_state(a->variance, u->second_index + i, pure_bf16, unit);
    p = adamw_step(u, p, g, &m, &v, unit);
    u32x4 noise = pure_bf16 ? noise_of(~u->seed, u->first + i) : (u32x4)0;
    store_state(a->momentum, at, m, noise, pure_bf16, unit);
    store_state(a->variance, u->second_index + i, v, noise >> 16, pure_bf16, unit);
    store_parameters(a, at, p, u->seed, u->first + i, pure_bf16, unit);
}

KERNEL(adamw, ElementArguments) { update_chunk(&a, adamw_element, false); }
KERNEL(adamw_bf16, ElementArguments) { update_chunk(&a, adamw_element, true); }

#else

LAUNCHERS(adamw, ElementArguments, adamw, adamw_bf16)

void gpu_update_adamw(const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]) {
    ElementArguments arguments = optim_element_arguments(optimizer, segment, update, rates);
    launch_adamw(optimizer->device, segment->pure_bf16, optim_element_shape(segment), &arguments);
}

#endif
