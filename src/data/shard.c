/* One token shard: PREFIX.bin, tokens end to end, mapped as it lies on disk, and its index (shard_index.c, where the
 * format is described). A Shard owns the two maps and nothing that grows with them. shard_set.c, through which everything
 * else reads, calls; the writing half is shard_writer.c. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/data_internal.h"

/* Tokens are scanned in blocks that stay in the first-level cache between the hash and the maximum. */
enum { SCAN_BYTES = 16384, SCAN_BLOCKS_PER_PROGRESS = 1024 };

const char *shard_type_name(const Shard *shard) { return shard_types[shard_type_code(shard->token_bytes)].name; }

bool shard_map(Shard *shard, const char *prefix, Error *error) {
    *shard = (Shard){.prefix = memory_copy_string(prefix)};
    SCOPED_FREE char *path = memory_format("%s.bin", prefix);
    bool good = (file_map(&shard->map, path, error) || error_recode(error, ERROR_DATA)) && shard_index_map(shard, error);
    if (good && shard->token_count == 0) good = error_set(error, ERROR_DATA, "%s holds no tokens; pack a corpus that is not empty", path);
    if (!good) shard_close(shard);
    return good;
}

void shard_close(Shard *shard) {
    file_unmap(&shard->map);
    file_unmap(&shard->index.map);
    free(shard->prefix);
    *shard = (Shard){0};
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* One loop for each token type. The result is the largest token; a negative i32 comes out above INT32_MAX. */
#define COPY_TOKENS(NAME, TYPE)                                                                             \
    static uint32_t NAME(int32_t *restrict target, const TYPE *restrict tokens, int64_t count) {           \
        uint32_t maximum = 0;                                                                               \
        _Pragma("omp simd reduction(max : maximum)") for (int64_t i = 0; i < count; i++) {                  \
            target[i] = (int32_t)tokens[i];                                                                 \
            maximum = tokens[i] > maximum ? tokens[i] : maximum;                                            \
        }                                                                                                   \
        return maximum;                                                                                     \
    }
COPY_TOKENS(copy_u8, uint8_t)
COPY_TOKENS(copy_u16, uint16_t)
COPY_TOKENS(copy_u32, uint32_t)

static uint32_t copy_tokens(const Shard *shard, int64_t first, int64_t count, int32_t *tokens) {
    const unsigned char *bytes = shard->map.bytes + first * shard->token_bytes;
    switch (shard->token_bytes) {
    case 1: return copy_u8(tokens, (const uint8_t *)bytes, count);
    case 2: return copy_u16(tokens, (const uint16_t *)bytes, count);
    default: return copy_u32(tokens, (const uint32_t *)bytes, count);
    }
}

static bool refuse_token(const Shard *shard, int64_t first, const int32_t *tokens, int64_t vocabulary, Error *error) {
    int64_t i = 0;
    while (tokens[i] >= 0 && tokens[i] < vocabulary) i++;
    if (tokens[i] < 0)
        return error_set(error, ERROR_DATA,
            "%s.bin has token %" PRId32 " at index %" PRId64 " but tokens must be at least 0: the file is corrupt; pack the corpus again",
            shard->prefix, tokens[i], first + i);
    return error_set(error, ERROR_DATA,
        "%s.bin has token %" PRId32 " at index %" PRId64 " but the vocabulary has %" PRId64
        " tokens; pack the corpus with the model's tokenizer or give the model a larger vocabulary",
        shard->prefix, tokens[i], first + i, vocabulary);
}

bool shard_read(const Shard *shard, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *ends, Error *error) {
    assert(first >= 0 && count >= 1 && count <= shard->token_count - first);
    if (copy_tokens(shard, first, count, tokens) >= vocabulary) return refuse_token(shard, first, tokens, vocabulary, error);
    return !ends || shard_index_ends(shard, first, count, ends, error);
}

void shard_prefetch(const Shard *shard, int64_t first, int64_t count) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), address = (uintptr_t)shard->map.bytes + (uintptr_t)(first * shard->token_bytes);
    uintptr_t aligned = address & ~(page - 1);
    madvise((void *)aligned, (size_t)(count * shard->token_bytes) + (address - aligned), MADV_WILLNEED);
}

/* -- Verifying ----------------------------------------------------------------------------------------------------- */

/* Reads all tokens; returns the largest one. */
static uint32_t scan_tokens(const Shard *shard, XXH3_state_t *hash) {
    const int64_t block = SCAN_BYTES / shard->token_bytes;
    SCOPED_FREE int32_t *tokens = memory_allocate(SCAN_BYTES * sizeof *tokens);
    Progress progress = progress_start("checking tokens", "bytes", (int64_t)shard->map.size);
    uint32_t maximum = 0;
    for (int64_t first = 0; first < shard->token_count; first += block) {
        int64_t count = int_min(block, shard->token_count - first);
        uint32_t largest = copy_tokens(shard, first, count, tokens);
        XXH3_64bits_update(hash, shard->map.bytes + first * shard->token_bytes, (size_t)(count * shard->token_bytes));
        maximum = largest > maximum ? largest : maximum;
        if (first / block % SCAN_BLOCKS_PER_PROGRESS == 0) progress_update(&progress, (first + count) * shard->token_bytes);
    }
    progress_finish(&progress);
    return maximum;
}

static bool refuse_negative(const Shard *shard, Error *error) {
    const int64_t any = (int64_t)INT32_MAX + 1;
    int64_t index = 0;
    int32_t token;
    while (copy_tokens(shard, index, 1, &token) <= INT32_MAX) index++;
    return refuse_token(shard, index, &token, any, error);
}

bool shard_verify(Shard *shard, Error *error) {
    if (!shard_index_verify(shard, error)) return false;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "no memory to check %s.bin; free some", shard->prefix);
    XXH3_64bits_reset(hash);
    madvise((void *)shard->map.bytes, shard->map.size, MADV_SEQUENTIAL);
    uint32_t maximum = scan_tokens(shard, hash);
    madvise((void *)shard->map.bytes, shard->map.size, MADV_NORMAL);
    uint64_t checksum = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (shard->checksummed && checksum != shard->checksum)
        return error_set(error, ERROR_DATA,
            "%s.bin has checksum %016" PRIx64 " but was written with %016" PRIx64
            ": bytes changed since; pack the corpus again or copy it anew",
            shard->prefix, checksum, shard->checksum);
    if (maximum > INT32_MAX) return refuse_negative(shard, error);
    shard->checksum = checksum;
    shard->max_token = maximum;
    return true;
}
