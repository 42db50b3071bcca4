/* Shared by the two forms of the row loss (gpu.c, gpu_cluster_kernels.h): its arguments and its
 * arithmetic. */
#pragma once

#include "backend/gpu/fp8_output.h"

/* logits [count, stride], in 16-byte aligned rows. With `gradient` they become d_logits; kernels
 * that quantize write `quantized` instead, a cast of d_logits to e5m2, also [count, stride]. The amax
 * is at most the scale, which is the same for all rows. */
typedef struct RowLossArguments {
    bf16 GLOBAL *logits;
    const int32_t GLOBAL *targets;
    const float GLOBAL *scale; /* of row i: scale[i * scale_step] */
    float GLOBAL *losses;
    int64_t count, stride;
    int32_t vocabulary, gradient, blocks, scale_step;
    uint8_t GLOBAL *quantized;
    float GLOBAL *quantized_scale;
    float largest; /* largest number of e5m2 */
    float cap;     /* of logits; 0: none */
} RowLossArguments;

/* As loss_of_draws. */
typedef struct DrawnLossArguments {
    const float GLOBAL *logits;
    float GLOBAL *drawn;
    int32_t vocabulary, values;
} DrawnLossArguments;

#ifdef GPU_DEVICE

/* Below every logit; finite and a power of two, so that power(FAR_BELOW, FAR_BELOW) is 1 with any
 * rounding. */
#define FAR_BELOW -0x1p100f
#define FAR_BELOW_PAIR 0xf180f180u /* a bf16 pair of FAR_BELOW */
#define NO_LOGITS 0xff80ff80u      /* a pair of minus infinities: adds nothing */

/* Destination of a row's gradients, in vectors of 8: over its logits or, with a multiplier above 0,
 * in its quantized values. */
typedef struct RowGradients {
    u32x4 GLOBAL *vectors;
    u32x2 GLOBAL *quantized;
    float multiplier, largest;
} RowGradients;

/* Returns the destination for `row` from vector `first` on. `coded` is a constant of the kernel. */
INLINE RowGradients row_gradients(const RowLossArguments *a, int64_t row, int32_t first, const bool coded) {
    RowGradients to = {.vectors = (u32x4 GLOBAL *)(a->logits + row * a->stride) + first};
    if (!coded) return to;
    to.quantized = (u32x2 GLOBAL *)(a->quantized + row * a->stride) + first;
    to.multiplier = fp8_multiplier(*a->scale, a->largest, false);
    to.largest = a->largest;
    if (row == 0 && first == 0 && thread_id() == 0) *a->quantized_scale = 1 / to.multiplier;
    return to;
}

INLINE void put_gradients(const RowGradients *to, int32_t v, u32x4 pairs, const bool coded) {
    if (!coded) to->vectors[v] = pairs;
    else
        to->quantized[v] = (u32x2){to_fp8(to_float4(pairs.xy) * to->multiplier, to->largest, true),
            to_fp8(to_float4(pairs.zw) * to->multiplier, to->largest, true)};
}

INLINE void put_gradient(const RowGradients *to, int32_t at, float gradient, const bool coded) {
    bf16 rounded = to_bf16(gradient);
    if (!coded) ((bf16 GLOBAL *)to->vectors)[at] = rounded;
    else ((uint8_t GLOBAL *)to->quantized)[at] = (uint8_t)to_fp8(to_float(rounded) * to->multiplier, to->largest, true);
}

/* Returns -log softmax(x)[target], given log2 of the sum of e^x over all logits, and the target's. */
INLINE float loss_of(float log2_sum, float target) { return (log2_sum - target * LOG2_E) * LN_2; }

INLINE float power(float x, float most) { return fast_exp2(x * LOG2_E - most * LOG2_E); }

#endif
