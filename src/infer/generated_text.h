/* The text of a sample while its tokens arrive: complete characters, cut before the first stop text.
 * Used by `smelt serve`, files of prompts, and tasks of `smelt eval`. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "infer/utf8.h"
#include "token/tokenizer.h"

enum { MOST_STOP_TEXTS = 4 };

/* Texts that end a sample. Zero-initialize. */
typedef struct StopTexts {
    struct {
        char *bytes;
        size_t size; /* at least 1 */
    } items[MOST_STOP_TEXTS];
    int count;
} StopTexts;

/* Adds a copy of a text. Returns false if the text is empty, or there are MOST_STOP_TEXTS. */
bool stop_texts_add(StopTexts *stops, const char *text, size_t size);
void stop_texts_free(StopTexts *stops);

typedef struct GeneratedText {
    char *bytes; /* UTF-8: a character appears when its last byte does; without a zero at the end */
    size_t size, capacity, characters;
    size_t shown; /* bytes that no stop text will cut off */
    bool stopped; /* by a stop text */
    Utf8Stream stream;
    TokenizerDecoder decoder; /* its tokenizer is NULL: tokens are bytes */
} GeneratedText;

/* `tokenizer` NULL: tokens are bytes. */
GeneratedText generated_text(const Tokenizer *tokenizer);
/* Appends a token; false: the text then had a stop text, and ends before it. */
bool generated_text_add(GeneratedText *text, const StopTexts *stops, int32_t token);
/* Ends the text: an incomplete character becomes U+FFFD. */
void generated_text_finish(GeneratedText *text);
void generated_text_free(GeneratedText *text);

/* Returns the bytes of a token that follows others, valid until the next call with the same `byte`. */
const char *token_bytes(const Tokenizer *tokenizer, int32_t token, char *byte, size_t *length);
/* Returns the characters of a text in UTF-8. */
size_t text_characters(const char *text, size_t size);
