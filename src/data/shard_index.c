/* Reads the index of a token shard in Megatron's format, and trusts nothing in it.
 *
 * PREFIX.idx, little-endian, no padding: "MMIDIDX\0\0", u64 version 1, u8 type, u64 sequences, u64
 * document entries, i32 length[sequences], i64 byte offset[sequences], i64 document[entries]. The
 * last array holds sequence numbers: 0, then one past the last sequence of each document. smelt's
 * own writer appends data that Megatron ignores: u64 XXH3 of each 4 KiB of PREFIX.bin, u64 XXH3 of
 * each 4 KiB of the index so far, and a trailer: "SMELTBLK", u64 largest token, u64 XXH3 of
 * PREFIX.bin, of the document ends in tokens (an i64 each), of the block checksums, and of the
 * trailer so far. "SMELTMSK" instead means that the sequences of each document are alternately
 * untrained and trained, which is a loss mask; their ends are then in the checksum too. "SMELTPRF"
 * means the same, and that of each two documents the first is an answer that was preferred to the
 * second. smelt 0.9 wrote "SMELTSUM", u64 XXH3 of PREFIX.bin, u64 XXH3 of all index bytes before
 * this field.
 *
 * Sequences must be contiguous and in order in PREFIX.bin, as Megatron's writer leaves them; the
 * corpus is then one array of tokens. The arrays stay mapped and are read when a document is
 * requested, so memory does not grow with their number, and each read is compared with the checksum
 * of its block. Called by shard.c. */
#include <assert.h>
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/hash.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/data_internal.h"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "shards are mapped as they lie on disk: little-endian");

const ShardType shard_types[SHARD_TYPE_COUNT] = {
    {NULL, 0}, {"u8", 1}, {"i8", 0}, {"i16", 0}, {"i32", 4}, {"i64", 8}, {"f64", 0}, {"f32", 0}, {"u16", 2}};

int shard_type_code(int token_bytes) {
    for (int code = 1; code < SHARD_TYPE_COUNT; code++)
        if (shard_types[code].token_bytes == token_bytes) return code;
    assert(!"token_bytes is 1, 2, 4 or 8");
    return 0;
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

static bool index_header(Shard *shard, const ShardHeader *header, size_t bytes, Error *error) {
    if (bytes < sizeof *header)
        return error_set(error, ERROR_DATA,
            "%s.idx has %zu bytes, but an index has at least %zu: it is truncated or not an index; pack the corpus again", shard->prefix,
            bytes, sizeof *header);
    if (memcmp(header->magic, SHARD_MAGIC, sizeof header->magic) != 0)
        return error_set(error, ERROR_DATA,
            "%s.idx does not begin with \"MMIDIDX\", so it is not a Megatron index: pack the corpus with `smelt data pack` or Megatron's "
            "preprocess_data.py",
            shard->prefix);
    if (header->version != SHARD_VERSION)
        return error_set(error, ERROR_DATA, "%s.idx has version %" PRIu64 ", but only version %d is supported: pack the corpus again",
            shard->prefix, header->version, SHARD_VERSION);
    int code = header->type;
    if (code < 1 || code >= SHARD_TYPE_COUNT)
        return error_set(error, ERROR_DATA, "%s.idx has token type %d, but types are 1 to %d: pack the corpus again", shard->prefix, code,
            SHARD_TYPE_COUNT - 1);
    if (shard_types[code].token_bytes == 0)
        return error_set(error, ERROR_DATA,
            "%s.idx has token type %d (%s), but tokens must be u8, u16, i32 or i64: pack the corpus again with one of these", shard->prefix,
            code, shard_types[code].name);
    shard->token_bytes = shard_types[code].token_bytes;
    return true;
}

/* Finds the arrays from the counts, which must account for every byte of the file up to the
 * checksums. */
static bool index_arrays(Shard *shard, const ShardHeader *header, Error *error) {
    ShardIndex *index = &shard->index;
    uint64_t room = index->map.size - sizeof *header;
    if (header->sequences < 1 || header->sequences > room / 12)
        return error_set(error, ERROR_DATA,
            "%s.idx claims %" PRIu64 " sequences, but it must have at least 1, and its %zu bytes have room for %" PRIu64
            ": it is empty, truncated or corrupt; pack the corpus again",
            shard->prefix, header->sequences, index->map.size, room / 12);
    room -= header->sequences * 12;
    if (header->entries < 2 || header->entries > room / 8)
        return error_set(error, ERROR_DATA,
            "%s.idx claims %" PRIu64 " document entries, but it must have at least 2, and its %zu bytes have room for %" PRIu64
            " after %" PRIu64 " sequences: it is empty, truncated or corrupt; pack the corpus again",
            shard->prefix, header->entries, index->map.size, room / 8, header->sequences);
    index->sequences = (int64_t)header->sequences;
    index->lengths = (const UnalignedI32 *)(index->map.bytes + sizeof *header);
    index->offsets = (const UnalignedI64 *)(index->lengths + index->sequences);
    index->documents = index->offsets + index->sequences;
    shard->document_count = (int64_t)header->entries - 1;
    index->bytes = (const unsigned char *)(index->documents + header->entries) - index->map.bytes;
    return true;
}

/* Checks the first and the last entries of the arrays, which show whether the index belongs to its
 * tokens. */
static bool index_ends(Shard *shard, Error *error) {
    const ShardIndex *index = &shard->index;
    int64_t last = index->documents[shard->document_count], described = 0;
    if (index->documents[0] != 0)
        return error_set(error, ERROR_DATA, "%s.idx starts its first document at sequence %" PRId64 " instead of 0: pack the corpus again",
            shard->prefix, index->documents[0]);
    if (last != index->sequences)
        return error_set(error, ERROR_DATA,
            "%s.idx ends its last document %" PRId64 " before sequence %" PRId64 ", but has %" PRId64 " sequences: pack the corpus again",
            shard->prefix, shard->document_count - 1, last, index->sequences);
    bool fits = !__builtin_add_overflow(
        index->offsets[index->sequences - 1], (int64_t)index->lengths[index->sequences - 1] * shard->token_bytes, &described);
    if (!fits || described != shard->file.bytes)
        return error_set(error, ERROR_DATA,
            "%s.bin has %" PRId64 " bytes, but %s.idx describes %" PRId64
            ": the files do not belong together, or one is truncated; pack the corpus again",
            shard->prefix, shard->file.bytes, shard->prefix, described);
    shard->token_count = described / shard->token_bytes;
    return described % shard->token_bytes == 0 ||
           error_set(error, ERROR_DATA,
               "%s.bin has %" PRId64 " bytes, which is not a multiple of its token size %d: it is truncated; pack the corpus again",
               shard->prefix, shard->file.bytes, shard->token_bytes);
}

/* -- Checksums ----------------------------------------------------------------------------------------------------- */

static const ShardTrailer *trailer_of(const Shard *shard) {
    return (const ShardTrailer *)(shard->index.map.bytes + shard->index.map.size - sizeof(ShardTrailer));
}

/* Returns whether the block checksums are undamaged; *start is their offset. */
static bool sums_are_whole(const Shard *shard, int64_t *start, int64_t *size) {
    const unsigned char *from = (const unsigned char *)shard->index.token_blocks, *to = (const unsigned char *)trailer_of(shard);
    *start = from - shard->index.map.bytes;
    *size = to - from;
    return hash_bytes(from, (size_t)*size) == trailer_of(shard)->blocks;
}

bool shard_index_refuse(const Shard *shard, bool tokens, int64_t start, int64_t size, Error *error) {
    int64_t from, bytes;
    if (!sums_are_whole(shard, &from, &bytes)) {
        tokens = false;
        start = from;
        size = bytes;
    }
    return error_set(error, ERROR_DATA,
        "%s.%s changed since it was written, in bytes %" PRId64 " to %" PRId64 ": copy the file again, or pack the corpus again",
        shard->prefix, tokens ? "bin" : "idx", start, start + size - 1);
}

int64_t shard_wrong_block(const UnalignedU64 *sums, const void *bytes, int64_t start, int64_t size) {
    for (int64_t done = 0; done < size; done += SHARD_BLOCK_BYTES) {
        int64_t part = int_min(SHARD_BLOCK_BYTES, size - done);
        if (hash_bytes((const char *)bytes + done, (size_t)part) != sums[(start + done) / SHARD_BLOCK_BYTES]) return start + done;
    }
    return -1;
}

/* Verifies the blocks that hold `bytes` bytes at `place`, except the block at *checked; *checked
 * becomes the last block verified. */
static bool check_blocks(const Shard *shard, const void *place, int64_t bytes, const void **checked, Error *error) {
    const ShardIndex *index = &shard->index;
    int64_t at = (const unsigned char *)place - index->map.bytes;
    if (shard->record != SHARD_BLOCKS) return true;
    for (int64_t start = at / SHARD_BLOCK_BYTES * SHARD_BLOCK_BYTES; start < at + bytes; start += SHARD_BLOCK_BYTES) {
        const unsigned char *block = index->map.bytes + start;
        int64_t size = int_min(index->bytes - start, SHARD_BLOCK_BYTES);
        if (*checked == block) continue;
        if (shard_wrong_block(index->blocks, block, start, size) >= 0) return shard_index_refuse(shard, false, start, size, error);
        *checked = block;
    }
    return true;
}

static bool read_trailer(Shard *shard, const ShardTrailer *trailer, Error *error) {
    ShardIndex *index = &shard->index;
    if (trailer->self != hash_bytes(trailer, offsetof(ShardTrailer, self)))
        return error_set(error, ERROR_DATA,
            "%s.idx changed since it was written, in its last %zu bytes: copy the file again, or pack the corpus again", shard->prefix,
            sizeof *trailer);
    shard->record = SHARD_BLOCKS;
    shard->max_token = (int64_t)trailer->max_token;
    shard->checksum = trailer->tokens;
    shard->documents = trailer->documents;
    index->token_blocks = (const UnalignedU64 *)(index->map.bytes + index->bytes);
    index->blocks = index->token_blocks + divide_up(shard->file.bytes, SHARD_BLOCK_BYTES);
    return true;
}

/* Checks the data after the arrays: nothing, or smelt's own. */
static bool index_record(Shard *shard, Error *error) {
    const ShardIndex *index = &shard->index;
    const unsigned char *end = index->map.bytes + index->map.size;
    int64_t left = (int64_t)index->map.size - index->bytes;
    int64_t blocks = divide_up(shard->file.bytes, SHARD_BLOCK_BYTES) + divide_up(index->bytes, SHARD_BLOCK_BYTES);
    int64_t trailer = blocks * (int64_t)sizeof *index->blocks + (int64_t)sizeof(ShardTrailer);
    if (left == 0) return true;
    shard->pairs = left == trailer && !memcmp(end - sizeof(ShardTrailer), SHARD_PAIRS_MAGIC, 8);
    shard->masked = shard->pairs || (left == trailer && !memcmp(end - sizeof(ShardTrailer), SHARD_MASKED_MAGIC, 8));
    if (shard->pairs && shard->document_count % 2)
        return error_set(error, ERROR_DATA,
            "%s.idx describes preference pairs, but has an odd number of documents, %" PRId64 ": pack the corpus again", shard->prefix,
            shard->document_count);
    if (shard->masked || (left == trailer && !memcmp(end - sizeof(ShardTrailer), SHARD_TRAILER_MAGIC, 8)))
        return read_trailer(shard, trailer_of(shard), error);
    const ShardSums *sums = (const ShardSums *)(end - sizeof *sums);
    if (left != sizeof *sums || memcmp(sums->magic, SHARD_SUMS_MAGIC, sizeof sums->magic) != 0)
        return error_set(error, ERROR_DATA,
            "%s.idx has %" PRId64 " bytes after its %" PRId64 " document entries instead of 0, or %" PRId64
            " of checksums: its counts are corrupt, or it is a multimodal shard, which smelt does not read; pack the corpus again as text",
            shard->prefix, left, shard->document_count + 1, trailer);
    shard->record = SHARD_SUMS;
    shard->checksum = sums->tokens;
    return true;
}

/* Verifies the header and the last entries, which opening the shard has used. */
static bool check_opened(const Shard *shard, Error *error) {
    const ShardIndex *index = &shard->index;
    const void *checked = NULL;
    int64_t last = index->sequences - 1;
    return check_blocks(shard, index->map.bytes, sizeof(ShardHeader), &checked, error) &&
           check_blocks(shard, &index->lengths[last], sizeof *index->lengths, &checked, error) &&
           check_blocks(shard, &index->offsets[last], sizeof *index->offsets, &checked, error) &&
           check_blocks(shard, &index->documents[0], sizeof *index->documents, &checked, error) &&
           check_blocks(shard, &index->documents[shard->document_count], sizeof *index->documents, &checked, error);
}

bool shard_index_open(Shard *shard, Error *error) {
    SCOPED_FREE char *path = memory_format("%s.idx", shard->prefix);
    FileMap *map = &shard->index.map;
    if (!file_map(map, path, error)) return error_recode(error, ERROR_DATA);
    const ShardHeader *header = (const ShardHeader *)map->bytes;
    return index_header(shard, header, map->size, error) && index_arrays(shard, header, error) && index_ends(shard, error) &&
           index_record(shard, error) && check_opened(shard, error);
}

/* -- Documents ----------------------------------------------------------------------------------------------------- */

/* Returns the first token of a sequence; for one past the last, the number of tokens. -1: outside
 * the shard. */
static int64_t sequence_start(const Shard *shard, int64_t sequence) {
    if (sequence < 0 || sequence > shard->index.sequences) return -1;
    if (sequence == shard->index.sequences) return shard->token_count;
    int64_t offset = shard->index.offsets[sequence], token = offset / shard->token_bytes;
    return offset < 0 || offset % shard->token_bytes || token > shard->token_count ? -1 : token;
}

static bool check_sequence(const Shard *shard, int64_t sequence, const void **checked, Error *error) {
    return sequence < 0 || sequence >= shard->index.sequences ||
           check_blocks(shard, &shard->index.offsets[sequence], sizeof *shard->index.offsets, checked, error);
}

bool shard_index_document(const Shard *shard, int64_t document, int64_t *start, int64_t *end, const void *checked[2], Error *error) {
    const UnalignedI64 *entries = &shard->index.documents[document];
    if (!check_blocks(shard, entries, 2 * sizeof *entries, &checked[0], error)) return false;
    int64_t first = entries[0], last = entries[1];
    if (!check_sequence(shard, first, &checked[1], error) || !check_sequence(shard, last, &checked[1], error)) return false;
    *start = sequence_start(shard, first);
    *end = sequence_start(shard, last);
    return (first <= last && *start >= 0 && *start <= *end) ||
           error_set(error, ERROR_DATA,
               "%s.idx ends document %" PRId64 " before sequence %" PRId64 ", but the document begins at sequence %" PRId64
               ": its documents are not contiguous; pack the corpus again",
               shard->prefix, document, last, first);
}

/* Returns the first document that ends after `token`. Damage in the index on the way can give a
 * wrong result, so the caller verifies the document. */
static int64_t find_document(const Shard *shard, int64_t token) {
    int64_t low = 0, high = shard->document_count - 1;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sequence_start(shard, shard->index.documents[middle + 1]) > token) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Returns the tokens [*from, *to) of a sequence. */
static bool find_sequence(const Shard *shard, int64_t sequence, int64_t *from, int64_t *to, const void **checked, Error *error) {
    if (!check_sequence(shard, sequence, checked, error) || !check_sequence(shard, sequence + 1, checked, error)) return false;
    *from = sequence_start(shard, sequence);
    *to = sequence_start(shard, sequence + 1);
    return (*from >= 0 && *from <= *to) ||
           error_set(
               error, ERROR_DATA, "%s.idx ends sequence %" PRId64 " before it begins: pack the corpus again", shard->prefix, sequence);
}

bool shard_index_trained(const Shard *shard, int64_t document, int64_t *trained, Error *error) {
    int64_t from, to;
    const void *checked[2] = {NULL, NULL};
    if (!shard_index_document(shard, document, &from, &to, checked, error)) return false;
    for (int64_t sequence = shard->index.documents[document] + 1; sequence < shard->index.documents[document + 1]; sequence += 2) {
        if (!find_sequence(shard, sequence, &from, &to, &checked[1], error)) return false;
        *trained += to - from;
    }
    return true;
}

/* Marks the untrained tokens of a document among [first, first + count): its first sequence, its
 * third, and so on. */
static bool mark_untrained(const Shard *shard, int64_t document, int64_t first, int64_t count, uint8_t *marks, Error *error) {
    int64_t begin = shard->index.documents[document], end = shard->index.documents[document + 1];
    const void *checked = NULL;
    for (int64_t sequence = begin, from, to; sequence < end; sequence += 2) {
        if (!find_sequence(shard, sequence, &from, &to, &checked, error)) return false;
        if (from >= first + count) break;
        for (int64_t i = int_max(from, first); i < int_min(to, first + count); i++) marks[i - first] |= TOKEN_UNTRAINED;
    }
    return true;
}

bool shard_index_marks(const Shard *shard, int64_t first, int64_t count, uint8_t *marks, Error *error) {
    int64_t document = find_document(shard, first), start, end;
    const void *checked[2] = {NULL, NULL};
    memset(marks, 0, (size_t)count);
    if (!shard_index_document(shard, document, &start, &end, checked, error)) return false;
    if (start > first || end <= first)
        return error_set(error, ERROR_DATA,
            "%s.idx has no document for token %" PRId64 ": its documents are not in order; pack the corpus again", shard->prefix, first);
    for (;;) {
        if (shard->masked && !mark_untrained(shard, document, first, count, marks, error)) return false;
        if (end > start && end <= first + count) marks[end - 1 - first] |= TOKEN_ENDS;
        if (end >= first + count) return true;
        if (!shard_index_document(shard, ++document, &start, &end, checked, error)) return false;
    }
}

/* -- Verifying ----------------------------------------------------------------------------------------------------- */

/* Adds the length of one sequence to *tokens if it begins at the end of the previous one, inside
 * PREFIX.bin. */
static bool verify_sequence(const Shard *shard, int64_t sequence, int64_t *tokens, Error *error) {
    int32_t length = shard->index.lengths[sequence];
    int64_t offset = shard->index.offsets[sequence], expected = *tokens * shard->token_bytes;
    if (offset != expected)
        return error_set(error, ERROR_DATA,
            "%s.idx puts sequence %" PRId64 " at byte %" PRId64 ", but the previous sequence ends at byte %" PRId64
            ": smelt reads only contiguous sequences; pack the corpus again",
            shard->prefix, sequence, offset, expected);
    if (length < 0 || length > shard->token_count - *tokens)
        return error_set(error, ERROR_DATA,
            "%s.idx gives sequence %" PRId64 " a length of %" PRId32 " tokens, but the .bin file has %" PRId64
            " left: one of the two is truncated or corrupt; pack the corpus again",
            shard->prefix, sequence, length, shard->token_count - *tokens);
    *tokens += length;
    return true;
}

/* Walks sequences and documents together, and adds the document ends to the hash. */
static bool verify_documents(const Shard *shard, XXH3_state_t *hash, Error *error) {
    const ShardIndex *index = &shard->index;
    int64_t tokens = 0, sequence = 0;
    for (int64_t document = 0; document < shard->document_count; document++) {
        int64_t end = index->documents[document + 1];
        if (end < sequence || end > index->sequences)
            return error_set(error, ERROR_DATA,
                "%s.idx ends document %" PRId64 " before sequence %" PRId64 ", which is not from %" PRId64 " to %" PRId64
                ": its documents are not in order; pack the corpus again",
                shard->prefix, document, end, sequence, index->sequences);
        for (; sequence < end; sequence++) {
            if (!verify_sequence(shard, sequence, &tokens, error)) return false;
            if (shard->masked) XXH3_64bits_update(hash, &tokens, sizeof tokens);
        }
        XXH3_64bits_update(hash, &tokens, sizeof tokens);
    }
    return true;
}

/* Verifies all blocks, and the block checksums themselves; for smelt 0.9, the index as a whole. */
static bool verify_record(const Shard *shard, Error *error) {
    const ShardIndex *index = &shard->index;
    const void *checked = NULL;
    int64_t start, size;
    if (shard->record == SHARD_BLOCKS && !sums_are_whole(shard, &start, &size)) return shard_index_refuse(shard, false, start, size, error);
    if (shard->record != SHARD_SUMS) return check_blocks(shard, index->map.bytes, index->bytes, &checked, error);
    const ShardSums *sums = (const ShardSums *)(index->map.bytes + index->map.size - sizeof *sums);
    uint64_t actual = hash_bytes(index->map.bytes, index->map.size - sizeof sums->index);
    return actual == sums->index || error_set(error, ERROR_DATA,
                                        "%s.idx has checksum %016" PRIx64 ", but %016" PRIx64
                                        " was recorded when it was written: copy the file again, or pack the corpus again",
                                        shard->prefix, actual, sums->index);
}

bool shard_index_verify(const Shard *shard, uint64_t *documents, Error *error) {
    if (!verify_record(shard, error)) return false;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash) return error_set(error, ERROR_MEMORY, "out of memory while checking %s.idx: free some", shard->prefix);
    XXH3_64bits_reset(hash);
    bool good = verify_documents(shard, hash, error);
    *documents = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    if (good && shard->record == SHARD_BLOCKS && *documents != shard->documents)
        good = error_set(
            error, ERROR_DATA, "the document ends of %s.idx changed since they were written: pack the corpus again", shard->prefix);
    return good;
}
