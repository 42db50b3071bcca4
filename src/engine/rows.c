/* First fit over an ordered list: there are at most as many ranges as slots. */
#include "engine/rows_internal.h"

#include <assert.h>
#include <string.h>

int64_t row_pool_take(RowPool *pool, int64_t count) {
    int64_t end = 0;
    int at = 0;
    while (at < pool->count && pool->ranges[at].first - end < count) end = pool->ranges[at].first + pool->ranges[at].count, at++;
    if (at == pool->count && pool->rows - end < count) return -1;
    memmove(pool->ranges + at + 1, pool->ranges + at, (size_t)(pool->count++ - at) * sizeof *pool->ranges);
    pool->ranges[at] = (RowRange){end, count};
    return end;
}

void row_pool_give(RowPool *pool, int64_t first) {
    int at = 0;
    while (pool->ranges[at].first != first) assert(at + 1 < pool->count), at++;
    memmove(pool->ranges + at, pool->ranges + at + 1, (size_t)(--pool->count - at) * sizeof *pool->ranges);
}
