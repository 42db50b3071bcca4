/* Opens the program of rl.environment, and turns its answers into tokens. Owned by the rollouts. */
#include "rl/environment_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"

struct Environment {
    const RolloutOptions *options;
    RewardSet *program;
    TokenizerEncoder *encoder; /* NULL: bytes */
    Chat *chat;                /* opened for the first conversation */
    ChatEncoder *chat_encoder;
};

bool environment_open(const RolloutOptions *options, Environment **environment, Error *error) {
    const RlConfig *rl = &options->config->rl;
    *environment = NULL;
    if (!rl->environment[0]) return true;
    Environment *e = *environment = memory_allocate(sizeof *e);
    RewardLimits limits = rewards_limits(rl);
    limits.environment = true;
    e->options = options;
    if (options->corpus->tokenizer) e->encoder = tokenizer_encoder_open(options->corpus->tokenizer);
    e->program = rewards_create(rl->environment, limits, error);
    return e->program || error_context(error, "rl.environment");
}

void environment_close(Environment *e) {
    if (!e) return;
    rewards_free(e->program);
    chat_encoder_free(e->chat_encoder);
    chat_free(e->chat);
    tokenizer_encoder_free(e->encoder);
    free(e);
}

RewardSet *environment_program(Environment *e) { return e->program; }

static bool encode_conversation(Environment *e, const json_t *record, const json_t *append, int32_t last, TokenIds *ids, Error *error) {
    const DataConfig *data = &e->options->config->data;
    const Tokenizer *tokenizer = e->options->corpus->tokenizer;
    const ChatOptions options = {.source = tokenizer ? data->tokenizer : "", .template = data->template};
    if (!e->chat && !(e->chat = chat_open(&options, tokenizer, error))) return false;
    if (!e->chat_encoder) e->chat_encoder = chat_encoder_open(e->chat);
    json_auto_t *messages =
        json_is_array(append) ? json_incref((json_t *)append) : json_pack("[{ss sO}]", "role", "user", "content", append);
    return chat_continue(e->chat_encoder, record, messages, last, ids, error);
}

static bool encode_text(const Environment *e, const json_t *append, TokenIds *ids, Error *error) {
    const char *text = json_string_value(append);
    size_t size = json_string_length(append);
    if (!text) return error_set(error, ERROR_DATA, "it appended messages, but the prompt is not a conversation: append a text");
    if (e->encoder) return tokenizer_encode(e->encoder, text, size, 0, ids, error);
    for (size_t i = 0; i < size; i++) token_ids_append(ids, (uint8_t)text[i]);
    return true;
}

bool environment_encode(Environment *e, const json_t *record, const json_t *append, int32_t last, TokenIds *ids, Error *error) {
    bool conversation = json_is_array(json_object_get(record, "messages"));
    bool encoded = conversation ? encode_conversation(e, record, append, last, ids, error) : encode_text(e, append, ids, error);
    return (encoded && (ids->count > 0 || error_set(error, ERROR_DATA, "what it appended has no tokens"))) ||
           error_context(error, "environment");
}
