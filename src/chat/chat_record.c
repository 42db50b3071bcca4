/* Converts the forms of conversations in data sets to one: a list of messages, or a prompt and its
 * completion as plain texts. A ChatRecord owns its list; the rest belongs to the record. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "chat/chat_internal.h"

/* Joins content that is a list of text parts, as in OpenAI's form, with newlines. Templates of text
 * models would write such a list literally, with its brackets. NULL: a part is not text; *kind is
 * its type, "" if it has none. The caller releases the result. */
static json_t *text_of_parts(const json_t *parts, const char **kind) {
    size_t size = 0, at = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        *kind = type ? type : "";
        if (strcmp(*kind, "text") != 0 || !json_is_string(text)) return NULL;
        size += json_string_length(text) + 1;
    }
    SCOPED_FREE char *bytes = memory_allocate(size + 1);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *text = json_object_get(json_array_get(parts, i), "text");
        if (i) bytes[at++] = '\n';
        memcpy(bytes + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    return json_stringn(bytes, at);
}

/* Returns the object in a JSON text, for the caller to release; NULL: the text is not an object. */
static json_t *decode_object(const json_t *text) {
    Error ignored;
    json_t *value = json_parse(json_string_value(text), json_string_length(text), 0, &ignored);
    if (json_is_object(value)) return value;
    json_decref(value);
    return NULL;
}

/* Decodes the arguments of {"arguments"}: OpenAI's `function`, or a tool call without one. */
static void decode_arguments(ChatRecord *record, json_t *function) {
    const json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(arguments)) return;
    json_t *object = decode_object(arguments);
    ++*(object ? &record->decoded_arguments : &record->text_arguments);
    if (object) json_object_set_new(function, "arguments", object);
}

static void decode_calls(ChatRecord *record, json_t *message) {
    json_t *calls = json_deep_copy(json_object_get(message, "tool_calls"));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i);
        decode_arguments(record, call);
        decode_arguments(record, json_object_get(call, "function"));
    }
    if (calls) json_object_set_new(message, "tool_calls", calls);
}

/* Makes the message that transformers passes to a template. The caller releases it. Null members of
 * the message are dropped; null members of nested objects stay. An assistant's thoughts are called
 * both `reasoning_content` and `thinking`. */
static json_t *normalize_message(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *reasoning = NULL, *normal = json_object(), *value;
    const char *name;
    for (size_t i = 0; i < sizeof names / sizeof *names && (!reasoning || json_is_null(reasoning)); i++)
        reasoning = json_object_get(message, names[i]);
    if (json_is_null(reasoning)) reasoning = NULL;
    if (reasoning) json_object_set(normal, "thinking", reasoning);
    json_object_foreach(message, name, value) {
        if (!json_is_null(value)) json_object_set(normal, name, value);
    }
    if (json_is_array(json_object_get(message, "content")))
        json_object_set_new(normal, "content", text_of_parts(json_object_get(message, "content"), &name));
    if (reasoning) json_object_set(normal, "reasoning_content", reasoning);
    return normal;
}

/* Returns whether a message is valid. Its content may be missing only beside tool calls: otherwise a
 * message with its text under another name would be trained as an empty text. */
static bool is_message(const json_t *message) {
    const json_t *content = json_object_get(message, "content");
    bool empty = !content || json_is_null(content), calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    bool fits = empty ? calls : json_is_string(content) || json_is_array(content);
    return json_is_string(json_object_get(message, "role")) && fits;
}

/* Returns the member by which other programs exclude an answer from the loss: OpenAI's and
 * Mistral's `weight`, axolotl's `train`, `training` and `train_on_turn`, and `loss`. The caller
 * refuses it, so that no excluded answer is trained on silently. NULL: the message has no such
 * member, or the member says to train on it. */
static const char *excluded_by(const json_t *message) {
    static const char *const names[] = {"weight", "train", "training", "train_on_turn", "loss"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(message, names[i]);
        bool trains = !value || json_is_null(value) || json_is_true(value) || (json_is_number(value) && json_number_value(value) == 1);
        if (!trains) return names[i];
    }
    return NULL;
}

bool chat_check_members(const json_t *record, Error *error) {
    static const char *const media[] = {"images", "image", "videos", "video", "audios", "audio"};
    for (size_t i = 0; i < sizeof media / sizeof *media; i++) {
        const json_t *value = json_object_get(record, media[i]);
        bool empty = !value || json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0) ||
                     (json_is_string(value) && json_string_length(value) == 0);
        if (!empty) return error_set(error, ERROR_DATA, "the record has %s, but smelt trains only on text", media[i]);
    }
    static const char *const marks[] = {"label", "kto_tag"}; /* TRL's and LLaMA-Factory's data for KTO */
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (json_is_false(json_object_get(record, marks[i])))
            return error_set(error, ERROR_DATA, "%s is false: it marks an answer that should not be learned", marks[i]);
    const char *excluded = excluded_by(record);
    return !excluded ||
           error_set(error, ERROR_DATA, "the record has %s, but smelt trains on all records with equal weight: remove it", excluded);
}

/* Sets the reason why chat_shape left one of ShareGPT's messages as it is; returns false. */
static bool refuse_share_message(const char *from, const char *name, size_t i, Error *error) {
    if (!strcmp(from, "function_call"))
        return error_set(error, ERROR_DATA,
            "%s[%zu] is a function_call, but its value is not JSON text of calls with a name: write {\"name\": ..., \"arguments\": ...}",
            name, i);
    return error_set(error, ERROR_DATA,
        "%s[%zu] is from \"%.20s\", but smelt knows only human, gpt, system, observation, function_call, and the names of roles: rename "
        "it, or write role and content",
        name, i, from);
}

static bool check_message(const json_t *message, const char *name, size_t i, Error *error) {
    const json_t *from = json_object_get(message, "role") ? NULL : json_object_get(message, "from");
    if (json_is_string(from)) return refuse_share_message(json_string_value(from), name, i, error);
    if (!is_message(message))
        return error_set(error, ERROR_DATA,
            "%s[%zu] is not a message: it needs a role, and content that is a string or a list; with tool_calls, content is optional", name,
            i);
    const json_t *content = json_object_get(message, "content");
    const char *kind = "";
    json_auto_t *text = json_is_array(content) ? text_of_parts(content, &kind) : NULL;
    if (json_is_array(content) && !text)
        return error_set(error, ERROR_DATA, "%s[%zu] has content of type \"%.20s\", but smelt reads only text", name, i, kind);
    const char *role = json_string_value(json_object_get(message, "role"));
    const char *excluded = strcmp(role, "assistant") ? NULL : excluded_by(message); /* other messages are not trained anyway */
    if (excluded)
        return error_set(error, ERROR_DATA,
            "%s[%zu] has %s, which excludes or weights the message, but smelt trains on all answers with equal weight: remove it", name, i,
            excluded);
    return true;
}

bool chat_check_messages(const json_t *list, const char *name, Error *error) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (!check_message(json_array_get(list, i), name, i, error)) return false;
    return true;
}

static bool add_messages(ChatRecord *record, const json_t *list, const char *name, Error *error) {
    if (json_array_size(record->messages) + json_array_size(list) > CHAT_MESSAGES)
        return error_set(error, ERROR_DATA, "the record has more than %d messages", CHAT_MESSAGES);
    if (!chat_check_messages(list, name, error)) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *message = normalize_message(json_array_get(list, i));
        if (record->decode) decode_calls(record, message);
        json_array_append_new(record->messages, message);
    }
    return true;
}

/* Refuses a system message beside the conversation that would be dropped silently. */
static bool check_system(const json_t *json, const json_t *first, Error *error) {
    const json_t *system = json_object_get(json, "system");
    if (json_string_length(system) == 0 || chat_begins_with_system(first, system)) return true;
    return error_set(error, ERROR_DATA,
        chat_begins_with_system(first, NULL)
            ? "the record has system, and its first message is another system message: remove one of them"
            : "the record has system, which is read only beside conversations and instruction: make it the first message");
}

/* Returns whether a member beside the messages is a conversation of its own: some data sets repeat
 * the text of a message as the prompt. */
static bool is_another_conversation(const json_t *member, const json_t *messages) {
    bool another = json_array_size(member) > 0 || json_string_length(member) > 0;
    for (size_t i = 0; i < json_array_size(messages); i++)
        another = another && !json_equal(member, json_object_get(json_array_get(messages, i), "content"));
    return another && !json_equal(member, messages);
}

static bool read_messages(ChatRecord *record, const json_t *messages, Error *error) {
    record->unread[CHAT_CONVERSATIONS] = is_another_conversation(json_object_get(record->shaped, "conversations"), messages);
    record->unread[CHAT_PROMPTS] = is_another_conversation(json_object_get(record->shaped, "prompt"), messages);
    record->messages = json_array();
    if (!json_is_array(messages)) return error_set(error, ERROR_DATA, "messages is not a list");
    if (json_array_size(messages) == 0) return error_set(error, ERROR_DATA, "messages is empty");
    return add_messages(record, messages, "messages", error);
}

/* Reads two texts, or two lists of messages, the second of which is trained on. */
static bool read_completion(ChatRecord *record, const json_t *json, Error *error) {
    const json_t *prompt = json_object_get(json, "prompt"), *completion = json_object_get(json, "completion");
    record->prompt = prompt;
    record->completion = completion;
    if (json_is_string(prompt) && json_is_string(completion)) return true;
    if (!json_is_array(prompt) || !json_is_array(completion))
        return error_set(error, ERROR_DATA, "prompt and completion must be two strings or two lists of messages");
    record->messages = json_array();
    record->first = json_array_size(prompt);
    return add_messages(record, prompt, "prompt", error) && add_messages(record, completion, "completion", error);
}

static bool is_optional_text(const json_t *value) { return !value || json_is_null(value) || json_is_string(value); }

/* Reads Alpaca's form: an instruction, an optional input below it, and the answer. */
static bool read_instruction(ChatRecord *record, const json_t *json, Error *error) {
    json_t *instruction = json_object_get(json, "instruction"), *system = json_object_get(json, "system"),
           *output = json_object_get(json, "output");
    if (!is_optional_text(instruction) || !is_optional_text(json_object_get(json, "input")) || !is_optional_text(system) ||
        !json_is_string(output))
        return error_set(error, ERROR_DATA, "instruction and output, and input and system if given, must be strings");
    if (!json_string_length(instruction)) return error_set(error, ERROR_DATA, "instruction is empty");
    record->unread[CHAT_HISTORY] = json_array_size(json_object_get(json, "history")) > 0;
    record->messages = json_array();
    if (json_string_length(system)) json_array_append_new(record->messages, json_pack("{ss sO}", "role", "system", "content", system));
    json_array_append_new(record->messages, chat_question(json));
    json_array_append_new(record->messages, json_pack("{ss sO}", "role", "assistant", "content", output));
    return true;
}

/* Refuses variables of the template that must come from other members of the record, or that
 * control rendering. */
static bool check_chat_settings(const json_t *settings, Error *error) {
    static const char *const taken[] = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"};
    if (settings && !json_is_object(settings)) return error_set(error, ERROR_DATA, "chat_template_kwargs is not an object");
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        if (json_object_get(settings, taken[i]))
            return error_set(error, ERROR_DATA, "chat_template_kwargs has %s, which must be a member of the record itself", taken[i]);
    return true;
}

bool chat_begins_with_system(const json_t *first, const json_t *system) {
    const char *role = json_string_value(json_object_get(first, "role"));
    return role && !strcmp(role, "system") && (!system || json_equal(json_object_get(first, "content"), system));
}

const json_t *chat_member(const json_t *record, const char *name) {
    const json_t *value = json_object_get(record, name);
    return json_is_null(value) ? NULL : value;
}

ChatKind chat_kind(const json_t *record) {
    bool pair = chat_member(record, "chosen") && chat_member(record, "rejected");
    bool conversation = chat_member(record, "messages") || chat_member(record, "conversations") ||
                        (chat_member(record, "prompt") && chat_member(record, "completion")) ||
                        (chat_member(record, "instruction") && chat_member(record, "output"));
    return pair ? CHAT_PAIR : conversation ? CHAT_CONVERSATION : CHAT_NO_RECORD;
}

bool chat_reads(const char *name) {
    static const char *const names[] = {"messages", "conversations", "prompt", "completion", "chosen", "rejected", "instruction", "input",
        "output", "system", "history", "question", "tools", "documents", "functions", "chat_template_kwargs", "images", "image", "videos",
        "video", "audios", "audio", "label", "kto_tag", "weight", "train", "training", "train_on_turn", "loss"};
    size_t i = 0;
    while (i < sizeof names / sizeof *names && strcmp(name, names[i]) != 0) i++;
    return i < sizeof names / sizeof *names;
}

bool chat_refuse_shape(const json_t *record, const char *what, Error *error) {
    char names[160] = "nothing";
    size_t used = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)record, name, value) {
        const char *empty = json_is_null(value) ? " (null)" : "";
        if (used < sizeof names) used += (size_t)snprintf(names + used, sizeof names - used, "%s%s%s", used ? ", " : "", name, empty);
    }
    return error_set(error, ERROR_DATA, "the record has no %s, but only %s", what, one_line(names));
}

bool chat_record_read(ChatRecord *record, const json_t *given, bool decode, Error *error) {
    json_t *json = chat_shape(given);
    *record = (ChatRecord){.decode = decode,
        .shaped = json,
        .tools = chat_member(json, "tools"),
        .documents = chat_member(json, "documents"),
        .settings = chat_member(json, "chat_template_kwargs"),
        .unread = {[CHAT_FUNCTIONS] = json_array_size(json_object_get(json, "functions")) > 0}};
    if (record->tools && !json_is_array(record->tools)) return error_set(error, ERROR_DATA, "tools is not a list");
    for (size_t i = 0; i < json_array_size(record->tools); i++)
        if (!json_is_object(json_array_get(record->tools, i)))
            return error_set(error, ERROR_DATA, "tools[%zu] is not an object: it must describe a function", i);
    if (!check_chat_settings(record->settings, error) || !chat_check_members(json, error)) return false;
    const json_t *messages = chat_member(json, "messages"), *completion = chat_member(json, "completion");
    const json_t *first = json_array_get(messages ? messages : chat_member(json, "prompt"), 0);
    if ((messages || completion) && !check_system(json, first, error)) return false;
    if (messages) return read_messages(record, messages, error);
    if (completion) return read_completion(record, json, error);
    if (chat_member(json, "instruction")) return read_instruction(record, json, error);
    if (chat_member(json, "chosen"))
        return error_set(error, ERROR_DATA, "the record has a chosen and a rejected answer: pack it with format=preference");
    return chat_refuse_shape(json, "messages, conversations, prompt and completion, or instruction and output", error);
}

void chat_record_free(ChatRecord *record) {
    json_decref(record->messages);
    json_decref(record->shaped);
}
