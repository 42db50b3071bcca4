/* Joins the parts of a text of a unigram model (tokenizer.h). The sum of scores goes on from word to
 * word, as in the encoder of a whole text. A joiner owns a lattice. Called by the writing side of
 * packing. */
#include <math.h>
#include <stdlib.h>

#include "base/array.h"
#include "base/memory.h"
#include "token/token_internal.h"

struct TokenizerJoiner {
    const Tokenizer *tokenizer;
    Lattice lattice;
};

void part_words_clear(PartWords *words) { words->count = words->text_size = 0; }

void part_words_free(PartWords *words) {
    free(words->items);
    free(words->text);
    *words = (PartWords){0};
}

TokenizerJoiner *tokenizer_joiner_open(const Tokenizer *tokenizer, unsigned flags) {
    TokenizerJoiner *joiner = memory_allocate(sizeof *joiner);
    *joiner = (TokenizerJoiner){.tokenizer = tokenizer, .lattice.plain = flags & TOKENIZER_PLAIN_SPECIAL};
    return joiner;
}

void tokenizer_joiner_free(TokenizerJoiner *joiner) {
    if (joiner) lattice_free(&joiner->lattice);
    free(joiner);
}

static void append_ids(TokenIds *out, const int32_t *ids, size_t count) {
    array_reserve(out->items, out->capacity, out->count + count);
    memcpy(out->items + out->count, ids, count * sizeof *ids);
    out->count += count;
}

/* Appends the ids of a word, which are right if its bound includes the sum so far. */
static void join_word(TokenizerJoiner *joiner, const PartWord *word, const int32_t *ids, const char *text, TokenIds *out) {
    const Tokenizer *tokenizer = joiner->tokenizer;
    double score = unigram_start(joiner->lattice.score);
    if (fabs(score) > word->holds) {
        unigram_encode(tokenizer, &joiner->lattice, (Span){text, word->size}, out);
        return;
    }
    array_reserve(out->items, out->capacity, out->count + word->count);
    for (uint32_t i = 0; i < word->count; i++) {
        score = (float)(tokenizer->scores[ids[i]] + score);
        out->items[out->count++] = ids[i];
    }
    joiner->lattice.score = score;
}

void tokenizer_join(TokenizerJoiner *joiner, const TextPart *part, const TokenIds *ids, const PartWords *words, TokenIds *out) {
    size_t at = part->ids, end = part->ids + part->id_count;
    if (part->first) joiner->lattice.score = 0;
    for (const PartWord *word = words->items + part->words, *last = word + part->word_count; word < last; word++) {
        if (word->ids > at) append_ids(out, ids->items + at, word->ids - at); /* added tokens */
        join_word(joiner, word, ids->items + word->ids, words->text + word->text, out);
        at = word->ids + word->count;
    }
    if (end > at) append_ids(out, ids->items + at, end - at);
}
