/* Shards as one stream. A set owns its shards and, for each, two numbers: the tokens and the
 * documents before it. A place is found in them by bisection. Read by the loader, evaluation,
 * identities and `smelt data show`. */
#include <assert.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/byte_tokenizer.h"
#include "data/data_internal.h"
#include "data/pack.h"
#include "token/tokenizer.h"

/* -- Names --------------------------------------------------------------------------------------------------------- */

static int compare_names(const void *a, const void *b) { return strcmp(((const FileEntry *)a)->name, ((const FileEntry *)b)->name); }

/* Adds an entry of a folder if it is a shard: PREFIX.idx names Megatron's PREFIX; another .bin is
 * recognized by its content. */
static bool list_entry(FileList *prefixes, const char *folder, const char *name, Error *error) {
    const ShardFormat *format;
    int length = (int)path_length(folder), stem = (int)(strlen(name) - strlen(".idx"));
    if (name[0] == '.' || !(ends_with(name, ".idx") || ends_with(name, ".bin"))) return true;
    char *path =
        ends_with(name, ".idx") ? memory_format("%.*s/%.*s", length, folder, stem, name) : memory_format("%.*s/%s", length, folder, name);
    bool good = shard_format(path, &format, error);
    if (good && format) file_list_add(prefixes, path, FILE_REGULAR);
    else free(path);
    return good;
}

/* Lists the shards that a path names, for file_list_free: the path itself, or those of a folder, or
 * those of a folder whose names match FOLDER/PATTERN. None: it names no shard. */
static bool list_shards(const char *path, FileList *prefixes, Error *error) {
    const ShardFormat *format;
    SCOPED(file_list_free) FileList folder = {0};
    const char *slash = strrchr(path, '/'), *pattern = slash ? slash + 1 : path;
    bool matches = strchr(pattern, '*') != NULL;
    SCOPED_FREE char *place =
        matches ? memory_format("%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".") : memory_copy_string(path);
    if (!shard_format(path, &format, error)) return false;
    if (format) file_list_add(prefixes, memory_copy_string(path), FILE_REGULAR);
    if (format || file_kind(place, NULL) != FILE_FOLDER) return true;
    if (!matches && !mds_list(path, prefixes, error)) return false;
    if (prefixes->count) return true; /* in the order of the folder's index.json */
    bool good = file_list(place, &folder, error) || error_recode(error, ERROR_DATA);
    for (size_t i = 0; i < folder.count && good; i++)
        good = (matches && fnmatch(pattern, folder.entries[i].name, 0) != 0) || list_entry(prefixes, place, folder.entries[i].name, error);
    if (prefixes->count) qsort(prefixes->entries, prefixes->count, sizeof *prefixes->entries, compare_names);
    return good;
}

bool shard_set_exists(const char *path) {
    SCOPED(file_list_free) FileList prefixes = {0};
    Error unknown;
    return !list_shards(path, &prefixes, &unknown) || prefixes.count > 0;
}

/* Reads the tokenizer that a folder records, as for shard_set_tokenizer. Takes over `folder`. */
static bool read_recorded(char *folder, char **tokenizer, Error *error) {
    SCOPED_FREE char *place = folder, *file = tokenizer_find(folder);
    bool bytes = false, good = !file || byte_tokenizer_is(folder, &bytes, error) || error_recode(error, ERROR_DATA);
    *tokenizer = good && file ? memory_copy_string(bytes ? "" : place) : NULL;
    return good;
}

static bool tokenizer_of(const char *prefix, char **tokenizer, Error *error) {
    return read_recorded(memory_format("%s.tokenizer", prefix), tokenizer, error);
}

bool shard_set_tokenizer(const char *path, char **tokenizer, Error *error) {
    SCOPED(file_list_free) FileList prefixes = {0};
    *tokenizer = NULL;
    if (!list_shards(path, &prefixes, error)) return false;
    if (file_kind(path, NULL) == FILE_FOLDER && !read_recorded(memory_format("%s/tokenizer", path), tokenizer, error)) return false;
    return *tokenizer || !prefixes.count || tokenizer_of(prefixes.entries[0].name, tokenizer, error);
}

/* -- Opening ------------------------------------------------------------------------------------------------------- */

/* Refuses a training and a validation part in one folder, because training on the validation part
 * is a mistake. */
static bool check_parts(const char *path, const FileList *prefixes, Error *error) {
    for (size_t i = 0; i < prefixes->count; i++) {
        const char *train = prefixes->entries[i].name;
        if (!ends_with(train, "-train")) continue;
        SCOPED_FREE char *valid = memory_format("%.*s-valid", (int)(strlen(train) - strlen("-train")), train);
        if (file_list_has(prefixes, valid))
            return error_set(
                error, ERROR_DATA, "%s contains a training and a validation part: give one of them, %s or %s", path, train, valid);
    }
    for (size_t i = 0; i < prefixes->count; i++) {
        bool valid = strstr(prefixes->entries[i].name, "_val_") != NULL, first = strstr(prefixes->entries[0].name, "_val_") != NULL;
        if (valid != first)
            return error_set(
                error, ERROR_DATA, "%s contains a training and a validation part: give one of them, as in %s/*_train_*.bin", path, path);
    }
    return true;
}

enum { RECORD_LIMIT = 64 << 20 };

/* Refuses a folder whose record, which `smelt data pack` writes, says that it is incomplete. */
static bool check_complete(const char *path, Error *error) {
    SCOPED_FREE char *record = memory_format("%s/pack.json", path);
    SCOPED_FREE char *text = file_read(record, RECORD_LIMIT, NULL, error);
    json_auto_t *content = text ? json_loads(text, 0, NULL) : NULL;
    if (!text) return error->finding == FINDING_ABSENT || error_recode(error, ERROR_DATA);
    return !json_is_false(json_object_get(content, "complete")) ||
           error_set(
               error, ERROR_DATA, "%s is incomplete, because its packing was interrupted: run the same `smelt data pack` again", path);
}

/* Refuses shards of different tokenizers, which are not one stream. */
static bool check_tokenizers(const FileList *prefixes, Error *error) {
    SCOPED_FREE char *first = NULL;
    if (!tokenizer_of(prefixes->entries[0].name, &first, error)) return false;
    for (size_t i = 1; i < prefixes->count; i++) {
        SCOPED_FREE char *other = NULL;
        bool differs = false;
        if (!tokenizer_of(prefixes->entries[i].name, &other, error)) return false;
        if (first && other && !tokenizer_differs(first, other, &differs, error)) return false;
        if (!first != !other || differs)
            return error_set(error, ERROR_DATA, "%s and %s were packed with different tokenizers: put them into separate folders",
                prefixes->entries[0].name, prefixes->entries[i].name);
    }
    return true;
}

static bool open_prefixes(ShardSet *set, const FileList *prefixes, Error *error) {
    size_t count = prefixes->count;
    set->shards = memory_allocate(count * sizeof *set->shards);
    set->first_token = memory_allocate((count + 1) * sizeof *set->first_token);
    set->first_document = memory_allocate((count + 1) * sizeof *set->first_document);
    for (size_t i = 0; i < count; i++) {
        Shard *shard = &set->shards[i];
        if (!shard_open(shard, prefixes->entries[i].name, set->remote, error)) return false;
        set->count++;
        set->max_token = int_max(set->max_token, shard->max_token);
        set->masked = set->masked || shard->masked;
        set->pairs = set->pairs || shard->pairs;
        if (shard->pairs != set->shards[0].pairs)
            return error_set(error, ERROR_DATA, "only one of %s and %s contains preference pairs: put them into separate folders",
                set->shards[0].prefix, shard->prefix);
        set->first_token[i + 1] = set->token_count += shard->token_count;
        bool indexed = shard->document_count >= 0 && set->document_count >= 0;
        set->first_document[i + 1] = set->document_count = indexed ? set->document_count + shard->document_count : -1;
    }
    return true;
}

/* Warns of other files in a folder of shards, such as text, which are not read. */
static void warn_of_others(const char *path) {
    static const char *const known[] = {
        ".bin", ".idx", ".mds", ".mds.zstd", "pack.json", "index.json", "." PACK_DEDUP_NAME, "." PACK_DROPPED};
    SCOPED(file_list_free) FileList list = {0};
    Error ignored = {0};
    const char *first = NULL;
    int64_t count = 0;
    if (file_kind(path, NULL) != FILE_FOLDER || !file_list(path, &list, &ignored)) return;
    for (size_t i = 0; i < list.count; i++) {
        const char *name = list.entries[i].name;
        bool other = list.entries[i].kind == FILE_REGULAR && name[0] != '.';
        for (size_t k = 0; k < sizeof known / sizeof *known && other; k++) other = !ends_with(name, known[k]);
        other = other && strcmp(name, PACK_DEDUP_NAME) != 0 && strcmp(name, PACK_DROPPED) != 0;
        if (other && (!first || strcmp(name, first) < 0)) first = name;
        count += other;
    }
    if (count > 0)
        log_warn(
            "%s is a folder of token shards: ignoring %" PRId64 " other file%s in it; the first is %s", path, count, plural(count), first);
}

bool shard_set_open(ShardSet *set, const char *path, Error *error) {
    SCOPED(file_list_free) FileList prefixes = {0};
    *set = (ShardSet){.path = memory_copy_string(path), .max_token = -1, .end_token = -1};
    bool listed = list_shards(path, &prefixes, error);
    if (listed && !prefixes.count) file_list_add(&prefixes, memory_copy_string(path), FILE_REGULAR); /* opening it reports it missing */
    if (listed && check_complete(path, error) && check_parts(path, &prefixes, error) && check_tokenizers(&prefixes, error) &&
        remote_open(&set->remote, path, error) && open_prefixes(set, &prefixes, error)) {
        if (!set->remote) warn_of_others(path);
        return true;
    }
    shard_set_close(set);
    return false;
}

bool shard_set_verify(ShardSet *set, Error *error) {
    for (int64_t i = 0; i < set->count; i++) {
        if (!shard_verify(&set->shards[i], error)) return false;
        set->max_token = int_max(set->max_token, set->shards[i].max_token);
    }
    return true;
}

void shard_set_close(ShardSet *set) {
    remote_close(set->remote);
    for (int64_t i = 0; i < set->count; i++) shard_close(&set->shards[i]);
    free(set->shards);
    free(set->first_token);
    free(set->first_document);
    free(set->path);
    *set = (ShardSet){0};
}

/* -- Reading ------------------------------------------------------------------------------------------------------- */

/* Returns the shard that holds a place; `first` has [count + 1] entries. */
static int64_t find_shard(const ShardSet *set, const int64_t *first, int64_t place) {
    int64_t low = 0, high = set->count - 1;
    assert(place >= 0 && place < first[set->count]);
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (first[middle + 1] > place) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Returns how many of the tokens [first, first + count) are contiguous in the shards; they begin at
 * *place. */
static int64_t find_run(const ShardSet *set, int64_t first, int64_t count, int64_t *place) {
    int64_t low = 0, high = set->run_count - 1;
    *place = first;
    if (!set->runs) return count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (set->runs[middle + 1].first > first) high = middle;
        else low = middle + 1;
    }
    *place = set->runs[low].start + first - set->runs[low].first;
    return int_min(count, set->runs[low + 1].first - first);
}

/* Reads tokens of the shards, as shard_set_read reads those of the set. */
static bool read_shards(
    const ShardSet *set, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *marks, Error *error) {
    int64_t done = 0;
    for (int64_t i = find_shard(set, set->first_token, first); done < count; i++) {
        int64_t at = first + done - set->first_token[i], part = int_min(count - done, set->shards[i].token_count - at);
        if (!shard_read(&set->shards[i], at, part, vocabulary, tokens + done, marks ? marks + done : NULL, error)) return false;
        for (int64_t t = done; t < done + part && marks && set->shards[i].document_count < 0; t++)
            if (tokens[t] == set->end_token) marks[t] = TOKEN_ENDS;
        done += part;
    }
    return true;
}

bool shard_set_read(const ShardSet *set, int64_t first, int64_t count, int64_t vocabulary, int32_t *tokens, uint8_t *marks, Error *error) {
    assert(count >= 1 && count <= set->token_count - first);
    for (int64_t done = 0, place, part; done < count; done += part) {
        part = find_run(set, first + done, count - done, &place);
        if (!read_shards(set, place, part, vocabulary, tokens + done, marks ? marks + done : NULL, error)) return false;
    }
    return true;
}

static void prefetch_shards(const ShardSet *set, int64_t first, int64_t count) {
    for (int64_t i = find_shard(set, set->first_token, first); count > 0; i++) {
        int64_t at = first - set->first_token[i], part = int_min(count, set->shards[i].token_count - at);
        shard_prefetch(&set->shards[i], at, part);
        first += part;
        count -= part;
    }
}

void shard_set_prefetch(const ShardSet *set, int64_t first, int64_t count) {
    for (int64_t done = 0, place, part; done < count; done += part) {
        part = find_run(set, first + done, count - done, &place);
        prefetch_shards(set, place, part);
    }
}

/* Finds the end of a document without an index, by reads that grow, so that a short document costs
 * a short read. */
static bool scan_document(DocumentCursor *cursor, int64_t *end, Error *error) {
    enum { MOST = 4096 };
    int32_t tokens[MOST];
    uint8_t marks[MOST];
    const ShardSet *set = cursor->set;
    const int64_t tokens_of_all = set->first_token[set->count];
    for (int64_t part = MOST / 16; cursor->token < tokens_of_all; part = int_min(2 * part, MOST)) {
        int64_t count = int_min(part, tokens_of_all - cursor->token);
        if (!read_shards(set, cursor->token, count, (int64_t)INT32_MAX + 1, tokens, marks, error)) return false;
        const uint8_t *found = memchr(marks, TOKEN_ENDS, (size_t)count); /* without an index nothing is masked */
        cursor->token += found ? found - marks + 1 : count;
        *end = cursor->token;
        if (found) return true;
    }
    return true;
}

/* Returns the number of sequences. A disk serves many requests at once, and a sequence is one; for
 * a store, the cache size is the limit. */
int64_t shard_set_ahead(const ShardSet *set, int64_t length) {
    enum { FILES = 256, MOST = 1 << 20 };
    int64_t width = 1;
    for (int64_t i = 0; i < set->count; i++) width = int_max(width, set->shards[i].token_bytes);
    return set->remote ? int_min(int_max(remote_ahead(set->remote, (length + 1) * width), 1), MOST) : FILES;
}

void shard_set_interrupt(const ShardSet *set, bool interrupted) {
    if (set->remote) remote_interrupt(set->remote, interrupted);
}

/* Like document_cursor_next, for all documents of the shards. */
static bool next_of_shards(DocumentCursor *cursor, int64_t *start, int64_t *end, Error *error) {
    const ShardSet *set = cursor->set;
    const int64_t documents = set->first_document[set->count];
    *start = cursor->token;
    *end = -1;
    if (documents < 0) return scan_document(cursor, end, error);
    if (cursor->document == documents) return true;
    int64_t i = find_shard(set, set->first_document, cursor->document);
    if (!shard_index_document(&set->shards[i], cursor->document - set->first_document[i], start, end, cursor->checked, error)) return false;
    *start += set->first_token[i];
    *end += set->first_token[i];
    if (*start != cursor->token)
        return error_set(error, ERROR_DATA, "%s.idx has a gap or overlap before document %" PRId64 ": pack the corpus again",
            set->shards[i].prefix, cursor->document - set->first_document[i]);
    cursor->document++;
    cursor->token = *end;
    return true;
}

/* Turns a place in the shards into one in the set. Returns whether the set has the document. */
static bool is_in_runs(DocumentCursor *cursor, int64_t *start, int64_t *end) {
    const ShardSet *set = cursor->set;
    for (const StreamRun *run = set->runs + cursor->run; cursor->run < set->run_count; run++, cursor->run++) {
        int64_t length = run[1].first - run->first, shift = run->start - run->first;
        if (*start >= run->start + length) continue;
        bool inside = *start >= run->start;
        *start -= shift;
        *end -= shift;
        return inside;
    }
    return false;
}

bool document_cursor_next(DocumentCursor *cursor, int64_t *start, int64_t *end, Error *error) {
    do {
        if (!next_of_shards(cursor, start, end, error)) return false;
    } while (cursor->set->runs && *end >= 0 && !is_in_runs(cursor, start, end));
    return true;
}

/* -- Content ------------------------------------------------------------------------------------------------------- */

/* The number of shards to sample in a long folder of other programs' shards; the token counts of
 * all shards are included. */
enum { MOST_SAMPLED = 64 };

static bool checksum_of_shards(const ShardSet *set, uint64_t *checksum, Error *error) {
    if (set->count == 1) return shard_checksum(set->shards, checksum, error);
    SCOPED_FREE uint64_t *parts = memory_allocate((size_t)set->count * sizeof *parts);
    int64_t stride = set->count / MOST_SAMPLED + 1;
    for (int64_t i = 0; i < set->count; i++) {
        parts[i] = (uint64_t)set->shards[i].token_count;
        bool read = set->shards[i].record != SHARD_BARE || i % stride == 0;
        if (read && !shard_checksum(&set->shards[i], &parts[i], error)) return false;
    }
    *checksum = hash_bytes(parts, (size_t)set->count * sizeof *parts);
    return true;
}

bool shard_set_checksum(const ShardSet *set, uint64_t *checksum, Error *error) {
    if (!checksum_of_shards(set, checksum, error)) return false;
    if (set->runs) *checksum = XXH3_64bits_withSeed(set->runs, (size_t)(set->run_count + 1) * sizeof *set->runs, *checksum);
    return true;
}

/* Joins the distinct names of the shards: "u16", or "u16, i32". */
static char *join_names(const ShardSet *set, const char *(*name_of)(const Shard *shard)) {
    char *names = memory_copy_string("");
    for (int64_t i = 0; i < set->count; i++) {
        const char *name = name_of(&set->shards[i]);
        SCOPED_FREE char *before = names;
        names = strstr(before, name) ? memory_copy_string(before) : memory_format("%s%s%s", before, *before ? ", " : "", name);
    }
    return names;
}

static const char *format_name(const Shard *shard) { return shard->format->name; }

char *shard_set_types(const ShardSet *set) { return join_names(set, shard_type_name); }

char *shard_set_formats(const ShardSet *set) { return join_names(set, format_name); }

int64_t shard_set_bytes(const ShardSet *set) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < set->count; i++) bytes += set->shards[i].file.bytes;
    return bytes;
}

bool shard_set_checksummed(const ShardSet *set) {
    bool all = true;
    for (int64_t i = 0; i < set->count; i++) all = all && set->shards[i].record != SHARD_BARE;
    return all;
}

/* Counts the trained tokens of a shard with a mask. */
static bool count_trained(const Shard *shard, int64_t *trained, Error *error) {
    for (int64_t document = 0; document < shard->document_count; document++)
        if (!shard_index_trained(shard, document, trained, error)) return false;
    return true;
}

bool shard_set_trained(const ShardSet *set, int64_t *trained, Error *error) {
    *trained = 0;
    for (int64_t i = 0; i < set->count; i++) {
        if (set->shards[i].masked && !count_trained(&set->shards[i], trained, error)) return false;
        if (!set->shards[i].masked) *trained += set->shards[i].token_count;
    }
    return true;
}
