/* A sample while it is generated: its tokens, and its text up to a stop string. */
#pragma once

#include "infer/utf8.h"
#include "serve/request_internal.h"

typedef struct ServeToken {
    EngineToken score;
    size_t offset; /* in the text, in characters */
} ServeToken;

/* Zero-initialize, then serve_sample_begin. */
typedef struct ServeSample {
    ServeToken *tokens;
    size_t count;
    char *text; /* UTF-8: a character appears when its last byte does */
    size_t size, capacity, characters;
    size_t shown; /* bytes of the text that will not be cut off by a stop string */
    Utf8Stream stream;
    TokenizerDecoder decoder;
    bool begun, ended, stopped; /* stopped: by a stop string */
    EngineEnd end;
    /* What a client has received as events. */
    size_t sent_bytes, sent_tokens;
    bool opened, closed;
} ServeSample;

void serve_sample_begin(ServeSample *sample, const ServeModel *model);
/* Takes a token; false: its text completes a stop string, which ends the sample. */
bool serve_sample_add(ServeSample *sample, const ServeModel *model, const ServeRequest *request, const EngineToken *token);
void serve_sample_end(ServeSample *sample, EngineEnd end);
void serve_sample_free(ServeSample *sample);

/* Returns the bytes of a token alone, valid until the next call with the same `byte`. */
const char *serve_token_bytes(const ServeModel *model, int32_t id, char *byte, size_t *length);
/* Returns the text of tokens, UTF-8, for the caller to free. */
char *serve_decode(const ServeModel *model, const TokenIds *ids, size_t *size);
/* Sets offsets[i] to the characters of the text before token i. */
void serve_offsets(const ServeModel *model, const TokenIds *ids, size_t *offsets);
size_t serve_characters(const char *text, size_t size);
