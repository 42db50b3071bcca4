/* Chat templates: they render a conversation to the text that a model was trained to read. Model
 * makers write them in Jinja2, a Python template language. This is an interpreter of the subset
 * that chat templates use, with the settings of Hugging Face's transformers (trim_blocks,
 * lstrip_blocks, break and continue, `{% generation %}`). Its output has the bytes of jinja2's; an
 * unsupported feature is refused with the line of the template.
 *
 * Templates and conversations are untrusted: depth, steps, memory and output are bounded, and a
 * template reads nothing but its variables. A parsed template is read-only and shared by all
 * threads. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"

typedef struct ChatTemplate ChatTemplate;
/* Parses a template; `name` appears in messages. ERROR_USAGE, with the line, for a syntax error or
 * an unsupported feature. */
ChatTemplate *chat_template_parse(const char *source, size_t size, const char *name, Error *error);
void chat_template_free(ChatTemplate *template); /* NULL is fine */
/* Returns whether the template marks the assistant's answers with `{% generation %}...{%
 * endgeneration %}`. */
bool chat_template_marks(const ChatTemplate *template);

/* A range of bytes of the text, [start, end). */
typedef struct ChatSpan { size_t start, end; } ChatSpan;

/* A rendered text; zero-initialize, reuse, and free with chat_text_free. */
typedef struct ChatText {
    char *bytes; /* ends with a NUL */
    size_t size, capacity;
    ChatSpan *marked; /* the ranges that `{% generation %}` encloses, in order */
    size_t marked_count, marked_capacity;
} ChatText;
void chat_text_free(ChatText *text);

/* Renders with the members of a JSON object as variables: messages, tools, add_generation_prompt,
 * bos_token and so on. `now` is the time of strftime_now, in local time. ERROR_DATA: the template
 * cannot render this conversation (it may say why, as with raise_exception). ERROR_USAGE: it uses
 * an unsupported feature. */
bool chat_template_render(const ChatTemplate *template, const json_t *variables, time_t now, ChatText *text, Error *error);
