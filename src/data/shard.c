/* Reads token shards in Megatron's .bin/.idx format, trusting nothing that the files say.
 *
 * PREFIX.idx, little-endian, no padding: "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences, u64 document entries,
 * i32 length[sequences], i64 byte offset[sequences], i64 document[entries]. The last array holds sequence numbers: 0,
 * then one past the last sequence of each document. smelt's own writer adds what Megatron never looks at: "SMELTBLK", u64
 * largest token, u64 XXH3 of each 16 KiB of PREFIX.bin (smelt 0.9 wrote none of these), "SMELTSUM", u64
 * XXH3 of PREFIX.bin, u64 XXH3 of all index bytes before this last field.
 *
 * A Shard keeps PREFIX.bin mapped and owns one array of document ends; the index is unmapped again at once. Sequences
 * must lie in PREFIX.bin end to end and in order, as Megatron's writer leaves them: then the corpus is one array of
 * tokens. Training, evaluation and `smelt data show` open shards. The writing half is shard_writer.c. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <xxhash.h>

#include "base/file.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/data.h"
#include "data/data_internal.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are mapped as they lie on disk: little-endian");

/* Tokens are scanned in blocks that stay in the first-level cache between the hash and the maximum. */
enum { SCAN_BYTES = 16384, SCAN_BLOCKS_PER_PROGRESS = 1024 };

const ShardType shard_types[SHARD_TYPE_COUNT] = {
    {NULL, 0}, {"u8", 1}, {"i8", 0}, {"i16", 0}, {"i32", 4}, {"i64", 0}, {"f64", 0}, {"f32", 0}, {"u16", 2}};

int shard_type_code(int token_bytes) {
    for (int code = 1; code < SHARD_TYPE_COUNT; code++)
        if (shard_types[code].token_bytes == token_bytes) return code;
    assert(!"token_bytes is 1, 2 or 4");
    return 0;
}

const char *shard_type_name(const Shard *shard) { return shard_types[shard_type_code(shard->token_bytes)].name; }

/* -- The index --------------------------------------------------------------------------------------------------- */

typedef int32_t UnalignedI32 __attribute__((aligned(1)));
typedef int64_t UnalignedI64 __attribute__((aligned(1)));

/* Where the arrays of a mapped index lie. */
typedef struct Index {
    const char *path;
    const UnalignedI32 *lengths;
    const UnalignedI64 *offsets, *documents;
    uint64_t sequences, entries;
    int token_bytes;
} Index;

static bool index_header(Index *index, const FileMap *file, Error *error) {
    const ShardHeader *header = (const ShardHeader *)file->bytes;
    if (file->size < sizeof *header)
        return error_set(error, ERROR_DATA,
            "%s has %zu bytes but an index has at least %zu: it was cut off or is not an index; pack the corpus again", index->path,
            file->size, sizeof *header);
    if (memcmp(header->magic, SHARD_MAGIC, sizeof header->magic) != 0)
        return error_set(error, ERROR_DATA,
            "%s does not begin with \"MMIDIDX\": it is not a Megatron index; pack the "
            "corpus with `smelt data pack` or Megatron's preprocess_data.py",
            index->path);
    if (header->version != SHARD_VERSION)
        return error_set(error, ERROR_DATA, "%s has version %" PRIu64 " but only version %d is known; pack the corpus again", index->path,
            header->version, SHARD_VERSION);
    int code = header->type;
    if (code < 1 || code >= SHARD_TYPE_COUNT)
        return error_set(error, ERROR_DATA, "%s has token type %d but types run from 1 to %d; pack the corpus again", index->path, code,
            SHARD_TYPE_COUNT - 1);
    if (shard_types[code].token_bytes == 0)
        return error_set(error, ERROR_DATA,
            "%s has token type %d (%s) but tokens must be u8, u16 or i32; pack the corpus again with one of these", index->path, code,
            shard_types[code].name);
    index->token_bytes = shard_types[code].token_bytes;
    index->sequences = header->sequences;
    index->entries = header->entries;
    return true;
}

/* Finds the arrays from the counts, which must account for every byte of the file up to the checksums. */
static bool index_arrays(Index *index, const FileMap *file, size_t *used, Error *error) {
    uint64_t room = file->size - sizeof(ShardHeader);
    if (index->sequences < 1 || index->sequences > room / 12)
        return error_set(error, ERROR_DATA,
            "%s claims %" PRIu64 " sequences but it must be at least 1, and its %zu bytes hold at most %" PRIu64
            ": it is empty, cut off or corrupt; pack the corpus again",
            index->path, index->sequences, file->size, room / 12);
    room -= index->sequences * 12;
    if (index->entries < 2 || index->entries > room / 8)
        return error_set(error, ERROR_DATA,
            "%s claims %" PRIu64 " document entries but it must be at least 2, and its %zu bytes hold at most %" PRIu64 " behind %" PRIu64
            " sequences: it is empty, cut off or corrupt; pack the corpus again",
            index->path, index->entries, file->size, room / 8, index->sequences);
    index->lengths = (const UnalignedI32 *)(file->bytes + sizeof(ShardHeader));
    index->offsets = (const UnalignedI64 *)(index->lengths + index->sequences);
    index->documents = index->offsets + index->sequences;
    *used = (size_t)((const unsigned char *)(index->documents + index->entries) - file->bytes);
    return true;
}

/* The bytes of "SMELTBLK" and of what follows it up to the checksums. */
static size_t blocks_bytes(const Shard *shard) {
    return sizeof(ShardBlocks) + (size_t)divide_up((int64_t)shard->map.size, SHARD_BLOCK_BYTES) * sizeof(uint64_t);
}

/* Nothing, or smelt's trailer, may follow the arrays. */
static bool index_checksums(const Index *index, const FileMap *file, size_t used, Shard *shard, Error *error) {
    size_t left = file->size - used, blocks = left > sizeof(ShardChecksums) ? blocks_bytes(shard) : 0;
    if (left == 0) return true;
    const ShardChecksums *tail = (const ShardChecksums *)(file->bytes + used + blocks);
    if (left != blocks + sizeof *tail || memcmp(tail->magic, SHARD_CHECKSUM_MAGIC, sizeof tail->magic) != 0 ||
        (blocks && memcmp(file->bytes + used, SHARD_BLOCKS_MAGIC, 8) != 0))
        return error_set(error, ERROR_DATA,
            "%s has %zu bytes after its %" PRIu64 " document entries but 0, or %zu of "
            "checksums, belong there: its counts are corrupt, or it is a multimodal shard, which smelt does not "
            "read; pack the corpus again as text",
            index->path, left, index->entries, blocks_bytes(shard) + sizeof *tail);
    uint64_t actual = XXH3_64bits(file->bytes, file->size - sizeof tail->index);
    if (actual != tail->index)
        return error_set(error, ERROR_DATA,
            "%s has checksum %016" PRIx64 " but was written with %016" PRIx64
            ": bytes changed since; pack the corpus again or copy it anew",
            index->path, actual, tail->index);
    shard->checksummed = true;
    shard->checksum = tail->tokens;
    return true;
}

/* Adds the length of one sequence to *tokens if it lies where the previous one ended, inside PREFIX.bin. */
static bool index_sequence(const Index *index, uint64_t sequence, int64_t limit, int64_t *tokens, Error *error) {
    int32_t length = index->lengths[sequence];
    int64_t offset = index->offsets[sequence], expected = *tokens * index->token_bytes;
    if (offset != expected)
        return error_set(error, ERROR_DATA,
            "%s puts sequence %" PRIu64 " at byte %" PRId64 " but the one before ends at byte %" PRId64
            ": smelt reads shards whose sequences lie end to end; pack the corpus again",
            index->path, sequence, offset, expected);
    if (length < 0 || length > limit - *tokens)
        return error_set(error, ERROR_DATA,
            "%s gives sequence %" PRIu64 " a length of %" PRId32 " tokens but 0 to %" PRId64
            " are left in the .bin file: one of the two is cut off or corrupt; pack the corpus again",
            index->path, sequence, length, limit - *tokens);
    *tokens += length;
    return true;
}

/* Walks sequences and documents together and fills shard->document_end. */
static bool index_documents(const Index *index, Shard *shard, Error *error) {
    assert(index->token_bytes > 0 && index->documents); /* index_arrays has found them */
    int64_t limit = (int64_t)shard->map.size / index->token_bytes, tokens = 0;
    uint64_t sequence = 0;
    if (index->documents[0] != 0)
        return error_set(error, ERROR_DATA, "%s starts its first document at sequence %" PRId64 " but it must be 0; pack the corpus again",
            index->path, index->documents[0]);
    int64_t *ends = memory_allocate((index->entries - 1) * sizeof *ends);
    shard->document_end = ends;
    shard->document_count = (int64_t)index->entries - 1;
    for (uint64_t document = 1; document < index->entries; document++) {
        int64_t end = index->documents[document];
        if (end < (int64_t)sequence || end > (int64_t)index->sequences)
            return error_set(error, ERROR_DATA,
                "%s ends document %" PRIu64 " before sequence %" PRId64 " but %" PRIu64 " to %" PRIu64
                " are possible; pack the corpus again",
                index->path, document - 1, end, sequence, index->sequences);
        for (; sequence < (uint64_t)end; sequence++)
            if (!index_sequence(index, sequence, limit, &tokens, error)) return false;
        ends[document - 1] = tokens;
    }
    if (sequence != index->sequences)
        return error_set(error, ERROR_DATA,
            "%s ends its last document before sequence %" PRIu64 " but has %" PRIu64 " sequences; pack the corpus again", index->path,
            sequence, index->sequences);
    shard->token_count = tokens;
    return true;
}

static bool index_read(const char *path, Shard *shard, Error *error) {
    Index index = {.path = path};
    SCOPED(file_unmap) FileMap file;
    size_t used = 0;
    if (!file_map(&file, path, error)) return error_recode(error, ERROR_DATA);
    bool good = index_header(&index, &file, error) && index_arrays(&index, &file, &used, error) &&
                index_checksums(&index, &file, used, shard, error) && index_documents(&index, shard, error);
    shard->token_bytes = index.token_bytes;
    return good;
}

/* -- Shards ------------------------------------------------------------------------------------------------------ */

char *shard_tokenizer(const char *prefix) {
    char *folder = memory_format("%s.tokenizer", prefix);
    SCOPED_FREE char *file = tokenizer_find(folder);
    bool bytes = file && byte_tokenizer_is(folder);
    if (file && !bytes) return folder;
    free(folder);
    return bytes ? memory_copy_string("") : NULL;
}

bool shard_exists(const char *prefix) {
    SCOPED_FREE char *index = memory_format("%s.idx", prefix);
    return file_exists(index);
}

bool shard_map(Shard *shard, const char *prefix, Error *error) {
    *shard = (Shard){.prefix = memory_copy_string(prefix)};
    SCOPED_FREE char *tokens_path = memory_format("%s.bin", prefix), *index_path = memory_format("%s.idx", prefix);
    bool good = file_map(&shard->map, tokens_path, error) || error_recode(error, ERROR_DATA);
    shard->tokens = shard->map.bytes;
    good = good && index_read(index_path, shard, error);
    int64_t described = shard->token_count * shard->token_bytes;
    if (good && (uint64_t)described != shard->map.size)
        good = error_set(error, ERROR_DATA,
            "%s has %zu bytes but its index describes %" PRId64 ": the two files do not belong "
            "together or one is cut off; pack the corpus again",
            tokens_path, shard->map.size, described);
    if (good && shard->token_count == 0)
        good = error_set(error, ERROR_DATA, "%s holds no tokens; pack a corpus that is not empty", tokens_path);
    if (!good) shard_close(shard);
    return good;
}

void shard_close(Shard *shard) {
    file_unmap(&shard->map);
    free((void *)shard->document_end);
    free(shard->prefix);
    *shard = (Shard){0};
}

/* One loop for each token type. */
#define SCAN_MAXIMUM(NAME, TYPE)                                                                                   \
    static uint32_t NAME(const void *block, size_t bytes, uint32_t start) {                                        \
        const TYPE *tokens = block;                                                                                \
        TYPE maximum = (TYPE)start;                                                                                \
        _Pragma("omp simd reduction(max : maximum)") for (size_t i = 0; i < bytes / sizeof *tokens; i++) maximum = \
            tokens[i] > maximum ? tokens[i] : maximum;                                                             \
        return maximum;                                                                                            \
    }
SCAN_MAXIMUM(maximum_u8, uint8_t)
SCAN_MAXIMUM(maximum_u16, uint16_t)
SCAN_MAXIMUM(maximum_u32, uint32_t) /* a negative i32 comes out above INT32_MAX */

static uint32_t block_maximum(const void *block, size_t bytes, int token_bytes, uint32_t start) {
    switch (token_bytes) {
    case 1: return maximum_u8(block, bytes, start);
    case 2: return maximum_u16(block, bytes, start);
    default: return maximum_u32(block, bytes, start);
    }
}

static bool refuse_negative(const Shard *shard, Error *error) {
    int64_t index = 0;
    while (shard_token(shard, index) >= 0) index++;
    return error_set(error, ERROR_DATA,
        "%s.bin has token %" PRId32 " at index %" PRId64 " but tokens must be at least 0: the file is corrupt; pack the corpus again",
        shard->prefix, shard_token(shard, index), index);
}

bool shard_verify(Shard *shard, Error *error) {
    const unsigned char *bytes = shard->tokens;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "no memory to check %s.bin; free some", shard->prefix);
    XXH3_64bits_reset(hash);
    madvise((void *)bytes, shard->map.size, MADV_SEQUENTIAL);
    Progress progress = progress_start("checking tokens", "bytes", (int64_t)shard->map.size);
    uint32_t maximum = 0;
    size_t blocks = 0;
    for (size_t at = 0; at < shard->map.size; at += SCAN_BYTES) {
        size_t size = (size_t)int_min((int64_t)(shard->map.size - at), SCAN_BYTES);
        maximum = block_maximum(bytes + at, size, shard->token_bytes, maximum);
        XXH3_64bits_update(hash, bytes + at, size);
        if (++blocks % SCAN_BLOCKS_PER_PROGRESS == 0) progress_update(&progress, (int64_t)(at + size));
    }
    progress_finish(&progress);
    madvise((void *)bytes, shard->map.size, MADV_NORMAL);
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

bool shard_open(Shard *shard, const char *prefix, Error *error) {
    if (!shard_map(shard, prefix, error)) return false;
    if (shard_verify(shard, error)) return true;
    shard_close(shard);
    return false;
}
