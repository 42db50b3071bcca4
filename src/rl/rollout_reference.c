/* Opens the reference, and scores samples with it. Owned by the rollouts. */
#include "rl/rollout_reference_internal.h"

#include <stdlib.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "rl/rollout_score_internal.h"
#include "run/source.h"
#include "session/weights.h"

struct RolloutReference {
    Session *session;      /* whose evaluation program is the base */
    Program own;           /* of another model; no graph: the base of the session */
    OptionStrings strings; /* of its settings */
};

static bool load_own(RolloutReference *reference, const RolloutOptions *options, Error *error) {
    const Config *config = options->config;
    const char *folder = config->rl.reference[0] ? config->rl.reference : config->init;
    Config origin;
    if (!source_read_config(folder, &origin, &reference->strings, error)) return false;
    if (origin.model.vocabulary != config->model.vocabulary)
        return error_set(error, ERROR_USAGE, "%s has %lld tokens, and the run's model has %lld: use a model with the same tokenizer",
            folder, (long long)origin.model.vocabulary, (long long)config->model.vocabulary);
    ModelConfig model = origin.model;
    model.context = int_max(model.context, config->model.context);
    model.policy = config->model.policy;
    model.policy.values = false;
    model.logit_divisor *= config->rl.temperature;
    reference->own.model =
        model_build(&model, (Precision)config->precision, MODEL_EVALUATE, config->batch.sequences, config->data.length, RECOMPUTE_NONE);
    return program_plan(&reference->own, options->session->device, error) && program_start(&reference->own, NULL, error) &&
           weights_load_program(folder, &origin, reference->own.executor, error);
}

bool rollout_reference_open(const RolloutOptions *options, RolloutReference **reference, Error *error) {
    const Config *config = options->config;
    bool teaches = policy_rule(&config->model.policy)->advantage == ADVANTAGE_TEACHER;
    *reference = NULL;
    if (config->model.policy.kl <= 0 && !teaches) return true;
    *reference = memory_allocate(sizeof **reference);
    **reference = (RolloutReference){.session = options->session};
    if (config->lora.rank && !config->rl.reference[0]) return true;
    return load_own(*reference, options, error) ||
           error_context(error, config->rl.reference[0] ? "rl.reference=%s" : "the reference, init=%s",
               config->rl.reference[0] ? config->rl.reference : config->init);
}

void rollout_reference_close(RolloutReference *reference) {
    if (!reference) return;
    program_free(&reference->own);
    options_free_strings(&reference->strings);
    free(reference);
}

bool rollout_reference_score(
    const RolloutReference *reference, const PromptSet *prompts, RolloutSample *samples, int64_t count, Error *error) {
    if (!reference) return true;
    const SampleScoring scoring = {
        reference->session, reference->own.model.graph ? &reference->own : &reference->session->evaluation, prompts};
    SCOPED_FREE double **scores = memory_allocate((size_t)int_max(count, 1) * sizeof *scores);
    if (!rollout_score(&scoring, SCORE_LOG_PROBABILITY, samples, count, scores, error)) return false;
    for (int64_t i = 0; i < count; i++) samples[i].reference = scores[i];
    return true;
}
