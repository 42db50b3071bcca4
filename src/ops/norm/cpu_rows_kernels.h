/* One row of RMSNorm (arXiv 1910.07467) or LayerNorm (arXiv 1607.06450) on a CPU, shared by cpu.c,
 * residual_cpu.c and qk_cpu.c, so that a norm recomputed from the stored stream has the same bits
 * as the fused one. With sums over rows, rstd = 1 / sqrt(mean((x - mean)^2) + epsilon), n = (x -
 * mean) * rstd and g = dy * gain:
 *     y = n * gain + bias,   dx = rstd * (g - mean(g) - n * mean(g * n)),   dgain = sum of dy * n,   dbias = sum of dy;
 * RMSNorm has a mean of 0, and neither mean(g) nor a bias. Statistics of a row: rstd, then
 * LayerNorm's mean. */
#pragma once

#include "backend/cpu/kernel.h"
#include "ops/norm/norm.h"

#ifdef KERNEL_VARIANT

static inline void rmsnorm_row(
    T *restrict y, W *restrict statistics, const W *restrict x, const W *restrict gain, int64_t columns, W epsilon) {
    W sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < columns; j++) sum += x[j] * x[j];
    W rstd = 1 / wide_sqrt(sum / columns + epsilon);
    for (int64_t j = 0; j < columns; j++) y[j] = to_compute(x[j] * rstd * gain[j]);
    *statistics = rstd;
}

static inline void layernorm_row(T *restrict y, W *restrict statistics, const W *restrict x, const W *restrict gain, const W *restrict bias,
    int64_t columns, W epsilon) {
    W sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < columns; j++) sum += x[j];
    W mean = sum / columns;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < columns; j++) squares += (x[j] - mean) * (x[j] - mean);
    W rstd = 1 / wide_sqrt(squares / columns + epsilon);
    if (bias)
        for (int64_t j = 0; j < columns; j++) y[j] = to_compute((x[j] - mean) * rstd * gain[j] + bias[j]);
    else
        for (int64_t j = 0; j < columns; j++) y[j] = to_compute((x[j] - mean) * rstd * gain[j]);
    statistics[0] = rstd;
    statistics[1] = mean;
}

static inline void norm_row(
    const NormAttributes *attributes, T *y, W *statistics, const W *x, const W *gain, const W *bias, int64_t columns) {
    if (attributes->kind == NORM_RMS) rmsnorm_row(y, statistics, x, gain, columns, (W)attributes->epsilon);
    else layernorm_row(y, statistics, x, gain, bias, columns, (W)attributes->epsilon);
}

static inline void rmsnorm_row_grad(
    W *restrict dx, W *restrict dgain, const T *restrict dy, const W *restrict x, const W *restrict gain, W rstd, int64_t columns) {
    W dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < columns; j++) dot += to_wide(dy[j]) * gain[j] * x[j];
    W pull = dot * rstd * rstd / columns;
    for (int64_t j = 0; j < columns; j++) {
        W dy_j = to_wide(dy[j]);
        dx[j] += rstd * (dy_j * gain[j] - x[j] * pull);
        dgain[j] += dy_j * x[j] * rstd;
    }
}

static inline void layernorm_row_grad(W *restrict dx, W *restrict dgain, W *restrict dbias, const T *restrict dy, const W *restrict x,
    const W *restrict gain, W rstd, W mean, int64_t columns) {
    W sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t j = 0; j < columns; j++) {
        W g = to_wide(dy[j]) * gain[j];
        sum += g;
        dot += g * (x[j] - mean);
    }
    W shift = sum / columns, pull = dot * rstd * rstd / columns;
    for (int64_t j = 0; j < columns; j++) {
        W dy_j = to_wide(dy[j]), centered = x[j] - mean;
        dx[j] += rstd * (dy_j * gain[j] - shift - centered * pull);
        dgain[j] += dy_j * centered * rstd;
    }
    for (int64_t j = 0; dbias && j < columns; j++) dbias[j] += to_wide(dy[j]);
}

/* dx += the gradient of the row; adds to dgain and, if not NULL, to dbias. */
static inline void norm_row_grad(
    NormKind kind, W *dx, W *dgain, W *dbias, const T *dy, const W *x, const W *gain, const W *statistics, int64_t columns) {
    if (kind == NORM_RMS) rmsnorm_row_grad(dx, dgain, dy, x, gain, statistics[0], columns);
    else layernorm_row_grad(dx, dgain, dbias, dy, x, gain, statistics[0], statistics[1], columns);
}

#endif
