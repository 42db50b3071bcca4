/* Log-probabilities of answers in the reference model of preference losses, the weights that a run begins with. They are
 * computed once for each pair and kept in RUN/data, so that a run needs its first weights no more, and goes on with the same
 * bits. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "data/data.h"

/* The pair that begins with `token` of its set. */
typedef struct ReferencePair {
    int64_t token;
    double chosen, rejected;
} ReferencePair;

/* What a file is of. */
typedef struct ReferenceKey {
    uint64_t content; /* shard_set_checksum */
    int64_t length;   /* of sequences: pairs that are longer are left out */
} ReferenceKey;

/* A mapped file. */
typedef struct Reference {
    FileMap map;
    const ReferencePair *pairs; /* [count], by token */
    int64_t count;
    uint64_t weights, checksum; /* of which weights (reference_weights), and XXH3 of the file */
} Reference;

/* Opens the file, unless it is absent, damaged or of another key (reference_is_open). False: it cannot be read now. */
bool reference_open(Reference *reference, const char *path, const ReferenceKey *key, Error *error);
void reference_close(Reference *reference); /* also of a zeroed one */
bool reference_is_open(const Reference *reference);
/* `pairs` are in the order of their tokens. */
bool reference_write(const char *path, const ReferenceKey *key, uint64_t weights, const ReferencePair *pairs, int64_t count, Error *error);
/* NULL: there is no such pair. */
const ReferencePair *reference_find(const Reference *reference, int64_t token);

/* Means over `pairs` pairs of answers; pairs 0: the loss is one of tokens. */
typedef struct Rewards {
    int64_t pairs;
    double chosen, rejected, accuracy; /* accuracy: part of the pairs whose chosen answer has the larger reward */
} Rewards;
