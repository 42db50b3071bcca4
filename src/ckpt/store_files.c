/* Stores on a file system: objects are files that get their names once they are synced. A file is written by a few
 * threads, which is what it takes to keep a fast disk busy, in aligned blocks that each gathers from the caller's memory.
 * Owns no memory beyond a call. Called through store.c, and by the writer of safetensors files. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/log.h"
#include "base/memory.h"
#include "ckpt/store_internal.h"

enum { WRITER_THREADS = 4, WRITE_BYTES = 4 * BLOCK_BYTES, SECTOR_BYTES = 4096 };

/* -- Writing ------------------------------------------------------------------------------------------------------ */

/* Asks for all the space at once: a full disk is noticed before anything is written. */
static bool space_reserve(int file, const char *path, int64_t bytes, Error *error) {
    int result;
    do result = bytes > 0 ? fallocate(file, 0, 0, bytes) : 0;
    while (result != 0 && errno == EINTR);
    if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) return files_fail(error, "write", path, errno);
    return true;
}

/* A file that is being written from spans, of which span i begins at byte offsets[i]. */
typedef struct Writing {
    int file;
    bool direct;
    const char *path;
    const StoreSpan *spans;
    size_t count;
    int64_t *offsets; /* count + 1 */
} Writing;

/* The first span that ends behind byte `at`. */
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
        int64_t from = at + done - writing->offsets[i], length = writing->spans[i].bytes - from;
        length = length < bytes - done ? length : bytes - done;
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

/* Writes the block from byte `at` on; past the end of the file the last sector is filled up, and cut off afterwards. */
static bool block_write(const Writing *writing, char *block, int64_t at, Error *error) {
    int64_t left = writing->offsets[writing->count] - at, bytes = left < WRITE_BYTES ? left : WRITE_BYTES;
    int64_t whole = (bytes + SECTOR_BYTES - 1) / SECTOR_BYTES * SECTOR_BYTES;
    block_gather(writing, block, at, bytes);
    spans_hash(writing, at, bytes);
    return files_write_at(writing->file, writing->path, block, writing->direct ? whole : bytes, at, error);
}

static int writer_threads(int64_t bytes) { return bytes < PARALLEL_BYTES ? 1 : WRITER_THREADS; }

static bool blocks_write(const Writing *writing, Error *error) {
    const int64_t bytes = writing->offsets[writing->count];
    bool good = true;
#pragma omp parallel num_threads(writer_threads(bytes))
    {
        Error own = {0};
        char *block = memory_map(WRITE_BYTES, &own);
#pragma omp for schedule(dynamic)
        for (int64_t at = 0; at < bytes; at += WRITE_BYTES) {
            bool going;
#pragma omp atomic read
            going = good;
            if (going && !(block && block_write(writing, block, at, &own))) {
#pragma omp critical(store_files_write_error)
                {
                    *error = own;
#pragma omp atomic write
                    good = false;
                }
            }
        }
        memory_unmap(block, WRITE_BYTES);
    }
    return good;
}

/* Large files go past the page cache: that is faster where a sync follows anyway, and leaves cores and memory to the
 * training. Not every file system can do it. */
static int file_create(const char *path, int64_t bytes, bool *direct, Error *error) {
    int file = files_open_write(path, error);
    int flags = file >= 0 && bytes >= PARALLEL_BYTES ? fcntl(file, F_GETFL) : -1;
    *direct = flags >= 0 && fcntl(file, F_SETFL, flags | O_DIRECT) == 0;
    return file;
}

static bool contents_write(const Writing *writing, Error *error) {
    int64_t bytes = writing->offsets[writing->count];
    if (!space_reserve(writing->file, writing->path, bytes, error) || !blocks_write(writing, error)) return false;
    return !writing->direct || ftruncate(writing->file, bytes) == 0 || files_fail(error, "write", writing->path, errno);
}

bool files_put(const char *path, const StoreSpan *spans, size_t count, Error *error) {
    char *temporary = memory_format("%s.partial-%ld", path, (long)getpid());
    Writing writing = {.path = path, .spans = spans, .count = count, .offsets = memory_allocate((count + 1) * sizeof *writing.offsets)};
    for (size_t i = 0; i < count; i++) writing.offsets[i + 1] = writing.offsets[i] + spans[i].bytes;
    writing.file = file_create(temporary, writing.offsets[count], &writing.direct, error);
    bool good = writing.file >= 0;
    if (good) {
        good = files_sync_close(writing.file, path, contents_write(&writing, error), error);
        if (good && rename(temporary, path) != 0) good = files_fail(error, "replace", path, errno);
        if (!good) unlink(temporary);
    }
    free(writing.offsets);
    free(temporary);
    return good && files_sync_parent(path, error);
}

static bool parent_make(const char *path, Error *error) {
    char *parent = memory_copy_string(path), *slash = strrchr(parent, '/');
    if (slash) *slash = '\0';
    bool good = !slash || slash == parent || files_make_folder(parent, error);
    free(parent);
    return good;
}

static bool put(Store *store, const char *name, const StoreSpan *spans, size_t count, Error *error) {
    char *path = store_path(store, name);
    bool good = parent_make(path, error) && files_put(path, spans, count, error);
    free(path);
    return good;
}

/* -- Reading ------------------------------------------------------------------------------------------------------ */

static bool object_open(Store *store, StoreObject *object, Error *error) {
    char *path = store_path(store, object->name);
    object->file = files_open_read(path, &object->bytes, error);
    free(path);
    return object->file >= 0;
}

static bool object_read(Store *store, const StoreObject *object, void *data, int64_t bytes, int64_t offset, Error *error) {
    char *path = store_path(store, object->name);
    bool good = files_read_at(object->file, path, data, bytes, offset, error);
    free(path);
    return good;
}

static bool is_folder_entry(const char *path, const struct dirent *entry) {
    if (entry->d_type != DT_UNKNOWN) return entry->d_type == DT_DIR;
    struct stat status;
    char *name = memory_format("%s/%s", path, entry->d_name);
    bool folder = lstat(name, &status) == 0 && S_ISDIR(status.st_mode);
    free(name);
    return folder;
}

static bool list(Store *store, const char *name, StoreListing *listing, Error *error) {
    char *path = store_path(store, name);
    DIR *folder = opendir(path);
    bool good = folder || errno == ENOENT || files_fail(error, "open folder", path, errno);
    if (folder) {
        struct dirent *entry;
        while (errno = 0, (entry = readdir(folder)))
            if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
                store_listing_append(listing, entry->d_name, strlen(entry->d_name), is_folder_entry(path, entry));
        good = errno == 0 || files_fail(error, "read folder", path, errno);
        closedir(folder);
    }
    free(path);
    return good;
}

/* -- Names -------------------------------------------------------------------------------------------------------- */

static bool link_object(Store *store, const char *from, const char *to, Error *error) {
    char *old = store_path(store, from), *new = store_path(store, to);
    bool good = parent_make(new, error);
    if (good && link(old, new) != 0 && errno != EEXIST) good = files_fail(error, "link", old, errno);
    free(new);
    free(old);
    return good;
}

static bool remove_object(Store *store, const char *name, Error *error) {
    char *path = store_path(store, name);
    bool good = files_remove_tree(path, error);
    free(path);
    return good;
}

/* Moves `to` away where two names cannot be exchanged. */
static bool replace_by_turns(const char *from, const char *to, const char *aside, Error *error) {
    if (rename(to, aside) != 0) return files_fail(error, "rename", to, errno);
    if (rename(from, to) == 0) return true;
    int code = errno;
    if (rename(aside, to) != 0) log_warn("%s could not be put back; the next start does", to);
    return files_fail(error, "rename", from, code);
}

static bool replace(const char *from, const char *to, const char *aside, Error *error) {
    if (rename(from, to) == 0) return true;
    if (errno != ENOTEMPTY && errno != EEXIST) return files_fail(error, "rename", from, errno);
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return true;
    if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP) return files_fail(error, "replace", to, errno);
    return replace_by_turns(from, to, aside, error);
}

static bool rename_folder(Store *store, const char *from, const char *to, const char *aside, Error *error) {
    char *old = store_path(store, from), *new = store_path(store, to), *away = store_path(store, aside);
    bool good = replace(old, new, away, error) && files_sync_parent(new, error);
    free(away);
    free(new);
    free(old);
    return good;
}

static const StoreKind files_kind = {
    .block_bytes = BLOCK_BYTES,
    .put = put,
    .object_open = object_open,
    .object_read = object_read,
    .list = list,
    .link = link_object,
    .remove = remove_object,
    .rename = rename_folder,
};

Store *store_files_open(const char *where, Error *error) {
    if (where[0] == '\0') {
        error_set(error, ERROR_USAGE, "a folder for checkpoints needs a name");
        return NULL;
    }
    Store *store = memory_allocate(sizeof *store);
    size_t length = strlen(where);
    while (length > 1 && where[length - 1] == '/') length--;
    *store = (Store){.kind = &files_kind, .where = memory_format("%.*s", (int)length, where)};
    return store;
}
