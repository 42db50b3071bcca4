/* The conversation data of a model folder: its chat templates (chat_template.jinja, or
 * chat_template in tokenizer_config.json), and the texts of the special tokens that they name. A
 * Chat owns both; it is read-only once open. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "chat/encode_internal.h"

/* ChatML, with marks around the assistant's answers: for models without a template. It has no place
 * for tools and thoughts, and refuses them so that they are not lost silently. */
static const char chatml[] = "{%- if tools %}{{ raise_exception('chatml has no place for tools') }}{%- endif %}\n"
                             "{%- for message in messages %}\n"
                             "{%- if message.tool_calls or message.reasoning_content %}\n"
                             "{{- raise_exception('chatml has no place for tool_calls and thoughts') }}\n"
                             "{%- endif %}\n"
                             "{{- '<|im_start|>' + message.role + '\\n' }}\n"
                             "{%- if message.role == 'assistant' %}\n"
                             "{%- generation %}{{- message.content + '<|im_end|>\\n' }}{%- endgeneration %}\n"
                             "{%- else %}\n"
                             "{{- message.content + '<|im_end|>\\n' }}\n"
                             "{%- endif %}\n"
                             "{%- endfor %}\n"
                             "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n";

enum { FILE_LIMIT = 1 << 24 };

static bool add_template(Chat *chat, ChatTemplate **to, const char *source, size_t size, const char *name, Error *error) {
    const uint64_t parts[] = {chat->identity, hash_bytes(source, size)};
    chat->identity = hash_bytes(parts, sizeof parts);
    *to = chat_template_parse(source, size, name, error);
    if (to == &chat->plain) chat->source = memory_format("%.*s", (int)size, source);
    return *to != NULL;
}

static bool read_template_file(Chat *chat, const char *path, Error *error) {
    int64_t size;
    SCOPED_FREE char *source = file_read(path, FILE_LIMIT, &size, error);
    return source ? add_template(chat, &chat->plain, source, (size_t)size, path, error) : error_recode(error, ERROR_DATA);
}

/* Takes one template, or a list of templates by name; `tool_use` is for conversations with
 * tools. */
static bool take_templates(Chat *chat, const json_t *given, const char *name, Error *error) {
    if (json_is_string(given)) return add_template(chat, &chat->plain, json_string_value(given), json_string_length(given), name, error);
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *one = json_array_get(given, i), *text = json_object_get(one, "template");
        const char *called = json_string_value(json_object_get(one, "name"));
        bool tools = called && !strcmp(called, "tool_use");
        if (!called || !json_is_string(text) || (!tools && strcmp(called, "default"))) continue;
        ChatTemplate **to = tools ? &chat->tools : &chat->plain;
        if (!*to && !add_template(chat, to, json_string_value(text), json_string_length(text), name, error)) return false;
    }
    return true;
}

/* Takes bos_token and similar members: a string, or an object with the text. */
static void take_special_tokens(Chat *chat, const json_t *config) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)config, name, value) {
        json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (ends_with(name, "_token") && json_is_string(text)) json_object_set(chat->tokens, name, text);
    }
}

static bool take_template_source(Chat *chat, const ChatOptions *options, Error *error) {
    json_auto_t *config = tokenizer_config(options->source, error);
    SCOPED_FREE char *name = memory_format("the chat_template of %s", options->source);
    if (!config) return false;
    take_special_tokens(chat, config);
    return *options->template || take_templates(chat, json_object_get(config, "chat_template"), name, error);
}

Chat *chat_open(const ChatOptions *options, const Tokenizer *tokenizer, Error *error) {
    Chat *chat = memory_allocate(sizeof *chat);
    *chat = (Chat){.turns = options->turns,
        .special = options->special,
        .end_token = options->end_token,
        .tokenizer = tokenizer,
        .tokens = json_object(),
        .now = time(NULL)};
    chat->identity = (uint64_t)options->turns;
    bool own = !strcmp(options->template, "chatml");
    bool good = !*options->source || take_template_source(chat, options, error);
    if (good && own) good = add_template(chat, &chat->plain, chatml, sizeof chatml - 1, "chatml", error);
    else if (good && *options->template) good = read_template_file(chat, options->template, error);
    if (good) return chat;
    chat_free(chat);
    return NULL;
}

void chat_free(Chat *chat) {
    if (!chat) return;
    chat_template_free(chat->plain);
    chat_template_free(chat->tools);
    json_decref(chat->tokens);
    free(chat->source);
    free(chat);
}

bool chat_has_template(const Chat *chat) { return chat->plain != NULL; }

const char *chat_template_source(const Chat *chat) { return chat->source && !chat->tools ? chat->source : ""; }

uint64_t chat_identity(const Chat *chat) { return chat->identity; }
