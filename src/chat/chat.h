/* Conversations as tokens: a record of a data set becomes the text that the model's chat template makes of it, its tokens,
 * and which of them the model is trained to say. Called when conversations are packed and when one is held. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "chat/template.h"
#include "token/tokenizer.h"

/* Which answers of a conversation are trained on, where the template does not mark them. */
typedef enum ChatTurns {
    CHAT_TURNS_ALL,  /* all: the text up to an answer must not depend on what comes later */
    CHAT_TURNS_LAST, /* the last one; what follows it is left out */
} ChatTurns;
#define CHAT_TURNS "all|last"

typedef struct ChatOptions {
    const char *source;   /* a tokenizer's file or folder (as for tokenizer_open), which has the special tokens and a template */
    const char *template; /* a file that takes the place of that template; "chatml": smelt's own; "": none does */
    ChatTurns turns;
    bool special;      /* a message may spell special tokens, which are matched; else such a conversation is refused */
    int32_t end_token; /* behind a prompt and its completion that are plain texts */
} ChatOptions;

/* What the threads share: templates and the texts of special tokens. */
typedef struct Chat Chat;
/* `tokenizer` (NULL: bytes) must outlive it. Without any template only prompts and completions
 * that are texts can be encoded. ERROR_USAGE for a template that
 * is not known, ERROR_DATA for files. */
Chat *chat_open(const ChatOptions *options, const Tokenizer *tokenizer, Error *error);
void chat_free(Chat *chat); /* NULL is fine */
bool chat_has_template(const Chat *chat);
/* The source of the one template that renders every conversation; "": there is none, or one more for tools. */
const char *chat_template_source(const Chat *chat);
uint64_t chat_identity(const Chat *chat); /* of templates and options: another one gives other tokens */

/* Parts of a conversation that a template may leave out without a word. */
typedef enum ChatPart {
    CHAT_TOOL_CALLS,
    CHAT_TOOLS,
    CHAT_THOUGHTS,
    CHAT_HISTORY,
    CHAT_DOCUMENTS,
    CHAT_FUNCTIONS,
    CHAT_FUNCTION_CALL,
    CHAT_NAMES,
    CHAT_PARTS
} ChatPart;
const char *chat_part_name(ChatPart part); /* "tool_calls" */

/* Counts of a conversation, for warnings. */
typedef struct ChatCounts {
    size_t empty_answers;     /* trained answers of which the token that ends them is all that they train */
    size_t decoded_arguments; /* tool calls whose arguments were JSON text of an object, and became that object */
    size_t text_arguments;    /* tool calls whose arguments stayed text beside a template that takes objects */
} ChatCounts;

/* The tokens of a conversation; zero-initialise, and use it again; free with chat_document_free. */
typedef struct ChatDocument {
    ChatText text;
    TokenIds ids;
    uint8_t *trained;                       /* [ids.count]: 1 where the model is to say the token */
    size_t trained_capacity, trained_count; /* trained_count: how many are 1 */
    ChatCounts counts;
    bool lost[CHAT_PARTS]; /* which the conversation has, and of which the text has nothing */
} ChatDocument;
void chat_document_free(ChatDocument *document);

/* What a thread has for itself. */
typedef struct ChatEncoder ChatEncoder;
ChatEncoder *chat_encoder_open(const Chat *chat);
void chat_encoder_free(ChatEncoder *encoder); /* NULL is fine */
/* Encodes a record of a data set: an object with `messages`, or with `prompt` and `completion`, or with `instruction`,
 * perhaps `input`, and `output`; with `tools` and `chat_template_kwargs` where the template takes them. ERROR_DATA: the
 * record is no conversation, or not one for this template. ERROR_USAGE: the template does not fit what is asked. */
bool chat_encode(ChatEncoder *encoder, const json_t *record, ChatDocument *document, Error *error);
/* The special token that the template puts behind an answer, such as <|im_end|>; -1: there is none, so that nothing tells
 * where an answer ends. It need not be the one that ends documents. */
int32_t chat_answer_end(ChatEncoder *encoder);
/* The records of the two answers of a record of preferences, `prompt`, `chosen` and `rejected` (chat_pair.c), for chat_encode and
 * json_decref. ERROR_DATA: it is none. */
bool chat_split_pair(const json_t *record, json_t **chosen, json_t **rejected, Error *error);
/* The tokens after which the model answers a list of messages. */
bool chat_prompt(ChatEncoder *encoder, const json_t *messages, ChatDocument *document, Error *error);
