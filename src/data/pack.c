/* Packs text into shards of tokens, or feeds it to the training of a tokenizer. pack_internal.h
 * describes the path of the text; here its documents arrive in order, encoded. They are counted,
 * dropped if requested, and written: to one shard per part, or to folders of shards of a given
 * size.
 *
 * A kill at any moment costs a folder no more than its open shards. Whenever a shard of the
 * training part is full, the open one of the validation part ends too. Both get their names, and
 * then pack.json records which document comes next. The same command resumes there. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#include "base/array.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/file.h"
#include "data/byte_tokenizer.h"
#include "data/shard_set.h"
#include "data/shard_writer_internal.h"
#include "token/tokenizer.h"
#include "data/data_internal.h"
#include "data/pack_internal.h"

/* The record of a folder of shards. */
#define RECORD "pack.json"

/* The training part or, if requested, the validation part. */
typedef struct PackPart {
    char *name;         /* OUTPUT, OUTPUT-train or OUTPUT-valid; NULL: the packing lacks this part */
    char *place;        /* for a folder of shards: the path it is written to, which is NAME, or NAME.next beside an older result */
    PackUpload *upload; /* for OUTPUT in a bucket, where finished shards go; otherwise NULL */
    ShardWriter *writer;
    int64_t open_tokens; /* tokens of the open shard */
} PackPart;

typedef struct Packer {
    PackOptions options;
    char *staging; /* options.output in place of one in a bucket */
    PackFiles files;
    PackReport report;
    PackPart train, valid;
    Tokenizer *tokenizer;      /* NULL: byte tokens */
    Chat *chat;                /* for conversations; otherwise NULL */
    TokenizerTrainer *trainer; /* if set, it receives the documents, and nothing is packed */
    PipelineOptions pipeline;
    RecordReader *reader;
    HashSet *seen;
    bool places; /* `seen` has the place of each document */
    DedupAgainst against;
    RestoreList *restore; /* NULL: all documents are read */
    DropLog *dropped;     /* NULL: what is dropped is only counted */
    File hashes;          /* for a folder of shards: the entries of `seen`, for the next start */
    uint64_t *new_hashes;
    size_t new_hash_count, new_hash_capacity;
    int lock, next_lock;
    bool done; /* an earlier process packed everything, and was killed */
    /* The open document that arrives in pieces. */
    XXH3_state_t *long_hash;
    int32_t *held; /* its tokens, until it is known whether the document is kept */
    size_t held_count, held_capacity;
    int64_t long_tokens, long_bytes, long_line;
    bool long_dropped, long_bad; /* long_bad: the document is counted as bad, once for all its pieces */
    int64_t last_file;
    Progress progress;
    int64_t done_before, tokens_before;
} Packer;

static bool in_folder(const Packer *packer) { return packer->options.shard_tokens > 0; }

static char *part_path(const PackPart *part, const char *name) { return memory_format("%s/%s", part->place, name); }

static char *record_path(const Packer *packer) {
    return in_folder(packer) ? part_path(&packer->train, RECORD) : memory_format("%s%s", packer->train.name, SHARDS_FILE);
}

/* -- Shards ------------------------------------------------------------------------------------------------------- */

static int64_t *part_shards(Packer *packer, const PackPart *part) {
    return part == &packer->train ? &packer->report.result.shards : &packer->report.valid_shards;
}

static const char *tokenizer_name(const Packer *packer) { return packer->options.tokenizer ? packer->options.tokenizer : ""; }

/* Returns the template of conversations, which the shards record; "" for text. */
static const char *template_source(const Packer *packer) { return packer->chat ? chat_template_source(packer->chat) : ""; }

static bool part_open(Packer *packer, PackPart *part, Error *error) {
    if (part->writer) return true;
    int64_t number = *part_shards(packer, part);
    SCOPED_FREE char *prefix =
        in_folder(packer) ? memory_format("%s/shard-%05" PRId64, part->place, number) : memory_copy_string(part->name);
    part->writer = shard_writer_open(prefix, packer->tokenizer && tokenizer_vocabulary(packer->tokenizer) > 1 << 16 ? 4 : 2, error);
    if (part->writer && packer->chat) shard_writer_mask(part->writer);
    if (part->writer && packer->options.format == PACK_PREFERENCE) shard_writer_pairs(part->writer);
    if (part->writer && !in_folder(packer)) shard_writer_tokenizer(part->writer, tokenizer_name(packer), template_source(packer));
    return part->writer;
}

/* Completes the open shards. The validation part gets its name first: if the training part then
 * fails, no run can start on half of a split. */
static bool finish_shards(Packer *packer, Error *error) {
    PackPart *parts[] = {&packer->valid, &packer->train};
    ShardWriter *writers[2];
    int count = 0;
    for (int i = 0; i < 2; i++) {
        if (!parts[i]->writer) continue;
        writers[count++] = parts[i]->writer;
        parts[i]->writer = NULL;
        parts[i]->open_tokens = 0;
        ++*part_shards(packer, parts[i]);
    }
    if (in_folder(packer)) return shard_writers_finish(writers, count, NULL, error);
    SCOPED_FREE char *record = record_path(packer), *text = pack_report_text(&packer->report, &packer->options, true);
    return shard_writers_finish(writers, count, &(ShardsFile){record, text}, error);
}

/* -- The record, and resuming a killed packing ----------------------------------------------------------------------- */

static bool write_pack_record(const Packer *packer, bool complete, Error *error) {
    SCOPED_FREE char *path = record_path(packer), *text = pack_report_text(&packer->report, &packer->options, complete);
    return file_write(path, text, (int64_t)strlen(text), error);
}

/* Writes the hashes first, because the record says how many of them are valid. */
static bool write_place(Packer *packer, RecordPosition position, Error *error) {
    if (packer->dropped && !drop_log_flush(packer->dropped, &packer->report.dropped_bytes, error)) return false;
    size_t bytes = packer->new_hash_count * sizeof(uint64_t);
    if (!file_append(&packer->hashes, packer->new_hashes, (int64_t)bytes, error) || !file_sync(&packer->hashes, error)) return false;
    packer->report.hashes += (int64_t)packer->new_hash_count;
    packer->new_hash_count = 0;
    packer->report.position = position;
    return write_pack_record(packer, false, error);
}

/* Returns whether a name is a temporary record. A packing that was killed before its first record
 * leaves nothing else. */
static bool is_draft(const char *name) { return starts_with(name, RECORD ".partial-"); }

static bool is_own(const char *name) {
    static const char *const names[] = {RECORD, PACK_DROPPED, PACK_DEDUP_NAME, "hashes", "tokenizer", "tokenizer.partial"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) return true;
    return starts_with(name, "shard-") || is_draft(name);
}

/* Lists a folder, which must contain only files that packing writes. An absent folder is empty. */
static bool list_own(const char *folder, FileList *list, Error *error) {
    if (!file_list(folder, list, error)) return error->finding == FINDING_ABSENT;
    for (size_t i = 0; i < list->count; i++)
        if (!is_own(list->entries[i].name))
            return error_set(error, ERROR_USAGE,
                "%s contains %s, which smelt data pack did not write: choose another OUTPUT, or move the file", folder,
                list->entries[i].name);
    return true;
}

/* Empties the folder of a part; the record is removed first. */
static bool clear_part(const PackPart *part, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (!list_own(part->place, &list, error)) return false;
    SCOPED_FREE char *record = part_path(part, RECORD);
    bool good = !list.count || (file_remove(record, error) && file_sync_name(record, error));
    for (size_t i = 0; i < list.count && good; i++) {
        SCOPED_FREE char *path = part_path(part, list.entries[i].name);
        good = file_remove(path, error);
    }
    return good;
}

/* Writes the tokenizer into the folder of a part, once for all its shards. */
static bool write_pack_tokenizer(const Packer *packer, const PackPart *part, Error *error) {
    if (!part->name) return true;
    SCOPED_FREE char *draft = part_path(part, "tokenizer.partial"), *folder = part_path(part, "tokenizer");
    return shard_tokenizer_write(tokenizer_name(packer), template_source(packer), draft, error) &&
           file_replace_folder(draft, folder, error);
}

static bool begin_folder(Packer *packer, Error *error) {
    const PackPart *parts[] = {&packer->train, &packer->valid};
    for (int i = 0; i < 2; i++)
        if (parts[i]->name && !(clear_part(parts[i], error) && file_make_folder(parts[i]->place, error))) return false;
    return write_pack_record(packer, false, error) && write_pack_tokenizer(packer, &packer->train, error) &&
           write_pack_tokenizer(packer, &packer->valid, error);
}

static bool read_hashes(Packer *packer, Error *error) {
    enum { PART = 1 << 13 };
    int64_t width = packer->places ? 2 : 1;
    SCOPED_FREE uint64_t *hashes = memory_allocate(PART * sizeof *hashes);
    SCOPED(file_close) File file = {0};
    bool good = file_open(&file, packer->hashes.path, error), seen;
    for (int64_t at = 0; at < packer->report.hashes && good; at += PART) {
        int64_t count = packer->report.hashes - at < PART ? packer->report.hashes - at : PART;
        good = file_read_at(&file, hashes, count * (int64_t)sizeof *hashes, at * (int64_t)sizeof *hashes, error);
        for (int64_t i = 0; i + width <= count && good; i += width)
            good = hash_set_add(packer->seen, hashes[i], hashes[i + width - 1], &seen, NULL, error);
    }
    return good;
}

/* Sets *same if the tokenizer of a killed packing is the one given now. */
static bool same_tokenizer(const Packer *packer, bool *same, Error *error) {
    bool differs = false;
    SCOPED_FREE char *folder =
        in_folder(packer) ? part_path(&packer->train, "tokenizer") : memory_format("%s.tokenizer", packer->train.name);
    bool good = file_kind(folder, NULL) == FILE_ABSENT || byte_tokenizer_differs(folder, tokenizer_name(packer), &differs, error);
    *same = !differs;
    return good;
}

/* Returns whether standard input is read; its content cannot be compared with an earlier one. */
static bool reads_standard_input(const Packer *packer) {
    const char *const *input = packer->options.inputs;
    while (*input && strcmp(*input, "-")) input++;
    return *input;
}

/* Reads the record, and how it differs from this packing. */
static bool read_pack_record(Packer *packer, PackFound *found, char **difference, Error *error) {
    bool same;
    SCOPED_FREE char *record = record_path(packer);
    if (!same_tokenizer(packer, &same, error)) return false;
    *difference = same ? NULL : memory_copy_string("the tokenizer");
    return pack_report_read(&packer->report, &packer->options, record, found, difference, error);
}

/* Sets `done` if a packing that ended while its files got their names was this one. */
static bool was_this_one(Packer *packer, Error *error) {
    PackFound found;
    SCOPED_FREE char *difference = NULL;
    if (!read_pack_record(packer, &found, &difference, error)) return false;
    packer->report.result.resumed = packer->done = found == PACK_FOUND_WHOLE && !difference;
    return true;
}

static bool refuse_other(const Packer *packer, PackFound found, const char *difference, Error *error) {
    if (found == PACK_FOUND_WHOLE)
        return error_set(error, ERROR_USAGE, "%s exists: give another name, or overwrite=true to replace it", packer->train.name);
    return error_set(error, ERROR_USAGE,
        "an unfinished packing of %s differs in %s: restore it to continue, or set overwrite=true to start over", packer->train.name,
        difference);
}

static bool lock_folder(const Packer *packer, const char *folder, int *lock, Error *error) {
    if (*lock >= 0 || file_lock(folder, lock)) return true;
    return errno != EWOULDBLOCK ? file_fail(error, "lock", folder)
                                : error_set(error, ERROR_USAGE, "another process is packing into %s: wait for it, or choose another OUTPUT",
                                      packer->train.name);
}

/* Moves a folder aside that a complete one is about to replace. */
static bool set_shard_aside(const char *name, const char *next, const char *aside, Error *error) {
    if (file_kind(next, NULL) == FILE_ABSENT || file_kind(name, NULL) == FILE_ABSENT) return true;
    return file_remove(aside, error) && file_exchange_folder(name, aside, NULL, error);
}

/* Renames new parts that were written under temporary names beside older parts. The training
 * part has no name until the validation part has its own, so that no run starts on parts of two
 * packings. After a kill or an error the same command continues here. */
static bool take_names(Packer *packer, Error *error) {
    PackPart *parts[] = {&packer->train, &packer->valid};
    char *next[2] = {0}, *aside[2] = {0};
    int count = packer->valid.name ? 2 : 1;
    bool good = true;
    for (int i = 0; i < count; i++) {
        next[i] = shard_next(parts[i]->name);
        aside[i] = memory_format("%s.replaced", parts[i]->name);
    }
    for (int i = 0; i < count && good; i++) good = set_shard_aside(parts[i]->name, next[i], aside[i], error);
    for (int i = count - 1; i >= 0 && good; i--)
        good = file_kind(next[i], NULL) == FILE_ABSENT || file_exchange_folder(next[i], parts[i]->name, aside[i], error);
    for (int i = 0; i < count && good; i++) good = file_remove(aside[i], error);
    for (int i = 0; i < count; i++) free(next[i]), free(aside[i]);
    if (good && packer->next_lock >= 0) { /* the waiting folder has the name now */
        close(packer->lock);
        packer->lock = packer->next_lock;
        packer->next_lock = -1;
    }
    return good || error_context(error, "%s is packed but not renamed yet; run the same command again to rename it", packer->train.name);
}

/* Sets *has if a part has a result. The result stays until another one is complete. */
static bool has_result(const PackPart *part, bool *has, Error *error) {
    SCOPED(file_list_free) FileList list = {0};
    if (part->name && !list_own(part->name, &list, error)) return false;
    for (size_t i = 0; i < list.count; i++) *has = *has || !is_draft(list.entries[i].name);
    return true;
}

/* Returns whether the folder is made beside an older one. */
static bool is_beside(const Packer *packer) { return strcmp(packer->train.name, packer->train.place) != 0; }

static void use_next(PackPart *part) {
    if (!part->name) return;
    free(part->place);
    part->place = shard_next(part->name);
}

/* Decides where the folder is made: in its own place, or beside an older result that it will
 * replace. A killed packing is not a result. */
static bool choose_place(Packer *packer, bool *ended, Error *error) {
    PackFound found, waiting;
    SCOPED_FREE char *next = shard_next(packer->train.name), *waits = memory_format("%s/" RECORD, next), *record = record_path(packer);
    if (!lock_folder(packer, next, &packer->next_lock, error) || !pack_report_find(waits, &waiting, error)) return false;
    *ended = waiting == PACK_FOUND_WHOLE;
    if (*ended) return take_names(packer, error);
    if (!pack_report_find(record, &found, error) && !(packer->options.overwrite && error->finding != FINDING_UNREADABLE)) return false;
    bool has = found == PACK_FOUND_WHOLE; /* also if the folder's listing is empty for a moment */
    if (found != PACK_FOUND_PART && !(has_result(&packer->train, &has, error) && has_result(&packer->valid, &has, error))) return false;
    if (has && !packer->options.overwrite) return refuse_other(packer, PACK_FOUND_WHOLE, NULL, error);
    if (!has && waiting == PACK_FOUND_NOTHING) return true;
    use_next(&packer->train);
    use_next(&packer->valid);
    return true;
}

/* Decides whether the folder is new or resumed. */
static bool begin_or_resume(Packer *packer, bool *resume, Error *error) {
    PackFound found = PACK_FOUND_NOTHING;
    SCOPED_FREE char *difference = NULL;
    if (!read_pack_record(packer, &found, &difference, error)) return false;
    *resume = found == PACK_FOUND_PART && !difference;
    if (found == PACK_FOUND_PART && !*resume && !packer->options.overwrite) return refuse_other(packer, found, difference, error);
    if (!*resume) return begin_folder(packer, error);
    return write_pack_tokenizer(packer, &packer->train, error) && (!packer->valid.name || file_make_folder(packer->valid.place, error)) &&
           write_pack_tokenizer(packer, &packer->valid, error);
}

/* Refuses to continue without what the record says of a list. */
static bool check_list(const char *path, int64_t bytes, Error *error) {
    int64_t size;
    file_kind(path, &size);
    return size >= bytes ||
           error_set(error, ERROR_DATA,
               "%s lost some of the %" PRId64 " bytes that were written: restore it, or remove its folder to start over", path, bytes);
}

/* -- OUTPUT in a bucket ----------------------------------------------------------------------------------------------- */

/* Moves the finished shards to the bucket. The record already has them, so a killed packing goes on
 * with the shards that are still in the folder. */
static bool send_shards(Packer *packer, Error *error) {
    const PackPart *parts[] = {&packer->train, &packer->valid};
    for (int i = 0; i < 2; i++)
        if (parts[i]->upload && !pack_upload_shards(parts[i]->upload, parts[i]->place, *part_shards(packer, parts[i]), error)) return false;
    return true;
}

static bool send_record(const Packer *packer, bool complete, Error *error) {
    SCOPED_FREE char *text = pack_report_text(&packer->report, &packer->options, complete);
    return pack_upload_text(packer->train.upload, RECORD, text, error);
}

/* Makes the bucket ready for shards. Its record says that they are incomplete. */
static bool begin_uploads(Packer *packer, bool resume, Error *error) {
    const PackPart *parts[] = {&packer->train, &packer->valid};
    if (!packer->train.upload) return true;
    for (int i = 0; i < 2 && parts[i]->upload; i++) {
        pack_upload_clean(parts[i]->upload);
        if (!resume && !pack_upload_begin(parts[i]->upload, packer->options.overwrite, is_own, error)) return false;
    }
    return send_record(packer, false, error) && send_shards(packer, error);
}

/* Puts everything else into the bucket, the final record last, and removes the local folders. */
static bool complete_uploads(Packer *packer, Error *error) {
    static const char *const names[] = {PACK_DROPPED, PACK_DEDUP_NAME, NULL};
    const PackPart *parts[] = {&packer->valid, &packer->train};
    Error left = {0};
    file_close(&packer->hashes);
    packer->hashes = (File){0};
    if (!send_shards(packer, error)) return false;
    for (int i = 0; i < 2; i++)
        if (parts[i]->upload && !(pack_upload_rest(parts[i]->upload, parts[i]->place, names, error) &&
                                    pack_upload_check(parts[i]->upload, *part_shards(packer, parts[i]), error)))
            return false;
    if (!send_record(packer, true, error)) return false;
    for (int i = 0; i < 2; i++)
        if (parts[i]->upload && !file_remove(parts[i]->place, &left)) log_warn("%s; the bucket has everything", left.message);
    return true;
}

static bool open_folder(Packer *packer, Error *error) {
    bool ended, resume;
    if (!file_make_folder(packer->train.name, error)) return error_recode(error, ERROR_USAGE);
    if (!lock_folder(packer, packer->train.name, &packer->lock, error) || !choose_place(packer, &ended, error)) return false;
    if (ended && !reads_standard_input(packer) && !was_this_one(packer, error)) return false;
    if (packer->done) return true;
    if (ended && !choose_place(packer, &ended, error)) return false;
    if (!begin_or_resume(packer, &resume, error)) return false;
    if (is_beside(packer) && !lock_folder(packer, packer->train.place, &packer->next_lock, error)) return false;
    packer->report.result.resumed = packer->report.result.shards > 0;
    for (const PackPart *const *part = (const PackPart *const[]){&packer->train, &packer->valid, NULL}; *part; part++)
        if ((*part)->name) file_remove_partials((*part)->place, "", NULL);
    SCOPED_FREE char *hashes = part_path(&packer->train, "hashes");
    int64_t bytes = packer->report.hashes * (int64_t)sizeof(uint64_t);
    if (!check_list(hashes, bytes, error) || !file_open_append(&packer->hashes, hashes, false, error) ||
        !file_truncate(&packer->hashes, bytes, error))
        return false;
    SCOPED_FREE char *dropped = part_path(&packer->train, PACK_DROPPED);
    if (pack_logs_drops(&packer->options) && !(check_list(dropped, packer->report.dropped_bytes, error) &&
                                                 (packer->dropped = drop_log_append(dropped, packer->report.dropped_bytes, error))))
        return false;
    if (!begin_uploads(packer, resume, error)) return false;
    if (resume) log_info("continuing %s after %" PRId64 " finished shards", packer->train.place, packer->report.result.shards);
    return read_hashes(packer, error);
}

/* Writes the final record last; only then can the folder be read. */
static bool complete_folder(Packer *packer, Error *error) {
    SCOPED_FREE char *hashes = part_path(&packer->train, "hashes"), *stale = NULL;
    const PackPart *parts[] = {&packer->train, &packer->valid};
    file_close(&packer->hashes);
    packer->hashes = (File){0};
    for (int i = 0; i < 2; i++) { /* a shard with a name that the record lacks, from a killed packing that ended differently */
        if (!parts[i]->name) continue;
        free(stale);
        stale = memory_format("%s/shard-%05" PRId64 ".idx", parts[i]->place, *part_shards(packer, parts[i]));
        if (!file_remove(stale, error)) return false;
    }
    if (!write_pack_record(packer, true, error)) return false;
    Error left = {0};
    if (!file_remove(hashes, &left)) log_warn("%s; the shards are complete without it", left.message);
    return !is_beside(packer) || take_names(packer, error);
}

/* -- Documents ------------------------------------------------------------------------------------------------------- */

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
    if (!in_folder(packer) || *seen) return true;
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
    bool full = in_folder(packer) && packer->train.open_tokens >= packer->options.shard_tokens;
    return !full || (finish_shards(packer, error) && write_place(packer, record->end, error) && send_shards(packer, error));
}

static bool append_tokens(Packer *packer, PackPart *part, const int32_t *tokens, size_t count, Error *error) {
    part->open_tokens += (int64_t)count;
    return part_open(packer, part, error) && shard_writer_append(part->writer, tokens, (int64_t)count, error);
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

static bool take_block(void *context, Block *block, Error *error) {
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

/* -- The job --------------------------------------------------------------------------------------------------------- */

/* Refuses settings for conversations with text, and settings for text with conversations: they
 * would have no effect. */
static bool check_idle_pack_options(const PackOptions *options, Error *error) {
    bool chat = pack_is_chat(options->format), field = options->field && strcmp(options->field, "text") != 0;
    bool judges = options->filter && filter_reads_text(options->filter);
    const char *idle = chat && field                                      ? "field"
                       : chat && judges                                   ? "a rule over texts"
                       : chat && *options->separator                      ? "separator"
                       : !chat && options->template && *options->template ? "template"
                       : !chat && options->turns != CHAT_TURNS_ALL        ? "turns"
                                                                          : NULL;
    return !idle || error_set(error, ERROR_USAGE, "%s is %s conversations: omit it, or set %s", idle, chat ? "not for" : "for",
                        chat ? "another format=" : "format=chat or preference");
}

/* Checks the settings beside a field of tokens. */
static bool check_tokens(const PackOptions *options, Error *error) {
    if (!options->tokens || !*options->tokens) return true;
    bool text = options->filter && filter_reads_text(options->filter);
    const char *idle = pack_is_chat(options->format)                      ? "format"
                       : options->field && strcmp(options->field, "text") ? "field"
                       : *options->separator                              ? "separator"
                       : options->dedup == PACK_DEDUP_NEAR                ? "dedup=near"
                       : text                                             ? "a rule over texts"
                                                                          : NULL;
    if (idle) return error_set(error, ERROR_USAGE, "%s is for text, but tokens=%s has token ids: omit one of them", idle, options->tokens);
    return (options->tokenizer && *options->tokenizer) ||
           error_set(error, ERROR_USAGE, "tokens=%s has token ids: set tokenizer= to the tokenizer that made them", options->tokens);
}

static bool check_pack_options(const PackOptions *options, Error *error) {
    if (options->format != PACK_AUTO && !check_idle_pack_options(options, error)) return false;
    if (!(options->valid_fraction >= 0 && options->valid_fraction <= 0.5))
        return error_set(error, ERROR_USAGE, "valid=%g must be 0 to 0.5, the validation part of each file", options->valid_fraction);
    if (options->format == PACK_TEXT && options->filter && filter_field_count(options->filter) > 0)
        return error_set(error, ERROR_USAGE, "a rule reads the field %s, but format=text has no fields: omit one of them",
            filter_field(options->filter, 0));
    if (options->against && *options->against && options->dedup == PACK_DEDUP_NONE)
        return error_set(error, ERROR_USAGE, "against compares documents with those of other packings: set dedup=exact or near too");
    if (options->restore && *options->restore && options->dedup == PACK_DEDUP_NONE)
        return error_set(error, ERROR_USAGE, "restore compares documents again: set dedup=exact or near too, as in %s", options->restore);
    if (!check_tokens(options, error)) return false;
    if (strpbrk(options->separator, "\r\n"))
        return error_set(error, ERROR_USAGE, "separator contains a line end but must be the text of one line: remove the line end");
    for (const char *const *input = options->inputs; *input; input++)
        if (!**input) return error_set(error, ERROR_USAGE, "the name of an INPUT is empty: give a path");
    if (!*options->output) return error_set(error, ERROR_USAGE, "the name of OUTPUT is empty: give a path");
    if (options->staging && *options->staging && !starts_with(options->output, S3_SCHEME))
        return error_set(
            error, ERROR_USAGE, "staging=%s is for OUTPUT in a bucket, but %s is local: omit it", options->staging, options->output);
    if (starts_with(options->output, S3_SCHEME) && options->shard_tokens <= 0)
        return error_set(error, ERROR_USAGE,
            "OUTPUT %s is in a bucket, which needs a folder of shards: set shard_tokens=, the tokens of a shard, such as 100M",
            options->output);
    return true;
}

/* Connects the parts to their places in the bucket. */
static bool open_uploads(Packer *packer, const char *output, Error *error) {
    const bool split = packer->valid.name;
    const int length = (int)path_length(output);
    if (!starts_with(output, S3_SCHEME)) return true;
    SCOPED_FREE char *train = memory_format("%.*s%s", length, output, split ? "-train" : "");
    SCOPED_FREE char *valid = memory_format("%.*s-valid", length, output);
    return (packer->train.upload = pack_upload_open(train, error)) && (!split || (packer->valid.upload = pack_upload_open(valid, error)));
}

/* Returns the local folder of an OUTPUT in a bucket; the caller frees. */
static char *staging_of(const PackOptions *options) {
    SCOPED_FREE char *whole = memory_format("%.*s", (int)path_length(options->output), options->output);
    if (options->staging && *options->staging) return memory_copy_string(options->staging);
    return memory_format("%s.upload", strrchr(whole, '/') + 1);
}

/* Refuses an input that exists under one of the names of the output. */
static bool refuse_output(const Packer *packer, const char *input, Error *error) {
    const char *prefixes[] = {packer->train.name, packer->valid.name}, *suffixes[] = {"", ".bin", ".idx"};
    bool output = false;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 3 && prefixes[i]; j++) {
            SCOPED_FREE char *name = memory_format("%s%s", prefixes[i], suffixes[j]);
            output = output || (file_same(input, name) && (j > 0 || packer->trainer || in_folder(packer)));
        }
    return !output || error_set(error, ERROR_USAGE, "%s is both INPUT and OUTPUT: choose another OUTPUT", input);
}

static bool open_pack_tokenizer(Packer *packer, Error *error) {
    const char *path = packer->options.tokenizer;
    if (path && *path && !(packer->tokenizer = tokenizer_open(path, error))) return false;
    if (!tokenizer_set_bos(packer->tokenizer, packer->options.bos, error)) return false;
    packer->report.bos = packer->tokenizer && packer->options.bos != BOS_FALSE && tokenizer_bos(packer->tokenizer)->count;
    return !packer->tokenizer ||
           (tokenizer_end_of_text(packer->tokenizer) >= 0 ||
               error_set(error, ERROR_DATA, "%s has no end-of-document token: set eos_token in a tokenizer_config.json in the same folder",
                   path));
}

/* Warns if answers have no end token, for example with ChatML and a tokenizer without <|im_end|>:
 * generation would not stop after an answer. */
static void warn_endless(const Packer *packer) {
    ChatEncoder *encoder = chat_encoder_open(packer->chat);
    if (packer->tokenizer && chat_has_template(packer->chat) && chat_answer_end(encoder) < 0)
        log_warn("the chat template ends an answer without a special token, so a model cannot learn where to stop");
    chat_encoder_free(encoder);
}

/* Opens the chat templates; their special tokens are the tokenizer's. */
static bool open_chat_template(Packer *packer, Error *error) {
    const PackOptions *options = &packer->options;
    ChatOptions chat = {.source = options->tokenizer ? options->tokenizer : "",
        .template = options->template ? options->template : "",
        .turns = options->turns,
        .special = options->special,
        .end_token = packer->tokenizer ? tokenizer_end_of_text(packer->tokenizer) : BYTE_SEPARATOR};
    if (!pack_is_chat(options->format)) return true;
    packer->chat = chat_open(&chat, packer->tokenizer, error);
    if (packer->chat) packer->report.chat = chat_identity(packer->chat);
    if (packer->chat) warn_endless(packer);
    return packer->chat != NULL;
}

static Packer *packer_open(const PackOptions *options, TokenizerTrainer *trainer, Error *error) {
    if (!check_pack_options(options, error)) return tokenizer_trainer_free(trainer), NULL;
    Packer *packer = memory_allocate(sizeof *packer);
    bool split = options->valid_fraction > 0;
    packer->options = *options;
    if (starts_with(options->output, S3_SCHEME)) packer->options.output = packer->staging = staging_of(options);
    if (!options->field) packer->options.field = "text";
    if (options->tokens && !*options->tokens) packer->options.tokens = NULL;
    if (packer->options.tokens) packer->options.format = PACK_JSON;
    packer->trainer = trainer;
    packer->lock = packer->next_lock = -1;
    const char *output = packer->options.output;
    packer->train.name = memory_format("%.*s%s", (int)path_length(output), output, split ? "-train" : "");
    packer->train.place = memory_copy_string(packer->train.name);
    if (split) {
        packer->valid.name = memory_format("%.*s-valid", (int)path_length(output), output);
        packer->valid.place = memory_copy_string(packer->valid.name);
    }
    packer->long_hash = XXH3_createState();
    if (!packer->long_hash) memory_refused(sizeof(XXH64_hash_t));
    return packer;
}

/* Frees the packer, and returns its counts after a success. Returns `good`. */
static bool packer_close(Packer *packer, bool good, PackResult *result) {
    *result = good ? packer->report.result : (PackResult){0};
    result->format = packer->options.format;
    shard_writer_cancel(packer->train.writer);
    shard_writer_cancel(packer->valid.writer);
    free(packer->train.name);
    free(packer->valid.name);
    free(packer->train.place);
    free(packer->valid.place);
    free(packer->staging);
    pack_upload_close(packer->train.upload);
    pack_upload_close(packer->valid.upload);
    record_reader_free(packer->reader);
    tokenizer_trainer_free(packer->trainer);
    chat_free(packer->chat);
    tokenizer_free(packer->tokenizer);
    pack_files_free(&packer->files);
    pack_report_free(&packer->report);
    hash_set_free(packer->seen);
    drop_log_free(packer->dropped);
    file_list_free(&packer->against.names);
    restore_free(packer->restore);
    file_close(&packer->hashes);
    if (packer->lock >= 0) close(packer->lock);
    if (packer->next_lock >= 0) close(packer->next_lock);
    XXH3_freeState(packer->long_hash);
    free(packer->new_hashes);
    free(packer->held);
    free(packer);
    return good;
}

/* Returns the folder of OUTPUT; "" for the current one. The caller frees. */
static char *output_folder(const char *output) {
    const char *slash = strrchr(output, '/');
    return memory_format("%.*s", slash ? (int)(slash + 1 - output) : 0, output);
}

static bool make_folder(const char *folder, Error *error) {
    return !*folder || file_make_folder(folder, error) || error_recode(error, ERROR_USAGE);
}

/* Refuses a shard and a folder of shards with the same name: a reader of the name would get the
 * shard, and ignore the folder. */
static bool refuse_twin(const Packer *packer, Error *error) {
    const char *names[] = {packer->train.name, packer->valid.name};
    for (int i = 0; i < 2 && names[i]; i++) {
        SCOPED_FREE char *index = memory_format("%s.idx", names[i]), *folder = memory_format("%s/", names[i]);
        SCOPED_FREE char *record = memory_format("%s/pack.json", names[i]);
        if (in_folder(packer) ? file_exists(index) : file_exists(record) || shard_set_exists(folder))
            return error_set(error, ERROR_USAGE, "%s already exists as %s: choose another OUTPUT, or move it", names[i],
                in_folder(packer) ? "a single shard" : "a folder of shards");
    }
    return true;
}

/* Refuses to overwrite files that do not belong to a shard: a .bin file may be a model. If the index
 * is absent or empty, the record of a packing says that the .bin file is a shard's. */
static bool refuse_foreign(const Packer *packer, const char *name, Error *error) {
    SCOPED_FREE char *index = memory_format("%s.idx", name), *tokens = memory_format("%s.bin", name), *record = record_path(packer);
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
    SCOPED_FREE char *dropped = memory_format("%s." PACK_DROPPED, packer->train.name);
    SCOPED_FREE char *dedup = memory_format("%s." PACK_DEDUP_NAME, packer->train.name);
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

/* Gives the shards of a complete packing, which `ended`, their names. */
static bool resume_shards(const Packer *packer, bool *ended, Error *error) {
    const char *names[] = {
        packer->valid.name ? packer->valid.name : packer->train.name, packer->valid.name ? packer->train.name : NULL, NULL};
    SCOPED_FREE char *record = record_path(packer);
    return shard_names_resume(names, record, ended, error);
}

/* Opens a shard for each part at once, so that a name that cannot be written fails before any text
 * is read. */
static bool open_outputs(Packer *packer, Error *error) {
    bool ended, again = reads_standard_input(packer);
    if (!resume_shards(packer, &ended, error)) return false;
    if (ended && !again && !was_this_one(packer, error)) return false;
    if (packer->done) return true;
    return ((ended && again) || (refuse_existing(packer, error) && refuse_foreign_lists(packer, error))) &&
           part_open(packer, &packer->train, error) && (!packer->valid.name || part_open(packer, &packer->valid, error));
}

static bool restores(const Packer *packer) { return packer->options.restore && *packer->options.restore; }

/* Opens the list of the packing whose repeats are restored, and counts what it kept as seen. */
static bool open_restore(Packer *packer, const char *folder, Error *error) {
    json_auto_t *settings = pack_report_settings(&packer->report, &packer->options);
    const char *restore = packer->options.restore;
    packer->restore = restore_open(restore, &packer->files, packer->report.inputs, settings, folder, error);
    if (packer->restore) packer->report.restore = restore_identity(packer->restore);
    return packer->restore && dedup_read(&packer->against, restore, packer->options.dedup == PACK_DEDUP_NEAR, packer->seen, error);
}

/* Opens the output: the folders, or a shard for each part. */
static bool open_output(Packer *packer, Error *error) {
    SCOPED_FREE char *beside = output_folder(packer->train.name);
    if (!refuse_twin(packer, error) || !make_folder(beside, error)) return false;
    packer->places = pack_logs_drops(&packer->options);
    packer->seen = hash_set_open(in_folder(packer) ? packer->train.name : *beside ? beside : ".", packer->places);
    packer->against.first_file = packer->files.list.count;
    packer->against.output = packer->train.name;
    if (packer->options.against &&
        !dedup_read(&packer->against, packer->options.against, packer->options.dedup == PACK_DEDUP_NEAR, packer->seen, error))
        return false;
    if (restores(packer) && !open_restore(packer, *beside ? beside : ".", error)) return false;
    packer->report.against = packer->against.identity;
    if (in_folder(packer)) return open_folder(packer, error);
    if (!open_outputs(packer, error)) return false;
    SCOPED_FREE char *dropped = memory_format("%s." PACK_DROPPED, packer->train.name);
    return packer->done || !packer->places || (packer->dropped = drop_log_open(dropped, error));
}

/* Returns the fault of the first record of a kind; its file and line in *sample, unless it is
 * NULL. */
static const char *note_first_bad(const Packer *packer, PackBad kind, const json_t **sample) {
    size_t at;
    const json_t *each;
    json_array_foreach(packer->report.samples, at, each) {
        if (strcmp(json_string_value(json_object_get(each, "kind")), pack_bad_name(kind)) != 0) continue;
        if (sample) *sample = each;
        return json_string_value(json_object_get(each, "what"));
    }
    return "";
}

static void warn_bad(const Packer *packer) {
    static const char *const became[] = {"invalid UTF-8 was replaced by U+FFFD (invalid=replace)",
        "their bytes were kept; invalid UTF-8 in JSON became U+FFFD (invalid=keep)", "they were skipped (invalid=skip)", ""};
    const PackResult *result = &packer->report.result;
    for (int kind = 1; kind < PACK_BAD_KINDS; kind++) {
        const json_t *first = NULL;
        if (result->bad[kind] == 0) continue;
        const char *what = note_first_bad(packer, (PackBad)kind, &first);
        (kind == PACK_BAD_EMPTY ? log_info : log_warn)("%" PRId64 " record%s: %s: %s; the first is line %" PRId64 " of %s%s%s%s",
            result->bad[kind], plural(result->bad[kind]), pack_bad_name((PackBad)kind),
            kind == PACK_BAD_UTF8 ? became[packer->options.invalid] : "left out",
            (int64_t)json_integer_value(json_object_get(first, "line")), json_string_value(json_object_get(first, "file")),
            *what ? " (" : "", what, *what ? ")" : "");
    }
}

/* Logs how often each rule over lines applied. */
static void say_edits(const Packer *packer) {
    for (int i = 0; i < LINE_RULES; i++)
        if (packer->report.edits[i]) log_info("%s applied to %" PRId64 " lines", line_rule_name(i), packer->report.edits[i]);
}

/* Says how many documents each rule dropped, and warns of a rule that drops nearly all. */
static void warn_filtered(const Packer *packer) {
    const PackResult *result = &packer->report.result;
    for (int i = 0; packer->options.filter && i < filter_rules(packer->options.filter); i++) {
        int64_t count = packer->report.filtered[i];
        bool most = count > 0 && (double)count > 0.9 * (double)result->records;
        if (count > 0)
            (most ? log_warn : log_info)("%s dropped %" PRId64 " of %" PRId64 " documents%s", filter_rule(packer->options.filter, i), count,
                result->records, most ? ", more than 90%: check the rule and the field that it reads" : "");
    }
}

static void warn_of_answers(const PackResult *result) {
    if (result->empty_answers)
        log_warn("%" PRId64 " answer%s empty: %s only the end-of-answer token", result->empty_answers,
            result->empty_answers == 1 ? " is" : "s are", result->empty_answers == 1 ? "it trains" : "they train");
    if (result->decoded_arguments)
        log_warn("the arguments of %" PRId64 " tool call%s JSON text: smelt decoded them, because the chat template writes objects as JSON",
            result->decoded_arguments, result->decoded_arguments == 1 ? " are" : "s are");
    if (result->text_arguments)
        log_warn("the arguments of %" PRId64 " tool call%s text, but not a JSON object: smelt passed them to the template unchanged",
            result->text_arguments, result->text_arguments == 1 ? " are" : "s are");
}

/* Warns of parts that the text of conversations lacks, as "tool_calls of 3, history of 1". */
static void warn_of_lost(const PackResult *result) {
    char list[512] = "";
    size_t used = 0;
    for (int i = 0; i < CHAT_PARTS && used < sizeof list; i++)
        if (result->lost[i])
            used += (size_t)snprintf(
                list + used, sizeof list - used, "%s%s of %" PRId64, used ? ", " : "", chat_part_name((ChatPart)i), result->lost[i]);
    if (*list) log_warn("the chat template or the format of some conversations drops part of them: %s", list);
}

static bool read_all_inputs(Packer *packer, Error *error) {
    packer->pipeline = (PipelineOptions){.field = packer->options.field,
        .tokens = packer->options.tokens,
        .invalid = packer->options.invalid,
        .tokenizer = packer->tokenizer,
        .special = packer->options.special,
        .text_only = packer->trainer,
        .near = packer->options.dedup == PACK_DEDUP_NEAR,
        .chat = packer->chat,
        .pairs = packer->options.format == PACK_PREFERENCE,
        .filter = packer->options.filter,
        .restore = packer->restore};
    packer->last_file = packer->report.position.file - (packer->report.position.byte == 0);
    packer->reader = record_reader_open(&packer->options, &packer->files, pipeline_cut, &packer->pipeline, packer->report.position);
    bool good = pipeline_run(&packer->pipeline, packer->reader, take_block, packer, error);
    progress_finish(&packer->progress);
    const char *records = record_reader_first_records(packer->reader);
    if (records && *packer->options.separator)
        log_warn("separator=%s divides text only: each record of %s is a document", packer->options.separator, records);
    pack_files_warn(&packer->files);
    if (good) warn_bad(packer);
    if (good) say_edits(packer);
    if (good) warn_filtered(packer);
    if (good) warn_of_answers(&packer->report.result);
    if (good) warn_of_lost(&packer->report.result);
    return good;
}

/* A mask that excludes nothing, or everything, is an error. */
static bool check_mask(const Packer *packer, int64_t trained, int64_t tokens, Error *error) {
    if (!packer->chat || tokens == 0 || (trained > 0 && trained < tokens)) return true;
    return error_set(error, ERROR_DATA,
        "%s of the %" PRId64
        " tokens of %s are trained: a conversation must have both prompt tokens (not trained) and answer tokens (trained)",
        trained ? "all" : "none", tokens, packer->options.inputs[0]);
}

/* Returns the path of the list of dropped documents; the caller frees. */
static char *dropped_path(const Packer *packer) {
    return in_folder(packer) ? part_path(&packer->train, PACK_DROPPED) : memory_format("%s." PACK_DROPPED, packer->train.name);
}

/* Reports that nothing is left to pack, with the cause. */
static bool refuse_nothing(const Packer *packer, Error *error) {
    const PackOptions *options = &packer->options;
    bool pairs = options->format == PACK_PREFERENCE;
    PackBad none = pairs ? PACK_BAD_PAIR : PACK_BAD_CHAT;
    int64_t bad = 0, left = pack_files_left(&packer->files);
    for (int i = 1; i < PACK_BAD_KINDS; i++) bad += packer->report.result.bad[i];
    const PackResult *result = &packer->report.result;
    SCOPED_FREE char *dropped = dropped_path(packer);
    if (result->filtered + result->left_out > 0)
        return error_set(error, ERROR_DATA,
            "no document of %s is left: of %" PRId64 " the rules dropped %" PRId64 ", and %" PRId64 " repeat others; see %s",
            options->inputs[0], result->records, result->filtered, result->left_out, dropped);
    if (bad > 0 && bad == packer->report.result.bad[none])
        return error_set(error, ERROR_DATA, "no record of %s is a valid %s: %s", options->inputs[0],
            pairs ? "preference pair" : "conversation", note_first_bad(packer, none, NULL));
    if (bad > 0 && bad == packer->report.result.bad[PACK_BAD_FIELD])
        return error_set(error, ERROR_DATA,
            options->tokens ? "no record of %s has tokens in the field %s: name the field with tokens, as tokens=NAME of smelt data pack"
                            : "no record of %s has text in the field %s: name the field with text, as field=NAME of smelt data pack",
            options->inputs[0], note_first_bad(packer, PACK_BAD_FIELD, NULL));
    if (bad > 0 && bad == packer->report.result.bad[PACK_BAD_JSON])
        return error_set(
            error, ERROR_DATA, "no line of %s is a JSON record: %s", options->inputs[0], note_first_bad(packer, PACK_BAD_JSON, NULL));
    return error_set(error, ERROR_DATA,
        "%s contains no text: %zu file%s, %" PRId64 " bytes, %" PRId64 " file%s skipped, %" PRId64
        " invalid record%s; give a file or folder with text",
        options->inputs[0], packer->files.list.count, plural((int64_t)packer->files.list.count), packer->files.bytes, left, plural(left),
        bad, plural(bad));
}

static bool check_result(const Packer *packer, Error *error) {
    const PackOptions *options = &packer->options;
    const PackResult *result = &packer->report.result;
    if (result->train_tokens + result->valid_tokens == 0) return refuse_nothing(packer, error);
    if (!check_mask(packer, result->trained_train, result->train_tokens, error) ||
        !check_mask(packer, result->trained_valid, result->valid_tokens, error))
        return false;
    if (packer->valid.name && result->valid_tokens == 0)
        return error_set(error, ERROR_DATA,
            "%s yields no validation part of %g: it has too few lines or records; set valid=0 (in training data.valid_fraction=0), or use "
            "more text",
            options->inputs[0], options->valid_fraction);
    if (result->train_tokens == 0)
        return error_set(error, ERROR_DATA, "%s yields no training part, because all text is in its last %g: set a smaller valid",
            options->inputs[0], options->valid_fraction);
    return true;
}

static bool list_inputs(Packer *packer, Error *error) {
    if (!pack_files_list(
            &packer->files, packer->options.inputs, packer->options.held_out, packer->trainer ? NULL : packer->options.output, error))
        return false;
    for (const char *const *input = packer->options.inputs; *input; input++)
        if (!refuse_output(packer, *input, error)) return false;
    return pack_report_open(&packer->report, &packer->options, &packer->files, error);
}

/* Sets *waits if a packing is complete, and waits for its names. */
static bool find_waiting(const Packer *packer, bool *waits, Error *error) {
    PackFound found;
    SCOPED_FREE char *record = record_path(packer), *next = shard_next(in_folder(packer) ? packer->train.name : record);
    SCOPED_FREE char *path = memory_format("%s%s", next, in_folder(packer) ? "/" RECORD : "");
    bool read = pack_report_find(path, &found, error);
    *waits = found == PACK_FOUND_WHOLE;
    return read;
}

/* Gives the files of a complete packing their names after an input was removed. *error says that
 * the input is absent, and is kept if no packing of these inputs and settings waits. */
static bool finish_without_input(Packer *packer, Error *error) {
    Error missing = *error;
    bool waits = false, ended = false;
    if (missing.finding != FINDING_ABSENT) return false;
    if (!find_waiting(packer, &waits, error)) return false;
    if (waits) {
        pack_report_name(&packer->report, &packer->options, &packer->files);
        if (!open_pack_tokenizer(packer, error) || !open_chat_template(packer, error) ||
            !(in_folder(packer) ? lock_folder(packer, packer->train.name, &packer->lock, error) && choose_place(packer, &ended, error)
                                : resume_shards(packer, &ended, error)) ||
            !was_this_one(packer, error))
            return false;
    }
    if (packer->done)
        log_warn("%s was already packed completely, so its files were only renamed; an input is missing (%s)", packer->train.name,
            missing.message);
    else *error = missing;
    return packer->done;
}

/* Decides what format=auto is, by the records of the inputs. */
static bool resolve_format(Packer *packer, Error *error) {
    if (packer->options.format != PACK_AUTO) return true;
    packer->options.format = pack_find_format(&packer->options, &packer->files);
    if (pack_is_chat(packer->options.format))
        log_info("%s holds %s: packing by the chat template", packer->options.inputs[0],
            packer->options.format == PACK_CHAT ? "conversations" : "pairs of answers");
    return check_idle_pack_options(&packer->options, error);
}

/* Writes what was dropped and what was seen, before the shards get their names. */
static bool finish_lists(Packer *packer, Error *error) {
    SCOPED_FREE char *dedup =
        in_folder(packer) ? part_path(&packer->train, PACK_DEDUP_NAME) : memory_format("%s." PACK_DEDUP_NAME, packer->train.name);
    return (!packer->dropped || drop_log_finish(packer->dropped, error)) &&
           (packer->options.dedup == PACK_DEDUP_NONE ||
               dedup_write(dedup, packer->seen, packer->options.dedup == PACK_DEDUP_NEAR, &packer->files.list, error));
}

/* Removes the lists of a shard that was replaced by one without such lists. */
static bool remove_old_lists(const Packer *packer, Error *error) {
    SCOPED_FREE char *dropped = memory_format("%s." PACK_DROPPED, packer->train.name);
    SCOPED_FREE char *dedup = memory_format("%s." PACK_DEDUP_NAME, packer->train.name);
    if (in_folder(packer) || !packer->options.overwrite) return true;
    return (packer->dropped || !drop_log_is(dropped) || file_remove(dropped, error)) &&
           (packer->options.dedup != PACK_DEDUP_NONE || !dedup_is(dedup) || file_remove(dedup, error));
}

/* Checks the result; if nothing is left, the list of what was dropped stays. */
static bool check_kept(Packer *packer, Error *error) {
    const PackResult *result = &packer->report.result;
    Error ignored = {0};
    if (check_result(packer, error)) return true;
    if (packer->dropped && result->train_tokens + result->valid_tokens == 0) drop_log_finish(packer->dropped, &ignored);
    return false;
}

static bool end_folder(Packer *packer, Error *error) {
    return packer->train.upload ? complete_uploads(packer, error) : complete_folder(packer, error);
}

static bool pack_all(Packer *packer, Error *error) {
    if (!list_inputs(packer, error)) return finish_without_input(packer, error);
    bool opened = resolve_format(packer, error) && open_pack_tokenizer(packer, error) && open_chat_template(packer, error) &&
                  open_output(packer, error);
    return opened && (packer->done || (read_all_inputs(packer, error) && check_kept(packer, error) && finish_lists(packer, error) &&
                                          finish_shards(packer, error) && remove_old_lists(packer, error) &&
                                          (!in_folder(packer) || end_folder(packer, error))));
}

bool pack_text(const PackOptions *options, PackResult *result, Error *error) {
    *result = (PackResult){0};
    Packer *packer = packer_open(options, NULL, error);
    return packer && packer_close(packer, open_uploads(packer, options->output, error) && pack_all(packer, error), result);
}

bool pack_train_tokenizer(
    const PackOptions *options, const TokenizerTraining *training, PackResult *result, int32_t *learned, Error *error) {
    *result = (PackResult){0};
    if (starts_with(options->output, S3_SCHEME))
        return error_set(error, ERROR_USAGE, "OUTPUT %s is in a bucket, but a tokenizer is a local file: give its path", options->output);
    TokenizerTrainer *trainer = tokenizer_trainer_open(training, error);
    Packer *packer = trainer ? packer_open(options, trainer, error) : NULL;
    if (!packer) return false;
    SCOPED_FREE char *folder = output_folder(options->output);
    bool good = list_inputs(packer, error) && make_folder(folder, error) && read_all_inputs(packer, error) &&
                tokenizer_trainer_finish(packer->trainer, options->output, learned, error);
    return packer_close(packer, good, result);
}
