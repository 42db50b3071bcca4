/* Stores in a bucket of an S3 server. Objects over PART_BYTES are multipart uploads by several
 * threads, directly from the caller's memory. The server joins the parts when all are there, so an
 * interrupted upload leaves nothing under the object's name. A Store owns its connection to the
 * bucket. Called through store.c. */
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

enum {
    CONNECTIONS = 8,
    MOST_PARTS = 10000, /* per object, by S3's rules */
};
static const int64_t PART_BYTES = CHUNK_BYTES;
static const int64_t MOST_COPIED = 5LL << 30; /* per request, by S3's rules */
static const int64_t COPY_PART_BYTES = 1LL << 30;

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

/* -- Multipart uploads -------------------------------------------------------------------------------------------- */

/* An object that is uploaded from spans, or copied on the server. */
typedef struct Upload {
    Store *store;
    const char *path;
    int64_t bytes, part_bytes;
    const StoreSpan *spans;
    size_t count;
    const char *source; /* BUCKET/KEY of the object to copy, encoded; NULL: the spans */
    char *id;           /* encoded for a query */
    int parts;
    char (*etags)[128];
} Upload;

static bool upload_begin(Upload *upload, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    S3Request request = {.method = "POST", .query = memory_copy_string("uploads=")};
    if (!send_request(upload->store, upload->path, request, &reply, NULL, error)) return false;
    const char *at = reply.text;
    SCOPED_FREE char *id = s3_next_tag(&at, "UploadId");
    upload->id = id ? s3_encode(id, false) : NULL;
    upload->etags = memory_allocate((size_t)upload->parts * sizeof *upload->etags);
    return upload->id || error_set(error, ERROR_CHECKPOINT, "the server returned no UploadId for %s", upload->path);
}

static char *copy_header(const char *source) { return memory_format("x-amz-copy-source: /%s", source); }

static bool upload_part(Upload *upload, int part, Error *error) {
    int64_t begin = part * upload->part_bytes, bytes = int_min(upload->bytes - begin, upload->part_bytes);
    S3Request request = {.method = "PUT", .query = memory_format("partNumber=%d&uploadId=%s", part + 1, upload->id)};
    if (upload->source) {
        request.headers[0] = copy_header(upload->source);
        request.headers[1] = memory_format("x-amz-copy-source-range: bytes=%lld-%lld", (long long)begin, (long long)(begin + bytes - 1));
    } else {
        request.body = (S3Body){.spans = upload->spans, .count = upload->count, .offset = begin, .bytes = bytes};
    }
    SCOPED(s3_reply_free) S3Reply reply = {0};
    if (!send_request(upload->store, upload->path, request, &reply, NULL, error)) return false;
    const char *at = reply.text;
    SCOPED_FREE char *etag = upload->source ? s3_next_tag(&at, "ETag") : NULL;
    snprintf(upload->etags[part], sizeof upload->etags[part], "%s", etag ? etag : reply.etag);
    return true;
}

static bool upload_parts(Upload *upload, Error *error) {
    bool good = true;
#pragma omp parallel for schedule(dynamic) num_threads(CONNECTIONS)
    for (int i = 0; i < upload->parts; i++) {
        Error failure = {0};
        if (loop_going(&good) && !upload_part(upload, i, &failure)) loop_fail(&good, &failure, error);
    }
    return good;
}

static bool upload_end(Upload *upload, Error *error) {
    SCOPED_FREE char *list = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&list, &length);
    if (!text) return error_set(error, ERROR_MEMORY, "out of memory for the list of parts");
    fprintf(text, "<CompleteMultipartUpload>");
    for (int i = 0; i < upload->parts; i++)
        fprintf(text, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i + 1, upload->etags[i]);
    fprintf(text, "</CompleteMultipartUpload>");
    fclose(text);
    StoreSpan body = {.data = list, .bytes = (int64_t)length};
    S3Request request = {.method = "POST",
        .query = memory_format("uploadId=%s", upload->id),
        .headers = {memory_copy_string("Content-Type: application/xml")},
        .body = {.spans = &body, .count = 1, .bytes = body.bytes}};
    return send_simple(upload->store, upload->path, request, error);
}

static void upload_abort(Upload *upload) {
    Error ignored = {0};
    S3Request request = {.method = "DELETE", .query = memory_format("uploadId=%s", upload->id)};
    send_simple(upload->store, upload->path, request, &ignored);
}

static bool upload_run(Upload *upload, Error *error) {
    upload->parts = (int)divide_up(upload->bytes, upload->part_bytes);
    bool good = upload_begin(upload, error);
    if (good) {
        good = upload_parts(upload, error) && upload_end(upload, error);
        if (!good) upload_abort(upload);
    }
    free(upload->etags);
    free(upload->id);
    return good;
}

/* -- Objects ------------------------------------------------------------------------------------------------------ */

static int64_t spans_hash(const StoreSpan *spans, size_t count) {
    int64_t total = 0;
#pragma omp parallel for schedule(dynamic) reduction(+ : total)
    for (size_t i = 0; i < count; i++) {
        total += spans[i].bytes;
        if (spans[i].hash) *spans[i].hash = XXH3_64bits(spans[i].data, (size_t)spans[i].bytes);
    }
    return total;
}

static bool put_object(Store *store, const char *path, const StoreSpan *spans, size_t count, Error *error) {
    int64_t bytes = spans_hash(spans, count), part_bytes = PART_BYTES;
    while (bytes > part_bytes * MOST_PARTS) part_bytes *= 2;
    Upload upload = {.store = store, .path = path, .bytes = bytes, .part_bytes = part_bytes, .spans = spans, .count = count};
    if (bytes > part_bytes) return upload_run(&upload, error);
    return send_simple(store, path, (S3Request){.method = "PUT", .body = {.spans = spans, .count = count, .bytes = bytes}}, error);
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
    if (!object_size(store, from, &bytes, error)) return false;
    SCOPED_FREE char *source = s3_encode(from + strlen(S3_SCHEME), true);
    Upload upload = {.store = store, .path = to, .bytes = bytes, .part_bytes = COPY_PART_BYTES, .source = source};
    if (bytes > MOST_COPIED) return upload_run(&upload, error);
    return send_simple(store, to, (S3Request){.method = "PUT", .headers = {copy_header(source)}}, error);
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

/* Aborts the upload that an <Upload> element of a listing describes, if its object lies in the folder. */
static void stale_upload_abort(Store *store, const char *folder, const char *except, const char *element) {
    const size_t length = strlen(folder);
    const char *key_at = element, *id_at = element;
    SCOPED_FREE char *key = s3_next_tag(&key_at, "Key"), *id = s3_next_tag(&id_at, "UploadId");
    StorePath path = store_format("%.*s%s", (int)(key_of(store, folder) - folder), folder, key ? key : "");
    if (id && strncmp(path.text, folder, length) == 0 && path.text[length] == '/' && !strstr(path.text + length, except)) {
        Upload upload = {.store = store, .path = path.text, .id = s3_encode(id, false)};
        upload_abort(&upload);
        free(upload.id);
    }
}

/* One listing of uploads is enough: the next save finds the uploads that it omits. */
static bool clean(Store *store, const char *folder, const char *except, Error *error) {
    SCOPED_FREE char *encoded = s3_encode(store_format("%s/", key_of(store, folder)).text, false);
    SCOPED(s3_reply_free) S3Reply reply = {0};
    S3Request request = {.method = "GET", .key = "", .query = memory_format("prefix=%s&uploads=", encoded), .path = folder};
    bool good = s3_send(s3_of(store), request, &reply, NULL, error);
    const char *at = reply.text;
    for (char *element; (element = s3_next_tag(&at, "Upload")); free(element)) stale_upload_abort(store, folder, except, element);
    return good;
}

/* -- Opening ------------------------------------------------------------------------------------------------------ */

static void close_store(Store *store) { s3_close(s3_of(store)); }

static const StoreKind s3_kind = {
    .block_bytes = CHUNK_BYTES,
    .parallelism = CONNECTIONS,
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
