/* Shared by the CPU's passes of optimizers; private to files that are compiled once per precision
 * and instruction set. */
#pragma once

#include "backend/cpu/kernel.h"
#include "optim/optim_internal.h"

/* Elements that an update processes between casts, so that they are in the L1 cache. */
enum { UPDATE_BLOCK = 1024 };

/* Updates `count` elements with AdamW, without the cast. Arenas often start at the same offset
 * within a page, so loads that follow a store in an iteration would wait for the store (4K
 * aliasing). Therefore all loads come first; without `restrict` compilers keep them there. */
static inline void update_adamw(const ElementRates *rates, int64_t count, W *p_at, const W *g_at, W *m_at, W *v_at) {
    const W scale = (W)rates->scale, one_minus_beta1 = (W)(1 - rates->beta1);
    const W beta2 = (W)rates->beta2, one_minus_beta2 = (W)(1 - rates->beta2);
    const W keep = (W)rates->keep, step_size = (W)rates->step_size;
    const W inverse_root_bias2 = (W)rates->inverse_root_bias2, epsilon = (W)rates->epsilon;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        W p = p_at[i], g = g_at[i] * scale, m = m_at[i], v = v_at[i];
        m += (g - m) * one_minus_beta1;
        v = v * beta2 + g * g * one_minus_beta2;
        p_at[i] = p * keep - step_size * m / (wide_sqrt(v) * inverse_root_bias2 + epsilon);
        m_at[i] = m;
        v_at[i] = v;
    }
}

/* Casts weights that were just updated, while they are in the L1 cache. */
static inline void cast_weights(int64_t count, const W *restrict p, T *restrict w) {
    if ((const void *)p == (const void *)w) return;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) w[i] = to_compute(p[i]);
}
