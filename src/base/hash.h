/* Hashing: XXH3 of libxxhash, for random streams of names and for checksums. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

#include "base/error.h"

static inline uint64_t hash_bytes(const void *data, size_t bytes) { return XXH3_64bits(data, bytes); }

/* Adds the size of a file and blocks of its content, spread evenly from its first to its last byte;
 * a small file is added completely. */
bool hash_file_samples(const char *path, XXH3_state_t *hash, Error *error);
/* Computes *checksum, the XXH3 of the whole content of a file. */
bool hash_file(const char *path, uint64_t *checksum, Error *error);
