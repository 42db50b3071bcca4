/* The shards that a packing writes, the record of the packing, and the lists beside single shards. A result gets its names
 * only when all of it is complete. A result that exists is replaced only with overwrite=true, and only if packing wrote it. */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "data/byte_tokenizer.h"
#include "data/data_internal.h"
#include "data/packer_internal.h"

int64_t *packer_shards(Packer *packer, const PackPart *part) {
    return part == &packer->train ? &packer->report.result.shards : &packer->report.valid_shards;
}

bool packer_open_part(Packer *packer, PackPart *part, Error *error) {
    if (part->writer) return true;
    int64_t number = *packer_shards(packer, part);
    SCOPED_FREE char *prefix =
        packer_in_folder(packer) ? memory_format("%s/shard-%05" PRId64, part->place, number) : memory_copy_string(part->name);
    part->writer = shard_writer_open(prefix, packer->tokenizer && tokenizer_vocabulary(packer->tokenizer) > 1 << 16 ? 4 : 2, error);
    if (part->writer && packer->chat) shard_writer_mask(part->writer);
    if (part->writer && packer->options.format == PACK_PREFERENCE) shard_writer_pairs(part->writer);
    if (part->writer && !packer_in_folder(packer))
        shard_writer_tokenizer(part->writer, packer_tokenizer_name(packer), packer_template(packer));
    return part->writer;
}

bool packer_finish_shards(Packer *packer, Error *error) {
    PackPart *parts[] = {&packer->valid, &packer->train};
    ShardWriter *writers[2];
    int count = 0;
    for (int i = 0; i < 2; i++) {
        if (!parts[i]->writer) continue;
        writers[count++] = parts[i]->writer;
        parts[i]->writer = NULL;
        parts[i]->open_tokens = 0;
        ++*packer_shards(packer, parts[i]);
    }
    if (packer_in_folder(packer)) return shard_writers_finish(writers, count, NULL, error);
    SCOPED_FREE char *record = packer_path(packer, PACK_RECORD), *text = pack_report_text(&packer->report, &packer->options, true);
    return shard_writers_finish(writers, count, &(ShardsFile){record, text}, error);
}

bool packer_write_record(const Packer *packer, bool complete, Error *error) {
    SCOPED_FREE char *path = packer_path(packer, PACK_RECORD), *text = pack_report_text(&packer->report, &packer->options, complete);
    return file_write(path, text, (int64_t)strlen(text), error);
}

/* Sets *same if the tokenizer of a killed packing is the one given now. */
static bool same_tokenizer(const Packer *packer, bool *same, Error *error) {
    bool differs = false;
    SCOPED_FREE char *folder = packer_path(packer, "tokenizer");
    bool good = file_kind(folder, NULL) == FILE_ABSENT || byte_tokenizer_differs(folder, packer_tokenizer_name(packer), &differs, error);
    *same = !differs;
    return good;
}

bool packer_reads_standard_input(const Packer *packer) {
    const char *const *input = packer->options.inputs;
    while (*input && strcmp(*input, "-")) input++;
    return *input;
}

bool packer_read_record(Packer *packer, PackFound *found, char **difference, Error *error) {
    bool same;
    SCOPED_FREE char *record = packer_path(packer, PACK_RECORD);
    if (!same_tokenizer(packer, &same, error)) return false;
    *difference = same ? NULL : memory_copy_string("the tokenizer");
    return pack_report_read(&packer->report, &packer->options, record, found, difference, error);
}

bool packer_was_this_one(Packer *packer, Error *error) {
    PackFound found;
    SCOPED_FREE char *difference = NULL;
    if (!packer_read_record(packer, &found, &difference, error)) return false;
    packer->report.result.resumed = packer->done = found == PACK_FOUND_WHOLE && !difference;
    return true;
}

bool packer_resume_shards(const Packer *packer, bool *ended, Error *error) {
    const char *names[] = {
        packer->valid.name ? packer->valid.name : packer->train.name, packer->valid.name ? packer->train.name : NULL, NULL};
    SCOPED_FREE char *record = packer_path(packer, PACK_RECORD);
    return shard_names_resume(names, record, ended, error);
}

/* Refuses to overwrite files that do not belong to a shard: a .bin file may be a model. If the index
 * is absent or empty, the record of a packing says that the .bin file is a shard's. */
static bool refuse_foreign(const Packer *packer, const char *name, Error *error) {
    SCOPED_FREE char *index = memory_format("%s.idx", name), *tokens = memory_format("%s.bin", name),
                     *record = packer_path(packer, PACK_RECORD);
    int64_t bytes = 0;
    bool indexed = file_kind(index, &bytes) != FILE_ABSENT;
    bool shard = indexed && bytes ? file_begins(index, SHARD_MAGIC, sizeof SHARD_MAGIC) : file_exists(record);
    return shard || !(indexed || file_exists(tokens)) ||
           error_set(error, ERROR_USAGE,
               "%s is not part of a token shard, and overwrite=true replaces nothing else: choose another OUTPUT, or move the file",
               indexed ? index : tokens);
}

/* Refuses to replace files that have the names of a shard's lists but are not such lists. Lists of a
 * packing that was killed, or that kept nothing, are replaced. */
static bool refuse_foreign_lists(const Packer *packer, Error *error) {
    SCOPED_FREE char *dropped = packer_path(packer, PACK_DROPPED), *dedup = packer_path(packer, PACK_DEDUP_NAME);
    const char *foreign = NULL;
    if (pack_logs_drops(&packer->options) && file_exists(dropped) && !drop_log_is(dropped)) foreign = dropped;
    if (packer->options.dedup != PACK_DEDUP_NONE && file_exists(dedup) && !dedup_is(dedup)) foreign = dedup;
    return !foreign ||
           error_set(error, ERROR_USAGE, "%s is not a list of smelt data pack: choose another OUTPUT, or move the file", foreign);
}

/* Refuses existing files: runs may train on existing shards. With `overwrite`, refuses only files
 * that do not belong to a shard. */
static bool refuse_existing(const Packer *packer, Error *error) {
    static const char *const suffixes[] = {".idx", ".bin", ".tokenizer"};
    const char *names[] = {packer->train.name, packer->valid.name};
    for (int i = 0; i < 2 && names[i] && packer->options.overwrite; i++)
        if (!refuse_foreign(packer, names[i], error)) return false;
    for (int i = 0; i < 2 && names[i] && !packer->options.overwrite; i++)
        for (size_t j = 0; j < sizeof suffixes / sizeof *suffixes; j++) {
            SCOPED_FREE char *path = memory_format("%s%s", names[i], suffixes[j]);
            if (file_exists(path))
                return error_set(error, ERROR_USAGE, "%s exists: give another name, or overwrite=true to replace it", path);
        }
    return true;
}

bool packer_open_shards(Packer *packer, Error *error) {
    bool ended, again = packer_reads_standard_input(packer);
    if (!packer_resume_shards(packer, &ended, error)) return false;
    if (ended && !again && !packer_was_this_one(packer, error)) return false;
    if (packer->done) return true;
    return ((ended && again) || (refuse_existing(packer, error) && refuse_foreign_lists(packer, error))) &&
           packer_open_part(packer, &packer->train, error) && (!packer->valid.name || packer_open_part(packer, &packer->valid, error));
}

bool packer_finish_lists(Packer *packer, Error *error) {
    SCOPED_FREE char *dedup = packer_path(packer, PACK_DEDUP_NAME);
    return (!packer->dropped || drop_log_finish(packer->dropped, error)) &&
           (packer->options.dedup == PACK_DEDUP_NONE ||
               dedup_write(dedup, packer->seen, packer->options.dedup == PACK_DEDUP_NEAR, &packer->files.list, error));
}

bool packer_remove_old_lists(const Packer *packer, Error *error) {
    SCOPED_FREE char *dropped = packer_path(packer, PACK_DROPPED), *dedup = packer_path(packer, PACK_DEDUP_NAME);
    if (packer_in_folder(packer) || !packer->options.overwrite) return true;
    return (packer->dropped || !drop_log_is(dropped) || file_remove(dropped, error)) &&
           (packer->options.dedup != PACK_DEDUP_NONE || !dedup_is(dedup) || file_remove(dedup, error));
}
