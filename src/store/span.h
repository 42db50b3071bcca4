/* Bytes to be written to a store. */
#pragma once

#include <stdint.h>

/* Consecutive bytes of an object in memory. If `hash` is not NULL, it receives their XXH3. */
typedef struct StoreSpan {
    const void *data;
    int64_t bytes;
    uint64_t *hash;
} StoreSpan;
