/* `smelt eval MODEL [DATA] [key=value ...]`: the loss of a trained model on text or a token shard,
 * its answers to questions in JSON lines (eval_questions.c, eval_answers.c) or in one of llm.c's
 * evaluation files, or a comparison with one of llm.c's debug states. Text is first packed with the model's tokenizer, or the byte
 * tokenizer, into a temporary folder. */
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "app/command.h"
#include "app/eval_questions.h"
#include "app/inference.h"
#include "app/process.h"
#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/byte_tokenizer.h"
#include "data/pack.h"
#include "device/gemm.h"
#include "eval/debug_state.h"
#include "eval/evaluate.h"
#include "eval/multiple_choice.h"
#include "formats/llmc.h"
#include "graph/op.h"
#include "run/corpus.h"
#include "run/lineage.h"
#include "run/run.h"
#include "run/source.h"
#include "session/weights.h"

typedef struct EvalOptions {
    LayoutConfig layout;
    Fp8Config fp8;
    int64_t length, sequences, batch, threads, shots, tokens, stride;
    const char *separator, *losses, *pattern, *stop, *template;
    bool document_mask, json, exact;
    int precision, device, match;
} EvalOptions;

enum { DEFAULT_LENGTH = 1024 };

#define FIELD(name) offsetof(EvalOptions, name)
static const Option rows[] = {
    INT_OPTION(
        length, "0", 0, 1 << 24, "tokens", "length of a sequence; 0: as in training; for model folders the model's context, at most 1024"),
    INT_OPTION(stride, "0", 0, 1 << 24, "tokens",
        "from the start of a sequence to that of the next; below length they overlap, and a token counts once, with at least length - "
        "stride "
        "tokens before it; 0: length"),
    INT_OPTION(sequences, "0", 0, 1e15, "sequences", "maximum number of sequences, or of multiple-choice examples, to evaluate; 0: all"),
    INT_OPTION(shots, "0", 0, 1e6, "questions",
        "questions in JSON lines: the first ones of the file, which precede each other one with their answers"),
    INT_OPTION(tokens, "256", 1, 1e9, "tokens", "questions with answers: maximum tokens that the model answers"),
    CHOICE_OPTION(match, "exact", "exact|number|boxed|regex",
        "questions with answers: the text is the answer; its last number is; its last \\boxed{} is; the first match of pattern is"),
    STRING_OPTION(
        pattern, "", "", "questions with answers: regular expression (PCRE2) for match=regex; its first group, or all of it, is compared"),
    STRING_OPTION(stop, "", "",
        "questions with answers: a text, or a JSON list of up to 4 texts, that end an answer; empty: with shots an empty line"),
    STRING_OPTION(template, "", "",
        "questions with answers: ask them as messages of a chat, by the model's own template (own), chatml, or a template's file",
        .path = true),
    INT_OPTION(batch, "4", 1, 1 << 20, "sequences", "sequences computed at once"),
    STRING_OPTION(separator, "", "", "line that separates documents in a text file; empty: one document per file"),
    BOOL_OPTION(document_mask, "true", "attention, convolutions and positions start anew at every document"),
    INT_OPTION(layout.tp, "1", 1, 1 << 20, "ranks", "ranks that shard the layers of a model too large for one"),
    INT_OPTION(layout.cp, "1", 1, 1 << 20, "ranks", "ranks that shard every sequence; groups of ranks take batches in turn"),
    INT_OPTION(threads, "0", 0, 4096, "threads", "CPU threads; 0: all"),
    BOOL_OPTION(json, "false", "print JSON lines in place of text, for multiple choice one for each example and the sum"),
    STRING_OPTION(losses, "", "", "ten losses, separated by commas, that the ten steps of a debug state are compared with"),
    CHOICE_OPTION(precision, "same", "same|bf16|fp32|fp64", "type of weights and activations; same: as in training"),
    INFERENCE_ARITHMETIC_OPTIONS,
    CHOICE_OPTION(device, "auto", "auto|cpu|hip|cuda", "device, in bf16 on a GPU; debug states need the CPU"),
};
#undef FIELD
static const OptionTable table = OPTION_TABLE(rows);

/* -- Data ---------------------------------------------------------------------------------------------------------- */

/* The data, and the tokenizer that made its tokens: NULL with `bytes`, or if it is unknown. */
typedef struct EvalInput {
    ShardSet set;
    Tokenizer *tokenizer;
    bool bytes;
} EvalInput;

/* Packs into a folder in $TMPDIR that is removed once the shard is open: its files stay open. */
static bool open_text(ShardSet *set, const char *data, const char *tokenizer, const Config *config, const char *separator, Error *error) {
    Error ignored;
    SCOPED_FREE char *folder = file_make_temporary_folder("smelt-eval", error);
    if (!folder)
        return error_recode(error, ERROR_DATA) ||
               error_context(error, "cannot create a folder for the packed text; set TMPDIR to another folder");
    SCOPED_FREE char *output = memory_format("%s/text", folder);
    PackOptions options = {.inputs = (const char *[]){data, NULL},
        .output = output,
        .separator = separator,
        .tokenizer = tokenizer,
        .held_out = true,
        .bos = (TokenizerBos)config->data.bos};
    PackResult result;
    bool opened = pack_text(&options, &result, error) && shard_set_open(set, output, error);
    file_remove(folder, &ignored);
    return opened;
}

/* Finds the tokenizer of a shard: the recorded one, or else the model's `tokenizer`. ERROR_DATA
 * if both are known and differ. */
static bool find_shard_record(const char *data, const char *tokenizer, char **found, Error *error) {
    bool differs = false;
    if (!shard_set_tokenizer(data, found, error)) return false;
    const char *record = *found;
    if (!record && tokenizer) *found = memory_copy_string(tokenizer);
    if (record && tokenizer && !byte_tokenizer_differs(record, tokenizer, &differs, error)) return false;
    return !differs || error_set(error, ERROR_DATA,
                           "it was packed with %s, but the model's tokenizer is %s: use text, or a shard packed with the model's tokenizer",
                           *record ? record : "the byte tokenizer", *tokenizer ? tokenizer : "the byte tokenizer");
}

static bool check_input(const EvalInput *input, const Config *config, const char *tokenizer, Error *error) {
    return (!input->tokenizer && !input->bytes) ||
           source_check_rows(config->model.vocabulary, input->tokenizer, *tokenizer ? tokenizer : "the byte tokenizer",
               "the model was made for another", error);
}

/* Opens a shard. It needs no tokenizer: without one only the bits per byte are missing. */
static bool open_tokens(EvalInput *input, const char *data, const char *tokenizer, const Config *config, Error *error) {
    Error ignored = {0};
    SCOPED_FREE char *known = NULL;
    if (!find_shard_record(data, tokenizer, &known, error)) return false;
    input->bytes = known && !*known;
    if (known && *known) input->tokenizer = tokenizer_open(known, &ignored);
    if (!check_input(input, config, known, error) || !shard_set_open(&input->set, data, error)) return false;
    if (input->tokenizer) input->set.end_token = tokenizer_end_of_text(input->tokenizer);
    return source_check_bos(&input->set, data, input->tokenizer, (TokenizerBos)config->data.bos, false, error);
}

static bool open_input(
    EvalInput *input, const char *data, const char *tokenizer, const Config *config, const EvalOptions *options, Error *error) {
    static const char *const of_text[] = {"separator", NULL};
    if (shard_set_exists(data))
        return command_refuse_idle(&table, options, of_text, "it divides text, and these are tokens", error) &&
               open_tokens(input, data, tokenizer, config, error);
    bool other = tokenizer && *tokenizer;
    input->bytes = tokenizer && !*tokenizer;
    if (other) input->tokenizer = tokenizer_open(tokenizer, error);
    if (!tokenizer)
        return error_set(error, ERROR_USAGE, "the model has no tokenizer: put its tokenizer.json into its folder, or use token shards");
    return (!other || input->tokenizer) && check_input(input, config, tokenizer, error) &&
           open_text(&input->set, data, tokenizer, config, options->separator, error);
}

/* Returns the validation data of a run, for the caller to free. */
static char *find_own_data(const char *folder, const Config *config, Error *error) {
    SCOPED(run_point_free) RunPoint point = run_point(folder);
    Config here = *config;
    here.run = point.run; /* the folder may have been moved */
    int64_t step;
    json_auto_t *checkpoint = source_is_run(folder) ? lineage_at(&point, config, &step, error) : NULL;
    if (source_is_run(folder) && !checkpoint) return NULL;
    char *data = checkpoint ? corpus_valid(&here, error) : NULL;
    if (data) log_info("evaluating on the run's validation data, %s", data);
    else if (!checkpoint || error->finding == FINDING_ABSENT)
        error_set(error, ERROR_USAGE, "%s has no validation data: give text or token shards, smelt eval %s DATA", folder, folder);
    return data;
}

static void close_input(EvalInput *input) {
    shard_set_close(&input->set);
    tokenizer_free(input->tokenizer);
}

/* -- The program --------------------------------------------------------------------------------------------------- */

/* Returns the unit of sequence lengths, because ranks divide the sequences. */
static int64_t length_unit(const Config *config) {
    return config->layout.cp > 1 ? 4 * config->layout.cp * config->layout.tp : config->layout.tp;
}

static int64_t choose_length(const char *model, const Config *config, const EvalOptions *options, const ShardSet *set) {
    int64_t length = options->length ? options->length : config->data.length;
    if (!options->length && !source_is_run(model)) length = config->model.context < DEFAULT_LENGTH ? config->model.context : DEFAULT_LENGTH;
    int64_t most = set->token_count - 1, unit = length_unit(config);
    return length < most || set->token_count < 2 ? length : int_max(most / unit * unit, unit);
}

static bool check_plan_memory(const Plan *plan, Device *device, Error *error) {
    int64_t needed = 0, available = device_available(device);
    for (Arena arena = 0; arena < ARENA_COUNT; arena++) needed += plan->bytes[arena];
    if (device_info(device)->host_memory) return memory_check(needed, "evaluation", "give a smaller batch or length", error);
    if (available < 0 || needed <= available) return true;
    return error_set(error, ERROR_MEMORY,
        "evaluation needs %" PRId64 " MiB of %s memory, but %" PRId64 " MiB are free: reduce batch or length, or set device=cpu",
        needed >> 20, device_info(device)->name, available >> 20);
}

/* Replaces the setting names of training in a layout error by the names of this command:
 * data.length=31 becomes length=31. */
static bool use_own_names(Error *error) {
    static const char *const names[][2] = {{"data.length", "length"}, {"batch.sequences", "batch"}};
    for (size_t i = 0; i < sizeof names / sizeof *names && error->code == ERROR_USAGE; i++)
        for (char *at = error->message; (at = strstr(at, names[i][0]));) {
            size_t theirs = strlen(names[i][0]), ours = strlen(names[i][1]); /* the shorter name */
            memcpy(at, names[i][1], ours);
            memmove(at + ours, at + theirs, strlen(at + theirs) + 1);
        }
    return false;
}

/* Returns the configuration with microbatches of this shape, for which the ranks are laid out. */
static Config shaped(const Config *config, int64_t sequences, int64_t length) {
    Config settings = *config;
    settings.data.length = length;
    settings.batch.sequences = sequences;
    settings.batch.tokens = sequences * length;
    return settings;
}

/* Opens a MODEL_EVALUATE program of one microbatch with the newest weights. */
static bool open_program(
    Program *program, Inference *ranks, const char *folder, const Config *config, const EvalOptions *options, Error *error) {
    if (!inference_open(ranks, config, options->device, options->precision, options->threads, error)) return use_own_names(error);
    program->model = model_build_adapted(
        &ranks->mesh, &config->model, NULL, ranks->precision, MODEL_EVALUATE, config->batch.sequences, config->data.length, RECOMPUTE_NONE);
    inference_check_fp8(ranks, config, program->model.graph);
    program->plan = graph_plan_lasting(program->model.graph);
    return check_plan_memory(&program->plan, ranks->device, error) && program_plan(program, ranks->device, error) &&
           check_plan_memory(&program->plan, ranks->device, error) && program_start(program, NULL, error) &&
           weights_load_program(folder, config, program->executor, error);
}

/* -- The loss of tokens -------------------------------------------------------------------------------------------- */

static void print_json(json_t *object) {
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

static void print_evaluation(const Evaluation *result, bool json) {
    bool bits = !isnan(result->bits_per_byte);
    if (json) {
        print_json(json_pack("{s:s, s:I, s:f, s:f, s:o}", "kind", "evaluation", "tokens", (json_int_t)result->tokens, "loss", result->loss,
            "perplexity", exp(result->loss), "bits_per_byte", bits ? json_real(result->bits_per_byte) : json_null()));
    } else {
        printf("tokens         %" PRId64 "\nloss           %.6f nats per token\nperplexity     %.4f\n", result->tokens, result->loss,
            exp(result->loss));
        if (bits) printf("bits per byte  %.6f\n", result->bits_per_byte);
    }
    log_info("%.1f s, %.0f tokens/s", result->seconds, result->tokens / fmax(result->seconds, 1e-9));
}

static bool eval_input(
    Inference *ranks, const char *folder, const Config *config, const EvalInput *data, const EvalOptions *options, Error *error) {
    SCOPED(program_free) Program program = {0};
    int64_t length = choose_length(folder, config, options, &data->set);
    if (options->stride > length)
        return error_set(error, ERROR_USAGE, "stride=%" PRId64 " exceeds the length of %" PRId64 " and would skip tokens: set at most that",
            options->stride, length);
    const Config settings = shaped(config, options->batch, length);
    if (!open_program(&program, ranks, folder, &settings, options, error)) return false;
    EvaluationInput input = {.program = &program,
        .comm = ranks->comm,
        .set = &data->set,
        .vocabulary = config->model.vocabulary,
        .sequences = options->sequences,
        .stride = options->stride,
        .tokenizer = data->tokenizer,
        .bytes = data->bytes && data->set.max_token < BYTE_VOCABULARY,
        .document_mask = options->document_mask};
    Evaluation result;
    if (!evaluate_set(&input, &result, error)) return error_context(error, "%s", data->set.path);
    if (!isfinite(result.loss))
        return error_set(error, ERROR_NUMERICS,
            "the loss of %s is %g: its weights contain NaN or infinity, or its activations overflow; use an older checkpoint, or "
            "precision=fp32",
            folder, result.loss);
    if (inference_leads(ranks)) print_evaluation(&result, options->json);
    return true;
}

static bool eval_tokens(
    Inference *ranks, const char *folder, const char *data, const Config *config, const EvalOptions *options, Error *error) {
    SCOPED(close_input) EvalInput input = {0};
    SCOPED_FREE char *tokenizer = source_tokenizer(folder, config);
    if (!open_input(&input, data, tokenizer, config, options, error))
        return !starts_with(error->message, data) && error_context(error, "%s", data); /* a message about the file names it already */
    if (input.set.pairs)
        return error_set(error, ERROR_DATA,
            "%s holds pairs of answers, which only smelt train preference.loss=dpo reads: give text, conversations or their shards", data);
    return eval_input(ranks, folder, config, &input, options, error);
}

/* -- Multiple choice ----------------------------------------------------------------------------------------------- */

static void print_example(int64_t index, const ChoiceExample *example, const ChoiceScore *score) {
    json_t *losses = json_array();
    for (int i = 0; i < example->endings; i++) json_array_append_new(losses, json_real(score->loss[i]));
    print_json(json_pack("{s:s, s:I, s:i, s:i, s:i, s:o}", "kind", "example", "index", (json_int_t)index, "label", example->label, "chosen",
        score->chosen, "chosen_per_token", score->chosen_mean, "losses", losses));
}

static void print_multiple_choice(const MultipleChoice *set, int64_t count, const ChoiceScore *scores, bool json) {
    int64_t right = 0, right_mean = 0;
    for (int64_t i = 0; i < count; i++) {
        right += scores[i].chosen == set->examples[i].label;
        right_mean += scores[i].chosen_mean == set->examples[i].label;
        if (json) print_example(i, &set->examples[i], &scores[i]);
    }
    double accuracy = (double)right / count, accuracy_mean = (double)right_mean / count;
    if (json)
        print_json(json_pack(
            "{s:s, s:I, s:f, s:f}", "kind", "choices", "examples", (json_int_t)count, "acc", accuracy, "acc_norm", accuracy_mean));
    else
        printf("examples       %" PRId64 "\nacc            %.4f by likelihood\nacc_norm       %.4f by likelihood per token\n", count,
            accuracy, accuracy_mean);
}

static bool check_multiple_choice(const MultipleChoice *set, const ModelConfig *model, Error *error) {
    if (set->max_token >= model->vocabulary)
        return error_set(error, ERROR_DATA, "it has token %d, but the model's vocabulary is %" PRId64 ": it was made for another tokenizer",
            set->max_token, model->vocabulary);
    if (set->longest - 1 > model->context)
        return error_set(error, ERROR_DATA, "its longest example needs %" PRId64 " positions, but the model's context is %" PRId64,
            set->longest - 1, model->context);
    return true;
}

static bool eval_multiple_choice(
    Inference *ranks, const char *folder, const MultipleChoice *set, const Config *config, const EvalOptions *options, Error *error) {
    if (!check_multiple_choice(set, &config->model, error)) return false;
    int64_t count = options->sequences && options->sequences < set->count ? options->sequences : set->count;
    SCOPED(program_free) Program program = {0};
    SCOPED_FREE ChoiceScore *scores = memory_allocate((size_t)count * sizeof *scores);
    const Config settings = shaped(config, 1, round_up(set->longest - 1, length_unit(config)));
    if (!open_program(&program, ranks, folder, &settings, options, error) ||
        !multiple_choice_evaluate(&program, ranks->comm, set, count, scores, error))
        return false;
    if (inference_leads(ranks)) print_multiple_choice(set, count, scores, options->json);
    return true;
}

static bool eval_multiple_choice_file(
    Inference *ranks, const char *folder, const char *data, const Config *config, const EvalOptions *options, Error *error) {
    static const char *const idle[] = {"length", "stride", "batch", "separator", "document_mask", NULL};
    SCOPED(multiple_choice_close) MultipleChoice set = {0};
    return command_refuse_idle(&table, options, idle, "examples of multiple choice are computed one by one", error) &&
           multiple_choice_open(&set, data, error) &&
           (eval_multiple_choice(ranks, folder, &set, config, options, error) || error_context(error, "%s", data));
}

static const char *const of_answers[] = {"tokens", "match", "pattern", "stop", "template", NULL};

static bool eval_question_lines(
    Inference *ranks, const char *folder, const char *data, Config *config, const EvalOptions *options, Error *error) {
    static const char *const idle[] = {"length", "stride", "batch", "separator", "document_mask", "layout.tp", "layout.cp", NULL};
    const QuestionOptions questions = {.shots = options->shots,
        .most = options->sequences,
        .json = options->json,
        .tokens = options->tokens,
        .match = options->match,
        .pattern = options->pattern,
        .stop = options->stop,
        .template = options->template,
        .threads = options->threads,
        .device = options->device,
        .precision = options->precision};
    if (!command_refuse_idle(&table, options, idle, "questions have their own lengths, for one process", error)) return false;
    if (questions_kind(data) == QUESTION_ANSWERS) return eval_answers(ranks, folder, data, config, &questions, error);
    return command_refuse_idle(&table, options, of_answers, "questions with choices need no answer of the model", error) &&
           eval_questions(ranks, folder, data, config, &questions, error);
}

/* -- Debug states -------------------------------------------------------------------------------------------------- */

static bool read_losses(const char *text, double losses[DEBUG_STATE_STEPS], Error *error) {
    const char *at = text;
    for (int i = 0; i < DEBUG_STATE_STEPS; i++) {
        char *end;
        losses[i] = strtod(at, &end);
        if (end == at || *end != (i + 1 < DEBUG_STATE_STEPS ? ',' : '\0'))
            return error_set(error, ERROR_USAGE, "losses=%s: number %d is invalid; write ten numbers separated by commas", text, i + 1);
        at = end + 1;
    }
    return true;
}

static bool eval_state(
    const Inference *ranks, const char *folder, const char *data, const Config *config, const EvalOptions *options, Error *error) {
    static const char *const idle[] = {
        "length", "stride", "sequences", "batch", "separator", "document_mask", "layout.tp", "layout.cp", NULL};
    double losses[DEBUG_STATE_STEPS];
    bool given = *options->losses;
    int differences;
    if (comm_size(ranks->comm) > 1)
        return error_set(
            error, ERROR_USAGE, "a debug state is compared by one process, but there are %d: start only one", comm_size(ranks->comm));
    if (!command_refuse_idle(&table, options, idle, "a debug state has its own batch, for one process", error)) return false;
    if (options->json)
        return error_set(error, ERROR_USAGE, "json=true does not work for a debug state, whose comparison is text: remove it");
    if (options->device != DEVICE_AUTO && options->device != DEVICE_CPU)
        return error_set(error, ERROR_USAGE, "debug states are compared only on the CPU: set device=cpu");
    if (given && !read_losses(options->losses, losses, error)) return false;
    process_set_threads(options->threads, 1);
    gemm_exact(config->exact_gemm);
    DebugStateCheck check = {.model = folder,
        .state = data,
        .config = config,
        .precision = command_precision(options->precision, config->precision),
        .losses = given ? losses : NULL};
    if (!debug_state_check(&check, stdout, &differences, error)) return false;
    return differences == 0 || error_set(error, ERROR_INTERNAL, "%d of the numbers above differ from the numbers in %s", differences, data);
}

/* -- The command --------------------------------------------------------------------------------------------------- */

static bool evaluate_rank(Inference *ranks, Invocation *invocation, Error *error) {
    static const char *const of_questions[] = {"shots", "tokens", "match", "pattern", "stop", "template", NULL};
    const EvalOptions *options = invocation->options;
    const char *folder = invocation->words[0], *data = invocation->words[1];
    Config config;
    if (!source_read_config(folder, &config, &invocation->strings, error) || !inference_check_text(&config, error)) return false;
    if (!inference_choose_arithmetic(&config, &options->fp8, options->exact, error)) return false;
    config.layout = (LayoutConfig){.tp = options->layout.tp, .pp = 1, .cp = options->layout.cp, .ep = 1};
    SCOPED_FREE char *own = data ? NULL : find_own_data(folder, &config, error);
    if (!data) data = own;
    if (!data) return false;
    if (options->length > config.model.context)
        return error_set(
            error, ERROR_USAGE, "length=%" PRId64 " exceeds the model's context of %" PRId64, options->length, config.model.context);
    if (llmc_is_state(data)) return eval_state(ranks, folder, data, &config, options, error);
    if (*options->losses)
        return error_set(error, ERROR_USAGE, "losses= is only for a debug state of llm.c, but %s is not one: remove it", data);
    if (questions_kind(data)) return eval_question_lines(ranks, folder, data, &config, options, error);
    if (!command_refuse_idle(&table, options, of_questions, "it needs a file of questions, QUESTIONS.jsonl", error)) return false;
    if (multiple_choice_is_file(data)) return eval_multiple_choice_file(ranks, folder, data, &config, options, error);
    return eval_tokens(ranks, folder, data, &config, options, error);
}

static bool run_eval(Invocation *invocation, Error *error) {
    Inference ranks = {0};
    bool done = inference_join(&ranks, error) && evaluate_rank(&ranks, invocation, error);
    inference_close(&ranks, done ? NULL : error);
    return done;
}

const Command command_eval = {
    .name = "eval",
    .summary = "the loss of a model on text or a token shard, or multiple choice",
    .words = "MODEL [DATA]",
    .explanation =
        "Prints the loss per token and the perplexity of a model on data, and bits per byte if the model's tokenizer is known. The data is "
        "read in order, in\n"
        "sequences of one length. MODEL is a run, one of its checkpoints (RUN@STEP, RUN@best, or its folder), a Hugging Face folder, a "
        "folder of PEFT's adapters (ADAPTER, ADAPTER@BASE) or a model file of llm.c. DATA is a token shard's prefix, a text file or a\n"
        "folder of text; the default is the run's own validation data. A file of questions, QUESTIONS.jsonl, has lines with question\n"
        "and answer, and choices or none; see docs/generate.md. Two files of llm.c are special:\n"
        "  hellaswag_val.bin          multiple choice: prints how often the correct ending is the most likely one (acc), and the most "
        "likely one per token (acc_norm)\n"
        "  gpt2_124M_debug_state.bin  a batch with PyTorch's results: compares logits, loss and gradients, and makes ten steps of AdamW on "
        "the batch\n",
    .table = &table,
    .options_size = sizeof(EvalOptions),
    .ranks = true,
    .run = run_eval,
};
