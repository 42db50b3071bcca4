/* The forms in which data sets hold conversations, brought to one: a list of messages, or a prompt and its completion as
 * plain texts. A ChatRecord owns its list; all else belongs to the record. */
#include <string.h>

#include "base/error.h"
#include "chat/chat_internal.h"

/* As transformers does: an assistant's thoughts are called `reasoning_content`, and `thinking` too. */
static json_t *alias_reasoning(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL, *aliased = json_object(), *value;
    const char *name;
    for (size_t i = 0; i < sizeof names / sizeof *names && (!reasoning || json_is_null(reasoning)); i++)
        reasoning = json_object_get(message, names[i]);
    if (reasoning && !json_is_null(reasoning)) json_object_set(aliased, "thinking", reasoning);
    json_object_foreach(message, name, value) json_object_set(aliased, name, value);
    if (reasoning && !json_is_null(reasoning)) json_object_set(aliased, "reasoning_content", reasoning);
    return aliased;
}

static bool is_message(const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    bool fits = !content || json_is_null(content) || json_is_string(content) || json_is_array(content);
    return json_is_string(json_object_get(message, "role")) && fits;
}

/* Adds the messages of a list. */
static bool add_messages(ChatRecord *record, const json_t *list, const char *name, Error *error) {
    if (json_array_size(record->messages) + json_array_size(list) > CHAT_MESSAGES)
        return error_set(error, ERROR_DATA, "it has more than %d messages", CHAT_MESSAGES);
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *message = json_array_get(list, i);
        if (!is_message(message))
            return error_set(error, ERROR_DATA, "%s[%zu] is no message: it needs a role, and content that is a text or a list", name, i);
        json_array_append_new(record->messages, alias_reasoning(message));
    }
    return true;
}

static bool read_messages(ChatRecord *record, const json_t *messages, Error *error) {
    record->messages = json_array();
    if (!json_is_array(messages)) return error_set(error, ERROR_DATA, "messages is no list");
    if (json_array_size(messages) == 0) return error_set(error, ERROR_DATA, "messages is empty");
    return add_messages(record, messages, "messages", error);
}

/* Two texts, or two lists of messages of which the second is trained on. */
static bool read_completion(ChatRecord *record, const json_t *json, Error *error) {
    const json_t *prompt = json_object_get(json, "prompt"), *completion = json_object_get(json, "completion");
    record->prompt = prompt;
    record->completion = completion;
    if (json_is_string(prompt) && json_is_string(completion)) return true;
    if (!json_is_array(prompt) || !json_is_array(completion))
        return error_set(error, ERROR_DATA, "prompt and completion must be two texts or two lists of messages");
    record->messages = json_array();
    record->first = json_array_size(prompt);
    return add_messages(record, prompt, "prompt", error) && add_messages(record, completion, "completion", error);
}

static const char *text_of(const json_t *json, const char *name) {
    const char *text = json_string_value(json_object_get(json, name));
    return text ? text : "";
}

/* Alpaca's form: an instruction, perhaps with an input below it, and what is to be answered. */
static bool read_instruction(ChatRecord *record, const json_t *json, Error *error) {
    const char *instruction = text_of(json, "instruction"), *input = text_of(json, "input"), *system = text_of(json, "system");
    const json_t *output = json_object_get(json, "output");
    if (!*instruction || !json_is_string(output)) return error_set(error, ERROR_DATA, "instruction and output must be texts");
    record->messages = json_array();
    if (*system) json_array_append_new(record->messages, json_pack("{ss ss}", "role", "system", "content", system));
    json_array_append_new(record->messages,
        json_pack("{ss so}", "role", "user", "content", json_sprintf("%s%s%s", instruction, *input ? "\n\n" : "", input)));
    json_array_append_new(record->messages, json_pack("{ss sO}", "role", "assistant", "content", output));
    return true;
}

bool chat_record_read(ChatRecord *record, const json_t *json, Error *error) {
    *record = (ChatRecord){.tools = json_object_get(json, "tools"), .settings = json_object_get(json, "chat_template_kwargs")};
    if (record->tools && !json_is_array(record->tools) && !json_is_null(record->tools))
        return error_set(error, ERROR_DATA, "tools is no list");
    if (record->settings && !json_is_object(record->settings) && !json_is_null(record->settings))
        return error_set(error, ERROR_DATA, "chat_template_kwargs is no object");
    if (json_object_get(json, "messages")) return read_messages(record, json_object_get(json, "messages"), error);
    if (json_object_get(json, "completion")) return read_completion(record, json, error);
    if (json_object_get(json, "instruction")) return read_instruction(record, json, error);
    if (json_object_get(json, "chosen"))
        return error_set(error, ERROR_DATA, "it has two answers, one chosen, one rejected: format=preference takes these");
    return error_set(error, ERROR_DATA, "it has no messages, prompt and completion, or instruction and output");
}

void chat_record_free(ChatRecord *record) { json_decref(record->messages); }
