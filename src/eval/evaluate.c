/* The loss on token shards, in order, every sample once. Bits per byte are all bits, including the
 * bits of separators, over the bytes of text of the targets. These equal the bytes of the text
 * unless the tokenizer normalizes it. Owns nothing after it returns. Called by the training loop
 * and `smelt eval`. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/element.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "eval/evaluate_internal.h"
#include "eval/pairs.h"

/* Returns the bytes of text that a token represents inside a text. Special tokens have none: their
 * spelling is not part of the text, and a chat template adds many of them. */
static uint32_t text_bytes(const Tokenizer *tokenizer, int32_t token) {
    if (!tokenizer) return token < BYTE_SEPARATOR;
    if (token == tokenizer_end_of_text(tokenizer)) return 0;
    TokenizerDecoder decoder = tokenizer_decoder(tokenizer, true);
    size_t length;
    decoder.started = true;
    decoder.strip = 0;
    tokenizer_decode(&decoder, token, &length);
    return (uint32_t)length;
}

/* Returns the bytes by token, for the caller to free; NULL if the tokenizer is unknown. */
static uint32_t *list_text_bytes(const EvaluationInput *input) {
    if (!input->tokenizer && !input->bytes) return NULL;
    uint32_t *list = memory_allocate((size_t)input->vocabulary * sizeof *list);
    for (int64_t token = 0; token < input->vocabulary; token++) list[token] = text_bytes(input->tokenizer, (int32_t)token);
    return list;
}

/* Only integers, because a collective has one type. */
typedef struct Counts { int64_t targets, bytes, pairs; } Counts;

/* The sums over all runs. */
enum { SUM_REWARDS = 1, SUM_COUNT = SUM_REWARDS + REWARD_COUNT };
typedef struct LossSums { double loss, rewards[REWARD_COUNT]; } LossSums;
static_assert(sizeof(LossSums) == SUM_COUNT * sizeof(double), "ranks exchange it as numbers");

/* Batches that run together: one, or in a pipeline enough to keep its stages busy. */
typedef struct Group {
    const EvaluationInput *input;
    int64_t size;
    StepInputs inputs; /* rows of all sequences */
    int64_t pairs;     /* of the last batch, without pairs of dropped samples */
} Group;

static const Model *model_of(const EvaluationInput *input) { return &input->program->model; }
static int64_t batch_rows(const Model *model) { return model->sequences * model->length; }

static Group allocate_group(const EvaluationInput *input) {
    enum { EACH = 4 };                                              /* then the bubble takes a fifth */
    bool together = input->program->stages && !input->take_answers; /* each run's answers are read before the next run */
    int64_t size = together ? EACH * model_of(input)->graph->mesh->size[AXIS_PP] : 1, rows = size * batch_rows(model_of(input));
    int32_t *block = memory_allocate((size_t)rows * 3 * sizeof *block);
    Group group = {.input = input, .size = size, .inputs = {.tokens = block, .targets = block + rows, .positions = block + 2 * rows}};
    pairs_allocate(&group.inputs, model_of(input), size);
    return group;
}

static void free_group(Group *group) {
    free(group->inputs.tokens);
    pairs_free(&group->inputs);
}

/* Returns whether an earlier sequence has the target of row `row` of a sample. */
static bool is_counted_before(const EvaluationInput *input, int64_t sample, int64_t row) {
    return input->stride && sample > 0 && row < model_of(input)->length - input->stride;
}

/* Copies a batch to position `index` of the group, dropping the samples from number `samples` on;
 * counts targets and, with `text`, their bytes. NULL: a batch without targets. */
static void take_batch(Group *group, int64_t index, const Batch *batch, int64_t samples, const uint32_t *text, Counts *counts) {
    int64_t rows = batch_rows(model_of(group->input)), at = index * rows;
    int32_t *target = group->inputs.targets + at;
    int64_t known = batch ? (samples - batch->first_sample) * model_of(group->input)->length : 0;
    memset(target, -1, rows * sizeof *target);
    group->pairs = pairs_take(&group->inputs, model_of(group->input), index, batch, known, group->input->reference);
    counts->pairs += group->pairs;
    if (!batch) return;
    memcpy(group->inputs.tokens + at, batch->tokens, rows * sizeof(int32_t));
    memcpy(group->inputs.positions + at, batch->positions, rows * sizeof(int32_t));
    for (int64_t i = 0; i < rows; i++) {
        int64_t length = model_of(group->input)->length, sample = batch->first_sample + i / length;
        if (sample < samples && !is_counted_before(group->input, sample, i % length)) target[i] = batch->targets[i];
        counts->targets += target[i] >= 0;
        if (text && target[i] >= 0) counts->bytes += text[target[i]];
    }
}

/* Copies this rank's rows of a batch of the group to the program. */
static void load_group(void *context, int64_t index) {
    const Group *group = context;
    const Program *program = group->input->program;
    const Model *model = &program->model;
    Executor *executor = program->executor;
    int64_t at = index * batch_rows(model);
    executor_set_scalar(executor, model->scale, 1);
    executor_set_scalar(executor, model->share, 1);
    model_take_rows(model, executor_tensor(executor, model->tokens), group->inputs.tokens + at);
    model_take_rows(model, executor_tensor(executor, model->targets), group->inputs.targets + at);
    model_take_rows(model, executor_tensor(executor, model->positions), group->inputs.positions + at);
    pairs_load(&group->inputs, program, index);
}

/* Runs the group and accumulates its losses. */
static bool run_group(Group *group, LossSums *sums, Error *error) {
    const Program *program = group->input->program;
    program_run(program, &(ProgramWork){.microbatches = group->size, .load = load_group, .context = group});
    if (!executor_finish(program->executor, error)) return false;
    sums->loss += executor_get_metric(program->executor, program->model.loss, 0);
    pairs_add_rewards(program, sums->rewards);
    return true;
}

/* Reports the log-probabilities of this batch's pairs from the last run. */
static void give_answers(const Group *group, const Batch *batch) {
    const EvaluationInput *input = group->input;
    const Graph *graph = model_of(input)->graph;
    TensorId answers = model_of(input)->answers;
    if (!batch || !input->take_answers || !answers) return;
    size_t bytes = precision_bytes(graph->precision, TYPE_WIDE);
    SCOPED_FREE void *values = memory_allocate((size_t)graph_bytes(graph, answers));
    executor_read(input->program->executor, answers, values);
    for (int64_t i = 0; i < group->pairs; i++)
        input->take_answers(
            input->take_context, batch->pairs[i].token, element_get(bytes, values, 2 * i), element_get(bytes, values, 2 * i + 1));
}

/* Returns the mesh of the model. */
static const Mesh *evaluation_mesh(const EvaluationInput *input) {
    return model_of(input)->graph ? model_of(input)->graph->mesh : &mesh_alone;
}

/* The data in order; groups of ranks take batches in turn, and `next` is this rank's next one. */
typedef struct SetReading {
    Order *order;
    LoaderSource source;
    Loader *loader;
    BinPlan windows; /* overlapping sequences; owned */
    int64_t next;
    int size;
} SetReading;

static int64_t pick(void *context) {
    SetReading *reading = context;
    int64_t batch = reading->next;
    reading->next += reading->size;
    return batch;
}

static void close_reading(SetReading *reading) {
    loader_close(reading->loader);
    order_free(reading->order);
    free((BinPart *)reading->windows.parts);
    free((int64_t *)reading->windows.first_part);
}

/* Sums over the ranks, in rank order. */
static bool sum_up(Comm *comm, LossSums *sums, Counts *counts, Error *error) {
    SCOPED_FREE LossSums *all = memory_allocate((size_t)comm_size(comm) * sizeof *all);
    all[comm_rank(comm)] = *sums;
    bool done = comm_host_all_gather(comm, "evaluation", all, SUM_COUNT, COMM_F64, error) &&
                comm_host_all_reduce(comm, "evaluation", counts, sizeof *counts / sizeof(int64_t), COMM_I64, COMM_SUM, error);
    *sums = (LossSums){0};
    for (int r = 0; r < comm_size(comm); r++) {
        sums->loss += all[r].loss;
        for (int i = 0; i < REWARD_COUNT; i++) sums->rewards[i] += all[r].rewards[i];
    }
    return done;
}

static const BinPlan *bins_of(const EvaluationInput *input, const SetReading *reading) {
    return input->stride ? &reading->windows : input->bins;
}

/* Returns the tokens of the data that can be inputs: its stream, or its bins with their padding. */
static int64_t input_tokens(const EvaluationInput *input, const SetReading *reading) {
    const BinPlan *bins = bins_of(input, reading);
    return bins ? bins->bins * bins->length : input->set->token_count - 1;
}

/* Returns sequences that begin every `stride` tokens; the last one has the end of the stream. */
static BinPlan plan_windows(const EvaluationInput *input) {
    int64_t length = model_of(input)->length, inputs = input->set->token_count - 1, more = int_max(inputs - length, 0);
    BinPlan plan = {.length = length, .bins = 1 + divide_up(more, input->stride)};
    BinPart *parts = memory_allocate((size_t)plan.bins * sizeof *parts);
    int64_t *first_part = memory_allocate((size_t)(plan.bins + 1) * sizeof *first_part);
    for (int64_t i = 0; i < plan.bins; i++) {
        int64_t start = i * input->stride;
        parts[i] = (BinPart){start, int_min(length, inputs - start)};
        plan.inputs += parts[i].count;
        first_part[i + 1] = i + 1;
    }
    plan.part_count = plan.bins;
    plan.parts = parts;
    plan.first_part = first_part;
    return plan;
}

/* The caller always closes it; it must not move meanwhile. */
static bool open_reading(SetReading *reading, const EvaluationInput *input, Error *error) {
    const ShardSet *set = input->set;
    assert(!input->stride || (!input->bins && input->stride <= model_of(input)->length));
    *reading = (SetReading){.next = mesh_index(evaluation_mesh(input), AXES_DATA), .size = mesh_size(evaluation_mesh(input), AXES_DATA)};
    if (input->stride) reading->windows = plan_windows(input);
    reading->source = (LoaderSource){.set = set, .bins = bins_of(input, reading)};
    reading->order = order_of_one(0, false, set->path, input_tokens(input, reading), model_of(input)->length, error);
    LoaderOptions options = {.order = reading->order,
        .sources = &reading->source,
        .sequences = model_of(input)->sequences,
        .vocabulary = (int32_t)input->vocabulary,
        .separator = input->bytes ? BYTE_SEPARATOR : -1,
        .document_mask = input->document_mask,
        .pick = pick,
        .pick_context = reading,
        .stop = input->stop};
    reading->loader = reading->order ? loader_open(&options, 0, error) : NULL;
    return reading->loader;
}

/* Sets *stop on all ranks if a stop was requested on any rank, which may be why a rank lacks its
 * batch. Returns false on all ranks if a rank could not read its batch for another reason; the
 * reason is `unread`. */
static bool agree_to_go_on(const EvaluationInput *input, const Error *unread, bool *stop, Error *error) {
    int64_t votes[2] = {input->stop && input->stop->signal, unread->code != ERROR_NONE};
    bool done = comm_host_all_reduce(input->comm, "go on", votes, 2, COMM_I64, COMM_SUM, error);
    *stop = votes[0];
    return done && (*stop || !votes[1] || corpus_refuse_unread(unread, votes[1], input->comm, error));
}

/* Returns how many of the first sequences are evaluated. */
static int64_t count_evaluated(const EvaluationInput *input, const SetReading *reading) {
    int64_t samples = order_sequences(input_tokens(input, reading) + 1, model_of(input)->length);
    return input->sequences && samples > input->sequences ? input->sequences : samples;
}

/* Refuses an evaluation without trained tokens: prompts may be longer than all evaluated
 * sequences. The model is not at fault, and a mean over no tokens is not a loss. */
static bool refuse_untrained(int64_t samples, Error *error) {
    return error_set(error, ERROR_DATA, "the evaluated sequences (the first %lld) contain no trained token: evaluate more sequences",
        (long long)samples);
}

bool evaluate_set(const EvaluationInput *input, Evaluation *result, Error *error) {
    const Model *model = model_of(input);
    SCOPED(close_reading) SetReading reading;
    if (!open_reading(&reading, input, error)) return false;
    int index = mesh_index(evaluation_mesh(input), AXES_DATA), size = mesh_size(evaluation_mesh(input), AXES_DATA);
    bool counted = mesh_index(evaluation_mesh(input), AXES_ALL & ~AXES_DATA) == 0; /* other ranks read the same batches */
    int64_t samples = count_evaluated(input, &reading), batches = divide_up(samples, model->sequences);
    Counts counts = {0};
    SCOPED_FREE uint32_t *text = model->rewards ? NULL : list_text_bytes(input);
    LossSums sums = {0};
    double start = log_seconds();
    Progress progress = progress_start(input->label ? input->label : "evaluating", "batches", batches);
    bool done = true, stop = false;
    SCOPED(free_group) Group group = allocate_group(input);
    for (int64_t first = index; first - index < batches; first += group.size * size) {
        Error unread = {0};
        const Batch *batch = NULL;
        for (int64_t g = 0, i = first; g < group.size; g++, i += size) {
            batch = i < batches && !unread.code ? loader_next(reading.loader, &unread) : NULL;
            take_batch(&group, g, batch, samples, text, &counts);
        }
        if (!(done = agree_to_go_on(input, &unread, &stop, error)) || stop) break;
        if (!(done = run_group(&group, &sums, error))) break;
        give_answers(&group, batch);
        if (comm_rank(input->comm) == 0) progress_update(&progress, int_min(first + group.size * size, batches));
        if (input->watchdog) watchdog_alive(input->watchdog, input->step);
    }
    progress_finish(&progress);
    if (!counted) counts = (Counts){0};
    done = done && sum_up(input->comm, &sums, &counts, error);
    if (done && !stop && !counts.targets) done = refuse_untrained(samples, error);
    *result = (Evaluation){.loss = sums.loss / (double)(model->rewards ? counts.pairs : counts.targets),
        .bits_per_byte = counts.bytes ? sums.loss / M_LN2 / counts.bytes : NAN,
        .tokens = counts.targets,
        .rewards = pairs_mean(sums.rewards, counts.pairs),
        .seconds = log_seconds() - start,
        .stopped = stop};
    return done;
}

/* -- Of a session -------------------------------------------------------------------------------------------------- */

static EvaluationInput input_of(const Config *config, const Corpus *corpus, const Program *program) {
    return (EvaluationInput){.program = program,
        .set = &corpus->valid,
        .bins = corpus->valid.pairs ? &corpus->valid_bins : NULL,
        .reference = &corpus->valid_reference,
        .vocabulary = config->model.vocabulary,
        .sequences = config->eval.sequences,
        .comm = comm_alone(),
        .bytes = corpus->bytes,
        .tokenizer = corpus->tokenizer,
        .document_mask = config->data.document_mask};
}

static bool name_source(const Config *config, Error *error) {
    if (config->data.valid[0]) return error_context(error, "data.valid=%s", config->data.valid);
    if (config->data.valid_documents > 0)
        return error_context(
            error, "the validation part, data.valid_documents=%g of data.train=%s", config->data.valid_documents, config->data.train);
    return error_context(error, "the validation split, data.valid_fraction=%g of data.train=%s (0: no evaluation)",
        config->data.valid_fraction, config->data.train);
}

/* For conversations, reads up to the first token that is trained. */
static bool check_trained(const EvaluationInput *input, SetReading *reading, Error *error) {
    int64_t samples = count_evaluated(input, reading), rows = batch_rows(model_of(input));
    if (!input->set->masked) return true;
    for (int64_t first = 0; first < samples; first += model_of(input)->sequences) {
        const Batch *batch = loader_next(reading->loader, error);
        if (!batch) return false;
        int64_t used = int_min(rows, (samples - first) * model_of(input)->length);
        for (int64_t i = 0; i < used; i++)
            if (batch->targets[i] >= 0) return true;
    }
    return refuse_untrained(samples, error);
}

bool evaluate_check(const Config *config, const Corpus *corpus, Error *error) {
    if (!corpus->has_valid && (config->eval.patience || config->checkpoint.keep_best))
        return error_set(error, ERROR_USAGE, "%s needs validation losses, but there is no validation data: set data.valid",
            config->eval.patience ? "eval.patience" : "checkpoint.keep_best=true");
    if (!corpus->has_valid || corpus->image_length || corpus->prompts.count) return true;
    const Program shape = {.model = {.sequences = config->batch.sequences, .length = config->data.length}};
    EvaluationInput input = input_of(config, corpus, &shape);
    SCOPED(close_reading) SetReading reading;
    return (open_reading(&reading, &input, error) && check_trained(&input, &reading, error)) || name_source(config, error);
}

bool evaluate(Session *session, const Corpus *corpus, Watchdog *watchdog, const StopRequest *stop, Evaluation *result, Error *error) {
    if (corpus->image_length) return evaluate_images(session, corpus, watchdog, stop, result, error);
    EvaluationInput input = input_of(session->config, corpus, &session->evaluation);
    input.comm = session->comm;
    input.watchdog = watchdog;
    input.stop = stop;
    input.step = session->step;
    exchange_finish_weights(session->training.exchange);
    return evaluate_set(&input, result, error) || name_source(session->config, error);
}

/* -- Of a reference ------------------------------------------------------------------------------------------------ */

/* The pairs of a set by token, and the log-probabilities that this rank knows, two per pair. */
static const double unknown = 1; /* greater than any log-probability */
typedef struct Answers {
    ReferencePair *pairs;
    int64_t count;
    double *values;
} Answers;

static int by_token(const void *a, const void *b) {
    const ReferencePair *x = a, *y = b;
    return x->token < y->token ? -1 : x->token > y->token;
}

static Answers list_pairs(const BinPlan *bins) {
    Answers answers = {.count = bins->part_count};
    answers.pairs = memory_allocate((size_t)answers.count * sizeof *answers.pairs);
    answers.values = memory_allocate((size_t)answers.count * 2 * sizeof *answers.values);
    for (int64_t i = 0; i < 2 * answers.count; i++) answers.values[i] = unknown;
    for (int64_t i = 0; i < answers.count; i++) answers.pairs[i].token = bins->parts[i].start;
    qsort(answers.pairs, (size_t)answers.count, sizeof *answers.pairs, by_token);
    return answers;
}

static void take_pair(void *context, int64_t token, double chosen, double rejected) {
    Answers *answers = context;
    const ReferencePair *pair =
        bsearch(&(ReferencePair){.token = token}, answers->pairs, (size_t)answers->count, sizeof *answers->pairs, by_token);
    assert(pair);
    answers->values[2 * (pair - answers->pairs)] = chosen;
    answers->values[2 * (pair - answers->pairs) + 1] = rejected;
}

/* Takes the minimum over all ranks. Ranks that do not know a value have `unknown`, which is larger.
 * */
static bool share_answers(Answers *answers, Comm *comm, Error *error) {
    if (!comm_host_all_reduce(comm, "reference", answers->values, 2 * answers->count, COMM_F64, COMM_MIN, error)) return false;
    for (int64_t i = 0; i < answers->count; i++) {
        assert(!(answers->values[2 * i] > 0 || answers->values[2 * i + 1] > 0)); /* each pair was in a batch */
        answers->pairs[i].chosen = answers->values[2 * i];
        answers->pairs[i].rejected = answers->values[2 * i + 1];
        if (!isfinite(answers->pairs[i].chosen) || !isfinite(answers->pairs[i].rejected))
            return error_set(error, ERROR_NUMERICS,
                "the log-probability of the answers at token %lld is NaN or infinite with the initial weights: check that the model and "
                "the data use the same tokenizer",
                (long long)answers->pairs[i].token);
    }
    return true;
}

ReferencePair *evaluate_reference(Session *session, const Corpus *corpus, bool valid, const StopRequest *stop, Error *error) {
    const BinPlan *bins = valid ? &corpus->valid_bins : corpus->bins;
    EvaluationInput input = input_of(session->config, corpus, &session->evaluation);
    Answers answers = list_pairs(bins);
    Evaluation result = {0};
    input.set = valid ? &corpus->valid : corpus->train;
    input.bins = bins;
    input.reference = NULL;
    input.sequences = 0;
    input.take_answers = take_pair;
    input.take_context = &answers;
    input.label = "computing the reference";
    input.comm = session->comm;
    input.stop = stop;
    exchange_finish_weights(session->training.exchange);
    bool good = evaluate_set(&input, &result, error);
    if (good && result.stopped)
        good = error_set(error, ERROR_PREEMPTED, "stopped by a signal before the first step: nothing is lost; run the same command again");
    good = good && share_answers(&answers, session->comm, error);
    free(answers.values);
    if (!good) free(answers.pairs);
    return good ? answers.pairs : NULL;
}
