/* Lion's update on the CPU (optim/lion.c has the formula). */
#include "optim/pass_cpu_internal.h"

PreciseSum KERNEL(update_lion)(const PassRates *rates, const PassMemory *memory);

/* Updates `count` elements without the cast. All loads come first, as in adamw_cpu.c. */
static inline void lion_chunk(const ElementRates *rates, int64_t count, W *p_at, const W *g_at, W *m_at) {
    const W scale = (W)rates->scale, one_minus_beta1 = (W)(1 - rates->beta1), one_minus_beta2 = (W)(1 - rates->beta2);
    const W keep = (W)rates->keep, step_size = (W)rates->step_size;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        W p = p_at[i], g = g_at[i] * scale, m = m_at[i];
        W c = m + (g - m) * one_minus_beta1;
        W step = c > 0 ? step_size : c < 0 ? -step_size : c * 0; /* NaN stays */
        p_at[i] = p * keep - step;
        m_at[i] = m + (g - m) * one_minus_beta2;
    }
}

PreciseSum KERNEL(update_lion)(const PassRates *rates, const PassMemory *memory) {
    W *p = memory->master, *m = memory->momentum;
    const W *g = memory->gradient;
    for (int64_t first = 0; first < memory->count; first += UPDATE_BLOCK) {
        int64_t block = int_min(UPDATE_BLOCK, memory->count - first);
        lion_chunk(rates->elements, block, p + first, g + first, m + first);
        cast_weights(block, p + first, (T *)memory->weights + first);
    }
    return (PreciseSum){0};
}
