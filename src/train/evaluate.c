/* Loss on token shards, in order, every sample once. Bits per byte divide all bits, those of separators included,
 * by the bytes of text that the targets stand for, which are those of the text unless the tokenizer normalises it.
 * Owns nothing after it returns. Called by the training loop and `smelt eval`. */
#include <math.h>
#include <string.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "train/train.h"

/* The bytes of text that a token stands for inside a text; one that ends a document has none. */
static uint32_t text_bytes(const Tokenizer *tokenizer, int32_t token) {
    if (!tokenizer) return token < BYTE_SEPARATOR;
    if (token == tokenizer_end_of_text(tokenizer)) return 0;
    TokenizerDecoder decoder = tokenizer_decoder(tokenizer, false);
    size_t length;
    decoder.started = true;
    decoder.strip = 0;
    tokenizer_decode(&decoder, token, &length);
    return (uint32_t)length;
}

/* Bytes by token, for the caller to free; NULL when the tokenizer is unknown. */
static uint32_t *list_text_bytes(const EvaluationInput *input) {
    if (!input->tokenizer && !input->bytes) return NULL;
    uint32_t *list = memory_allocate((size_t)input->vocabulary * sizeof *list);
    for (int64_t token = 0; token < input->vocabulary; token++) list[token] = text_bytes(input->tokenizer, (int32_t)token);
    return list;
}

/* Integers only, as one collective has one type. */
typedef struct Counts { int64_t targets, bytes; } Counts;

/* Copies this rank's rows of a batch, dropping the samples from number `samples` on; counts targets of all rows and, with
 * `text`, the bytes that they stand for. NULL: a batch without targets. */
static void load_batch(const EvaluationInput *input, const Batch *batch, int64_t samples, const uint32_t *text, Counts *counts) {
    const Model *model = input->model;
    int64_t rows = model->sequences * model->length;
    if (!batch) {
        memset(executor_tensor(input->executor, model->targets), -1, model->rows * sizeof(int32_t));
        return;
    }
    SCOPED_FREE int32_t *target = memory_allocate((size_t)rows * sizeof *target);
    for (int64_t i = 0; i < rows; i++) {
        bool inside = batch->first_sample + i / model->length < samples;
        target[i] = inside ? batch->targets[i] : -1;
        counts->targets += target[i] >= 0;
        if (text && target[i] >= 0) counts->bytes += text[target[i]];
    }
    model_take_rows(model, executor_tensor(input->executor, model->tokens), batch->tokens);
    model_take_rows(model, executor_tensor(input->executor, model->targets), target);
    model_take_rows(model, executor_tensor(input->executor, model->positions), batch->positions);
}

/* The ranks that the model is for. */
static const Mesh *mesh_of(const EvaluationInput *input) { return input->model->graph ? input->model->graph->mesh : &mesh_alone; }

/* The data in order, of which groups of ranks take batches in turn: `next` is this rank's. */
typedef struct Reading {
    Order *order;
    LoaderSource source;
    Loader *loader;
    int64_t next;
    int size;
} Reading;

static int64_t pick(void *context) {
    Reading *reading = context;
    int64_t batch = reading->next;
    reading->next += reading->size;
    return batch;
}

static void close_reading(Reading *reading) {
    loader_close(reading->loader);
    order_free(reading->order);
}

/* Adds over the ranks, in rank order. */
static bool sum_up(Comm *comm, double *sum, Counts *counts, Error *error) {
    SCOPED_FREE double *sums = memory_allocate((size_t)comm_size(comm) * sizeof *sums);
    sums[comm_rank(comm)] = *sum;
    bool done = comm_host_all_gather(comm, "evaluation", sums, 1, COMM_F64, error) &&
                comm_host_all_reduce(comm, "evaluation", counts, sizeof *counts / sizeof(int64_t), COMM_I64, COMM_SUM, error);
    *sum = 0;
    for (int r = 0; r < comm_size(comm); r++) *sum += sums[r];
    return done;
}

/* The caller closes it in any case; it must not move meanwhile. */
static bool open_reading(Reading *reading, const EvaluationInput *input, Error *error) {
    const ShardSet *set = input->set;
    *reading = (Reading){.order = order_of_one(0, false, set->path, set->token_count - 1, input->model->length, error),
        .source = {.set = set},
        .next = mesh_index(mesh_of(input), AXES_DATA),
        .size = mesh_size(mesh_of(input), AXES_DATA)};
    LoaderOptions options = {.order = reading->order,
        .sources = &reading->source,
        .sequences = input->model->sequences,
        .vocabulary = (int32_t)input->vocabulary,
        .separator = input->bytes ? BYTE_SEPARATOR : -1,
        .document_mask = input->document_mask,
        .pick = pick,
        .pick_context = reading,
        .stop = input->stop};
    reading->loader = reading->order ? loader_open(&options, 0, error) : NULL;
    return reading->loader;
}

/* Sets *stop on all ranks when a request to stop was made on any, which may be why one did not get its batch. False on
 * all when one could not read it otherwise; the reason is `unread`. */
static bool agree_to_go_on(const EvaluationInput *input, const Error *unread, bool *stop, Error *error) {
    int64_t votes[2] = {input->stop && input->stop->signal, unread->code != ERROR_NONE};
    bool done = comm_host_all_reduce(input->comm, "go on", votes, 2, COMM_I64, COMM_SUM, error);
    *stop = votes[0];
    return done && (*stop || !votes[1] || corpus_refuse_unread(unread, votes[1], input->comm, error));
}

bool evaluate_set(const EvaluationInput *input, Evaluation *result, Error *error) {
    const Model *model = input->model;
    SCOPED(close_reading) Reading reading;
    if (!open_reading(&reading, input, error)) return false;
    int index = mesh_index(mesh_of(input), AXES_DATA), size = mesh_size(mesh_of(input), AXES_DATA);
    bool counted = mesh_index(mesh_of(input), AXES_ALL & ~AXES_DATA) == 0; /* other ranks read the same batches */
    int64_t samples = order_sequences(input->set->token_count, model->length);
    if (input->sequences && samples > input->sequences) samples = input->sequences;
    int64_t batches = divide_up(samples, model->sequences);
    Counts counts = {0};
    SCOPED_FREE uint32_t *text = list_text_bytes(input);
    double sum = 0, start = log_seconds();
    executor_set_scalar(input->executor, model->scale, 1);
    executor_set_scalar(input->executor, model->share, 1);
    Progress progress = progress_start("evaluating", "batches", batches);
    bool done = true, stop = false;
    for (int64_t i = index; i - index < batches; i += size) {
        Error unread = {0};
        const Batch *batch = i < batches ? loader_next(reading.loader, &unread) : NULL;
        if (!(done = agree_to_go_on(input, &unread, &stop, error)) || stop) break;
        load_batch(input, batch, samples, text, &counts);
        executor_zero(input->executor);
        executor_run(input->executor);
        if (!(done = executor_finish(input->executor, error))) break;
        sum += executor_get_metric(input->executor, model->loss, 0);
        if (comm_rank(input->comm) == 0) progress_update(&progress, i + 1);
        if (input->watchdog) watchdog_alive(input->watchdog, input->step);
    }
    progress_finish(&progress);
    if (!counted) counts = (Counts){0};
    done = done && sum_up(input->comm, &sum, &counts, error);
    *result = (Evaluation){.loss = sum / counts.targets,
        .bits_per_byte = counts.bytes ? sum / M_LN2 / counts.bytes : NAN,
        .tokens = counts.targets,
        .seconds = log_seconds() - start,
        .stopped = stop};
    return done;
}

/* -- Of a session -------------------------------------------------------------------------------------------------- */

static EvaluationInput input_of(const Config *config, const Corpus *corpus, const Model *model) {
    return (EvaluationInput){.model = model,
        .set = &corpus->valid,
        .vocabulary = config->model.vocabulary,
        .sequences = config->eval.sequences,
        .comm = comm_alone(),
        .bytes = corpus->bytes,
        .tokenizer = corpus->tokenizer,
        .document_mask = config->data.document_mask};
}

static bool name_source(const Config *config, Error *error) {
    if (config->data.valid[0]) return error_context(error, "data.valid=%s", config->data.valid);
    return error_context(error, "the validation part, data.valid_fraction=%g of data.train=%s (0: no evaluation)",
        config->data.valid_fraction, config->data.train);
}

bool evaluate_check(const Config *config, const Corpus *corpus, Error *error) {
    if (!corpus->has_valid && (config->eval.patience || config->checkpoint.keep_best))
        return error_set(error, ERROR_USAGE, "%s compares validation losses, and there is no validation part: give data.valid",
            config->eval.patience ? "eval.patience" : "checkpoint.keep_best=true");
    if (!corpus->has_valid) return true;
    const Model shape = {.sequences = config->batch.sequences, .length = config->data.length};
    EvaluationInput input = input_of(config, corpus, &shape);
    SCOPED(close_reading) Reading reading;
    return open_reading(&reading, &input, error) || name_source(config, error);
}

bool evaluate(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error) {
    EvaluationInput input = input_of(session->config, corpus, &session->evaluation);
    input.executor = session->evaluator;
    input.comm = session->comm;
    input.watchdog = watchdog;
    input.stop = stop;
    input.step = session->step;
    exchange_finish_weights(session->exchange);
    return evaluate_set(&input, result, error) || name_source(session->config, error);
}
