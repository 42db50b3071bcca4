/* Sources in object stores: token shards, as a local folder that fetches them in blocks, and texts,
 * which are packed into the run. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/error.h"

/* The local cache for fetched data. Runs and the ranks of a node may share the folder. */
typedef struct RemoteOptions {
    const char *cache; /* a folder */
    int64_t bytes;     /* limit for blocks of tokens; whole indexes and tokenizers are stored in addition */
    double patience;   /* seconds that a read waits for a store that does not answer */
} RemoteOptions;

/* Returns whether a path is s3://BUCKET/PREFIX. */
bool remote_is(const char *path);
/* Returns the local folder that remote_mirror makes for a path; shard_set_open reads it. The caller
 * frees. */
char *remote_folder(const char *cache, const char *path);
/* Makes or updates the local folder. If the store does not answer, an existing folder is used, with
 * a warning. ERROR_DATA; ERROR_USAGE without credentials. */
bool remote_mirror(const RemoteOptions *options, const char *path, Error *error);
/* Returns what identifies the texts of a local folder that remote_mirror made: names, sizes and
 * ETags. NULL: ERROR_DATA. */
json_t *remote_identity_of_texts(const char *folder, Error *error);
