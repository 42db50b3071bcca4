/* Best-fit packing of documents into sequences. */
#pragma once

#include "base/file.h"
#include "data/shard_set.h"

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
