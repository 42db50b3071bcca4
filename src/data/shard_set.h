/* Token shards: tokens on disk, read as one stream of tokens and of documents.
 *
 * Shards are Megatron's: PREFIX.bin holds the tokens end to end; PREFIX.idx holds the type,
 * sequence lengths, byte offsets and document boundaries. Corpora packed by other systems therefore
 * work unchanged. A dataset is the concatenation of all documents of a set of shards. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct Shard Shard; /* one shard (data_internal.h) */

/* The shards that a path names: one shard (PREFIX of Megatron's PREFIX.bin and PREFIX.idx, or a
 * file of llm.c or llmq), the shards of a folder in byte order of their names, the .bin files that
 * match FOLDER/PATTERN with a *, or a folder of Mosaic's MDS. They form one stream of tokens and of
 * documents, counted from 0 across the shards; the end of a shard ends a document. Files stay open;
 * nothing is allocated per token or document. An open shard must not be overwritten in place;
 * replacing its files by rename, as ShardWriter does, is safe. */
/* A set may be a part of its shards, such as the training documents (data/split.h): its tokens from
 * `first` on are those of the shards from `start` on, up to the `first` of the next run. */
typedef struct StreamRun { int64_t first, start; } StreamRun;

typedef struct ShardSet {
    char *path;    /* as given, for messages; owned */
    Shard *shards; /* owned */
    int64_t count;
    int64_t *first_token, *first_document; /* [count + 1]: the start of each shard in the stream, and one past the last; owned */
    const StreamRun *runs;                 /* [run_count + 1], the last one ends the set; borrowed; NULL: the set is all of its shards */
    int64_t run_count;
    int64_t token_count;
    int64_t document_count; /* -1: not all shards have a document index */
    bool masked;            /* a shard has a loss mask */
    bool pairs;             /* documents 2 i and 2 i + 1 are the chosen and the rejected answer of a pair; all shards are masked */
    int32_t end_token;      /* set by the owner: without an index, this token ends a document; -1: no token does */
    struct Remote *remote;  /* for a folder of remote_mirror; otherwise NULL */
    int64_t max_token;      /* the largest token that is recorded, or that shard_set_verify has found; -1: none */
} ShardSet;

/* Returns whether a path names shards; any other path counts as text. If the system cannot tell,
 * the result is true, and opening the set reports the reason. */
bool shard_set_exists(const char *path);
/* Finds the tokenizer that made the tokens, as recorded beside them: the folder PREFIX.tokenizer of
 * a shard, or FOLDER/tokenizer for a folder, or "" for the byte tokenizer; NULL: none is recorded,
 * as in other programs' shards. The caller frees. Returns false if it cannot be read now. */
bool shard_set_tokenizer(const char *path, char **tokenizer, Error *error);
/* Opens the files and checks a few places of them, which is fast at any size: file sizes, and, in
 * shards that smelt wrote, checksums of the parts that it reads. Tokens and documents are checked
 * when they are read. ERROR_DATA. */
bool shard_set_open(ShardSet *set, const char *path, Error *error);
/* Verifies all bytes of an open set: checksums, every offset and document boundary, no negative
 * token. On failure the set stays open. Shows progress. */
bool shard_set_verify(ShardSet *set, Error *error);
void shard_set_close(ShardSet *set); /* also for a zeroed or failed set */

/* Properties of a token from the index. */
typedef enum TokenMark {
    TOKEN_ENDS = 1,      /* a document ends after it */
    TOKEN_UNTRAINED = 2, /* the loss excludes it */
} TokenMark;

/* Copies the tokens [first, first + count) of the stream to `tokens`; `marks` (may be NULL)
 * receives the TokenMarks of each. Tokens must be below `vocabulary`, and blocks must match their
 * checksums, if recorded. ERROR_DATA names file and place. Any thread may call. */
bool shard_set_read(const ShardSet *set, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *marks, Error *error);
/* Asks the system to read ahead for shard_set_read, and returns at once. */
void shard_set_prefetch(const ShardSet *set, int64_t first, int64_t count);

/* Returns how many sequences of `length` tokens are worth requesting ahead. */
int64_t shard_set_ahead(const ShardSet *set, int64_t length);
/* Sets whether shard_set_read fails instead of waiting for a store, for a thread that must end. */
void shard_set_interrupt(const ShardSet *set, bool interrupted);

/* Walks the documents in order; initialize with {.set = set}. */
typedef struct DocumentCursor {
    const ShardSet *set;
    int64_t document, token; /* the next document of the shards, and its first token */
    int64_t run;             /* the first run that does not end before it */
    const void *checked[2];  /* state of shard_index_document */
} DocumentCursor;
/* Returns the tokens [*start, *end) of the next document, which may be empty. *end is -1 after the
 * last. ERROR_DATA. */
bool document_cursor_next(DocumentCursor *cursor, int64_t *start, int64_t *end, Error *error);

/* Returns a checksum of a set's content (tokens, document ends and token types) without reading it:
 * smelt's shards record their checksums; for other programs' shards, size and samples stand for the
 * content. ERROR_DATA. */
bool shard_set_checksum(const ShardSet *set, uint64_t *checksum, Error *error);
/* Returns the token types of all shards for `smelt data show`: "u16", or "u16, i32". The caller
 * frees. */
char *shard_set_types(const ShardSet *set);
char *shard_set_formats(const ShardSet *set); /* "Megatron" */
int64_t shard_set_bytes(const ShardSet *set); /* total size of the token files */
/* Counts the trained tokens of all documents; a loss mask excludes the others. ERROR_DATA. */
bool shard_set_trained(const ShardSet *set, int64_t *trained, Error *error);
bool shard_set_checksummed(const ShardSet *set); /* whether all shards have checksums: smelt's do, other programs' do not */
