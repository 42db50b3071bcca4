/* What the tests of the data module share: shards, and one shard written out by hand. Everything is static inline,
 * so a test program uses what it needs. */
#pragma once

#include "base/error.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "data/shard_set.h"
#include "data/shard_writer_internal.h"
#include "files.h"

static inline bool shard_writer_document(ShardWriter *writer, const int32_t *tokens, int64_t count, Error *error) {
    return shard_writer_append(writer, tokens, count, error) && shard_writer_end_document(writer, error);
}

static inline bool shard_writer_finish(ShardWriter *writer, Error *error) { return shard_writers_finish(&writer, 1, NULL, error); }

static inline void write_shard(const char *prefix, int token_bytes, const int32_t *tokens, const int64_t *lengths, int64_t documents) {
    Error error = {0};
    ShardWriter *writer = shard_writer_open(prefix, token_bytes, &error);
    assert_non_null(writer);
    for (int64_t i = 0; i < documents; i++) {
        assert_true(shard_writer_document(writer, tokens, lengths[i], &error));
        tokens += lengths[i];
    }
    assert_true(shard_writer_finish(writer, &error));
}

/* The index of another program's shard, whose tokens are of the type with this number (4: int32, 8: uint16): sequences and
 * documents of 2^30 tokens at most. */
static inline void write_index(const char *prefix, char type, int64_t tokens) {
    enum { LONGEST = 1 << 30 };
    int64_t sequences = (tokens + LONGEST - 1) / LONGEST, bytes = type == 8 ? 2 : 4;
    const struct __attribute__((packed)) {
        char magic[9];
        int64_t version;
        char type;
        int64_t sequences, entries;
    } header = {"MMIDIDX", 1, type, sequences, sequences + 1};
    SCOPED_FREE char *path = memory_format("%s.idx", prefix);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(&header, sizeof header, 1, file);
    for (int64_t i = 0; i < sequences; i++)
        fwrite(&(int32_t){(int32_t)(i < sequences - 1 ? LONGEST : tokens - i * LONGEST)}, sizeof(int32_t), 1, file);
    for (int64_t i = 0; i < sequences; i++) fwrite(&(int64_t){i * LONGEST * bytes}, sizeof(int64_t), 1, file);
    for (int64_t i = 0; i <= sequences; i++) fwrite(&i, sizeof i, 1, file);
    assert_int_equal(fclose(file), 0);
}

/* Opens and reads everything. */
static inline bool open_verified(ShardSet *set, const char *path, Error *error) {
    if (!shard_set_open(set, path, error)) return false;
    if (shard_set_verify(set, error)) return true;
    shard_set_close(set);
    return false;
}

static inline ShardSet open_set(const char *path) {
    ShardSet set;
    Error error = {0};
    if (!open_verified(&set, path, &error)) fail_msg("%s", error.message);
    return set;
}

/* Shard "c": tokens 0, 1, 2, ... in documents of the given lengths. */
static inline ShardSet counting_set(const int64_t *lengths, int64_t documents) {
    int64_t total = 0;
    for (int64_t i = 0; i < documents; i++) total += lengths[i];
    int32_t *tokens = memory_allocate((size_t)total * sizeof *tokens);
    for (int64_t i = 0; i < total; i++) tokens[i] = (int32_t)i;
    write_shard("c", 4, tokens, lengths, documents);
    free(tokens);
    return open_set("c");
}

enum { ANY_TOKEN = INT32_MAX };

/* All tokens, for the caller to free. `ends` may be NULL, or receives where documents end, for the caller to free too. */
static inline int32_t *read_tokens(const ShardSet *set, uint8_t **ends) {
    Error error = {0};
    int32_t *tokens = memory_allocate((size_t)set->token_count * sizeof *tokens);
    if (ends) *ends = memory_allocate((size_t)set->token_count);
    if (!shard_set_read(set, 0, set->token_count, (int64_t)ANY_TOKEN + 1, tokens, ends ? *ends : NULL, &error))
        fail_msg("%s", error.message);
    return tokens;
}

static inline void assert_tokens(const ShardSet *set, const int32_t *expected, int64_t count) {
    assert_int_equal(set->token_count, count);
    int32_t *tokens = read_tokens(set, NULL);
    for (int64_t i = 0; i < count; i++) assert_int_equal(tokens[i], expected[i]);
    free(tokens);
}

static inline void assert_documents(const ShardSet *set, const int64_t *ends, int64_t count) {
    DocumentCursor cursor = {.set = set};
    Error error = {0};
    int64_t start, end, before = 0;
    assert_int_equal(set->document_count, count);
    for (int64_t i = 0; i < count; i++) {
        assert_true(document_cursor_next(&cursor, &start, &end, &error));
        assert_int_equal(start, before);
        assert_int_equal(end, ends[i]);
        before = end;
    }
    assert_true(document_cursor_next(&cursor, &start, &end, &error));
    assert_int_equal(end, -1);
}

/* Written out from the format's definition: 3 sequences in 2 documents, the first document being sequences 0 and 1. */
static const unsigned char hand_index[94] = "MMIDIDX\0\0"                                        /* magic */
                                            "\1\0\0\0\0\0\0\0"                                   /* version */
                                            "\4"                                                 /* int32 */
                                            "\3\0\0\0\0\0\0\0"                                   /* sequences */
                                            "\3\0\0\0\0\0\0\0"                                   /* document entries: documents + 1 */
                                            "\2\0\0\0\1\0\0\0\3\0\0\0"                           /* lengths */
                                            "\0\0\0\0\0\0\0\0\10\0\0\0\0\0\0\0\14\0\0\0\0\0\0\0" /* byte offsets */
                                            "\0\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0";  /* document index */
static const unsigned char hand_tokens[24] = "\5\0\0\0\6\1\0\0"
                                             "\7\0\2\0"
                                             "\10\0\0\0\11\0\0\0\12\0\0\0";

static inline void write_hand_shard(void) {
    write_bytes("m.idx", hand_index, sizeof hand_index);
    write_bytes("m.bin", hand_tokens, sizeof hand_tokens);
}

/* A shard of byte tokens as text, "|" for the separator token; the caller frees. */
static inline char *shard_text(const char *prefix) {
    ShardSet set = open_set(prefix);
    SCOPED_FREE char *types = shard_set_types(&set);
    SCOPED_FREE uint8_t *ends = NULL;
    SCOPED_FREE int32_t *tokens = read_tokens(&set, &ends);
    char *text = memory_allocate((size_t)set.token_count + 1);
    int64_t documents = 0;
    assert_string_equal(types, "u16");
    for (int64_t i = 0; i < set.token_count; i++) {
        text[i] = tokens[i] == BYTE_SEPARATOR ? '|' : (char)tokens[i];
        assert_int_equal(ends[i], tokens[i] == BYTE_SEPARATOR);
        documents += ends[i];
    }
    assert_int_equal(documents, set.document_count);
    shard_set_close(&set);
    return text;
}

static inline void assert_shard_text(const char *prefix, const char *expected) {
    char *text = shard_text(prefix);
    assert_string_equal(text, expected);
    free(text);
}
