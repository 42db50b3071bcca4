/* `smelt generate MODEL "prompt" [key=value ...]`: continues a prompt, which is text for the model's own tokenizer
 * or the byte tokenizer, or numbers of tokens. Text goes to stdout as it is drawn, the rate to stderr. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "app/command.h"
#include "app/inference.h"
#include "data/data.h"
#include "infer/generate.h"
#include "infer/utf8.h"
#include "token/tokenizer.h"
#include "train/source.h"

typedef struct GenerateOptions {
    LayoutConfig layout;
    Fp8Config fp8;
    int64_t tokens, top_k, seed, context, threads;
    double temperature, top_p;
    bool text, cache;
    int device, precision;
} GenerateOptions;

#define FIELD(name) offsetof(GenerateOptions, name)
static const Option rows[] = {
    INT_OPTION(tokens, "200", 0, 1e9, "tokens", "most tokens to generate; the end of the document or of the context stops earlier"),
    REAL_OPTION(temperature, "1", 0, 100, "", "divides the logits: lower is more predictable; 0: always the most likely token"),
    INT_OPTION(top_k, "0", 0, 1e9, "tokens", "draw among this many of the most likely tokens; 0: all"),
    REAL_OPTION(top_p, "1", 0, 1, "", "draw among the fewest most likely tokens that have this probability together"),
    INT_OPTION(seed, "1", 0, 1e15, "", "the same seed gives the same text"),
    BOOL_OPTION(text, "true", "false: prompt and output are token ids; what ends a text is the folder's eos_token_id"),
    INT_OPTION(
        context, "0", 0, 1 << 24, "tokens", "most positions, prompt included, which decides the memory of the cache; 0: the model's"),
    BOOL_OPTION(cache, "true", "false: compute the whole sequence again for each token, to check the cache"),
    INT_OPTION(
        layout.cp, "0", 0, 1 << 20, "ranks", "ranks that share the cache by position; 0: as many as layout.tp leaves of those started"),
    INT_OPTION(
        layout.tp, "1", 1, 1 << 20, "ranks", "ranks that share out weights, and the cache by heads, of a model that does not fit one"),
    INT_OPTION(threads, "0", 0, 4096, "threads", "CPU threads; 0: all"),
    CHOICE_OPTION(device, "auto", "auto|cpu|hip|cuda", "where to generate"),
    CHOICE_OPTION(precision, "same", "same|bf16|fp32|fp64", "type of weights and activations; same: as in training"),
    CHOICE_OPTION(fp8.recipe, "none", INFERENCE_FP8,
        "GEMMs of linear layers and experts in fp8, whatever the training had; same: as in training; fp8.min_size is that of the run"),
};
#undef FIELD

static const OptionTable table = OPTION_TABLE(rows);

/* -- Tokens to text ------------------------------------------------------------------------------------------------ */

/* How tokens are shown, and which of them end a text. */
typedef struct Text {
    bool numbers;
    bool printed;         /* by this rank, for all */
    bool terminal;        /* stdout is one */
    Tokenizer *tokenizer; /* NULL: the byte tokenizer */
    TokenizerDecoder decoder;
    Utf8Stream stream;
    TokenIds ends;
} Text;

static bool flush_text(const Text *text, Error *error) {
    return !text->printed || fflush(stdout) == 0 ||
           error_set(error, ERROR_INTERNAL, "cannot write the text to stdout: %s", strerror(errno));
}

static bool open_text(Text *text, const char *folder, const Config *config, Error *error) {
    SCOPED_FREE char *path = source_tokenizer(folder, config);
    if (!path)
        return error_set(error, ERROR_USAGE,
            "the tokenizer of %s is not known: put its tokenizer.json %s, or give text=false and numbers of tokens as the prompt", folder,
            source_is_run(folder)  ? "into RUN/tokenizer"
            : gguf_is_file(folder) ? "into the folder that smelt convert makes of it"
                                   : "there");
    text->tokenizer = *path ? tokenizer_open(path, error) : NULL;
    if (*path && !text->tokenizer) return error_context(error, "the tokenizer (text=false does without)");
    if (!source_check_rows(config->model.vocabulary, text->tokenizer, *path ? path : "the byte tokenizer",
            "it is another model's tokenizer; give text=false and numbers of tokens as the prompt", error))
        return error_context(error, "%s", folder);
    if (!*path) {
        token_ids_append(&text->ends, BYTE_SEPARATOR);
        return true;
    }
    text->decoder = tokenizer_decoder(text->tokenizer, true);
    source_end_tokens(folder, text->tokenizer, &text->ends);
    return true;
}

static void close_text(Text *text) {
    token_ids_free(&text->ends);
    tokenizer_free(text->tokenizer);
}

/* A terminal would obey control characters that a model draws: it gets U+FFFD in their place, but for tabs and line
 * ends. C1 is C2 80 to C2 9F. */
static void print_piece(const Text *text, const char *piece, int length) {
    for (int i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)piece[i], next = i + 1 < length ? (unsigned char)piece[i + 1] : 0;
        bool c1 = byte == 0xc2 && next < 0xa0, c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
        if (text->terminal && (c0 || c1)) fputs("\xef\xbf\xbd", stdout);
        else putchar(byte);
        i += text->terminal && c1;
    }
}

static void print_token(Text *text, int32_t token, bool first) {
    if (!text->printed) return;
    if (text->numbers) {
        printf(first ? "%" PRId32 : " %" PRId32, token);
        return;
    }
    char byte = (char)token, piece[UTF8_OUTPUT];
    size_t length = 1;
    const char *bytes = text->tokenizer ? tokenizer_decode(&text->decoder, token, &length) : &byte;
    for (size_t i = 0; i < length; i++) print_piece(text, piece, utf8_put(&text->stream, (uint8_t)bytes[i], piece));
}

static void print_end(Text *text) {
    char piece[UTF8_OUTPUT];
    if (!text->printed) return;
    print_piece(text, piece, utf8_finish(&text->stream, piece));
    putchar('\n');
}

static bool is_end(const Text *text, int32_t token) {
    for (size_t i = 0; i < text->ends.count; i++)
        if (text->ends.items[i] == token) return true;
    return false;
}

/* Tokens from this one on mean nothing in a text. */
static int64_t token_limit(const Text *text) {
    if (text->numbers) return INT64_MAX;
    return text->tokenizer ? tokenizer_vocabulary(text->tokenizer) : BYTE_VOCABULARY;
}

/* -- What a prompt is ---------------------------------------------------------------------------------------------- */

/* With what the tokenizer puts around a text, such as a token for its beginning. */
static bool encode(const Tokenizer *tokenizer, const char *prompt, TokenIds *tokens, Error *error) {
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    bool encoded = tokenizer_encode(encoder, prompt, strlen(prompt), TOKENIZER_ADD_SPECIAL, tokens, error);
    tokenizer_encoder_free(encoder);
    return encoded || error_context(error, "the prompt");
}

/* "17 4 1203" */
static bool read_numbers(const char *prompt, TokenIds *tokens, Error *error) {
    for (const char *at = prompt + strspn(prompt, " \n"); *at; at += strspn(at, " \n")) {
        char *end;
        long token = strtol(at, &end, 10);
        if (end == at || (*end && !strchr(" \n", *end)) || token < 0 || token > INT32_MAX)
            return error_set(error, ERROR_USAGE,
                "'%.20s' in the prompt is not the number of a token: with text=false write them with spaces between", at);
        token_ids_append(tokens, (int32_t)token);
        at = end;
    }
    return true;
}

/* The prompt, or with "-" standard input less a line end at its end; the caller frees. */
static char *take_prompt(const char *word, Error *error) {
    char *text = NULL, *prompt = NULL;
    size_t size = 0;
    if (strcmp(word, "-")) return memory_copy_string(word);
    ssize_t length = getdelim(&text, &size, '\0', stdin);
    bool zero = !ferror(stdin) && !feof(stdin);
    if (zero || ferror(stdin))
        error_set(error, ERROR_DATA, "the prompt cannot be read from standard input: %s",
            zero ? "it holds a zero byte, which no text has" : strerror(errno));
    else if (length <= 0) prompt = memory_copy_string("");
    else prompt = memory_format("%.*s", (int)length - (text[length - 1] == '\n'), text);
    free(text);
    return prompt;
}

static bool read_prompt(const char *prompt, const Text *text, TokenIds *tokens, Error *error) {
    bool bytes = !text->numbers && !text->tokenizer;
    for (const char *at = prompt; bytes && *at; at++) token_ids_append(tokens, (uint8_t)*at);
    if (text->numbers && !read_numbers(prompt, tokens, error)) return false;
    if (text->tokenizer && !encode(text->tokenizer, prompt, tokens, error)) return false;
    return tokens->count > 0 ||
           error_set(error, ERROR_USAGE, "the prompt is empty: give at least one %s", text->numbers ? "token" : "character");
}

/* -- Continuing it ------------------------------------------------------------------------------------------------- */

static bool feed_prompt(Generator *generator, const TokenIds *prompt, Text *text, Error *error) {
    if (!generator_feed(generator, prompt->items, (int64_t)prompt->count, error)) return error_context(error, "the prompt");
    for (size_t i = 0; i < prompt->count; i++) print_token(text, prompt->items[i], i == 0);
    return flush_text(text, error);
}

/* Returns with *generated set in any case; *full: there was no room for more. */
static bool continue_text(Generator *generator, const GenerateOptions *options, Text *text, int64_t *generated, bool *full, Error *error) {
    Sampling sampling = {
        .temperature = options->temperature, .top_k = options->top_k, .top_p = options->top_p, .seed = (uint64_t)options->seed};
    for (*generated = 0; *generated < options->tokens && generator_room(generator) > 0; (*generated)++) {
        int32_t token;
        if (!generator_next(generator, &sampling, token_limit(text), &token, error)) return false;
        if (is_end(text, token)) return true;
        print_token(text, token, false);
        if (!flush_text(text, error)) return false;
    }
    *full = *generated < options->tokens;
    return true;
}

static bool generate(Generator *generator, const TokenIds *prompt, const GenerateOptions *options, Text *text, Error *error) {
    int64_t generated = 0;
    bool full = false;
    double begin = log_seconds();
    if (!feed_prompt(generator, prompt, text, error) || !generator_logits(generator, error)) return false;
    double first = log_seconds();
    bool good = continue_text(generator, options, text, &generated, &full, error);
    double end = log_seconds();
    print_end(text);
    if (!good || !flush_text(text, error)) return false;
    if (full) log_info("stopped: the context of the model is full");
    log_info("prompt: %zu token%s, %.1f tokens/s; generated: %" PRId64 " token%s, %.1f tokens/s", prompt->count,
        plural((int64_t)prompt->count), prompt->count / fmax(first - begin, 1e-9), generated, plural(generated),
        generated / fmax(end - first, 1e-9));
    return true;
}

/* layout.tp ranks share out the model, and what that leaves of the ranks shares the cache. Layouts are checked against the
 * sequences of a configuration, which concern training: generation has one of any length, so here its length is one that
 * all rules allow. */
static bool choose_layout(const GenerateOptions *options, int ranks, Config *config, Error *error) {
    int64_t tp = options->layout.tp, cp = options->layout.cp ? options->layout.cp : int_max(ranks / tp, 1);
    config->layout = (LayoutConfig){.dp = 1, .tp = tp, .pp = 1, .cp = cp, .ep = 1};
    config->data.length = config->batch.tokens = round_up(config->model.context, 4 * cp * tp);
    config->batch.sequences = 1;
    if (ranks > 1 && !options->cache)
        return error_set(error, ERROR_USAGE, "cache=false is for one process, and there are %d: start one alone", ranks);
    return cp * tp == ranks || error_set(error, ERROR_USAGE,
                                   "layout.tp=%" PRId64 " x layout.cp=%" PRId64 " and %d rank%s: start it as smelt launch -n %" PRId64
                                   " -- generate ..., or leave layout.cp out",
                                   tp, cp, ranks, plural(ranks), cp * tp);
}

static bool run_model(Inference *inference, const char *folder, Config *config, const GenerateOptions *options, const TokenIds *prompt,
    Text *text, Error *error) {
    bool shorter = config->model.family != FAMILY_GPT2; /* its positions are weights */
    if (shorter && options->context && options->context < config->model.context) config->model.context = options->context;
    if (!choose_layout(options, comm_size(inference->comm), config, error) ||
        !inference_open(inference, config, options->device, options->precision, options->threads, error))
        return false;
    Generator *generator =
        source_open_generator(folder, &inference->mesh, config, inference->precision, inference->device, options->cache, error);
    if (generator) inference_check_fp8(inference, config, generator_graph(generator));
    bool done = generator && generate(generator, prompt, options, text, error);
    generator_free(generator);
    return done;
}

/* The tokens of the prompt, which the first rank reads for all. */
static bool take_tokens(const char *word, const Text *text, Comm *comm, TokenIds *prompt, Error *error) {
    SCOPED_FREE char *words = comm_rank(comm) == 0 ? take_prompt(word, error) : NULL;
    if (comm_rank(comm) == 0 && (!words || !read_prompt(words, text, prompt, error))) return false;
    int64_t count = (int64_t)prompt->count;
    if (!comm_host_broadcast(comm, "prompt length", &count, sizeof count, COMM_U8, 0, error)) return false;
    while ((int64_t)prompt->count < count) token_ids_append(prompt, 0);
    return comm_host_broadcast(comm, "prompt", prompt->items, count * (int64_t)sizeof *prompt->items, COMM_U8, 0, error);
}

static bool run_rank(Inference *inference, Invocation *invocation, Error *error) {
    const GenerateOptions *options = invocation->options;
    const char *folder = invocation->words[0];
    Config config;
    SCOPED(close_text) Text text = {.numbers = !options->text, .printed = inference_leads(inference), .terminal = isatty(STDOUT_FILENO)};
    SCOPED(token_ids_free) TokenIds prompt = {0};
    if (!source_read_config(folder, &config, &invocation->strings, error)) return false;
    inference_choose_fp8(&config, options->fp8.recipe);
    if (text.numbers) source_end_tokens(folder, NULL, &text.ends);
    else if (!open_text(&text, folder, &config, error)) return false;
    return take_tokens(invocation->words[1], &text, inference->comm, &prompt, error) &&
           run_model(inference, folder, &config, options, &prompt, &text, error);
}

static bool run(Invocation *invocation, Error *error) {
    Inference inference = {0};
    bool done = inference_join(&inference, error) && run_rank(&inference, invocation, error);
    inference_close(&inference, done ? NULL : error);
    return done;
}

const Command command_generate = {
    .name = "generate",
    .summary = "continue a prompt",
    .words = "MODEL \"prompt\"",
    .explanation =
        "Continues the prompt with a run's newest checkpoint (RUN), another one (RUN@STEP, RUN@best, or its folder), or a\n"
        "Hugging Face folder. Text goes\n"
        "through the model's tokenizer. The prompt - is standard input. A prompt that looks like key=value or opens with -- is "
        "given after --.\n\n"
        "smelt launch -n 2 -- generate MODEL \"prompt\" shares the cache of a long context out among two processes with a GPU each; "
        "docs/parallel.md tells more.\n",
    .hint = "a prompt that looks like key=value or opens with -- is given after --",
    .table = &table,
    .options_size = sizeof(GenerateOptions),
    .run = run,
};
