/* The losses of reinforcement learning (rl.loss): one PolicyRule each. Settings, the operation and
 * the advantages of samples ask the rule; none of them names a loss. To add one, write a row in
 * policy_rule.c. */
#pragma once

#include "config/config.h"
#include "config/policy_kinds.h"

/* The advantage of a sample with reward R in its group (rl/advantage_internal.h). */
typedef enum PolicyAdvantage {
    ADVANTAGE_SCALED,    /* (R - mean) / (deviation + 1e-4) */
    ADVANTAGE_CENTERED,  /* R - mean */
    ADVANTAGE_LEFT_OUT,  /* R - mean of the other samples */
    ADVANTAGE_OF_BATCH,  /* (R - mean) / (deviation + 1e-4) over all samples of the rollout */
    ADVANTAGE_OVER_MEAN, /* (R - mean) / mean */
    ADVANTAGE_TEACHER,   /* of each token: its log-probability in the reference minus that when it was drawn */
    ADVANTAGE_OF_VALUES, /* per token: generalized advantage estimates from the model's value head */
} PolicyAdvantage;
/* The divisor of a token's loss: the tokens of its sequence times the sequences; all tokens; the
 * sequences times rl.tokens. */
typedef enum PolicyMean { MEAN_OF_SEQUENCES, MEAN_OF_TOKENS, MEAN_OF_LIMIT } PolicyMean;

typedef struct PolicyRule {
    const char *name; /* the value of rl.loss */
    PolicyObjective objective;
    PolicyRatio ratio;
    PolicyAdvantage advantage;
    PolicyMean mean;
    double low, high; /* rl.clip_low and rl.clip_high if they are not given */
} PolicyRule;

enum { POLICY_LOSSES = 11 };
/* By rl.loss - 1, which is 0 without reinforcement learning. */
extern const PolicyRule policy_rules[POLICY_LOSSES];
static inline const PolicyRule *policy_rule(const PolicyConfig *policy) { return &policy_rules[policy->loss - 1]; }
/* Returns whether the loss needs a model with a value head. */
static inline bool policy_has_values(const PolicyConfig *policy) {
    return policy->loss && policy_rule(policy)->advantage == ADVANTAGE_OF_VALUES;
}
/* Returns whether the advantage of a sample depends on other samples of its prompt. */
static inline bool policy_compares(const PolicyConfig *policy) {
    return policy->loss && policy_rule(policy)->advantage < ADVANTAGE_TEACHER;
}
/* Returns the bounds of the ratio: the given ones, or the rule's. */
static inline double policy_low(const PolicyConfig *policy) { return policy->low >= 0 ? policy->low : policy_rule(policy)->low; }
static inline double policy_high(const PolicyConfig *policy) { return policy->high >= 0 ? policy->high : policy_rule(policy)->high; }
