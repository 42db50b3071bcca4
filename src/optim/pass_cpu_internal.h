/* Shared by the CPU's passes of optimizers; private to files that are compiled once per precision
 * and instruction set. */
#pragma once

#include "backend/cpu/kernel.h"
#include "optim/optim_internal.h"

/* Elements that an update processes between casts, so that they are in the L1 cache. */
enum { UPDATE_BLOCK = 1024 };

/* Casts weights that were just updated, while they are in the L1 cache. */
static inline void cast_weights(int64_t count, const W *restrict p, T *restrict w) {
    if ((const void *)p == (const void *)w) return;
#pragma omp simd
    for (int64_t i = 0; i < count; i++) w[i] = to_compute(p[i]);
}
