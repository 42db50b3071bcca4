/* The loss of a model that makes images, on held-out images and with fixed noise. Owns nothing. Called
 * by `evaluate`. */
#include <math.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "eval/evaluate_internal.h"
#include "images/image_inputs.h"

/* Returns a sample with fixed noise. The midpoints of eight equal parts of time take turns, as in
 * MLPerf's evaluation of FLUX.1; random times would add noise to the loss. */
static ImageSample fixed_sample(const EncodingSet *set, const Config *config, int64_t number) {
    enum { TIMES = 8 };
    return (ImageSample){.set = set,
        .sample = number,
        .key = {.sample = number},
        .time = ((double)(number % TIMES) + 0.5) / TIMES,
        .guidance = config->flow.guidance};
}

/* Accumulates the losses of a batch. */
static bool evaluate_batch(Session *session, const EncodingSet *set, int64_t first, int64_t samples, double *sum, Error *error) {
    const Model *model = &session->evaluation.model;
    Executor *executor = session->evaluation.executor;
    executor_set_scalar(executor, model->scale, 1);
    executor_set_scalar(executor, model->share, 1);
    for (int64_t s = 0; s < model->sequences; s++) {
        ImageSample sample = fixed_sample(set, session->config, first + s);
        if (first + s < samples) image_put_sample(model, executor, s, &sample);
        else image_put_nothing(model, executor, s);
    }
    program_run(&session->evaluation, &(ProgramWork){.microbatches = 1});
    if (!executor_finish(executor, error)) return false;
    *sum += executor_get_metric(executor, model->loss, 0);
    return true;
}

/* Sums over the ranks, in rank order. */
static bool add_up(Comm *comm, double *sum, Error *error) {
    SCOPED_FREE double *sums = memory_allocate((size_t)comm_size(comm) * sizeof *sums);
    sums[comm_rank(comm)] = *sum;
    bool done = comm_host_all_gather(comm, "evaluation", sums, 1, COMM_F64, error);
    *sum = 0;
    for (int r = 0; r < comm_size(comm); r++) *sum += sums[r];
    return done;
}

/* A NaN loss is the model's fault, unless its data have a NaN. All ranks find the same. */
static bool check_validation_images(const Session *session, const EncodingSet *set, int64_t samples, Error *error) {
    char where[256];
    for (int64_t i = 0; i < samples; i++) {
        if (encodings_are_finite(set, i, where, sizeof where)) continue;
        if (session->config->on_nan != ON_NAN_SKIP)
            return error_set(
                error, ERROR_NUMERICS, "the validation data contains NaN or infinity in %s: encode it again, or remove it", where);
        if (comm_rank(session->comm) == 0) log_warn("the validation data contains NaN or infinity in %s", where);
        return true;
    }
    return true;
}

bool evaluate_images(
    Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error) {
    const Config *config = session->config;
    const EncodingSet *set = &corpus->valid_images;
    int64_t sequences = config->batch.sequences, samples = set->samples, stopped = 0;
    if (config->eval.sequences) samples = int_min(samples, config->eval.sequences);
    int64_t batches = divide_up(samples, sequences), size = mesh_size(session->mesh, AXES_DATA);
    double sum = 0, start = log_seconds();
    bool done = true;
    Progress progress = progress_start("evaluating", "batches", batches);
    exchange_finish_weights(session->training.exchange);
    for (int64_t round = 0; round * size < batches && done && !stopped; round++) {
        int64_t batch = round * size + mesh_index(session->mesh, AXES_DATA);
        stopped = stop && stop->signal;
        done = comm_host_all_reduce(session->comm, "go on", &stopped, 1, COMM_I64, COMM_SUM, error);
        if (done && !stopped) done = evaluate_batch(session, set, batch * sequences, samples, &sum, error);
        if (comm_rank(session->comm) == 0) progress_update(&progress, int_min((round + 1) * size, batches));
        if (watchdog) watchdog_alive(watchdog, session->step);
    }
    progress_finish(&progress);
    done = done && add_up(session->comm, &sum, error);
    if (done && !isfinite(sum)) done = check_validation_images(session, set, samples, error);
    *result = (Evaluation){
        .loss = sum / (double)samples, .bits_per_byte = NAN, .tokens = samples, .seconds = log_seconds() - start, .stopped = stopped};
    return done;
}
