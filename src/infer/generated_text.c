/* The end of a text that may become a stop text is not shown yet. */
#include "infer/generated_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/memory.h"

bool stop_texts_add(StopTexts *stops, const char *text, size_t size) {
    if (size == 0 || stops->count == MOST_STOP_TEXTS) return false;
    char *bytes = memory_allocate(size);
    memcpy(bytes, text, size);
    stops->items[stops->count].bytes = bytes;
    stops->items[stops->count++].size = size;
    return true;
}

void stop_texts_free(StopTexts *stops) {
    for (int i = 0; i < stops->count; i++) free(stops->items[i].bytes);
    stops->count = 0;
}

static const char *decode_token(TokenizerDecoder *decoder, int32_t token, char *byte, size_t *length) {
    *byte = (char)token;
    *length = 1;
    return decoder->tokenizer ? tokenizer_decode(decoder, token, length) : byte;
}

const char *token_bytes(const Tokenizer *tokenizer, int32_t token, char *byte, size_t *length) {
    TokenizerDecoder decoder = {0};
    if (tokenizer) decoder = tokenizer_decoder(tokenizer, false);
    decoder.started = true;
    decoder.strip = 0;
    return decode_token(&decoder, token, byte, length);
}

size_t text_characters(const char *text, size_t size) {
    size_t count = 0;
    for (size_t i = 0; i < size; i++) count += ((uint8_t)text[i] & 0xc0) != 0x80;
    return count;
}

GeneratedText generated_text(const Tokenizer *tokenizer) {
    GeneratedText text = {0};
    if (tokenizer) text.decoder = tokenizer_decoder(tokenizer, true);
    return text;
}

void generated_text_free(GeneratedText *text) { free(text->bytes); }

static void append_piece(GeneratedText *t, const char *piece, int bytes) {
    array_reserve(t->bytes, t->capacity, t->size + (size_t)bytes);
    if (bytes) memcpy(t->bytes + t->size, piece, (size_t)bytes);
    t->size += (size_t)bytes;
    t->characters += text_characters(piece, (size_t)bytes);
}

/* Cuts the text at the first stop text in it, of which at least one byte is at or after `from`. */
static void cut_at_stop(GeneratedText *t, const StopTexts *stops, size_t from) {
    size_t cut = t->size;
    for (int i = 0; i < stops->count; i++) {
        size_t size = stops->items[i].size, first = from + 1 > size ? from + 1 - size : 0;
        const char *found = t->size > first ? memmem(t->bytes + first, t->size - first, stops->items[i].bytes, size) : NULL;
        if (!found) continue;
        if ((size_t)(found - t->bytes) < cut) cut = (size_t)(found - t->bytes);
        t->stopped = true;
    }
    t->size = cut;
}

/* Returns the bytes at the end of the text that may begin a stop text. */
static size_t open_bytes(const GeneratedText *t, const StopTexts *stops) {
    size_t most = 0;
    for (int i = 0; i < stops->count; i++)
        for (size_t bytes = t->size < stops->items[i].size ? t->size : stops->items[i].size - 1; bytes > most; bytes--)
            if (!memcmp(t->bytes + t->size - bytes, stops->items[i].bytes, bytes)) most = bytes;
    return most;
}

bool generated_text_add(GeneratedText *t, const StopTexts *stops, int32_t token) {
    char byte, piece[UTF8_OUTPUT];
    size_t length, from = t->size;
    const char *bytes = decode_token(&t->decoder, token, &byte, &length);
    for (size_t i = 0; i < length; i++) append_piece(t, piece, utf8_put(&t->stream, (uint8_t)bytes[i], piece));
    cut_at_stop(t, stops, from);
    t->shown = t->stopped ? t->size : t->size - open_bytes(t, stops);
    return !t->stopped;
}

void generated_text_finish(GeneratedText *t) {
    char piece[UTF8_OUTPUT];
    if (!t->stopped) append_piece(t, piece, utf8_finish(&t->stream, piece));
    t->shown = t->size;
}
