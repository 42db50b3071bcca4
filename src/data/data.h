/* Data: text to token shards to batches.
 *
 * Shards are Megatron's: PREFIX.bin holds the tokens end to end; PREFIX.idx holds the type,
 * sequence lengths, byte offsets and document boundaries. Corpora packed by other systems therefore
 * work unchanged. A dataset is the concatenation of all documents of a set of shards. The order in
 * which sequences are cut from one or several datasets is a pure function (mixture.h). It does not
 * depend on the world size, and resuming needs one integer: the number of samples drawn. */
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
/* Returns the content of its tokenizer.json: token b is byte b, without merges; the separator is a
 * special token. */
json_t *byte_tokenizer(void);
/* Sets *is if the tokenizer.json in a folder is the byte tokenizer, or a GGUF file has it. */
bool byte_tokenizer_is(const char *folder, bool *is, Error *error);

/* -- Token shards (shard_set.c) ---------------------------------------------------------------------------------- */

typedef struct Shard Shard; /* one shard (data_internal.h) */

/* The shards that a path names: one shard (PREFIX of Megatron's PREFIX.bin and PREFIX.idx, or a
 * file of llm.c or llmq), the shards of a folder in byte order of their names, the .bin files that
 * match FOLDER/PATTERN with a *, or a folder of Mosaic's MDS. They form one stream of tokens and of
 * documents, counted from 0 across the shards; the end of a shard ends a document. Files stay open;
 * nothing is allocated per token or document. An open shard must not be overwritten in place;
 * replacing its files by rename, as ShardWriter does, is safe. */
typedef struct ShardSet {
    char *path;    /* as given, for messages; owned */
    Shard *shards; /* owned */
    int64_t count;
    int64_t *first_token, *first_document; /* [count + 1]: the start of each shard in the stream, and one past the last; owned */
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
    int64_t document, token; /* the next document, and its first token */
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

/* -- Sources in object stores (remote_mirror.c, remote.c) ------------------------------------------------------------- */

/* The local cache for fetched data. Runs and the ranks of a node may share the folder. */
typedef struct RemoteOptions {
    const char *cache; /* a folder */
    int64_t bytes;     /* limit for blocks of tokens; whole indexes and tokenizers are stored in addition */
    double patience;   /* seconds that a read waits for a store that does not answer */
} RemoteOptions;

/* Returns whether a path is s3://BUCKET/PREFIX, with the files of a folder of shards. */
bool remote_is(const char *path);
/* Returns the local folder that remote_mirror makes for a path; shard_set_open reads it. The caller
 * frees. */
char *remote_folder(const char *cache, const char *path);
/* Makes or updates the local folder. If the store does not answer, an existing folder is used, with
 * a warning. ERROR_DATA; ERROR_USAGE without credentials. */
bool remote_mirror(const RemoteOptions *options, const char *path, Error *error);

/* Writes a shard: tokens arrive document by document. PREFIX.bin and PREFIX.idx get their names
 * only when shard_writers_finish succeeds (temporary names, fsync, rename). A cancel leaves no
 * files; neither does a failure before the files get their names; a later failure leaves no index.
 * An existing shard with the same name is replaced; a PREFIX.tokenizer with files that do not
 * belong to a tokenizer is refused (ERROR_USAGE). */
typedef struct ShardWriter ShardWriter;
ShardWriter *shard_writer_open(const char *prefix, int token_bytes, Error *error);
/* Records `tokenizer` (as for tokenizer_open; "": the byte tokenizer) beside the shard, as
 * PREFIX.tokenizer/, which appears before the shard does. A shard written without a tokenizer has
 * no such folder. `template` is the source of the chat template of its conversations; "": the
 * tokenizer's own, if it has one. */
void shard_writer_tokenizer(ShardWriter *writer, const char *tokenizer, const char *template);
/* Appends to the open document, so that one document can take several calls. A failed writer can
 * only be cancelled. */
bool shard_writer_append(ShardWriter *writer, const int32_t *tokens, int64_t count, Error *error);
bool shard_writer_end_document(ShardWriter *writer, Error *error);
/* Makes it a shard of pairs, with a loss mask: of each two documents, the first is an answer that
 * was preferred to the second. Call before the first token. */
void shard_writer_pairs(ShardWriter *writer);
/* Makes it a shard with a loss mask. In each document, the tokens up to the first
 * shard_writer_end_span are untrained, those up to the second are trained, and so on. Call before
 * the first token. */
void shard_writer_mask(ShardWriter *writer);
bool shard_writer_end_span(ShardWriter *writer, Error *error);
/* Completes shards that belong together, and the file that describes them (NULL: none). Always frees
 * the writers. A shard without tokens is ERROR_DATA. They get
 * their names in this order, after older indexes with these names are removed. With a file, they
 * survive a failure or a kill once all are on disk: shard_names_resume (data_internal.h). */
#define SHARDS_FILE ".pack.json" /* PREFIX.pack.json; PREFIX is that of the last shard */
typedef struct ShardsFile { const char *path, *text; } ShardsFile;
enum { SHARDS_TOGETHER = 2 /* limit: training and validation */ };
bool shard_writers_finish(ShardWriter *const *writers, int count, const ShardsFile *file, Error *error);
void shard_writer_cancel(ShardWriter *writer);

/* -- Best-fit packing (bins.c) ------------------------------------------------------------------------------------- */

/* A part of one document, or a pair of two: the tokens [start, start + count) of the stream. */
typedef struct BinPart { int64_t start, count; } BinPart;

/* The documents of a set in bins of `length` tokens. Each token of a document is in one bin;
 * documents longer than a bin are cut; the rest of a bin is padding. In a set of pairs, a part is a
 * whole pair, and pairs longer than a bin are dropped. The plan is a mapped file, so nothing is
 * allocated per document. */
typedef struct BinPlan {
    FileMap map;
    int64_t length, bins;
    int64_t inputs;            /* tokens in all bins; the rest of bins * length is padding */
    int64_t part_count;        /* in all bins */
    const BinPart *parts;      /* bin by bin */
    const int64_t *first_part; /* [bins + 1] */
} BinPlan;

/* Maps the plan of a set in FOLDER/NAME-LENGTH.bins; if there is none for this content and length,
 * makes it first, in constant memory, with progress. The same content and length give the same
 * file. ERROR_DATA. */
bool bin_plan_open(BinPlan *plan, const char *folder, const char *name, const ShardSet *set, int64_t length, Error *error);
void bin_plan_close(BinPlan *plan); /* also for a zeroed or failed plan */

/* -- Batches (loader.c) -------------------------------------------------------------------------------------------- */

/* A pair of answers: the places [first, middle) of the batch are the chosen answer, [middle, end)
 * the rejected one. */
typedef struct BatchPair {
    int32_t first, middle, end;
    int64_t token; /* the first token of the pair in the set */
} BatchPair;

/* `sequences` x length tokens of the phase; the loader owns the arrays, which are valid until the
 * batch is released. */
typedef struct Batch {
    const int32_t *tokens;  /* [sequences][length] */
    const int32_t *targets; /* the next token; -1 if there is none, if it is untrained, or, with document_mask, at a document's end */
    /* Position inside its document, counted from the start of the sequence if the document began
     * earlier. The document of token t starts at t - positions[t], so positions give both document
     * mask and RoPE position. */
    const int32_t *positions;
    int64_t first_sample;   /* index of the first sequence in the order */
    const BatchPair *pairs; /* [pair_count], for sets of pairs */
    int64_t pair_count;
} Batch; /* padding is token 0, target -1, position 0 */

/* A source of an Order. */
typedef struct LoaderSource {
    const ShardSet *set;
    const BinPlan *bins; /* NULL: sequences are cut from the stream; otherwise sample i is bin i, and document_mask is true */
} LoaderSource;

typedef struct LoaderOptions {
    const Order *order;          /* must outlive the loader, like sets and bins */
    int phase;                   /* of the order: batches have its length, and samples after its last one are padding */
    int64_t end;                 /* samples from this one on are padding too; 0: only the phase ends them */
    const LoaderSource *sources; /* [number of the order's sources], copied */
    int64_t sequences;
    int32_t vocabulary; /* tokens must be below it; otherwise ERROR_DATA with the value */
    int32_t separator;  /* the token that ends a document in the stream, or -1. The shard's document
                         * index is used in both cases. Only used with document_mask */
    bool document_mask; /* false: positions run 0..length-1 over the whole sequence */
    /* If several loaders share the batches, one thread calls `pick` for each batch in order; it
     * returns the number of the batch, counted from the first sample. NULL: all batches. */
    int64_t (*pick)(void *context);
    void *pick_context;
    const StopRequest *stop; /* after a stop request, no call waits for data; NULL: none */
} LoaderOptions;

typedef struct Loader Loader;
/* Starts a thread that prepares batches ahead, beginning with sample first_sample of the order,
 * which must be in the phase. */
Loader *loader_open(const LoaderOptions *options, int64_t first_sample, Error *error);
/* Waits for the next batch; the previous one is released. NULL with ERROR_DATA if its data cannot
 * be read, after which no batch follows, or if it is not ready when a stop is requested. */
const Batch *loader_next(Loader *loader, Error *error);
void loader_close(Loader *loader); /* at any time; NULL is allowed */
