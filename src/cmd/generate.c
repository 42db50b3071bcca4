/* `smelt generate MODEL "prompt" [key=value ...]`: continues a prompt, text of the byte tokenizer or numbers of tokens. Text goes to stdout as it is drawn, the rate to stderr. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "cmd/arguments.h"
#include "cmd/cmd.h"
#include "data/data.h"
#include "infer/generate.h"
#include "infer/utf8.h"
#include "train/source.h"

typedef struct GenerateOptions {
    int64_t tokens, top_k, seed, context, threads;
    double temperature, top_p;
    bool text, cache;
    int precision;
} GenerateOptions;

enum { PRECISION_OF_MODEL }; /* the choices after it are those of Precision */

#define FIELD(name) offsetof(GenerateOptions, name)
static const Option rows[] = {
    {"tokens", OPTION_INT, FIELD(tokens), "200", 0, 1e9, NULL, "tokens", "most tokens to generate; the document's end and the context limit stop it earlier"},
    {"temperature", OPTION_REAL, FIELD(temperature), "1", 0, 100, NULL, "", "divides the logits: lower is more predictable; 0: always the most likely token"},
    {"top_k", OPTION_INT, FIELD(top_k), "0", 0, 1e9, NULL, "tokens", "draw among this many of the most likely tokens; 0: all"},
    {"top_p", OPTION_REAL, FIELD(top_p), "1", 0, 1, NULL, "", "draw among the most likely tokens that have this probability together"},
    {"seed", OPTION_INT, FIELD(seed), "1", 0, 1e15, NULL, "", "the same seed gives the same text"},
    {"text", OPTION_BOOL, FIELD(text), "true", 0, 0, NULL, "", "false: prompt and output are numbers of tokens, for models of other tokenizers"},
    {"context", OPTION_INT, FIELD(context), "0", 0, 1 << 24, NULL, "tokens", "most positions, prompt included: its caches take memory; 0: the model's"},
    {"cache", OPTION_BOOL, FIELD(cache), "true", 0, 0, NULL, "", "false: compute the whole sequence again for each token, to check the cache"},
    {"threads", OPTION_INT, FIELD(threads), "0", 0, 4096, NULL, "threads", "CPU threads; 0 takes all"},
    {"precision", OPTION_CHOICE, FIELD(precision), "same", 0, 0, "same|bf16|fp32|fp64", "", "type of matrices and activations; same: as in training"},
};
#undef FIELD

static const OptionTable table = {rows, sizeof rows / sizeof *rows};
static const ArgumentSyntax syntax = {"smelt generate", "MODEL \"prompt\"", 2, &table};

static void print_help(void) {
    printf("Usage: smelt generate MODEL \"prompt\" [key=value ...]\n\n"
           "Continues the prompt with the newest checkpoint of a run folder, or with a Hugging Face folder. A prompt that looks like key=value or opens with -- is given after --.\n\n");
    options_print_help(&table, stdout);
}

static bool flush_text(Error *error) {
    return fflush(stdout) == 0 || error_set(error, ERROR_INTERNAL, "cannot write the text to stdout: %s", strerror(errno));
}

/* -- What a prompt is ----------------------------------------------------------------------------------------------- */

typedef struct Prompt { int32_t *tokens; int64_t count; } Prompt;

static Prompt bytes_of(const char *text) {
    Prompt prompt = {.count = (int64_t)strlen(text)};
    prompt.tokens = memory_allocate((prompt.count + 1) * sizeof *prompt.tokens);
    for (int64_t i = 0; i < prompt.count; i++) prompt.tokens[i] = (uint8_t)text[i];
    return prompt;
}

/* "17 4 1203" */
static bool numbers_of(const char *text, Prompt *prompt, Error *error) {
    *prompt = (Prompt){.tokens = memory_allocate((strlen(text) / 2 + 1) * sizeof *prompt->tokens)};
    for (const char *at = text + strspn(text, " \n"); *at; at += strspn(at, " \n")) {
        char *end;
        long token = strtol(at, &end, 10);
        if (end == at || (*end && !strchr(" \n", *end)) || token < 0 || token > INT32_MAX)
            return error_set(error, ERROR_USAGE, "'%.20s' in the prompt is not the number of a token: with text=false write them with spaces between", at);
        prompt->tokens[prompt->count++] = (int32_t)token;
        at = end;
    }
    return true;
}

static bool read_prompt(const char *text, const GenerateOptions *options, Prompt *prompt, Error *error) {
    if (options->text) *prompt = bytes_of(text);
    else if (!numbers_of(text, prompt, error)) return false;
    return prompt->count > 0 || error_set(error, ERROR_USAGE, "the prompt is empty: give at least one %s", options->text ? "character" : "token");
}

/* -- Continuing it -------------------------------------------------------------------------------------------------- */

static void print_token(Utf8Stream *stream, const GenerateOptions *options, int32_t token, bool first) {
    char text[UTF8_OUTPUT];
    if (options->text) fwrite(text, 1, (size_t)utf8_put(stream, (uint8_t)token, text), stdout);
    else printf(first ? "%" PRId32 : " %" PRId32, token);
}

static bool feed_prompt(Generator *generator, const Prompt *prompt, const GenerateOptions *options, Utf8Stream *stream, Error *error) {
    if (!generator_feed(generator, prompt->tokens, prompt->count, error)) return error_context(error, "the prompt");
    for (int64_t i = 0; i < prompt->count; i++) print_token(stream, options, prompt->tokens[i], i == 0);
    return flush_text(error);
}

/* Returns with *generated set in any case. */
static bool continue_text(Generator *generator, const GenerateOptions *options, Utf8Stream *stream, int64_t *generated, Error *error) {
    Sampling sampling = {.temperature = options->temperature, .top_k = options->top_k, .top_p = options->top_p, .seed = (uint64_t)options->seed};
    for (*generated = 0; *generated < options->tokens; (*generated)++) {
        int32_t token;
        if (generator_room(generator) == 0) {
            log_info("stopped: the context is full");
            return true;
        }
        if (!generator_next(generator, &sampling, options->text ? BYTE_VOCABULARY : INT64_MAX, &token, error)) return false;
        if (options->text && token == BYTE_SEPARATOR) return true;
        print_token(stream, options, token, false);
        if (!flush_text(error)) return false;
    }
    return true;
}

static bool generate(Generator *generator, const Prompt *prompt, const GenerateOptions *options, Error *error) {
    Utf8Stream stream = {0};
    int64_t generated = 0;
    double begin = log_seconds();
    if (!feed_prompt(generator, prompt, options, &stream, error) || !generator_logits(generator, error)) return false;
    double first = log_seconds();
    bool good = continue_text(generator, options, &stream, &generated, error);
    double end = log_seconds();
    char text[UTF8_OUTPUT];
    fwrite(text, 1, utf8_finish(&stream, text), stdout);
    putchar('\n');
    if (!good || !flush_text(error)) return false;
    log_info("prompt: %" PRId64 " tokens, %.1f tokens/s; generated: %" PRId64 " tokens, %.1f tokens/s", prompt->count,
             prompt->count / fmax(first - begin, 1e-9), generated, generated / fmax(end - first, 1e-9));
    return true;
}

static bool check_tokenizer(const char *folder, const Config *config, const GenerateOptions *options, Error *error) {
    return !options->text || source_has_byte_tokenizer(folder, config) ||
           error_set(error, ERROR_USAGE, "%s is not a model of the byte tokenizer: give text=false and numbers of tokens as the prompt", folder);
}

static bool run(const char *folder, const char *text, const GenerateOptions *options, OptionStrings *strings, Error *error) {
    Config config;
    Prompt prompt = {0};
    Generator *generator = NULL;
    if (!source_read_config(folder, &config, strings, error) || !check_tokenizer(folder, &config, options, error)) return false;
    bool shorter = config.model.family != FAMILY_GPT2; /* its positions are weights */
    if (shorter && options->context && options->context < config.model.context) config.model.context = options->context;
    if (options->threads) omp_set_num_threads((int)options->threads);
    Precision precision = options->precision == PRECISION_OF_MODEL ? config.precision : options->precision - 1;
    if (read_prompt(text, options, &prompt, error)) generator = generator_open(folder, &config, precision, options->cache, error);
    bool done = generator && generate(generator, &prompt, options, error);
    generator_free(generator);
    free(prompt.tokens);
    return done;
}

int cmd_generate(int argc, char **argv) {
    if (argc < 2 || arguments_want_help(argc, argv)) {
        print_help();
        return argc < 2 ? ERROR_USAGE : 0;
    }
    GenerateOptions options;
    OptionStrings strings = {0};
    Error error = {0};
    const char *given[2];
    bool done = arguments_read(&syntax, argc - 1, argv + 1, &options, &strings, given, &error) && run(given[0], given[1], &options, &strings, &error);
    options_free_strings(&strings);
    return done ? 0 : cmd_fail(&error);
}
