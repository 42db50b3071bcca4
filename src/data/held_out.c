/* Holds validation documents out of shards (held_out.h). FOLDER/split is a mapped file: for each set
 * its StreamRuns and the one that ends them, then a HeldOutSet for each, then a HeldOutFooter. It is
 * written after the shard of the validation documents, whose checksum it has. Called when a run
 * opens its data. */
#include "data/held_out.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/data_internal.h"
#include "data/split_internal.h"

#define HELD_OUT_MAGIC "SMELTHO1"
enum { BUFFERED_RUNS = 4096 };

typedef struct HeldOutSet { int64_t runs, tokens, documents; /* that the set keeps */ } HeldOutSet;

typedef struct HeldOutFooter {
    char magic[8];
    uint64_t key;      /* key_of */
    uint64_t valid;    /* shard_set_checksum of the validation documents */
    uint64_t checksum; /* XXH3 of all bytes before it */
} HeldOutFooter;

/* Returns what decides the documents of each part. */
static bool key_of(const HeldOutOptions *options, const ShardSet *sets, int count, uint64_t *key, Error *error) {
    size_t words = 2 * (size_t)count + 1;
    SCOPED_FREE uint64_t *parts = memory_allocate(words * sizeof *parts);
    memcpy(parts, &options->valid_fraction, sizeof *parts);
    for (int i = 0; i < count; i++) {
        if (!shard_set_checksum(&sets[i], &parts[2 * i + 1], error)) return false;
        parts[2 * i + 2] = sets[i].document_count < 0 ? (uint64_t)sets[i].end_token : 0;
    }
    *key = hash_bytes(parts, words * sizeof *parts);
    return true;
}

/* -- Making -------------------------------------------------------------------------------------------------------- */

typedef struct Holder {
    const HeldOutOptions *options;
    char *valid; /* prefix of the shard */
    ShardWriter *writer;
    File file;
    XXH3_state_t *hash; /* of the bytes of the file */
    HeldOutSet *kept;   /* [count] */
    StreamRun runs[BUFFERED_RUNS];
    int64_t buffered;
    int64_t end; /* of the last document that the present set keeps */
    int64_t valid_tokens;
} Holder;

static bool write_part(Holder *holder, const void *data, size_t bytes, Error *error) {
    XXH3_64bits_update(holder->hash, data, bytes);
    return file_append(&holder->file, data, (int64_t)bytes, error);
}

static bool flush_runs(Holder *holder, Error *error) {
    size_t bytes = (size_t)holder->buffered * sizeof(StreamRun);
    holder->buffered = 0;
    return !bytes || write_part(holder, holder->runs, bytes, error);
}

static bool add_run(Holder *holder, int64_t first, int64_t start, Error *error) {
    if (holder->buffered == BUFFERED_RUNS && !flush_runs(holder, error)) return false;
    holder->runs[holder->buffered++] = (StreamRun){first, start};
    return true;
}

/* Leaves a document in its set. Consecutive ones are one run. */
static bool keep(Holder *holder, HeldOutSet *kept, const SplitDocument *document, Error *error) {
    bool next = document->start != holder->end || !kept->runs;
    if (document->start == document->end) return true;
    if (next && !add_run(holder, kept->tokens, document->start, error)) return false;
    kept->runs += next;
    kept->tokens += document->end - document->start;
    kept->documents += 1 + (document->middle < document->end);
    holder->end = document->end;
    return true;
}

static bool divide_set(Holder *holder, const ShardSet *set, bool masked, HeldOutSet *kept, Error *error) {
    SCOPED(split_reader_close) SplitReader reader;
    SplitDocument document;
    Progress progress = progress_start("splitting", "tokens", set->token_count);
    bool good;
    split_reader_open(&reader, set, holder->options->valid_fraction, masked);
    while ((good = split_reader_next(&reader, &document, error)) && document.end >= 0) {
        good = document.valid ? split_reader_copy(&reader, &document, holder->writer, error) : keep(holder, kept, &document, error);
        if (!good) break;
        if (document.valid) holder->valid_tokens += document.end - document.start;
        progress_update(&progress, reader.cursor.token);
    }
    progress_finish(&progress);
    if (good && !kept->runs)
        return error_set(error, ERROR_DATA, "no document of %s is left for training: reduce the validation part, %g of the documents",
            set->path, holder->options->valid_fraction);
    return good && add_run(holder, kept->tokens, 0, error);
}

static bool open_writer(Holder *holder, const ShardSet *sets, int count, bool *masked, Error *error) {
    int width = 2;
    *masked = false;
    for (int i = 0; i < count; i++) {
        *masked = *masked || sets[i].masked;
        width = (int)int_max(width, split_token_bytes(&sets[i]));
        if (sets[i].document_count < 0 && sets[i].end_token < 0)
            return error_set(
                error, ERROR_USAGE, "%s has no index of documents, and its end-of-text token is unknown: set data.tokenizer", sets[i].path);
    }
    if (!(holder->writer = shard_writer_open(holder->valid, width, error))) return false;
    if (sets->pairs) shard_writer_pairs(holder->writer);
    if (*masked) shard_writer_mask(holder->writer);
    if (holder->options->tokenizer) shard_writer_tokenizer(holder->writer, holder->options->tokenizer, "");
    return true;
}

/* Completes the shard, and then the file. */
static bool finish(Holder *holder, uint64_t key, int count, Error *error) {
    SCOPED(shard_set_close) ShardSet valid = {0};
    HeldOutFooter footer = {.magic = HELD_OUT_MAGIC, .key = key};
    if (!holder->valid_tokens)
        return error_set(
            error, ERROR_DATA, "no document is in the validation part, %g of the documents: increase it", holder->options->valid_fraction);
    ShardWriter *writer = holder->writer;
    holder->writer = NULL;
    if (!shard_writers_finish(&writer, 1, NULL, error) || !shard_set_open(&valid, holder->valid, error) ||
        !shard_set_checksum(&valid, &footer.valid, error) || !flush_runs(holder, error) ||
        !write_part(holder, holder->kept, (size_t)count * sizeof *holder->kept, error) ||
        !write_part(holder, &footer, offsetof(HeldOutFooter, checksum), error))
        return false;
    footer.checksum = XXH3_64bits_digest(holder->hash);
    return file_append(&holder->file, &footer.checksum, sizeof footer.checksum, error) && file_replace_commit(&holder->file, error);
}

static bool make(const HeldOutOptions *options, const char *path, ShardSet *sets, int count, uint64_t key, Error *error) {
    SCOPED_FREE Holder *holder = memory_allocate(sizeof *holder);
    *holder = (Holder){.options = options,
        .valid = memory_format("%s/" HELD_OUT_VALID, options->folder),
        .hash = XXH3_createState(),
        .kept = memory_allocate((size_t)count * sizeof(HeldOutSet))};
    if (!holder->hash) memory_refused(sizeof(XXH64_hash_t));
    XXH3_64bits_reset(holder->hash);
    bool masked, good = file_make_folder(options->folder, error) && open_writer(holder, sets, count, &masked, error) &&
                        file_replace_begin(&holder->file, path, error);
    for (int i = 0; i < count && good; i++) good = divide_set(holder, &sets[i], masked, &holder->kept[i], error);
    good = good && finish(holder, key, count, error);
    shard_writer_cancel(holder->writer);
    file_close(&holder->file);
    XXH3_freeState(holder->hash);
    free(holder->kept);
    free(holder->valid);
    return good || error_recode(error, ERROR_DATA);
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

/* Maps the file if it is complete and belongs to the key and to the shard. */
static bool map_runs(HeldOut *held_out, const HeldOutOptions *options, const char *path, uint64_t key) {
    SCOPED(shard_set_close) ShardSet valid = {0};
    SCOPED_FREE char *prefix = memory_format("%s/" HELD_OUT_VALID, options->folder);
    Error ignored = {0};
    HeldOutFooter footer;
    uint64_t checksum;
    if (!file_map(&held_out->map, path, &ignored) || held_out->map.size < sizeof footer) return false;
    size_t size = held_out->map.size;
    memcpy(&footer, held_out->map.bytes + size - sizeof footer, sizeof footer);
    return !memcmp(footer.magic, HELD_OUT_MAGIC, sizeof footer.magic) && footer.key == key &&
           footer.checksum == hash_bytes(held_out->map.bytes, size - sizeof footer.checksum) && shard_set_open(&valid, prefix, &ignored) &&
           shard_set_checksum(&valid, &checksum, &ignored) && footer.valid == checksum;
}

static void take_runs(const HeldOut *held_out, ShardSet *sets, int count) {
    const unsigned char *end = held_out->map.bytes + held_out->map.size - sizeof(HeldOutFooter);
    const HeldOutSet *kept = (const HeldOutSet *)end - count;
    const StreamRun *runs = (const StreamRun *)held_out->map.bytes;
    for (int i = 0; i < count; i++) {
        sets[i].runs = runs;
        sets[i].run_count = kept[i].runs;
        sets[i].token_count = kept[i].tokens;
        if (sets[i].document_count >= 0) sets[i].document_count = kept[i].documents;
        runs += kept[i].runs + 1;
    }
}

bool held_out_open(HeldOut *held_out, const HeldOutOptions *options, ShardSet *sets, int count, Error *error) {
    SCOPED_FREE char *path = memory_format("%s/split", options->folder);
    uint64_t key;
    *held_out = (HeldOut){0};
    if (!key_of(options, sets, count, &key, error)) return false;
    bool mapped = map_runs(held_out, options, path, key);
    if (!mapped) {
        held_out_close(held_out);
        if (!make(options, path, sets, count, key, error)) return false;
        mapped = map_runs(held_out, options, path, key);
    }
    if (!mapped) return error_set(error, ERROR_DATA, "%s does not read back as it was written: check the disk", path);
    take_runs(held_out, sets, count);
    return true;
}

void held_out_close(HeldOut *held_out) {
    file_unmap(&held_out->map);
    *held_out = (HeldOut){0};
}
