/* Rollouts: the model of a training generates samples of prompts with its present weights, rewards
 * judge them, and advantages follow. One engine, without weights of its own, serves the whole run.
 *
 * Every rank generates its share of the prompts, and then all ranks have all samples. A rollout is a
 * function of the weights, the settings and its index: not of the ranks, the slots or the order in
 * which programs answer. */
#pragma once

#include "base/stop.h"
#include "launch/watchdog.h"
#include "rl/samples.h"
#include "run/corpus.h"
#include "session/session.h"

/* What a rollout was like, over all of its rounds. Means are over samples unless said otherwise. */
typedef struct RolloutFacts {
    int64_t samples, groups;       /* generated */
    int64_t tokens, prompt_tokens; /* drawn tokens; computed tokens of prompts */
    double turns;                  /* NaN: no environment */
    double reward, deviation;      /* of rewards, before penalties */
    double equal_groups;           /* share of the groups whose rewards are equal */
    double length, cut;            /* drawn tokens; share of the samples that rl.tokens cut off */
    json_t *rewards;               /* the mean of each reward, and of each metric of programs as NAME.METRIC; owned by the rollout */
    double surprise;               /* -log p of drawn tokens, per token: the estimated entropy */
    double failed;                 /* share of the samples without a reward */
    double kl;                     /* old minus reference log-probability, per trained token; NaN: no reference */
    double value, explained;       /* of trained tokens: mean value, and share of the returns' variance that values explain; NaN: none */
    double generating, judging, scoring; /* seconds: generation; then waiting for rewards and the environment; reference and values */
} RolloutFacts;

typedef struct Rollout {
    RolloutSample *samples; /* [count], group after group */
    int64_t count, groups;
    RolloutFacts facts;
    bool stopped; /* on request: there are no samples */
} Rollout;
void rollout_free(Rollout *rollout);

typedef struct RolloutSampler RolloutSampler;
typedef struct RolloutOptions {
    const Config *config;
    Session *session;
    const Corpus *corpus;
    const StopRequest *stop;
} RolloutOptions;
/* Opens the rewards and the environment, before the session starts; the options' fields outlive the rollouts.
 * ERROR_USAGE, ERROR_DATA. */
RolloutSampler *rollout_sampler_open(const RolloutOptions *options, Error *error);
/* Opens the engine and the reference beside the started session. ERROR_MEMORY, ERROR_USAGE, ERROR_DATA. */
bool rollout_sampler_start(RolloutSampler *rollouts, Error *error);
void rollout_sampler_close(RolloutSampler *rollouts); /* NULL is fine */
/* Returns the name of reward `index`; NULL after the last. */
const char *rollout_reward_name(const RolloutSampler *rollouts, int index);

/* Makes rollout `index` of the run. Collective; the ranks fail together: ERROR_DATA for rewards. */
bool rollout_make(RolloutSampler *rollouts, int64_t index, Watchdog *watchdog, Rollout *rollout, Error *error);
/* Writes the samples as JSON lines to RUN/rollouts/STEP.jsonl. */
bool rollout_record(const RolloutSampler *rollouts, const Rollout *rollout, int64_t step, Error *error);
/* The mean reward of `judged` of the prompts; the others have no reward. */
typedef struct RolloutJudgment {
    double reward;
    int64_t judged, prompts;
} RolloutJudgment;
/* Judges the likeliest answers to the validation prompts. Collective. */
bool rollout_evaluate(RolloutSampler *rollouts, Watchdog *watchdog, RolloutJudgment *judgment, bool *stopped, Error *error);
