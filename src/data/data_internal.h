/* Internals of the data module: one shard of a set, and the constants of the shard format, which
 * its reader (shard_index.c, which describes the format) and its writer (shard_writer.c) share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "base/file.h"
#include "data/shard_set.h"
#include "data/remote_internal.h"

/* Writes `tokenizer` and `template`, as for shard_writer_tokenizer, into a folder, which is
 * replaced. */
bool shard_tokenizer_write(const char *tokenizer, const char *template, const char *folder, Error *error);

/* -- Names of new shards (shard_names.c) ----------------------------------------------------------------------------- */

/* Returns NAME.next, the name of a shard's file or folder on disk until all parts of the shard are
 * complete. The caller frees. */
char *shard_next(const char *name);
/* Renames the waiting files of the shards `prefixes` (NULL-terminated), and then `record`, whose
 * NAME.next says that they are complete; NULL: there is none. It can be called again after a
 * failure, also by another process. ERROR_CHECKPOINT; ERROR_USAGE while another process does it. */
bool shard_names_take(const char *const *prefixes, const char *record, Error *error);
/* Does the same if a process that was killed, or failed, left `record` waiting; *resumed is then
 * true. */
bool shard_names_resume(const char *const *prefixes, const char *record, bool *resumed, Error *error);

/* -- One shard (shard.c) ------------------------------------------------------------------------------------------- */

typedef int32_t UnalignedI32 __attribute__((aligned(1)));
typedef int64_t UnalignedI64 __attribute__((aligned(1)));

/* The arrays of a mapped PREFIX.idx, which may be unaligned. */
typedef struct ShardIndex {
    FileMap map;
    const UnalignedI32 *lengths;   /* [sequences] in tokens */
    const UnalignedI64 *offsets;   /* [sequences] in bytes */
    const UnalignedI64 *documents; /* [document_count + 1]: the first sequence of each, and one past the last */
    int64_t sequences;
    int64_t bytes; /* of header and arrays, without the data that smelt's writer appends */
    /* XXH3 of each SHARD_BLOCK_BYTES of PREFIX.bin, and of these `bytes`; the last block may be
     * shorter. NULL: not recorded. */
    const UnalignedU64 *token_blocks, *blocks;
} ShardIndex;

/* The checksums that a shard records. */
typedef enum ShardRecord {
    SHARD_BARE,   /* none, as in other programs' shards */
    SHARD_SUMS,   /* smelt 0.9: checksums of both files */
    SHARD_BLOCKS, /* smelt: also checksums of blocks, which each read checks */
} ShardRecord;

/* Layout of the samples of an MDS shard (mds.c). */
typedef struct ShardRows {
    int64_t samples, first;      /* number of samples, and the offset of the first one in bytes */
    int64_t tokens;              /* of each sample, unless the number varies */
    int64_t fixed, before;       /* bytes of fixed-size columns: all, and those before the tokens */
    int varying, varying_before; /* number of variable-size columns: all, and those before the tokens */
    bool varies;
} ShardRows;

enum { SHARD_PROBE_BYTES = 32 };
typedef struct ShardFormat {
    const char *name;
    /* Returns whether a path names such a shard, by its name or the first SHARD_PROBE_BYTES of the
     * file, which are 0 if there is no file. */
    bool (*probe)(const char *path, const void *start);
    /* Opens shard->file, unless shard->object is set (Megatron only), and sets the fields that the
     * format gives, from shard->prefix. On failure the caller closes it. */
    bool (*open)(Shard *shard, Error *error);
    /* Finds the byte offset of a token, and how many tokens follow contiguously. NULL: all tokens
     * are contiguous from Shard.start on. */
    bool (*locate)(const Shard *shard, int64_t token, int64_t *at, int64_t *run, Error *error);
} ShardFormat;

struct Shard {
    const ShardFormat *format;
    char *prefix; /* its name, for messages; owned */
    File file;    /* PREFIX.bin, or the file itself in formats without a prefix */
    /* PREFIX.bin in a bucket, or NULL. If it is set, `file` is not open, and has only path and
     * size. */
    RemoteObject *object;
    int64_t start; /* byte offset of its first token */
    ShardIndex index;
    ShardRows rows;
    int token_bytes;                     /* 1, 2, 4 or 8: u8, u16, i32, i64; other types are refused */
    int64_t token_count, document_count; /* documents -1: the format has no document index */
    ShardRecord record;
    bool masked;        /* documents are sequences that are alternately untrained and trained */
    bool pairs;         /* documents 2 i and 2 i + 1 are a pair */
    int64_t max_token;  /* with SHARD_BLOCKS, or after shard_verify; otherwise -1 */
    uint64_t checksum;  /* except for SHARD_BARE: XXH3 of PREFIX.bin */
    uint64_t documents; /* with SHARD_BLOCKS: XXH3 of the document ends in tokens, i64 each; `masked`: also of the sequence ends */
};

/* Opens the files of a shard and checks a few places of them. The tokens are an object of `remote`
 * unless it is NULL. On failure there is nothing to close. */
bool shard_open(Shard *shard, const char *prefix, Remote *remote, Error *error);
/* Verifies all of its files; on failure the shard stays open. */
bool shard_verify(Shard *shard, Error *error);
void shard_close(Shard *shard);                  /* also for a zeroed shard */
const char *shard_type_name(const Shard *shard); /* "u16" */
/* Returns a checksum of tokens, documents and type: the recorded one of the whole content, or else
 * one of samples of both files. */
bool shard_checksum(const Shard *shard, uint64_t *checksum, Error *error);
/* Like shard_set_read and shard_set_prefetch, for tokens of this shard. */
bool shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *marks, Error *error);
void shard_prefetch(const Shard *shard, int64_t first, int64_t count);

/* -- Its format (shard_format.c, mds.c) ------------------------------------------------------------------------------ */

/* Finds the format of a path; NULL: it is not a shard. Returns false if it cannot be read now. */
bool shard_format(const char *path, const ShardFormat **format, Error *error);
/* Adds the shards of an MDS folder, in the order of its index.json; adds nothing for any other
 * folder. */
bool mds_list(const char *folder, FileList *shards, Error *error);
bool mds_probe(const char *path, const void *start);
bool mds_open(Shard *shard, Error *error);
bool mds_locate(const Shard *shard, int64_t token, int64_t *at, int64_t *run, Error *error);

/* -- Its index (shard_index.c) --------------------------------------------------------------------------------------- */

bool shard_index_open(Shard *shard, Error *error);
/* Verifies all sequences and documents; *documents is the XXH3 of their ends. */
bool shard_index_verify(const Shard *shard, uint64_t *documents, Error *error);
/* Returns the tokens [*start, *end) of a document. The entries that it reads are checked, except in
 * the blocks `checked`, which the last call has checked; start with two NULLs. */
bool shard_index_document(const Shard *shard, int64_t document, int64_t *start, int64_t *end, const void *checked[2], Error *error);
/* Returns the start of the first block whose checksum is wrong, among `size` bytes of a file from
 * the block boundary `start` on; -1: none. `sums` holds the checksums of all blocks of the file. */
int64_t shard_wrong_block(const UnalignedU64 *sums, const void *bytes, int64_t start, int64_t size);
/* Reports bytes of PREFIX.bin (`tokens`) or of the index that do not match the checksum of their
 * block. If the checksums themselves are damaged, they are reported instead. */
bool shard_index_refuse(const Shard *shard, bool tokens, int64_t start, int64_t size, Error *error);
/* Adds the trained tokens of a document of a masked shard. */
bool shard_index_trained(const Shard *shard, int64_t document, int64_t *trained, Error *error);
/* Sets marks[i] to the TokenMark of token first + i. */
bool shard_index_marks(const Shard *shard, int64_t first, int64_t count, uint8_t *marks, Error *error);

/* -- The format of the index ----------------------------------------------------------------------------------------- */

#define SHARD_MAGIC "MMIDIDX\0" /* 9 bytes: two zeros end it */
#define SHARD_TRAILER_MAGIC "SMELTBLK"
#define SHARD_MASKED_MAGIC "SMELTMSK" /* for a shard with a loss mask */
#define SHARD_PAIRS_MAGIC "SMELTPRF"  /* for pairs of documents */
#define SHARD_SUMS_MAGIC "SMELTSUM"
enum { SHARD_VERSION = 1, SHARD_TYPE_COUNT = 9, SHARD_BLOCK_BYTES = 4096 /* a page of memory */ };

/* The start of PREFIX.idx, and the end of one that smelt wrote, now or in version 0.9; all without
 * padding. */
typedef struct __attribute__((packed)) ShardHeader {
    char magic[9];
    uint64_t version;
    uint8_t type;
    uint64_t sequences, entries; /* entries of the document list: the number of documents + 1 */
} ShardHeader;
typedef struct __attribute__((packed)) ShardTrailer {
    char magic[8];
    uint64_t max_token;
    uint64_t tokens, documents; /* Shard.checksum, Shard.documents */
    uint64_t blocks;            /* XXH3 of the block checksums */
    uint64_t self;              /* XXH3 of the preceding fields */
} ShardTrailer;
typedef struct __attribute__((packed)) ShardSums {
    char magic[8];
    uint64_t tokens, index; /* XXH3 of PREFIX.bin, and of all bytes of the index before this field */
} ShardSums;

typedef struct ShardType {
    const char *name;
    int token_bytes; /* 0: smelt does not read this type */
} ShardType;

extern const ShardType shard_types[SHARD_TYPE_COUNT]; /* by the index's type code; 0 is not a type */
int shard_type_code(int token_bytes);                 /* token_bytes is 1, 2, 4 or 8 */
