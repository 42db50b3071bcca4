/* Scores the tokens of samples with one forward pass of a program: the reference's log-probabilities, or the values
 * of a value head. */
#pragma once

#include "rl/rollout.h"

/* A program of the session's ranks, with a loss of reinforcement learning. */
typedef struct SampleScoring {
    const Session *session;
    const Program *program;
    const PromptSet *prompts;
} SampleScoring;
typedef enum SampleScore { SCORE_LOG_PROBABILITY, SCORE_VALUE } SampleScore;
/* Sets scores[i] to the scores of sample i, [ids.count], which the caller frees; appended tokens have 0. Collective. */
bool rollout_score(
    const SampleScoring *scoring, SampleScore score, const RolloutSample *samples, int64_t count, double **scores, Error *error);
