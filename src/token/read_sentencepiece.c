/* Converts a SentencePiece model to a Tokenizer. BPE pieces become merges: two symbols merge if
 * their texts together are a piece, with the rank of its score. Owns nothing after it returns. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "token/sentencepiece_internal.h"

/* -- Tokens -------------------------------------------------------------------------------------------------------- */

static bool add_byte(Tokenizer *tokenizer, const SentencePieceModel *model, const Piece *piece, int32_t id, Error *error) {
    int byte = token_byte(piece->text);
    if (!model->byte_fallback || byte < 0)
        return error_set(error, ERROR_DATA, "byte token %d is not of the form <0xNN>, or is a duplicate", id);
    tokenizer->byte_id[byte] = id;
    return true;
}

/* Adds a user-defined token. BPE matches it literally in the text, before the model sees it; a
 * unigram model gives it a score that no other token beats. */
static void add_symbol(Tokenizer *tokenizer, const SentencePieceModel *model, Span text, int32_t id) {
    trie_add(&tokenizer->symbols, text.bytes, text.size, id);
    if (model->type != MODEL_BPE) return;
    AddedToken token = {.id = id, .match = MATCH_NORMAL_FORM};
    buffer_append(&token.content, text.bytes, text.size);
    tokenizer_add_added(tokenizer, &token);
}

static bool add_sentencepiece(Tokenizer *tokenizer, const SentencePieceModel *model, int32_t id, Error *error) {
    const Piece *piece = &model->pieces[id];
    if (!token_map_put(&tokenizer->contents, piece->text.bytes, piece->text.size, id))
        return error_set(error, ERROR_DATA, "token %d is a duplicate", id);
    size_t size = text_character_size(piece->text.bytes, piece->text.size);
    if (size == piece->text.size && (piece->type == PIECE_NORMAL || piece->type == PIECE_USER_DEFINED))
        *pair_map_put(&tokenizer->characters, text_character(piece->text.bytes, &size)) = (uint64_t)id;
    switch (piece->type) {
    case PIECE_UNKNOWN:
        if (tokenizer->unknown != TOKEN_NONE) return error_set(error, ERROR_DATA, "it has more than one unknown token");
        tokenizer->unknown = id;
        return true;
    case PIECE_BYTE: return add_byte(tokenizer, model, piece, id, error);
    case PIECE_USER_DEFINED: add_symbol(tokenizer, model, piece->text, id); return true;
    default: return true;
    }
}

static bool add_pieces(Tokenizer *tokenizer, const SentencePieceModel *model, Error *error) {
    tokenizer->vocabulary = (int32_t)model->count;
    for (int32_t id = 0; id < tokenizer->vocabulary; id++)
        if (!add_sentencepiece(tokenizer, model, id, error)) return false;
    if (tokenizer->unknown == TOKEN_NONE) return error_set(error, ERROR_DATA, "it has no unknown token");
    for (int byte = 0; byte < BYTES && model->byte_fallback; byte++)
        if (tokenizer->byte_id[byte] == TOKEN_NONE) return error_set(error, ERROR_DATA, "it has no token for byte 0x%02X", (unsigned)byte);
    tokenizer->end_of_text =
        model->end.bytes ? token_map_get(&tokenizer->contents, model->end.bytes, model->end.size) : tokenizer_id(tokenizer, "</s>");
    return true;
}

/* -- Models -------------------------------------------------------------------------------------------------------- */

static int compare_scores(const void *left, const void *right) {
    float a = *(const float *)left, b = *(const float *)right;
    return (a < b) - (a > b);
}

/* Returns a score's rank, the greatest first; equal scores have the same rank. */
static uint64_t rank_of(const float *scores, size_t count, float score) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (scores[middle] > score) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Returns the id of a part of a piece that can be a symbol: a character, or a piece that merges
 * form. */
static int32_t part_id(const Tokenizer *tokenizer, const SentencePieceModel *model, Span text) {
    int32_t id = token_map_get(&tokenizer->contents, text.bytes, text.size);
    if (id == TOKEN_NONE || text_character_size(text.bytes, text.size) == text.size) return id;
    return model->pieces[id].type == PIECE_NORMAL ? id : TOKEN_NONE;
}

static bool add_merges(Tokenizer *tokenizer, const SentencePieceModel *model, int32_t id, uint64_t rank, Error *error) {
    Span text = model->pieces[id].text;
    for (size_t cut = 0, size; cut < text.size; cut += size) {
        Span left = {text.bytes, cut}, right = {text.bytes + cut, text.size - cut};
        size = text_character_size(right.bytes, right.size);
        if (size == 0) return error_set(error, ERROR_DATA, "token %d is not UTF-8", id);
        if (size < text.size && pair_map_get(&tokenizer->characters, text_character(right.bytes, &size)) == PAIR_NONE)
            return error_set(error, ERROR_DATA, "token %d contains a character that is not itself a token, which is not supported", id);
        if (cut == 0) continue;
        int32_t ids[] = {part_id(tokenizer, model, left), part_id(tokenizer, model, right), id};
        if (ids[0] != TOKEN_NONE && ids[1] != TOKEN_NONE) tokenizer_add_merge(tokenizer, left, right, ids, rank);
    }
    return true;
}

static bool build_bpe(Tokenizer *tokenizer, const SentencePieceModel *model, Error *error) {
    SCOPED_FREE float *scores = memory_allocate(model->count * sizeof *scores);
    tokenizer->fuse_unknown = true;
    tokenizer->space_begins_words = tokenizer_id(tokenizer, "\xE2\x96\x81") != TOKEN_NONE;
    for (size_t i = 0; i < model->count; i++) scores[i] = model->pieces[i].score;
    qsort(scores, model->count, sizeof *scores, compare_scores);
    for (int32_t id = 0; id < tokenizer->vocabulary; id++) {
        if (model->pieces[id].type == PIECE_UNUSED && tokenizer->byte_fallback && model->pieces[id].text.bytes[0] == 0) continue;
        if (model->pieces[id].type == PIECE_UNUSED)
            return error_set(error, ERROR_DATA, "token %d is marked as unused in a BPE model, which is not supported", id);
        if (model->pieces[id].type == PIECE_NORMAL &&
            !add_merges(tokenizer, model, id, rank_of(scores, model->count, model->pieces[id].score), error))
            return false;
    }
    return true;
}

static bool build_unigram(Tokenizer *tokenizer, const SentencePieceModel *model, Error *error) {
    float least = INFINITY;
    SCOPED_FREE TrieKey *keys = memory_allocate(model->count * sizeof *keys);
    size_t count = 0;
    for (size_t i = 0; i < model->count; i++)
        if (model->pieces[i].type == PIECE_NORMAL) least = fminf(least, model->pieces[i].score);
    tokenizer->scores = memory_allocate(model->count * sizeof *tokenizer->scores);
    tokenizer->unknown_score = least - 10.0f;
    for (size_t i = 0; i < model->count; i++) {
        const Piece *piece = &model->pieces[i];
        bool defined = piece->type == PIECE_USER_DEFINED;
        tokenizer->scores[i] = defined ? (float)(0.1 * (double)(piece->text.size - 1)) : piece->score;
        if (defined || piece->type == PIECE_NORMAL) keys[count++] = (TrieKey){piece->text, (int32_t)i};
    }
    return unigram_build(tokenizer, keys, count, error);
}

/* -- Texts --------------------------------------------------------------------------------------------------------- */

/* The first token of a text loses the U+2581 that was put in front. After a token without text, the
 * next token is still the first. */
static void build_decoding(Tokenizer *tokenizer, const SentencePieceModel *model) {
    static const char metaspace[] = "\xE2\x96\x81", usual_surface[] = " \xE2\x81\x87 ";
    const Span mark = {metaspace, sizeof metaspace - 1}, space = {" ", 1};
    const Span surface = model->unknown_surface.bytes ? model->unknown_surface : (Span){usual_surface, sizeof usual_surface - 1};
    const Whitespace *rules = &model->whitespace;
    tokenizer->rest = memory_allocate(model->count * sizeof *tokenizer->rest);
    tokenizer->first = memory_allocate(model->count * sizeof *tokenizer->first);
    for (size_t i = 0; i < model->count; i++) {
        const Piece *piece = &model->pieces[i];
        Span text = piece->text;
        size_t at = tokenizer->decoded.size;
        const char byte = (char)token_byte(text);
        if (piece->type == PIECE_CONTROL) text = (Span){"", 0};
        if (piece->type == PIECE_UNKNOWN) text = surface;
        if (piece->type == PIECE_BYTE) text = (Span){&byte, 1};
        if (piece->type == PIECE_BYTE || piece->type == PIECE_UNKNOWN) buffer_append(&tokenizer->decoded, text.bytes, text.size);
        else text_replace(&tokenizer->decoded, text, mark, space);
        Decoded whole = {at, tokenizer->decoded.size - at, false}, first = whole;
        bool marked = (rules->prefix || rules->squeeze) && piece->type != PIECE_CONTROL && text.size >= mark.size &&
                      memcmp(text.bytes, mark.bytes, mark.size) == 0;
        if (marked) first.at++, first.size--;
        first.waits = first.size == 0 && (!marked || rules->squeeze);
        tokenizer->rest[i] = whole;
        tokenizer->first[i] = first;
    }
}

static bool build_tokenizer(Tokenizer *tokenizer, const SentencePieceModel *model, Error *error) {
    if (model->count == 0) return error_set(error, ERROR_DATA, "it is binary, but not a SentencePiece model, because it has no tokens");
    if (model->type != MODEL_UNIGRAM && model->type != MODEL_BPE)
        return error_set(error, ERROR_DATA, "its model type is %s; smelt reads BPE and unigram models",
            model->type == MODEL_WORD   ? "word"
            : model->type == MODEL_CHAR ? "char"
                                        : "unknown");
    if (model->denormalizes) return error_set(error, ERROR_DATA, "it rewrites decoded text (denormalizer_spec), which is not supported");
    tokenizer->byte_fallback = model->byte_fallback;
    NormalStep *step = &tokenizer->normals[tokenizer->normal_count++];
    *step = (NormalStep){.kind = NORMAL_SENTENCEPIECE, .whitespace = model->whitespace};
    if (!charsmap_read(&step->charsmap, model->charsmap, error) || !add_pieces(tokenizer, model, error)) return false;
    build_decoding(tokenizer, model);
    return model->type == MODEL_BPE ? build_bpe(tokenizer, model, error) : build_unigram(tokenizer, model, error);
}

bool read_sentencepiece(Tokenizer *tokenizer, const char *bytes, size_t size, Error *error) {
    SentencePieceModel model;
    tokenizer->sentencepiece = true;
    bool good = sentencepiece_parse(&model, (Span){bytes, size}, error) && build_tokenizer(tokenizer, &model, error);
    free(model.pieces);
    return good;
}
