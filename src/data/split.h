/* Splits token shards into a training and a validation part by documents. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct SplitOptions {
    const char *input;     /* shards of any format that shard_set_open reads */
    const char *output;    /* prefix of OUTPUT-train and OUTPUT-valid */
    const char *tokenizer; /* for shards that record none; "": none */
    double valid_fraction; /* approximate share of the documents, above 0 and below 1 */
    bool overwrite;
} SplitOptions;

typedef struct SplitPart { int64_t documents, tokens; /* a pair of answers counts as one document */ } SplitPart;

/* Writes each document, or pair of answers, with its loss mask to one part. The XXH3 of its tokens
 * decides: equal documents go to the same part, independent of order, shards and other documents. A
 * larger fraction keeps the validation documents of a smaller one. The parts have the input's
 * tokenizer. Shows progress. ERROR_DATA: a part would be empty. ERROR_USAGE. */
bool split_shards(const SplitOptions *options, SplitPart *train, SplitPart *valid, Error *error);
