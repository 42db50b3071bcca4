/* Scores samples in microbatches, which the ranks divide. Owns the batch. Called by the reference and by advantages. */
#include "rl/rollout_score_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

/* Samples that are being scored: sample i has its tokens from starts[i] on in `flat`. */
typedef struct Scoring {
    const Program *program;
    SampleScore score;
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

/* Stores the scores of the drawn tokens of a microbatch. */
static void take_scores(const Scoring *scoring, int64_t microbatch) {
    const SampleBatch *batch = &scoring->batch;
    const Model *model = &scoring->program->model;
    bool values = scoring->score == SCORE_VALUE;
    size_t bytes = precision_bytes(model->graph->precision, TYPE_WIDE);
    SCOPED_FREE void *rows = memory_allocate((size_t)batch->rows * bytes);
    executor_read(scoring->program->executor, values ? model->policy.values : model->token_losses, rows);
    for (int64_t i = 0; i < scoring->count; i++) {
        const RolloutSample *sample = &scoring->samples[i];
        int64_t place = batch->places[i] - microbatch * batch->rows;
        if (place < 0 || place >= batch->rows) continue;
        for (int64_t t = 0; t < (int64_t)sample->ids.count; t++)
            if (sample_drew(sample, (size_t)t))
                scoring->flat[scoring->starts[i] + t] = values ? element_get(bytes, rows, place + t) : -element_get(bytes, rows, place + t);
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
        if (mesh_index(mesh, AXES_TENSOR) == 0) take_scores(scoring, m);
    }
    return true;
}

bool rollout_score(const SampleScoring *of, SampleScore score, const RolloutSample *samples, int64_t count, double **scores, Error *error) {
    SCOPED(close_scoring) Scoring scoring = {.program = of->program, .score = score, .samples = samples, .count = count};
    Error ignored = {0};
    open_scoring(&scoring, of->prompts);
    bool good = score_own(&scoring, of->session->mesh, error);
    if (!comm_host_all_reduce(
            of->session->comm, "scores", scoring.flat, scoring.starts[count], COMM_F64, COMM_SUM, good ? error : &ignored) ||
        !good)
        return false;
    for (int64_t i = 0; i < count; i++) {
        size_t bytes = samples[i].ids.count * sizeof **scores;
        scores[i] = memcpy(memory_allocate(bytes), scoring.flat + scoring.starts[i], bytes);
    }
    return true;
}
