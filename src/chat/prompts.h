/* A file of prompts: JSON lines, each an object with one of `prompt` (a text), `messages` (a
 * conversation, which the chat template renders up to the answer) and `tokens` (ids), and any other
 * members, each once. Read whole, because prompts are few beside the texts that answer them. */
#pragma once

#include "chat/chat.h"

typedef struct Prompt {
    json_t *record; /* the object of the file */
    int64_t line;   /* of the file, from 1 */
    TokenIds tokens;
} Prompt;

typedef struct PromptSet {
    Prompt *items;
    size_t count;
    int32_t answer_end; /* the token that the template puts after an answer; -1: none, or no messages */
} PromptSet;

typedef struct PromptOptions {
    const Tokenizer *tokenizer; /* NULL: bytes */
    const char *source;         /* the tokenizer's folder, with the chat template; "": none */
    const char *template;       /* as in ChatOptions */
    int64_t vocabulary, most;   /* token ids are below the first; a prompt has at most `most` tokens */
} PromptOptions;

/* Appends the token ids of an array. ERROR_DATA names the element that is not one. */
bool prompt_read_ids(const json_t *ids, TokenIds *tokens, Error *error);
/* ERROR_DATA and ERROR_USAGE name the line. The caller frees the set, also after a failure. */
bool prompt_set_read(PromptSet *set, const char *path, const PromptOptions *options, Error *error);
void prompt_set_free(PromptSet *set); /* a zeroed one is fine */
