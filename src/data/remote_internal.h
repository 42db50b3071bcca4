/* Shards in a bucket: a bounded cache of blocks on local disk (block_cache.c), which is filled ahead of the loader
 * (remote.c), and the folder of what is copied whole (remote_mirror.c). */
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

/* FOLDER/blocks, of at most `bytes`; made with all its space where it is absent or has another size. */
bool block_cache_open(BlockCache *cache, const char *folder, int64_t bytes, Error *error);
void block_cache_close(BlockCache *cache); /* also of a zeroed one */
/* Whether the block seems to be there. */
bool block_cache_has(const BlockCache *cache, uint64_t object, int64_t block);
/* False: it is not there, or not as it was put; then it is to be fetched. `size` is that of the block. */
bool block_cache_get(const BlockCache *cache, uint64_t object, int64_t block, void *data, int64_t size);
/* Takes the place of the oldest block of its set. */
bool block_cache_put(const BlockCache *cache, uint64_t object, int64_t block, const void *data, int64_t size, Error *error);

/* -- remote.c -------------------------------------------------------------------------------------------------------- */

typedef struct Remote Remote;             /* a mirrored source: its bucket, cache and threads */
typedef struct RemoteObject RemoteObject; /* an object of it; both belong to the Remote */
typedef uint64_t UnalignedU64 __attribute__((aligned(1)));

/* The source that a folder of remote_mirror describes. *remote is NULL where the folder is none. ERROR_DATA. */
bool remote_open(Remote **remote, const char *folder, Error *error);
void remote_close(Remote *remote); /* NULL is allowed; requests that are under way are broken off */
/* NULL: the source has no object of that name. */
RemoteObject *remote_find(Remote *remote, const char *name);
const char *remote_path(const RemoteObject *object); /* "s3://BUCKET/PREFIX/NAME" */
int64_t remote_bytes(const RemoteObject *object);
uint64_t remote_identity(const RemoteObject *object); /* of its path, size and ETag */
/* Blocks that do not have these checksums are fetched again, and not kept. The array outlives the last read. */
void remote_expect(RemoteObject *object, const UnalignedU64 *sums);
/* A server that does not answer is waited for, as the source's patience says. ERROR_DATA. */
bool remote_read(RemoteObject *object, void *data, int64_t bytes, int64_t offset, Error *error);
/* While it is true, reads that would wait fail: for a thread that is to end. */
void remote_interrupt(Remote *remote, bool interrupted);
/* Has them fetched in the order of these calls, and returns at once. */
void remote_prefetch(RemoteObject *object, int64_t offset, int64_t bytes);
/* How many sequences of so many bytes one process may have fetched ahead without pushing out what others fetched. */
int64_t remote_ahead(const Remote *remote, int64_t bytes);

/* -- remote_mirror.c ------------------------------------------------------------------------------------------------- */

#define REMOTE_RECORD "remote.json" /* what remote_mirror leaves for remote_open, once all else is there */
