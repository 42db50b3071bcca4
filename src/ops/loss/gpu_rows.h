/* What the two forms of the loss of a row share (gpu.c, gpu_cluster.h): its arguments and its arithmetic. */
#pragma once

#include "backend/gpu/gpu.h"

/* logits [count, stride], in 16-byte aligned rows; with `gradient` they become d_logits. */
typedef struct RowLossArguments {
    bf16 GLOBAL *logits;
    const int32_t GLOBAL *targets;
    const float GLOBAL *scale; /* of row i: scale[i * scale_step] */
    float GLOBAL *losses;
    int64_t count, stride;
    int32_t vocabulary, gradient, blocks, scale_step;
} RowLossArguments;

#ifdef GPU_DEVICE

/* Below every logit; finite and a power of two, so that power(FAR_BELOW, FAR_BELOW) is 1 however it is rounded. */
#define FAR_BELOW -0x1p100f
#define FAR_BELOW_PAIR 0xf180f180u /* a pair of them in bf16 */
#define NO_LOGITS 0xff80ff80u      /* a pair of minus infinities: adds nothing */

INLINE float power(float x, float most) { return fast_exp2(x * LOG2_E - most * LOG2_E); }

#endif
