/* Stores on a file system: objects are files that get their names after they are synced. A few
 * threads, enough to keep a fast disk busy, write a file in aligned blocks that are gathered from
 * the caller's memory. Owns no memory beyond a call. Called through store.c, and by the writer of
 * safetensors files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/strings.h"
#include "base/scope.h"
#include "base/thread.h"
#include "ckpt/store_kind_internal.h"

enum { WRITER_THREADS = 4, WRITE_BYTES = 4 * BLOCK_BYTES };

/* -- Writing ------------------------------------------------------------------------------------------------------ */

/* A file that is being written from spans; span i begins at byte offsets[i]. */
typedef struct Writing {
    File file;
    bool direct; /* bypasses the page cache */
    const StoreSpan *spans;
    size_t count;
    const int64_t *offsets; /* count + 1 */
} Writing;

/* Returns the first span that ends after byte `at`. */
static size_t span_find(const Writing *writing, int64_t at) {
    size_t low = 0, high = writing->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (writing->offsets[middle + 1] <= at) low = middle + 1;
        else high = middle;
    }
    return low;
}

static void block_gather(const Writing *writing, char *block, int64_t at, int64_t bytes) {
    size_t i = span_find(writing, at);
    for (int64_t done = 0; done < bytes; i++) {
        int64_t from = at + done - writing->offsets[i], length = int_min(writing->spans[i].bytes - from, bytes - done);
        if (length > 0) memcpy(block + done, (const char *)writing->spans[i].data + from, (size_t)length);
        done += length;
    }
}

/* Hashes the spans that end in a block: one thread computes while others wait for the disk. */
static void spans_hash(const Writing *writing, int64_t at, int64_t bytes) {
    int64_t last = at + bytes;
    for (size_t i = at > 0 ? span_find(writing, at) : 0; i < writing->count && writing->offsets[i + 1] <= last; i++)
        if (writing->spans[i].hash) *writing->spans[i].hash = XXH3_64bits(writing->spans[i].data, (size_t)writing->spans[i].bytes);
}

/* Writes the block at byte `at`. At the end of the file the last sector is padded, and truncated
 * afterwards. */
static bool block_write(const Writing *writing, char *block, int64_t at, Error *error) {
    int64_t bytes = int_min(writing->offsets[writing->count] - at, WRITE_BYTES);
    block_gather(writing, block, at, bytes);
    spans_hash(writing, at, bytes);
    return file_write_at(&writing->file, block, writing->direct ? round_up(bytes, FILE_SECTOR_BYTES) : bytes, at, error);
}

static int writer_threads(int64_t bytes) { return bytes < PARALLEL_BYTES ? 1 : WRITER_THREADS; }

static bool blocks_write(const Writing *writing, Error *error) {
    const int64_t bytes = writing->offsets[writing->count];
    bool good = true;
#pragma omp parallel num_threads(writer_threads(bytes))
    {
        Error failure = {0};
        char *block = memory_map(WRITE_BYTES, &failure);
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < bytes; at += WRITE_BYTES)
            if (loop_going(&good) && !(block && block_write(writing, block, at, &failure))) loop_fail(&good, &failure, error);
        memory_unmap(block, WRITE_BYTES);
    }
    return good;
}

static bool contents_write(Writing *writing, Error *error) {
    int64_t bytes = writing->offsets[writing->count];
    /* Large files bypass the page cache: this is faster if a sync follows, and leaves cores and
     * memory to training. Not every file system supports it. */
    writing->direct = bytes >= PARALLEL_BYTES && file_bypass_cache(&writing->file);
    return file_reserve(&writing->file, bytes, error) && blocks_write(writing, error) &&
           (!writing->direct || file_truncate(&writing->file, bytes, error));
}

bool file_write_spans(const char *path, const StoreSpan *spans, size_t count, Error *error) {
    SCOPED_FREE int64_t *offsets = memory_allocate((count + 1) * sizeof *offsets);
    for (size_t i = 0; i < count; i++) offsets[i + 1] = offsets[i] + spans[i].bytes;
    Writing writing = {.spans = spans, .count = count, .offsets = offsets};
    if (!file_replace_begin(&writing.file, path, error)) return false;
    bool good = contents_write(&writing, error) && file_replace_commit(&writing.file, error);
    file_close(&writing.file);
    return good;
}

/* -- The kind of stores on a file system ---------------------------------------------------------------------------- */

static bool make_store_folder(Store *store, Error *error) { return file_make_folder(store->where, error); }

static bool make_parents(const Store *store, const char *path, Error *error) { return file_make_parents_below(store->where, path, error); }

static bool put_file(Store *store, const char *path, const StoreSpan *spans, size_t count, Error *error) {
    return make_parents(store, path, error) && file_write_spans(path, spans, count, error);
}

static bool create_file(Store *store, const char *path, const StoreSpan *span, bool *exists, Error *error) {
    bool created = make_parents(store, path, error) && file_create(path, span->data, span->bytes, error);
    *exists = !created && errno == EEXIST;
    return created;
}

static bool object_open(StoreObject *object, Error *error) {
    bool good = file_open(&object->file, object->path.text, error);
    object->bytes = object->file.bytes;
    return good;
}

static bool object_read(const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    return file_read_at(&object->file, data, bytes, offset, error);
}

static bool list_store_folder(Store *store, const char *folder, FileList *list, Error *error) {
    (void)store;
    return file_list(folder, list, error) || error->finding == FINDING_ABSENT;
}

static bool link_object(Store *store, const char *from, const char *to, Error *error) {
    return make_parents(store, to, error) && file_link(from, to, error);
}

static bool remove_object(Store *store, const char *path, Error *error) {
    (void)store;
    return file_remove(path, error);
}

static bool rename_folder(Store *store, const char *from, const char *to, const char *aside, Error *error) {
    (void)store;
    return file_exchange_folder(from, to, aside, error);
}

static const StoreKind files_kind = {
    .block_bytes = BLOCK_BYTES,
    .make = make_store_folder,
    .put = put_file,
    .create = create_file,
    .object_open = object_open,
    .object_read = object_read,
    .list = list_store_folder,
    .link = link_object,
    .remove = remove_object,
    .rename = rename_folder,
};

Store *store_files_open(const char *where, Error *error) {
    if (where[0] == '\0') {
        error_set(error, ERROR_USAGE, "the name of the checkpoint folder is empty: give a path");
        return NULL;
    }
    Store *store = memory_allocate(sizeof *store);
    *store = (Store){.kind = &files_kind, .where = memory_format("%.*s", (int)path_length(where), where)};
    return store;
}
