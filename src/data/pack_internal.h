/* Internals of packing. The path of the text: pack_files.c lists files; input.c gives their bytes,
 * decompressed; record_reader.c cuts them into blocks of records; pipeline.c hands the blocks to
 * threads, which convert each record to a document (record.c) and encode it, and then in order to
 * pack.c, which writes shards and keeps counts (pack_report.c). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "data/pack.h"
#include "parquet/parquet.h"
#include "store/object.h"

/* -- Bytes (input.c) ----------------------------------------------------------------------------------------------- */

typedef struct Input Input;
/* Opens an input; `place` must outlive it, and its path "-" is standard input. Takes over `object`,
 * the open object at that place, or NULL. ERROR_DATA. */
Input *input_open(const ObjectPlace *place, Object *object, Error *error);
enum { INPUT_START = 1 << 18 }; /* bytes that an Input reads at once */
/* Reads the next `size` bytes; fewer only at the end. On failure `*count` bytes are valid.
 * ERROR_DATA. */
bool input_read(Input *input, void *bytes, size_t size, size_t *count, Error *error);
bool input_damaged(const Input *input); /* whether the failure is damaged compressed data, not the disk */
bool input_compressed(const Input *input);
/* Continues at a byte of a file that is not compressed. */
void input_seek(Input *input, int64_t byte);
int64_t input_position(const Input *input); /* bytes of the file on disk that were consumed */
void input_close(Input *input);             /* NULL is fine */

/* -- Content of a file (not_text.c, file_format.c) -------------------------------------------------------------------- */

/* The two parts of a message about a file that does not hold text: what the file holds, and what to do. */
typedef struct NotText {
    const char *what;   /* "bzip2 data" */
    const char *advice; /* "unpack it first, as in ..." */
} NotText;
enum { NOT_TEXT_PROBE_BYTES = 8192 };
/* Returns whether a file that begins with these bytes, at most its first NOT_TEXT_PROBE_BYTES, is
 * not text. */
bool not_text(const unsigned char *bytes, size_t size, NotText *found);

typedef enum RecordShape {
    SHAPE_TEXT,   /* documents between separators */
    SHAPE_LINES,  /* a JSON object on each line */
    SHAPE_VALUES, /* consecutive JSON objects, on any number of lines */
    SHAPE_ARRAY,  /* the elements of one JSON array */
    SHAPE_TABLE,  /* rows of a table, by RFC 4180 */
    SHAPE_ROWS,   /* rows of a Parquet file */
} RecordShape;
/* The columns of a table that rules read: indices, in the order of filter_field. */
typedef struct TableFields {
    const DocumentFilter *filter;
    int *columns; /* [filter_field_count]; owned */
} TableFields;
/* The place of the text in a table. */
typedef struct TablePlace {
    char delimiter;
    int column, columns;       /* index of the text's column, and number of columns in the header */
    const TableFields *fields; /* NULL: no rule reads columns; borrowed */
} TablePlace;
typedef struct RecordFormat {
    RecordShape shape;
    size_t mark; /* bytes of the byte order mark */
    char delimiter;
    TablePlace place;  /* for a table */
    size_t header;     /* bytes of the first row of a table */
    char columns[256]; /* names of the columns, for a message */
} RecordFormat;
/* Recognizes the content of a file with this name from its first bytes. A table needs its whole
 * header. Returns false if the file is skipped; `why` says what it holds. */
bool file_format(const PackOptions *options, const char *path, const char *bytes, size_t size, RecordFormat *format, NotText *why);
bool name_ends(const char *path, const char *ending); /* also before the ending of a compression: "a.csv.gz" */

/* -- Record ends (record_scan.c) ------------------------------------------------------------------------------------- */

typedef struct RecordScan {
    RecordShape shape;
    char delimiter;
    int expects, state; /* of an array; of a row */
    int64_t depth;
    bool string, escaped;
} RecordScan;
/* Returns the state between two records of a file; `resumed`: at least one record precedes. */
RecordScan record_scan_start(const RecordFormat *format, bool resumed);
/* Returns how many of the bytes precede the next record. `*fault`: the bytes after them cannot
 * begin a record. */
size_t record_scan_gap(RecordScan *scan, const char *bytes, size_t size, bool *fault);
/* Returns how many of the bytes belong to the record; `*ends`: the record ends with them. */
size_t record_scan(RecordScan *scan, const char *bytes, size_t size, bool *ends);
bool record_scan_open(const RecordScan *scan); /* whether the end of an array is still expected */
void record_scan_give_up(RecordScan *scan);    /* stops expecting it */

enum { TABLE_FAULT = 96 };
/* Makes an object of the columns of a row that rules read; the caller owns it. */
json_t *table_object(const char *row, size_t size, const TablePlace *place);
/* Copies the text of a row, without quotes, to `to`, which has room for `size` bytes and may be the
 * row. Returns false if the row is broken; `what` says how. */
bool table_field(const char *row, size_t size, const TablePlace *place, char *to, size_t *length, char what[TABLE_FAULT]);
/* Finds the column `field` in the first row of a table with format->delimiter. Returns false if
 * there is none; `names` lists the existing columns. */
bool table_header(const char *bytes, size_t size, const char *field, RecordFormat *format, char *names, size_t room);

/* -- Files (pack_files.c) ------------------------------------------------------------------------------------------ */

/* Files and folders that are skipped for the same reason. */
typedef struct LeftOut {
    NotText why; /* copies; owned */
    int64_t count;
    char *first; /* first path, in byte order */
    bool usual;  /* not worth a warning */
} LeftOut;

/* The objects of an INPUT in a bucket. */
/* -- OUTPUT in a bucket (pack_upload.c) ------------------------------------------------------------------------------ */

/* A part that goes to s3://BUCKET/PREFIX. Its local folder has the shards that are not there yet, and
 * what a restart needs. */
typedef struct PackUpload {
    S3 *s3;
    char *where;     /* "s3://BUCKET/PREFIX" */
    const char *key; /* PREFIX, in `where` */
} PackUpload;
/* Sends nothing yet. NULL: ERROR_USAGE. */
PackUpload *pack_upload_open(const char *where, Error *error);
void pack_upload_close(PackUpload *upload); /* NULL is fine */
/* Frees the space of uploads that were interrupted, as far as the server allows. */
void pack_upload_clean(const PackUpload *upload);
/* Refuses a prefix with objects. With `overwrite`, removes them if all have names for which is_own is
 * true. */
bool pack_upload_begin(const PackUpload *upload, bool overwrite, bool (*is_own)(const char *name), Error *error);
bool pack_upload_text(const PackUpload *upload, const char *name, const char *text, Error *error);
/* Moves the complete shards with numbers below `count` from the folder to the bucket. */
bool pack_upload_shards(const PackUpload *upload, const char *folder, int64_t count, Error *error);
/* Copies the tokenizer of the folder, and the files with these names that exist (NULL-terminated). */
bool pack_upload_rest(const PackUpload *upload, const char *folder, const char *const *names, Error *error);
/* Checks that the bucket has `count` shards. ERROR_DATA. */
bool pack_upload_check(const PackUpload *upload, int64_t count, Error *error);

/* -- INPUT in a bucket (pack_bucket.c) ------------------------------------------------------------------------------- */

typedef struct PackBucket {
    S3 *s3;
    char *root;        /* s3://BUCKET/PREFIX/, which precedes the names in the listing */
    S3Listing listing; /* in byte order */
} PackBucket;
/* Lists s3://BUCKET/PREFIX; *folder: it is not a single object. Call pack_bucket_close even after a
 * failure. ERROR_DATA; ERROR_USAGE without credentials. */
bool pack_bucket_open(PackBucket *bucket, const char *url, bool *folder, Error *error);
void pack_bucket_close(PackBucket *bucket);

/* A file of the list, and where its bytes are. */
typedef struct PackFile {
    bool named;        /* an INPUT itself, which must be text; other files are found in folders */
    ObjectPlace place; /* its path is that of the list */
} PackFile;

enum { PACK_LISTED = 10000 /* limit for the names of files taken, and of files skipped */ };
typedef struct PackFiles {
    FileList list;        /* paths, in the order in which they are read; "-" */
    PackFile *items;      /* [list.count] */
    PackBucket **buckets; /* which hold objects of the list */
    size_t bucket_count;
    FileList followed;  /* folders reached through links */
    int64_t bytes;      /* of all files, as stored on disk */
    LeftOut *left_outs; /* owned */
    size_t left_out_count;
    json_t *taken, *left_out; /* names, and names with reasons, of up to PACK_LISTED files each; owned */
} PackFiles;
/* Lists the files. `held_out`: if a folder has several splits by name, the validation split is
 * listed; otherwise the training split. Files that a packing to `output` makes are left out, so that
 * it may be in a folder of the input; NULL: none. */
bool pack_files_list(PackFiles *files, const char *const *inputs, bool held_out, const char *output, Error *error);
/* Returns the bytes of a file as stored, 0 for standard input, or -1 if the system cannot answer now. */
int64_t pack_files_bytes(const PackFiles *files, int64_t file);
void pack_files_take(PackFiles *files, const char *path);
void pack_files_leave(PackFiles *files, const char *path, NotText why, bool usual);
int64_t pack_files_left(const PackFiles *files); /* number of skipped files */
/* Warns of skipped files, with the reasons. */
void pack_files_warn(const PackFiles *files);
void pack_files_free(PackFiles *files);

/* -- Records (record_reader.c, record.c) --------------------------------------------------------------------------- */

/* A place between two documents. A reader that starts there continues with the next document. */
typedef struct RecordPosition {
    int64_t file, byte, line, document; /* file in the list, byte in it (decompressed), line from 1, documents of all files before */
                                        /* of a Parquet file: row from 0, row from 1 */
} RecordPosition;

/* A document, or one of the pieces of a long one, in the order of the text. */
typedef struct Record {
    size_t start, size; /* raw bytes in its block's text */
    bool json, valid;   /* a JSON object; in the validation part */
    bool passed;        /* set by the pipeline: skipped, because it is not restored */
    TablePlace place;   /* for a row of a table; its `columns` is above 0 */
    bool first, last;   /* piece of its document */
    PackBad bad;
    int64_t file, line; /* its start; if record_text has set `bad`, the line of the fault */
    RecordPosition end; /* for a last piece: the position after it */
    /* Set by record_text: the document's text, in the block or `owned`. Set by the pipeline: its
     * tokens and hash. */
    const char *text;
    char *owned, what[320];    /* `what`: the fault, for a sample */
    int broken_rule;           /* 1 + the rule of the filter that drops the document; 0: none does */
    char value[FILTER_VALUE];  /* what the rule saw, as JSON */
    int32_t edits[LINE_RULES]; /* how often rules over lines applied */
    NotText left_out;          /* why the whole file is skipped; `what` NULL: it is not */
    bool fatal;                /* the options are at fault, not the record: the packing ends */
    int32_t *spans;            /* for a conversation: lengths of untrained and trained spans, alternating; owned */
    size_t span_count;
    size_t chosen_spans;                         /* for a pair of answers: how many spans belong to the chosen one; otherwise 0 */
    ChatCounts counts;                           /* of a conversation, or of both answers of a pair */
    bool lost[CHAT_PARTS];                       /* the same: parts that its text lacks */
    size_t text_size, ids, id_count, word_count; /* words: in the block's */
    uint64_t hash;                               /* XXH3 of a document that is one piece */
    uint64_t *keys;                              /* for such a document below NEAR_BYTES, with dedup=near: [MINHASH_KEYS]; owned */
} Record;

typedef struct Block {
    char *text;
    size_t size, capacity;
    Record *records;
    size_t count, record_capacity;
    TokenIds ids;
    PartWords words; /* of pieces of documents */
    int64_t done;    /* bytes of all files that are consumed after this block */
    Error error;
    double valid_fraction;
    /* Rows [page_row, page_end) of a page of a Parquet file as stored, whose records come after the
     * block's others. page.stored NULL: no rows are left. */
    ParquetPage page;
    ParquetDictionary *dictionary; /* held; NULL: the page needs none */
    RecordPosition page_at;        /* of the next row */
    int64_t page_row, page_end;
    int64_t page_bytes; /* estimated memory of the decoded rows, and of a dictionary that no other block holds */
    bool page_first;    /* no block before it has rows of the page */
    bool page_open;     /* some rows are records */
} Block;
void block_clear(Block *block); /* removes the records, and keeps the page */
void block_free(Block *block);
void block_drop_page(Block *block);
int64_t block_bytes(const Block *block); /* estimated memory before its records are encoded */
bool block_is_full(const Block *block);
void block_append(Block *block, const char *bytes, size_t size); /* to its text */
/* Returns whether the document with this number, from 0, is in the validation part, if every
 * 1/fraction-th document is. */
bool record_is_valid(int64_t number, double fraction);

typedef struct RecordReader RecordReader;
/* Returns where a document of `size` bytes or more may be cut so that its pieces can be encoded
 * separately: at most `size`; 0: nowhere. */
typedef size_t PieceCut(const void *context, const char *text, size_t size);
RecordReader *record_reader_open(
    const PackOptions *options, const PackFiles *files, PieceCut *cut, const void *context, RecordPosition start);
/* Fills an empty block with the next records; none at the end. ERROR_DATA. */
bool record_reader_fill(RecordReader *reader, Block *block, Error *error);
/* Returns the first file that was read and is not text; NULL: none. */
const char *record_reader_first_records(const RecordReader *reader);
void record_reader_free(RecordReader *reader); /* NULL is fine */

/* Returns PACK_CHAT or PACK_PREFERENCE if the first record of the files is one, otherwise PACK_AUTO
 * (pack_format.c). */
PackFormat pack_find_format(const PackOptions *options, const PackFiles *files);

/* -- Rows of Parquet files (parquet_records.c) ---------------------------------------------------------------------- */

typedef struct RowReader RowReader;
/* Opens a file at a row; `place` is NULL if it cannot be read from its end. NULL with
 * FINDING_DAMAGED: the file is left out, and the message, which does not name it, says why. */
RowReader *row_reader_open(const PackOptions *options, const ObjectPlace *place, int64_t row, Error *error);
/* Adds records of the next rows, or a page of them, to a block without a page. */
bool row_reader_fill(RowReader *reader, RecordPosition *at, Block *block, Error *error);
bool row_reader_ended(const RowReader *reader);
int64_t row_reader_rows(const RowReader *reader);     /* all rows of the file */
int64_t row_reader_position(const RowReader *reader); /* about the bytes of the file that were consumed */
void row_reader_close(RowReader *reader);             /* NULL is fine */
/* Makes records of the block's page until its rows end or the text is very long. If page.stored is not
 * NULL afterwards, block_clear and another call with the same `values` make the next records. There
 * are none if damage in an earlier block's rows ends the page. */
void block_read_page(Block *block, ParquetValues *values, const char *field);

/* Records a fault. Returns false. */
bool record_mark(Record *record, PackBad bad, const char *what);
/* The same for an object without the field; names those that it has. */
bool record_mark_missing(Record *record, const json_t *object, const char *field);
bool record_mark_json(Record *record, const char *fault); /* for a list, `what` says what to do; otherwise it is `fault` */
enum { RECORD_LIMIT = 1 << 26 /* bytes of a JSON line, and of a document that is judged as a whole */ };
/* Makes `record` a document: extracts the text of a row, and of JSON unless `field` is NULL, and
 * treats invalid UTF-8 as `invalid` says. Sets `bad`, and text and text_size if there is something
 * to encode. Unless `object` is NULL, *object gets the JSON of a record with a text; owned by the
 * caller. */
void record_text(Record *record, char *block_text, const char *field, PackInvalid invalid, json_t **object);
/* Removes lines of a document's text (lines=). */
void record_edit(Record *record, char *block_text, const DocumentFilter *filter);

/* -- Documents that are restored (pack_restore.c) ---------------------------------------------------------------------- */

typedef struct RestoreList RestoreList;
/* Reads which documents of these files a packing dropped as repeats, as in PackOptions.restore. The
 * packing must have had these inputs and settings, in the form of packing records. `folder` is for a
 * large table. ERROR_USAGE; ERROR_DATA. */
RestoreList *restore_open(
    const char *packing, const PackFiles *files, const json_t *inputs, const json_t *settings, const char *folder, Error *error);
bool restore_wants(const RestoreList *list, int64_t file, int64_t line); /* from any thread */
uint64_t restore_identity(const RestoreList *list);
void restore_free(RestoreList *list); /* NULL is fine */

/* -- All cores (pipeline.c) ------------------------------------------------------------------------------------------ */

typedef struct PipelineOptions {
    const char *field, *tokens; /* as in PackOptions */
    PackInvalid invalid;
    const Tokenizer *tokenizer;   /* NULL: tokens are bytes */
    bool special;                 /* match special tokens in the text */
    bool text_only;               /* encode nothing */
    bool near;                    /* compute keys */
    const Chat *chat;             /* if set, records are conversations */
    bool pairs;                   /* each has a chosen and a rejected answer */
    const DocumentFilter *filter; /* if set, judges documents, which then come in one piece */
    const RestoreList *restore;   /* if set, skips documents that are not listed; documents come in one piece */
} PipelineOptions;
/* Receives the blocks in order, on the calling thread; it may take over what a block owns.
 * Returning false ends the run. */
typedef bool TakeBlock(void *context, Block *block, Error *error);
/* Reads, encodes and takes blocks concurrently, with OpenMP's number of threads. */
bool pipeline_run(const PipelineOptions *options, RecordReader *reader, TakeBlock *take, void *context, Error *error);
/* Cuts documents for these options, which are its context. */
PieceCut pipeline_cut;

/* -- Known texts (hash_set.c) ---------------------------------------------------------------------------------------- */

/* 64-bit hashes, with 16 bytes for each, and if `places`, with the place of the document that had it
 * first, 32 bytes: in memory while there are few, then in a mapped unnamed file, which the system
 * may write out when memory is short. */
typedef struct HashSet HashSet;
HashSet *hash_set_open(const char *folder, bool places); /* `folder`: where its file may be */
/* *seen: the hash was already there; its place, or 0 without places, in *first unless NULL. */
bool hash_set_add(HashSet *set, uint64_t hash, uint64_t place, bool *seen, uint64_t *first, Error *error);
bool hash_set_has(const HashSet *set, uint64_t hash, uint64_t *first);
/* Calls `take` with each hash and its place, in an order that depends only on what was added, until
 * it returns false. */
typedef bool TakeHash(void *context, uint64_t hash, uint64_t place, Error *error);
bool hash_set_each(const HashSet *set, TakeHash *take, void *context, Error *error);
void hash_set_free(HashSet *set); /* NULL is fine */

/* Keys such that documents that share most of their text have one in common (minhash.c). A text of
 * NEAR_BYTES or more is only compared as a whole, because it may come in pieces. */
enum { MINHASH_KEYS = 14, NEAR_BYTES = 1 << 18 };
void minhash(const char *text, size_t size, uint64_t keys[MINHASH_KEYS]);

/* -- Hashes of other packings (dedup_file.c) -------------------------------------------------------------------------- */

/* Where a document was, in one number: its file, from 1, above its line. 0: unknown. */
enum { PLACE_LINE_BITS = 40 };
static const uint64_t PLACE_LINES = (1ull << PLACE_LINE_BITS) - 1, PLACE_FILES = (1u << (64 - PLACE_LINE_BITS)) - 1;

/* The documents of other packings. */
typedef struct DedupAgainst {
    uint64_t first_file; /* their files have the numbers after these */
    const char *output;  /* the name of this packing, which is none of them; borrowed */
    FileList names;      /* of their files */
    uint64_t identity;   /* of their hashes */
} DedupAgainst;
/* Writes the entries of `seen` that are this packing's own; ERROR_DATA. */
bool dedup_write(const char *path, const HashSet *seen, bool near, const FileList *files, Error *error);
bool dedup_is(const char *path); /* whether a file was written by it */
/* Adds the entries of packings, as in PackOptions.against. ERROR_USAGE: one has none. */
bool dedup_read(DedupAgainst *against, const char *packings, bool near, HashSet *seen, Error *error);

/* -- What is dropped (drop_log.c) ------------------------------------------------------------------------------------ */

/* Documents that a packing drops, as lines of JSON in frames of zstd. */
typedef struct DropLog DropLog;
bool drop_log_is(const char *path); /* whether a file is such a list */
/* Starts a file that replaces `path` at its end. */
DropLog *drop_log_open(const char *path, Error *error);
/* Continues a file after the `bytes` that drop_log_flush gave, and drops what follows. */
DropLog *drop_log_append(const char *path, int64_t bytes, Error *error);
typedef struct Drop {
    const char *file, *rule, *value; /* `value`: JSON, or a text */
    int64_t line;
    const char *first_file; /* of the document that this one repeats, or NULL */
    int64_t first_line;
} Drop;
bool drop_log_add(DropLog *log, const Drop *drop, Error *error);
/* Brings all lines to the disk; *bytes is the size of the file. */
bool drop_log_flush(DropLog *log, int64_t *bytes, Error *error);
bool drop_log_finish(DropLog *log, Error *error); /* gives the file of drop_log_open its name */
void drop_log_free(DropLog *log);                 /* NULL is fine */

/* -- Report (pack_report.c) ------------------------------------------------------------------------------------------ */

/* The record of a packing, written at its end and, in a folder of shards, after every shard. */
enum { PACK_SAMPLES = 3 /* per kind */ };
typedef struct PackReport {
    PackResult result;
    PackFiles *files; /* borrowed */
    int64_t valid_shards, hashes;
    int64_t *filtered;         /* documents that each rule of the filter dropped; owned */
    int64_t edits[LINE_RULES]; /* how often rules over lines applied */
    int64_t dropped_bytes;     /* of the file of dropped documents, up to `position` */
    json_t *inputs, *samples;  /* owned */
    uint64_t chat;             /* chat_identity, or 0 */
    bool bos;                  /* texts begin with the ids that the tokenizer puts before a text */
    uint64_t against;          /* the hashes of other packings, or 0 */
    uint64_t restore;          /* the list of restored documents, or 0 */
    bool named;                /* only the paths of the inputs are known */
    RecordPosition position;   /* where an interrupted packing continues */
} PackReport;
/* Opens a report. ERROR_DATA: an input cannot be read any more. */
bool pack_report_open(PackReport *report, const PackOptions *options, PackFiles *files, Error *error);
/* Makes a report for inputs that no longer exist: a record with the same paths counts as the same
 * packing. */
void pack_report_name(PackReport *report, const PackOptions *options, PackFiles *files);
/* Counts a bad record, and keeps one of the first of its kind as a sample. */
void pack_report_bad(PackReport *report, const Record *record, const char *file);
/* Describes the settings that, with the inputs and the tokenizer, decide the bytes that are written. */
json_t *pack_report_settings(const PackReport *report, const PackOptions *options);
/* Makes a JSON string of a path or setting, which may not be UTF-8. */
json_t *pack_json_text(const char *text);
/* Returns whether a packing says what it drops, and why. */
bool pack_logs_drops(const PackOptions *options);
/* Returns the text of the record; the caller frees. */
char *pack_report_text(const PackReport *report, const PackOptions *options, bool complete);
typedef enum PackFound { PACK_FOUND_NOTHING, PACK_FOUND_PART, PACK_FOUND_WHOLE } PackFound;
/* Finds the state that `path` records. ERROR_DATA: it is not the record of a packing
 * (FINDING_DAMAGED), or it cannot be read now. */
bool pack_report_find(const char *path, PackFound *found, Error *error);
/* Finds the same, and loads the counts, and the position of a partial packing, into `report` if
 * inputs and settings are the same. Otherwise `difference` (for the caller to free) names the first
 * one that differs. A difference that the caller knows already is passed in it, or NULL. */
bool pack_report_read(PackReport *report, const PackOptions *options, const char *path, PackFound *found, char **difference, Error *error);
void pack_report_free(PackReport *report);
