/* Writes token shards. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

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
 * only be canceled. */
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
