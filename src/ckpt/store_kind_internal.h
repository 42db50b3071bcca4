/* The interface that the two kinds of stores implement. Not for other modules. */
#pragma once

#include "ckpt/ckpt_internal.h"
#include "ckpt/store_internal.h"

/* Like the functions of store_internal.h, but with paths ("WHERE/NAME") instead of names; NULL: the
 * kind has nothing to do. */
typedef struct StoreKind {
    int64_t block_bytes;
    int parallelism; /* 0: one per core */
    bool (*make)(Store *store, Error *error);
    bool (*put)(Store *store, const char *path, const StoreSpan *spans, size_t count, Error *error);
    bool (*create)(Store *store, const char *path, const StoreSpan *span, bool *exists, Error *error);
    bool (*object_open)(StoreObject *object, Error *error);
    bool (*object_read)(const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error);
    bool (*list)(Store *store, const char *folder, FileList *list, Error *error);
    bool (*link)(Store *store, const char *from, const char *to, Error *error);
    bool (*remove)(Store *store, const char *path, Error *error);
    bool (*clean)(Store *store, const char *folder, const char *except, Error *error);
    bool (*rename)(Store *store, const char *from, const char *to, const char *aside, Error *error);
    void (*close)(Store *store);
} StoreKind;

struct Store {
    const StoreKind *kind;
    char *where; /* without a final slash */
};

/* Fills the kind of an opened store (store_files.c, store_s3.c). */
Store *store_files_open(const char *where, Error *error);
Store *store_s3_open(const char *where, Error *error);
