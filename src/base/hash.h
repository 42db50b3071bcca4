/* Hashing: XXH3 of libxxhash, for names that become random streams and for checksums. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

static inline uint64_t hash_bytes(const void *data, size_t bytes) { return XXH3_64bits(data, bytes); }
