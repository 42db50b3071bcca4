/* Writes token shards (shard_index.c describes the format) in constant memory. Tokens stream
 * through one buffer into a temporary file beside the final one. The index entries of sequences,
 * documents and blocks wait in spools, which are unnamed files. Both files are synced before they
 * get their names (shard_names.c), and the checksum in the index proves that it belongs to its
 * tokens. Called by pack.c. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "data/shard_writer_internal.h"
#include "token/tokenizer.h"
#include "data/data_internal.h"

enum { BUFFER_BYTES = 1 << 18, SPOOL_BYTES = 1 << 15 };
static_assert(BUFFER_BYTES % SHARD_BLOCK_BYTES == 0, "a buffer that is written holds whole blocks, but the last one");

/* Items that wait for the end: in memory, and in an unnamed file beyond SPOOL_BYTES. */
typedef struct Spool {
    File file;
    unsigned char *buffer;
    size_t used;
} Spool;

/* A file under a temporary name, buffered and hashed as it is written: as a whole, and block by
 * block. */
typedef struct OutputFile {
    File file;
    unsigned char *buffer; /* BUFFER_BYTES; `used` of them are not written yet */
    size_t used;
    XXH3_state_t *hash;
    Spool *blocks;      /* receives the u64 checksum of each SHARD_BLOCK_BYTES; NULL: none */
    const char *folder; /* the folder for the spool's file */
} OutputFile;

struct ShardWriter {
    char *prefix, *folder; /* folder: where the shard is */
    int token_bytes;
    OutputFile tokens, index;
    Spool lengths, ends; /* i32 per sequence, i64 per document (in sequences) */
    Spool token_blocks, index_blocks;
    XXH3_state_t *document_hash; /* hash of the document ends in tokens, i64 each; `masked`: also of the sequence ends */
    bool masked, pairs;
    int64_t sequence_count, document_count, token_count;
    int64_t open_tokens; /* of the sequence being written */
    uint32_t max_token;
    char *tokenizer; /* to record; NULL: none */
    char *template;  /* recorded with the tokenizer; NULL or "": only the tokenizer's own */
    bool owns;       /* shard_writer_cancel removes the files that wait for the names of this shard */
};

/* -- Spools ------------------------------------------------------------------------------------------------------ */

static bool spool_append(Spool *spool, const char *folder, const void *item, size_t size, Error *error) {
    if (!spool->buffer) spool->buffer = memory_allocate(SPOOL_BYTES);
    if (SPOOL_BYTES - spool->used < size) {
        if (!spool->file.path && !file_open_unnamed(&spool->file, folder, error)) return false;
        if (!file_append(&spool->file, spool->buffer, (int64_t)spool->used, error)) return false;
        spool->used = 0;
    }
    memcpy(spool->buffer + spool->used, item, size);
    spool->used += size;
    return true;
}

static int64_t spool_bytes(const Spool *spool) { return spool->file.bytes + (int64_t)spool->used; }

/* Reads the next part of the spool from byte `at` on; the caller advances by *size, which is 0 at
 * the end. */
static bool spool_read(const Spool *spool, int64_t at, void *part, size_t *size, Error *error) {
    bool written = at < spool->file.bytes;
    int64_t left = (written ? spool->file.bytes : spool_bytes(spool)) - at;
    *size = (size_t)int_min(left, SPOOL_BYTES);
    if (written) return file_read_at(&spool->file, part, (int64_t)*size, at, error);
    if (*size > 0) memcpy(part, spool->buffer + (at - spool->file.bytes), *size);
    return true;
}

static void spool_free(Spool *spool) {
    file_close(&spool->file);
    free(spool->buffer);
}

/* -- Output files ------------------------------------------------------------------------------------------------ */

static XXH3_state_t *new_hash(void) {
    XXH3_state_t *hash = XXH3_createState();
    if (hash) XXH3_64bits_reset(hash);
    return hash;
}

static bool output_open(OutputFile *output, const char *prefix, const char *suffix, const char *folder, Spool *blocks, Error *error) {
    SCOPED_FREE char *name = memory_format("%s%s", prefix, suffix), *path = shard_next(name);
    output->blocks = blocks;
    output->folder = folder;
    if (!file_replace_begin(&output->file, path, error))
        return errno == ENOSPC || errno == EDQUOT ? false : error_recode(error, ERROR_USAGE);
    output->buffer = memory_allocate(BUFFER_BYTES);
    output->hash = new_hash();
    return output->hash || error_set(error, ERROR_MEMORY, "out of memory while writing %s: free some", output->file.path);
}

/* Closes a file, also one that failed to open or was committed; a file with only a temporary name
 * disappears. */
static void output_close(OutputFile *output) {
    file_close(&output->file);
    if (output->hash) XXH3_freeState(output->hash);
    free(output->buffer);
}

static bool output_flush(OutputFile *output, Error *error) {
    for (size_t at = 0; at < output->used && output->blocks; at += SHARD_BLOCK_BYTES) {
        uint64_t checksum = hash_bytes(output->buffer + at, (size_t)int_min((int64_t)(output->used - at), SHARD_BLOCK_BYTES));
        if (!spool_append(output->blocks, output->folder, &checksum, sizeof checksum, error)) return false;
    }
    XXH3_64bits_update(output->hash, output->buffer, output->used);
    bool good = file_append(&output->file, output->buffer, (int64_t)output->used, error);
    output->used = 0;
    return good;
}

static bool output_write(OutputFile *output, const void *bytes, size_t size, Error *error) {
    for (size_t done = 0, part; done < size; done += part) {
        if (output->used == BUFFER_BYTES && !output_flush(output, error)) return false;
        part = (size_t)int_min((int64_t)(size - done), (int64_t)(BUFFER_BYTES - output->used));
        memcpy(output->buffer + output->used, (const unsigned char *)bytes + done, part);
        output->used += part;
    }
    return true;
}

static bool output_sync(OutputFile *output, Error *error) { return output_flush(output, error) && file_sync(&output->file, error); }

/* -- Tokens ------------------------------------------------------------------------------------------------------ */

/* PREFIX.tokenizer is replaced as a whole, so it must be a folder with only the files of a
 * tokenizer. */
static bool check_tokenizer(const char *prefix, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s.tokenizer", prefix);
    SCOPED(file_list_free) FileList list = {0};
    FileKind kind = file_kind(folder, NULL);
    if (kind == FILE_ABSENT) return true;
    if (kind != FILE_FOLDER)
        return error_set(
            error, ERROR_USAGE, "%s is not a folder, so smelt cannot write the shard's tokenizer there: choose another OUTPUT", folder);
    if (!file_list(folder, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (!tokenizer_copies(list.entries[i].name))
            return error_set(error, ERROR_USAGE,
                "%s contains %s, which does not belong to a shard's tokenizer: choose another OUTPUT, or move the file", folder,
                list.entries[i].name);
    return true;
}

/* Removes the files that a killed writer of the same shard left. Called when the writer's own file
 * exists and is locked, so of two concurrent writers at most one continues. */
static bool be_alone(ShardWriter *writer, Error *error) {
    static const char *const parts[] = {".bin.", ".idx.", SHARDS_FILE "."};
    const char *slash = strrchr(writer->prefix, '/'), *name = slash ? slash + 1 : writer->prefix;
    bool other = false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        SCOPED_FREE char *start = memory_format("%s%s", name, parts[i]);
        other = file_remove_partials(writer->folder, start, &writer->tokens.file) || other;
    }
    writer->owns = !other;
    return !other ||
           error_set(error, ERROR_USAGE, "another process may be writing %s: wait for it, or choose another OUTPUT", writer->prefix);
}

ShardWriter *shard_writer_open(const char *prefix, int token_bytes, Error *error) {
    assert(token_bytes == 1 || token_bytes == 2 || token_bytes == 4);
    if (!check_tokenizer(prefix, error)) return NULL;
    ShardWriter *writer = memory_allocate(sizeof *writer);
    const char *slash = strrchr(prefix, '/');
    writer->prefix = memory_copy_string(prefix);
    writer->folder = slash ? memory_format("%.*s", (int)(slash + 1 - prefix), prefix) : memory_copy_string(".");
    writer->token_bytes = token_bytes;
    writer->document_hash = new_hash();
    if (!writer->document_hash) error_set(error, ERROR_MEMORY, "out of memory while writing %s: free some", prefix);
    else if (output_open(&writer->tokens, prefix, ".bin", writer->folder, &writer->token_blocks, error) && be_alone(writer, error))
        return writer;
    shard_writer_cancel(writer);
    return NULL;
}

/* Returns the path of the tokenizer until the shard is complete. The caller frees. */
static char *tokenizer_next(const ShardWriter *writer) {
    SCOPED_FREE char *name = memory_format("%s.tokenizer", writer->prefix);
    return shard_next(name);
}

void shard_writer_tokenizer(ShardWriter *writer, const char *tokenizer, const char *template) {
    writer->tokenizer = memory_copy_string(tokenizer);
    writer->template = memory_copy_string(template);
}

static void discard_waiting(const ShardWriter *writer) {
    static const char *const suffixes[] = {".tokenizer", ".bin", ".idx"};
    Error ignored = {0};
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        SCOPED_FREE char *name = memory_format("%s%s", writer->prefix, suffixes[i]), *next = shard_next(name);
        file_remove(next, &ignored);
    }
}

void shard_writer_cancel(ShardWriter *writer) {
    if (!writer) return;
    if (writer->owns) discard_waiting(writer);
    free(writer->tokenizer);
    free(writer->template);
    output_close(&writer->tokens);
    output_close(&writer->index);
    spool_free(&writer->lengths);
    spool_free(&writer->ends);
    spool_free(&writer->token_blocks);
    spool_free(&writer->index_blocks);
    if (writer->document_hash) XXH3_freeState(writer->document_hash);
    free(writer->folder);
    free(writer->prefix);
    free(writer);
}

/* One loop per token type. Returns the largest token; a negative one comes out above INT32_MAX. */
#define STORE_TOKENS(NAME, TYPE)                                                                   \
    static uint32_t NAME(TYPE *restrict target, const int32_t *restrict tokens, size_t count) {    \
        uint32_t largest = 0;                                                                      \
        _Pragma("omp simd reduction(max : largest)") for (size_t i = 0; i < count; i++) {          \
            largest = (uint32_t)tokens[i] > largest ? (uint32_t)tokens[i] : largest;               \
            target[i] = (TYPE)tokens[i];                                                           \
        }                                                                                          \
        return largest;                                                                            \
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

static bool writer_end_sequence(ShardWriter *writer, Error *error) {
    int32_t length = (int32_t)writer->open_tokens;
    writer->open_tokens = 0;
    writer->sequence_count++;
    if (writer->masked) XXH3_64bits_update(writer->document_hash, &writer->token_count, sizeof writer->token_count);
    return spool_append(&writer->lengths, writer->folder, &length, sizeof length, error);
}

static bool refuse_written_token(const ShardWriter *writer, const int32_t *tokens, int64_t limit, Error *error) {
    while (*tokens >= 0 && *tokens <= limit) tokens++;
    return error_set(error, ERROR_DATA,
        "token %" PRId32 " does not fit in %s.bin, which stores 0 to %" PRId64 " in %d bytes: write the shard with wider tokens", *tokens,
        writer->prefix, limit, writer->token_bytes);
}

bool shard_writer_append(ShardWriter *writer, const int32_t *tokens, int64_t count, Error *error) {
    OutputFile *file = &writer->tokens;
    size_t width = (size_t)writer->token_bytes;
    int64_t limit = writer->token_bytes == 4 ? INT32_MAX : (1 << 8 * writer->token_bytes) - 1;
    while (count > 0) {
        if (file->used == BUFFER_BYTES && !output_flush(file, error)) return false;
        assert(!writer->masked || writer->open_tokens < INT32_MAX); /* a span is a sequence */
        if (writer->open_tokens == INT32_MAX && !writer_end_sequence(writer, error)) return false;
        int64_t room = (int64_t)((BUFFER_BYTES - file->used) / width);
        int64_t part = int_min(int_min(room, count), INT32_MAX - writer->open_tokens);
        uint32_t largest = store_tokens(file->buffer + file->used, tokens, (size_t)part, writer->token_bytes);
        if (largest > (uint32_t)limit) return refuse_written_token(writer, tokens, limit, error);
        if (largest > writer->max_token) writer->max_token = largest;
        file->used += (size_t)part * width;
        writer->open_tokens += part;
        writer->token_count += part;
        tokens += part;
        count -= part;
    }
    return true;
}

void shard_writer_mask(ShardWriter *writer) {
    assert(writer->token_count == 0);
    writer->masked = true;
}

void shard_writer_pairs(ShardWriter *writer) {
    shard_writer_mask(writer);
    writer->pairs = true;
}

bool shard_writer_end_span(ShardWriter *writer, Error *error) {
    assert(writer->masked);
    return writer_end_sequence(writer, error);
}

bool shard_writer_end_document(ShardWriter *writer, Error *error) {
    if (writer->open_tokens > 0 && !writer_end_sequence(writer, error)) return false;
    writer->document_count++;
    XXH3_64bits_update(writer->document_hash, &writer->token_count, sizeof writer->token_count);
    return spool_append(&writer->ends, writer->folder, &writer->sequence_count, sizeof writer->sequence_count, error);
}

/* -- Finishing --------------------------------------------------------------------------------------------------- */

static bool write_u64(OutputFile *file, uint64_t value, Error *error) { return output_write(file, &value, sizeof value, error); }

static bool write_spool(OutputFile *file, const Spool *spool, Error *error) {
    unsigned char part[SPOOL_BYTES];
    size_t size = 1;
    for (int64_t at = 0; size > 0; at += (int64_t)size)
        if (!spool_read(spool, at, part, &size, error) || !output_write(file, part, size, error)) return false;
    return true;
}

static bool write_offsets(OutputFile *file, const Spool *lengths, int token_bytes, Error *error) {
    int32_t part[SPOOL_BYTES / sizeof(int32_t)];
    uint64_t offset = 0;
    size_t size = 1;
    for (int64_t at = 0; size > 0; at += (int64_t)size) {
        if (!spool_read(lengths, at, part, &size, error)) return false;
        for (size_t i = 0; i < size / sizeof *part; i++) {
            if (!write_u64(file, offset, error)) return false;
            offset += (uint64_t)part[i] * (uint64_t)token_bytes;
        }
    }
    return true;
}

static bool write_trailer(const ShardWriter *writer, OutputFile *file, Error *error) {
    ShardTrailer trailer = {{0}, writer->max_token, XXH3_64bits_digest(writer->tokens.hash), XXH3_64bits_digest(writer->document_hash),
        XXH3_64bits_digest(file->hash), 0};
    const char *magic = writer->pairs ? SHARD_PAIRS_MAGIC : writer->masked ? SHARD_MASKED_MAGIC : SHARD_TRAILER_MAGIC;
    assert(!writer->pairs || writer->document_count % 2 == 0);
    memcpy(trailer.magic, magic, sizeof trailer.magic);
    trailer.self = hash_bytes(&trailer, offsetof(ShardTrailer, self));
    return output_write(file, &trailer, sizeof trailer, error) && output_sync(file, error);
}

static bool write_index(ShardWriter *writer, Error *error) {
    OutputFile *file = &writer->index;
    ShardHeader header = {SHARD_MAGIC, SHARD_VERSION, (uint8_t)shard_type_code(writer->token_bytes), (uint64_t)writer->sequence_count,
        (uint64_t)writer->document_count + 1};
    bool arrays = output_write(file, &header, sizeof header, error) && write_spool(file, &writer->lengths, error) &&
                  write_offsets(file, &writer->lengths, writer->token_bytes, error) && write_u64(file, 0, error) &&
                  write_spool(file, &writer->ends, error) && output_flush(file, error);
    file->blocks = NULL;
    XXH3_64bits_reset(file->hash); /* from here on, the hash of the block checksums */
    return arrays && write_spool(file, &writer->token_blocks, error) && write_spool(file, &writer->index_blocks, error) &&
           output_flush(file, error) && write_trailer(writer, file, error);
}

static bool write_byte_tokenizer(const char *folder, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/tokenizer.json", folder);
    json_auto_t *content = byte_tokenizer();
    SCOPED_FREE char *text = json_dumps(content, JSON_INDENT(1));
    return file_make_folder(folder, error) && file_write(path, text, (int64_t)strlen(text), error);
}

bool shard_tokenizer_write(const char *tokenizer, const char *template, const char *folder, Error *error) {
    return file_remove(folder, error) && (*tokenizer ? tokenizer_copy(tokenizer, folder, error) : write_byte_tokenizer(folder, error)) &&
           (!*template || tokenizer_put_template(folder, template, error));
}

/* Writes the tokenizer to disk. */
static bool prepare_tokenizer(const ShardWriter *writer, Error *error) {
    SCOPED_FREE char *folder = tokenizer_next(writer);
    return !writer->tokenizer || shard_tokenizer_write(writer->tokenizer, writer->template, folder, error);
}

/* Writes both files to disk, under their temporary names. */
static bool prepare_shard(ShardWriter *writer, Error *error) {
    assert(writer->open_tokens == 0);
    if (writer->sequence_count == 0)
        return error_set(error, ERROR_DATA, "no tokens were written to %s.bin: use a corpus that is not empty", writer->prefix);
    return prepare_tokenizer(writer, error) && output_sync(&writer->tokens, error) &&
           output_open(&writer->index, writer->prefix, ".idx", writer->folder, &writer->index_blocks, error) && write_index(writer, error);
}

/* Renames both files to NAME.next, where they wait for their names. */
static bool commit(ShardWriter *writer, Error *error) {
    return file_replace_commit(&writer->tokens.file, error) && file_replace_commit(&writer->index.file, error);
}

/* The file is opened first and stays locked while the shards wait without a lock, so another writer
 * of them is refused. */
static bool commit_all(ShardWriter *const *writers, int count, const ShardsFile *file, Error *error) {
    SCOPED_FREE char *next = file ? shard_next(file->path) : NULL;
    SCOPED(file_close) File promise = {0};
    Error ignored = {0};
    bool good =
        !file || (file_replace_begin(&promise, next, error) && file_append(&promise, file->text, (int64_t)strlen(file->text), error));
    for (int i = 0; i < count && good; i++) good = commit(writers[i], error);
    bool promised = good && (!file || file_replace_commit(&promise, error));
    /* A commit that failed after its rename may exist; the shards stay unless it can be removed. */
    bool stays = promised || (good && file && !file_remove(next, &ignored));
    for (int i = 0; i < count; i++) writers[i]->owns = !stays;
    return promised;
}

/* Removes the tokenizer of an older shard if this one has none. */
static bool retire_tokenizer(const ShardWriter *writer, Error *error) {
    SCOPED_FREE char *folder = memory_format("%s.tokenizer", writer->prefix);
    return writer->tokenizer || file_remove(folder, error);
}

bool shard_writers_finish(ShardWriter *const *writers, int count, const ShardsFile *file, Error *error) {
    bool good = true;
    const char *prefixes[SHARDS_TOGETHER + 1] = {0};
    assert(count <= SHARDS_TOGETHER);
    for (int i = 0; i < count; i++) prefixes[i] = writers[i]->prefix;
    for (int i = 0; i < count && good; i++) good = prepare_shard(writers[i], error);
    good = good && commit_all(writers, count, file, error);
    for (int i = 0; i < count && good; i++) good = retire_tokenizer(writers[i], error);
    good = good && shard_names_take(prefixes, file ? file->path : NULL, error);
    for (int i = 0; i < count; i++) shard_writer_cancel(writers[i]);
    return good;
}
