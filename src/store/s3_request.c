/* Requests to an S3 server over libcurl, which signs them (AWS Signature 4). The library is opened
 * at run time, so that the program starts without it. Connections are kept in a pool; one thread at
 * a time uses each. Payloads are not signed: the checksums of checkpoints and shards protect them
 * from memory to memory. An S3 owns its settings and connections; close it after its last
 * request. */
#include "store/s3.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/curl.h"
#include "base/math.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"

enum {
    MOST_IDLE = 32,
    TEXT_BYTES = 8 << 20,
    UNENCODED_BYTES = 1024, /* of a key, by S3's rules */
};

struct S3 {
    CurlApi curl;
    S3Settings settings;
    char *root;      /* URL of the bucket without a final slash */
    char *provider;  /* the target of the signature */
    uint64_t pauses; /* atomic */
    atomic_bool canceled;
    atomic_long warned_in; /* the minute in which a silent server was last named */
    pthread_mutex_t mutex; /* protects what follows */
    CURL *idle[MOST_IDLE];
    int idle_count;
};

/* -- Opening ------------------------------------------------------------------------------------------------------ */

static bool bucket_is_possible(const char *bucket) {
    size_t length = strlen(bucket);
    return length >= 3 && length <= 63 && strspn(bucket, "abcdefghijklmnopqrstuvwxyz0123456789.-") == length;
}

/* Amazon has one host per bucket. Other servers have the bucket in the path, and so have names with
 * dots, which certificates do not cover. */
static char *root_url(const S3Settings *settings, const char *bucket) {
    if (settings->endpoint) return memory_format("%s/%s", settings->endpoint, bucket);
    if (strchr(bucket, '.')) return memory_format("https://s3.%s.amazonaws.com/%s", settings->region, bucket);
    return memory_format("https://%s.s3.%s.amazonaws.com", bucket, settings->region);
}

S3 *s3_open(const char *bucket, Error *error) {
    if (!bucket_is_possible(bucket)) {
        error_set(error, ERROR_USAGE, "\"%.63s\" is not a bucket name; use 3 to 63 of a-z, 0-9, dots and hyphens", bucket);
        return NULL;
    }
    S3 *s3 = memory_allocate(sizeof *s3);
    pthread_mutex_init(&s3->mutex, NULL);
    if (!curl_open(&s3->curl, "s3://", error) || !s3_settings_read(&s3->settings, error)) {
        s3_close(s3);
        return NULL;
    }
    size_t length = s3->settings.endpoint ? strlen(s3->settings.endpoint) : 0;
    while (length > 0 && s3->settings.endpoint[length - 1] == '/') s3->settings.endpoint[--length] = '\0';
    s3->root = root_url(&s3->settings, bucket);
    s3->provider = memory_format("aws:amz:%s:s3", s3->settings.region);
    return s3;
}

void s3_close(S3 *s3) {
    if (!s3) return;
    for (int i = 0; i < s3->idle_count; i++) s3->curl.easy_cleanup(s3->idle[i]);
    pthread_mutex_destroy(&s3->mutex);
    s3_settings_free(&s3->settings);
    free(s3->provider);
    free(s3->root);
    free(s3);
}

void s3_cancel(S3 *s3) { atomic_store(&s3->canceled, true); }

static CURL *handle_take(S3 *s3) {
    CURL *handle = NULL;
    pthread_mutex_lock(&s3->mutex);
    if (s3->idle_count > 0) handle = s3->idle[--s3->idle_count];
    pthread_mutex_unlock(&s3->mutex);
    return handle ? handle : s3->curl.easy_init();
}

static void handle_give(S3 *s3, CURL *handle) {
    s3->curl.easy_reset(handle); /* forgets the request, keeps the connection */
    pthread_mutex_lock(&s3->mutex);
    bool room = s3->idle_count < MOST_IDLE;
    if (room) s3->idle[s3->idle_count++] = handle;
    pthread_mutex_unlock(&s3->mutex);
    if (!room) s3->curl.easy_cleanup(handle);
}

/* -- Text --------------------------------------------------------------------------------------------------------- */

char *s3_encode(const char *text, bool slashes) {
    char *encoded = memory_allocate(strlen(text) * 3 + 1), *to = encoded;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++)
        if (isalnum(*c) || strchr("-._~", *c) || (slashes && *c == '/')) *to++ = (char)*c;
        else to += sprintf(to, "%%%02X", *c);
    return encoded;
}

static void entities_decode(char *text) {
    typedef struct Entity {
        const char *text;
        char character;
    } Entity;
    static const Entity entities[] = {
        {"&amp;", '&'}, {"&lt;", '<'}, {"&gt;", '>'}, {"&quot;", '"'}, {"&apos;", '\''}, {"&#39;", '\''}, {"&#34;", '"'}};
    char *to = text;
    while (*text) {
        size_t count = sizeof entities / sizeof entities[0], i = *text == '&' ? 0 : count;
        while (i < count && strncmp(text, entities[i].text, strlen(entities[i].text)) != 0) i++;
        *to++ = i < count ? entities[i].character : *text;
        text += i < count ? strlen(entities[i].text) : 1;
    }
    *to = '\0';
}

char *s3_next_tag(const char **at, const char *tag) {
    char open[32], close[sizeof open + 1], *content = NULL;
    snprintf(open, sizeof open, "<%s>", tag);
    snprintf(close, sizeof close, "</%s>", tag);
    const char *begin = *at ? strstr(*at, open) : NULL;
    const char *end = begin ? strstr(begin, close) : NULL;
    if (end) {
        begin += strlen(open);
        content = memory_format("%.*s", (int)(end - begin), begin);
        entities_decode(content);
        *at = end + strlen(close);
    }
    return content;
}

/* -- Sending ------------------------------------------------------------------------------------------------------ */

/* One attempt: the source of the body and the destination of the answer. */
typedef struct Attempt {
    const S3Request *request;
    CURL *handle;
    const CurlApi *curl;
    int64_t sent, received;
    char *text;
    size_t text_length;
    S3Reply *reply;
    S3 *s3;
    int64_t moved;   /* bytes in both directions when they last changed, */
    double moved_at; /* ... which was then (log_seconds) */
} Attempt;

static size_t body_read(char *buffer, size_t size, size_t items, void *context) {
    Attempt *attempt = context;
    const S3Body *body = &attempt->request->body;
    int64_t room = int_min((int64_t)(size * items), body->bytes - attempt->sent), copied = 0;
    int64_t at = body->offset + attempt->sent; /* relative to span i */
    for (size_t i = 0; copied < room; at -= body->spans[i++].bytes) {
        int64_t bytes = int_min(body->spans[i].bytes - at, room - copied);
        if (bytes <= 0) continue;
        memcpy(buffer + copied, (const char *)body->spans[i].data + at, (size_t)bytes);
        copied += bytes;
        at += bytes;
    }
    attempt->sent += copied;
    return (size_t)copied;
}

/* libcurl restarts from the beginning if a kept connection turns out to be closed. */
static int body_seek(void *context, curl_off_t offset, int origin) {
    Attempt *attempt = context;
    if (origin != SEEK_SET || offset < 0 || offset > attempt->request->body.bytes) return CURL_SEEKFUNC_FAIL;
    attempt->sent = offset;
    return CURL_SEEKFUNC_OK;
}

static size_t text_write(Attempt *attempt, const char *data, size_t bytes) {
    if (attempt->text_length + bytes > TEXT_BYTES) return 0;
    attempt->text = memory_resize(attempt->text, attempt->text_length + bytes + 1);
    memcpy(attempt->text + attempt->text_length, data, bytes);
    attempt->text_length += bytes;
    attempt->text[attempt->text_length] = '\0';
    return bytes;
}

static size_t answer_write(char *data, size_t size, size_t items, void *context) {
    Attempt *attempt = context;
    const S3Request *request = attempt->request;
    size_t bytes = size * items;
    long status = 0;
    attempt->curl->easy_getinfo(attempt->handle, CURLINFO_RESPONSE_CODE, &status);
    if (!request->target || status >= 300) /* an error text */
        return text_write(attempt, data, bytes);
    if ((int64_t)bytes > request->target_bytes - attempt->received) return 0;
    memcpy((char *)request->target + attempt->received, data, bytes);
    attempt->received += (int64_t)bytes;
    return bytes;
}

static size_t header_read(char *data, size_t size, size_t items, void *context) {
    static const char label[] = "etag:";
    S3Reply *reply = ((Attempt *)context)->reply;
    size_t bytes = size * items, length = sizeof label - 1;
    if (bytes > length && strncasecmp(data, label, length) == 0) {
        while (length < bytes && data[length] == ' ') length++;
        snprintf(reply->etag, sizeof reply->etag, "%.*s", (int)(bytes - length), data + length);
        reply->etag[strcspn(reply->etag, "\r\n")] = '\0';
    }
    return bytes;
}

/* Warns of a server that neither takes nor sends a byte, once a minute over all requests. */
static void warn_of_silence(Attempt *attempt, int64_t moved) {
    enum { QUIET_SECONDS = 5, PAUSE_SECONDS = 60 };
    double now = log_seconds();
    long minute = (long)(now / PAUSE_SECONDS) + 1;
    if (moved != attempt->moved || attempt->moved_at == 0) {
        attempt->moved = moved;
        attempt->moved_at = now;
    } else if (now - attempt->moved_at > QUIET_SECONDS && atomic_exchange(&attempt->s3->warned_in, minute) != minute) {
        log_warn("%s %s: the server has not answered for %d s; still waiting, then retrying", attempt->request->method,
            attempt->request->path, QUIET_SECONDS);
    }
}

/* libcurl calls this several times a second. */
static int watch_transfer(void *context, curl_off_t down, curl_off_t downloaded, curl_off_t up, curl_off_t uploaded) {
    Attempt *attempt = context;
    (void)down, (void)up;
    warn_of_silence(attempt, (int64_t)(downloaded + uploaded));
    return atomic_load(&attempt->s3->canceled);
}

static struct curl_slist *headers_make(const S3 *s3, const S3Request *request) {
    struct curl_slist *headers = s3->curl.slist_append(NULL, "x-amz-content-sha256: UNSIGNED-PAYLOAD");
    if (s3->settings.token) {
        char *token = memory_format("x-amz-security-token: %s", s3->settings.token);
        headers = s3->curl.slist_append(headers, token);
        explicit_bzero(token, strlen(token));
        free(token);
    }
    for (size_t i = 0; i < 2 && request->headers[i]; i++) headers = s3->curl.slist_append(headers, request->headers[i]);
    return headers;
}

static void options_set(S3 *s3, Attempt *attempt, const char *url, struct curl_slist *headers) {
    enum { CONNECT_SECONDS = 10, SILENT_SECONDS = 30, PERMISSION_MS = 300, BUFFER_BYTES = 1 << 19 };
    const S3Request *request = attempt->request;
    CURLcode (*set)(CURL *, CURLoption, ...) = s3->curl.easy_setopt;
    CURL *handle = attempt->handle;
    set(handle, CURLOPT_URL, url);
    set(handle, CURLOPT_NOSIGNAL, 1L);
    set(handle, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    set(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(handle, CURLOPT_LOW_SPEED_TIME, (long)SILENT_SECONDS);
    set(handle, CURLOPT_EXPECT_100_TIMEOUT_MS, (long)PERMISSION_MS);
    set(handle, CURLOPT_BUFFERSIZE, (long)BUFFER_BYTES);
    set(handle, CURLOPT_UPLOAD_BUFFERSIZE, (long)BUFFER_BYTES);
    set(handle, CURLOPT_AWS_SIGV4, s3->provider);
    set(handle, CURLOPT_USERNAME, s3->settings.key);
    set(handle, CURLOPT_PASSWORD, s3->settings.secret);
    set(handle, CURLOPT_USERAGENT, "smelt");
    set(handle, CURLOPT_HTTPHEADER, headers);
    set(handle, CURLOPT_WRITEFUNCTION, answer_write);
    set(handle, CURLOPT_WRITEDATA, attempt);
    set(handle, CURLOPT_HEADERFUNCTION, header_read);
    set(handle, CURLOPT_HEADERDATA, attempt);
    set(handle, CURLOPT_NOPROGRESS, 0L);
    set(handle, CURLOPT_XFERINFOFUNCTION, watch_transfer);
    set(handle, CURLOPT_XFERINFODATA, attempt);
    if (s3->settings.authorities) set(handle, CURLOPT_CAINFO, s3->settings.authorities);
    if (strcmp(request->method, "HEAD") == 0) set(handle, CURLOPT_NOBODY, 1L);
    if (strcmp(request->method, "PUT") == 0 || strcmp(request->method, "POST") == 0) {
        set(handle, CURLOPT_UPLOAD, 1L);
        set(handle, CURLOPT_INFILESIZE_LARGE, (curl_off_t)request->body.bytes);
        set(handle, CURLOPT_READFUNCTION, body_read);
        set(handle, CURLOPT_READDATA, attempt);
        set(handle, CURLOPT_SEEKFUNCTION, body_seek);
        set(handle, CURLOPT_SEEKDATA, attempt);
    }
    if (strcmp(request->method, "GET") != 0 && strcmp(request->method, "HEAD") != 0) set(handle, CURLOPT_CUSTOMREQUEST, request->method);
}

static CURLcode attempt_run(S3 *s3, Attempt *attempt, const char *url) {
    S3Reply *reply = attempt->reply;
    struct curl_slist *headers = headers_make(s3, attempt->request);
    curl_off_t length = -1;
    options_set(s3, attempt, url, headers);
    CURLcode code = s3->curl.easy_perform(attempt->handle);
    s3->curl.easy_getinfo(attempt->handle, CURLINFO_RESPONSE_CODE, &reply->status);
    s3->curl.easy_getinfo(attempt->handle, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    reply->length = length;
    reply->received = attempt->received;
    reply->text = attempt->text;
    s3->curl.slist_free_all(headers);
    return code;
}

/* Returns whether a retry may succeed. A 200 answer can still contain an error
 * (CompleteMultipartUpload). */
static bool is_passing(CURLcode code, const Attempt *attempt) {
    long status = attempt->reply->status;
    if (code != CURLE_OK)
        return code != CURLE_URL_MALFORMAT && code != CURLE_UNSUPPORTED_PROTOCOL && code != CURLE_PEER_FAILED_VERIFICATION &&
               code != CURLE_SSL_CACERT_BADFILE;
    const char *text = attempt->text ? attempt->text : "";
    return status == 408 || status == 429 || (status >= 500 && status != S3_NOT_IMPLEMENTED) ||
           (status == 400 && strstr(text, "RequestTimeout")) || (status == 200 && strstr(text, "<Error>")) ||
           (status / 100 == 2 && attempt->request->target && attempt->received != attempt->request->target_bytes);
}

/* Exponential backoff with full jitter, so that a thousand ranks do not retry at the same
 * moment. */
static void pause_before_attempt(S3 *s3, int attempt) {
    const double first = 0.25, longest = 16;
    double most = first * (double)(1 << (attempt < 10 ? attempt : 10));
    uint64_t index = __atomic_fetch_add(&s3->pauses, 1, __ATOMIC_RELAXED);
    double seconds = (most < longest ? most : longest) * rng_uniform((uint64_t)getpid(), (uint64_t)time(NULL), index);
    thread_sleep(seconds);
}

/* Makes a server's text printable on one line and hides the access key id, because some servers
 * repeat the request. */
static void sanitize(char *text, const char *key) {
    for (char *at = text; at && *key && (at = strstr(at, key));) memset(at, '*', strlen(key));
    if (text) blank_controls(text, ' ', false);
}

/* Reports the server's error, without its copy of the signed data. */
static bool s3_fail(const S3 *s3, const S3Request *request, CURLcode code, const S3Reply *reply, Error *error) {
    if (code != CURLE_OK)
        return error_set(error, ERROR_CHECKPOINT, "%s %s: %s", request->method, request->path, s3->curl.easy_strerror(code));
    const char *at = reply->text, *also = reply->text;
    SCOPED_FREE char *name = s3_next_tag(&at, "Code"), *message = s3_next_tag(&also, "Message");
    sanitize(name, s3->settings.key);
    sanitize(message, s3->settings.key);
    error_set(error, ERROR_CHECKPOINT, "%s %s: the server answered %ld%s%.80s%s%.200s", request->method, request->path, reply->status,
        name ? " " : "", name ? name : "", message ? ": " : "", message ? message : "");
    return error_find(error, reply->status == 404 ? FINDING_ABSENT : FINDING_UNREADABLE);
}

static char *request_url(const S3 *s3, const S3Request *request) {
    SCOPED_FREE char *key = s3_encode(request->key, true);
    return memory_format("%s/%s%s%s", s3->root, key, request->query ? "?" : "", request->query ? request->query : "");
}

/* Warns that a request is retried after `attempts`, which takes some seconds. */
static void warn_of_waiting(const S3 *s3, const S3Request *request, CURLcode code, const S3Reply *reply, int attempts) {
    Error error = {0};
    s3_fail(s3, request, code, &(S3Reply){.status = reply->status}, &error);
    log_warn("%s; retrying at most %d times (AWS_MAX_ATTEMPTS)", error.message, s3->settings.attempts - attempts);
}

static bool request_send(S3 *s3, const S3Request *request, S3Reply *reply, bool *absent, Error *error) {
    enum { QUIET_ATTEMPTS = 5, QUIET_SECONDS = 5 };
    if (strlen(request->key) > UNENCODED_BYTES)
        return error_set(error, ERROR_CHECKPOINT, "%s: the key is too long; the limit is %d bytes", request->path, UNENCODED_BYTES);
    SCOPED_FREE char *url = request_url(s3, request);
    CURLcode code = CURLE_FAILED_INIT;
    double start = log_seconds();
    bool warned = false;
    for (int i = 0, going = 1; going; i++) {
        Attempt attempt = {.request = request, .curl = &s3->curl, .reply = reply, .s3 = s3, .handle = handle_take(s3)};
        *reply = (S3Reply){0};
        code = attempt.handle ? attempt_run(s3, &attempt, url) : CURLE_OUT_OF_MEMORY;
        if (attempt.handle) handle_give(s3, attempt.handle);
        reply->passing = is_passing(code, &attempt);
        going = reply->passing && !request->once && i + 1 < s3->settings.attempts && !atomic_load(&s3->canceled);
        if (going) {
            free(attempt.text);
            if (!warned && (i + 1 == QUIET_ATTEMPTS || log_seconds() - start > QUIET_SECONDS)) {
                warn_of_waiting(s3, request, code, reply, i + 1);
                warned = true;
            }
            pause_before_attempt(s3, i);
        } else if (code == CURLE_OK && reply->passing) {
            reply->status = reply->status == 200 ? 500 : reply->status;
        }
    }
    if (absent) *absent = code == CURLE_OK && reply->status == 404;
    bool good = code == CURLE_OK && (reply->status / 100 == 2 || (absent && *absent));
    if (!good) {
        s3_fail(s3, request, code, reply, error);
        free(reply->text);
        reply->text = NULL;
    }
    return good;
}

bool s3_send(S3 *s3, S3Request request, S3Reply *reply, bool *absent, Error *error) {
    bool good = request_send(s3, &request, reply, absent, error);
    free(request.query);
    for (int i = 0; i < 2; i++) free(request.headers[i]);
    return good;
}
