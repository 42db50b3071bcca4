/* Packing: text to token shards, on all cores, in memory that does not grow with the text.
 *
 * An INPUT is text, JSON or a table, plain or compressed (gzip, zlib, zstd, xz, lzma), recognised by content and name; or
 * a folder of such files; or standard input. Its documents, each followed by a token that ends it, become the tokens of shards. A
 * record that is bad (invalid UTF-8, broken JSON and so on) is counted and sampled, and never stops the job unless that
 * is asked for. The bytes written depend on inputs and options alone, never on the number of threads, nor on how often a
 * job was killed and started again. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "chat/chat.h"
#include "token/tokenizer.h"

/* PACK_CHAT: JSON lines of conversations (chat/chat.h), of which what is trained becomes a loss mask. PACK_PREFERENCE: of prompts
 * with a chosen and a rejected answer, which become two documents with such a mask, one behind the other. */
typedef enum PackFormat { PACK_AUTO, PACK_TEXT, PACK_JSON, PACK_CHAT, PACK_PREFERENCE } PackFormat;
#define PACK_FORMATS "auto|text|jsonl|chat|preference"
static inline bool pack_is_chat(PackFormat format) { return format == PACK_CHAT || format == PACK_PREFERENCE; }

/* What becomes of a document that is not UTF-8. */
typedef enum PackInvalid {
    PACK_INVALID_REPLACE, /* U+FFFD for each ill-formed sequence, as browsers and Python do */
    PACK_INVALID_KEEP,    /* its bytes go to the tokenizer as they are */
    PACK_INVALID_SKIP,    /* it is left out */
    PACK_INVALID_STOP,    /* it, or any other bad record, ends the job with ERROR_DATA */
} PackInvalid;
#define PACK_INVALIDS "replace|keep|skip|stop"

/* Which documents are left out: none, those whose text was there before, or also those that share most of it
 * (minhash.c). */
typedef enum PackDedup { PACK_DEDUP_NONE, PACK_DEDUP_EXACT, PACK_DEDUP_NEAR } PackDedup;
#define PACK_DEDUPS "none|exact|near"

typedef struct PackOptions {
    /* The list ends with NULL. The regular files of a folder are read recursively, in byte order of their paths. A
     * link is followed if it leads to a place inside the folder. Hidden names (.git) are left out. "-" is standard
     * input. A file that holds neither text nor records (file_format.c) is ERROR_DATA, and the message says what it
     * holds; in a folder it is left out with a warning. A mixture (mixture.h) is ERROR_USAGE; in a folder it is text. */
    const char *const *inputs;
    const char *output; /* prefix of the shards: OUTPUT-train and OUTPUT-valid with a validation part, else OUTPUT */
    /* 0 to 0.5. 0: no validation part. A plain text file gives its tail, cut after a separator line or else at a line
     * end, so that both parts see every source; a file of one line is training data only. JSON lines and compressed
     * text, whose end is not known before it is read, give every 1/fraction-th document. */
    double valid_fraction;
    const char *separator; /* of text. "": one document per file; else a line equal to it ends a document ("%" for fortunes) */
    const char *tokenizer; /* as for tokenizer_open; "" or NULL: the built-in byte tokenizer */
    const char *field;     /* of JSON lines: the name of the text; NULL: "text" */
    PackFormat format;
    const char *template; /* of conversations, as in ChatOptions; NULL: the tokenizer's */
    ChatTurns turns;
    PackInvalid invalid;
    PackDedup dedup;
    bool held_out;        /* of a folder that holds several splits by name, that for validation, else that for training */
    bool special;         /* special tokens spelled in the text are matched; else they are ordinary text */
    TokenizerBos bos;     /* what begins a document that is text; conversations begin as their template says */
    int64_t shard_tokens; /* 0: one shard; else OUTPUT is a folder, and a shard ends with the document that fills it */
    bool overwrite;       /* shards, and a folder that is complete, or was begun with other inputs or settings, are made anew */
} PackOptions;

/* Records that are no document, or none as they stand. */
typedef enum PackBad {
    PACK_GOOD,
    PACK_BAD_UTF8,  /* not UTF-8: PackOptions.invalid says what became of it */
    PACK_BAD_JSON,  /* a line that is no JSON object */
    PACK_BAD_FIELD, /* the object has no text of that name */
    PACK_BAD_ROW,   /* a row of a table with another number of fields than its header, or a quote that does not end */
    PACK_BAD_EMPTY, /* no text between two separators, or an empty one in JSON */
    PACK_BAD_LONG,  /* above the limit of a line of JSON, or of a document that must be judged as a whole */
    PACK_BAD_CHAT,  /* no conversation, or one that the template refuses */
    PACK_BAD_PAIR,  /* no pair of answers, or one that the template refuses */
    PACK_BAD_FILE,  /* compressed data that is damaged or cut off: the rest of the file is lost */
    PACK_BAD_KINDS,
} PackBad;
const char *pack_bad_name(PackBad kind); /* "invalid UTF-8" */

enum { PACK_LENGTHS = 40 };
typedef struct PackResult {
    int64_t documents;                  /* of both parts, a pair of answers being one, those of zero bytes and those left out not counted */
    int64_t train_tokens, valid_tokens; /* tokens that end documents included */
    int64_t trained_train, trained_valid;                     /* of them, of conversations, what the model is to say */
    int64_t empty_answers, decoded_arguments, text_arguments; /* ChatCounts of conversations and pairs that stay */
    int64_t lost[CHAT_PARTS];                                 /* such conversations and pairs, of which the template leaves the part out */
    int64_t bytes, files;                                     /* of files that were packed, as they lie on disk */
    int64_t text_bytes;                                       /* of documents, decompressed and without JSON around it */
    int64_t shards;                                           /* of the training part */
    int64_t duplicates, near, left_out; /* documents whose text was seen before, by XXH3, or nearly so; those of them left out */
    int64_t bad[PACK_BAD_KINDS];
    int64_t lengths[PACK_LENGTHS]; /* documents of [2^i, 2^(i+1)) tokens */
    bool resumed;
} PackResult;

/* Text to tokens. The tokenizer is recorded beside them, as is a description of the packing (pack_report.c):
 * OUTPUT.pack.json, or pack.json in a folder of shards. Shows progress. Empty corpora, or an empty validation part
 * where one was asked for, are ERROR_DATA, as is what cannot be read. A folder of shards that a killed job left is
 * continued: with other inputs or settings that is ERROR_USAGE, which names what differs. */
bool pack_text(const PackOptions *options, PackResult *result, Error *error);

/* The files that pack_text would read of an input, a file or a folder, in their order, for file_list_free; `held_out` is that
 * of PackOptions. ERROR_DATA. */
bool pack_list(const char *input, bool held_out, FileList *files, Error *error);

/* Learns a vocabulary from the documents of inputs: `options` gives inputs, separator, field, format, invalid and, as its
 * output, the tokenizer.json to write. Counts documents and bytes in `result`; *learned is the vocabulary reached. */
bool pack_train_tokenizer(
    const PackOptions *options, const TokenizerTraining *training, PackResult *result, int32_t *learned, Error *error);

/* A copy of a text with U+FFFD for each sequence that is not UTF-8, and a NUL behind its `*result` bytes; the caller frees. */
char *utf8_replace(const char *text, size_t size, size_t *result);
