/* Lists the files of a packing's inputs. A folder is listed recursively, in byte order of paths. A
 * link is followed if it leads to a file or folder inside the named folder, so that no file
 * elsewhere is read without being named. If a folder has splits by name, like data sets on the
 * Hugging Face hub, one split is taken. Every file is taken, or skipped for a reason. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack_internal.h"
#include "data/picture_folder.h"

static int compare_paths(const void *left, const void *right) {
    return strcmp(((const FileEntry *)left)->name, ((const FileEntry *)right)->name);
}

/* -- Taken and skipped files ------------------------------------------------------------------------------------------- */

/* Makes a JSON string of a path, which may not be UTF-8. */
static json_t *json_path(const char *path) {
    size_t size;
    SCOPED_FREE char *good = utf8_replace(path, strlen(path), &size);
    return json_string(good);
}

void pack_files_take(PackFiles *files, const char *path) {
    if (json_array_size(files->taken) < PACK_LISTED) json_array_append_new(files->taken, json_path(path));
}

void pack_files_leave(PackFiles *files, const char *path, NotText why, bool usual) {
    size_t i = 0;
    while (i < files->left_out_count && strcmp(files->left_outs[i].why.what, why.what) != 0) i++;
    if (i == files->left_out_count) {
        NotText kept = {memory_copy_string(why.what), why.advice ? memory_copy_string(why.advice) : NULL};
        array_append(files->left_outs, files->left_out_count, ((LeftOut){.why = kept, .usual = usual}));
    }
    LeftOut *group = &files->left_outs[i];
    group->count++;
    if (!group->first || strcmp(path, group->first) < 0) {
        free(group->first);
        group->first = memory_copy_string(path);
    }
    if (json_array_size(files->left_out) < PACK_LISTED)
        json_array_append_new(files->left_out, json_pack("{so ss}", "file", json_path(path), "why", why.what));
}

int64_t pack_files_left(const PackFiles *files) {
    int64_t count = 0;
    for (size_t i = 0; i < files->left_out_count; i++) count += files->left_outs[i].count;
    return count;
}

void pack_files_warn(const PackFiles *files) {
    for (size_t i = 0; i < files->left_out_count; i++) {
        const LeftOut *group = &files->left_outs[i];
        const char *advice = group->why.advice;
        (group->usual ? log_info : log_warn)("skipped %" PRId64 " file%s; the first is %s: %s%s%s", group->count, plural(group->count),
            group->first, group->why.what, advice ? "; " : "", advice ? advice : "");
    }
}

/* -- Folders --------------------------------------------------------------------------------------------------------- */

/* Returns whether `path` is `folder` or inside it; both are real paths. */
static bool path_lies_in(const char *path, const char *folder) {
    size_t length = strlen(folder);
    return starts_with(path, folder) && (!path[length] || path[length] == '/' || folder[length - 1] == '/');
}

/* Returns FILE_OTHER if it is not a link, FILE_ABSENT if it is one, or FILE_UNREADABLE. */
static FileKind look_for_link(const char *path) {
    char start;
    return readlink(path, &start, 1) >= 0 ? FILE_ABSENT : errno == EINVAL ? FILE_OTHER : FILE_UNREADABLE;
}

/* Returns the kind of a link's target, if it may be followed from `root`, a real path; otherwise
 * FILE_ABSENT. No folder is entered through two links, and the root through none, so loops of links
 * end. */
static FileKind follow(PackFiles *files, const char *root, const char *path) {
    SCOPED_FREE char *target = realpath(path, NULL);
    if (!target && errno != ENOENT && errno != ENOTDIR && errno != ELOOP && errno != ENAMETOOLONG) return FILE_UNREADABLE;
    if (!target || !path_lies_in(target, root) || !strcmp(target, root)) return FILE_ABSENT;
    FileKind kind = file_kind(path, NULL);
    if (kind != FILE_FOLDER) return kind;
    if (file_list_has(&files->followed, target)) return FILE_ABSENT;
    file_list_add(&files->followed, memory_copy_string(target), kind);
    return kind;
}

static const NotText of_dot = {"a hidden file", NULL}, of_kind = {"a pipe or a device", NULL},
                     of_link = {
                         "a link that is broken, cyclic or points out of the folder", "give its target as another INPUT to include it"};

/* Lists the folders and files of one folder; deeper folders follow later, from `folders`. */
static bool list_folder(PackFiles *files, FileList *folders, const char *root, const char *path, Error *error) {
    SCOPED(file_list_free) FileList list;
    if (!file_list(path, &list, error)) return false;
    const char *slash = path[strlen(path) - 1] == '/' ? "" : "/";
    for (FileEntry *entry = list.entries; entry < list.entries + list.count; entry++) {
        char *name = memory_format("%s%s%s", path, slash, entry->name);
        bool hidden = entry->name[0] == '.';
        FileKind kind = entry->kind == FILE_OTHER && !hidden ? look_for_link(name) : entry->kind;
        bool link = kind == FILE_ABSENT;
        if (link) kind = follow(files, root, name);
        if (kind == FILE_UNREADABLE && !hidden) return file_fail(error, "inspect", name), free(name), false;
        bool taken = !hidden && (kind == FILE_FOLDER || kind == FILE_REGULAR);
        if (!taken) pack_files_leave(files, name, hidden ? of_dot : link && kind == FILE_ABSENT ? of_link : of_kind, hidden);
        if (!taken) free(name);
        else file_list_add(kind == FILE_FOLDER ? folders : &files->list, name, kind);
    }
    return true;
}

/* -- Splits ---------------------------------------------------------------------------------------------------------- */

typedef enum Split { SPLIT_NONE, SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, SPLITS } Split;

/* Returns the split that a word names, as in `datasets`; SPLIT_NONE: none. */
static Split split_of_word(const char *word, size_t length) {
    static const struct {
        const char *word;
        Split split;
    } words[] = {{"train", SPLIT_TRAIN}, {"training", SPLIT_TRAIN}, {"validation", SPLIT_VALID}, {"valid", SPLIT_VALID},
        {"dev", SPLIT_VALID}, {"val", SPLIT_VALID}, {"test", SPLIT_TEST}, {"testing", SPLIT_TEST}, {"eval", SPLIT_TEST},
        {"evaluation", SPLIT_TEST}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (length == strlen(words[i].word) && !strncasecmp(word, words[i].word, length)) return words[i].split;
    return SPLIT_NONE;
}

/* Returns the split of a file from the words of its path in the folder. The last path component
 * with such a word decides: "train/test-00000-of-00002.jsonl" is in the split test. */
static Split split_of(const char *path) {
    Split split = SPLIT_NONE, found = SPLIT_NONE;
    for (const char *word = path; *word;) {
        size_t length = 0;
        while (isalpha((unsigned char)word[length])) length++;
        if (found == SPLIT_NONE) found = split_of_word(word, length);
        word += length;
        if (found != SPLIT_NONE) split = found;
        if (*word == '/') found = SPLIT_NONE;
        word += *word != '\0';
    }
    return split;
}

/* Returns whether a name is that of a data file, which belongs to a split, rather than of code or
 * prose. */
static bool is_data(const char *path, bool records) {
    static const char *const endings[] = {".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".text"};
    enum { ENDINGS = sizeof endings / sizeof *endings, RECORDS = ENDINGS - 2 };
    for (size_t i = 0; i < (records ? RECORDS : ENDINGS); i++)
        if (name_ends(path, endings[i])) return true;
    return false;
}

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Keeps the files from `first` on for which `keeps` is set. */
static void keep_files(PackFiles *files, size_t first, const bool *keeps) {
    size_t kept = first;
    for (size_t i = first; i < files->list.count; i++) {
        if (keeps[i - first]) files->list.entries[kept++] = files->list.entries[i];
        else free(files->list.entries[i].name);
    }
    files->list.count = kept;
}

/* Drops files that are not in the wanted split, if the folder's files from `first` on have several,
 * and a README.md beside records. */
static void choose_split(PackFiles *files, const char *input, size_t first, bool held_out) {
    static const NotText reasons[SPLITS] = {
        {"of no known split", NULL}, {"of the split train", NULL}, {"of the split validation", NULL}, {"of the split test", NULL}};
    static const NotText readme = {"a README next to records", NULL};
    int64_t counts[SPLITS] = {0};
    bool records = false;
    size_t count = files->list.count - first;
    SCOPED_FREE Split *splits = memory_allocate((count + 1) * sizeof *splits);
    SCOPED_FREE bool *keeps = memory_allocate((count + 1) * sizeof *keeps);
    for (size_t i = 0; i < count; i++) {
        const char *path = files->list.entries[first + i].name;
        splits[i] = is_data(path, false) ? split_of(path + strlen(input)) : SPLIT_NONE;
        counts[splits[i]]++;
        records = records || is_data(path, true);
    }
    bool several = counts[SPLIT_TRAIN] && (counts[SPLIT_VALID] || counts[SPLIT_TEST]);
    Split wanted = !held_out ? SPLIT_TRAIN : counts[SPLIT_VALID] ? SPLIT_VALID : SPLIT_TEST;
    for (size_t i = 0; i < count; i++) {
        const char *path = files->list.entries[first + i].name;
        bool is_readme = records && !strcmp(last_name(path), "README.md");
        keeps[i] = !is_readme && (!several || splits[i] == wanted);
        if (!keeps[i]) pack_files_leave(files, path, is_readme ? readme : reasons[splits[i]], true);
    }
    if (several)
        log_info("%s contains several splits by name: using %" PRId64 " file%s %s", input, counts[wanted], plural(counts[wanted]),
            reasons[wanted].what);
    keep_files(files, first, keeps);
}

/* -- Inputs ---------------------------------------------------------------------------------------------------------- */

/* -- OUTPUT in an INPUT ------------------------------------------------------------------------------------------------ */

/* Returns the name that OUTPUT has in the list of a folder, or NULL if it is not in the folder. The
 * caller frees. */
static char *name_of_output(const char *input, const char *root, const char *output) {
    int length = (int)path_length(output);
    SCOPED_FREE char *whole = memory_format("%.*s", length, output);
    const char *slash = strrchr(whole, '/');
    SCOPED_FREE char *parent = memory_format("%.*s", slash ? (int)(slash - whole) + 1 : 1, slash ? whole : ".");
    SCOPED_FREE char *place = realpath(parent, NULL);
    if (!place || !path_lies_in(place, root)) return NULL;
    const char *rest = place + strlen(root);
    while (*rest == '/') rest++;
    return memory_format("%.*s/%s%s%s", (int)path_length(input), input, rest, *rest ? "/" : "", slash ? slash + 1 : whole);
}

/* Returns whether a packing to this output writes the path. */
static bool is_of_output(const char *path, const char *output) {
    static const char *const parts[] = {"-train", "-valid"};
    static const char *const endings[] = {
        "/", ".bin", ".idx", ".tokenizer", ".pack.json", ("." PACK_DROPPED), ("." PACK_DEDUP_NAME), ".next", ".replaced", ".partial-"};
    if (!starts_with(path, output)) return false;
    path += strlen(output);
    for (int i = 0; i < 2; i++)
        if (starts_with(path, parts[i])) path += strlen(parts[i]);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (starts_with(path, endings[i])) return true;
    return false;
}

/* Removes files of OUTPUT from the files of an input, which begin at `first` in the list. */
static void leave_output(PackFiles *files, const char *input, const char *root, const char *output, size_t first) {
    static const NotText own = {"a file of OUTPUT", NULL};
    SCOPED_FREE char *name = output ? name_of_output(input, root, output) : NULL;
    size_t kept = first;
    for (size_t i = first; i < files->list.count; i++) {
        FileEntry entry = files->list.entries[i];
        bool is_own = name && is_of_output(entry.name, name);
        if (is_own) pack_files_leave(files, entry.name, own, true);
        if (is_own) free(entry.name);
        else files->list.entries[kept++] = entry;
    }
    files->list.count = kept;
}

static bool list_input(PackFiles *files, const char *input, bool held_out, const char *output, bool *folder, Error *error) {
    FileKind kind = strcmp(input, "-") ? file_kind(input, NULL) : FILE_OTHER;
    *folder = kind == FILE_FOLDER;
    if (kind == FILE_ABSENT)
        return error_set(error, ERROR_DATA, "cannot read %s: %s; give a text file or a folder of text files", input, strerror(errno)) ||
               error_find(error, FINDING_ABSENT);
    if (!*folder) {
        file_list_add(&files->list, memory_copy_string(input), kind);
        return true;
    }
    if (!picture_folder_refuse(input, error)) return false;
    SCOPED_FREE char *root = realpath(input, NULL);
    SCOPED(file_list_free) FileList folders = {0};
    size_t first = files->list.count;
    file_list_add(&folders, memory_copy_string(input), kind);
    for (size_t i = 0; i < folders.count; i++)
        if (!list_folder(files, &folders, root ? root : input, folders.entries[i].name, error)) return error_recode(error, ERROR_DATA);
    leave_output(files, input, root ? root : input, output, first);
    if (files->list.count > first) qsort(files->list.entries + first, files->list.count - first, sizeof(FileEntry), compare_paths);
    choose_split(files, input, first, held_out);
    return true;
}

/* Returns the entry with a name; NULL: there is none. */
static const S3Entry *find_entry(const PackBucket *bucket, const char *name) {
    size_t low = 0, high = bucket->listing.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, bucket->listing.entries[middle].name);
        if (order == 0) return &bucket->listing.entries[middle];
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

/* Returns the place of an object that was listed. */
static ObjectPlace place_in(const PackBucket *bucket, const char *path) {
    const S3Entry *entry = find_entry(bucket, path + strlen(bucket->root));
    const char *name = path + strlen(S3_SCHEME);
    return (ObjectPlace){.path = path, .s3 = bucket->s3, .key = name + strcspn(name, "/") + 1, .etag = entry->etag, .bytes = entry->bytes};
}

/* Returns whether an object is one of the two files of a token shard. */
static bool is_shard_object(const PackBucket *bucket, const char *name) {
    bool tokens = ends_with(name, ".bin");
    SCOPED_FREE char *other = memory_format("%.*s%s", (int)strlen(name) - 4, name, tokens ? ".idx" : ".bin");
    return (tokens || ends_with(name, ".idx")) && find_entry(bucket, other);
}

/* Adds the objects of an input in a bucket, as list_input does. */
static bool list_bucket(PackFiles *files, const char *input, bool held_out, const char *output, bool *folder, Error *error) {
    (void)output; /* a local path */
    static const NotText of_shard = {"a file of a token shard", "give the bucket's folder of shards as data.train"};
    array_append(files->buckets, files->bucket_count, memory_allocate(sizeof **files->buckets));
    PackBucket *bucket = files->buckets[files->bucket_count - 1];
    size_t first = files->list.count;
    if (!pack_bucket_open(bucket, input, folder, error)) return false;
    for (size_t i = 0; i < bucket->listing.count; i++) {
        const char *name = bucket->listing.entries[i].name;
        char *path = memory_format("%s%s", bucket->root, name);
        bool hidden = *name == '.' || strstr(name, "/."), shard = is_shard_object(bucket, name);
        if (hidden || shard) pack_files_leave(files, path, hidden ? of_dot : of_shard, hidden);
        if (hidden || shard) free(path);
        else file_list_add(&files->list, path, FILE_REGULAR);
    }
    if (*folder) choose_split(files, bucket->root, first, held_out);
    return true;
}

/* Adds the files or objects of an input, and where their bytes are. */
static bool add_input(PackFiles *files, const char *input, bool held_out, const char *output, size_t *capacity, Error *error) {
    bool folder, remote = starts_with(input, S3_SCHEME);
    size_t first = files->list.count;
    if (!(remote ? list_bucket : list_input)(files, input, held_out, output, &folder, error)) return false;
    array_reserve(files->items, *capacity, files->list.count);
    for (size_t i = first; i < files->list.count; i++) {
        const char *path = files->list.entries[i].name;
        files->items[i] =
            (PackFile){!folder, remote ? place_in(files->buckets[files->bucket_count - 1], path) : (ObjectPlace){.path = path}};
    }
    return true;
}

static bool add_sizes(PackFiles *files, Error *error) {
    for (size_t i = 0; i < files->list.count; i++) {
        const ObjectPlace *place = &files->items[i].place;
        int64_t bytes = place->bytes;
        if (!place->s3 && strcmp(place->path, "-") && file_kind(place->path, &bytes) == FILE_ABSENT)
            return file_fail(error, "inspect", place->path) || error_recode(error, ERROR_DATA);
        files->bytes += bytes;
    }
    return true;
}

int64_t pack_files_bytes(const PackFiles *files, int64_t file) {
    const ObjectPlace *place = &files->items[file].place;
    int64_t bytes = place->bytes;
    bool unknown = !place->s3 && strcmp(place->path, "-") && file_kind(place->path, &bytes) == FILE_UNREADABLE;
    return unknown ? -1 : bytes;
}

bool pack_files_list(PackFiles *files, const char *const *inputs, bool held_out, const char *output, Error *error) {
    *files = (PackFiles){.taken = json_array(), .left_out = json_array()};
    bool good = true;
    size_t capacity = 0;
    for (; *inputs && good; inputs++) good = add_input(files, *inputs, held_out, output, &capacity, error);
    return good && add_sizes(files, error);
}

void pack_files_free(PackFiles *files) {
    file_list_free(&files->list);
    file_list_free(&files->followed);
    free(files->items);
    for (size_t i = 0; i < files->bucket_count; i++) {
        pack_bucket_close(files->buckets[i]);
        free(files->buckets[i]);
    }
    free(files->buckets);
    for (size_t i = 0; i < files->left_out_count; i++) {
        free((char *)files->left_outs[i].why.what);
        free((char *)files->left_outs[i].why.advice);
        free(files->left_outs[i].first);
    }
    free(files->left_outs);
    json_decref(files->taken);
    json_decref(files->left_out);
}

bool pack_list(const char *input, bool held_out, FileList *list, Error *error) {
    PackFiles files;
    bool listed = pack_files_list(&files, (const char *[]){input, NULL}, held_out, NULL, error);
    *list = listed ? files.list : (FileList){0};
    if (listed) files.list = (FileList){0};
    pack_files_free(&files);
    return listed;
}
