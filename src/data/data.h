/* Data: text to token shards to batches.
 *
 * Shards are Megatron's: PREFIX.bin holds the tokens end to end, PREFIX.idx the type, sequence lengths, byte offsets
 * and document boundaries, so corpora packed by other systems work as they are. A dataset is the concatenation of all
 * documents of a set of shards. The order in which sequences are cut from one or several of them is that of mixture.h, a
 * pure function. So the world size does not enter, and resuming needs one integer: how many samples were drawn. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/stop.h"
#include "data/mixture.h"
#include "token/tokenizer.h"

/* The built-in byte tokenizer: token b is byte b; 256 separates documents. */
enum { BYTE_VOCABULARY = 257, BYTE_SEPARATOR = 256 };
#define BYTE_SEPARATOR_TEXT "<|separator|>" /* its name in tokenizer.json */
/* The content of its tokenizer.json: token b is byte b, without merges; the separator is a special token. */
json_t *byte_tokenizer(void);
/* Whether the tokenizer.json in a folder is that one, or a GGUF file has that tokenizer. */
bool byte_tokenizer_is(const char *folder, bool *is, Error *error);

/* -- Token shards (shard_set.c) ---------------------------------------------------------------------------------- */

typedef struct Shard Shard; /* one of its files (data_internal.h) */

/* What a path names: one shard (PREFIX of Megatron's PREFIX.bin and PREFIX.idx, or a file of llm.c or llmq), a folder
 * whose shards follow one another in byte order of their names, those of its .bin files that match FOLDER/PATTERN with
 * a *, or a folder of Mosaic's MDS. Either is one stream of tokens and of documents, counted from 0 across its shards;
 * a shard's end is a document's end. Files stay open: nothing is allocated for a token or a document. An open shard
 * must not be overwritten in place; replacing its files by rename, as ShardWriter does, is fine. */
typedef struct ShardSet {
    char *path;    /* as given, for messages; owned */
    Shard *shards; /* owned */
    int64_t count;
    int64_t *first_token, *first_document; /* [count + 1]: of each shard in the stream, and one past the last; owned */
    int64_t token_count;
    int64_t document_count; /* -1: not all shards have an index of documents */
    bool masked;            /* a shard has a loss mask */
    bool pairs;             /* documents 2 i and 2 i + 1 are the chosen and the rejected answer of a pair; all are masked */
    int32_t end_token;      /* for the owner to set: where there is no index, a document ends with it; -1: nowhere */
    struct Remote *remote;  /* of a folder of remote_mirror; else NULL */
    int64_t max_token;      /* the largest that is recorded, or that shard_set_verify has found; -1: none is */
} ShardSet;

/* Whether a path names shards. What is no shard is taken for text. If the system cannot tell, the result is true, and
 * opening the set reports the reason. */
bool shard_set_exists(const char *path);
/* What made the tokens, as recorded beside them: the folder PREFIX.tokenizer of a shard, or FOLDER/tokenizer of all of a
 * folder, or "" for the byte tokenizer; NULL: nothing is recorded, as of other programs' shards. The caller frees. False: it
 * cannot be read now. */
bool shard_set_tokenizer(const char *path, char **tokenizer, Error *error);
/* Opens the files and checks what a few places of them tell, so it is quick at any size: sizes, and in shards that smelt
 * wrote checksums of what it reads. Tokens and documents are checked where they are read. ERROR_DATA. */
bool shard_set_open(ShardSet *set, const char *path, Error *error);
/* Reads all bytes of an open set: checksums, every offset and document boundary, no negative token. On failure it stays
 * open. Shows progress. */
bool shard_set_verify(ShardSet *set, Error *error);
void shard_set_close(ShardSet *set); /* also of a zeroed or failed one */

/* What the index says of a token. */
typedef enum TokenMark {
    TOKEN_ENDS = 1,      /* a document ends behind it */
    TOKEN_UNTRAINED = 2, /* the model is not to learn to say it */
} TokenMark;

/* Copies the tokens [first, first + count) of the stream to `tokens`; `marks` (may be NULL) receives the TokenMarks of
 * each. Tokens must be below `vocabulary`, and bytes as they were written where
 * checksums of blocks are recorded. ERROR_DATA names file and place. Any thread may call. */
bool shard_set_read(const ShardSet *set, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *marks, Error *error);
/* Asks the system to read what shard_set_read will need, and returns at once. */
void shard_set_prefetch(const ShardSet *set, int64_t first, int64_t count);

/* How many sequences of `length` tokens are worth asking for before they are needed. */
int64_t shard_set_ahead(const ShardSet *set, int64_t length);
/* While it is true, shard_set_read fails where it would wait for a store: for a thread that is to end. */
void shard_set_interrupt(const ShardSet *set, bool interrupted);

/* Walks the documents in order: start with {.set = set}. */
typedef struct DocumentCursor {
    const ShardSet *set;
    int64_t document, token; /* the next document, and where it starts */
    const void *checked[2];  /* as of shard_index_document */
} DocumentCursor;
/* The tokens [*start, *end) of the next document, which may be empty. *end is -1 behind the last one. ERROR_DATA. */
bool document_cursor_next(DocumentCursor *cursor, int64_t *start, int64_t *end, Error *error);

/* A checksum of tokens, document ends and token types, the content of a set, without reading it: smelt's shards record
 * theirs; of other programs' shards size and samples stand for the content. ERROR_DATA. */
bool shard_set_checksum(const ShardSet *set, uint64_t *checksum, Error *error);
/* What `smelt data show` prints of the shards together: "u16", or "u16, i32". The caller frees. */
char *shard_set_types(const ShardSet *set);
char *shard_set_formats(const ShardSet *set); /* "Megatron" */
int64_t shard_set_bytes(const ShardSet *set); /* of the files of tokens */
/* How many tokens are trained, of all documents: all but where a loss mask says otherwise. ERROR_DATA. */
bool shard_set_trained(const ShardSet *set, int64_t *trained, Error *error);
bool shard_set_checksummed(const ShardSet *set); /* whether all shards carry checksums: smelt's do, other programs' do not */

/* -- Sources in object stores (remote_mirror.c, remote.c) ------------------------------------------------------------- */

/* Where what is fetched is kept. Runs and the ranks of a node may share the folder. */
typedef struct RemoteOptions {
    const char *cache; /* a folder */
    int64_t bytes;     /* of blocks of tokens in it at most; indexes and tokenizers come on top, whole */
    double patience;   /* seconds that reading waits for a store that does not answer */
} RemoteOptions;

/* Whether a path is s3://BUCKET/PREFIX, which holds the files of a folder of shards. */
bool remote_is(const char *path);
/* The folder that stands for it, once remote_mirror has made it: shard_set_open reads it. The caller frees. */
char *remote_folder(const char *cache, const char *path);
/* Makes that folder, or brings it up to date. Where the store does not answer one that was made before stays, with a
 * warning. ERROR_DATA; ERROR_USAGE without credentials. */
bool remote_mirror(const RemoteOptions *options, const char *path, Error *error);

/* Writes a shard: tokens arrive document by document. PREFIX.bin and PREFIX.idx appear under their names only when
 * shard_writer_finish succeeds (temporary names, fsync, rename). A cancel leaves nothing behind, nor does a failure before
 * the files get their names; a later one leaves no index. A shard of that name is replaced; a PREFIX.tokenizer with other
 * files than a tokenizer's is refused (ERROR_USAGE). */
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *prefix, int token_bytes, Error *error);
/* Records `tokenizer` (as for tokenizer_open; "": the byte tokenizer) beside the shard, as PREFIX.tokenizer/, which
 * appears before the shard does. A shard that is written without has no such folder. `template` is the source of the chat
 * template that its conversations were rendered by; "": the tokenizer's own, if it has one. */
void shard_writer_tokenizer(ShardWriter *writer, const char *tokenizer, const char *template);
bool shard_writer_document(ShardWriter *writer, const int32_t *tokens, int64_t count, Error *error);
/* Appends to the open document, so that one can be written in several calls. A failed writer can only be cancelled. */
bool shard_writer_append(ShardWriter *writer, const int32_t *tokens, int64_t count, Error *error);
bool shard_writer_end_document(ShardWriter *writer, Error *error);
/* A shard of pairs, with a loss mask: of each two documents the first is an answer that was preferred to the second. Before the
 * first token. */
void shard_writer_pairs(ShardWriter *writer);
/* A shard with a loss mask: of each document the tokens up to the first shard_writer_end_span are untrained, those up to
 * the second are trained, and so on in turn. Before the first token. */
void shard_writer_mask(ShardWriter *writer);
bool shard_writer_end_span(ShardWriter *writer, Error *error);
/* Frees the writer in any case. A shard without tokens is ERROR_DATA. */
bool shard_writer_finish(ShardWriter *writer, Error *error);
/* shard_writer_finish for shards that belong together, and the file that describes them (NULL: none): they appear in this
 * order, once no older index of any of their names is left. With a file they survive a failure or a kill from the moment
 * that all are on the disk: shard_names_resume (data_internal.h). */
#define SHARDS_FILE ".pack.json" /* PREFIX.pack.json, with the prefix of the last shard */
typedef struct ShardsFile { const char *path, *text; } ShardsFile;
enum { SHARDS_TOGETHER = 2 /* at most: training and validation */ };
bool shard_writers_finish(ShardWriter *const *writers, int count, const ShardsFile *file, Error *error);
void shard_writer_cancel(ShardWriter *writer);

/* -- Best-fit packing (bins.c) ------------------------------------------------------------------------------------- */

/* A part of one document, or a pair of two: the tokens [start, start + count) of the stream. */
typedef struct BinPart { int64_t start, count; } BinPart;

/* Documents of a set in bins of `length` tokens: each token of a document is in one bin, documents longer than a bin are
 * cut, and what is left of a bin is padding. Of a set of pairs a part is a whole pair, and those longer than a bin are left out. The plan is a mapped file, so nothing is allocated for a document. */
typedef struct BinPlan {
    FileMap map;
    int64_t length, bins;
    int64_t inputs;            /* tokens in all bins; the others of bins * length are padding */
    int64_t part_count;        /* in all bins */
    const BinPart *parts;      /* bin by bin */
    const int64_t *first_part; /* [bins + 1] */
} BinPlan;

/* Maps the plan of a set in FOLDER/NAME-LENGTH.bins; makes it where there is none of this content and length, in
 * constant memory, with progress. The same content and length give the same file. ERROR_DATA. */
bool bin_plan_open(BinPlan *plan, const char *folder, const char *name, const ShardSet *set, int64_t length, Error *error);
void bin_plan_close(BinPlan *plan); /* also of a zeroed or failed one */

/* -- Batches (loader.c) -------------------------------------------------------------------------------------------- */

/* A pair of answers: rows [first, middle) of the batch are the chosen one, [middle, end) the rejected. */
typedef struct BatchPair {
    int32_t first, middle, end;
    int64_t token; /* of the set, which the pair begins with */
} BatchPair;

/* `sequences` x the phase's length tokens each; arrays are owned by the loader and valid until the batch is released. */
typedef struct Batch {
    const int32_t *tokens;  /* [sequences][length] */
    const int32_t *targets; /* the next token; -1 where there is none, at a document's end with document_mask, or it is untrained */
    /* Position inside its document, counted from the sequence start where the document began earlier. The document of
     * token t starts at t - positions[t], so this is document mask and RoPE position at once. */
    const int32_t *positions;
    int64_t first_sample;   /* number of the first sequence in the order */
    const BatchPair *pairs; /* [pair_count], of sets of pairs */
    int64_t pair_count;
} Batch; /* padding is token 0, target -1, position 0 */

/* A source of the order. */
typedef struct LoaderSource {
    const ShardSet *set;
    const BinPlan *bins; /* NULL: sequences are cut from the stream; else sample i is bin i, and document_mask is true */
} LoaderSource;

typedef struct LoaderOptions {
    const Order *order;          /* outlives the loader, as do sets and bins */
    int phase;                   /* of the order: batches have its length, and samples behind its last one are padding */
    int64_t end;                 /* samples behind this one of the order are padding too; 0: the phase alone ends them */
    const LoaderSource *sources; /* [the order's sources], copied */
    int64_t sequences;
    int32_t vocabulary; /* tokens must be below it: ERROR_DATA with the offending value otherwise */
    int32_t separator;  /* the token that ends a document in the stream, or -1: boundaries from the shard's
                                 document index are used in both cases, and matter only with document_mask */
    bool document_mask; /* false: positions run 0..length-1 over the whole sequence */
    /* Where several loaders share the batches, one thread calls `pick` for each batch in order; it returns the batch's
     * number, counted from the first sample. NULL: all batches. */
    int64_t (*pick)(void *context);
    void *pick_context;
    const StopRequest *stop; /* once made, nobody waits for data any longer; NULL: none */
} LoaderOptions;

typedef struct Loader Loader;
/* Starts a thread that prepares batches ahead, beginning with sample first_sample of the order, which is of the phase. */
Loader *loader_open(const LoaderOptions *options, int64_t first_sample, Error *error);
/* Waits for the next batch; the previous one is released. NULL when its data could not be read: ERROR_DATA, and no later
 * batch comes; or when it is not there and a stop was asked for: ERROR_DATA too. */
const Batch *loader_next(Loader *loader, Error *error);
void loader_close(Loader *loader); /* at any moment; NULL is allowed */
