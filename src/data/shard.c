/* One token shard, in any format (shard_format.c): a file of tokens and, in Megatron's format, an
 * index. Tokens are read block by block, so a truncated file or a failing disk is an error of this
 * read. Each read compares blocks with the checksums that smelt's writer recorded, and tokens with
 * the vocabulary. A Shard owns an open file, a map of the index, and nothing that grows with them.
 * Called by shard_set.c, through which all other code reads; the writing half is shard_writer.c. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/thread.h"
#include "data/data_internal.h"

enum { READ_BYTES = 16384 /* per read */, READS_PER_PROGRESS = 1024 };

const char *shard_type_name(const Shard *shard) { return shard_types[shard_type_code(shard->token_bytes)].name; }

/* Finds the object with the name of a file in the set's folder. */
static bool open_object(Shard *shard, Remote *remote, Error *error) {
    SCOPED_FREE char *path = memory_format("%s.bin", shard->prefix);
    shard->object = remote_find(remote, strrchr(path, '/') + 1);
    if (!shard->object) return error_set(error, ERROR_DATA, "%s does not belong to its source: remove its folder and restart", path);
    shard->file = (File){.path = memory_copy_string(remote_path(shard->object)), .descriptor = -1, .bytes = remote_bytes(shard->object)};
    return true;
}

bool shard_open(Shard *shard, const char *prefix, Remote *remote, Error *error) {
    *shard = (Shard){.prefix = memory_copy_string(prefix), .document_count = -1, .max_token = -1};
    if (!shard_format(prefix, &shard->format, error)) return shard_close(shard), false;
    if (!shard->format) {
        SCOPED_FREE char *index = memory_format("%s.idx", prefix), *next = shard_next(index);
        shard_close(shard);
        if (file_exists(next))
            return error_set(
                error, ERROR_DATA, "the packing of %s was interrupted: run the same smelt data pack again to finish it", prefix);
        return error_set(error, ERROR_DATA,
            "%s is not a token shard: there is no %s.idx, and it is not a file of llm.c, llmq or Mosaic's MDS", prefix, prefix);
    }
    bool good = (!remote || open_object(shard, remote, error)) && shard->format->open(shard, error);
    if (good && remote) remote_expect(shard->object, shard->index.token_blocks);
    if (good && shard->token_count == 0)
        good = error_set(error, ERROR_DATA, "%s contains no tokens: pack a corpus that is not empty", shard->file.path);
    if (!good) shard_close(shard);
    return good;
}

void shard_close(Shard *shard) {
    file_close(&shard->file);
    file_unmap(&shard->index.map);
    free(shard->prefix);
    *shard = (Shard){0};
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* One loop per token type. The result is the largest token; a negative one comes out above the
 * largest value of its type. */
#define COPY_TOKENS(NAME, TYPE)                                                                             \
    static uint64_t NAME(int32_t *restrict target, const TYPE *restrict tokens, int64_t count) {           \
        TYPE maximum = 0;                                                                                   \
        _Pragma("omp simd reduction(max : maximum)") for (int64_t i = 0; i < count; i++) {                  \
            target[i] = (int32_t)tokens[i];                                                                 \
            maximum = tokens[i] > maximum ? tokens[i] : maximum;                                            \
        }                                                                                                   \
        return maximum;                                                                                     \
    }
COPY_TOKENS(copy_u8, uint8_t)
COPY_TOKENS(copy_u16, uint16_t)
COPY_TOKENS(copy_u32, uint32_t)
COPY_TOKENS(copy_u64, uint64_t)

static uint64_t copy_tokens(int32_t *target, const void *tokens, int64_t count, int token_bytes) {
    switch (token_bytes) {
    case 1: return copy_u8(target, tokens, count);
    case 2: return copy_u16(target, tokens, count);
    case 4: return copy_u32(target, tokens, count);
    default: return copy_u64(target, tokens, count);
    }
}

static int64_t token_at(const void *tokens, int64_t index, int token_bytes) {
    switch (token_bytes) {
    case 1: return ((const uint8_t *)tokens)[index];
    case 2: return ((const uint16_t *)tokens)[index];
    case 4: return ((const int32_t *)tokens)[index];
    default: return ((const int64_t *)tokens)[index];
    }
}

/* Reports the first token from `first` on that is outside the vocabulary. */
static bool refuse_token(const Shard *shard, int64_t first, const void *tokens, int64_t vocabulary, Error *error) {
    int64_t i = 0, token;
    while ((token = token_at(tokens, i, shard->token_bytes)) >= 0 && token < vocabulary) i++;
    if (token < 0 || token > INT32_MAX)
        return error_set(error, ERROR_DATA,
            "%s has token %" PRId64 " at index %" PRId64 ", but tokens must be 0 to %d: the file is corrupt; pack the corpus again",
            shard->file.path, token, first + i, INT32_MAX);
    return error_set(error, ERROR_DATA,
        "%s has token %" PRId64 " at index %" PRId64 ", but the vocabulary has %" PRId64
        " tokens: pack the corpus with the model's tokenizer, or increase the vocabulary",
        shard->file.path, token, first + i, vocabulary);
}

/* Reads bytes of the tokens. A file read that fails is retried for some seconds, because the run
 * itself is healthy. */
static bool read_bytes(const Shard *shard, void *buffer, int64_t size, int64_t from, Error *error) {
    if (shard->object) return remote_read(shard->object, buffer, size, from, error);
    Error failure; /* after a success *error must be unset: callers read its code */
    for (int attempts = 0; !file_read_at(&shard->file, buffer, size, from, &failure);)
        if (!thread_try_again(&failure, &attempts)) return *error = failure, error_recode(error, ERROR_DATA);
    return true;
}

/* Points *tokens at the tokens from `first` on, at most `most`, limited by the READ_BYTES of
 * `buffer`. Returns how many there are; 0: an error. If checksums are recorded, whole blocks are
 * read. */
static int64_t read_part(const Shard *shard, int64_t first, int64_t most, void *buffer, const void **tokens, Error *error) {
    int64_t width = shard->token_bytes, at = shard->start + first * width, run = most;
    if (shard->format->locate && !shard->format->locate(shard, first, &at, &run, error)) return 0;
    const int64_t unit = shard->record == SHARD_BLOCKS ? SHARD_BLOCK_BYTES : 1, from = at / unit * unit;
    int64_t count = int_min(int_min(most, run), (READ_BYTES - (at - from)) / width);
    int64_t size = int_min(round_up(at + count * width, unit), shard->file.bytes) - from;
    bool read = read_bytes(shard, buffer, size, from, error);
    const int64_t wrong = read && shard->record == SHARD_BLOCKS ? shard_wrong_block(shard->index.token_blocks, buffer, from, size) : -1;
    if (wrong >= 0) shard_index_refuse(shard, true, wrong, int_min(SHARD_BLOCK_BYTES, from + size - wrong), error);
    if (!read || wrong >= 0) return 0;
    *tokens = (const char *)buffer + (at - from);
    return count;
}

bool shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *marks, Error *error) {
    _Alignas(64) unsigned char buffer[READ_BYTES];
    assert(first >= 0 && count >= 1 && count <= shard->token_count - first);
    for (int64_t done = 0, part; done < count; done += part) {
        const void *block;
        part = read_part(shard, first + done, count - done, buffer, &block, error);
        if (part == 0) return false;
        if (copy_tokens(tokens + done, block, part, shard->token_bytes) >= (uint64_t)vocabulary)
            return refuse_token(shard, first + done, block, vocabulary, error);
    }
    if (!marks || shard->document_count >= 0) return !marks || shard_index_marks(shard, first, count, marks, error);
    memset(marks, 0, (size_t)count);
    marks[count - 1] = first + count == shard->token_count ? TOKEN_ENDS : 0;
    return true;
}

/* Prefetches the bytes that read_part will read: whole blocks if checksums are recorded. */
void shard_prefetch(const Shard *shard, int64_t first, int64_t count) {
    if (shard->format->locate) return; /* finding the tokens would need a read first */
    int64_t unit = shard->record == SHARD_BLOCKS ? SHARD_BLOCK_BYTES : 1, start = shard->start + first * shard->token_bytes;
    int64_t from = start / unit * unit, to = round_up(start + count * shard->token_bytes, unit);
    int64_t bytes = int_min(to, shard->file.bytes) - from;
    if (shard->object) remote_prefetch(shard->object, from, bytes);
    else file_prefetch(&shard->file, from, bytes);
}

/* -- Content ------------------------------------------------------------------------------------------------------- */

/* Hashes another program's shard: size and samples of its files; for tokens in a bucket, their
 * path, size and ETag. */
static bool hash_shard_samples(const Shard *shard, XXH3_state_t *hash, Error *error) {
    SCOPED_FREE char *index = memory_format("%s.idx", shard->prefix);
    uint64_t identity = shard->object ? remote_identity(shard->object) : 0;
    if (shard->object) XXH3_64bits_update(hash, &identity, sizeof identity);
    bool good = shard->object || hash_file_samples(shard->file.path, hash, error);
    return (good && (shard->document_count < 0 || hash_file_samples(index, hash, error))) || error_recode(error, ERROR_DATA);
}

bool shard_checksum(const Shard *shard, uint64_t *checksum, Error *error) {
    const uint64_t PAIRS = 1 << 8;
    uint64_t documents = shard->documents;
    if (shard->record == SHARD_SUMS && !shard_index_verify(shard, &documents, error)) return false;
    const uint64_t parts[] = {shard->checksum, documents, (uint64_t)shard->token_bytes | (shard->pairs ? PAIRS : 0)};
    *checksum = hash_bytes(parts, sizeof parts);
    if (shard->record != SHARD_BARE) return true;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "out of memory for the checksum of %s: free some", shard->file.path);
    XXH3_64bits_reset(hash);
    bool good = hash_shard_samples(shard, hash, error);
    *checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return good;
}

/* -- Verifying ----------------------------------------------------------------------------------------------------- */

/* Reads all tokens, finds the largest one, and adds their bytes to the hash. */
static bool scan_tokens(const Shard *shard, XXH3_state_t *hash, uint64_t *largest, Error *error) {
    _Alignas(64) unsigned char buffer[READ_BYTES];
    int32_t tokens[READ_BYTES];
    int64_t width = shard->token_bytes;
    Progress progress = progress_start("checking tokens", "bytes", shard->file.bytes);
    bool good = true;
    for (int64_t first = 0, part; first < shard->token_count && good; first += part) {
        const void *block = NULL;
        part = read_part(shard, first, shard->token_count - first, buffer, &block, error);
        if (!(good = part > 0)) break;
        uint64_t maximum = copy_tokens(tokens, block, part, shard->token_bytes);
        XXH3_64bits_update(hash, block, (size_t)(part * width));
        *largest = maximum > *largest ? maximum : *largest;
        good = maximum <= INT32_MAX || refuse_token(shard, first, block, (int64_t)INT32_MAX + 1, error);
        if (first * width / READ_BYTES % READS_PER_PROGRESS == 0) progress_update(&progress, (first + part) * width);
    }
    progress_finish(&progress);
    return good;
}

bool shard_verify(Shard *shard, Error *error) {
    uint64_t documents, largest = 0;
    if (shard->document_count >= 0 && !shard_index_verify(shard, &documents, error)) return false;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "out of memory while checking %s: free some", shard->file.path);
    XXH3_64bits_reset(hash);
    bool good = scan_tokens(shard, hash, &largest, error);
    uint64_t checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (good && shard->record != SHARD_BARE && checksum != shard->checksum)
        good = error_set(error, ERROR_DATA,
            "%s has checksum %016" PRIx64 ", but %016" PRIx64
            " was recorded when it was written: copy the file again, or pack the corpus again",
            shard->file.path, checksum, shard->checksum);
    if (good) shard->max_token = (int64_t)largest;
    return good;
}
