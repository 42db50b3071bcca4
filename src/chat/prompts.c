/* Reads a file of prompts. Owns the template while it reads. Called when a run of reinforcement
 * learning opens its data. */
#include "chat/prompts.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/scope.h"

enum { PROMPT_FILE_LIMIT = 1 << 30 /* bytes */ };

typedef struct PromptReading {
    PromptSet *set;
    const PromptOptions *options;
    TokenizerEncoder *encoder;
    Chat *chat; /* opened for the first conversation */
    ChatEncoder *chat_encoder;
    ChatDocument document;
} PromptReading;

static void close_reading(PromptReading *reading) {
    tokenizer_encoder_free(reading->encoder);
    chat_encoder_free(reading->chat_encoder);
    chat_free(reading->chat);
    chat_document_free(&reading->document);
}

static bool open_prompt_template(PromptReading *reading, Error *error) {
    const ChatOptions options = {.source = reading->options->source, .template = reading->options->template};
    reading->chat = chat_open(&options, reading->options->tokenizer, error);
    if (!reading->chat) return false;
    if (!chat_has_template(reading->chat))
        return error_set(error, ERROR_USAGE,
            "messages need a chat template, which the tokenizer lacks: set data.template=FILE, or data.template=chatml");
    reading->chat_encoder = chat_encoder_open(reading->chat);
    reading->set->answer_end = chat_answer_end(reading->chat_encoder);
    return true;
}

static bool take_prompt_messages(PromptReading *reading, const json_t *record, TokenIds *tokens, Error *error) {
    if (!reading->chat && !open_prompt_template(reading, error)) return false;
    if (!chat_prompt(reading->chat_encoder, record, &reading->document, error)) return false;
    for (size_t i = 0; i < reading->document.ids.count; i++) token_ids_append(tokens, reading->document.ids.items[i]);
    return true;
}

bool prompt_read_ids(const json_t *ids, TokenIds *tokens, Error *error) {
    size_t index;
    json_t *value;
    json_array_foreach(ids, index, value) {
        json_int_t token = json_is_integer(value) ? json_integer_value(value) : -1;
        if (token < 0 || token > INT32_MAX) return error_set(error, ERROR_DATA, "element %zu of tokens is not a token id", index);
        token_ids_append(tokens, (int32_t)token);
    }
    return true;
}

static bool take_prompt_text(const PromptReading *reading, const json_t *text, TokenIds *tokens, Error *error) {
    const char *bytes = json_string_value(text);
    size_t length = json_string_length(text);
    if (strlen(bytes) != length) return error_set(error, ERROR_DATA, "prompt contains a zero character (U+0000): remove it");
    if (reading->encoder) return tokenizer_encode(reading->encoder, bytes, length, TOKENIZER_ADD_SPECIAL, tokens, error);
    for (size_t i = 0; i < length; i++) token_ids_append(tokens, (uint8_t)bytes[i]);
    return true;
}

static bool check_prompt_tokens(const PromptOptions *options, const TokenIds *tokens, Error *error) {
    if (!tokens->count) return error_set(error, ERROR_DATA, "the prompt is empty");
    for (size_t i = 0; i < tokens->count; i++)
        if (tokens->items[i] >= options->vocabulary)
            return error_set(
                error, ERROR_DATA, "token %d is not below model.vocabulary=%lld", tokens->items[i], (long long)options->vocabulary);
    return (int64_t)tokens->count <= options->most ||
           error_set(error, ERROR_DATA,
               "the prompt has %zu tokens, but data.length and rl.tokens leave room for %lld: increase data.length", tokens->count,
               (long long)options->most);
}

static bool take_prompt(void *context, JsonLine line, Error *error) {
    PromptReading *reading = context;
    PromptSet *set = reading->set;
    json_t *record = line.value;
    array_append(set->items, set->count, (Prompt){.record = record, .line = line.number});
    TokenIds *tokens = &set->items[set->count - 1].tokens;
    const json_t *text = json_object_get(record, "prompt"), *ids = json_object_get(record, "tokens"),
                 *messages = json_object_get(record, "messages");
    if (!json_is_object(record) || json_is_string(text) + json_is_array(ids) + json_is_array(messages) != 1)
        return error_set(error, ERROR_DATA, "expected an object with one of prompt (a text), messages (a list) and tokens (ids)");
    bool taken = ids        ? prompt_read_ids(ids, tokens, error)
                 : messages ? take_prompt_messages(reading, record, tokens, error)
                            : take_prompt_text(reading, text, tokens, error);
    return taken && check_prompt_tokens(reading->options, tokens, error);
}

bool prompt_set_read(PromptSet *set, const char *path, const PromptOptions *options, Error *error) {
    SCOPED(close_reading) PromptReading reading = {.set = set, .options = options};
    *set = (PromptSet){.answer_end = -1};
    if (options->tokenizer) reading.encoder = tokenizer_encoder_open(options->tokenizer);
    return json_read_lines(path, PROMPT_FILE_LIMIT, JSON_REJECT_DUPLICATES, take_prompt, &reading, error) &&
           (set->count > 0 || error_set(error, ERROR_DATA, "%s has no prompts", path));
}

void prompt_set_free(PromptSet *set) {
    for (size_t i = 0; i < set->count; i++) {
        json_decref(set->items[i].record);
        token_ids_free(&set->items[i].tokens);
    }
    free(set->items);
    *set = (PromptSet){0};
}
