/* Opens a generator for a command, and prints its text to stdout. The caller closes what it opens.
 * Called by generate and chat. */
#include "app/generation.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/math.h"
#include "base/scope.h"
#include "base/strings.h"
#include "config/layout_rules.h"
#include "data/byte_tokenizer.h"
#include "token/tokenizer.h"
#include "run/generation_settings.h"
#include "run/source.h"
#include "session/weights.h"

/* -- Tokens to text ------------------------------------------------------------------------------------------------ */

bool model_text_flush(const ModelText *text, Error *error) {
    return !text->printed || fflush(stdout) == 0 || error_set(error, ERROR_INTERNAL, "cannot write text to stdout: %s", strerror(errno));
}

bool model_text_open(ModelText *text, const char *folder, const Config *config, Error *error) {
    SCOPED_FREE char *path = source_tokenizer(folder, config);
    if (!path)
        return error_set(error, ERROR_USAGE,
            "%s has no known tokenizer: put its tokenizer.json %s, or set text=false and give token ids as the prompt", folder,
            source_is_run(folder)  ? "into RUN/tokenizer"
            : gguf_is_file(folder) ? "into the folder that smelt convert makes of it"
                                   : "there");
    text->tokenizer = *path ? tokenizer_open(path, error) : NULL;
    if (*path && !text->tokenizer) return error_context(error, "the tokenizer (not needed with text=false)");
    if (!tokenizer_set_bos(text->tokenizer, (TokenizerBos)config->data.bos, error)) return false;
    if (!source_check_rows(config->model.vocabulary, text->tokenizer, *path ? path : "the byte tokenizer",
            "use its own tokenizer, or set text=false and give token ids as the prompt", error))
        return error_context(error, "%s", folder);
    if (*path) text->encoder = tokenizer_encoder_open(text->tokenizer);
    if (*path) text->decoder = tokenizer_decoder(text->tokenizer, true);
    else token_ids_append(&text->ends, BYTE_SEPARATOR);
    return generation_end_tokens(folder, config, text->tokenizer, &text->ends, error);
}

void model_text_close(ModelText *text) {
    token_ids_free(&text->ends);
    tokenizer_encoder_free(text->encoder);
    tokenizer_free(text->tokenizer);
}

/* Prints a piece of text. On a terminal, control characters other than tabs and newlines become
 * U+FFFD, because a model may generate them. C1 is C2 80 to C2 9F. */
static void print_piece(const ModelText *text, const char *piece, int length) {
    for (int i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)piece[i], next = i + 1 < length ? (unsigned char)piece[i + 1] : 0;
        bool c1 = byte == 0xc2 && next < 0xa0, c0 = (byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7f;
        if (text->terminal && (c0 || c1)) fputs("\xef\xbf\xbd", stdout);
        else putchar(byte);
        i += text->terminal && c1;
    }
}

const char *model_text_bytes(ModelText *text, int32_t token, char *byte, size_t *length) {
    *byte = (char)token;
    *length = 1;
    return text->tokenizer ? tokenizer_decode(&text->decoder, token, length) : byte;
}

void model_text_put(ModelText *text, int32_t token, bool first) {
    if (!text->printed) return;
    if (text->numbers) {
        printf(first ? "%" PRId32 : " %" PRId32, token);
        return;
    }
    char byte, piece[UTF8_OUTPUT];
    size_t length;
    const char *bytes = model_text_bytes(text, token, &byte, &length);
    for (size_t i = 0; i < length; i++) print_piece(text, piece, utf8_put(&text->stream, (uint8_t)bytes[i], piece));
}

void model_text_end(ModelText *text) {
    char piece[UTF8_OUTPUT];
    if (!text->printed) return;
    print_piece(text, piece, utf8_finish(&text->stream, piece));
    putchar('\n');
}

bool model_text_stops(const ModelText *text, int32_t token) {
    for (size_t i = 0; i < text->ends.count; i++)
        if (text->ends.items[i] == token) return true;
    return false;
}

int64_t model_text_limit(const ModelText *text) {
    if (text->numbers) return INT64_MAX;
    return text->tokenizer ? tokenizer_vocabulary(text->tokenizer) : BYTE_VOCABULARY;
}

/* -- Prompts -------------------------------------------------------------------------------------------------------- */

/* Reads numbers like "17 4 1203". */
static bool parse_token_ids(const char *prompt, TokenIds *tokens, Error *error) {
    for (const char *at = prompt + strspn(prompt, " \n"); *at; at += strspn(at, " \n")) {
        char *end;
        long token = strtol(at, &end, 10);
        if (end == at || (*end && !strchr(" \n", *end)) || token < 0 || token > INT32_MAX)
            return error_set(error, ERROR_USAGE, "'%.20s' in the prompt is not a token id: with text=false, separate ids by spaces", at);
        token_ids_append(tokens, (int32_t)token);
        at = end;
    }
    return true;
}

bool generation_read_prompt(const char *prompt, const ModelText *text, TokenIds *tokens, Error *error) {
    bool bytes = !text->numbers && !text->tokenizer;
    for (const char *at = prompt; bytes && *at; at++) token_ids_append(tokens, (uint8_t)*at);
    if (text->numbers && !parse_token_ids(prompt, tokens, error)) return false;
    if (text->encoder && !tokenizer_encode(text->encoder, prompt, strlen(prompt), TOKENIZER_ADD_SPECIAL, tokens, error))
        return error_context(error, "the prompt");
    return tokens->count > 0 ||
           error_set(error, ERROR_USAGE, "the prompt is empty: give at least one %s", text->numbers ? "token" : "character");
}

bool generation_read_stops(const char *option, StopTexts *stops, Error *error) {
    Error ignored;
    json_auto_t *list = *option == '[' ? json_parse(option, strlen(option), 0, &ignored) : json_pack("[s]", option);
    bool good = json_array_size(list) > 0;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *text = json_array_get(list, i);
        good = good && json_is_string(text) && stop_texts_add(stops, json_string_value(text), json_string_length(text));
    }
    return !*option || good ||
           error_set(
               error, ERROR_USAGE, "stop=%s is not a text or a JSON list of at most %d texts, none of them empty", option, MOST_STOP_TEXTS);
}

bool model_chat_open(ModelChat *chat, ModelText *text, const char *folder, const Config *config, const ChatOptions *options, Error *error) {
    SCOPED_FREE char *tokenizer = source_tokenizer(folder, config);
    ChatOptions own = {
        .source = tokenizer ? tokenizer : "", .template = options->template, .special = options->special, .end_token = BYTE_SEPARATOR};
    chat->chat = chat_open(&own, text->tokenizer, error);
    if (!chat->chat) return false;
    chat->encoder = chat_encoder_open(chat->chat);
    int32_t end = chat_answer_end(chat->encoder);
    if (end >= 0 && !model_text_stops(text, end)) token_ids_append(&text->ends, end);
    return true;
}

void model_chat_close(ModelChat *chat) {
    chat_encoder_free(chat->encoder);
    chat_free(chat->chat);
}

/* -- A generator --------------------------------------------------------------------------------------------------- */

void generation_limit_context(Config *config, int64_t context) {
    bool fixed = family_of(&config->model)->learns_positions;
    if (!fixed && context && context < config->model.context) config->model.context = context;
}

Sampling generation_sampling(const GenerationOptions *options) {
    return (Sampling){.temperature = options->temperature,
        .top_k = options->top_k,
        .top_p = options->top_p,
        .min_p = options->min_p,
        .seed = (uint64_t)options->seed};
}

/* Sets the layout: layout.tp ranks divide the model, and layout.cp ranks the cache. The layout
 * rules check the sequences of training. Generation has one sequence of any length, so its length
 * is set to one that all rules allow. */
static void lay_out_ranks(Config *config, int64_t tp, int64_t cp) {
    config->layout = (LayoutConfig){.dp = 1, .tp = tp, .pp = 1, .cp = cp, .ep = 1};
    config->data.length = config->batch.tokens = round_up(config->model.context, 4 * cp * tp);
    config->batch.sequences = 1;
}

/* Returns the largest valid layout.tp up to `tp` for this number of ranks, whose copies share the
 * cache; 1 is always valid. */
static int64_t nearest_tp(const Config *config, int64_t tp, int ranks) {
    Config trial = *config;
    char broken[256];
    for (tp = int_min(tp, ranks); tp > 1; tp--) {
        lay_out_ranks(&trial, tp, ranks / tp);
        if (ranks % tp == 0 && !layout_breaks(&trial, ranks, broken, sizeof broken)) break;
    }
    return tp;
}

/* Writes advice such as "give layout.tp=1 and leave layout.cp out". */
static void advise_tp(int64_t given, int64_t nearest, bool cp_given, char *text, size_t size) {
    const char *cp = cp_given ? "remove layout.cp" : "";
    if (nearest == given) snprintf(text, size, "%s", cp);
    else snprintf(text, size, "set layout.tp=%" PRId64 "%s%s", nearest, cp_given ? " and " : "", cp);
}

/* Chooses the layout. Without layout.cp, the ranks that layout.tp leaves share the cache. */
static bool choose_generation_layout(const GenerationOptions *options, int ranks, Config *config, Error *error) {
    int64_t tp = options->layout.tp, given = options->layout.cp, cp = given ? given : int_max(ranks / tp, 1);
    char broken[256], advice[64];
    advise_tp(tp, nearest_tp(config, tp, ranks), given, advice, sizeof advice);
    if (ranks > 1 && !options->cache)
        return error_set(error, ERROR_USAGE, "cache=false works with one process, but there are %d: start only one", ranks);
    lay_out_ranks(config, tp, cp);
    if (layout_breaks(config, 0, broken, sizeof broken)) return error_set(error, ERROR_USAGE, "%s: %s", broken, advice);
    return cp * tp == ranks || error_set(error, ERROR_USAGE,
                                   "layout.tp=%" PRId64 " x layout.cp=%" PRId64
                                   " does not match %d rank%s: start them with smelt launch -n %" PRId64 " -- generate ..., or %s",
                                   tp, cp, ranks, plural(ranks), cp * tp, advice);
}

Generator *generation_open(Inference *inference, const char *folder, Config *config, const GenerationOptions *options, Error *error) {
    generation_limit_context(config, options->context);
    if (!choose_generation_layout(options, comm_size(inference->comm), config, error) ||
        !inference_open(inference, config, options->device, options->precision, options->threads, error))
        return NULL;
    Generator *generator =
        weights_open_generator(folder, &inference->mesh, config, inference->precision, inference->device, options->cache, error);
    if (generator) inference_check_fp8(inference, config, generator_graph(generator));
    return generator;
}

/* The ranks of an engine divide the model, and not the caches by position. */
static bool choose_engine_layout(const GenerationOptions *options, int ranks, Config *config, Error *error) {
    int64_t tp = int_max(options->layout.tp, 1);
    char broken[256];
    if (tp != ranks)
        return error_set(error, ERROR_USAGE,
            "layout.tp=%" PRId64
            " does not match %d rank%s: many sequences at once need a rank for each part of the model; start them with "
            "smelt launch -n %" PRId64 " -- COMMAND ... layout.tp=%" PRId64,
            tp, ranks, plural(ranks), int_max(tp, ranks), int_max(tp, ranks));
    lay_out_ranks(config, tp, 1);
    return !layout_breaks(config, 0, broken, sizeof broken) || error_set(error, ERROR_USAGE, "%s", broken);
}

Engine *generation_open_engine(
    Inference *inference, const char *folder, Config *config, const GenerationOptions *options, EngineSizes sizes, Error *error) {
    if (!choose_engine_layout(options, comm_size(inference->comm), config, error)) return NULL;
    if (!inference_open(inference, config, options->device, options->precision, options->threads, error)) return NULL;
    const EnginePlace place = {&inference->mesh, inference->precision, inference->device};
    Engine *engine = weights_open_engine(folder, config, place, sizes, error);
    if (engine) inference_check_fp8(inference, config, engine_graph(engine));
    return engine;
}

bool generation_load_adapters(
    const Inference *inference, const Config *config, const NamedAdapters *adapters, Engine *engine, Error *error) {
    const EnginePlace place = {&inference->mesh, inference->precision, inference->device};
    return (!config->exact || adapter_set_check_exact(adapters, inference->device, error)) &&
           adapter_set_load(adapters, engine, place, &config->model, error);
}
