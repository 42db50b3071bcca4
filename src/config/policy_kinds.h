/* The kinds of losses of reinforcement learning that kernels distinguish, for the host and for
 * GPUs. */
#pragma once

/* What a token contributes, with the ratio r of its probability now and when it was drawn, and the
 * advantage A (ops/policy/rule.c has the formulas). */
typedef enum PolicyObjective { POLICY_CLIP, POLICY_CAP, POLICY_DIFFERENCE } PolicyObjective;
/* The r of a token: its own, or of its sequence: exp of the mean, or of the sum, of log r. */
typedef enum PolicyRatio { RATIO_OF_TOKEN, RATIO_OF_MEAN, RATIO_OF_SUM } PolicyRatio;
