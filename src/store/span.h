/* Bytes on their way to a store. */
#pragma once

#include <stdint.h>

/* Consecutive bytes of an object in memory. Where `hash` is not NULL it receives their XXH3. */
typedef struct StoreSpan {
    const void *data;
    int64_t bytes;
    uint64_t *hash;
} StoreSpan;
