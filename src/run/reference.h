/* Log-probabilities of answers in the reference model of preference losses: the weights that a run
 * begins with. They are computed once per pair and kept in RUN/data, so that a run no longer needs
 * its first weights and continues with the same bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"

/* The pair that begins with `token` of its set. */
typedef struct ReferencePair {
    int64_t token;
    double chosen, rejected;
} ReferencePair;

/* Identifies the contents of a file. */
typedef struct ReferenceKey {
    uint64_t content; /* shard_set_checksum */
    int64_t length;   /* of sequences: longer pairs are omitted */
} ReferenceKey;

/* A mapped file. */
typedef struct Reference {
    FileMap map;
    const ReferencePair *pairs; /* [count], by token */
    int64_t count;
    uint64_t weights, checksum; /* checksums of the weights (reference_weights) and of the file (XXH3) */
} Reference;

/* Opens the file, unless it is absent, damaged or of another key (reference_is_open). Returns false
 * if it cannot be read now. */
bool reference_open(Reference *reference, const char *path, const ReferenceKey *key, Error *error);
void reference_close(Reference *reference); /* a zeroed one is fine */
bool reference_is_open(const Reference *reference);
/* `pairs` must be sorted by token. */
bool reference_write(const char *path, const ReferenceKey *key, uint64_t weights, const ReferencePair *pairs, int64_t count, Error *error);
/* NULL: no such pair. */
const ReferencePair *reference_find(const Reference *reference, int64_t token);

/* Means over `pairs` preference pairs; pairs 0: the loss is per token. */
typedef struct Rewards {
    int64_t pairs;
    double chosen, rejected, accuracy; /* accuracy: fraction of the pairs whose chosen answer has the larger reward */
} Rewards;
