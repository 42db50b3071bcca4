/* Losses over pairs of answers, one of which is preferred: the builder, and the operands that rule
 * and kernels share. */
#pragma once

#include "config/config.h"
#include "graph/op.h"
#include "ops/preference/pair.h"

/* Returns the most pairs of a microbatch of R rows, R / 4: an answer has a token before its first
 * trained one. */
static inline int64_t preference_most_pairs(int64_t rows) { return rows < 8 ? 1 : rows / 4; }

/* The caller's inputs for P = preference_most_pairs(R) pairs; unused pairs are empty. */
typedef struct PreferenceInputs {
    TensorId targets;   /* INT32 [R]; negative: not a token of an answer */
    TensorId pairs;     /* INT32 [P, PAIR_BOUNDS] */
    TensorId reference; /* WIDE [P, 2]: log-probabilities of chosen and rejected answer in the reference model */
    TensorId scale;     /* WIDE [1] */
} PreferenceInputs;

/* Appends the head and the loss: loss[0] += scale[0] * sum over pairs of the loss of `config` on x
 * w^T, with x COMPUTE [R, D] and w [vocabulary, D]. Adds the sums of rewards to `rewards`, METRIC
 * WIDE [REWARD_COUNT]; computes gradients in training. Returns the log-probabilities of all
 * answers, WIDE [P, 2], which stay until the program ends. */
TensorId op_preference(Graph *graph, TensorId x, TensorId w, const PreferenceInputs *inputs, const PreferenceConfig *config, TensorId loss,
    TensorId rewards, int64_t vocabulary);

typedef enum PreferenceOperand {
    PREFERENCE_LOSSES,  /* WIDE [R]: -log-probabilities of tokens, 0 without a target */
    PREFERENCE_TARGETS, /* as in PreferenceInputs, like the next three */
    PREFERENCE_PAIRS,
    PREFERENCE_REFERENCE,
    PREFERENCE_SCALE,
    PREFERENCE_LOSS = 0, /* METRIC WIDE [1 or more]; the first is added to */
    PREFERENCE_REWARDS,  /* METRIC WIDE [REWARD_COUNT], added to */
    PREFERENCE_ANSWERS,  /* WIDE [P, 2] */
    PREFERENCE_WEIGHTS,  /* WIDE [R]: the gradient of the scaled loss with respect to each token's loss; in training */
} PreferenceOperand;
/* The attributes are a PreferenceConfig. */
