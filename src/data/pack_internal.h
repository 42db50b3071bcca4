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

/* -- What a file holds (not_text.c, file_format.c) -------------------------------------------------------------------- */

/* The two parts of a message about a file that does not hold text: what the file holds, and what to do. */
typedef struct NotText {
    const char *what;   /* "bzip2 data" */
    const char *advice; /* "unpack it first, as in ..." */
} NotText;
enum { NOT_TEXT_PROBE_BYTES = 8192 };
/* Whether a file that begins with these bytes, at most the first NOT_TEXT_PROBE_BYTES of it, is no text. */
bool not_text(const unsigned char *bytes, size_t size, NotText *found);

typedef enum RecordShape {
    SHAPE_TEXT,   /* documents between separators */
    SHAPE_LINES,  /* a JSON object on each line */
    SHAPE_VALUES, /* JSON objects that follow one another, on any number of lines */
    SHAPE_ARRAY,  /* the elements of one JSON array */
    SHAPE_TABLE,  /* rows of a table, as in RFC 4180 */
} RecordShape;
/* The column of the text in a table. */
typedef struct TablePlace {
    char delimiter;
    int column, columns; /* that of the text, from 0, and how many the header has */
} TablePlace;
typedef struct RecordFormat {
    RecordShape shape;
    size_t mark; /* bytes of the byte order mark before the records */
    char delimiter;
    TablePlace place;  /* of a table */
    size_t header;     /* bytes of its first row */
    char columns[256]; /* their names, for a message */
} RecordFormat;
/* Recognizes what a file of this name holds, from its first bytes. A table needs its whole header. False: the file is
 * left out, and `why` says what it holds. */
bool file_format(const PackOptions *options, const char *path, const char *bytes, size_t size, RecordFormat *format, NotText *why);
bool name_ends(const char *path, const char *ending); /* also before the ending of a compression: "a.csv.gz" */

/* -- Where records end (record_scan.c) ------------------------------------------------------------------------------- */

typedef struct RecordScan {
    RecordShape shape;
    char delimiter;
    int expects, state; /* of an array, of a row */
    int64_t depth;
    bool string, escaped;
} RecordScan;
/* Between two records of a file; `resumed`: behind the first one at least. */
RecordScan record_scan_start(const RecordFormat *format, bool resumed);
/* How many of the bytes come before the next record. `*fault`: what follows cannot begin one. */
size_t record_scan_gap(RecordScan *scan, const char *bytes, size_t size, bool *fault);
/* How many of the bytes belong to the record; `*ends`: it ends with them. */
size_t record_scan(RecordScan *scan, const char *bytes, size_t size, bool *ends);
bool record_scan_open(const RecordScan *scan); /* whether the end of an array is still to come */
void record_scan_give_up(RecordScan *scan);    /* which then is not expected any more */

enum { TABLE_FAULT = 96 };
/* Copies the text of a row, without quotes, to `to`, which has room for `size` bytes and may be the row. False: the row is
 * broken, as `what` says. */
bool table_field(const char *row, size_t size, const TablePlace *place, char *to, size_t *length, char what[TABLE_FAULT]);
/* Finds the column `field` in the first row of a table with format->delimiter. False: it has none; `names` lists those that
 * it has. */
bool table_header(const char *bytes, size_t size, const char *field, RecordFormat *format, char *names, size_t room);

/* -- Which files (pack_files.c) ------------------------------------------------------------------------------------ */

/* Files and folders that are left out for the same reason. */
typedef struct LeftOut {
    NotText why;
    int64_t count;
    char *first; /* of them */
    bool usual;  /* not worth a warning */
} LeftOut;

enum { PACK_LISTED = 10000 /* files by name, at most, of those that were taken and of those that were left out */ };
typedef struct PackFiles {
    FileList list;      /* paths, in the order in which they are read; "-" */
    bool *named;        /* an INPUT by itself, which must be text; others are found in folders */
    FileList followed;  /* folders that links led to */
    int64_t bytes;      /* of all files, as they lie on disk */
    LeftOut *left_outs; /* owned */
    size_t left_out_count;
    json_t *taken, *left_out; /* names, and names with reasons, of up to PACK_LISTED files each; owned */
} PackFiles;
/* `held_out`: of a folder that holds several splits by name the one for validation is listed, else that for training. */
bool pack_files_list(PackFiles *files, const char *const *inputs, bool held_out, Error *error);
void pack_files_take(PackFiles *files, const char *path);
void pack_files_leave(PackFiles *files, const char *path, NotText why, bool usual);
int64_t pack_files_left(const PackFiles *files); /* how many were left out */
/* Says what was left out and why. */
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
    bool json, valid;   /* an object of JSON; of the validation part */
    TablePlace place;   /* of a row of a table: its columns are above 0 */
    bool first, last;   /* of the pieces of its document */
    PackBad bad;
    int64_t file, line; /* where it begins; with `bad` set by record_text the line of what is bad */
    Position end;       /* of a last piece: behind it */
    /* Filled in by record_text: the document's text, in the block or `owned`; and by the pipeline: its tokens and hash. */
    const char *text;
    char *owned, what[320]; /* `what` is bad, for a sample */
    NotText left_out;       /* the whole file is, for this reason; no `what`: it is not */
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
void record_reader_free(RecordReader *reader);           /* NULL is fine */

/* Says what is bad. Returns false. */
bool record_mark(Record *record, PackBad bad, const char *what);
bool record_mark_json(Record *record, const char *fault); /* a list says what to do; else `fault` says what is wrong */
enum { RECORD_LIMIT = 1 << 26 /* bytes of a line of JSON, and of a document that is judged as a whole */ };
/* Makes `record` a document: takes the text out of a row, and out of JSON unless `field` is NULL, and does with invalid UTF-8 what is asked. Sets `bad`, and
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
    PackFiles *files; /* borrowed */
    int64_t valid_shards, hashes;
    json_t *inputs, *samples; /* owned */
    uint64_t chat;            /* chat_identity, or 0 */
    bool bos;                 /* texts begin with the tokenizer's bos_token */
    bool named;               /* the inputs have their paths alone */
    Position position;        /* where a packing that was interrupted goes on */
} PackReport;
/* ERROR_DATA: an input cannot be read any more. */
bool pack_report_open(PackReport *report, const PackOptions *options, PackFiles *files, Error *error);
/* A report of inputs that are not there any more: a record of the same paths is of the same packing. */
void pack_report_name(PackReport *report, const PackOptions *options, PackFiles *files);
/* Counts a bad record, and keeps it if it is one of the first of its kind. */
void pack_report_bad(PackReport *report, const Record *record, const char *file);
/* The text of the record; the caller frees. */
char *pack_report_text(const PackReport *report, const PackOptions *options, bool complete);
typedef enum PackFound { PACK_FOUND_NOTHING, PACK_FOUND_PART, PACK_FOUND_WHOLE } PackFound;
/* Finds out what `path` records. ERROR_DATA: no record of a packing (FINDING_DAMAGED), or it cannot be read now. */
bool pack_report_find(const char *path, PackFound *found, Error *error);
/* The same, and the counts, and of a part the position, come into `report` if inputs and settings are the same. Else
 * `difference` (for the caller to free) says what is not. A difference that the caller knows is given in it, or NULL. */
bool pack_report_read(PackReport *report, const PackOptions *options, const char *path, PackFound *found, char **difference, Error *error);
void pack_report_free(PackReport *report);
