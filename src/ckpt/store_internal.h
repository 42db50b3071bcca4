/* Stores: where checkpoints lie. A store is a folder (local disk or NFS) or a prefix of an S3 bucket, behind one set of
 * functions. Objects have names with slashes, relative to the store, and appear whole or not at all: what store_put
 * acknowledged is on disk, or in the bucket, and what was interrupted has no name. Functions may be called from several
 * threads at once. Failures are ERROR_CHECKPOINT with the full name and the reason. Only where the file system or the
 * server says that an object does not exist the failure is FINDING_ABSENT (base/error.h).
 *
 * S3 stores are reached through store/s3.h, which says where their credentials come from. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "store/span.h"

/* The name of an object or folder. A longer one is cut to PATH_MAX characters, which every store refuses. */
typedef struct StorePath { char text[PATH_MAX + 1]; } StorePath;
StorePath store_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef struct Store Store;

/* `where` is a folder, or s3://BUCKET or s3://BUCKET/PREFIX. Nothing is sent yet. */
Store *store_open(const char *where, Error *error);
void store_close(Store *store);
static inline void store_release(Store **store) { store_close(*store); } /* for SCOPED */
/* Makes the folder of a store on a file system, with parents. The other functions never do, so that a folder that is
 * moved away while they write into it is not made again. */
bool store_make(Store *store, Error *error);
/* "WHERE/NAME", for messages. */
StorePath store_path(const Store *store, const char *name);

/* Creates or replaces an object from its spans, in order; several threads write or upload. */
bool store_put(Store *store, const char *name, const StoreSpan *spans, size_t count, Error *error);

/* Creates a small object that must be absent. *exists: it is there, or another process creates it. Where two processes
 * create it at once, both may succeed in a bucket of a server that does not know If-None-Match. */
bool store_create(Store *store, const char *name, const StoreSpan *span, bool *exists, Error *error);

/* An object opened for reading. */
typedef struct StoreObject {
    Store *store;
    StorePath path; /* "WHERE/NAME" */
    int64_t bytes;
    File file; /* of a store on a file system */
} StoreObject;
bool store_object_open(Store *store, const char *name, StoreObject *object, Error *error);
/* Exactly `bytes` from `offset` on. Requests of store_block_bytes are efficient. */
bool store_object_read(const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error);
void store_object_close(StoreObject *object);
int64_t store_block_bytes(const Store *store);
/* How many threads at once make reading fast. */
int store_parallelism(const Store *store);
/* A whole object of at most `limit` bytes with a NUL behind it; the caller frees. NULL on failure. */
char *store_get(Store *store, const char *name, int64_t limit, int64_t *length, Error *error);

/* Lists the entries of a folder, for file_list_free. An absent folder is empty. False: the entries cannot be read
 * now. */
bool store_list(Store *store, const char *folder, FileList *list, Error *error);

/* Makes `to` another name of the object `from` (hard link) or a copy made by the server; an existing `to` stays. */
bool store_link(Store *store, const char *from, const char *to, Error *error);
/* Removes an object or a folder with all that it holds; absence is fine. */
bool store_remove(Store *store, const char *name, Error *error);
/* Frees what uploads that were broken off take in a folder, but for objects whose name contains `except`. */
bool store_clean(Store *store, const char *folder, const char *except, Error *error);

/* Whether folders can be renamed: then a folder becomes complete by its name, else by the object that is put last. */
bool store_renames(const Store *store);
/* Renames a folder, making way for it: what had the name `to` has the name `aside` afterwards, or is back in its place
 * after a failure. Synced. */
bool store_rename(Store *store, const char *from, const char *to, const char *aside, Error *error);
/* Appends ", 1.50 GiB free" where the store knows what its disk has left. */
void store_append_free(const Store *store, char *text, size_t size);
