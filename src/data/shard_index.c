/* Reads the index of a token shard in Megatron's format, trusting nothing that it says.
 *
 * PREFIX.idx, little-endian, no padding: "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences, u64 document entries,
 * i32 length[sequences], i64 byte offset[sequences], i64 document[entries]. The last array holds sequence numbers: 0,
 * then one past the last sequence of each document. smelt's own writer adds what Megatron never looks at: "SMELTBLK", u64
 * largest token, u64 XXH3 of each 16 KiB of PREFIX.bin (smelt 0.9 wrote none of these), "SMELTSUM", u64
 * XXH3 of PREFIX.bin, u64 XXH3 of all index bytes before this last field.
 *
 * Sequences must lie in PREFIX.bin end to end and in order, as Megatron's writer leaves them: then the corpus is one
 * array of tokens. The arrays stay mapped and are read where a document is asked for, so memory does not grow with their
 * number. shard.c calls. */
#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include <xxhash.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/data_internal.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are mapped as they lie on disk: little-endian");

const ShardType shard_types[SHARD_TYPE_COUNT] = {
    {NULL, 0}, {"u8", 1}, {"i8", 0}, {"i16", 0}, {"i32", 4}, {"i64", 0}, {"f64", 0}, {"f32", 0}, {"u16", 2}};

int shard_type_code(int token_bytes) {
    for (int code = 1; code < SHARD_TYPE_COUNT; code++)
        if (shard_types[code].token_bytes == token_bytes) return code;
    assert(!"token_bytes is 1, 2 or 4");
    return 0;
}

/* -- Mapping ------------------------------------------------------------------------------------------------------- */

static bool index_header(Shard *shard, const ShardHeader *header, size_t bytes, Error *error) {
    if (bytes < sizeof *header)
        return error_set(error, ERROR_DATA,
            "%s.idx has %zu bytes but an index has at least %zu: it was cut off or is not an index; pack the corpus again", shard->prefix,
            bytes, sizeof *header);
    if (memcmp(header->magic, SHARD_MAGIC, sizeof header->magic) != 0)
        return error_set(error, ERROR_DATA,
            "%s.idx does not begin with \"MMIDIDX\": it is not a Megatron index; pack the "
            "corpus with `smelt data pack` or Megatron's preprocess_data.py",
            shard->prefix);
    if (header->version != SHARD_VERSION)
        return error_set(error, ERROR_DATA, "%s.idx has version %" PRIu64 " but only version %d is known; pack the corpus again",
            shard->prefix, header->version, SHARD_VERSION);
    int code = header->type;
    if (code < 1 || code >= SHARD_TYPE_COUNT)
        return error_set(error, ERROR_DATA, "%s.idx has token type %d but types run from 1 to %d; pack the corpus again", shard->prefix,
            code, SHARD_TYPE_COUNT - 1);
    if (shard_types[code].token_bytes == 0)
        return error_set(error, ERROR_DATA,
            "%s.idx has token type %d (%s) but tokens must be u8, u16 or i32; pack the corpus again with one of these", shard->prefix, code,
            shard_types[code].name);
    shard->token_bytes = shard_types[code].token_bytes;
    return true;
}

/* Finds the arrays from the counts, which must account for every byte of the file up to the checksums. */
static bool index_arrays(Shard *shard, const ShardHeader *header, size_t *used, Error *error) {
    ShardIndex *index = &shard->index;
    uint64_t room = index->map.size - sizeof *header;
    if (header->sequences < 1 || header->sequences > room / 12)
        return error_set(error, ERROR_DATA,
            "%s.idx claims %" PRIu64 " sequences but it must be at least 1, and its %zu bytes hold at most %" PRIu64
            ": it is empty, cut off or corrupt; pack the corpus again",
            shard->prefix, header->sequences, index->map.size, room / 12);
    room -= header->sequences * 12;
    if (header->entries < 2 || header->entries > room / 8)
        return error_set(error, ERROR_DATA,
            "%s.idx claims %" PRIu64 " document entries but it must be at least 2, and its %zu bytes hold at most %" PRIu64
            " behind %" PRIu64 " sequences: it is empty, cut off or corrupt; pack the corpus again",
            shard->prefix, header->entries, index->map.size, room / 8, header->sequences);
    index->sequences = (int64_t)header->sequences;
    index->lengths = (const UnalignedI32 *)(index->map.bytes + sizeof *header);
    index->offsets = (const UnalignedI64 *)(index->lengths + index->sequences);
    index->documents = index->offsets + index->sequences;
    shard->document_count = (int64_t)header->entries - 1;
    *used = (size_t)((const unsigned char *)(index->documents + header->entries) - index->map.bytes);
    return true;
}

/* The bytes of "SMELTBLK" and of what follows it up to the checksums. */
static size_t blocks_bytes(const Shard *shard) {
    return sizeof(ShardBlocks) + (size_t)divide_up((int64_t)shard->map.size, SHARD_BLOCK_BYTES) * sizeof(uint64_t);
}

/* Nothing, or smelt's trailer, may follow the arrays. */
static bool index_checksums(Shard *shard, size_t used, Error *error) {
    const FileMap *file = &shard->index.map;
    size_t left = file->size - used, blocks = left > sizeof(ShardChecksums) ? blocks_bytes(shard) : 0;
    if (left == 0) return true;
    const ShardChecksums *tail = (const ShardChecksums *)(file->bytes + used + blocks);
    if (left != blocks + sizeof *tail || memcmp(tail->magic, SHARD_CHECKSUM_MAGIC, sizeof tail->magic) != 0 ||
        (blocks && memcmp(file->bytes + used, SHARD_BLOCKS_MAGIC, 8) != 0))
        return error_set(error, ERROR_DATA,
            "%s.idx has %zu bytes after its %" PRId64 " document entries but 0, or %zu of "
            "checksums, belong there: its counts are corrupt, or it is a multimodal shard, which smelt does not "
            "read; pack the corpus again as text",
            shard->prefix, left, shard->document_count + 1, blocks_bytes(shard) + sizeof *tail);
    shard->checksummed = true;
    shard->checksum = tail->tokens;
    return true;
}

/* The first and the last entries of the arrays tell whether the index belongs to its tokens. */
static bool index_ends(Shard *shard, Error *error) {
    const ShardIndex *index = &shard->index;
    int64_t last = index->documents[shard->document_count], described = 0;
    if (index->documents[0] != 0)
        return error_set(error, ERROR_DATA,
            "%s.idx starts its first document at sequence %" PRId64 " but it must be 0; pack the corpus again", shard->prefix,
            index->documents[0]);
    if (last != index->sequences)
        return error_set(error, ERROR_DATA,
            "%s.idx ends document %" PRId64 ", the last document, before sequence %" PRId64 " but has %" PRId64
            " sequences; pack the corpus again",
            shard->prefix, shard->document_count - 1, last, index->sequences);
    bool fits = !__builtin_add_overflow(
        index->offsets[index->sequences - 1], (int64_t)index->lengths[index->sequences - 1] * shard->token_bytes, &described);
    if (!fits || described < 0 || (uint64_t)described != shard->map.size)
        return error_set(error, ERROR_DATA,
            "%s.bin has %zu bytes but %s.idx describes %" PRId64 ": the two files do not belong "
            "together or one is cut off; pack the corpus again",
            shard->prefix, shard->map.size, shard->prefix, described);
    shard->token_count = described / shard->token_bytes;
    return described % shard->token_bytes == 0 ||
           error_set(error, ERROR_DATA, "%s.bin has %zu bytes but its tokens have %d each: one is cut off; pack the corpus again",
               shard->prefix, shard->map.size, shard->token_bytes);
}

bool shard_index_map(Shard *shard, Error *error) {
    SCOPED_FREE char *path = memory_format("%s.idx", shard->prefix);
    FileMap *map = &shard->index.map;
    size_t used = 0;
    if (!file_map(map, path, error)) return error_recode(error, ERROR_DATA);
    const ShardHeader *header = (const ShardHeader *)map->bytes;
    return index_header(shard, header, map->size, error) && index_arrays(shard, header, &used, error) &&
           index_checksums(shard, used, error) && index_ends(shard, error);
}

/* -- Documents ----------------------------------------------------------------------------------------------------- */

/* The token that a sequence begins with; of one past the last, the number of tokens. -1: nowhere in the shard. */
static int64_t sequence_start(const Shard *shard, int64_t sequence) {
    if (sequence < 0 || sequence > shard->index.sequences) return -1;
    if (sequence == shard->index.sequences) return shard->token_count;
    int64_t offset = shard->index.offsets[sequence], token = offset / shard->token_bytes;
    return offset < 0 || offset % shard->token_bytes || token > shard->token_count ? -1 : token;
}

bool shard_index_document(const Shard *shard, int64_t document, int64_t *start, int64_t *end, Error *error) {
    int64_t first = shard->index.documents[document], last = shard->index.documents[document + 1];
    *start = sequence_start(shard, first);
    *end = sequence_start(shard, last);
    return (first <= last && *start >= 0 && *start <= *end) ||
           error_set(error, ERROR_DATA,
               "%s.idx ends document %" PRId64 " before sequence %" PRId64 ", and it begins with sequence %" PRId64
               ": one of them lies elsewhere than where the one before ends; pack the corpus again",
               shard->prefix, document, last, first);
}

/* The first document that ends behind `token`; what is wrong in the index on the way there misleads, so the caller compares
 * what it says of this document. */
static int64_t find_document(const Shard *shard, int64_t token) {
    int64_t low = 0, high = shard->document_count - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sequence_start(shard, shard->index.documents[middle + 1]) > token) high = middle;
        else low = middle + 1;
    }
    return low;
}

bool shard_index_ends(const Shard *shard, int64_t first, int64_t count, uint8_t *ends, Error *error) {
    int64_t document = find_document(shard, first), start, end;
    memset(ends, 0, (size_t)count);
    if (!shard_index_document(shard, document, &start, &end, error)) return false;
    if (start > first || end <= first)
        return error_set(error, ERROR_DATA,
            "%s.idx gives no document for token %" PRId64 ": its documents are not in order; pack the corpus again", shard->prefix, first);
    while (end < first + count) {
        if (end > start) ends[end - 1 - first] = 1;
        if (!shard_index_document(shard, ++document, &start, &end, error)) return false;
    }
    if (end == first + count) ends[count - 1] = 1;
    return true;
}

/* -- Verifying ----------------------------------------------------------------------------------------------------- */

/* Adds the length of one sequence to *tokens if it lies where the previous one ended, inside PREFIX.bin. */
static bool verify_sequence(const Shard *shard, int64_t sequence, int64_t *tokens, Error *error) {
    int32_t length = shard->index.lengths[sequence];
    int64_t offset = shard->index.offsets[sequence], expected = *tokens * shard->token_bytes;
    if (offset != expected)
        return error_set(error, ERROR_DATA,
            "%s.idx puts sequence %" PRId64 " at byte %" PRId64 " but the one before ends at byte %" PRId64
            ": smelt reads shards whose sequences lie end to end; pack the corpus again",
            shard->prefix, sequence, offset, expected);
    if (length < 0 || length > shard->token_count - *tokens)
        return error_set(error, ERROR_DATA,
            "%s.idx gives sequence %" PRId64 " a length of %" PRId32 " tokens but 0 to %" PRId64
            " are left in the .bin file: one of the two is cut off or corrupt; pack the corpus again",
            shard->prefix, sequence, length, shard->token_count - *tokens);
    *tokens += length;
    return true;
}

/* Walks sequences and documents together, and adds the ends of documents to the hash. */
static bool verify_documents(const Shard *shard, XXH3_state_t *hash, Error *error) {
    const ShardIndex *index = &shard->index;
    int64_t tokens = 0, sequence = 0;
    for (int64_t document = 0; document < shard->document_count; document++) {
        int64_t end = index->documents[document + 1];
        if (end < sequence || end > index->sequences)
            return error_set(error, ERROR_DATA,
                "%s.idx ends document %" PRId64 " before sequence %" PRId64 " but %" PRId64 " to %" PRId64
                " are possible; pack the corpus again",
                shard->prefix, document, end, sequence, index->sequences);
        for (; sequence < end; sequence++)
            if (!verify_sequence(shard, sequence, &tokens, error)) return false;
        XXH3_64bits_update(hash, &tokens, sizeof tokens);
    }
    return true;
}

static bool verify_checksum(const Shard *shard, Error *error) {
    const FileMap *file = &shard->index.map;
    if (!shard->checksummed) return true;
    const ShardChecksums *tail = (const ShardChecksums *)(file->bytes + file->size - sizeof *tail);
    uint64_t actual = XXH3_64bits(file->bytes, file->size - sizeof tail->index);
    return actual == tail->index || error_set(error, ERROR_DATA,
                                        "%s.idx has checksum %016" PRIx64 " but was written with %016" PRIx64
                                        ": bytes changed since; pack the corpus again or copy it anew",
                                        shard->prefix, actual, tail->index);
}

bool shard_index_verify(Shard *shard, Error *error) {
    if (!verify_checksum(shard, error)) return false;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "no memory to check %s.idx; free some", shard->prefix);
    XXH3_64bits_reset(hash);
    bool good = verify_documents(shard, hash, error);
    shard->documents = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    return good;
}
