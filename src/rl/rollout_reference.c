/* Scores samples with the reference. Ranks take turns at the microbatches. Owned by the rollouts. */
#include "rl/rollout_reference_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
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

/* Samples that are being scored: sample i has its tokens from starts[i] on in `flat`. */
typedef struct Scoring {
    const Program *program;
    SampleBatch batch;
    const RolloutSample *samples;
    int64_t count, *starts;
    double *flat;
} Scoring;

static void close_scoring(Scoring *scoring) {
    sample_batch_free(&scoring->batch);
    free(scoring->starts);
    free(scoring->flat);
}

static void open_scoring(Scoring *scoring, const PromptSet *prompts) {
    int64_t *starts = memory_allocate((size_t)(scoring->count + 1) * sizeof *starts);
    starts[0] = 0;
    for (int64_t i = 0; i < scoring->count; i++) starts[i + 1] = starts[i] + (int64_t)scoring->samples[i].ids.count;
    scoring->starts = starts;
    scoring->flat = memory_allocate((size_t)int_max(starts[scoring->count], 1) * sizeof *scoring->flat);
    memset(scoring->flat, 0, (size_t)starts[scoring->count] * sizeof *scoring->flat);
    sample_batch_make(&scoring->batch, scoring->program, prompts, scoring->samples, scoring->count, NULL);
}

/* Takes the log-probabilities of the tokens in a microbatch. */
static void take_losses(const Scoring *scoring, int64_t microbatch) {
    const SampleBatch *batch = &scoring->batch;
    const Model *model = &scoring->program->model;
    size_t bytes = precision_bytes(model->graph->precision, TYPE_WIDE);
    SCOPED_FREE void *losses = memory_allocate((size_t)batch->rows * bytes);
    executor_read(scoring->program->executor, model->token_losses, losses);
    for (int64_t i = 0; i < scoring->count; i++) {
        int64_t place = batch->places[i] - microbatch * batch->rows, count = (int64_t)scoring->samples[i].ids.count;
        if (place < 0 || place >= batch->rows) continue;
        for (int64_t t = 0; t < count; t++) scoring->flat[scoring->starts[i] + t] = -element_get(bytes, losses, place + t);
    }
}

/* Scores this rank's microbatches. Ranks that divide the model score the same ones. */
static bool score_own(const Scoring *scoring, const Mesh *mesh, Error *error) {
    const Program *program = scoring->program;
    executor_set_scalar(program->executor, program->model.scale, 1);
    executor_set_scalar(program->executor, program->model.share, 0);
    for (int64_t m = mesh_index(mesh, AXES_DATA); m < scoring->batch.microbatches; m += mesh_size(mesh, AXES_DATA)) {
        executor_zero(program->executor);
        sample_batch_load(&scoring->batch, program->executor, m);
        executor_run(program->executor);
        if (!executor_finish(program->executor, error)) return false;
        if (mesh_index(mesh, AXES_TENSOR) == 0) take_losses(scoring, m);
    }
    return true;
}

bool rollout_reference_score(
    const RolloutReference *reference, const PromptSet *prompts, RolloutSample *samples, int64_t count, Error *error) {
    if (!reference) return true;
    const Program *program = reference->own.model.graph ? &reference->own : &reference->session->evaluation;
    Comm *comm = reference->session->comm;
    SCOPED(close_scoring) Scoring scoring = {.program = program, .samples = samples, .count = count};
    Error ignored = {0};
    open_scoring(&scoring, prompts);
    bool good = score_own(&scoring, reference->session->mesh, error);
    if (!comm_host_all_reduce(comm, "scores", scoring.flat, scoring.starts[count], COMM_F64, COMM_SUM, good ? error : &ignored) || !good)
        return false;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = samples[i].ids.count * sizeof *samples[i].reference;
        samples[i].reference = memcpy(memory_allocate(bytes), scoring.flat + scoring.starts[i], bytes);
    }
    return true;
}
