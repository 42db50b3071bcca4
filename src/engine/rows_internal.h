/* The rows of a cache, reserved in intervals: first fit. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct RowRange { int64_t first, count; } RowRange;
/* The reserved ranges, in order. The owner provides `ranges`, with room for the most ranges at once. */
typedef struct RowPool {
    int64_t rows;
    RowRange *ranges;
    int count;
} RowPool;

/* Reserves `count` consecutive rows; returns the first, or -1 if no gap is long enough. */
int64_t row_pool_take(RowPool *pool, int64_t count);
/* Makes the range that begins at `first` at least `count` rows long, if the rows after it are free. */
bool row_pool_extend(RowPool *pool, int64_t first, int64_t count);
/* Frees the range that begins at `first`. */
void row_pool_give(RowPool *pool, int64_t first);
