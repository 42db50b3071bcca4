/* `smelt generate RUN "prompt" [key=value ...]`: continues a prompt with the byte tokenizer. Text goes to stdout as it is drawn, the rate to stderr. */
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
#include "infer/source.h"
#include "infer/utf8.h"

typedef struct GenerateOptions {
    int64_t tokens, top_k, seed, threads;
    double temperature, top_p;
    bool cache;
    int precision;
} GenerateOptions;

enum { PRECISION_OF_RUN }; /* the choices after it are those of Precision */

#define FIELD(name) offsetof(GenerateOptions, name)
static const Option rows[] = {
    {"tokens", OPTION_INT, FIELD(tokens), "200", 0, 1e9, NULL, "tokens", "most tokens to generate; the document's end and the context limit stop it earlier"},
    {"temperature", OPTION_REAL, FIELD(temperature), "1", 0, 100, NULL, "", "divides the logits: lower is more predictable; 0: always the most likely token"},
    {"top_k", OPTION_INT, FIELD(top_k), "0", 0, 1e9, NULL, "tokens", "draw among this many of the most likely tokens; 0: all"},
    {"top_p", OPTION_REAL, FIELD(top_p), "1", 0, 1, NULL, "", "draw among the most likely tokens that have this probability together"},
    {"seed", OPTION_INT, FIELD(seed), "1", 0, 1e15, NULL, "", "the same seed gives the same text"},
    {"cache", OPTION_BOOL, FIELD(cache), "true", 0, 0, NULL, "", "false: compute the whole sequence again for each token, to check the cache"},
    {"threads", OPTION_INT, FIELD(threads), "0", 0, 4096, NULL, "threads", "CPU threads; 0 takes all"},
    {"precision", OPTION_CHOICE, FIELD(precision), "run", 0, 0, "run|bf16|fp32|fp64", "", "type of matrices and activations; run: as in training"},
};
#undef FIELD

static const OptionTable table = {rows, sizeof rows / sizeof *rows};
static const ArgumentSyntax syntax = {"smelt generate", "RUN \"prompt\"", 2, &table};

static void print_help(void) {
    printf("Usage: smelt generate RUN \"prompt\" [key=value ...]\n\n"
           "Continues the prompt with the newest checkpoint of a run folder. A prompt that looks like key=value or opens with -- is given after --.\n\n");
    options_print_help(&table, stdout);
}

static bool flush_text(Error *error) {
    return fflush(stdout) == 0 || error_set(error, ERROR_INTERNAL, "cannot write the text to stdout: %s", strerror(errno));
}

static bool print_byte(Utf8Stream *stream, uint8_t byte) {
    char text[UTF8_OUTPUT];
    int length = utf8_put(stream, byte, text);
    fwrite(text, 1, length, stdout);
    return length > 0;
}

static bool feed_prompt(Generator *generator, const char *prompt, Utf8Stream *stream, Error *error) {
    int64_t count = (int64_t)strlen(prompt);
    if (count == 0) return error_set(error, ERROR_USAGE, "the prompt is empty: give at least one character");
    int32_t *tokens = memory_allocate(count * sizeof *tokens);
    for (int64_t i = 0; i < count; i++) tokens[i] = (uint8_t)prompt[i];
    bool fed = generator_feed(generator, tokens, count, error);
    free(tokens);
    if (!fed) return error_context(error, "the prompt");
    for (int64_t i = 0; i < count; i++) print_byte(stream, (uint8_t)prompt[i]);
    return flush_text(error);
}

/* Returns with *generated set in any case. */
static bool continue_text(Generator *generator, const GenerateOptions *options, Utf8Stream *stream, int64_t *generated, Error *error) {
    Sampling sampling = {.temperature = options->temperature, .top_k = options->top_k, .top_p = options->top_p, .seed = (uint64_t)options->seed};
    for (*generated = 0; *generated < options->tokens; (*generated)++) {
        int32_t token;
        if (generator_room(generator) == 0) {
            log_info("stopped: the context of the model is full");
            return true;
        }
        if (!generator_next(generator, &sampling, BYTE_VOCABULARY, &token, error)) return false;
        if (token == BYTE_SEPARATOR) return true;
        if (print_byte(stream, (uint8_t)token) && !flush_text(error)) return false;
    }
    return true;
}

static bool generate(Generator *generator, const char *prompt, const GenerateOptions *options, Error *error) {
    Utf8Stream stream = {0};
    int64_t generated = 0;
    double begin = log_seconds();
    if (!feed_prompt(generator, prompt, &stream, error) || !generator_logits(generator, error)) return false;
    double first = log_seconds();
    bool good = continue_text(generator, options, &stream, &generated, error);
    double end = log_seconds();
    char text[UTF8_OUTPUT];
    fwrite(text, 1, utf8_finish(&stream, text), stdout);
    putchar('\n');
    if (!good || !flush_text(error)) return false;
    log_info("prompt: %zu tokens, %.1f tokens/s; generated: %" PRId64 " tokens, %.1f tokens/s", strlen(prompt),
             strlen(prompt) / fmax(first - begin, 1e-9), generated, generated / fmax(end - first, 1e-9));
    return true;
}

static bool run(const char *folder, const char *prompt, const GenerateOptions *options, OptionStrings *strings, Error *error) {
    Config config;
    if (!source_read_config(folder, &config, strings, error)) return false;
    if (options->threads) omp_set_num_threads((int)options->threads);
    Precision precision = options->precision == PRECISION_OF_RUN ? config.precision : options->precision - 1;
    Generator *generator = generator_open(folder, &config, precision, options->cache, error);
    bool done = generator && generate(generator, prompt, options, error);
    generator_free(generator);
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
