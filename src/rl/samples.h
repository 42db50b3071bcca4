/* Samples of a rollout, and the microbatches that train or score them. */
#pragma once

#include <math.h>

#include "chat/prompts.h"
#include "config/policy_rule.h"
#include "program/program.h"

/* A sample that the model has drawn, and perhaps an environment has appended to. Its pointers are owned. */
typedef struct RolloutSample {
    int64_t prompt;                           /* index in the set of prompts */
    TokenIds ids;                             /* with the end token of each turn, if there is one */
    double *old;                              /* [ids.count]: log-probabilities when the tokens were drawn; NaN: appended, never trained */
    double *reference;                        /* [ids.count]: log-probabilities in the reference, 0 if appended; NULL: none */
    double *values;                           /* of each reward, before weights */
    json_t *report;                           /* "metrics" (numbers by NAME.METRIC) and "note" of programs; NULL: nothing */
    double reward;                            /* NaN: unknown, and the sample is not trained */
    double advantage;                         /* of all drawn tokens, if `advantages` is NULL */
    double *advantages, *returns, *estimates; /* [ids.count]: of each token, if the loss has them: its advantage, and the target and
                                               * the estimate of its value; 0 if appended */
    int64_t turns;                            /* that were given to the environment */
    bool last;                                /* no more can be appended */
    bool cut;                                 /* at the most tokens, not by an end token */
} RolloutSample;
void rollout_sample_free(RolloutSample *sample);
static inline bool sample_drew(const RolloutSample *sample, size_t t) { return !isnan(sample->old[t]); }
int64_t sample_drawn_tokens(const RolloutSample *sample);
static inline bool sample_trains(const RolloutSample *sample, bool leave_out_cut) {
    return !isnan(sample->reward) && !(leave_out_cut && sample->cut);
}

/* A turn: the tokens [first, end) that the model drew, and [end, next) that the environment appended. */
typedef struct SampleTurn { size_t first, end, next; } SampleTurn;
SampleTurn sample_turn(const RolloutSample *sample, size_t first);
SampleTurn sample_last_turn(const RolloutSample *sample);

/* How the tokens of a sample become terms of a loss (ops/policy/policy.h). */
typedef struct SampleTerms {
    PolicyMean mean;
    int64_t limit;      /* most tokens of a sample */
    bool leave_out_cut; /* cut samples are not trained */
} SampleTerms;

/* Samples in microbatches of a program, packed into sequences first fit, in order: prompt and tokens of
 * a sample are a document of its own. All ranks make the same. Owns its memory. Zero-initialize. */
typedef struct SampleBatch {
    const Model *model;
    int64_t microbatches, rows;            /* rows of each */
    int32_t *tokens, *targets, *positions; /* [microbatches * rows] */
    int32_t *bounds;                       /* [microbatches, policy_most_sequences(rows), SEQUENCE_BOUNDS] */
    double *terms;                         /* [microbatches * rows, POLICY_TERMS] */
    int64_t *places;                       /* [samples]: the row that predicts the first drawn token */
    int64_t all, trained;                  /* tokens of the documents; trained ones */
} SampleBatch;
/* For microbatches of a planned program. `terms` NULL: to score all samples. A sample with its prompt
 * fits into a sequence. On an exact device each document begins at a multiple of EXACT_ROWS. */
void sample_batch_make(SampleBatch *batch, const Program *program, const PromptSet *prompts, const RolloutSample *samples, int64_t count,
    const SampleTerms *terms);
/* Writes the inputs of a microbatch; -1: one that trains nothing. */
void sample_batch_load(const SampleBatch *batch, const Executor *executor, int64_t microbatch);
void sample_batch_free(SampleBatch *batch);
