/* Computes the advantages of a rollout's samples from their rewards. */
#pragma once

#include "rl/rollout.h"

/* Returns the reward of a sample after the penalty of its length. Samples are compared by this number. */
double rollout_judged(const RlConfig *rl, const RolloutSample *sample);
/* Sets the value head's estimates for all drawn tokens. Does nothing if the model has no value head. Collective. */
bool rollout_estimate_values(const RolloutOptions *options, Rollout *rollout, Error *error);
/* Subtracts penalties from the rewards, and sets advantages, returns, and the statistics of values.
 * ERROR_NUMERICS. */
bool rollout_set_advantages(const RolloutOptions *options, Rollout *rollout, Error *error);
