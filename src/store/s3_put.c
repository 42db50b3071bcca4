/* Objects that are written. The server joins the parts of a multipart upload when all are there. An
 * Upload owns its id and the ETags of its parts, for the time of one call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "store/s3.h"

enum { MOST_PARTS = 10000 /* per object, by S3's rules */ };
static const int64_t PART_BYTES = 16LL << 20;
static const int64_t MOST_COPIED = 5LL << 30; /* per request, by S3's rules */
static const int64_t COPY_PART_BYTES = 1LL << 30;

/* An object that is uploaded from spans, or copied on the server. */
typedef struct Upload {
    S3 *s3;
    const char *key, *path;
    int64_t bytes, part_bytes;
    const StoreSpan *spans;
    size_t count;
    const char *source; /* BUCKET/KEY of the object to copy, encoded; NULL: the spans */
    char *id;           /* encoded for a query */
    int parts;
    char (*etags)[128];
} Upload;

/* Sends a request about the object. Aborting an absent upload succeeds. */
static bool upload_send(const Upload *upload, S3Request request, S3Reply *reply, Error *error) {
    bool absent;
    request.key = upload->key;
    request.path = upload->path;
    return s3_send(upload->s3, request, reply, strcmp(request.method, "DELETE") == 0 ? &absent : NULL, error);
}

/* Sends a request whose answer does not matter beyond success. */
static bool upload_tell(const Upload *upload, S3Request request, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    return upload_send(upload, request, &reply, error);
}

static bool upload_begin(Upload *upload, Error *error) {
    SCOPED(s3_reply_free) S3Reply reply = {0};
    if (!upload_send(upload, (S3Request){.method = "POST", .query = memory_copy_string("uploads=")}, &reply, error)) return false;
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
    if (!upload_send(upload, request, &reply, error)) return false;
    const char *at = reply.text;
    SCOPED_FREE char *etag = upload->source ? s3_next_tag(&at, "ETag") : NULL;
    snprintf(upload->etags[part], sizeof upload->etags[part], "%s", etag ? etag : reply.etag);
    return true;
}

static bool upload_parts(Upload *upload, Error *error) {
    bool good = true;
#pragma omp parallel for schedule(dynamic) num_threads(S3_CONNECTIONS)
    for (int i = 0; i < upload->parts; i++) {
        Error failure = {0};
        if (loop_going(&good) && !upload_part(upload, i, &failure)) loop_fail(&good, &failure, error);
    }
    return good;
}

static bool upload_end(const Upload *upload, Error *error) {
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
    return upload_tell(upload, request, error);
}

static void upload_abort(const Upload *upload) {
    Error ignored = {0};
    upload_tell(upload, (S3Request){.method = "DELETE", .query = memory_format("uploadId=%s", upload->id)}, &ignored);
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

bool s3_put(S3 *s3, const char *key, const char *path, const StoreSpan *spans, size_t count, Error *error) {
    int64_t bytes = 0, part_bytes = PART_BYTES;
    for (size_t i = 0; i < count; i++) bytes += spans[i].bytes;
    while (bytes > part_bytes * MOST_PARTS) part_bytes *= 2;
    Upload upload = {.s3 = s3, .key = key, .path = path, .bytes = bytes, .part_bytes = part_bytes, .spans = spans, .count = count};
    if (bytes > part_bytes) return upload_run(&upload, error);
    return upload_tell(&upload, (S3Request){.method = "PUT", .body = {.spans = spans, .count = count, .bytes = bytes}}, error);
}

bool s3_copy(S3 *s3, const char *source, int64_t bytes, const char *key, const char *path, Error *error) {
    SCOPED_FREE char *encoded = s3_encode(source, true);
    Upload upload = {.s3 = s3, .key = key, .path = path, .bytes = bytes, .part_bytes = COPY_PART_BYTES, .source = encoded};
    if (bytes > MOST_COPIED) return upload_run(&upload, error);
    return upload_tell(&upload, (S3Request){.method = "PUT", .headers = {copy_header(encoded)}}, error);
}

/* Aborts the upload that an <Upload> element of a listing describes, if its object lies in the
 * folder. */
static void abort_stale(S3 *s3, const char *folder, const char *except, const char *path, const char *element) {
    const size_t length = strlen(folder);
    const char *key_at = element, *id_at = element;
    SCOPED_FREE char *key = s3_next_tag(&key_at, "Key"), *id = s3_next_tag(&id_at, "UploadId");
    if (!id || !key || strncmp(key, folder, length) != 0 || key[length] != '/' || (*except && strstr(key + length, except))) return;
    SCOPED_FREE char *encoded = s3_encode(id, false);
    upload_abort(&(Upload){.s3 = s3, .key = key, .path = path, .id = encoded});
}

bool s3_abort_uploads(S3 *s3, const char *folder, const char *except, const char *path, Error *error) {
    SCOPED_FREE char *prefix = memory_format("%s/", folder), *encoded = s3_encode(prefix, false);
    SCOPED(s3_reply_free) S3Reply reply = {0};
    S3Request request = {.method = "GET", .key = "", .query = memory_format("prefix=%s&uploads=", encoded), .path = path};
    bool good = s3_send(s3, request, &reply, NULL, error);
    const char *at = reply.text;
    for (char *element; (element = s3_next_tag(&at, "Upload")); free(element)) abort_stale(s3, folder, except, path, element);
    return good;
}
