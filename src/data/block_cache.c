/* A cache of blocks in one file of fixed size, which any number of threads and processes read and
 * write without a lock.
 *
 * The file holds SETS x WAYS entries, then as many blocks. A block's key chooses its set; it may be
 * in any slot of the set. A new block replaces the oldest of its set. An entry holds a checksum
 * over key and bytes, and is written after its block. A torn block, from a killed writer or from
 * two concurrent writers, therefore counts as absent. Nothing else is recorded, and nothing must be
 * repaired or read when the cache is opened. Called by remote.c. */
#include <time.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/remote_internal.h"

enum { WAYS = 16 };

typedef struct CacheEntry {
    uint64_t object, block;
    uint64_t written; /* nanoseconds since 1970; 0: an empty slot */
    uint64_t checksum;
} CacheEntry;

static const int64_t SET_BYTES = WAYS * (int64_t)(sizeof(CacheEntry) + CACHE_BLOCK_BYTES);

bool block_cache_open(BlockCache *cache, const char *folder, int64_t bytes, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/blocks", folder);
    *cache = (BlockCache){.sets = bytes / SET_BYTES};
    return file_open_shared(&cache->file, path, cache->sets * SET_BYTES, error);
}

void block_cache_close(BlockCache *cache) { file_close(&cache->file); }

static int64_t set_of(const BlockCache *cache, uint64_t object, int64_t block) {
    const uint64_t key[] = {object, (uint64_t)block};
    return (int64_t)(hash_bytes(key, sizeof key) % (uint64_t)cache->sets);
}

static int64_t entry_offset(int64_t set, int way) { return (set * WAYS + way) * (int64_t)sizeof(CacheEntry); }

static int64_t data_offset(const BlockCache *cache, int64_t set, int way) {
    return entry_offset(cache->sets, 0) + (set * WAYS + way) * CACHE_BLOCK_BYTES;
}

static uint64_t checksum_of(uint64_t object, int64_t block, const void *data, int64_t size) {
    const uint64_t parts[] = {object, (uint64_t)block, hash_bytes(data, (size_t)size)};
    return hash_bytes(parts, sizeof parts);
}

/* Reads the entries of the block's set; returns its way, or -1. */
static int find_block(const BlockCache *cache, uint64_t object, int64_t block, CacheEntry entries[WAYS]) {
    Error ignored;
    if (!file_read_at(&cache->file, entries, WAYS * (int64_t)sizeof *entries, entry_offset(set_of(cache, object, block), 0), &ignored))
        return -1;
    for (int way = 0; way < WAYS; way++)
        if (entries[way].written && entries[way].object == object && entries[way].block == (uint64_t)block) return way;
    return -1;
}

bool block_cache_has(const BlockCache *cache, uint64_t object, int64_t block) {
    CacheEntry entries[WAYS];
    return find_block(cache, object, block, entries) >= 0;
}

bool block_cache_get(const BlockCache *cache, uint64_t object, int64_t block, void *data, int64_t size) {
    CacheEntry entries[WAYS];
    Error ignored;
    int way = find_block(cache, object, block, entries);
    return way >= 0 && file_read_at(&cache->file, data, size, data_offset(cache, set_of(cache, object, block), way), &ignored) &&
           entries[way].checksum == checksum_of(object, block, data, size);
}

bool block_cache_put(const BlockCache *cache, uint64_t object, int64_t block, const void *data, int64_t size, Error *error) {
    CacheEntry entries[WAYS] = {0};
    struct timespec now;
    int64_t set = set_of(cache, object, block);
    int way = find_block(cache, object, block, entries);
    if (way < 0) way = 0;
    else entries[way].written = 0;
    for (int i = 0; i < WAYS; i++)
        if (entries[i].written < entries[way].written) way = i;
    clock_gettime(CLOCK_REALTIME, &now);
    CacheEntry entry = {.object = object,
        .block = (uint64_t)block,
        .written = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec,
        .checksum = checksum_of(object, block, data, size)};
    return file_write_at(&cache->file, data, size, data_offset(cache, set, way), error) &&
           file_write_at(&cache->file, &entry, sizeof entry, entry_offset(set, way), error);
}
