/* What the files of the data module share among themselves: one shard of a set, and the constants of the shard format that
 * its reader (shard_index.c, where the format is described) and its writer (shard_writer.c) must agree on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "data/data.h"

/* Puts `tokenizer` (as for tokenizer_open; "": the byte tokenizer) into a folder, which is replaced. */
bool shard_tokenizer_write(const char *tokenizer, const char *folder, Error *error);

/* -- One shard (shard.c) ------------------------------------------------------------------------------------------- */

typedef int32_t UnalignedI32 __attribute__((aligned(1)));
typedef int64_t UnalignedI64 __attribute__((aligned(1)));

/* The arrays of a mapped PREFIX.idx, which begin at any byte. */
typedef struct ShardIndex {
    FileMap map;
    const UnalignedI32 *lengths;   /* [sequences] in tokens */
    const UnalignedI64 *offsets;   /* [sequences] in bytes */
    const UnalignedI64 *documents; /* [document_count + 1]: the sequence that each begins with, and one past the last */
    int64_t sequences;
} ShardIndex;

struct Shard {
    char *prefix; /* for messages; owned */
    FileMap map;  /* PREFIX.bin: tokens end to end */
    ShardIndex index;
    int token_bytes; /* 1, 2 or 4 (Megatron types u8, u16, i32; others are refused) */
    int64_t token_count, document_count;
    int64_t max_token;  /* as found by shard_verify */
    bool checksummed;   /* smelt's writer puts checksums behind Megatron's fields; others do not look there */
    uint64_t checksum;  /* XXH3 of PREFIX.bin: as written with `checksummed`, and as read by shard_verify */
    uint64_t documents; /* XXH3 of the ends of documents, an i64 each, as read by shard_verify */
};

/* Maps both files; what can be checked without reading them is. On failure there is nothing to close. */
bool shard_map(Shard *shard, const char *prefix, Error *error);
/* Reads both files; on failure the shard stays mapped. */
bool shard_verify(Shard *shard, Error *error);
void shard_close(Shard *shard);                  /* also of a zeroed one */
const char *shard_type_name(const Shard *shard); /* "u8", "u16" or "i32" */
/* As shard_set_read and shard_set_prefetch, for tokens of this shard. */
bool shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *ends, Error *error);
void shard_prefetch(const Shard *shard, int64_t first, int64_t count);

/* -- Its index (shard_index.c) --------------------------------------------------------------------------------------- */

bool shard_index_map(Shard *shard, Error *error);
/* Walks all sequences and documents; sets shard->documents. */
bool shard_index_verify(Shard *shard, Error *error);
/* The tokens [*start, *end) of a document. */
bool shard_index_document(const Shard *shard, int64_t document, int64_t *start, int64_t *end, Error *error);
/* Sets ends[i] to 1 where a document ends behind token first + i, else to 0. */
bool shard_index_ends(const Shard *shard, int64_t first, int64_t count, uint8_t *ends, Error *error);

/* -- The format of the index ----------------------------------------------------------------------------------------- */

#define SHARD_MAGIC "MMIDIDX\0" /* 9 bytes: two zeros end it */
#define SHARD_BLOCKS_MAGIC "SMELTBLK"
#define SHARD_CHECKSUM_MAGIC "SMELTSUM"
enum { SHARD_VERSION = 1, SHARD_TYPE_COUNT = 9, SHARD_BLOCK_BYTES = 16384 };

/* How PREFIX.idx begins, and what smelt's writer adds at its end; all without padding. */
typedef struct __attribute__((packed)) ShardHeader {
    char magic[9];
    uint64_t version;
    uint8_t type;
    uint64_t sequences, entries; /* entries of the list of documents: one more than there are documents */
} ShardHeader;
typedef struct __attribute__((packed)) ShardBlocks {
    char magic[8];
    uint64_t max_token;
    uint64_t checksums[]; /* XXH3 of each SHARD_BLOCK_BYTES of PREFIX.bin, the last of which may be shorter */
} ShardBlocks;
typedef struct __attribute__((packed)) ShardChecksums {
    char magic[8];
    uint64_t tokens, index; /* XXH3 of PREFIX.bin, and of all bytes of the index before this field */
} ShardChecksums;

typedef struct ShardType {
    const char *name;
    int token_bytes; /* 0: smelt does not read this type */
} ShardType;

extern const ShardType shard_types[SHARD_TYPE_COUNT]; /* by the index's type code; 0 is no type */
int shard_type_code(int token_bytes);                 /* token_bytes is 1, 2 or 4 */
