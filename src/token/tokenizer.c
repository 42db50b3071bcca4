/* Opens, builds and frees tokenizers. The readers add tokens one by one; this file keeps the tables
 * for encoding and decoding consistent: contents, words, characters, bytes, added tokens and their
 * tries. A Tokenizer owns all of them. */
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/array.h"
#include "token/token_internal.h"

/* -- Building ------------------------------------------------------------------------------------------------------ */

static void note_id(Tokenizer *tokenizer, int32_t id) {
    if (id >= tokenizer->vocabulary) tokenizer->vocabulary = id + 1;
}

static void add_byte_word(Tokenizer *tokenizer, const char *bytes, size_t size, int32_t id) {
    if (size == 1) tokenizer->byte_id[(unsigned char)bytes[0]] = id;
    if (tokenizer->whole_words) token_map_put(&tokenizer->words, bytes, size, id);
}

static void add_text_word(Tokenizer *tokenizer, const char *text, size_t length, int32_t id) {
    size_t size;
    if (tokenizer->whole_words) token_map_put(&tokenizer->words, text, length, id);
    uint32_t character = text_character(text, &size);
    if (size == length) *pair_map_put(&tokenizer->characters, character) = (uint64_t)id;
    for (int byte = 0; length == 6 && memcmp(text, "<0x", 3) == 0 && byte < BYTES; byte++) {
        char name[7];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)byte & 0xFF);
        if (memcmp(name, text, length) == 0) tokenizer->byte_id[byte] = id;
    }
}

bool tokenizer_add_word(Tokenizer *tokenizer, const char *bytes, size_t length, int32_t id, Error *error) {
    if (length > WORD_LIMIT) return error_set(error, ERROR_DATA, "a token has %zu bytes; the limit is %d", length, WORD_LIMIT);
    if (!token_map_put(&tokenizer->contents, bytes, length, id)) return error_set(error, ERROR_DATA, "a token is a duplicate");
    note_id(tokenizer, id);
    if (length == 0) return true;
    if (!tokenizer->byte_level) {
        add_text_word(tokenizer, bytes, length, id);
        return true;
    }
    SCOPED_FREE char *raw = memory_allocate(length);
    size_t size;
    if (text_from_alphabet(bytes, length, raw, &size)) add_byte_word(tokenizer, raw, size, id);
    return true;
}

void tokenizer_add_merge(Tokenizer *tokenizer, Span left, Span right, const int32_t ids[3], uint64_t rank) {
    *pair_map_put(&tokenizer->merges, pair_key((uint32_t)ids[0], (uint32_t)ids[1])) = rank << 32 | (uint32_t)ids[2];
    bool starts = right.size >= 3 && memcmp(right.bytes, "\xE2\x96\x81", 3) == 0;
    bool follows = left.size >= 3 && memcmp(left.bytes + left.size - 3, "\xE2\x96\x81", 3) == 0;
    if (starts && !follows) tokenizer->space_begins_words = false;
}

void tokenizer_add_added(Tokenizer *tokenizer, AddedToken *token) {
    token_map_put(&tokenizer->contents, token->content.bytes, token->content.size, token->id);
    note_id(tokenizer, token->id);
    array_append(tokenizer->added, tokenizer->added_count, *token);
}

/* A token that is matched after normalization is added to the trie in its normalized form. */
static bool build_tries(Tokenizer *tokenizer, Error *error) {
    SCOPED(buffer_free) Buffer out = {0}, spare = {0};
    RegexScratch *scratch = regex_scratch_open();
    bool good = true;
    for (int32_t i = 0; good && i < tokenizer->added_count; i++) {
        const AddedToken *token = &tokenizer->added[i];
        Span content = buffer_span(&token->content);
        if (token->match == MATCH_NORMALIZED) good = normalize(tokenizer, scratch, content, false, &out, &spare, &content, error);
        if (good) cuts_respect_added(tokenizer, token, content);
        if (good) trie_add(token->match == MATCH_RAW ? &tokenizer->raw : &tokenizer->normal, content.bytes, content.size, i);
    }
    regex_scratch_free(scratch);
    return good;
}

static bool finish_tokenizer(Tokenizer *tokenizer, Error *error) {
    if (tokenizer->vocabulary == 0) return error_set(error, ERROR_DATA, "it has no tokens");
    for (const TokenIds *list = &tokenizer->before; list; list = list == &tokenizer->before ? &tokenizer->after : NULL)
        for (size_t i = 0; i < list->count; i++)
            if (list->items[i] >= tokenizer->vocabulary)
                return error_set(
                    error, ERROR_DATA, "its template adds token %d, but the vocabulary has %d", list->items[i], tokenizer->vocabulary);
    tokenizer->special = memory_allocate((size_t)tokenizer->vocabulary * sizeof *tokenizer->special);
    for (int32_t i = 0; i < tokenizer->added_count; i++)
        if (tokenizer->added[i].special) tokenizer->special[tokenizer->added[i].id] = true;
    cuts_find(tokenizer);
    return build_tries(tokenizer, error);
}

/* -- Files --------------------------------------------------------------------------------------------------------- */

/* Returns whether a text is JSON, which begins with a brace after optional white space; base64 has
 * no brace. */
static bool is_json(const char *bytes, size_t size) {
    size_t at = 0;
    while (at < size && strchr(" \t\r\n", bytes[at]) && bytes[at]) at++;
    return at < size && bytes[at] == '{';
}

/* Replaces control characters, which messages may quote from a file, so that the message is one
 * line. */
static bool fail_in_one_line(Error *error, const char *path) {
    for (unsigned char *c = (unsigned char *)error->message; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
    return error_context(error, "%s", path);
}

static bool read_any(Tokenizer *tokenizer, const TokenizerFiles *files, Error *error) {
    const char *bytes = files->tokens;
    size_t size = (size_t)files->bytes;
    bool good;
    if (memchr(bytes, 0, size)) good = read_sentencepiece(tokenizer, bytes, size, error);
    else if (!is_json(bytes, size)) good = read_tiktoken(tokenizer, bytes, size, files->config, error);
    else good = read_json(tokenizer, bytes, size, files->made ? NULL : files->config, error);
    good = good && finish_tokenizer(tokenizer, error);
    return good || fail_in_one_line(error, tokenizer->path);
}

/* Finds the end-of-text token: eos_token of the side files, which must be a token, or else the
 * usual names. */
static bool find_end_of_text(Tokenizer *tokenizer, const json_t *config, Error *error) {
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<EOT>", "<｜end▁of▁sentence｜>"};
    int32_t id;
    if (!side_token_id(tokenizer, config, "eos_token", &id, error)) return fail_in_one_line(error, tokenizer->path);
    if (id == TOKEN_NONE) id = tokenizer->end_of_text;
    for (size_t i = 0; id == TOKEN_NONE && i < sizeof names / sizeof *names; i++) id = tokenizer_id(tokenizer, names[i]);
    tokenizer->end_of_text = id;
    return true;
}

Tokenizer *tokenizer_open(const char *path, Error *error) {
    Tokenizer *tokenizer = memory_allocate(sizeof *tokenizer);
    if (file_kind(path, NULL) != FILE_FOLDER) tokenizer->path = memory_copy_string(path);
    else if (!(tokenizer->path = tokenizer_find(path))) tokenizer->path = memory_format("%s/tokenizer.json", path);
    tokenizer->unknown = tokenizer->end_of_text = TOKEN_NONE;
    for (int i = 0; i < BYTES; i++) tokenizer->byte_id[i] = TOKEN_NONE;
    SCOPED(tokenizer_files_free) TokenizerFiles files = {0};
    bool good = tokenizer_files(&files, tokenizer->path, error) && (files.tokens || tokenizer_refuse_absent(tokenizer->path, error));
    if (good && read_any(tokenizer, &files, error) && find_end_of_text(tokenizer, files.config, error) &&
        (side_token_id(tokenizer, files.config, "bos_token", &tokenizer->bos_token, error) || fail_in_one_line(error, tokenizer->path)))
        return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}

static void free_trie(Trie *trie) {
    pair_map_free(&trie->edges);
    free(trie->pattern);
}

static void free_steps(Tokenizer *tokenizer) {
    for (int i = 0; i < STEPS; i++) {
        pattern_free(&tokenizer->normals[i].pattern);
        free(tokenizer->normals[i].with.bytes);
        charsmap_free(&tokenizer->normals[i].charsmap);
        pattern_free(&tokenizer->splits[i].pattern);
        free(tokenizer->decoding.from[i].bytes);
        free(tokenizer->decoding.to[i].bytes);
    }
    free(tokenizer->decoding.metaspace.bytes);
}

void tokenizer_free(Tokenizer *tokenizer) {
    if (!tokenizer) return;
    pair_map_free(&tokenizer->characters);
    token_map_free(&tokenizer->words);
    token_map_free(&tokenizer->contents);
    pair_map_free(&tokenizer->merges);
    for (int32_t i = 0; i < tokenizer->added_count; i++) free(tokenizer->added[i].content.bytes);
    free(tokenizer->added);
    free_trie(&tokenizer->raw);
    free_trie(&tokenizer->normal);
    free_trie(&tokenizer->symbols);
    double_array_free(&tokenizer->pieces);
    free(tokenizer->scores);
    free_steps(tokenizer);
    token_ids_free(&tokenizer->before);
    token_ids_free(&tokenizer->after);
    if (tokenizer->first != tokenizer->rest) free(tokenizer->first);
    free(tokenizer->rest);
    free(tokenizer->special);
    free(tokenizer->decoded.bytes);
    free(tokenizer->path);
    free(tokenizer);
}

int32_t tokenizer_vocabulary(const Tokenizer *tokenizer) { return tokenizer->vocabulary; }

int32_t tokenizer_id(const Tokenizer *tokenizer, const char *token) { return token_map_get(&tokenizer->contents, token, strlen(token)); }

int32_t tokenizer_end_of_text(const Tokenizer *tokenizer) { return tokenizer->end_of_text; }

bool tokenizer_set_bos(Tokenizer *tokenizer, TokenizerBos bos, Error *error) {
    bool named = tokenizer && (tokenizer->before.count || tokenizer->bos_token != TOKEN_NONE);
    if (bos == BOS_TRUE && !named)
        return error_set(error, ERROR_USAGE,
            "bos=true, but %s has no beginning-of-text token: remove bos, or set bos_token in a tokenizer_config.json in its folder",
            tokenizer ? tokenizer->path : "the byte tokenizer");
    if (bos == BOS_TRUE && !tokenizer->before.count) token_ids_append(&tokenizer->before, tokenizer->bos_token);
    if (tokenizer) tokenizer->bos = bos;
    return true;
}

const TokenIds *tokenizer_bos(const Tokenizer *tokenizer) { return &tokenizer->before; }
