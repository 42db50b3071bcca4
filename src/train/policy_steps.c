/* Steps of reinforcement learning. A rollout is trained rl.epochs times, in rl.updates steps each; each step
 * trains its share of the groups, in as many microbatches as they fill. The step determines the index of its
 * rollout, and with it the prompts and draws, so a run that continues makes the same rollouts.
 * Checkpoints are written between rollouts only. Owns the rollout and the batch of the step. Called by
 * steps. */
#include <inttypes.h>
#include <math.h>

#include "base/log.h"
#include "base/math.h"
#include "train/loop_internal.h"

bool loop_open_rewards(Loop *loop, Error *error) {
    if (!loop->settings.model.policy.loss || loop->settings.profile) return true;
    const RolloutOptions options = {&loop->settings, &loop->session, &loop->corpus, loop->host->stop};
    loop->rollouts = rollout_sampler_open(&options, error);
    return loop_agree(loop, "rewards", loop->rollouts, error);
}

bool loop_open_rollouts(Loop *loop, Error *error) {
    if (!loop->rollouts) return true;
    int64_t steps = rl_rollout_steps(&loop->settings.rl);
    if (loop->session.step % steps)
        return error_set(error, ERROR_USAGE,
            "rl.updates x rl.epochs = %lld does not divide step %lld, from which the run continues: set both to their earlier values, or "
            "fork from another step",
            (long long)steps, (long long)loop->session.step);
    return loop_agree(loop, "rollouts", rollout_sampler_start(loop->rollouts, error), error);
}

void loop_close_rollouts(Loop *loop) {
    sample_batch_free(&loop->batch);
    rollout_free(&loop->rollout);
    rollout_sampler_close(loop->rollouts);
    loop->rollouts = NULL;
}

bool loop_within_rollout(const Loop *loop) { return loop->rollouts && loop->updates_left > 0; }

/* -- Warnings ------------------------------------------------------------------------------------------------------ */

/* What a run of reinforcement learning is warned of, once for each period in which it is so. */
typedef enum PolicyFault { FAULT_EQUAL, FAULT_CUT, FAULT_UNTRAINED, FAULT_CERTAIN, FAULT_FAILED, POLICY_FAULTS } PolicyFault;

static void warn_of_fault(Loop *loop, PolicyFault fault, bool is, const char *format, double value) {
    enum { PATIENCE = 3 /* rollouts in a row */ };
    int *since = &loop->policy_faults[fault];
    *since = is ? *since + 1 : 0;
    if (*since != PATIENCE || !loop_leads(loop)) return;
    char text[512];
    snprintf(text, sizeof text, format, value);
    log_warn("step %lld: in the last %d rollouts %s", (long long)loop->session.step + 1, PATIENCE, text);
}

static void warn_of_rollout(Loop *loop) {
    const RolloutFacts *facts = &loop->rollout.facts;
    bool compares = policy_compares(&loop->config->model.policy);
    warn_of_fault(loop, FAULT_EQUAL, compares && facts->equal_groups == 1 && facts->failed < 1,
        "all samples of each prompt had the same reward (mean %g), so nothing is learned: use prompts that the model sometimes solves, "
        "more rl.samples, or a finer reward; RUN/rollouts has the samples",
        facts->reward);
    warn_of_fault(loop, FAULT_CUT, facts->cut == 1,
        "rl.tokens cut off every sample (mean length %g): the model does not end its answers; give prompts as messages if it knows a chat "
        "template, or increase rl.tokens",
        facts->length);
    warn_of_fault(loop, FAULT_CERTAIN, facts->surprise < 0.01,
        "the entropy was %g nats per token: samples of a prompt are nearly equal; lower optimizer.lr, or set rl.entropy or rl.kl_coef",
        facts->surprise);
    warn_of_fault(loop, FAULT_FAILED, facts->failed > 0.5, "%g%% of the samples had no reward and were left out", 100 * facts->failed);
}

/* -- Rollouts ------------------------------------------------------------------------------------------------------ */

static bool make_rollout(Loop *loop, Error *error) {
    const RlConfig *rl = &loop->config->rl;
    Error unrecorded = {0};
    rollout_free(&loop->rollout);
    bool made = rollout_make(loop->rollouts, loop->session.step / rl_rollout_steps(rl), loop->watchdog, &loop->rollout, error);
    if (made && loop->rollout.stopped) made = error_set(error, ERROR_DATA, "the rollout was stopped");
    loop->unread = !made && error->code == ERROR_DATA;
    if (!made) return false;
    loop->updates_left = rl_rollout_steps(rl);
    warn_of_rollout(loop);
    if (loop->metrics && rl->record)
        loop_note_record(loop, rollout_record(loop->rollouts, &loop->rollout, loop->session.step + 1, &unrecorded), &unrecorded);
    return true;
}

bool loop_take_samples(Loop *loop, Error *error) {
    const Config *config = loop->config;
    const RlConfig *rl = &config->rl;
    const PolicyRule *rule = policy_rule(&config->model.policy);
    const SampleTerms terms = {.mean = rule->mean, .limit = rl->tokens, .leave_out_cut = rl->mask_truncated};
    if (!loop->updates_left && !make_rollout(loop, error)) return false;
    bool again = loop->updates_left % rl->updates == 0; /* an epoch begins */
    loop->first_update = loop->updates_left == rl_rollout_steps(rl);
    if (again) loop->next_group = 0;
    int64_t groups = divide_up(loop->rollout.groups - loop->next_group, again ? rl->updates : loop->updates_left % rl->updates);
    sample_batch_make(&loop->batch, &loop->session.training, &loop->corpus.prompts, loop->rollout.samples + loop->next_group * rl->samples,
        groups * rl->samples, &terms);
    loop->next_group += groups;
    loop->updates_left--;
    if (loop->updates_left >= rl_rollout_steps(rl) - rl->updates) loop->sample_tokens += loop->batch.all; /* in the first epoch */
    warn_of_fault(loop, FAULT_UNTRAINED, !loop->batch.trained && rl->mask_truncated,
        "no token was trained: every sample was cut off at rl.tokens=%g, or had no reward, and rl.mask_truncated leaves out what is cut "
        "off",
        (double)rl->tokens);
    return true;
}

void loop_describe_policy(const Loop *loop, const double sums[POLICY_SUMS], PolicyMetrics *metrics) {
    const RolloutFacts *facts = &loop->rollout.facts;
    double tokens = fmax(sums[POLICY_TOKENS], 1);
    bool values = loop->config->model.policy.values, in_loss = loop->config->rl.kl == RL_KL_LOSS;
    *metrics = (PolicyMetrics){.samples = facts->samples,
        .reward = facts->reward,
        .deviation = facts->deviation,
        .equal_groups = facts->equal_groups,
        .length = facts->length,
        .cut = facts->cut,
        .failed = facts->failed,
        .turns = facts->turns,
        .rewards = json_object_size(facts->rewards) ? facts->rewards : NULL,
        .entropy = facts->surprise,
        .kl = loop->config->model.policy.kl > 0 ? in_loss ? sums[POLICY_KL] / tokens : facts->kl : NAN,
        .clipped = sums[POLICY_CLIPPED] / tokens,
        .mismatch = sums[POLICY_MISMATCH] / tokens,
        .different = sums[POLICY_DIFFERENT] / tokens,
        .value = facts->value,
        .explained = facts->explained,
        .value_loss = values ? sums[POLICY_VALUE_LOSS] / tokens : NAN,
        .value_clipped = values ? sums[POLICY_VALUE_CLIPPED] / tokens : NAN,
        .first = loop->first_update,
        .drawn = loop->first_update ? facts->tokens : 0,
        .generating = loop->first_update ? facts->generating : 0,
        .judging = loop->first_update ? facts->judging : 0,
        .scoring = loop->first_update ? facts->scoring : 0};
}

bool loop_evaluate_policy(Loop *loop, Evaluation *result, Error *error) {
    double start = log_seconds();
    RolloutJudgment judgment;
    *result = (Evaluation){.bits_per_byte = NAN};
    if (!rollout_evaluate(loop->rollouts, loop->watchdog, &judgment, &result->stopped, error)) return false;
    result->loss = -judgment.reward;
    result->tokens = judgment.judged;
    result->missing = judgment.prompts - judgment.judged;
    result->seconds = log_seconds() - start;
    return true;
}
