/* First fit over an ordered list. */
#include "engine/rows_internal.h"

#include <assert.h>
#include <string.h>

#include "base/math.h"

int64_t row_pool_take(RowPool *pool, int64_t count) {
    int64_t end = 0;
    int at = 0;
    while (at < pool->count && pool->ranges[at].first - end < count) end = pool->ranges[at].first + pool->ranges[at].count, at++;
    if (at == pool->count && pool->rows - end < count) return -1;
    memmove(pool->ranges + at + 1, pool->ranges + at, (size_t)(pool->count++ - at) * sizeof *pool->ranges);
    pool->ranges[at] = (RowRange){end, count};
    return end;
}

static int find_range(const RowPool *pool, int64_t first) {
    int at = 0;
    while (pool->ranges[at].first != first) assert(at + 1 < pool->count), at++;
    return at;
}

bool row_pool_extend(RowPool *pool, int64_t first, int64_t count) {
    int at = find_range(pool, first);
    int64_t end = at + 1 < pool->count ? pool->ranges[at + 1].first : pool->rows;
    if (end - first < count) return false;
    pool->ranges[at].count = int_max(pool->ranges[at].count, count);
    return true;
}

void row_pool_give(RowPool *pool, int64_t first) {
    int at = find_range(pool, first);
    memmove(pool->ranges + at, pool->ranges + at + 1, (size_t)(--pool->count - at) * sizeof *pool->ranges);
}
