/* A sample while it is generated: its tokens, and its text. */
#pragma once

#include "serve/request_internal.h"

/* Zero-initialize, then serve_sample_begin. */
typedef struct ServeSample {
    ServeScores scores;
    size_t *offsets; /* of the tokens in the text, in characters */
    size_t count;
    GeneratedText text;
    bool begun, ended;
    EngineEnd end;
    /* What a client has received as events. */
    size_t sent_bytes, sent_tokens;
    bool opened, closed;
} ServeSample;

void serve_sample_begin(ServeSample *sample, const ServeModel *model);
/* Takes a token; false: its text completes a stop text, which ends the sample. */
bool serve_sample_add(ServeSample *sample, const ServeRequest *request, const EngineToken *token);
void serve_sample_end(ServeSample *sample, EngineEnd end);
void serve_sample_free(ServeSample *sample);

/* Returns the text of tokens, UTF-8, for the caller to free. */
char *serve_decode(const ServeModel *model, const TokenIds *ids, size_t *size);
/* Sets offsets[i] to the characters of the text before token i. */
void serve_offsets(const ServeModel *model, const TokenIds *ids, size_t *offsets);
