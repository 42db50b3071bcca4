/* What the files of the data module share among themselves: one shard of a set, and the constants of the shard format
 * that its reader (shard_index.c, where the format is described) and its writer (shard_writer.c) must agree on. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "data/data.h"
#include "data/remote_internal.h"

/* Puts `tokenizer` and `template`, as for shard_writer_tokenizer, into a folder, which is replaced. */
bool shard_tokenizer_write(const char *tokenizer, const char *template, const char *folder, Error *error);

/* -- Names of shards that are written (shard_names.c) ---------------------------------------------------------------- */

/* NAME.next, where a file or folder of a shard waits on the disk until all that belongs to it does. The caller frees. */
char *shard_next(const char *name);
/* Gives what waits its names, once it is known to be whole: the shards `prefixes` (closed by NULL), and last `record`,
 * whose NAME.next says that they are whole; NULL: there is none. After a failure it can be called again, also by another
 * process. ERROR_CHECKPOINT; ERROR_USAGE while another process does it. */
bool shard_names_take(const char *const *prefixes, const char *record, Error *error);
/* Does so where a process that was killed, or failed, left `record` waiting. *resumed: it did. */
bool shard_names_resume(const char *const *prefixes, const char *record, bool *resumed, Error *error);

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
    int64_t bytes; /* of header and arrays, before what smelt's writer adds */
    /* XXH3 of each SHARD_BLOCK_BYTES of PREFIX.bin, and of these `bytes`, the last of which may be shorter; NULL: not
     * recorded. */
    const UnalignedU64 *token_blocks, *blocks;
} ShardIndex;

/* What is recorded of the content of a shard. */
typedef enum ShardRecord {
    SHARD_BARE,   /* nothing, as of other programs */
    SHARD_SUMS,   /* smelt 0.9: checksums of both files */
    SHARD_BLOCKS, /* smelt: also those of blocks, by which each read is checked */
} ShardRecord;

/* Where tokens lie in the samples of an MDS shard (mds.c). */
typedef struct ShardRows {
    int64_t samples, first;      /* their number, and the byte of the first one */
    int64_t tokens;              /* of each sample, unless their number varies */
    int64_t fixed, before;       /* bytes of the columns of fixed size: of all, and of those before the tokens */
    int varying, varying_before; /* the number of the other columns: of all, and of those before the tokens */
    bool varies;
} ShardRows;

enum { SHARD_PROBE_BYTES = 32 };
typedef struct ShardFormat {
    const char *name;
    /* Whether a path names such a shard, by its name or the first SHARD_PROBE_BYTES of the file, which are 0 without one. */
    bool (*probe)(const char *path, const void *start);
    /* Opens shard->file, unless shard->object is set (Megatron's alone), and sets what is known of it, by
     * shard->prefix. On failure the caller closes it. */
    bool (*open)(Shard *shard, Error *error);
    /* The byte at which a token lies, and how many tokens lie from there on end to end. NULL: all from Shard.start on. */
    bool (*locate)(const Shard *shard, int64_t token, int64_t *at, int64_t *run, Error *error);
} ShardFormat;

struct Shard {
    const ShardFormat *format;
    char *prefix; /* its name, for messages; owned */
    File file;    /* PREFIX.bin, or the file itself in the formats that have no prefix */
    /* Where PREFIX.bin lies when the set is that of a bucket, else NULL: then `file` is not open, and has path and size
     * alone. */
    RemoteObject *object;
    int64_t start; /* the byte of its first token */
    ShardIndex index;
    ShardRows rows;
    int token_bytes;                     /* 1, 2, 4 or 8: u8, u16, i32, i64; other types are refused */
    int64_t token_count, document_count; /* documents -1: the format has no index of them */
    ShardRecord record;
    bool masked;        /* documents are sequences that are untrained and trained in turn */
    bool pairs;         /* and each two of them a pair */
    int64_t max_token;  /* with SHARD_BLOCKS, and after shard_verify; else -1 */
    uint64_t checksum;  /* but for SHARD_BARE: XXH3 of PREFIX.bin */
    uint64_t documents; /* with SHARD_BLOCKS: XXH3 of the ends of documents in tokens, an i64 each; `masked`: and of sequences */
};

/* Opens its files and reads a few places of them; what that tells is checked. Tokens are an object of
 * `remote` unless that is NULL. On failure there is nothing to close. */
bool shard_open(Shard *shard, const char *prefix, Remote *remote, Error *error);
/* Reads all of its files; on failure the shard stays open. */
bool shard_verify(Shard *shard, Error *error);
void shard_close(Shard *shard);                  /* also of a zeroed one */
const char *shard_type_name(const Shard *shard); /* "u16" */
/* Of tokens, documents and type: of the whole as it was recorded, or else of samples of both files. */
bool shard_checksum(const Shard *shard, uint64_t *checksum, Error *error);
/* As shard_set_read and shard_set_prefetch, for tokens of this shard. */
bool shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *marks, Error *error);
void shard_prefetch(const Shard *shard, int64_t first, int64_t count);

/* -- Its format (shard_format.c, mds.c) ------------------------------------------------------------------------------ */

/* The format of what a path names; NULL: it is no shard. False: that cannot be read now. */
bool shard_format(const char *path, const ShardFormat **format, Error *error);
/* Adds the shards of a folder of MDS, in the order of its index.json; nothing of another folder. */
bool mds_list(const char *folder, FileList *shards, Error *error);
bool mds_probe(const char *path, const void *start);
bool mds_open(Shard *shard, Error *error);
bool mds_locate(const Shard *shard, int64_t token, int64_t *at, int64_t *run, Error *error);

/* -- Its index (shard_index.c) --------------------------------------------------------------------------------------- */

bool shard_index_open(Shard *shard, Error *error);
/* Walks all sequences and documents; *documents is the XXH3 of their ends. */
bool shard_index_verify(const Shard *shard, uint64_t *documents, Error *error);
/* The tokens [*start, *end) of a document. What is read is checked, but for the blocks `checked`, where the last call
 * left what it has checked: two NULLs at first. */
bool shard_index_document(const Shard *shard, int64_t document, int64_t *start, int64_t *end, const void *checked[2], Error *error);
/* Where the first block begins that has not its checksum, of bytes of a file from `start` on, which is the start of a
 * block; -1: all have. `sums` are those of all the file's blocks. */
int64_t shard_wrong_block(const UnalignedU64 *sums, const void *bytes, int64_t start, int64_t size);
/* Refuses bytes of PREFIX.bin (`tokens`) or of the index that do not have the checksum of their block. What is wrong may
 * be the checksums, which are named then. */
bool shard_index_refuse(const Shard *shard, bool tokens, int64_t start, int64_t size, Error *error);
/* Adds the trained tokens of a document of a masked shard. */
bool shard_index_trained(const Shard *shard, int64_t document, int64_t *trained, Error *error);
/* Sets marks[i] to the TokenMark of token first + i. */
bool shard_index_marks(const Shard *shard, int64_t first, int64_t count, uint8_t *marks, Error *error);

/* -- The format of the index ----------------------------------------------------------------------------------------- */

#define SHARD_MAGIC "MMIDIDX\0" /* 9 bytes: two zeros end it */
#define SHARD_TRAILER_MAGIC "SMELTBLK"
#define SHARD_MASKED_MAGIC "SMELTMSK" /* of a shard with a loss mask */
#define SHARD_PAIRS_MAGIC "SMELTPRF"  /* and of pairs of documents */
#define SHARD_SUMS_MAGIC "SMELTSUM"
enum { SHARD_VERSION = 1, SHARD_TYPE_COUNT = 9, SHARD_BLOCK_BYTES = 4096 /* a page of memory */ };

/* How PREFIX.idx begins, and what ends it when smelt wrote it, now or in version 0.9; all without padding. */
typedef struct __attribute__((packed)) ShardHeader {
    char magic[9];
    uint64_t version;
    uint8_t type;
    uint64_t sequences, entries; /* entries of the list of documents: one more than there are documents */
} ShardHeader;
typedef struct __attribute__((packed)) ShardTrailer {
    char magic[8];
    uint64_t max_token;
    uint64_t tokens, documents; /* Shard.checksum, Shard.documents */
    uint64_t blocks;            /* XXH3 of the checksums of blocks */
    uint64_t self;              /* XXH3 of the fields before */
} ShardTrailer;
typedef struct __attribute__((packed)) ShardSums {
    char magic[8];
    uint64_t tokens, index; /* XXH3 of PREFIX.bin, and of all bytes of the index before this field */
} ShardSums;

typedef struct ShardType {
    const char *name;
    int token_bytes; /* 0: smelt does not read this type */
} ShardType;

extern const ShardType shard_types[SHARD_TYPE_COUNT]; /* by the index's type code; 0 is no type */
int shard_type_code(int token_bytes);                 /* token_bytes is 1, 2, 4 or 8 */
