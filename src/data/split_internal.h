/* Decides to which part each document of shards belongs. Shared by `smelt data split`, which writes
 * both parts, and by runs, which write the validation part and leave it out of their shards. */
#pragma once

#include <xxhash.h>

#include "data/shard_set.h"
#include "data/shard_writer_internal.h"

typedef struct SplitReader {
    const ShardSet *set;
    double valid_fraction;
    bool masked; /* the outputs have a loss mask */
    DocumentCursor cursor;
    int32_t *tokens; /* [HELD_TOKENS]: those from token `held` on */
    uint8_t *marks;  /* [HELD_TOKENS] */
    int64_t held, held_count;
    XXH3_state_t *hash;
} SplitReader;

/* The tokens [start, end) of a document, or of a pair, whose second document begins at `middle`. */
typedef struct SplitDocument {
    int64_t start, middle, end; /* middle == end: a document */
    bool valid;
} SplitDocument;

/* Starts at the first document of a set. */
void split_reader_open(SplitReader *reader, const ShardSet *set, double valid_fraction, bool masked);
/* Takes the next document, or pair; its end is -1 after the last. ERROR_DATA. */
bool split_reader_next(SplitReader *reader, SplitDocument *document, Error *error);
/* Writes it with its loss mask. */
bool split_reader_copy(SplitReader *reader, const SplitDocument *document, ShardWriter *writer, Error *error);
void split_reader_close(SplitReader *reader);

/* Returns the bytes of a token that hold all tokens of a set. */
int split_token_bytes(const ShardSet *set);
