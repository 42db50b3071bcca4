/* A client of S3 servers: requests (s3_request.c), listings (s3_list.c), and which server and credentials they use
 * (s3_settings.c). Checkpoints and training data lie behind it. Failures are ERROR_CHECKPOINT, which readers of data
 * change with error_recode. An answer of 404 is FINDING_ABSENT (base/error.h), any other failure tells nothing.
 *
 * It uses libcurl, opened at run time, so that the program starts where it is missing, and signs with AWS Signature 4. As
 * with Amazon's own tools: credentials are AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or the
 * AWS_PROFILE (default "default") of ~/.aws/credentials and ~/.aws/config; AWS_REGION or AWS_DEFAULT_REGION;
 * AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL for other servers than Amazon's; AWS_CA_BUNDLE; AWS_MAX_ATTEMPTS. None of
 * them is ever printed. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/error.h"
#include "store/span.h"

/* -- s3_settings.c ------------------------------------------------------------------------------------------------- */

#define S3_SCHEME "s3://"

/* Settings from variables and files. Strings are owned, and NULL where nothing gives them. Never
 * printed. */
typedef struct S3Settings {
    char *key, *secret, *token;
    char *region;      /* us-east-1 by default */
    char *endpoint;    /* "https://host" without a slash at the end; NULL: Amazon's */
    char *authorities; /* file of certificates */
    int attempts;      /* of a request, at least 1 */
} S3Settings;

/* ERROR_USAGE when no credentials are found, naming where they were looked for. */
bool s3_settings_read(S3Settings *settings, Error *error);
void s3_settings_free(S3Settings *settings);

/* -- s3_request.c -------------------------------------------------------------------------------------------------- */

typedef struct S3 S3;

/* A bucket on a server. ERROR_USAGE without libcurl, credentials, or with an impossible name. */
S3 *s3_open(const char *bucket, Error *error);
void s3_close(S3 *s3);

/* What a request sends: `bytes` from `offset` on of the joined spans, or nothing. */
typedef struct S3Body {
    const StoreSpan *spans;
    size_t count;
    int64_t offset, bytes;
} S3Body;

typedef struct S3Request {
    const char *method; /* "GET", "PUT", "POST", "HEAD", "DELETE" */
    const char *key;    /* of the object, unencoded; "" for the bucket */
    char *query;        /* "a=b&c=d", values encoded, in order of name; or NULL */
    char *headers[2];   /* "Name: value", or NULL */
    S3Body body;
    void *target; /* where exactly `target_bytes` of the answer go; NULL: it is text */
    int64_t target_bytes;
    const char *path; /* for messages */
    bool once;        /* a failure is not tried again here: the caller goes on behind reply->received */
} S3Request;

/* The answers to what a server cannot do, and to If-None-Match where the object exists or is being created. */
enum { S3_NOT_IMPLEMENTED = 501, S3_PRECONDITION_FAILED = 412, S3_CONFLICT = 409 };

typedef struct S3Reply {
    long status;
    int64_t length;   /* of a HEAD's object */
    int64_t received; /* bytes that came into the target, also when the connection broke then */
    bool passing;     /* of a failure: another attempt may end otherwise */
    char etag[128];
    char *text; /* at most 8 MiB, with a NUL; NULL: none. s3_reply_free */
} S3Reply;
static inline void s3_reply_free(S3Reply *reply) { free(reply->text); }

/* Sends a request until it is answered for good, and frees its query and headers: broken connections, overloaded
 * servers and server errors are tried again after growing, random pauses. True for status 2xx, and, where `absent` is
 * given, for 404: then *absent is set. May be called from several threads at once. */
bool s3_send(S3 *s3, S3Request request, S3Reply *reply, bool *absent, Error *error);

/* Running requests fail soon, and so do later ones: for threads that are to end. */
void s3_cancel(S3 *s3);

/* Percent-encodes all but letters, digits, "-._~" and, with `slashes`, "/". The caller frees. */
char *s3_encode(const char *text, bool slashes);
/* The text between <tag> and </tag> from *at on, entities decoded; *at moves behind it. NULL when there is none. The
 * caller frees. */
char *s3_next_tag(const char **at, const char *tag);

/* -- s3_list.c ----------------------------------------------------------------------------------------------------- */

typedef struct S3Entry {
    char *name;  /* below the prefix, without a slash at its end */
    bool folder; /* what lies deeper, once for all */
    int64_t bytes;
    char *etag; /* changes with the content; "" of a folder */
} S3Entry;
typedef struct S3Listing {
    S3Entry *entries;
    size_t count;
} S3Listing;
/* Adds what lies below a prefix, which ends with a slash or is empty: its direct entries, or, with `deep`, every object.
 * Names with control characters are left out. `path` is for messages. On failure, too, s3_listing_free. */
bool s3_list(S3 *s3, const char *prefix, bool deep, const char *path, S3Listing *listing, Error *error);
void s3_listing_free(S3Listing *listing);
