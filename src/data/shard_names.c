/* Gives complete shards their names. A shard is several files, and the shards of a packing belong together, but names
 * change one at a time. Each file is first written to disk as NAME.next, and after them the record of the packing
 * as RECORD.next. The packing is complete once RECORD.next exists. The process that finds that file gives the others
 * their names: the packing itself, or the next one after a kill. The old index is removed first and the new index
 * comes last, so that an index always belongs to the tokens beside it. Called by shard_writer.c and pack.c. */
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "data/data_internal.h"

char *shard_next(const char *name) { return memory_format("%s.next", name); }

/* Sets *there. Returns false if the system cannot tell, which is not the same as absent. */
static bool find_prefix(const char *path, bool *there, Error *error) {
    FileKind kind = file_kind(path, NULL);
    *there = kind != FILE_ABSENT;
    return kind != FILE_UNREADABLE || file_fail(error, "look up", path);
}

static bool find_next(const char *name, bool *there, Error *error) {
    SCOPED_FREE char *next = shard_next(name);
    return find_prefix(next, there, error);
}

/* The old file is removed first, so that a second try after a kill finds NAME.next until it has its name. */
static bool take_shard_name(const char *name, Error *error) {
    bool there;
    SCOPED_FREE char *next = shard_next(name);
    if (!find_prefix(next, &there, error)) return false;
    return !there || (file_remove(name, error) && file_replace_folder(next, name, error));
}

/* Removes an index with a waiting successor, because it does not belong to the tokens that are
 * about to be renamed. */
static bool retire_index(const char *prefix, Error *error) {
    bool waits;
    SCOPED_FREE char *index = memory_format("%s.idx", prefix);
    return find_next(index, &waits, error) && (!waits || (file_remove(index, error) && file_sync_name(index, error)));
}

static bool take_shard(const char *prefix, Error *error) {
    static const char *const suffixes[] = {".tokenizer", ".bin", ".idx"};
    bool good = true;
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes && good; i++) {
        SCOPED_FREE char *name = memory_format("%s%s", prefix, suffixes[i]);
        good = take_shard_name(name, error);
    }
    return good;
}

/* Checks that a renamed file is under its new name. If a file system wrongly reports a file as absent,
 * the name still has an older file, or none. */
static bool has_name(const char *name, bool optional, Error *error) {
    bool there, waits;
    if (!find_prefix(name, &there, error) || !find_next(name, &waits, error)) return false;
    return (!waits && (there || optional)) ||
           error_set(error, ERROR_CHECKPOINT, "%s is missing right after it was renamed: check the file system", name);
}

static bool has_names(const char *prefix, Error *error) {
    SCOPED_FREE char *tokenizer = memory_format("%s.tokenizer", prefix), *tokens = memory_format("%s.bin", prefix);
    SCOPED_FREE char *index = memory_format("%s.idx", prefix);
    return has_name(tokenizer, true, error) && has_name(tokens, false, error) && has_name(index, false, error);
}

static bool take_every_name(const char *const *prefixes, const char *record, Error *error) {
    bool good = true;
    for (const char *const *prefix = prefixes; *prefix && good; prefix++) good = retire_index(*prefix, error);
    for (const char *const *prefix = prefixes; *prefix && good; prefix++) good = take_shard(*prefix, error);
    for (const char *const *prefix = prefixes; *prefix && good; prefix++) good = has_names(*prefix, error);
    return good && (!record || (take_shard_name(record, error) && has_name(record, false, error)));
}

bool shard_names_take(const char *const *prefixes, const char *record, Error *error) {
    int lock = -1;
    SCOPED_FREE char *promise = record ? shard_next(record) : NULL;
    if (promise && !file_lock(promise, &lock))
        return error_set(error, ERROR_USAGE, "another process is renaming the files of %s: wait for it", prefixes[0]);
    bool good = take_every_name(prefixes, record, error);
    if (lock >= 0) close(lock);
    if (!good && record)
        error_context(error, "%s is packed but not renamed yet; run the same command again to rename its files", prefixes[0]);
    return good;
}

bool shard_names_resume(const char *const *prefixes, const char *record, bool *resumed, Error *error) {
    return find_next(record, resumed, error) && (!*resumed || shard_names_take(prefixes, record, error));
}
