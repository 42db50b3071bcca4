/* Writes token shards (the format is described in shard.c). Tokens stream through one buffer into a temporary file
 * beside the final one; only lengths and document ends stay in memory, 12 bytes a document. Both files are flushed to
 * the disk before they get their names, and the index comes last, after an older one has gone: so an index belongs to
 * the tokens beside it wherever the process stops, and its checksum proves it. What cannot be written is
 * ERROR_CHECKPOINT, as for all files of a run. pack.c writes shards. */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/log.h"
#include "base/memory.h"
#include "data/data.h"
#include "data/data_internal.h"

enum { BUFFER_BYTES = 1 << 18, TEMPORARY_NAMES = 100 };

/* A file on its way: buffered, hashed as it goes, under a temporary name until it is published. */
typedef struct OutputFile {
    char *path, *temporary; /* temporary is NULL when there is nothing to remove */
    int descriptor;
    unsigned char *buffer;
    size_t used;
    XXH3_state_t *hash;
} OutputFile;

struct ShardWriter {
    char *prefix;
    int token_bytes;
    OutputFile tokens;
    int32_t *lengths; /* of the sequences that are complete */
    int64_t sequence_count, sequence_capacity;
    int64_t *document_ends; /* in sequences */
    int64_t document_count, document_capacity;
    int64_t open_tokens; /* of the sequence being written */
};

/* -- Output files ------------------------------------------------------------------------------------------------ */

static bool output_open(OutputFile *file, const char *prefix, const char *suffix, Error *error) {
    *file = (OutputFile){.path = memory_format("%s%s", prefix, suffix), .descriptor = -1};
    file->buffer = memory_allocate(BUFFER_BYTES);
    file->hash = XXH3_createState();
    if (!file->hash) return error_set(error, ERROR_MEMORY, "no memory to write %s; free some", file->path);
    XXH3_64bits_reset(file->hash);
    for (int attempt = 0; attempt < TEMPORARY_NAMES; attempt++) {
        char *name = memory_format("%s.tmp-%ld-%d", file->path, (long)getpid(), attempt);
        file->descriptor = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (file->descriptor >= 0) {
            file->temporary = name;
            return true;
        }
        free(name);
        if (errno == ENOSPC || errno == EDQUOT)
            return error_set(
                error, ERROR_CHECKPOINT, "cannot create %s: %s; free space there or name another output", file->path, strerror(errno));
        if (errno != EEXIST)
            return error_set(error, ERROR_USAGE,
                "cannot create %s: %s; name an output in a folder that exists and can be "
                "written",
                file->path, strerror(errno));
    }
    return error_set(error, ERROR_USAGE, "%d temporary files beside %s are left from earlier runs; remove its .tmp-* files",
        TEMPORARY_NAMES, file->path);
}

/* Also of a file that failed to open or was published; what still has a temporary name disappears. */
static void output_close(OutputFile *file) {
    if (file->descriptor >= 0) close(file->descriptor);
    if (file->temporary) unlink(file->temporary);
    if (file->hash) XXH3_freeState(file->hash);
    free(file->temporary);
    free(file->path);
    free(file->buffer);
}

/* Whether output_open could have made this name. */
static bool is_temporary(const char *name) {
    const char *mark = strstr(name, ".tmp-");
    if (!mark || mark - name < 4 || (strncmp(mark - 4, ".bin", 4) != 0 && strncmp(mark - 4, ".idx", 4) != 0)) return false;
    return mark[strlen(".tmp-") + strspn(mark + strlen(".tmp-"), "0123456789-")] == '\0';
}

void shard_writer_remove_leftovers(const char *path) {
    DIR *folder = opendir(path);
    if (!folder) return;
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL)
        if (is_temporary(entry->d_name) && unlinkat(dirfd(folder), entry->d_name, 0) != 0)
            log_warn("cannot remove %s/%s, which a killed process left: %s", path, entry->d_name, strerror(errno));
    closedir(folder);
}

static bool output_flush(OutputFile *file, Error *error) {
    XXH3_64bits_update(file->hash, file->buffer, file->used);
    for (size_t written = 0; written < file->used;) {
        ssize_t result = write(file->descriptor, file->buffer + written, file->used - written);
        if (result < 0 && errno == EINTR) continue;
        if (result <= 0)
            return error_set(error, ERROR_CHECKPOINT, "cannot write %zu bytes to %s: %s; free space there or name another output",
                file->used - written, file->temporary, strerror(errno));
        written += (size_t)result;
    }
    file->used = 0;
    return true;
}

/* `size` is far below BUFFER_BYTES. */
static bool output_write(OutputFile *file, const void *bytes, size_t size, Error *error) {
    if (BUFFER_BYTES - file->used < size && !output_flush(file, error)) return false;
    memcpy(file->buffer + file->used, bytes, size);
    file->used += size;
    return true;
}

static bool output_sync(OutputFile *file, Error *error) {
    if (!output_flush(file, error)) return false;
    if (fsync(file->descriptor) == 0) return true;
    return error_set(error, ERROR_CHECKPOINT, "cannot flush %s to the disk: %s; free space there or name another output", file->temporary,
        strerror(errno));
}

static bool output_publish(OutputFile *file, Error *error) {
    if (rename(file->temporary, file->path) != 0)
        return error_set(
            error, ERROR_CHECKPOINT, "cannot rename %s to %s: %s; name another output", file->temporary, file->path, strerror(errno));
    free(file->temporary);
    file->temporary = NULL;
    return true;
}

/* -- Tokens ------------------------------------------------------------------------------------------------------ */

ShardWriter *shard_writer_open(const char *prefix, int token_bytes, Error *error) {
    assert(token_bytes == 1 || token_bytes == 2 || token_bytes == 4);
    ShardWriter *writer = memory_allocate(sizeof *writer);
    writer->prefix = memory_copy_string(prefix);
    writer->token_bytes = token_bytes;
    if (output_open(&writer->tokens, prefix, ".bin", error)) return writer;
    shard_writer_cancel(writer);
    return NULL;
}

void shard_writer_cancel(ShardWriter *writer) {
    if (!writer) return;
    output_close(&writer->tokens);
    free(writer->lengths);
    free(writer->document_ends);
    free(writer->prefix);
    free(writer);
}

/* One loop for each token type. The result has every bit that is set in any token, so one test finds a token that does
 * not fit. */
#define STORE_TOKENS(NAME, TYPE)                                                                \
    static uint32_t NAME(TYPE *restrict target, const int32_t *restrict tokens, size_t count) { \
        uint32_t bits = 0;                                                                      \
        _Pragma("omp simd reduction(| : bits)") for (size_t i = 0; i < count; i++) {            \
            bits |= (uint32_t)tokens[i];                                                        \
            target[i] = (TYPE)tokens[i];                                                        \
        }                                                                                       \
        return bits;                                                                            \
    }
STORE_TOKENS(store_u8, uint8_t)
STORE_TOKENS(store_u16, uint16_t)
STORE_TOKENS(store_i32, int32_t)

static uint32_t store_tokens(void *target, const int32_t *tokens, size_t count, int token_bytes) {
    switch (token_bytes) {
    case 1: return store_u8(target, tokens, count);
    case 2: return store_u16(target, tokens, count);
    default: return store_i32(target, tokens, count);
    }
}

static void writer_end_sequence(ShardWriter *writer) {
    if (writer->sequence_count == writer->sequence_capacity) {
        writer->sequence_capacity = writer->sequence_capacity ? writer->sequence_capacity * 2 : 1024;
        writer->lengths = memory_resize(writer->lengths, (size_t)writer->sequence_capacity * sizeof *writer->lengths);
    }
    writer->lengths[writer->sequence_count++] = (int32_t)writer->open_tokens;
    writer->open_tokens = 0;
}

static bool refuse_token(const ShardWriter *writer, const int32_t *tokens, int64_t limit, Error *error) {
    while (*tokens >= 0 && *tokens <= limit) tokens++;
    return error_set(error, ERROR_DATA,
        "token %" PRId32 " does not fit into %s, which holds 0 to %" PRId64 " in %d bytes each; "
        "write the shard with wider tokens",
        *tokens, writer->tokens.path, limit, writer->token_bytes);
}

bool shard_writer_append(ShardWriter *writer, const int32_t *tokens, int64_t count, Error *error) {
    OutputFile *file = &writer->tokens;
    size_t width = (size_t)writer->token_bytes;
    int64_t limit = writer->token_bytes == 4 ? INT32_MAX : (1 << 8 * writer->token_bytes) - 1;
    while (count > 0) {
        if (file->used == BUFFER_BYTES && !output_flush(file, error)) return false;
        if (writer->open_tokens == INT32_MAX) writer_end_sequence(writer);
        int64_t part = (int64_t)((BUFFER_BYTES - file->used) / width);
        if (part > count) part = count;
        if (part > INT32_MAX - writer->open_tokens) part = INT32_MAX - writer->open_tokens;
        uint32_t bits = store_tokens(file->buffer + file->used, tokens, (size_t)part, writer->token_bytes);
        if (bits > (uint32_t)limit) return refuse_token(writer, tokens, limit, error);
        file->used += (size_t)part * width;
        writer->open_tokens += part;
        tokens += part;
        count -= part;
    }
    return true;
}

void shard_writer_end_document(ShardWriter *writer) {
    if (writer->open_tokens > 0) writer_end_sequence(writer);
    if (writer->document_count == writer->document_capacity) {
        writer->document_capacity = writer->document_capacity ? writer->document_capacity * 2 : 1024;
        writer->document_ends = memory_resize(writer->document_ends, (size_t)writer->document_capacity * sizeof *writer->document_ends);
    }
    writer->document_ends[writer->document_count++] = writer->sequence_count;
}

bool shard_writer_document(ShardWriter *writer, const int32_t *tokens, int64_t count, Error *error) {
    if (!shard_writer_append(writer, tokens, count, error)) return false;
    shard_writer_end_document(writer);
    return true;
}

/* -- Finishing --------------------------------------------------------------------------------------------------- */

static bool write_u64(OutputFile *file, uint64_t value, Error *error) { return output_write(file, &value, sizeof value, error); }

static bool write_index(const ShardWriter *writer, OutputFile *file, uint64_t tokens_checksum, Error *error) {
    unsigned char code = (unsigned char)shard_type_code(writer->token_bytes);
    bool good = output_write(file, SHARD_MAGIC, sizeof SHARD_MAGIC, error) && write_u64(file, SHARD_VERSION, error) &&
                output_write(file, &code, 1, error) && write_u64(file, (uint64_t)writer->sequence_count, error) &&
                write_u64(file, (uint64_t)writer->document_count + 1, error);
    for (int64_t i = 0; good && i < writer->sequence_count; i++)
        good = output_write(file, &writer->lengths[i], sizeof writer->lengths[i], error);
    uint64_t offset = 0;
    for (int64_t i = 0; good && i < writer->sequence_count; i++) {
        good = write_u64(file, offset, error);
        offset += (uint64_t)writer->lengths[i] * (uint64_t)writer->token_bytes;
    }
    good = good && write_u64(file, 0, error);
    for (int64_t i = 0; good && i < writer->document_count; i++) good = write_u64(file, (uint64_t)writer->document_ends[i], error);
    good =
        good && output_write(file, SHARD_CHECKSUM_MAGIC, 8, error) && write_u64(file, tokens_checksum, error) && output_flush(file, error);
    return good && write_u64(file, XXH3_64bits_digest(file->hash), error) && output_sync(file, error);
}

/* Makes the new names last through a power cut. */
static bool sync_folder(const char *prefix, Error *error) {
    const char *slash = strrchr(prefix, '/');
    char *folder = slash ? memory_format("%.*s/", (int)(slash - prefix), prefix) : memory_copy_string(".");
    int descriptor = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool good = descriptor >= 0 && (fsync(descriptor) == 0 || errno == EINVAL);
    if (!good) error_set(error, ERROR_CHECKPOINT, "cannot flush folder %s to the disk: %s", folder, strerror(errno));
    if (descriptor >= 0) close(descriptor);
    free(folder);
    return good;
}

static bool publish(ShardWriter *writer, OutputFile *index, Error *error) {
    if (unlink(index->path) != 0 && errno != ENOENT)
        return error_set(error, ERROR_CHECKPOINT, "cannot replace %s: %s; name another output", index->path, strerror(errno));
    if (output_publish(&writer->tokens, error) && output_publish(index, error) && sync_folder(writer->prefix, error)) return true;
    if (!index->temporary) unlink(index->path);
    if (!writer->tokens.temporary) unlink(writer->tokens.path);
    return false;
}

bool shard_writer_finish(ShardWriter *writer, Error *error) {
    assert(writer->open_tokens == 0);
    OutputFile index = {.descriptor = -1};
    bool good = writer->sequence_count > 0 ||
                error_set(error, ERROR_DATA, "no tokens were written to %s; give a corpus that is not empty", writer->tokens.path);
    good = good && output_sync(&writer->tokens, error) && output_open(&index, writer->prefix, ".idx", error) &&
           write_index(writer, &index, XXH3_64bits_digest(writer->tokens.hash), error) && publish(writer, &index, error);
    output_close(&index);
    shard_writer_cancel(writer);
    return good;
}
