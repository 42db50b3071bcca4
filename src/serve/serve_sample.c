/* The text of a sample grows by complete characters. The end of it that may become a stop string is
 * not shown yet. */
#include "serve/serve_sample_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"

static const char *next_bytes(const ServeModel *model, TokenizerDecoder *decoder, int32_t id, char *byte, size_t *length) {
    *byte = (char)id;
    *length = 1;
    return model->tokenizer ? tokenizer_decode(decoder, id, length) : byte;
}

const char *serve_token_bytes(const ServeModel *model, int32_t id, char *byte, size_t *length) {
    TokenizerDecoder decoder = {0};
    if (model->tokenizer) decoder = tokenizer_decoder(model->tokenizer, false);
    decoder.started = true;
    decoder.strip = 0;
    return next_bytes(model, &decoder, id, byte, length);
}

size_t serve_characters(const char *text, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i < size; i++) count += ((uint8_t)text[i] & 0xc0) != 0x80;
    return count;
}

static void append_piece(ServeSample *s, const char *piece, int bytes) {
    array_reserve(s->text, s->capacity, s->size + (size_t)bytes);
    if (bytes) memcpy(s->text + s->size, piece, (size_t)bytes);
    s->size += (size_t)bytes;
    s->characters += serve_characters(piece, (size_t)bytes);
}

void serve_sample_begin(ServeSample *s, const ServeModel *model) {
    if (model->tokenizer) s->decoder = tokenizer_decoder(model->tokenizer, true);
}

static void append_token(ServeSample *s, const ServeModel *model, int32_t id) {
    char byte, piece[UTF8_OUTPUT];
    size_t length;
    const char *bytes = next_bytes(model, &s->decoder, id, &byte, &length);
    for (size_t i = 0; i < length; i++) append_piece(s, piece, utf8_put(&s->stream, (uint8_t)bytes[i], piece));
}

/* Cuts the text at the first stop string in it, of which at least one byte is at or after `from`. */
static bool cut_at_stop(ServeSample *s, const ServeRequest *request, size_t from) {
    size_t cut = s->size;
    for (int i = 0; i < request->stop_count; i++) {
        const ServeStop *stop = &request->stops[i];
        size_t first = from + 1 > stop->size ? from + 1 - stop->size : 0;
        const char *found = s->size > first ? memmem(s->text + first, s->size - first, stop->text, stop->size) : NULL;
        if (!found) continue;
        if ((size_t)(found - s->text) < cut) cut = (size_t)(found - s->text);
        s->stopped = true;
    }
    s->size = cut;
    return s->stopped;
}

/* Returns the bytes at the end of the text that may begin a stop string. */
static size_t open_bytes(const ServeSample *s, const ServeRequest *request) {
    size_t most = 0;
    for (int i = 0; i < request->stop_count; i++)
        for (size_t bytes = s->size < request->stops[i].size ? s->size : request->stops[i].size - 1; bytes > most; bytes--)
            if (!memcmp(s->text + s->size - bytes, request->stops[i].text, bytes)) most = bytes;
    return most;
}

bool serve_sample_add(ServeSample *s, const ServeModel *model, const ServeRequest *request, const EngineToken *token) {
    size_t from = s->size;
    s->begun = true;
    array_append(s->tokens, s->count, (ServeToken){*token, s->characters});
    append_token(s, model, token->token);
    bool stopped = cut_at_stop(s, request, from);
    s->shown = stopped ? s->size : s->size - open_bytes(s, request);
    return !stopped;
}

void serve_sample_end(ServeSample *s, EngineEnd end) {
    char piece[UTF8_OUTPUT];
    if (!s->stopped) append_piece(s, piece, utf8_finish(&s->stream, piece));
    s->shown = s->size;
    s->end = end;
    s->ended = true;
}

void serve_sample_free(ServeSample *s) {
    free(s->tokens);
    free(s->text);
}

void serve_offsets(const ServeModel *model, const TokenIds *ids, size_t *offsets) {
    SCOPED(serve_sample_free) ServeSample all = {0};
    serve_sample_begin(&all, model);
    for (size_t i = 0; i < ids->count; i++) {
        offsets[i] = all.characters;
        append_token(&all, model, ids->items[i]);
    }
}

char *serve_decode(const ServeModel *model, const TokenIds *ids, size_t *size) {
    ServeSample all = {0};
    serve_sample_begin(&all, model);
    for (size_t i = 0; i < ids->count; i++) append_token(&all, model, ids->items[i]);
    serve_sample_end(&all, ENGINE_LENGTH);
    *size = all.size;
    return all.text;
}
