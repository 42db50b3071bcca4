/* What the files of packing share. Text takes this way: pack_files.c lists files; input.c gives their bytes,
 * decompressed; record_reader.c cuts these into blocks of records; pipeline.c hands the blocks to threads, which make
 * each record a document (record.c) and encode it, and back in order to pack.c, which writes shards and keeps count
 * (pack_report.c). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "data/pack.h"

/* -- Bytes (input.c) ----------------------------------------------------------------------------------------------- */

typedef struct Input Input;
/* `path` must outlive it; "-" is standard input. ERROR_DATA. */
Input *input_open(const char *path, Error *error);
/* The next `size` bytes; fewer only at the end. On failure `*count` bytes are good all the same. ERROR_DATA. */
bool input_read(Input *input, void *bytes, size_t size, size_t *count, Error *error);
bool input_damaged(const Input *input); /* whether the failure is of compressed data, not of the disk */
bool input_compressed(const Input *input);
/* Goes on at a byte of a file that is not compressed. */
void input_seek(Input *input, int64_t byte);
int64_t input_position(const Input *input); /* bytes of the file, as it lies on disk, that were used */
void input_close(Input *input);             /* NULL is fine */

/* What a file is in place of text, and what to do about it: two parts of a message (not_text.c). */
typedef struct NotText {
    const char *what;   /* "bzip2 data" */
    const char *advice; /* "unpack it first, as in ..." */
} NotText;
enum { NOT_TEXT_PROBE_BYTES = 8192 };
/* Whether a file that begins with these bytes, at most the first NOT_TEXT_PROBE_BYTES of it, is no text. */
bool not_text(const unsigned char *bytes, size_t size, NotText *found);
/* Whether it is JSON lines: the first two lines are objects, or the only one is. */
bool is_json_lines(const char *text, size_t size);

/* -- Which files (pack_files.c) ------------------------------------------------------------------------------------ */

/* What a folder held besides text: how many, and the first for the message. */
typedef struct Skipped {
    int64_t count;
    char *first;
} Skipped;

typedef struct PackFiles {
    FileList list;                      /* paths, in the order in which they are read; "-" */
    bool *named;                        /* an INPUT by itself, which must be text; others are found in folders */
    FileList followed;                  /* folders that links led to */
    int64_t bytes;                      /* of all files, as they lie on disk */
    Skipped irregular, hidden, outside; /* pipes and devices; names that begin with a dot; links that lead nowhere, to outside, or back */
} PackFiles;
bool pack_files_list(PackFiles *files, const char *const *inputs, Error *error);
void pack_files_warn(const PackFiles *files);
void pack_files_free(PackFiles *files);

/* -- Records (record_reader.c, record.c) --------------------------------------------------------------------------- */

/* A place between two documents. A reader that starts there gives what follows. */
typedef struct Position {
    int64_t file, byte, line, document; /* file in the list, byte of it (decompressed), line from 1, documents of all files before */
} Position;

/* A document, or one of the pieces of a long one, in the order of the text. */
typedef struct Record {
    size_t start, size; /* raw bytes in its block's text */
    bool json, valid;   /* a line of JSON; of the validation part */
    bool first, last;   /* of the pieces of its document */
    PackBad bad;
    int64_t file, line; /* where it begins; with `bad` set by record_text the line of what is bad */
    Position end;       /* of a last piece: behind it */
    /* Filled in by record_text: the document's text, in the block or `owned`; and by the pipeline: its tokens and hash. */
    const char *text;
    char *owned, what[320]; /* `what` is bad, for a sample */
    bool fatal;             /* it is not the record that is bad, but what is asked for: the packing ends */
    int32_t *spans;         /* of a conversation: lengths of what is untrained and trained, in turn; owned */
    size_t span_count;
    size_t chosen_spans;   /* of a pair of answers: how many of them are of the chosen one; else 0 */
    ChatCounts counts;     /* of a conversation, or of both of a pair */
    bool lost[CHAT_PARTS]; /* likewise: what its template leaves out */
    size_t text_size, ids, id_count;
    uint64_t hash;  /* XXH3 of a document of one piece */
    uint64_t *keys; /* of such a document below NEAR_BYTES, with dedup=near: [MINHASH_KEYS]; owned */
} Record;

typedef struct Block {
    char *text;
    size_t size, capacity;
    Record *records;
    size_t count, record_capacity;
    TokenIds ids;
    int64_t done; /* bytes of all files that are used behind this block */
    Error error;
} Block;
void block_clear(Block *block);
void block_free(Block *block);

typedef struct RecordReader RecordReader;
/* Where a document of `size` bytes or more may be cut so that its pieces can be encoded apart: at most `size`, 0:
 * nowhere. */
typedef size_t PieceCut(const void *context, const char *text, size_t size);
RecordReader *record_reader_open(const PackOptions *options, const PackFiles *files, PieceCut *cut, const void *context, Position start);
/* Fills an empty block with the next records; none: the end. ERROR_DATA. */
bool record_reader_fill(RecordReader *reader, Block *block, Error *error);
int64_t record_reader_files(const RecordReader *reader); /* that held text */
/* Warns of files that are not text and were skipped. */
void record_reader_warn(const RecordReader *reader);
int64_t record_reader_skipped(const RecordReader *reader);
void record_reader_free(RecordReader *reader); /* NULL is fine */

/* Says what is bad. Returns false. */
bool record_mark(Record *record, PackBad bad, const char *what);
bool record_mark_json(Record *record, const char *fault); /* a list says what to do; else `fault` says what is wrong */
enum { RECORD_LIMIT = 1 << 26 /* bytes of a line of JSON, and of a document that is judged as a whole */ };
/* Makes `record` a document: takes the text out of JSON unless `field` is NULL, and does with invalid UTF-8 what is asked. Sets `bad`, and
 * text and text_size where something is left to be encoded. */
void record_text(Record *record, char *block_text, const char *field, PackInvalid invalid);

/* -- All cores (pipeline.c) ------------------------------------------------------------------------------------------ */

typedef struct PipelineOptions {
    const char *field;
    PackInvalid invalid;
    const Tokenizer *tokenizer; /* NULL: tokens are bytes */
    bool special;               /* matched in the text */
    bool text_only;             /* nothing is encoded */
    bool near;                  /* keys are made */
    const Chat *chat;           /* records are conversations; or NULL */
    bool pairs;                 /* of a chosen and a rejected answer */
} PipelineOptions;
/* Receives the blocks in their order, on the calling thread; it may take what a block owns. False ends the run. */
typedef bool TakeBlock(void *context, Block *block, Error *error);
/* Reads, encodes and takes at once, with OpenMP's number of threads. */
bool pipeline_run(const PipelineOptions *options, RecordReader *reader, TakeBlock *take, void *context, Error *error);
/* The cut of documents for these options, whose context they are. */
PieceCut pipeline_cut;

/* -- Texts that were seen before (hash_set.c) ------------------------------------------------------------------------ */

/* 64-bit hashes, 16 bytes for each: in memory while they are few, then in a mapped file without a name, which the system
 * may write out when memory is short. */
typedef struct HashSet HashSet;
HashSet *hash_set_open(const char *folder); /* where that file may lie */
/* *seen: whether the hash was there already. */
bool hash_set_add(HashSet *set, uint64_t hash, bool *seen, Error *error);
bool hash_set_has(const HashSet *set, uint64_t hash);
void hash_set_free(HashSet *set); /* NULL is fine */

/* Keys of which documents that share most of their text have one in common (minhash.c). NEAR_BYTES: a longer text is
 * compared as a whole alone, since it may come in pieces. */
enum { MINHASH_KEYS = 14, NEAR_BYTES = 1 << 18 };
void minhash(const char *text, size_t size, uint64_t keys[MINHASH_KEYS]);

/* -- What was packed (pack_report.c) --------------------------------------------------------------------------------- */

/* The record of a packing, which is written when it ends and, in a folder of shards, whenever a shard does. */
enum { PACK_SAMPLES = 3 /* of each kind */ };
typedef struct PackReport {
    PackResult result;
    int64_t valid_shards, hashes;
    json_t *inputs, *samples; /* owned */
    uint64_t chat;            /* chat_identity, or 0 */
    bool bos;                 /* texts begin with the tokenizer's bos_token */
    Position position;        /* where a packing that was interrupted goes on */
} PackReport;
void pack_report_open(PackReport *report, const PackOptions *options, const PackFiles *files);
/* Counts a bad record, and keeps it if it is one of the first of its kind. */
void pack_report_bad(PackReport *report, const Record *record, const char *file);
/* The text of the record; the caller frees. */
char *pack_report_text(const PackReport *report, const PackOptions *options, bool complete);
typedef enum PackFound { PACK_FOUND_NOTHING, PACK_FOUND_PART, PACK_FOUND_WHOLE } PackFound;
/* Reads what `path` says: the counts, and of a part the position, come into `report`, if inputs and settings are the same;
 * else `difference` (for the caller to free) says what is not. ERROR_DATA: no record of a packing. */
bool pack_report_read(PackReport *report, const PackOptions *options, const char *path, PackFound *found, char **difference, Error *error);
void pack_report_free(PackReport *report);
