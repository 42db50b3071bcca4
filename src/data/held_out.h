/* The validation part of a run's own shards, by documents, without a copy of the training part. */
#pragma once

#include "base/file.h"
#include "data/shard_set.h"

/* The shard of the validation documents, in the folder. */
#define HELD_OUT_VALID "split-valid"

typedef struct HeldOutOptions {
    const char *folder;
    double valid_fraction; /* approximate share of the documents, above 0 */
    const char *tokenizer; /* of the sets, recorded beside the shard, as for tokenizer_open; "": bytes; NULL: unknown */
} HeldOutOptions;

typedef struct HeldOut { FileMap map; /* of the runs of the sets */ } HeldOut;

/* Makes each of the sets its training documents, and FOLDER/split-valid the validation documents of
 * all of them, as split_shards chooses them. FOLDER/split has the runs of tokens that each set
 * keeps. If it does not belong to these sets, this fraction and this shard, both are made in one
 * pass over the documents, with progress, in constant memory. The same content gives the same files.
 * Close the sets before the HeldOut. ERROR_DATA. */
bool held_out_open(HeldOut *held_out, const HeldOutOptions *options, ShardSet *sets, int count, Error *error);
void held_out_close(HeldOut *held_out); /* also for a zeroed or failed one */
