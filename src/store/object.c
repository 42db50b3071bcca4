/* Reads files and objects (object.h). An Object owns an open file, or the list of the parts that are
 * expected, the threads that fetch them, and their bytes; and the bytes that object_begin requested.
 * Called by readers of training data. */
#include "store/object.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

enum { WORKERS = 8, SEARCHED = 4096 /* parts that a read looks at; reads are close to the expected order */ };

typedef enum PartState { PART_WAITS, PART_FETCHING, PART_HERE, PART_FAILED, PART_DONE } PartState;

typedef struct ObjectPart {
    int64_t start, end;
    size_t group, range; /* range: index in the list of object_expect */
    double share;        /* of its range that precedes it: the order within a group */
    PartState state;
    char *bytes; /* in PART_HERE */
} ObjectPart;

struct Object {
    ObjectPlace place;
    File file;   /* of a file */
    char *start; /* its first bytes, if object_begin was called */
    int64_t start_bytes;
    pthread_t starter; /* fetches them */
    bool starting;     /* the thread has not been joined */
    ObjectPart *parts;
    size_t part_count;
    pthread_t workers[WORKERS];
    int worker_count;

    pthread_mutex_t mutex; /* protects the states of parts and the fields below */
    pthread_cond_t changed;
    size_t first, next; /* parts before `first` are done; parts before `next` are fetched or being fetched */
    int64_t held;       /* bytes of parts that are here or being fetched */
    bool stop;
    Error failure; /* of the first part that failed */
};

/* -- Requests ------------------------------------------------------------------------------------------------------ */

static bool fetch(const Object *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    const ObjectPlace *place = &object->place;
    SCOPED(s3_reply_free) S3Reply reply = {0};
    S3Request get = {.method = "GET",
        .key = place->key,
        .headers = {memory_format("Range: bytes=%" PRId64 "-%" PRId64, offset, offset + bytes - 1),
            *place->etag ? memory_format("If-Match: %s", place->etag) : NULL},
        .target = data,
        .target_bytes = bytes,
        .path = place->path};
    bool absent, good = s3_send(place->s3, get, &reply, &absent, error) && !absent;
    if (!good && (absent || reply.status == S3_PRECONDITION_FAILED))
        error_set(
            error, ERROR_CHECKPOINT, "%s was %s while it was read: run the command again", place->path, absent ? "removed" : "replaced");
    return good || error_find(error, FINDING_UNREADABLE);
}

/* Fetches a part whose state is PART_FETCHING. Called without the lock. */
static void fetch_part(Object *object, ObjectPart *part) {
    Error error = {0};
    char *bytes = memory_resize(NULL, (size_t)(part->end - part->start));
    bool good = fetch(object, bytes, part->end - part->start, part->start, &error);
    pthread_mutex_lock(&object->mutex);
    part->bytes = bytes;
    part->state = good ? PART_HERE : PART_FAILED;
    if (!good && !object->failure.code) object->failure = error;
    pthread_cond_broadcast(&object->changed);
    pthread_mutex_unlock(&object->mutex);
}

static void begin_part(Object *object, ObjectPart *part) {
    part->state = PART_FETCHING;
    object->held += part->end - part->start;
}

static void *work(void *context) {
    Object *object = context;
    pthread_mutex_lock(&object->mutex);
    while (!object->stop && object->next < object->part_count) {
        ObjectPart *part = &object->parts[object->next];
        if (part->state != PART_WAITS) object->next++;
        else if (object->held > 0 && object->held + part->end - part->start > OBJECT_AHEAD_BYTES)
            pthread_cond_wait(&object->changed, &object->mutex);
        else {
            begin_part(object, part);
            object->next++;
            pthread_mutex_unlock(&object->mutex);
            fetch_part(object, part);
            pthread_mutex_lock(&object->mutex);
        }
    }
    pthread_mutex_unlock(&object->mutex);
    return NULL;
}

/* -- Expected ranges ----------------------------------------------------------------------------------------------- */

static int compare_parts(const void *left, const void *right) {
    const ObjectPart *a = left, *b = right;
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    if (a->share < b->share || a->share > b->share) return a->share < b->share ? -1 : 1;
    if (a->range != b->range) return a->range < b->range ? -1 : 1;
    return (a->start > b->start) - (a->start < b->start);
}

void object_expect(Object *object, const ObjectRange *ranges, size_t count, size_t width) {
    assert(!object->parts);
    for (size_t i = 0; i < count && object->place.s3; i++) {
        ObjectRange range = {int_max(ranges[i].start, 0), int_min(ranges[i].end, object->place.bytes)};
        double length = (double)(range.end - range.start);
        for (int64_t at = range.start, end; at < range.end; at = end) {
            end = int_min(at + OBJECT_PART_BYTES, range.end);
            ObjectPart part = {.start = at, .end = end, .group = i / width, .range = i, .share = (double)(at - range.start) / length};
            array_append(object->parts, object->part_count, part);
        }
    }
    if (object->part_count < 2) return; /* the reader fetches a single part itself */
    qsort(object->parts, object->part_count, sizeof *object->parts, compare_parts);
    while (object->worker_count < WORKERS && (size_t)object->worker_count < object->part_count &&
           pthread_create(&object->workers[object->worker_count], NULL, work, object) == 0)
        object->worker_count++;
}

/* Returns the part with this byte; NULL: none is expected, or it was read before. */
static ObjectPart *find_part(const Object *object, int64_t offset) {
    for (size_t i = object->first; i < object->part_count && i < object->first + SEARCHED; i++) {
        ObjectPart *part = &object->parts[i];
        if (part->state != PART_DONE && offset >= part->start && offset < part->end) return part;
    }
    return NULL;
}

/* Frees the parts before `last` that will not be read again, now that reading has reached `offset`. */
static void free_before(Object *object, const ObjectPart *last, int64_t offset) {
    for (ObjectPart *part = object->parts + object->first; part < last; part++) {
        bool over = part->group < last->group || (part->range == last->range && part->end <= offset);
        if (part->state != PART_HERE || !over) continue;
        free(part->bytes);
        part->bytes = NULL;
        part->state = PART_DONE;
        object->held -= part->end - part->start;
        pthread_cond_broadcast(&object->changed);
    }
    while (object->first < object->part_count && object->parts[object->first].state == PART_DONE) object->first++;
}

/* Waits for the part with the byte `offset`, or fetches it if no thread does. *part is NULL if none
 * is expected. */
static bool take_part(Object *object, int64_t offset, ObjectPart **part, Error *error) {
    pthread_mutex_lock(&object->mutex);
    *part = find_part(object, offset);
    if (*part && (*part)->state == PART_WAITS) {
        begin_part(object, *part);
        pthread_mutex_unlock(&object->mutex);
        fetch_part(object, *part);
        pthread_mutex_lock(&object->mutex);
    }
    while (*part && (*part)->state == PART_FETCHING) pthread_cond_wait(&object->changed, &object->mutex);
    bool good = !*part || (*part)->state == PART_HERE;
    if (!good) *error = object->failure;
    pthread_mutex_unlock(&object->mutex);
    return good;
}

/* -- The start --------------------------------------------------------------------------------------------------- */

static void *fetch_start(void *context) {
    Object *object = context;
    Error ignored = {0};
    if (!fetch(object, object->start, object->start_bytes, 0, &ignored)) object->start_bytes = 0; /* the read asks again */
    return NULL;
}

void object_begin(Object *object, int64_t bytes) {
    object->start_bytes = int_min(bytes, object->place.bytes);
    if (!object->place.s3 || object->start_bytes <= 0) return;
    object->start = memory_resize(NULL, (size_t)object->start_bytes);
    object->starting = pthread_create(&object->starter, NULL, fetch_start, object) == 0;
    if (!object->starting) object->start_bytes = 0;
}

static void await_start(Object *object) {
    if (object->starting) pthread_join(object->starter, NULL);
    object->starting = false;
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

static bool read_remote(Object *object, char *to, int64_t bytes, int64_t start, Error *error) {
    for (int64_t done = 0, size; done < bytes; done += size) {
        ObjectPart *part;
        int64_t offset = start + done;
        if (!take_part(object, offset, &part, error)) return false;
        if (!part) return fetch(object, to + done, bytes - done, offset, error);
        size = int_min(part->end - offset, bytes - done);
        memcpy(to + done, part->bytes + (offset - part->start), (size_t)size);
        pthread_mutex_lock(&object->mutex);
        free_before(object, part, start);
        pthread_mutex_unlock(&object->mutex);
    }
    return true;
}

bool object_read(Object *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    if (!object->place.s3) return file_read_at(&object->file, data, bytes, offset, error);
    if (offset < 0 || bytes > object->place.bytes - offset)
        return error_set(error, ERROR_CHECKPOINT, "%s has %" PRId64 " bytes, but byte %" PRId64 " is needed", object->place.path,
                   object->place.bytes, offset + bytes) ||
               error_find(error, FINDING_DAMAGED);
    await_start(object);
    if (object->start && offset + bytes <= object->start_bytes) {
        memcpy(data, object->start + offset, (size_t)bytes);
        return true;
    }
    return read_remote(object, data, bytes, offset, error);
}

int64_t object_bytes(const Object *object) { return object->place.s3 ? object->place.bytes : object->file.bytes; }

Object *object_open(const ObjectPlace *place, Error *error) {
    Object *object = memory_allocate(sizeof *object);
    object->place = *place;
    pthread_mutex_init(&object->mutex, NULL);
    pthread_cond_init(&object->changed, NULL);
    if (place->s3 || file_open(&object->file, place->path, error)) return object;
    object_close(object);
    return NULL;
}

void object_close(Object *object) {
    if (!object) return;
    await_start(object);
    free(object->start);
    pthread_mutex_lock(&object->mutex);
    object->stop = true;
    pthread_cond_broadcast(&object->changed);
    pthread_mutex_unlock(&object->mutex);
    for (int i = 0; i < object->worker_count; i++) pthread_join(object->workers[i], NULL);
    for (size_t i = 0; i < object->part_count; i++) free(object->parts[i].bytes);
    free(object->parts);
    pthread_cond_destroy(&object->changed);
    pthread_mutex_destroy(&object->mutex);
    file_close(&object->file);
    free(object);
}
