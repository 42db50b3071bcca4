/* Reads documents and their parts (split_internal.h). A reader owns a piece of the tokens. A document
 * that is longer is read twice: to be hashed, and to be copied. */
#include <stdlib.h>

#include "base/math.h"
#include "base/memory.h"
#include "data/data_internal.h"
#include "data/split_internal.h"

enum { HELD_TOKENS = 1 << 20 };
static const int64_t ANY_TOKEN = (int64_t)INT32_MAX + 1;

void split_reader_open(SplitReader *reader, const ShardSet *set, double valid_fraction, bool masked) {
    *reader = (SplitReader){.set = set,
        .valid_fraction = valid_fraction,
        .masked = masked,
        .cursor = {.set = set},
        .tokens = memory_allocate(HELD_TOKENS * sizeof *reader->tokens),
        .marks = memory_allocate(HELD_TOKENS),
        .hash = XXH3_createState()};
    if (!reader->hash) memory_refused(sizeof(XXH64_hash_t));
}

void split_reader_close(SplitReader *reader) {
    XXH3_freeState(reader->hash);
    free(reader->tokens);
    free(reader->marks);
}

/* Holds the tokens from `at` on, as far as `end`. Returns their number, at most HELD_TOKENS, or -1
 * after an error. Reads more, for the next documents, and requests the part after that. */
static int64_t hold(SplitReader *reader, int64_t at, int64_t end, Error *error) {
    int64_t count = int_min(end - at, HELD_TOKENS), rest = reader->set->token_count - at, read = int_min(rest, HELD_TOKENS);
    if (at >= reader->held && at + count <= reader->held + reader->held_count) return count;
    reader->held_count = 0;
    shard_set_prefetch(reader->set, at, int_min(rest, 2 * HELD_TOKENS));
    if (!shard_set_read(reader->set, at, read, ANY_TOKEN, reader->tokens, reader->marks, error)) return -1;
    reader->held = at;
    reader->held_count = read;
    return count;
}

static bool find_side(SplitReader *reader, SplitDocument *document, Error *error) {
    const double unit = 0x1p-53;
    XXH3_64bits_reset(reader->hash);
    for (int64_t at = document->start, count; at < document->end; at += count) {
        count = hold(reader, at, document->end, error);
        if (count < 0) return false;
        XXH3_64bits_update(reader->hash, reader->tokens + (at - reader->held), (size_t)count * sizeof *reader->tokens);
    }
    document->valid = (double)(XXH3_64bits_digest(reader->hash) >> 11) * unit < reader->valid_fraction;
    return true;
}

bool split_reader_next(SplitReader *reader, SplitDocument *document, Error *error) {
    if (!document_cursor_next(&reader->cursor, &document->start, &document->end, error)) return false;
    document->middle = document->end;
    if (document->end < 0) return true;
    int64_t second;
    if (reader->set->pairs && !document_cursor_next(&reader->cursor, &second, &document->end, error)) return false;
    if (reader->set->pairs && (document->middle == document->start || document->end <= document->middle))
        return error_set(error, ERROR_DATA, "%s has half a pair: pack it again", reader->set->path);
    return find_side(reader, document, error);
}

/* Appends held tokens; *trained is the kind of the open span of a masked shard. */
static bool append(const SplitReader *reader, ShardWriter *writer, int64_t at, int64_t count, bool *trained, Error *error) {
    const int32_t *tokens = reader->tokens + (at - reader->held);
    const uint8_t *marks = reader->marks + (at - reader->held);
    for (int64_t i = 0, run; i < count; i += run) {
        bool next = reader->masked && !(marks[i] & TOKEN_UNTRAINED);
        for (run = 1; i + run < count && (!reader->masked || next == !(marks[i + run] & TOKEN_UNTRAINED));) run++;
        if (next != *trained && !shard_writer_end_span(writer, error)) return false;
        *trained = next;
        if (!shard_writer_append(writer, tokens + i, run, error)) return false;
    }
    return true;
}

static bool copy(SplitReader *reader, ShardWriter *writer, int64_t start, int64_t end, Error *error) {
    bool trained = false;
    for (int64_t at = start, count; at < end; at += count) {
        count = hold(reader, at, end, error);
        if (count < 0 || !append(reader, writer, at, count, &trained, error)) return false;
    }
    return (!reader->masked || shard_writer_end_span(writer, error)) && shard_writer_end_document(writer, error);
}

bool split_reader_copy(SplitReader *reader, const SplitDocument *document, ShardWriter *writer, Error *error) {
    return copy(reader, writer, document->start, document->middle, error) &&
           (document->middle == document->end || copy(reader, writer, document->middle, document->end, error));
}

int split_token_bytes(const ShardSet *set) {
    int width = 2;
    for (int64_t i = 0; i < set->count; i++) width = set->shards[i].token_bytes > 2 ? 4 : width;
    return width;
}
