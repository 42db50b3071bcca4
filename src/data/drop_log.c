/* The documents that a packing drops, for people and scripts to look at: a line of JSON for each, in
 * frames of zstd that end with each flush, so that a packing that was killed continues after the
 * last one. A DropLog owns its file and buffers. */
#include <stdlib.h>
#include <string.h>

#include <zstd.h>

#include "base/array.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/pack_internal.h"

enum { BUFFER = 1 << 20 };

struct DropLog {
    File file;
    bool replaces;
    int64_t bytes; /* of whole frames */
    char *lines;   /* not compressed yet */
    size_t size, capacity;
};

bool drop_log_is(const char *path) {
    enum { START = 1 << 16 };
    Error ignored = {0};
    size_t size = 0;
    SCOPED_FREE char *text = memory_allocate(START);
    Input *input = input_open(&(ObjectPlace){.path = path}, NULL, &ignored);
    bool read = input && input_compressed(input) && input_read(input, text, START, &size, &ignored);
    input_close(input);
    const char *end = read && size > 0 ? memchr(text, '\n', size) : NULL;
    json_auto_t *entry = end ? json_loadb(text, (size_t)(end - text), 0, NULL) : NULL;
    return read && (size == 0 || (json_object_get(entry, "rule") && json_object_get(entry, "line")));
}

DropLog *drop_log_open(const char *path, Error *error) {
    DropLog *log = memory_allocate(sizeof *log);
    log->replaces = true;
    if (file_replace_begin(&log->file, path, error)) return log;
    drop_log_free(log);
    return NULL;
}

DropLog *drop_log_append(const char *path, int64_t bytes, Error *error) {
    DropLog *log = memory_allocate(sizeof *log);
    log->bytes = bytes;
    if (file_open_append(&log->file, path, false, error) && file_truncate(&log->file, bytes, error)) return log;
    drop_log_free(log);
    return NULL;
}

/* Writes the lines as a frame. */
static bool write_frame(DropLog *log, Error *error) {
    size_t room = ZSTD_compressBound(log->size);
    if (log->size == 0 && log->bytes > 0) return true; /* else a frame of nothing, so that the file can be read */
    SCOPED_FREE char *frame = memory_allocate(room);
    size_t size = ZSTD_compress(frame, room, log->lines, log->size, 3);
    if (ZSTD_isError(size)) return error_set(error, ERROR_MEMORY, "cannot compress %s: %s", log->file.path, ZSTD_getErrorName(size));
    if (!file_append(&log->file, frame, (int64_t)size, error)) return false;
    log->bytes += (int64_t)size;
    log->size = 0;
    return true;
}

bool drop_log_add(DropLog *log, const Drop *drop, Error *error) {
    json_auto_t *entry =
        json_pack("{so sI so}", "file", pack_json_text(drop->file), "line", (json_int_t)drop->line, "rule", pack_json_text(drop->rule));
    json_t *value = json_loads(drop->value, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    json_object_set_new(entry, "value", value ? value : pack_json_text(drop->value));
    if (drop->first_file)
        json_object_set_new(
            entry, "repeats", json_pack("{so sI}", "file", pack_json_text(drop->first_file), "line", (json_int_t)drop->first_line));
    SCOPED_FREE char *text = json_dumps(entry, JSON_COMPACT);
    if (!text) memory_refused(1 << 10);
    size_t size = strlen(text);
    array_reserve(log->lines, log->capacity, log->size + size + 1);
    memcpy(log->lines + log->size, text, size);
    log->lines[log->size + size] = '\n';
    log->size += size + 1;
    return log->size < BUFFER || write_frame(log, error);
}

bool drop_log_flush(DropLog *log, int64_t *bytes, Error *error) {
    if (!write_frame(log, error) || !file_sync(&log->file, error)) return false;
    *bytes = log->bytes;
    return true;
}

bool drop_log_finish(DropLog *log, Error *error) {
    int64_t bytes;
    return drop_log_flush(log, &bytes, error) && (!log->replaces || file_replace_commit(&log->file, error));
}

void drop_log_free(DropLog *log) {
    if (!log) return;
    file_close(&log->file);
    free(log->lines);
    free(log);
}
