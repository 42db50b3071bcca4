/* Advantages of a rollout: per sample, from the rewards of its group or of the rollout; or per token, from a teacher or a
 * value head. All ranks compute the same advantages from all samples. Called by the rollouts.
 *
 * With a value head a sample is an episode whose steps are its drawn tokens. Tokens that an
 * environment appends belong to the state: the step after the last token of a turn is the first token of the next turn.
 * The last token gets the reward. With rl.kl=reward each token's divergence is subtracted from its reward. An episode ends where rl.tokens
 * cuts it off, because its reward judges the cut sample: no value is bootstrapped. */
#include "rl/rollout_advantages_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "rl/advantage_internal.h"
#include "rl/rollout_score_internal.h"

bool rollout_estimate_values(const RolloutOptions *options, Rollout *rollout, Error *error) {
    const Session *session = options->session;
    const SampleScoring scoring = {session, &session->scoring, &options->corpus->prompts};
    if (!options->config->model.policy.values) return true;
    SCOPED_FREE double **scores = memory_allocate((size_t)int_max(rollout->count, 1) * sizeof *scores);
    if (!rollout_score(&scoring, SCORE_VALUE, rollout->samples, rollout->count, scores, error)) return false;
    for (int64_t i = 0; i < rollout->count; i++) rollout->samples[i].estimates = scores[i];
    return true;
}

/* Returns the divergence to the reference that is subtracted from the reward of a token. */
static double token_penalty(const Config *config, const RolloutSample *sample, size_t t) {
    bool penalized = sample->reference && config->rl.kl == RL_KL_REWARD && sample_drew(sample, t);
    return penalized ? config->model.policy.kl * (sample->old[t] - sample->reference[t]) : 0;
}

double rollout_judged(const RlConfig *rl, const RolloutSample *sample) {
    return sample->reward - policy_overlong_penalty((int64_t)sample->ids.count, rl->tokens, rl->overlong);
}

static double *new_tokens(const RolloutSample *sample) {
    size_t bytes = (sample->ids.count + 1) * sizeof(double);
    return memset(memory_allocate(bytes), 0, bytes);
}

/* -- Samples ------------------------------------------------------------------------------------------------------- */

static void compare_samples(const Config *config, Rollout *rollout) {
    SCOPED_FREE double *rewards = memory_allocate((size_t)int_max(rollout->count, 1) * sizeof *rewards);
    SCOPED_FREE double *advantages = memory_allocate((size_t)int_max(rollout->count, 1) * sizeof *advantages);
    for (int64_t i = 0; i < rollout->count; i++) {
        const RolloutSample *sample = &rollout->samples[i];
        rewards[i] = rollout_judged(&config->rl, sample);
        for (size_t t = 0; t < sample->ids.count; t++) rewards[i] -= token_penalty(config, sample, t);
    }
    policy_advantages(policy_rule(&config->model.policy)->advantage, rewards, rollout->groups, config->rl.samples, advantages);
    for (int64_t i = 0; i < rollout->count; i++) rollout->samples[i].advantage = advantages[i];
}

/* -- Tokens -------------------------------------------------------------------------------------------------------- */

static void follow_teacher(RolloutSample *sample) {
    sample->advantages = new_tokens(sample);
    for (size_t t = 0; t < sample->ids.count; t++)
        if (sample_drew(sample, t)) sample->advantages[t] = sample->reference[t] - sample->old[t];
}

/* Sets advantages and returns of a sample. Both are 0 if it has no reward. */
static void follow_values(const Config *config, RolloutSample *sample) {
    const Discounts discounts = {config->rl.gamma, config->rl.lambda};
    SCOPED_FREE double *rewards = new_tokens(sample), *values = new_tokens(sample), *advantages = new_tokens(sample);
    int64_t steps = 0;
    sample->advantages = new_tokens(sample);
    sample->returns = new_tokens(sample);
    for (size_t t = 0; t < sample->ids.count; t++) {
        if (!sample_drew(sample, t)) continue;
        rewards[steps] = -token_penalty(config, sample, t);
        values[steps++] = sample->estimates[t];
    }
    if (isnan(sample->reward) || !steps) return;
    rewards[steps - 1] += rollout_judged(&config->rl, sample);
    policy_estimate(discounts, rewards, values, steps, advantages);
    for (size_t t = 0, step = 0; t < sample->ids.count; t++) {
        if (!sample_drew(sample, t)) continue;
        sample->advantages[t] = advantages[step++];
        sample->returns[t] = sample->advantages[t] + sample->estimates[t];
    }
}

/* Visits each trained token. */
#define EACH_TRAINED(config, rollout, sample, t) \
    for (RolloutSample *sample = (rollout)->samples; sample < (rollout)->samples + (rollout)->count; sample++) \
        for (size_t t = 0; t < sample->ids.count; t++) \
            if (sample_trains(sample, (config)->rl.mask_truncated) && sample_drew(sample, t))

static int64_t trained_tokens(const Config *config, const Rollout *rollout) {
    int64_t count = 0;
    EACH_TRAINED(config, rollout, sample, t) count++;
    return count;
}

static void whiten_advantages(const Config *config, Rollout *rollout) {
    int64_t count = trained_tokens(config, rollout), at = 0;
    SCOPED_FREE double *all = memory_allocate((size_t)int_max(count, 1) * sizeof *all);
    EACH_TRAINED(config, rollout, sample, t) all[at++] = sample->advantages[t];
    policy_whiten(all, count);
    at = 0;
    EACH_TRAINED(config, rollout, sample, t) sample->advantages[t] = all[at++];
}

/* Sets the divergence from the reference, as rl.kl=reward subtracts it. */
static void describe_divergence(const Config *config, Rollout *rollout) {
    double sum = 0, count = 0;
    EACH_TRAINED(config, rollout, sample, t) if (sample->reference) sum += sample->old[t] - sample->reference[t], count++;
    rollout->facts.kl = count > 0 ? sum / count : NAN;
}

/* Sets the mean value, and the share of the returns' variance that the values explain. */
static void describe_values(const Config *config, Rollout *rollout) {
    double count = (double)trained_tokens(config, rollout), value = 0, target = 0, error = 0, spread = 0, errors = 0;
    EACH_TRAINED(config, rollout, sample, t) {
        value += sample->estimates[t] / count;
        target += sample->returns[t] / count;
        error += (sample->returns[t] - sample->estimates[t]) / count;
    }
    EACH_TRAINED(config, rollout, sample, t) {
        double off = sample->returns[t] - target, wrong = sample->returns[t] - sample->estimates[t] - error;
        spread += off * off;
        errors += wrong * wrong;
    }
    rollout->facts.value = count > 0 ? value : NAN;
    rollout->facts.explained = spread > 0 ? 1 - errors / spread : NAN;
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Returns whether all advantages of a sample are finite. */
static bool has_finite_advantages(const RolloutSample *sample) {
    for (size_t t = 0; sample->advantages && t < sample->ids.count; t++)
        if (!isfinite(sample->advantages[t])) return false;
    return isfinite(sample->advantage);
}

bool rollout_set_advantages(const RolloutOptions *options, Rollout *rollout, Error *error) {
    const Config *config = options->config;
    PolicyAdvantage kind = policy_rule(&config->model.policy)->advantage;
    if (policy_compares(&config->model.policy)) compare_samples(config, rollout);
    for (int64_t i = 0; i < rollout->count && kind == ADVANTAGE_TEACHER; i++) follow_teacher(&rollout->samples[i]);
    for (int64_t i = 0; i < rollout->count && kind == ADVANTAGE_OF_VALUES; i++) follow_values(config, &rollout->samples[i]);
    describe_divergence(config, rollout);
    if (kind == ADVANTAGE_OF_VALUES) describe_values(config, rollout);
    if (kind == ADVANTAGE_OF_VALUES && config->rl.whiten) whiten_advantages(config, rollout);
    for (int64_t i = 0; i < rollout->count; i++)
        if (!has_finite_advantages(&rollout->samples[i]))
            return error_set(error, ERROR_NUMERICS,
                "an advantage of a sample with reward %g is not finite, because rewards or the values of its tokens are too large: make "
                "rewards smaller",
                rollout->samples[i].reward);
    return true;
}
