/* From the rewards of a rollout to the advantages of its samples. */
#pragma once

#include "rl/rollout.h"

/* Returns the reward of a sample after the penalty of its length, which is what samples are compared by. */
double rollout_judged(const RlConfig *rl, const RolloutSample *sample);
/* Sets the estimates of the session's value head of all drawn tokens; does nothing for a model without one.
 * Collective. */
bool rollout_estimate_values(const RolloutOptions *options, Rollout *rollout, Error *error);
/* Subtracts penalties from the rewards, and sets advantages, returns, and the facts about values.
 * ERROR_NUMERICS. */
bool rollout_set_advantages(const RolloutOptions *options, Rollout *rollout, Error *error);
