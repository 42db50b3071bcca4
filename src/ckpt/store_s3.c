/* Stores in a bucket of an S3 server. Objects over a part's size are uploaded in parts by several threads, straight from
 * the caller's memory; the server joins them when all are there, so an upload that breaks off leaves nothing under the
 * object's name. A Store owns its connection to the bucket. Called through store.c. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/memory.h"
#include "ckpt/s3.h"
#include "ckpt/store_internal.h"

enum {
    CONNECTIONS = 8,
    MOST_PARTS = 10000, /* of one object, by S3's rules */
};
static const int64_t PART_BYTES = PIECE_BYTES;
static const int64_t MOST_COPIED = 5LL << 30; /* by one request, by S3's rules */
static const int64_t COPY_PART_BYTES = 1LL << 30;

typedef struct S3Store {
    Store store; /* first: a Store * of this kind is a S3Store * */
    S3 *s3;
    char *bucket, *prefix; /* "" or "a/b/" */
} S3Store;

static S3Store *of(Store *store) { return (S3Store *)store; }

static char *key_of(Store *store, const char *name) { return memory_format("%s%s", of(store)->prefix, name); }

/* Sends a request about the object `name`; fills in key and path. */
static bool send(Store *store, const char *name, S3Request request, S3Reply *reply, bool *absent, Error *error) {
    char *key = key_of(store, name), *path = store_path(store, name);
    request.key = key;
    request.path = path;
    bool good = s3_send(of(store)->s3, &request, reply, absent, error);
    free(path);
    free(key);
    return good;
}

/* The same where only success matters. */
static bool tell(Store *store, const char *name, S3Request request, Error *error) {
    S3Reply reply;
    bool absent, good = send(store, name, request, &reply, strcmp(request.method, "DELETE") == 0 ? &absent : NULL, error);
    if (good) free(reply.text);
    return good;
}

/* -- Uploads in parts --------------------------------------------------------------------------------------------- */

typedef struct Upload {
    Store *store;
    const char *name;
    char *id; /* encoded for a query */
    int64_t bytes, part_bytes;
    int parts;
    char (*etags)[128];
} Upload;

static bool upload_begin(Upload *upload, Error *error) {
    S3Reply reply;
    if (!send(upload->store, upload->name, (S3Request){.method = "POST", .query = "uploads="}, &reply, NULL, error)) return false;
    const char *at = reply.text;
    char *id = s3_next_tag(&at, "UploadId");
    upload->id = id ? s3_encode(id, false) : NULL;
    upload->etags = memory_allocate((size_t)upload->parts * sizeof *upload->etags);
    free(id);
    free(reply.text);
    return upload->id || error_set(error, ERROR_CHECKPOINT, "the server gave no UploadId for %s", upload->name);
}

/* Sends one part: of the spans, or, without any, of the object that `copied` names. */
static bool upload_part(Upload *upload, int part, const StoreSpan *spans, size_t count, const char *copied, Error *error) {
    int64_t begin = part * upload->part_bytes, left = upload->bytes - begin;
    int64_t bytes = left < upload->part_bytes ? left : upload->part_bytes;
    char *query = memory_format("partNumber=%d&uploadId=%s", part + 1, upload->id);
    char *range = memory_format("x-amz-copy-source-range: bytes=%lld-%lld", (long long)begin, (long long)(begin + bytes - 1));
    S3Request request = {.method = "PUT", .query = query};
    if (copied) request.headers[0] = copied, request.headers[1] = range;
    else request.body = (S3Body){.spans = spans, .count = count, .offset = begin, .bytes = bytes};
    S3Reply reply;
    bool good = send(upload->store, upload->name, request, &reply, NULL, error);
    if (good) {
        const char *at = reply.text;
        char *etag = copied ? s3_next_tag(&at, "ETag") : NULL;
        snprintf(upload->etags[part], sizeof upload->etags[part], "%s", etag ? etag : reply.etag);
        free(etag);
        free(reply.text);
    }
    free(range);
    free(query);
    return good;
}

static bool upload_parts(Upload *upload, const StoreSpan *spans, size_t count, const char *copied, Error *error) {
    bool good = true;
#pragma omp parallel for schedule(dynamic) num_threads(CONNECTIONS)
    for (int i = 0; i < upload->parts; i++) {
        bool going;
#pragma omp atomic read
        going = good;
        Error own = {0};
        if (going && !upload_part(upload, i, spans, count, copied, &own)) {
#pragma omp critical(store_s3_upload_error)
            {
                *error = own;
#pragma omp atomic write
                good = false;
            }
        }
    }
    return good;
}

static bool upload_end(Upload *upload, Error *error) {
    char *query = memory_format("uploadId=%s", upload->id), *list = NULL;
    size_t length = 0;
    FILE *text = open_memstream(&list, &length);
    if (!text) return free(query), error_set(error, ERROR_MEMORY, "no memory for a list of parts");
    fprintf(text, "<CompleteMultipartUpload>");
    for (int i = 0; i < upload->parts; i++)
        fprintf(text, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", i + 1, upload->etags[i]);
    fprintf(text, "</CompleteMultipartUpload>");
    fclose(text);
    StoreSpan body = {.data = list, .bytes = (int64_t)length};
    bool good = tell(upload->store, upload->name,
        (S3Request){.method = "POST",
            .query = query,
            .headers = {"Content-Type: application/xml"},
            .body = {.spans = &body, .count = 1, .bytes = body.bytes}},
        error);
    free(list);
    free(query);
    return good;
}

static void upload_abort(Upload *upload) {
    Error ignored = {0};
    char *query = memory_format("uploadId=%s", upload->id);
    tell(upload->store, upload->name, (S3Request){.method = "DELETE", .query = query}, &ignored);
    free(query);
}

/* Uploads the spans, or copies an object on the server. */
static bool upload_run(Upload *upload, const StoreSpan *spans, size_t count, const char *copied, Error *error) {
    upload->parts = (int)((upload->bytes + upload->part_bytes - 1) / upload->part_bytes);
    bool good = upload_begin(upload, error);
    if (good) {
        good = upload_parts(upload, spans, count, copied, error) && upload_end(upload, error);
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

static bool put(Store *store, const char *name, const StoreSpan *spans, size_t count, Error *error) {
    int64_t bytes = spans_hash(spans, count), part_bytes = PART_BYTES;
    while (bytes > part_bytes * MOST_PARTS) part_bytes *= 2;
    if (bytes > part_bytes)
        return upload_run(&(Upload){.store = store, .name = name, .bytes = bytes, .part_bytes = part_bytes}, spans, count, NULL, error);
    return tell(store, name, (S3Request){.method = "PUT", .body = {.spans = spans, .count = count, .bytes = bytes}}, error);
}

static bool object_open(Store *store, StoreObject *object, Error *error) {
    S3Reply reply;
    if (!send(store, object->name, (S3Request){.method = "HEAD"}, &reply, NULL, error)) return false;
    free(reply.text);
    object->bytes = reply.length;
    return reply.length >= 0 || error_set(error, ERROR_CHECKPOINT, "the server does not tell the size of %s", object->name);
}

static bool object_read(Store *store, const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    if (bytes == 0) return true;
    if (offset + bytes > object->bytes)
        return error_set(error, ERROR_CHECKPOINT, "%s/%s is truncated: it ends at byte %lld, but %lld are needed", store->where,
            object->name, (long long)object->bytes, (long long)(offset + bytes));
    char *range = memory_format("Range: bytes=%lld-%lld", (long long)offset, (long long)(offset + bytes - 1));
    bool good = tell(store, object->name, (S3Request){.method = "GET", .headers = {range}, .target = data, .target_bytes = bytes}, error);
    free(range);
    return good;
}

static bool link_object(Store *store, const char *from, const char *to, Error *error) {
    StoreObject object = {.name = (char *)from};
    if (!object_open(store, &object, error)) return false;
    char *key = key_of(store, from), *encoded = s3_encode(key, true);
    char *source = memory_format("x-amz-copy-source: /%s/%s", of(store)->bucket, encoded);
    bool good;
    if (object.bytes > MOST_COPIED)
        good =
            upload_run(&(Upload){.store = store, .name = to, .bytes = object.bytes, .part_bytes = COPY_PART_BYTES}, NULL, 0, source, error);
    else good = tell(store, to, (S3Request){.method = "PUT", .headers = {source}}, error);
    free(source);
    free(encoded);
    free(key);
    return good;
}

/* -- Listings ----------------------------------------------------------------------------------------------------- */

/* Appends the names below `prefix` that one answer has under <outer><inner>. */
static void names_append(FileList *listing, const char *text, const char *outer, const char *inner, const char *prefix) {
    char *block;
    size_t skipped = strlen(prefix);
    while ((block = s3_next_tag(&text, outer))) {
        const char *at = block;
        char *key = s3_next_tag(&at, inner);
        if (key && strncmp(key, prefix, skipped) == 0 && key[skipped] != '\0') {
            size_t length = strlen(key + skipped);
            bool folder = key[skipped + length - 1] == '/';
            char *name = memory_format("%.*s", (int)(length - folder), key + skipped);
            file_list_add(listing, name, folder ? FILE_FOLDER : FILE_REGULAR);
        }
        free(key);
        free(block);
    }
}

/* All names below a folder: its direct entries, or, with `deep`, every object. */
static bool keys_list(Store *store, const char *folder, bool deep, FileList *listing, Error *error) {
    char *prefix = memory_format("%s%s/", of(store)->prefix, folder), *encoded = s3_encode(prefix, false);
    char *path = store_path(store, folder), *token = memory_copy_string("");
    bool good = true;
    while (good && token) {
        char *query = memory_format("%s%s%s%slist-type=2&prefix=%s", token[0] ? "continuation-token=" : "", token, token[0] ? "&" : "",
            deep ? "" : "delimiter=%2F&", encoded);
        S3Reply reply;
        free(token);
        token = NULL;
        good = s3_send(of(store)->s3, &(S3Request){.method = "GET", .key = "", .query = query, .path = path}, &reply, NULL, error);
        if (good) {
            const char *text = reply.text ? reply.text : "", *at = text;
            names_append(listing, text, "Contents", "Key", prefix);
            names_append(listing, text, "CommonPrefixes", "Prefix", prefix);
            char *next = s3_next_tag(&at, "NextContinuationToken");
            token = next ? s3_encode(next, false) : NULL;
            free(next);
            free(reply.text);
        }
        free(query);
    }
    free(token);
    free(path);
    free(encoded);
    free(prefix);
    return good;
}

static bool list(Store *store, const char *folder, FileList *listing, Error *error) {
    return keys_list(store, folder, false, listing, error);
}

static bool remove_all(Store *store, const char *name, Error *error) {
    FileList listing = {0};
    bool good = keys_list(store, name, true, &listing, error);
    for (size_t i = 0; i < listing.count && good; i++) {
        char *object = memory_format("%s/%s", name, listing.entries[i].name);
        good = tell(store, object, (S3Request){.method = "DELETE"}, error);
        free(object);
    }
    if (good && listing.count == 0) good = tell(store, name, (S3Request){.method = "DELETE"}, error);
    file_list_free(&listing);
    return good;
}

/* One listing of uploads is enough: what it leaves out is found by the next save. */
static bool clean(Store *store, const char *folder, const char *except, Error *error) {
    char *prefix = memory_format("%s%s/", of(store)->prefix, folder), *encoded = s3_encode(prefix, false);
    char *query = memory_format("prefix=%s&uploads=", encoded), *path = store_path(store, folder), *block;
    S3Reply reply;
    bool good = s3_send(of(store)->s3, &(S3Request){.method = "GET", .key = "", .query = query, .path = path}, &reply, NULL, error);
    const char *at = good ? reply.text : NULL;
    while ((block = s3_next_tag(&at, "Upload"))) {
        const char *key_at = block, *id_at = block;
        char *key = s3_next_tag(&key_at, "Key"), *id = s3_next_tag(&id_at, "UploadId");
        size_t skipped = strlen(of(store)->prefix);
        if (key && id && strncmp(key, prefix, strlen(prefix)) == 0 && !strstr(key, except)) {
            Upload upload = {.store = store, .name = key + skipped, .id = s3_encode(id, false)};
            upload_abort(&upload);
            free(upload.id);
        }
        free(id);
        free(key);
        free(block);
    }
    if (good) free(reply.text);
    free(path);
    free(query);
    free(encoded);
    free(prefix);
    return good;
}

/* -- Opening ------------------------------------------------------------------------------------------------------ */

static void close_store(Store *store) {
    s3_close(of(store)->s3);
    free(of(store)->bucket);
    free(of(store)->prefix);
}

static const StoreKind s3_kind = {
    .block_bytes = PIECE_BYTES,
    .parallelism = CONNECTIONS,
    .put = put,
    .object_open = object_open,
    .object_read = object_read,
    .list = list,
    .link = link_object,
    .remove = remove_all,
    .clean = clean,
    .close = close_store,
};

Store *store_s3_open(const char *where, Error *error) {
    const char *bucket = where + strlen("s3://");
    size_t length = strcspn(bucket, "/"), end = strlen(where);
    const char *prefix = bucket + length + (bucket[length] == '/');
    while (end > 0 && where[end - 1] == '/') end--;
    char *name = memory_format("%.*s", (int)length, bucket);
    S3 *s3 = s3_open(name, error);
    if (!s3) {
        free(name);
        error_context(error, "a store in a bucket");
        return NULL;
    }
    S3Store *store = memory_allocate(sizeof *store);
    *store = (S3Store){.store = {.kind = &s3_kind, .where = memory_format("%.*s", (int)end, where)}, .s3 = s3, .bucket = name};
    int prefix_length = prefix < where + end ? (int)(where + end - prefix) : 0;
    store->prefix = memory_format("%.*s%s", prefix_length, prefix, prefix_length > 0 ? "/" : "");
    return &store->store;
}
