/* Chat templates: the text that a model was taught to read a conversation in. Model makers write them in Jinja2, a
 * language of Python's; here is an interpreter of the part of it that chat templates use, with the settings of Hugging
 * Face's transformers (trim_blocks, lstrip_blocks, break and continue, `{% generation %}`). What it renders has the bytes
 * that jinja2 renders; what it does not know is refused with the line of the template.
 *
 * A template and a conversation may come from anybody: depth, steps, memory and output are bounded, and a template reads
 * nothing but what it is given. A parsed template is read-only and shared by all threads. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/error.h"

typedef struct ChatTemplate ChatTemplate;
/* `name` stands in messages. ERROR_USAGE, with the line, for what is no template or is not known. */
ChatTemplate *chat_template_parse(const char *source, size_t size, const char *name, Error *error);
void chat_template_free(ChatTemplate *template); /* NULL is fine */
/* Whether it marks what an assistant says, as `{% generation %}...{% endgeneration %}`. */
bool chat_template_marks(const ChatTemplate *template);

/* Bytes of the text, [start, end). */
typedef struct ChatSpan { size_t start, end; } ChatSpan;

/* A rendered text; zero-initialise, and use it again and again; free with chat_text_free. */
typedef struct ChatText {
    char *bytes; /* with a NUL behind */
    size_t size, capacity;
    ChatSpan *marked; /* what `{% generation %}` encloses, in order */
    size_t marked_count, marked_capacity;
} ChatText;
void chat_text_free(ChatText *text);

/* Renders with the members of a JSON object as variables: messages, tools, add_generation_prompt, bos_token and so on.
 * `now` is what strftime_now shows, in local time. ERROR_DATA: the template cannot render this conversation (it may say
 * why, as with raise_exception). ERROR_USAGE: it does what this interpreter does not know. */
bool chat_template_render(const ChatTemplate *template, const json_t *variables, time_t now, ChatText *text, Error *error);
