/* Functions that the files of rollouts share. */
#pragma once

#include "infer/generated_text.h"
#include "rl/rollout.h"

const RolloutOptions *rollout_sampler_options(const RolloutSampler *rollouts);
/* Returns the text of the tokens [first, end), with those that end an answer if `ends`; the caller frees it. */
GeneratedText rollout_text(const RolloutSampler *rollouts, const TokenIds *ids, size_t first, size_t end, bool ends);
/* Returns the ids of a sample without the tokens that end answers. */
json_t *rollout_completion(const RolloutSampler *rollouts, const RolloutSample *sample);
/* Returns the turns of a sample: [{"completion": text, "append": text}, ..., {"completion": text}]. */
json_t *rollout_turns(const RolloutSampler *rollouts, const RolloutSample *sample);
