/* The chunks of one rank's shard (chunks.c). Not for other modules. */
#pragma once

#include "ckpt/ckpt_internal.h"

/* A chunk is up to CHUNK_BYTES of an interval. Each lies in files[entry.file]: file 0 is the shard that this rank
 * writes, the others are files of an older checkpoint that have it already. */
typedef struct Chunks {
    ManifestInterval *entries; /* their intervals point into the caller's memory */
    size_t count;
    ManifestFile *files;
    size_t file_count; /* at least 1 */
    int64_t shared;    /* bytes of chunks that are not written */
    bool hashed;
} Chunks;

Chunks chunks_cut(const Interval *intervals, size_t count);
void chunks_free(Chunks *chunks);
/* Finds the files of an older checkpoint that hold unchanged chunks, and links them into `folder`. After a failure the
 * chunks must be cut again. */
bool chunks_share(Chunks *chunks, Store *store, const Manifest *older, const char *folder, Error *error);
/* Writes the shard with all other chunks. `shard` is its name in `folder` and is kept. */
bool chunks_write(Chunks *chunks, Store *store, const char *folder, const char *shard, Error *error);
