/* `smelt eval MODEL DATA [key=value ...]`: the loss of a trained model on text or a token shard. Text is packed with the model's tokenizer, or
 * the byte tokenizer, into a temporary folder first. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "ckpt/ckpt.h"
#include "cmd/arguments.h"
#include "cmd/cmd.h"
#include "op/op.h"
#include "train/source.h"
#include "train/train.h"

typedef struct EvalOptions {
    int64_t length, sequences, batches, threads;
    const char *separator;
    bool document_mask;
    int precision;
} EvalOptions;

enum { PRECISION_OF_MODEL, DEFAULT_LENGTH = 1024 }; /* the choices after the first are those of Precision */

#define FIELD(name) offsetof(EvalOptions, name)
static const Option rows[] = {
    {"length", OPTION_INT, FIELD(length), "0", 0, 1 << 24, NULL, "tokens", "of a sequence; 0: as in training; of folders the model's context, at most 1024"},
    {"sequences", OPTION_INT, FIELD(sequences), "4", 1, 1 << 20, NULL, "sequences", "at a time"},
    {"batches", OPTION_INT, FIELD(batches), "0", 0, 1e15, NULL, "batches", "at most; 0: all of the data"},
    {"separator", OPTION_STRING, FIELD(separator), "", 0, 0, NULL, "", "a line that separates documents in text; empty: one document per file"},
    {"document_mask", OPTION_BOOL, FIELD(document_mask), "true", 0, 0, NULL, "", "attention, convolution and positions stop at document starts"},
    {"threads", OPTION_INT, FIELD(threads), "0", 0, 4096, NULL, "threads", "CPU threads; 0 takes all"},
    {"precision", OPTION_CHOICE, FIELD(precision), "same", 0, 0, "same|bf16|fp32|fp64", "", "type of matrices and activations; same: as in training"},
};
#undef FIELD
static const OptionTable table = {rows, sizeof rows / sizeof *rows};
static const ArgumentSyntax syntax = {"smelt eval", "MODEL DATA", 2, &table};

static void print_help(void) {
    printf("Usage: smelt eval MODEL DATA [key=value ...]\n\n"
           "Prints the loss per token, perplexity and, where the model's tokenizer is known, bits per byte of a model on data that it reads in order, in\n"
           "sequences of one length. MODEL is a run folder or a Hugging Face folder; DATA is a token shard's prefix, a text file or a folder of text.\n\n");
    options_print_help(&table, stdout);
}

/* -- Data ----------------------------------------------------------------------------------------------------------- */

static bool is_shard(const char *prefix) {
    char *index = memory_format("%s.idx", prefix);
    bool there = access(index, F_OK) == 0;
    free(index);
    return there;
}

/* The data, and the tokenizer that made its tokens: NULL for the byte tokenizer, or where it is not known. */
typedef struct Input {
    Shard shard;
    Tokenizer *tokenizer;
} Input;

/* Packs into a folder that is gone again when the shard is open: it stays mapped. */
static bool open_text(Shard *shard, const char *data, const char *tokenizer, const char *separator, Error *error) {
    char folder[] = "/tmp/smelt-eval-XXXXXX";
    if (!mkdtemp(folder)) return error_set(error, ERROR_DATA, "cannot make a folder in /tmp: %s", strerror(errno));
    char *output = memory_format("%s/text", folder);
    PackOptions options = {.input = data, .output = output, .separator = separator, .tokenizer = tokenizer};
    PackResult result;
    Error ignored = {0};
    bool opened = pack_text(&options, &result, error) && shard_open(shard, output, error);
    files_remove_tree(folder, &ignored);
    free(output);
    return opened;
}

/* A shard needs no tokenizer: without one there are only no bits per byte. */
static bool open_input(Input *input, const char *data, const char *tokenizer, const EvalOptions *options, Error *error) {
    Error ignored = {0};
    bool shard = is_shard(data), other = tokenizer && *tokenizer;
    if (other) input->tokenizer = tokenizer_open(tokenizer, "", shard ? &ignored : error);
    if (shard) return shard_open(&input->shard, data, error);
    if (!tokenizer) return error_set(error, ERROR_USAGE, "the model has no tokenizer: put its tokenizer.json into its folder, or give a token shard's prefix");
    return (!other || input->tokenizer) && open_text(&input->shard, data, tokenizer, options->separator, error);
}

static void close_input(Input *input) {
    shard_close(&input->shard);
    tokenizer_free(input->tokenizer);
}

/* -- The program ---------------------------------------------------------------------------------------------------- */

static int64_t choose_length(const char *model, const Config *config, const EvalOptions *options, const Shard *shard) {
    int64_t length = options->length ? options->length : config->data.length;
    if (!options->length && !source_is_run(model)) length = config->model.context < DEFAULT_LENGTH ? config->model.context : DEFAULT_LENGTH;
    return length < shard->token_count - 1 || shard->token_count < 2 ? length : shard->token_count - 1;
}

static bool check_memory(const Plan *plan, Error *error) {
    int64_t needed = 0, available = memory_available();
    for (Arena arena = 0; arena < ARENA_COUNT; arena++) needed += plan->bytes[arena];
    if (available < 0 || needed <= available) return true;
    char need[32], have[32];
    log_format_bytes((double)needed, need);
    log_format_bytes((double)available, have);
    return error_set(error, ERROR_MEMORY, "evaluation needs %s and %s are available: give fewer sequences or a smaller length", need, have);
}

static void print_result(const Evaluation *result) {
    printf("tokens         %" PRId64 "\nloss           %.6f nats per token\nperplexity     %.4f\n", result->tokens, result->loss, exp(result->loss));
    if (!isnan(result->bits_per_byte)) printf("bits per byte  %.6f\n", result->bits_per_byte);
    log_info("%.1f s, %.0f tokens/s", result->seconds, result->tokens / fmax(result->seconds, 1e-9));
}

static bool run_program(const char *folder, const Config *config, const Input *data, Model *model, const EvalOptions *options, Error *error) {
    Plan plan = graph_plan(model->graph);
    Precision precision = model->graph->precision;
    Executor *executor = check_memory(&plan, error) ? executor_create(model->graph, &plan, op_kernels(precision, ""), NULL, error) : NULL;
    EvaluationInput input = {.model = model, .executor = executor, .shard = &data->shard, .vocabulary = config->model.vocabulary,
                             .batches = options->batches, .tokenizer = data->tokenizer,
                             .bytes = !data->tokenizer && data->shard.max_token < BYTE_VOCABULARY, .document_mask = options->document_mask};
    Evaluation result;
    int64_t step;
    bool done = executor && source_load_weights(folder, config, precision, executor_arena(executor, ARENA_MASTER), &step, error);
    if (done) {
        model_cast_weights(model->graph, executor_arena(executor, ARENA_MASTER), executor_arena(executor, ARENA_WEIGHT));
        done = evaluate_shard(&input, &result, error);
    }
    if (done) print_result(&result);
    executor_free(executor);
    return done;
}

static bool eval_input(const char *folder, const Config *config, const Input *data, const EvalOptions *options, Error *error) {
    if (options->threads) omp_set_num_threads((int)options->threads);
    Precision precision = options->precision == PRECISION_OF_MODEL ? config->precision : options->precision - 1;
    int64_t length = choose_length(folder, config, options, &data->shard);
    Model model = model_build(&config->model, precision, MODEL_EVALUATE, options->sequences, length, RECOMPUTE_NONE);
    bool done = run_program(folder, config, data, &model, options, error);
    model_free(&model);
    return done;
}

static bool eval(const char *folder, const char *data, const EvalOptions *options, OptionStrings *strings, Error *error) {
    Config config;
    Input input = {0};
    if (!source_read_config(folder, &config, strings, error)) return false;
    if (options->length > config.model.context)
        return error_set(error, ERROR_USAGE, "length=%" PRId64 " is above the model's context of %" PRId64, options->length, config.model.context);
    char *tokenizer = source_tokenizer(folder, &config);
    bool opened = open_input(&input, data, tokenizer, options, error) || error_context(error, "%s", data);
    bool done = opened && eval_input(folder, &config, &input, options, error);
    close_input(&input);
    free(tokenizer);
    return done;
}

int cmd_eval(int argc, char **argv) {
    if (argc < 2 || arguments_want_help(argc, argv)) {
        print_help();
        return argc < 2 ? ERROR_USAGE : 0;
    }
    EvalOptions options;
    OptionStrings strings = {0};
    Error error = {0};
    const char *given[2];
    bool done = arguments_read(&syntax, argc - 1, argv + 1, &options, &strings, given, &error) && eval(given[0], given[1], &options, &strings, &error);
    options_free_strings(&strings);
    return done ? 0 : cmd_fail(&error);
}
