/* Shards in a bucket: a bounded cache of blocks on local disk (block_cache.c), which is filled
 * ahead of the loader (remote.c), and the folder of files that are copied whole
 * (remote_mirror.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "store/s3.h"

/* -- block_cache.c --------------------------------------------------------------------------------------------------- */

enum { CACHE_BLOCK_BYTES = 16384 }; /* the last block of an object may be shorter */

typedef struct BlockCache {
    File file;
    int64_t sets;
} BlockCache;

/* Opens FOLDER/blocks, of at most `bytes`; creates it at full size if it is absent or has another
 * size. */
bool block_cache_open(BlockCache *cache, const char *folder, int64_t bytes, Error *error);
void block_cache_close(BlockCache *cache); /* also for a zeroed cache */
/* Returns whether the block seems to be present. */
bool block_cache_has(const BlockCache *cache, uint64_t object, int64_t block);
/* Reads a block; `size` is its size. Returns false if it is absent or damaged; the caller then
 * fetches it. */
bool block_cache_get(const BlockCache *cache, uint64_t object, int64_t block, void *data, int64_t size);
/* Stores a block in place of the oldest block of its set. */
bool block_cache_put(const BlockCache *cache, uint64_t object, int64_t block, const void *data, int64_t size, Error *error);

/* -- remote.c -------------------------------------------------------------------------------------------------------- */

typedef struct Remote Remote;             /* a mirrored source: its bucket, cache and threads */
typedef struct RemoteObject RemoteObject; /* an object of the source, owned by the Remote */
typedef uint64_t UnalignedU64 __attribute__((aligned(1)));

/* Opens the source that a folder of remote_mirror describes. *remote is NULL if it is not such a
 * folder. ERROR_DATA. */
bool remote_open(Remote **remote, const char *folder, Error *error);
void remote_close(Remote *remote); /* NULL is allowed; running requests are canceled */
/* Returns NULL if the source has no object with that name. */
RemoteObject *remote_find(Remote *remote, const char *name);
const char *remote_path(const RemoteObject *object); /* "s3://BUCKET/PREFIX/NAME" */
int64_t remote_bytes(const RemoteObject *object);
uint64_t remote_identity(const RemoteObject *object); /* hash of its path, size and ETag */
/* Sets checksums: blocks that do not match are fetched again, and not cached. The array must
 * outlive the last read. */
void remote_expect(RemoteObject *object, const UnalignedU64 *sums);
/* Reads bytes; waits for a server that does not answer, up to the source's patience. ERROR_DATA. */
bool remote_read(RemoteObject *object, void *data, int64_t bytes, int64_t offset, Error *error);
/* Sets whether reads fail instead of waiting, for a thread that must end. */
void remote_interrupt(Remote *remote, bool interrupted);
/* Requests bytes in the order of the calls, and returns at once. */
void remote_prefetch(RemoteObject *object, int64_t offset, int64_t bytes);
/* Returns how many sequences of `bytes` one process may fetch ahead without evicting the blocks
 * that others fetched. */
int64_t remote_ahead(const Remote *remote, int64_t bytes);

/* -- remote_mirror.c ------------------------------------------------------------------------------------------------- */

#define REMOTE_TEXTS "texts" /* in the record: the objects of a source of texts */
#define REMOTE_RECORD "remote.json" /* written by remote_mirror for remote_open, after all other files */
