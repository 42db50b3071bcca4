/* Reads shards in a bucket through a cache of blocks on local disk.
 *
 * The order of the samples is a permutation of a whole source. A cache of whole shards would fetch
 * a shard for a few of its samples and evict it before the next ones. Therefore ranges of blocks of
 * 16 KiB are fetched, in the order of the loader, which knows the whole order and asks thousands of
 * sequences ahead (remote_prefetch). WORKERS threads with a connection each fetch the ranges in
 * that order, one request per sequence. A block is needed about once in an epoch, memory does not
 * grow with the source, and a cache that is smaller than the source works as well.
 *
 * A Remote owns the queue of ranges, the threads, the connections to the bucket and the open cache;
 * RemoteObjects are parts of it. `queue` holds ranges head to head + count - 1 of a ring of
 * `capacity`. A reader fetches an absent block itself, unless a thread is fetching it. `away_since`
 * is the time when requests began to fail, 0 while they succeed: workers retry forever, readers
 * until the patience of the source is over. Requests name the ETag of the listing, so a replaced
 * object is an error, not a mix of two versions. */
#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/thread.h"
#include "data/data_internal.h"
#include "data/remote_internal.h"

enum {
    WORKERS = 16,
    RANGE_BLOCKS = 64, /* limit per request */
    WRONG_BYTES = 3,   /* attempts that end with a wrong checksum */
    AHEAD_SHARE = 32,  /* fetch 1/AHEAD_SHARE of the cache ahead: the ranks of a node leave most of it to blocks already read */
    RECORD_LIMIT = 64 << 20,
};
static const double WARN_SECONDS = 5, PAUSE_SECONDS = 0.25, LONGEST_PAUSE_SECONDS = 4;

struct RemoteObject {
    Remote *remote;
    char *name, *key, *path, *etag;
    int64_t bytes;
    uint64_t id;
    const UnalignedU64 *sums; /* NULL: not recorded */
};

/* Blocks first to first + count - 1 of an object. */
typedef struct ByteRange {
    const RemoteObject *object;
    int64_t first, count;
} ByteRange;

typedef struct Worker {
    Remote *remote;
    pthread_t thread;
    ByteRange range; /* in progress; count 0: none */
} Worker;

struct Remote {
    char *url; /* without a trailing slash */
    S3 *s3;
    BlockCache cache;
    double patience; /* seconds */
    int64_t ahead;   /* bytes */
    RemoteObject *objects;
    size_t object_count;

    pthread_mutex_t mutex; /* protects the fields below */
    pthread_cond_t changed;
    ByteRange *queue;
    size_t head, count, capacity;
    Worker workers[WORKERS];
    int worker_count;
    double away_since;
    bool warned, stop, interrupted;
    Error away; /* why requests fail */
    uint64_t pauses;
};

/* -- Objects ------------------------------------------------------------------------------------------------------- */

RemoteObject *remote_find(Remote *remote, const char *name) {
    for (size_t i = 0; i < remote->object_count; i++)
        if (!strcmp(remote->objects[i].name, name)) return &remote->objects[i];
    return NULL;
}

const char *remote_path(const RemoteObject *object) { return object->path; }
int64_t remote_bytes(const RemoteObject *object) { return object->bytes; }
uint64_t remote_identity(const RemoteObject *object) { return object->id; }
void remote_expect(RemoteObject *object, const UnalignedU64 *sums) { object->sums = sums; }
int64_t remote_ahead(const Remote *remote, int64_t bytes) { return remote->ahead / (bytes + CACHE_BLOCK_BYTES); }

static int64_t block_size(const RemoteObject *object, int64_t block) {
    return int_min(CACHE_BLOCK_BYTES, object->bytes - block * CACHE_BLOCK_BYTES);
}

/* Stores a fetched block, unless its checksum is wrong: *good. */
static bool keep_block(const RemoteObject *object, int64_t block, const void *data, bool *good, Error *error) {
    int64_t size = block_size(object, block);
    *good = !object->sums || shard_wrong_block(object->sums, data, block * CACHE_BLOCK_BYTES, size) < 0;
    return !*good || block_cache_put(&object->remote->cache, object->id, block, data, size, error);
}

/* -- Unavailable store --------------------------------------------------------------------------------------------- */

/* Notes the outcome of a request; NULL: success. Returns for how many seconds the store has been
 * away. */
static double count_failure(Remote *remote, const Error *failure) {
    pthread_mutex_lock(&remote->mutex);
    double now = log_seconds(), away = remote->away_since > 0 ? now - remote->away_since : 0;
    bool back = !failure && remote->warned, warn = failure && !remote->warned && away >= WARN_SECONDS;
    if (failure) remote->away = *failure;
    remote->away_since = !failure ? 0 : remote->away_since > 0 ? remote->away_since : now;
    remote->warned = failure && (remote->warned || warn);
    pthread_mutex_unlock(&remote->mutex);
    if (warn)
        log_warn("%s does not answer: training continues with prefetched data, then waits up to %.0f s (%s)", remote->url, remote->patience,
            failure->message);
    if (back) log_info("%s answers again after %.0f s", remote->url, away);
    return away;
}

/* Waits before another attempt: exponential backoff with full jitter. Ends early when the source is
 * closed. */
static void pause_before(Remote *remote, int attempt) {
    double most = PAUSE_SECONDS * (double)(1 << int_min(attempt, 8));
    pthread_mutex_lock(&remote->mutex);
    double share = rng_uniform((uint64_t)getpid(), remote->objects[0].id, remote->pauses++);
    double until = log_seconds() + (most < LONGEST_PAUSE_SECONDS ? most : LONGEST_PAUSE_SECONDS) * share;
    while (!remote->stop && !remote->interrupted && thread_wait_until(&remote->changed, &remote->mutex, until)) {}
    pthread_mutex_unlock(&remote->mutex);
}

static bool stopped(Remote *remote) {
    pthread_mutex_lock(&remote->mutex);
    bool stop = remote->stop;
    pthread_mutex_unlock(&remote->mutex);
    return stop;
}

/* -- Fetching ------------------------------------------------------------------------------------------------------ */

typedef enum FetchedRange { FETCHED, FETCH_AGAIN, FETCH_FAILED } FetchedRange;

/* Sends one request for a range; *got whole blocks came, also before a broken connection. */
static FetchedRange request(const ByteRange *range, void *buffer, int64_t *got, Error *error) {
    enum { PRECONDITION_FAILED = S3_PRECONDITION_FAILED, NOT_FOUND = 404 };
    const RemoteObject *object = range->object;
    int64_t from = range->first * CACHE_BLOCK_BYTES, bytes = int_min(range->count * CACHE_BLOCK_BYTES, object->bytes - from);
    SCOPED(s3_reply_free) S3Reply reply = {0};
    S3Request get = {.method = "GET",
        .key = object->key,
        .headers = {memory_format("Range: bytes=%" PRId64 "-%" PRId64, from, from + bytes - 1),
            memory_format("If-Match: %s", object->etag)},
        .target = buffer,
        .target_bytes = bytes,
        .path = object->path,
        .once = true};
    bool sent = s3_send(object->remote->s3, get, &reply, NULL, error);
    *got = reply.received == bytes ? range->count : reply.received / CACHE_BLOCK_BYTES;
    if (sent) return FETCHED;
    error_recode(error, ERROR_DATA);
    if (reply.status == PRECONDITION_FAILED || reply.status == NOT_FOUND)
        error_set(error, ERROR_DATA, "%s was replaced or removed after the run opened it: restore it, or start a new run", object->path);
    return reply.passing ? FETCH_AGAIN : FETCH_FAILED;
}

/* Fetches the blocks of a range that are not in the cache, as long as it takes. A permanent failure
 * is left to the reader, which meets it too. */
static void fetch_range(ByteRange range, unsigned char *buffer) {
    Remote *remote = range.object->remote;
    for (int attempt = 0; range.count > 0 && !stopped(remote);) {
        int64_t absent = 0, got = 0;
        Error error = {0};
        while (absent < range.count && !block_cache_has(&remote->cache, range.object->id, range.first + absent)) absent++;
        ByteRange wanted = {range.object, range.first, absent};
        FetchedRange fetched = absent ? request(&wanted, buffer, &got, &error) : FETCHED;
        bool good, kept = true;
        if (absent && !stopped(remote)) count_failure(remote, fetched == FETCH_AGAIN ? &error : NULL);
        for (int64_t i = 0; i < got && kept; i++)
            kept = keep_block(range.object, range.first + i, buffer + i * CACHE_BLOCK_BYTES, &good, &error);
        if (fetched == FETCH_FAILED || !kept) return;
        if (absent == 0) got = 1;
        range.first += got;
        range.count -= got;
        attempt = got ? 0 : attempt + 1;
        if (fetched == FETCH_AGAIN) pause_before(remote, attempt);
    }
}

static void *worker_run(void *context) {
    Worker *worker = context;
    Remote *remote = worker->remote;
    SCOPED_FREE unsigned char *buffer = memory_allocate((size_t)RANGE_BLOCKS * CACHE_BLOCK_BYTES);
    pthread_mutex_lock(&remote->mutex);
    while (!remote->stop) {
        if (!remote->count) {
            pthread_cond_wait(&remote->changed, &remote->mutex);
            continue;
        }
        worker->range = remote->queue[remote->head];
        remote->head = (remote->head + 1) % remote->capacity;
        remote->count--;
        pthread_mutex_unlock(&remote->mutex);
        fetch_range(worker->range, buffer);
        pthread_mutex_lock(&remote->mutex);
        worker->range.count = 0;
        pthread_cond_broadcast(&remote->changed);
    }
    pthread_mutex_unlock(&remote->mutex);
    return NULL;
}

/* Appends a range; the caller holds the mutex. */
static void enqueue(Remote *remote, ByteRange range) {
    if (remote->count == remote->capacity) {
        size_t capacity = remote->capacity ? 2 * remote->capacity : 1024;
        ByteRange *queue = memory_allocate(capacity * sizeof *queue);
        for (size_t i = 0; i < remote->count; i++) queue[i] = remote->queue[(remote->head + i) % remote->capacity];
        free(remote->queue);
        remote->queue = queue;
        remote->head = 0;
        remote->capacity = capacity;
    }
    remote->queue[(remote->head + remote->count++) % remote->capacity] = range;
}

void remote_prefetch(RemoteObject *object, int64_t offset, int64_t bytes) {
    Remote *remote = object->remote;
    int64_t first = offset / CACHE_BLOCK_BYTES, end = divide_up(int_min(offset + bytes, object->bytes), CACHE_BLOCK_BYTES);
    pthread_mutex_lock(&remote->mutex);
    for (int64_t at = first; at < end; at += RANGE_BLOCKS) enqueue(remote, (ByteRange){object, at, int_min(RANGE_BLOCKS, end - at)});
    pthread_cond_broadcast(&remote->changed);
    pthread_mutex_unlock(&remote->mutex);
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* Waits a moment for a thread that is fetching the block; returns false if none is. */
static bool await_worker(const RemoteObject *object, int64_t block) {
    const double moment = 1;
    Remote *remote = object->remote;
    bool busy = false;
    pthread_mutex_lock(&remote->mutex);
    for (int i = 0; i < remote->worker_count; i++) {
        const ByteRange *range = &remote->workers[i].range;
        busy |= range->object == object && block >= range->first && block < range->first + range->count;
    }
    if (busy) thread_wait_until(&remote->changed, &remote->mutex, log_seconds() + moment);
    pthread_mutex_unlock(&remote->mutex);
    return busy;
}

void remote_interrupt(Remote *remote, bool interrupted) {
    pthread_mutex_lock(&remote->mutex);
    remote->interrupted = interrupted;
    pthread_cond_broadcast(&remote->changed);
    pthread_mutex_unlock(&remote->mutex);
}

/* Returns whether a reader may continue to wait. */
static bool may_wait(Remote *remote, Error *error) {
    pthread_mutex_lock(&remote->mutex);
    double away = remote->away_since > 0 ? log_seconds() - remote->away_since : 0;
    Error reason = remote->away;
    bool interrupted = remote->interrupted;
    pthread_mutex_unlock(&remote->mutex);
    if (interrupted) return error_set(error, ERROR_DATA, "%s: reading was stopped", remote->url);
    return away <= remote->patience ||
           error_set(error, ERROR_DATA,
               "%s has not answered for %.0f s: restart the run when the server is back, or increase data.patience (%s)", remote->url, away,
               reason.message);
}

/* Reads a block. Bytes that are still wrong after the last attempt are left to the reader's own
 * check, which names the place. */
static bool read_block(RemoteObject *object, int64_t block, unsigned char *data, Error *error) {
    Remote *remote = object->remote;
    for (int attempt = 0, wrong = 0; wrong < WRONG_BYTES;) {
        if (block_cache_get(&remote->cache, object->id, block, data, block_size(object, block))) return true;
        if (!may_wait(remote, error)) return false;
        if (await_worker(object, block)) continue;
        int64_t got;
        bool good;
        Error failure = {0};
        ByteRange range = {object, block, 1};
        FetchedRange fetched = request(&range, data, &got, &failure);
        count_failure(remote, fetched == FETCH_AGAIN ? &failure : NULL);
        if (fetched == FETCH_FAILED) return error_set(error, ERROR_DATA, "%s", failure.message);
        if (fetched == FETCHED) {
            if (!keep_block(object, block, data, &good, error)) return error_recode(error, ERROR_DATA);
            if (good) return true;
            wrong++;
        } else {
            pause_before(remote, attempt++);
        }
    }
    return true;
}

bool remote_read(RemoteObject *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    _Alignas(64) unsigned char block[CACHE_BLOCK_BYTES];
    assert(bytes >= 0 && offset >= 0 && offset + bytes <= object->bytes);
    for (int64_t done = 0, part; done < bytes; done += part) {
        int64_t inside = (offset + done) % CACHE_BLOCK_BYTES;
        part = int_min(CACHE_BLOCK_BYTES - inside, bytes - done);
        if (!read_block(object, (offset + done) / CACHE_BLOCK_BYTES, block, error)) return false;
        memcpy((char *)data + done, block + inside, (size_t)part);
    }
    return true;
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static uint64_t identity_of(const RemoteObject *object) {
    SCOPED_FREE char *text = memory_format("%s %" PRId64 " %s", object->path, object->bytes, object->etag);
    return hash_bytes(text, strlen(text));
}

static bool read_objects(Remote *remote, json_t *list, const char *prefix) {
    size_t i;
    json_t *item;
    remote->objects = memory_allocate((json_array_size(list) + 1) * sizeof *remote->objects);
    json_array_foreach(list, i, item) {
        const char *name, *etag;
        json_int_t bytes;
        if (json_unpack(item, "{s:s, s:I, s:s}", "name", &name, "bytes", &bytes, "etag", &etag) != 0 || bytes < 0) return false;
        RemoteObject *object = &remote->objects[remote->object_count++];
        *object = (RemoteObject){.remote = remote,
            .name = memory_copy_string(name),
            .key = memory_format("%s%s", prefix, name),
            .path = memory_format("%s/%s", remote->url, name),
            .etag = memory_copy_string(etag),
            .bytes = bytes};
        object->id = identity_of(object);
    }
    return remote->object_count > 0;
}

static bool start_workers(Remote *remote, Error *error) {
    for (; remote->worker_count < WORKERS; remote->worker_count++) {
        Worker *worker = &remote->workers[remote->worker_count];
        worker->remote = remote;
        int status = thread_start(&worker->thread, worker_run, worker);
        if (status)
            return error_set(error, ERROR_INTERNAL, "cannot start a thread that fetches data: %s; raise the limit on processes (ulimit -u)",
                strerror(status));
    }
    return true;
}

static bool open_remote_record(Remote *remote, const char *path, json_t *record, Error *error) {
    const char *url, *bucket, *prefix, *cache;
    json_int_t bytes;
    json_t *objects;
    if (json_unpack(record, "{s:s, s:s, s:s, s:s, s:I, s:F, s:o}", "url", &url, "bucket", &bucket, "prefix", &prefix, "cache", &cache,
            "cache_bytes", &bytes, "patience", &remote->patience, "objects", &objects) != 0)
        return error_set(error, ERROR_DATA, "%s is not a valid record of a source in a bucket: remove it and restart", path);
    remote->url = memory_copy_string(url);
    remote->ahead = bytes / AHEAD_SHARE;
    if (!read_objects(remote, objects, prefix)) return error_set(error, ERROR_DATA, "%s lists no objects: remove it and restart", path);
    remote->s3 = s3_open(bucket, error);
    return remote->s3 && block_cache_open(&remote->cache, cache, bytes, error) && start_workers(remote, error);
}

bool remote_open(Remote **opened, const char *folder, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/%s", folder, REMOTE_RECORD);
    *opened = NULL;
    if (!file_exists(path)) return true;
    SCOPED_FREE char *text = file_read(path, RECORD_LIMIT, NULL, error);
    if (!text) return error_recode(error, ERROR_DATA);
    json_auto_t *record = json_loads(text, 0, NULL);
    Remote *remote = memory_allocate(sizeof *remote);
    pthread_mutex_init(&remote->mutex, NULL);
    pthread_cond_init(&remote->changed, NULL);
    if (open_remote_record(remote, path, record, error)) {
        *opened = remote;
        return true;
    }
    remote_close(remote);
    return false;
}

void remote_close(Remote *remote) {
    if (!remote) return;
    pthread_mutex_lock(&remote->mutex);
    remote->stop = true;
    pthread_cond_broadcast(&remote->changed);
    pthread_mutex_unlock(&remote->mutex);
    if (remote->s3) s3_cancel(remote->s3);
    for (int i = 0; i < remote->worker_count; i++) pthread_join(remote->workers[i].thread, NULL);
    for (size_t i = 0; i < remote->object_count; i++) {
        RemoteObject *object = &remote->objects[i];
        free(object->name), free(object->key), free(object->path), free(object->etag);
    }
    s3_close(remote->s3);
    block_cache_close(&remote->cache);
    pthread_cond_destroy(&remote->changed);
    pthread_mutex_destroy(&remote->mutex);
    free(remote->objects);
    free(remote->queue);
    free(remote->url);
    free(remote);
}
