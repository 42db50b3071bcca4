/* Chat templates, and the records that they render: the bytes up to the first zero are a template, which renders the rest,
 * a line of JSON, as a conversation or a pair of answers. A mask covers the tokens, and the same bytes give the same text twice. */
#include "fuzz.h"

#include "base/memory.h"
#include "base/scope.h"
#include "chat/chat.h"

/* Whether the template takes it; `text` may be rendered. */
static bool render(const char *template, size_t size, const json_t *record, ChatText *text) {
    Error error = {0};
    ChatTemplate *parsed = chat_template_parse(template, size, "t", &error);
    bool good = parsed && chat_template_render(parsed, record, 0, text, &error);
    chat_template_free(parsed);
    if (!good) require_line(&error);
    return good;
}

/* Encodes it as bytes with a template that smelt has. */
static void encode(const json_t *record) {
    Error error = {0};
    ChatOptions options = {.source = "", .template = "chatml", .end_token = 256};
    ChatDocument document = {0};
    Chat *chat = chat_open(&options, NULL, &error);
    require(chat != NULL);
    ChatEncoder *encoder = chat_encoder_open(chat);
    if (chat_encode(encoder, record, &document, &error)) {
        size_t trained = 0;
        for (size_t i = 0; i < document.ids.count; i++) trained += document.trained[i];
        require(trained == document.trained_count && trained > 0 && trained <= document.ids.count);
    } else {
        require_line(&error);
    }
    chat_document_free(&document);
    chat_encoder_free(encoder);
    chat_free(chat);
}

/* As a pair of answers: two records of a prompt and a completion. */
static void split(const json_t *record) {
    Error error = {0};
    json_t *chosen, *rejected;
    if (!chat_split_pair(record, &chosen, &rejected, &error)) {
        require_line(&error);
        return;
    }
    require(json_equal(json_object_get(chosen, "prompt"), json_object_get(rejected, "prompt")));
    require(!json_equal(json_object_get(chosen, "completion"), json_object_get(rejected, "completion")));
    encode(chosen);
    encode(rejected);
    json_decref(chosen);
    json_decref(rejected);
}

FUZZ(chat) {
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t template = zero ? (size_t)(zero - data) : size, rest = zero ? size - template - 1 : 0;
    json_auto_t *record = rest ? json_loadb((const char *)zero + 1, rest, JSON_ALLOW_NUL, NULL) : NULL;
    json_auto_t *object = json_is_object(record) ? json_incref(record) : json_object();
    SCOPED(chat_text_free) ChatText text = {0}, again = {0};
    SCOPED_FREE char *source = memory_allocate(template + 1);
    if (template) memcpy(source, data, template);
    bool good = render(source, template, object, &text);
    require(render(source, template, object, &again) == good);
    require(!good || (text.size == again.size && !memcmp(text.bytes, again.bytes, text.size)));
    encode(object);
    split(object);
}
