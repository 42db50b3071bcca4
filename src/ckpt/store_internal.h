/* Stores hold checkpoints. A store is a folder (local disk or NFS) or a prefix of an S3 bucket,
 * with one set of functions. Objects have names with slashes, relative to the store, and are
 * written atomically: an object that store_put acknowledged is on disk, or in the bucket, and an
 * interrupted one has no name. All functions are thread-safe. Failures are ERROR_CHECKPOINT with
 * the full name and the reason. The failure is FINDING_ABSENT (base/error.h) only if the file
 * system or the server says that an object does not exist.
 *
 * S3 stores use store/s3.h, which describes the sources of their credentials. */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "store/span.h"

/* The name of an object or folder. A longer name is cut to PATH_MAX characters, which every store
 * refuses. */
typedef struct StorePath { char text[PATH_MAX + 1]; } StorePath;
StorePath store_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

typedef struct Store Store;

/* `where` is a folder, or s3://BUCKET or s3://BUCKET/PREFIX. Sends nothing yet. */
Store *store_open(const char *where, Error *error);
void store_close(Store *store);
static inline void store_release(Store **store) { store_close(*store); } /* for SCOPED */
/* Makes the folder of a store on a file system, with parents. The other functions never do, so that
 * a folder that is moved away during writing is not created again. */
bool store_make(Store *store, Error *error);
/* Returns "WHERE/NAME", for messages. */
StorePath store_path(const Store *store, const char *name);

/* Creates or replaces an object from its spans, in order; several threads write or upload. */
bool store_put(Store *store, const char *name, const StoreSpan *spans, size_t count, Error *error);

/* Creates a small object that must be absent. *exists: it exists, or another process creates it. If
 * two processes create it at once in a bucket whose server lacks If-None-Match, both may
 * succeed. */
bool store_create(Store *store, const char *name, const StoreSpan *span, bool *exists, Error *error);

/* An object opened for reading. */
typedef struct StoreObject {
    Store *store;
    StorePath path; /* "WHERE/NAME" */
    int64_t bytes;
    File file; /* for a store on a file system */
} StoreObject;
bool store_object_open(Store *store, const char *name, StoreObject *object, Error *error);
/* Reads exactly `bytes` from `offset`. Requests of store_block_bytes are efficient. */
bool store_object_read(const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error);
void store_object_close(StoreObject *object);
int64_t store_block_bytes(const Store *store);
/* Returns the number of threads that makes reading fast. */
int store_parallelism(const Store *store);
/* Reads a whole object of at most `limit` bytes and adds a NUL; the caller frees it. NULL on
 * failure. */
char *store_get(Store *store, const char *name, int64_t limit, int64_t *length, Error *error);

/* Lists the entries of a folder, for file_list_free. An absent folder is empty. Returns false if
 * the entries cannot be read now. */
bool store_list(Store *store, const char *folder, FileList *list, Error *error);

/* Makes `to` another name of the object `from` (hard link) or a copy made by the server; an
 * existing `to` is kept. */
bool store_link(Store *store, const char *from, const char *to, Error *error);
/* Removes an object or a folder with all its contents; it may be absent. */
bool store_remove(Store *store, const char *name, Error *error);
/* Frees the space of interrupted uploads in a folder, except objects whose name contains
 * `except`. */
bool store_clean(Store *store, const char *folder, const char *except, Error *error);

/* Returns whether folders can be renamed. If so, a folder becomes complete by its name, else by the
 * object that is put last. */
bool store_renames(const Store *store);
/* Renames a folder. An existing `to` is renamed to `aside`, or restored after a failure. Without
 * `aside` (NULL), an existing `to` is kept, and the call fails. Synced. */
bool store_rename(Store *store, const char *from, const char *to, const char *aside, Error *error);
/* Appends ", 1.50 GiB free" if the store knows the free space of its disk. */
void store_append_free(const Store *store, char *text, size_t size);
