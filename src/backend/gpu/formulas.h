/* The functions of formulas (config/activation_list.h) in device code. */
#pragma once

#include "backend/gpu/gpu.h"

#ifdef GPU_DEVICE

#define NUMBER(x) ((float)(x))

INLINE float sigmoid(float x) { return fast_reciprocal(1 + fast_exp(-x)); }

/* Returns x sigmoid(u), and the slope of x sigmoid(u(x)) for s = sigmoid(u) and u' = `slope`. */
INLINE float over_sigmoid(float x, float u) { return x * sigmoid(u); }
INLINE float over_sigmoid_slope(float x, float s, float slope) { return s + x * s * (1 - s) * slope; }

/* Returns the normal distribution's Phi(x), computed from erf's complement (Abramowitz and Stegun
 * 7.1.26, within 2e-7), which loses no digits for negative x. */
INLINE float normal_cumulative(float x) {
    float t = fast_reciprocal(1 + 0.3275911f * 0.70710678118654752f * __builtin_fabsf(x));
    float p = ((((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f) * t;
    float tail = 0.5f * p * fast_exp(-0.5f * x * x);
    return x < 0 ? tail : 1 - tail;
}

/* Returns the slope of x Phi(x): Phi(x) and x times the density. */
INLINE float normal_slope(float x) { return normal_cumulative(x) + x * 0.39894228040143267794f * fast_exp(-0.5f * x * x); }

#endif
