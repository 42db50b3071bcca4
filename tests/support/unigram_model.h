/* A SentencePiece unigram model in which each pair of letters, as one token and as two, has sums that differ by less than a
 * rounding, and words for it. Everything is static inline. */
#pragma once

#include "base/memory.h"
#include "base/rng.h"
#include "files.h"

/* Adds a token; `type` 1: an ordinary one, 2: the unknown one, 3: a special one. Fields are those of sentencepiece_model.proto. */
static inline void add_piece(FILE *model, const char *text, float score, char type) {
    const char size = (char)strlen(text), head[] = {0x0A, (char)(size + 9), 0x0A, size}, tail[] = {0x18, type};
    fwrite(head, sizeof head, 1, model);
    fwrite(text, (size_t)size, 1, model);
    fputc(0x15, model);
    fwrite(&score, sizeof score, 1, model);
    fwrite(tail, sizeof tail, 1, model);
}

static inline void write_rivals_model(const char *path) {
    FILE *model = fopen(path, "wb");
    assert_non_null(model);
    add_piece(model, "<unk>", 0, 2);
    add_piece(model, "</s>", 0, 3);
    add_piece(model, "\xE2\x96\x81", -0.7f, 1);
    for (int i = 0; i < 26; i++) add_piece(model, (char[]){(char)('a' + i), 0}, -2 - 0.137f * (float)i, 1);
    for (int i = 0; i < 26 * 26; i++)
        add_piece(model, (char[]){(char)('a' + i / 26), (char)('a' + i % 26), 0},
            -4 - 0.137f * (float)(i / 26 + i % 26) + 1e-4f * (float)(i % 7 - 3), 1);
    fwrite("\x12\x02\x18\x01", 4, 1, model); /* model_type: UNIGRAM */
    assert_int_equal(fclose(model), 0);
}

/* `size` letters and spaces, for the caller to free. */
static inline char *random_words(size_t size) {
    char *text = memory_allocate(size + 1);
    for (size_t i = 0; i < size; i++) {
        char letter = (char)('a' + rng_bits(5, 0, i).word[0] % 33);
        text[i] = letter > 'z' ? ' ' : letter;
    }
    return text;
}
