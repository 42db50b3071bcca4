/* Loss on the validation part, in order, every sample once. Bits per byte divide all bits, those of separators included, by the bytes alone. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "op/op.h"
#include "train/train.h"

static void set_scalar(const Session *session, TensorId tensor, double value) {
    void *data = executor_tensor(session->evaluator, tensor);
    if (session->config->precision == PRECISION_FP64) *(double *)data = value;
    else *(float *)data = (float)value;
}

static double get_loss(const Session *session) {
    const void *data = executor_tensor(session->evaluator, session->evaluation.loss);
    return session->config->precision == PRECISION_FP64 ? *(const double *)data : *(const float *)data;
}

/* Copies a batch, dropping the samples past the end; counts targets and byte targets. */
static void load_batch(const Session *session, const Batch *batch, int64_t samples, int64_t *targets, int64_t *bytes) {
    const Model *model = &session->evaluation;
    int64_t rows = model->sequences * model->length;
    int32_t *target = executor_tensor(session->evaluator, model->targets);
    memcpy(executor_tensor(session->evaluator, model->tokens), batch->tokens, rows * sizeof(int32_t));
    memcpy(executor_tensor(session->evaluator, model->positions), batch->positions, rows * sizeof(int32_t));
    for (int64_t i = 0; i < rows; i++) {
        bool inside = batch->first_sample + i / model->length < samples;
        target[i] = inside ? batch->targets[i] : -1;
        *targets += target[i] >= 0;
        *bytes += target[i] >= 0 && target[i] != BYTE_SEPARATOR;
    }
}

static Loader *open_valid(const Session *session, const Corpus *corpus, Error *error) {
    const Config *config = session->config;
    LoaderOptions options = {.shard = &corpus->valid, .sequences = config->batch.sequences, .length = config->data.length,
                             .vocabulary = (int32_t)config->model.vocabulary, .separator = corpus->bytes ? BYTE_SEPARATOR : -1,
                             .document_mask = config->data.document_mask};
    Loader *loader = loader_open(&options, 0, error);
    if (loader) return loader;
    if (config->data.valid[0]) error_context(error, "data.valid=%s", config->data.valid);
    else error_context(error, "the validation part, data.valid_fraction=%g of data.train=%s (0: no evaluation)", config->data.valid_fraction, config->data.train);
    return NULL;
}

bool evaluate_check(const Session *session, const Corpus *corpus, Error *error) {
    if (!corpus->has_valid) return true;
    Loader *loader = open_valid(session, corpus, error);
    bool usable = loader != NULL;
    loader_close(loader);
    return usable;
}

bool evaluate(Session *session, const Corpus *corpus, Evaluation *result, Error *error) {
    const Config *config = session->config;
    const Model *model = &session->evaluation;
    Loader *loader = open_valid(session, corpus, error);
    if (!loader) return false;
    int64_t samples = loader_samples(loader), batches = (samples + model->sequences - 1) / model->sequences;
    if (config->eval_batches && batches > config->eval_batches) batches = config->eval_batches;
    int64_t targets = 0, bytes = 0;
    double sum = 0, start = log_seconds();
    set_scalar(session, model->scale, 1);
    set_scalar(session, model->share, 1);
    Progress progress = progress_start("evaluating", "batches", batches);
    for (int64_t i = 0; i < batches; i++) {
        load_batch(session, loader_next(loader), samples, &targets, &bytes);
        executor_zero(session->evaluator);
        executor_run(session->evaluator);
        sum += get_loss(session);
        progress_update(&progress, i + 1);
    }
    progress_finish(&progress);
    loader_close(loader);
    *result = (Evaluation){.loss = sum / targets, .bits_per_byte = corpus->bytes ? sum / M_LN2 / bytes : NAN, .tokens = targets,
                           .seconds = log_seconds() - start};
    return true;
}
