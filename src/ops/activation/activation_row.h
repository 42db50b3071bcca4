/* Shared by the kernels of activations: formulas, and the fused kernels of one row
 * (activation_row_gpu.c). */
#pragma once

#include "backend/gpu/gpu.h"

#ifdef GPU_DEVICE

INLINE float sigmoid(float x) { return fast_reciprocal(1 + fast_exp(-x)); }

/* Returns the normal distribution's Phi(x), computed from erf's complement (Abramowitz and Stegun
 * 7.1.26, within 2e-7), which loses no digits for negative x. `gauss` is e^(-x^2 / 2). */
INLINE float normal_cumulative(float x, float gauss) {
    float t = fast_reciprocal(1 + 0.3275911f * 0.70710678118654752f * __builtin_fabsf(x));
    float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float tail = 0.5f * p * gauss;
    return x < 0 ? tail : 1 - tail;
}

INLINE float gelu_exact(float x) { return x * normal_cumulative(x, fast_exp(-0.5f * x * x)); }

/* 0.5 (1 + tanh(u)) = sigmoid(2u). */
#define TANH_A 1.59576912160573071176f
#define TANH_B (1.59576912160573071176f * 0.044715f)
INLINE float gelu_tanh(float x) { return x * sigmoid(x * (TANH_A + TANH_B * x * x)); }

#else

#include "backend/gpu/kernel_launch.h"

/* Returns whether gelu or swiglu absorbs the preceding GEMM of one row (OpKernel.absorbs); and the
 * launch of both. */
int activation_absorbs_row(const Backend *backend, const Graph *graph, int index);
void activation_launch_row(const OpCall *call);

#endif
