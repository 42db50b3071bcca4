/* What the tests of the data module share: shards, and one shard written out by hand. Everything is static inline,
 * so a test program uses what it needs. */
#pragma once

#include "base/error.h"
#include "data/data.h"
#include "files.h"

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

static inline Shard open_shard(const char *prefix) {
    Shard shard;
    Error error = {0};
    if (!shard_open(&shard, prefix, &error)) fail_msg("%s", error.message);
    return shard;
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
