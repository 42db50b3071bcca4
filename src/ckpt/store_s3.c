/* Stores in a bucket of an S3 server. Large objects are multipart uploads (store/s3_put.c). A Store
 * owns its connection to the bucket. Called through store.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "ckpt/store_kind_internal.h"
#include "store/s3.h"

typedef struct S3Store {
    Store store; /* first member: a Store * of this kind is an S3Store * */
    S3 *s3;
    size_t bucket_length; /* of "s3://BUCKET/", which precedes the key in every path */
} S3Store;

static S3 *s3_of(const Store *store) { return ((const S3Store *)store)->s3; }

/* Returns the key of an object in the bucket, a pointer into its path. */
static const char *key_of(const Store *store, const char *path) { return path + ((const S3Store *)store)->bucket_length; }

/* Sends a request about the object of this path, and fills in its key and path. */
static bool send_request(Store *store, const char *path, S3Request request, S3Reply *reply, bool *absent, Error *error) {
    request.key = key_of(store, path);
    request.path = path;
    return s3_send(s3_of(store), request, reply, absent, error);
}

/* Sends a request whose answer does not matter beyond success. Deleting an absent object
 * succeeds. */
static bool send_simple(Store *store, const char *path, S3Request request, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    bool absent;
    return send_request(store, path, request, &reply, strcmp(request.method, "DELETE") == 0 ? &absent : NULL, error);
}

/* -- Objects ------------------------------------------------------------------------------------------------------ */

static bool put_object(Store *store, const char *path, const StoreSpan *spans, size_t count, Error *error) {
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < count; i++)
        if (spans[i].hash) *spans[i].hash = XXH3_64bits(spans[i].data, (size_t)spans[i].bytes);
    return s3_put(s3_of(store), key_of(store, path), path, spans, count, error);
}

/* Some servers implement If-None-Match but not for uploads, and answer 501. The object is then sent
 * without it. */
static bool create_object(Store *store, const char *path, const StoreSpan *span, bool *exists, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    S3Request request = {
        .method = "PUT", .headers = {memory_copy_string("If-None-Match: *")}, .body = {.spans = span, .count = 1, .bytes = span->bytes}};
    if (send_request(store, path, request, &reply, NULL, error)) return true;
    *exists = reply.status == S3_PRECONDITION_FAILED || reply.status == S3_CONFLICT;
    return reply.status == S3_NOT_IMPLEMENTED && put_object(store, path, span, 1, error);
}

static bool object_size(Store *store, const char *path, int64_t *bytes, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    if (!send_request(store, path, (S3Request){.method = "HEAD"}, &reply, NULL, error)) return false;
    *bytes = reply.length;
    return *bytes >= 0 || error_set(error, ERROR_CHECKPOINT, "the server did not return the size of %s", path);
}

static bool object_open(StoreObject *object, Error *error) { return object_size(object->store, object->path.text, &object->bytes, error); }

static bool object_read(const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    if (bytes == 0) return true;
    if (offset + bytes > object->bytes)
        return error_set(error, ERROR_CHECKPOINT, "%s is truncated: it ends at byte %lld, but byte %lld is needed", object->path.text,
            (long long)object->bytes, (long long)(offset + bytes));
    S3Request request = {.method = "GET",
        .headers = {memory_format("Range: bytes=%lld-%lld", (long long)offset, (long long)(offset + bytes - 1))},
        .target = data,
        .target_bytes = bytes};
    return send_simple(object->store, object->path.text, request, error);
}

static bool link_object(Store *store, const char *from, const char *to, Error *error) {
    int64_t bytes;
    return object_size(store, from, &bytes, error) && s3_copy(s3_of(store), from + strlen(S3_SCHEME), bytes, key_of(store, to), to, error);
}

/* -- Listings ----------------------------------------------------------------------------------------------------- */

/* Lists the names below a folder: its direct entries, or, with `deep`, every object. */
static bool keys_list(Store *store, const char *folder, bool deep, FileList *names, Error *error) {
    SCOPED(s3_listing_free) S3Listing listing = {0};
    StorePath prefix = store_format("%s/", key_of(store, folder));
    if (!s3_list(s3_of(store), prefix.text, deep, folder, &listing, error)) return false;
    for (size_t i = 0; i < listing.count; i++)
        file_list_add(names, memory_copy_string(listing.entries[i].name), listing.entries[i].folder ? FILE_FOLDER : FILE_REGULAR);
    return true;
}

static bool list_objects(Store *store, const char *folder, FileList *listing, Error *error) {
    return keys_list(store, folder, false, listing, error);
}

static bool remove_all(Store *store, const char *path, Error *error) {
    SCOPED(file_list_free) FileList listing = {0};
    if (!keys_list(store, path, true, &listing, error)) return false;
    for (size_t i = 0; i < listing.count; i++) {
        StorePath object = store_format("%s/%s", path, listing.entries[i].name);
        if (!send_simple(store, object.text, (S3Request){.method = "DELETE"}, error)) return false;
    }
    return listing.count > 0 || send_simple(store, path, (S3Request){.method = "DELETE"}, error);
}

static bool clean(Store *store, const char *folder, const char *except, Error *error) {
    return s3_abort_uploads(s3_of(store), key_of(store, folder), except, folder, error);
}

/* -- Opening ------------------------------------------------------------------------------------------------------ */

static void close_store(Store *store) { s3_close(s3_of(store)); }

static const StoreKind s3_kind = {
    .block_bytes = CHUNK_BYTES,
    .parallelism = S3_CONNECTIONS,
    .put = put_object,
    .create = create_object,
    .object_open = object_open,
    .object_read = object_read,
    .list = list_objects,
    .link = link_object,
    .remove = remove_all,
    .clean = clean,
    .close = close_store,
};

Store *store_s3_open(const char *where, Error *error) {
    const char *bucket = where + strlen(S3_SCHEME);
    size_t length = strcspn(bucket, "/"), end = strlen(where);
    while (end > 0 && where[end - 1] == '/') end--;
    S3 *s3 = s3_open(store_format("%.*s", (int)length, bucket).text, error);
    if (!s3) {
        error_context(error, "the store in a bucket");
        return NULL;
    }
    S3Store *store = memory_allocate(sizeof *store);
    *store = (S3Store){.store = {.kind = &s3_kind, .where = memory_format("%.*s", (int)end, where)}, .s3 = s3};
    store->bucket_length = strlen(S3_SCHEME) + length + 1;
    return &store->store;
}
