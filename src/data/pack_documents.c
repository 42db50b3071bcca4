/* The documents of a packing arrive in order, encoded. They are counted, dropped if they are invalid, repeat others or break a
 * rule, and otherwise appended to the open shard of their part. */
#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/strings.h"
#include "data/packer_internal.h"

static const char *file_name(const Packer *packer, int64_t file) {
    size_t own = packer->files.list.count;
    const FileList *list = (size_t)file < own ? &packer->files.list : &packer->against.names;
    if (list == &packer->against.names && (size_t)file - own >= list->count) return "";
    const char *path = list->entries[(size_t)file - (list == &packer->files.list ? 0 : own)].name;
    return strcmp(path, "-") ? path : "standard input";
}

static bool count_file(Packer *packer, const Record *record, Error *error) {
    const char *path = packer->files.list.entries[record->file].name;
    if (!strcmp(path, "-")) packer->report.result.bytes += (int64_t)record->size;
    if (record->file == packer->last_file) return true;
    packer->last_file = record->file;
    packer->report.result.files++;
    pack_files_take(&packer->files, path);
    int64_t bytes = pack_files_bytes(&packer->files, record->file);
    if (bytes < 0) return file_fail(error, "read", path);
    packer->report.result.bytes += bytes;
    return true;
}

/* Notes a document that is dropped; `first`: the place of the one that it repeats, or 0. */
static bool note_drop(Packer *packer, const Record *record, const char *rule, const char *value, uint64_t first, Error *error) {
    Drop drop = {file_name(packer, record->file), rule, value, record->line, NULL, (int64_t)(first & PLACE_LINES)};
    if (first) drop.first_file = file_name(packer, (int64_t)(first >> PLACE_LINE_BITS) - 1);
    return !packer->dropped || drop_log_add(packer->dropped, &drop, error);
}

/* Drops a document that breaks a rule of the filter. */
static bool drop_by_rule(Packer *packer, const Record *record, Error *error) {
    packer->report.result.filtered++;
    packer->report.filtered[record->broken_rule - 1]++;
    return note_drop(packer, record, filter_rule(packer->options.filter, record->broken_rule - 1), record->value, 0, error);
}

/* Counts a bad record; returns false if it ends the job. */
static bool count_bad_record(Packer *packer, const Record *record, Error *error) {
    const char *file = file_name(packer, record->file);
    PackInvalid invalid = packer->options.invalid;
    bool kept = record->bad == PACK_BAD_UTF8 && (invalid == PACK_INVALID_REPLACE || invalid == PACK_INVALID_KEEP);
    pack_report_bad(&packer->report, record, file);
    if (!kept && !note_drop(packer, record, pack_bad_name(record->bad), record->what, 0, error)) return false;
    if (record->fatal) return error_set(error, ERROR_USAGE, "line %" PRId64 " of %s: %s", record->line, file, record->what);
    if (packer->options.invalid != PACK_INVALID_STOP || record->bad == PACK_BAD_EMPTY) return true;
    return error_set(error, ERROR_DATA, "line %" PRId64 " of %s is an invalid record, and invalid=stop: %s%s%s", record->line, file,
        pack_bad_name(record->bad), record->what[0] ? ": " : "", record->what);
}

static void count_document(Packer *packer, const Record *record, int64_t tokens, int64_t bytes) {
    PackResult *result = &packer->report.result;
    int bits = 63 - __builtin_clzll((unsigned long long)tokens | 1);
    result->documents++;
    result->text_bytes += bytes;
    result->lengths[bits < PACK_LENGTHS ? bits : PACK_LENGTHS - 1]++;
    *(record->valid ? &result->valid_tokens : &result->train_tokens) += tokens;
}

/* Returns the place of a document as a number above 0; 0 if it is too large for one. */
static uint64_t place_number(const Record *record) {
    uint64_t file = (uint64_t)record->file + 1, line = (uint64_t)record->line;
    return file >= PLACE_FILES || line > PLACE_LINES ? 0 : file << PLACE_LINE_BITS | line;
}

/* Adds a hash to the set; a folder of shards also saves it for the next start. */
static bool remember_document(Packer *packer, uint64_t hash, uint64_t place, bool *seen, uint64_t *first, Error *error) {
    if (!hash_set_add(packer->seen, hash, place, seen, first, error)) return false;
    if (!packer_in_folder(packer) || *seen) return true;
    array_reserve(packer->new_hashes, packer->new_hash_capacity, packer->new_hash_count + 2);
    packer->new_hashes[packer->new_hash_count++] = hash;
    if (packer->places) packer->new_hashes[packer->new_hash_count++] = place;
    return true;
}

/* Decides whether a document is kept, by its text and, unless they are NULL, its keys. Keys of
 * near-duplicates are not added to the set, so a document that resembles only a near-duplicate is
 * kept. */
static bool judge_duplicate(Packer *packer, const Record *record, uint64_t hash, const uint64_t *keys, bool *stays, Error *error) {
    PackResult *result = &packer->report.result;
    bool seen, near = false, known;
    uint64_t place = place_number(record), first = 0;
    if (!remember_document(packer, hash, place, &seen, &first, error)) return false;
    for (int i = 0; i < MINHASH_KEYS && keys && !seen && !near; i++) near = hash_set_has(packer->seen, keys[i], &first);
    for (int i = 0; i < MINHASH_KEYS && keys && !seen && !near; i++)
        if (!remember_document(packer, keys[i], place, &known, NULL, error)) return false;
    result->duplicates += seen;
    result->near += near;
    *stays = !near && (!seen || packer->options.dedup == PACK_DEDUP_NONE);
    result->left_out += !*stays;
    return *stays || note_drop(packer, record, seen ? "dedup=exact" : "dedup=near", "null", first, error);
}

/* Ends a document, and the shard if it is full. */
static bool end_packed_document(Packer *packer, PackPart *part, const Record *record, Error *error) {
    if (!shard_writer_end_document(part->writer, error)) return false;
    bool full = packer_in_folder(packer) && packer->train.open_tokens >= packer->options.shard_tokens;
    return !full || packer_end_shards(packer, record->end, error);
}

static bool append_tokens(Packer *packer, PackPart *part, const int32_t *tokens, size_t count, Error *error) {
    part->open_tokens += (int64_t)count;
    return packer_open_part(packer, part, error) && shard_writer_append(part->writer, tokens, (int64_t)count, error);
}

/* Appends the tokens of a conversation, span by span; the chosen answer of a pair becomes a
 * separate document. */
static bool append_spans(Packer *packer, PackPart *part, const int32_t *tokens, const Record *record, Error *error) {
    int64_t *trained = record->valid ? &packer->report.result.trained_valid : &packer->report.result.trained_train;
    packer->report.result.empty_answers += (int64_t)record->counts.empty_answers;
    packer->report.result.decoded_arguments += (int64_t)record->counts.decoded_arguments;
    packer->report.result.text_arguments += (int64_t)record->counts.text_arguments;
    for (int i = 0; i < CHAT_PARTS; i++) packer->report.result.lost[i] += record->lost[i];
    for (size_t i = 0; i < record->span_count; i++) {
        if (!append_tokens(packer, part, tokens, (size_t)record->spans[i], error) || !shard_writer_end_span(part->writer, error))
            return false;
        tokens += record->spans[i];
        if ((i - (i < record->chosen_spans ? 0 : record->chosen_spans)) % 2) *trained += record->spans[i];
        if (i + 1 == record->chosen_spans && !shard_writer_end_document(part->writer, error)) return false;
    }
    return true;
}

/* Returns whether documents are held until their end, because they may be dropped then. This limits
 * their length. */
static bool holds_output(const Packer *packer) {
    return packer->options.dedup != PACK_DEDUP_NONE || packer->options.invalid == PACK_INVALID_SKIP;
}

static bool is_too_long(const Packer *packer, size_t bytes) { return holds_output(packer) && bytes > RECORD_LIMIT; }

static bool drop_long(Packer *packer, Record *record, Error *error) {
    record->bad = PACK_BAD_LONG;
    return count_bad_record(packer, record, error);
}

/* Takes a document that is one record, as nearly all are. */
static bool take_whole(Packer *packer, const Block *block, Record *record, Error *error) {
    bool stays;
    PackPart *part = record->valid ? &packer->valid : &packer->train;
    if (record->text_size == 0) return true;
    if (is_too_long(packer, record->text_size)) return drop_long(packer, record, error);
    if (!judge_duplicate(packer, record, record->hash, record->keys, &stays, error)) return false;
    if (!stays) return true;
    count_document(packer, record, (int64_t)record->id_count, (int64_t)record->text_size);
    const int32_t *tokens = block->ids.items + record->ids;
    bool good =
        record->spans ? append_spans(packer, part, tokens, record, error) : append_tokens(packer, part, tokens, record->id_count, error);
    return good && end_packed_document(packer, part, record, error);
}

static bool take_piece_tokens(Packer *packer, PackPart *part, const int32_t *tokens, size_t count, Error *error) {
    if (packer->long_dropped) return true;
    if (!holds_output(packer)) return append_tokens(packer, part, tokens, count, error);
    array_reserve(packer->held, packer->held_capacity, packer->held_count + count);
    if (count > 0) memcpy(packer->held + packer->held_count, tokens, count * sizeof *tokens);
    packer->held_count += count;
    return true;
}

static bool end_pieces(Packer *packer, PackPart *part, const Record *record, Error *error) {
    bool stays = true;
    if (packer->long_dropped) return true;
    Record whole = {.file = record->file, .line = packer->long_line};
    if (!judge_duplicate(packer, &whole, XXH3_64bits_digest(packer->long_hash), NULL, &stays, error)) return false;
    if (!stays) return true;
    count_document(packer, record, packer->long_tokens, packer->long_bytes);
    return (!holds_output(packer) || append_tokens(packer, part, packer->held, packer->held_count, error)) &&
           end_packed_document(packer, part, record, error);
}

static bool take_piece(Packer *packer, const Block *block, Record *record, Error *error) {
    PackPart *part = record->valid ? &packer->valid : &packer->train;
    if (record->first) {
        XXH3_64bits_reset(packer->long_hash);
        packer->held_count = 0;
        packer->long_line = record->line;
        packer->long_tokens = packer->long_bytes = 0;
        packer->long_dropped = false;
    }
    packer->long_tokens += (int64_t)record->id_count;
    packer->long_bytes += (int64_t)record->text_size;
    XXH3_64bits_update(packer->long_hash, record->text, record->text_size);
    if (record->bad == PACK_BAD_UTF8 && packer->options.invalid == PACK_INVALID_SKIP) packer->long_dropped = true;
    if (is_too_long(packer, (size_t)packer->long_bytes) && !packer->long_dropped) {
        packer->long_dropped = true;
        if (!drop_long(packer, record, error)) return false;
    }
    return take_piece_tokens(packer, part, block->ids.items + record->ids, record->id_count, error) &&
           (!record->last || end_pieces(packer, part, record, error));
}

static bool train_on(Packer *packer, const Record *record, Error *error) {
    packer->report.result.documents += record->first && record->text_size > 0;
    return record->text_size == 0 || tokenizer_trainer_add(packer->trainer, record->text, record->text_size, error);
}

/* Shows progress. Work that was done before a resume does not count for the speed. */
static void show_progress(Packer *packer, int64_t done) {
    const PackResult *result = &packer->report.result;
    int64_t tokens = result->train_tokens + result->valid_tokens;
    if (!packer->progress.label) {
        packer->done_before = result->resumed ? done : 0;
        packer->tokens_before = result->resumed ? tokens : 0;
        packer->progress =
            progress_start(packer->trainer ? "counting words" : "packing", "bytes", packer->files.bytes - packer->done_before);
    }
    if (!packer->trainer) progress_made(&packer->progress, "tokens", tokens - packer->tokens_before);
    progress_update(&packer->progress, done - packer->done_before);
}

bool packer_take_block(void *context, Block *block, Error *error) {
    Packer *packer = context;
    for (size_t i = 0; i < block->count; i++) {
        Record *record = &block->records[i];
        if (record->left_out.what) {
            pack_files_leave(&packer->files, packer->files.list.entries[record->file].name, record->left_out, !record->left_out.advice);
            continue;
        }
        if (record->passed) continue;
        for (int rule = 0; rule < LINE_RULES; rule++) packer->report.edits[rule] += record->edits[rule];
        packer->report.result.records += record->first;
        packer->long_bad = packer->long_bad && !record->first;
        bool good = record->bad == PACK_GOOD || packer->long_bad || count_bad_record(packer, record, error);
        packer->long_bad = packer->long_bad || record->bad != PACK_GOOD;
        good = good && count_file(packer, record, error);
        if (good && record->broken_rule) good = drop_by_rule(packer, record, error);
        else if (good && packer->trainer) good = train_on(packer, record, error);
        else if (good && record->first && record->last) good = take_whole(packer, block, record, error);
        else if (good) good = take_piece(packer, block, record, error);
        if (!good) return false;
    }
    show_progress(packer, block->done);
    return true;
}
