/* Lion on a GPU (optim/lion.c has the formula): one pass that reads master, gradient and momentum
 * once and writes two of them and the bf16 weights: 22 bytes per parameter (10 if all of them are
 * bf16). Owns no memory. */
#include "optim/optim_gpu_kernels.h"

#ifdef GPU_DEVICE

/* Updates the elements i .. i + unit - 1. */
INLINE void lion_element(const ChunkUpdate *u, int64_t i, bool pure_bf16, int unit) {
    const OptimArenas *a = &u->arenas;
    int64_t at = u->index + i;
    f32x4 p = load_state(a->master, at, pure_bf16, unit), g = load_state(a->gradients, at, pure_bf16, unit) * u->scale;
    f32x4 m = load_state(a->momentum, at, pure_bf16, unit), c = m + (g - m) * u->one_minus_beta1;
    m += (g - m) * u->one_minus_beta2;
    p *= u->keep;
    UNROLL for (int j = 0; j < unit; j++) p[j] -= c[j] > 0 ? u->step_size : c[j] < 0 ? -u->step_size : c[j] * 0; /* NaN stays */
    store_state(a->momentum, at, m, pure_bf16 ? noise_of(~u->seed, u->first + i) : (u32x4)0, pure_bf16, unit);
    store_parameters(a, at, p, u->seed, u->first + i, pure_bf16, unit);
}

KERNEL(lion, ElementArguments) { update_chunk(&a, lion_element, false); }
KERNEL(lion_bf16, ElementArguments) { update_chunk(&a, lion_element, true); }

#else

LAUNCHERS(lion, ElementArguments, lion, lion_bf16)

void gpu_update_lion(const Optimizer *optimizer, const Segment *segment, const Update *update, const ElementRates rates[RATES_COUNT]) {
    ElementArguments arguments = optim_element_arguments(optimizer, segment, update, rates);
    launch_lion(optimizer->device, segment->pure_bf16, optim_element_shape(segment), &arguments);
}

#endif
