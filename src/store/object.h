/* Reads files of this machine and objects of a bucket at any offset.
 *
 * A request to a bucket takes tens of milliseconds. A reader therefore says which ranges it will
 * read (object_expect). Threads then fetch them ahead, in parts of at most OBJECT_PART_BYTES, and
 * at most OBJECT_AHEAD_BYTES are in memory before they are read. A read outside these ranges is
 * another request. Requests name the ETag, so a replaced object is an error, not a mix of two.
 *
 * One thread reads an object. Failures are ERROR_CHECKPOINT, as of base/file.h and store/s3.h. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "store/s3.h"

enum { OBJECT_PART_BYTES = 4 << 20, OBJECT_AHEAD_BYTES = 64 << 20 };

/* A file or an object. Everything is borrowed, and must outlive the Object. */
typedef struct ObjectPlace {
    const char *path;       /* of a file; of an object, its name in messages */
    S3 *s3;                 /* of an object; NULL: a file of this machine */
    const char *key, *etag; /* of an object */
    int64_t bytes;          /* of an object */
} ObjectPlace;

typedef struct Object Object;
/* Opens a regular file, or an object, without a request. */
Object *object_open(const ObjectPlace *place, Error *error);
int64_t object_bytes(const Object *object);
/* Requests the first bytes of an object, and returns at once, for a reader of many small objects.
 * Called at most once, before the first read; has no effect for files. */
void object_begin(Object *object, int64_t bytes);
/* Reads exactly `bytes` at `offset`. */
bool object_read(Object *object, void *data, int64_t bytes, int64_t offset, Error *error);

typedef struct ObjectRange { int64_t start, end; } ObjectRange;
/* Announces reads: the groups of `width` ranges one after the other, and the ranges of a group side
 * by side, each from its start on. Called at most once; has no effect for files. */
void object_expect(Object *object, const ObjectRange *ranges, size_t count, size_t width);
/* Waits for running requests. NULL is fine. */
void object_close(Object *object);
