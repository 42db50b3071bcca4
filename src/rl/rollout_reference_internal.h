/* The reference of a rollout: a model whose log-probabilities of the drawn tokens are compared with the
 * policy's. It is the base of a run with adapters, whose weights are there, or a model of its own, such
 * as a teacher. */
#pragma once

#include "rl/rollout.h"

typedef struct RolloutReference RolloutReference;
/* Loads what the settings need; *reference is NULL if that is nothing. ERROR_USAGE: its tokens differ. */
bool rollout_reference_open(const RolloutOptions *options, RolloutReference **reference, Error *error);
void rollout_reference_close(RolloutReference *reference);
/* Sets the log-probabilities of the samples in the reference. NULL: none. Collective. */
bool rollout_reference_score(
    const RolloutReference *reference, const PromptSet *prompts, RolloutSample *samples, int64_t count, Error *error);
