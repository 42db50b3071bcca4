/* Packing: text to token shards, on all cores, in memory that does not grow with the text.
 *
 * An INPUT is text, JSON or a table, plain or compressed (gzip, zlib, zstd, xz, lzma), recognized
 * by content and name; or a folder of such files; or standard input. Its documents, each followed
 * by an end token, become the tokens of shards. A bad record (invalid UTF-8, broken JSON and so on)
 * is counted and sampled, and does not stop the job unless requested. The bytes written depend only
 * on inputs and options, not on the number of threads, nor on how often a job was killed and
 * restarted. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "chat/chat.h"
#include "filter/filter.h"
#include "token/tokenizer.h"

/* PACK_AUTO: the content and the name of each file decide, and the first record whether records are
 * text, conversations or pairs. PACK_CHAT: JSON lines of conversations (chat/chat.h), with a loss mask of the trained tokens.
 * PACK_PREFERENCE: prompts with a chosen and a rejected answer, which become two consecutive
 * documents with such masks. */
typedef enum PackFormat { PACK_AUTO, PACK_TEXT, PACK_JSON, PACK_CHAT, PACK_PREFERENCE } PackFormat;
#define PACK_FORMATS "auto|text|jsonl|chat|preference"
static inline bool pack_is_chat(PackFormat format) { return format == PACK_CHAT || format == PACK_PREFERENCE; }

/* The treatment of a document that is not UTF-8. */
typedef enum PackInvalid {
    PACK_INVALID_REPLACE, /* U+FFFD for each ill-formed sequence, as browsers and Python do */
    PACK_INVALID_KEEP,    /* its bytes go to the tokenizer unchanged */
    PACK_INVALID_SKIP,    /* it is dropped */
    PACK_INVALID_STOP,    /* this or any other bad record ends the job with ERROR_DATA */
} PackInvalid;
#define PACK_INVALIDS "replace|keep|skip|stop"

/* The documents to drop: none, those whose text was seen before, or also those that share most of
 * their text with one (minhash.c). */
typedef enum PackDedup { PACK_DEDUP_NONE, PACK_DEDUP_EXACT, PACK_DEDUP_NEAR } PackDedup;
#define PACK_DEDUPS "none|exact|near"

/* The documents that rules or `dedup` drop, beside the shards: OUTPUT.PACK_DROPPED, or this name in a folder of shards. */
#define PACK_DROPPED "dropped.jsonl.zst"

/* The hashes of the documents of a packing with `dedup`, in the same places, for PackOptions.against of later ones. */
#define PACK_DEDUP_NAME "dedup"

typedef struct PackOptions {
    /* The list ends with NULL. The regular files of a folder are read recursively, in byte order of
     * their paths. A link is followed if it leads to a place inside the folder. Hidden names (.git)
     * are skipped. "-" is standard input. A file that holds neither text nor records
     * (file_format.c) is ERROR_DATA, and the message says what it holds; in a folder it is skipped
     * with a warning. A mixture (mixture.h) is ERROR_USAGE; in a folder it is text. */
    const char *const *inputs;
    const char *output; /* prefix of the shards: OUTPUT-train and OUTPUT-valid with a validation part, otherwise OUTPUT */
    /* 0 to 0.5. 0: no validation part. The validation part of a plain text file is its tail, cut
     * after a separator line or else at a line end, so that both parts see every source; a file of
     * one line is training data only. For JSON lines and compressed text, whose end is not known in
     * advance, it is every 1/fraction-th document. */
    double valid_fraction;
    const char *separator; /* for text. "": one document per file; otherwise a line equal to it ends a document ("%" for fortunes) */
    const char *tokenizer; /* as for tokenizer_open; "" or NULL: the built-in byte tokenizer */
    const char *field;     /* for JSON lines and tables: the name of the text field; NULL: "text" */
    const char *tokens;    /* for JSON lines and Parquet: the name of the field with lists of token ids, in place of text; NULL: none */
    PackFormat format;
    const char *template; /* for conversations, as in ChatOptions; NULL: the tokenizer's */
    ChatTurns turns;
    PackInvalid invalid;
    PackDedup dedup;
    const char *against;          /* packings whose documents count as seen, with commas between them; "" or NULL: none */
    const char *restore;          /* a packing of the same inputs: pack only what it dropped as repeats; "" or NULL: all */
    const DocumentFilter *filter; /* rules that drop documents, or NULL; borrowed */
    bool held_out;                /* if a folder has splits by name, take the one for validation; otherwise the one for training */
    bool special;                 /* special tokens spelled in the text are matched; otherwise they are ordinary text */
    TokenizerBos bos;             /* the start of a document that is text; for conversations, the template decides */
    const char *staging;          /* for OUTPUT in a bucket: the local folder of files that are not uploaded yet; NULL or "": NAME.upload */
    int64_t shard_tokens;         /* 0: one shard; otherwise OUTPUT is a folder, and a shard ends with the document that fills it */
    bool overwrite;               /* replace existing shards, and a folder that is complete, or was begun with other inputs or settings */
} PackOptions;

/* Records that are not documents, or need a change to be. */
typedef enum PackBad {
    PACK_GOOD,
    PACK_BAD_UTF8,  /* not UTF-8: PackOptions.invalid decides what happens to it */
    PACK_BAD_JSON,  /* a record that is not a JSON object */
    PACK_BAD_FIELD, /* the object has no text with this name */
    PACK_BAD_ROW,   /* a table row with another number of fields than its header, or a quote that does not end */
    PACK_BAD_EMPTY, /* no text between two separators, or an empty one in JSON */
    PACK_BAD_LONG,  /* above the limit of a JSON line, or of a document that is judged as a whole */
    PACK_BAD_CHAT,  /* not a conversation, or one that the template refuses */
    PACK_BAD_PAIR,  /* not a pair of answers, or one that the template refuses */
    PACK_BAD_FILE,  /* compressed data that is damaged or cut off: the rest of the file is lost */
    PACK_BAD_KINDS,
} PackBad;
const char *pack_bad_name(PackBad kind); /* "invalid UTF-8" */

enum { PACK_LENGTHS = 40 };
typedef struct PackResult {
    int64_t documents;                    /* of both parts; a pair of answers counts as one; empty and dropped documents are not counted */
    int64_t train_tokens, valid_tokens;   /* including end tokens */
    int64_t trained_train, trained_valid; /* the trained ones of these tokens, for conversations */
    int64_t empty_answers, decoded_arguments, text_arguments; /* ChatCounts of kept conversations and pairs */
    int64_t lost[CHAT_PARTS];                                 /* kept conversations and pairs whose text lacks the part */
    int64_t bytes, files;                                     /* of packed files, as stored on disk */
    int64_t text_bytes;                                       /* of documents, decompressed and without their JSON */
    int64_t shards;                                           /* of the training part */
    int64_t records;                                          /* documents that were read: kept, dropped or bad */
    int64_t filtered;                                         /* documents that broke a rule of the filter */
    int64_t duplicates, near, left_out; /* documents whose text was seen before, by XXH3, or nearly so; and how many of them were dropped */
    int64_t bad[PACK_BAD_KINDS];
    int64_t lengths[PACK_LENGTHS]; /* documents of [2^i, 2^(i+1)) tokens */
    PackFormat format;             /* as given; PACK_AUTO became PACK_CHAT or PACK_PREFERENCE if the records are */
    bool resumed;
} PackResult;

/* Packs text to tokens. The tokenizer is recorded beside them, with a description of the packing
 * (pack_report.c): OUTPUT.pack.json, or pack.json in a folder of shards. Shows progress.
 * ERROR_DATA: an empty corpus, an empty validation part if one was requested, or input that cannot
 * be read. A folder of shards from a killed job is continued; with other inputs or settings that is
 * ERROR_USAGE, which names the difference. */
bool pack_text(const PackOptions *options, PackResult *result, Error *error);

/* Lists the files that pack_text would read from an input, a file or a folder, in their order, for
 * file_list_free; `held_out` as in PackOptions. ERROR_DATA. */
bool pack_list(const char *input, bool held_out, FileList *files, Error *error);

/* Learns a vocabulary from the documents of inputs: `options` gives inputs, separator, field,
 * format, invalid and, as its output, the tokenizer.json to write. Counts documents and bytes in
 * `result`; *learned is the vocabulary reached. */
bool pack_train_tokenizer(
    const PackOptions *options, const TokenizerTraining *training, PackResult *result, int32_t *learned, Error *error);

/* Copies a text with U+FFFD for each sequence that is not UTF-8, and a NUL after its `*result`
 * bytes; the caller frees. */
char *utf8_replace(const char *text, size_t size, size_t *result);
