/* Token shards in object stores: a local folder that fetches them in blocks. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* The local cache for fetched data. Runs and the ranks of a node may share the folder. */
typedef struct RemoteOptions {
    const char *cache; /* a folder */
    int64_t bytes;     /* limit for blocks of tokens; whole indexes and tokenizers are stored in addition */
    double patience;   /* seconds that a read waits for a store that does not answer */
} RemoteOptions;

/* Returns whether a path is s3://BUCKET/PREFIX, with the files of a folder of shards. */
bool remote_is(const char *path);
/* Returns the local folder that remote_mirror makes for a path; shard_set_open reads it. The caller
 * frees. */
char *remote_folder(const char *cache, const char *path);
/* Makes or updates the local folder. If the store does not answer, an existing folder is used, with
 * a warning. ERROR_DATA; ERROR_USAGE without credentials. */
bool remote_mirror(const RemoteOptions *options, const char *path, Error *error);
