/* Conversations as tokens. The model's chat template renders a record of a data set to text, and
 * the text is encoded. A mask marks the trained tokens. Called when conversations are packed and
 * during a chat. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "jinja/template.h"
#include "token/tokenizer.h"

/* The answers of a conversation to train on, if the template does not mark them. */
typedef enum ChatTurns {
    CHAT_TURNS_ALL,  /* all: the text up to an answer must not depend on later messages */
    CHAT_TURNS_LAST, /* the last answer; messages after it are dropped */
} ChatTurns;
#define CHAT_TURNS "all|last"

typedef struct ChatOptions {
    const char *source;   /* a tokenizer's file or folder (as for tokenizer_open), with the special tokens and a template */
    const char *template; /* a file that replaces the template; "chatml": smelt's own; "": none */
    ChatTurns turns;
    bool special;      /* special tokens spelled in a message are matched; otherwise such a conversation is refused */
    int32_t end_token; /* follows a prompt and its completion that are plain texts */
} ChatOptions;

/* State shared by the threads: templates and the texts of special tokens. */
typedef struct Chat Chat;
/* Opens the templates. `tokenizer` (NULL: bytes) must outlive the Chat. Without a template only
 * prompts and completions that are texts can be encoded. ERROR_USAGE for an unsupported template,
 * ERROR_DATA for files. */
Chat *chat_open(const ChatOptions *options, const Tokenizer *tokenizer, Error *error);
void chat_free(Chat *chat); /* NULL is fine */
bool chat_has_template(const Chat *chat);
/* Returns the source of the template if a single one renders every conversation; "": there is none,
 * or a second one for tools. */
const char *chat_template_source(const Chat *chat);
uint64_t chat_identity(const Chat *chat); /* hash of templates and options: different values give different tokens */

/* Parts of a conversation that a template may silently drop. */
typedef enum ChatPart {
    CHAT_TOOL_CALLS,
    CHAT_TOOLS,
    CHAT_THOUGHTS,
    CHAT_HISTORY,
    CHAT_DOCUMENTS,
    CHAT_FUNCTIONS,
    CHAT_FUNCTION_CALL,
    CHAT_NAMES,
    CHAT_CONVERSATIONS, /* beside messages, which are read instead */
    CHAT_PROMPTS,       /* the same, unless a message has the same text */
    CHAT_PARTS
} ChatPart;
const char *chat_part_name(ChatPart part); /* "tool_calls" */

/* Counts of a conversation, for warnings. */
typedef struct ChatCounts {
    size_t empty_answers;     /* trained answers without content: only their end token is trained */
    size_t decoded_arguments; /* tool calls whose arguments were JSON text of an object and were decoded */
    size_t text_arguments;    /* tool calls whose arguments stayed text although the template expects objects */
} ChatCounts;

/* The tokens of a conversation; zero-initialize, reuse, and free with chat_document_free. */
typedef struct ChatDocument {
    ChatText text;
    TokenIds ids;
    uint8_t *trained;                       /* [ids.count]: 1 if the model is trained on the token */
    size_t trained_capacity, trained_count; /* trained_count: the number of ones */
    ChatCounts counts;
    bool lost[CHAT_PARTS]; /* parts that the conversation has and the text lacks */
} ChatDocument;
void chat_document_free(ChatDocument *document);

/* State of one thread. */
typedef struct ChatEncoder ChatEncoder;
ChatEncoder *chat_encoder_open(const Chat *chat);
void chat_encoder_free(ChatEncoder *encoder); /* NULL is fine */
/* Encodes a record of a data set: an object with `messages`, or `prompt` and `completion`, or
 * `instruction`, optional `input`, and `output`; also `tools` and `chat_template_kwargs` if the
 * template uses them. ERROR_DATA: the record is not a conversation, or not one for this template.
 * ERROR_USAGE: the template does not fit the options. */
bool chat_encode(ChatEncoder *encoder, const json_t *record, ChatDocument *document, Error *error);
/* Returns what a record is by the names of its members. */
typedef enum ChatKind { CHAT_NO_RECORD, CHAT_CONVERSATION, CHAT_PAIR } ChatKind;
ChatKind chat_kind(const json_t *record);
/* Returns whether the member of a record with this name can change its text or refuse it. All other
 * members are ignored. */
bool chat_reads(const char *name);
/* Returns the special token that the template puts after an answer, such as <|im_end|>. It may
 * differ from the token that ends documents. -1: there is none, so the end of an answer cannot be
 * recognized. */
int32_t chat_answer_end(ChatEncoder *encoder);
/* Splits a preference record (`prompt`, `chosen`, `rejected`) into one record per answer
 * (chat_pair.c). The caller passes both to chat_encode and releases them with json_decref.
 * ERROR_DATA: the record is not a preference. */
bool chat_split_pair(const json_t *record, json_t **chosen, json_t **rejected, Error *error);
/* Encodes what the template writes after an answer if `messages` follow it: the end of the answer, the
 * messages, and the header of the next answer. The tokens of the conversation and of the answer are not
 * encoded anew. Without the end of the answer if that is the token `last`. ERROR_DATA as in chat_encode. */
bool chat_continue(ChatEncoder *encoder, const json_t *conversation, const json_t *messages, int32_t last, TokenIds *ids, Error *error);
/* Encodes the tokens after which the model answers a conversation: an object with `messages`, and
 * `tools` and `chat_template_kwargs` as in chat_encode. ERROR_DATA as there. */
bool chat_prompt(ChatEncoder *encoder, const json_t *conversation, ChatDocument *document, Error *error);
