/* A folder of shards, and OUTPUT in a bucket, whose shards are in a folder until they are uploaded.
 *
 * A kill at any moment costs a folder no more than its open shards. Whenever a shard of the
 * training part is full, the open one of the validation part ends too. Both get their names, and
 * then pack.json records which document comes next. The same command resumes there. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/data_internal.h"
#include "data/packer_internal.h"

/* Writes the hashes first, because the record says how many of them are valid. */
static bool write_place(Packer *packer, RecordPosition position, Error *error) {
    if (packer->dropped && !drop_log_flush(packer->dropped, &packer->report.dropped_bytes, error)) return false;
    size_t bytes = packer->new_hash_count * sizeof(uint64_t);
    if (!file_append(&packer->hashes, packer->new_hashes, (int64_t)bytes, error) || !file_sync(&packer->hashes, error)) return false;
    packer->report.hashes += (int64_t)packer->new_hash_count;
    packer->new_hash_count = 0;
    packer->report.position = position;
    return packer_write_record(packer, false, error);
}

/* Returns whether a name is a temporary record. A packing that was killed before its first record
 * leaves nothing else. */
static bool is_draft(const char *name) { return starts_with(name, PACK_RECORD ".partial-"); }

static bool is_own(const char *name) {
    static const char *const names[] = {PACK_RECORD, PACK_DROPPED, PACK_DEDUP_NAME, "hashes", "tokenizer", "tokenizer.partial"};
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
    SCOPED_FREE char *record = memory_format("%s/" PACK_RECORD, part->place);
    bool good = !list.count || (file_remove(record, error) && file_sync_name(record, error));
    for (size_t i = 0; i < list.count && good; i++) {
        SCOPED_FREE char *path = memory_format("%s/%s", part->place, list.entries[i].name);
        good = file_remove(path, error);
    }
    return good;
}

/* Writes the tokenizer into the folder of a part, once for all its shards. */
static bool write_pack_tokenizer(const Packer *packer, const PackPart *part, Error *error) {
    if (!part->name) return true;
    SCOPED_FREE char *draft = memory_format("%s/tokenizer.partial", part->place), *folder = memory_format("%s/tokenizer", part->place);
    return shard_tokenizer_write(packer_tokenizer_name(packer), packer_template(packer), draft, error) &&
           file_replace_folder(draft, folder, error);
}

static bool begin_folder(Packer *packer, Error *error) {
    const PackPart *parts[] = {&packer->train, &packer->valid};
    for (int i = 0; i < 2; i++)
        if (parts[i]->name && !(clear_part(parts[i], error) && file_make_folder(parts[i]->place, error))) return false;
    return packer_write_record(packer, false, error) && write_pack_tokenizer(packer, &packer->train, error) &&
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
    SCOPED_FREE char *next = shard_next(packer->train.name), *waits = memory_format("%s/" PACK_RECORD, next),
                     *record = packer_path(packer, PACK_RECORD);
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

bool packer_resume_folder(Packer *packer, bool *ended, Error *error) {
    return lock_folder(packer, packer->train.name, &packer->lock, error) && choose_place(packer, ended, error);
}

/* Decides whether the folder is new or resumed. */
static bool begin_or_resume(Packer *packer, bool *resume, Error *error) {
    PackFound found = PACK_FOUND_NOTHING;
    SCOPED_FREE char *difference = NULL;
    if (!packer_read_record(packer, &found, &difference, error)) return false;
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

/* Moves the finished shards to the bucket. The record already has them, so a killed packing goes on
 * with the shards that are still in the folder. */
static bool send_shards(Packer *packer, Error *error) {
    const PackPart *parts[] = {&packer->train, &packer->valid};
    for (int i = 0; i < 2; i++)
        if (parts[i]->upload && !pack_upload_shards(parts[i]->upload, parts[i]->place, *packer_shards(packer, parts[i]), error))
            return false;
    return true;
}

bool packer_end_shards(Packer *packer, RecordPosition position, Error *error) {
    return packer_finish_shards(packer, error) && write_place(packer, position, error) && send_shards(packer, error);
}

static bool send_record(const Packer *packer, bool complete, Error *error) {
    SCOPED_FREE char *text = pack_report_text(&packer->report, &packer->options, complete);
    return pack_upload_text(packer->train.upload, PACK_RECORD, text, error);
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
                                    pack_upload_check(parts[i]->upload, *packer_shards(packer, parts[i]), error)))
            return false;
    if (!send_record(packer, true, error)) return false;
    for (int i = 0; i < 2; i++)
        if (parts[i]->upload && !file_remove(parts[i]->place, &left)) log_warn("%s; the bucket has everything", left.message);
    return true;
}

bool packer_open_folder(Packer *packer, Error *error) {
    bool ended, resume;
    if (!file_make_folder(packer->train.name, error)) return error_recode(error, ERROR_USAGE);
    if (!packer_resume_folder(packer, &ended, error)) return false;
    if (ended && !packer_reads_standard_input(packer) && !packer_was_this_one(packer, error)) return false;
    if (packer->done) return true;
    if (ended && !choose_place(packer, &ended, error)) return false;
    if (!begin_or_resume(packer, &resume, error)) return false;
    if (is_beside(packer) && !lock_folder(packer, packer->train.place, &packer->next_lock, error)) return false;
    packer->report.result.resumed = packer->report.result.shards > 0;
    for (const PackPart *const *part = (const PackPart *const[]){&packer->train, &packer->valid, NULL}; *part; part++)
        if ((*part)->name) file_remove_partials((*part)->place, "", NULL);
    SCOPED_FREE char *hashes = packer_path(packer, "hashes");
    int64_t bytes = packer->report.hashes * (int64_t)sizeof(uint64_t);
    if (!check_list(hashes, bytes, error) || !file_open_append(&packer->hashes, hashes, false, error) ||
        !file_truncate(&packer->hashes, bytes, error))
        return false;
    SCOPED_FREE char *dropped = packer_path(packer, PACK_DROPPED);
    if (pack_logs_drops(&packer->options) && !(check_list(dropped, packer->report.dropped_bytes, error) &&
                                                 (packer->dropped = drop_log_append(dropped, packer->report.dropped_bytes, error))))
        return false;
    if (!begin_uploads(packer, resume, error)) return false;
    if (resume) log_info("continuing %s after %" PRId64 " finished shards", packer->train.place, packer->report.result.shards);
    return read_hashes(packer, error);
}

/* Writes the final record last; only then can the folder be read. */
static bool complete_folder(Packer *packer, Error *error) {
    SCOPED_FREE char *hashes = packer_path(packer, "hashes"), *stale = NULL;
    const PackPart *parts[] = {&packer->train, &packer->valid};
    file_close(&packer->hashes);
    packer->hashes = (File){0};
    for (int i = 0; i < 2; i++) { /* a shard with a name that the record lacks, from a killed packing that ended differently */
        if (!parts[i]->name) continue;
        free(stale);
        stale = memory_format("%s/shard-%05" PRId64 ".idx", parts[i]->place, *packer_shards(packer, parts[i]));
        if (!file_remove(stale, error)) return false;
    }
    if (!packer_write_record(packer, true, error)) return false;
    Error left = {0};
    if (!file_remove(hashes, &left)) log_warn("%s; the shards are complete without it", left.message);
    return !is_beside(packer) || take_names(packer, error);
}

bool packer_end_folder(Packer *packer, Error *error) {
    return packer->train.upload ? complete_uploads(packer, error) : complete_folder(packer, error);
}
