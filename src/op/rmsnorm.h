/* One row of RMSNorm, shared by rmsnorm.c and residual_norm.c so that a norm computed again from the stored stream has the
 * bits of the fused one. */
#ifndef SMELT_OP_RMSNORM_H
#define SMELT_OP_RMSNORM_H

#include "op/kernel.h"

typedef struct RmsnormAttributes { double epsilon; } RmsnormAttributes;

#ifdef KERNEL_VARIANT

/* y = x * rstd * gain; returns rstd. */
static inline W rmsnorm_row(T *restrict y, const W *restrict x, const W *restrict gain, int64_t columns, W epsilon) {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < columns; j++) sum += x[j] * x[j];
    W rstd = 1 / wide_sqrt(sum / columns + epsilon);
    for (int64_t j = 0; j < columns; j++) y[j] = narrow(x[j] * rstd * gain[j]);
    return rstd;
}

/* dx += the gradient of the row; dgain += dy * x * rstd. */
static inline void rmsnorm_row_grad(W *restrict dx, W *restrict dgain, const T *restrict dy, const W *restrict x,
                                    const W *restrict gain, W rstd, int64_t columns) {
    W dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < columns; j++) dot += widen(dy[j]) * gain[j] * x[j];
    W pull = dot * rstd * rstd / columns;
    for (int64_t j = 0; j < columns; j++) {
        W dy_j = widen(dy[j]);
        dx[j] += rstd * (dy_j * gain[j] - x[j] * pull);
        dgain[j] += dy_j * x[j] * rstd;
    }
}

#endif
#endif
