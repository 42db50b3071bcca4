/* A client of S3 servers: requests (s3_request.c), listings (s3_list.c), and the choice of server
 * and credentials (s3_settings.c). Used for checkpoints and training data. Failures are
 * ERROR_CHECKPOINT, which readers of data change with error_recode. A 404 answer is FINDING_ABSENT
 * (base/error.h); any other failure proves nothing.
 *
 * The client uses libcurl, which is opened at run time so that the program starts without it, and
 * signs with AWS Signature 4. The settings are those of Amazon's own tools: credentials are
 * AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the AWS_PROFILE (default
 * "default") of ~/.aws/credentials and ~/.aws/config; AWS_REGION or AWS_DEFAULT_REGION;
 * AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for servers other than Amazon's; AWS_CA_BUNDLE;
 * AWS_MAX_ATTEMPTS. None of them is ever printed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "store/span.h"

/* -- s3_settings.c ------------------------------------------------------------------------------------------------- */

#define S3_SCHEME "s3://"

/* Settings from variables and files. Strings are owned, NULL if nothing sets them, and never
 * printed. */
typedef struct S3Settings {
    char *key, *secret, *token;
    char *region;      /* us-east-1 by default */
    char *endpoint;    /* "https://host" without a final slash; NULL: Amazon's */
    char *authorities; /* file of CA certificates */
    int attempts;      /* per request, at least 1 */
} S3Settings;

/* ERROR_USAGE if no credentials are found; the message names where they were looked for. */
bool s3_settings_read(S3Settings *settings, Error *error);
void s3_settings_free(S3Settings *settings);

/* -- s3_request.c -------------------------------------------------------------------------------------------------- */

typedef struct S3 S3;

/* Opens a bucket on a server. ERROR_USAGE without libcurl or credentials, or for an invalid
 * name. */
S3 *s3_open(const char *bucket, Error *error);
void s3_close(S3 *s3);

/* The data that a request sends: `bytes` from `offset` of the concatenated spans, or nothing. */
typedef struct S3Body {
    const StoreSpan *spans;
    size_t count;
    int64_t offset, bytes;
} S3Body;

typedef struct S3Request {
    const char *method; /* "GET", "PUT", "POST", "HEAD", "DELETE" */
    const char *key;    /* of the object, unencoded; "" for the bucket */
    char *query;        /* "a=b&c=d", encoded values, sorted by name; or NULL */
    char *headers[2];   /* "Name: value", or NULL */
    S3Body body;
    void *target; /* receives exactly `target_bytes` of the answer; NULL: the answer is text */
    int64_t target_bytes;
    const char *path; /* for messages */
    bool once;        /* do not retry a failure: the caller continues after reply->received */
} S3Request;

/* The status of unsupported requests, and of If-None-Match if the object exists or is being
 * created. */
enum { S3_NOT_IMPLEMENTED = 501, S3_PRECONDITION_FAILED = 412, S3_CONFLICT = 409 };

typedef struct S3Reply {
    long status;
    int64_t length;   /* of the object of a HEAD */
    int64_t received; /* bytes written to the target, even if the connection then broke */
    bool passing;     /* of a failure: a retry may succeed */
    char etag[128];
    char *text; /* at most 8 MiB, with a NUL; NULL: none. s3_reply_free */
} S3Reply;
static inline void s3_reply_free(S3Reply *reply) { free(reply->text); }

/* Sends a request until its outcome is final, and frees its query and headers. Broken connections,
 * overloaded servers and server errors are retried after growing, random pauses. Returns true for
 * status 2xx and, if `absent` is given, for 404, which sets *absent. Thread-safe. */
bool s3_send(S3 *s3, S3Request request, S3Reply *reply, bool *absent, Error *error);

/* Makes running and later requests fail soon, so that threads can end. */
void s3_cancel(S3 *s3);

/* Percent-encodes all characters except letters, digits, "-._~" and, with `slashes`, "/". The
 * caller frees the result. */
char *s3_encode(const char *text, bool slashes);
/* Returns the text between <tag> and </tag> from *at on, with entities decoded, and moves *at past
 * it; NULL if there is none. The caller frees it. */
char *s3_next_tag(const char **at, const char *tag);

/* -- s3_put.c ------------------------------------------------------------------------------------------------------ */

enum { S3_CONNECTIONS = 8 /* of one object that is written or read */ };
/* Creates or replaces an object from its spans, in order; `path` is for messages. Large ones are
 * multipart uploads by several threads, directly from the caller's memory. An interrupted upload
 * leaves nothing under the object's name. */
bool s3_put(S3 *s3, const char *key, const char *path, const StoreSpan *spans, size_t count, Error *error);
/* Copies an object of `bytes` on the server; `source` is BUCKET/KEY. */
bool s3_copy(S3 *s3, const char *source, int64_t bytes, const char *key, const char *path, Error *error);
/* Frees the space of interrupted uploads below a folder, except objects whose key contains `except`
 * ("": none is excepted). One listing of uploads is enough: the next call finds those that it
 * omits. */
bool s3_abort_uploads(S3 *s3, const char *folder, const char *except, const char *path, Error *error);

/* -- s3_list.c ----------------------------------------------------------------------------------------------------- */

typedef struct S3Entry {
    char *name;  /* below the prefix, without a final slash */
    bool folder; /* represents all deeper objects, once */
    int64_t bytes;
    char *etag; /* changes with the content; "" for a folder */
} S3Entry;
typedef struct S3Listing {
    S3Entry *entries;
    size_t count;
} S3Listing;
/* Adds the direct entries below a prefix, which ends with a slash or is empty, or with `deep` every
 * object. Names with control characters are omitted. `path` is for messages. Call s3_listing_free
 * even after a failure. */
bool s3_list(S3 *s3, const char *prefix, bool deep, const char *path, S3Listing *listing, Error *error);
/* Adds the object with this key, under the name "", if there is one; otherwise sets *absent. */
bool s3_find(S3 *s3, const char *key, const char *path, S3Listing *listing, bool *absent, Error *error);
void s3_listing_free(S3Listing *listing);
