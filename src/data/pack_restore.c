/* Reads which documents an earlier packing dropped as repeats. After the packing that they repeat is
 * withdrawn, a new packing takes only these documents. A RestoreList has the hash of the file and
 * line of each, from the list of dropped documents (drop_log.c). The pipeline's threads read it. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/array.h"
#include "base/json_reader.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack_internal.h"

struct RestoreList {
    HashSet *documents;
    uint64_t *files; /* hashes of the names of this packing's files */
    int64_t count;
    uint64_t identity;
};

enum { RECORD_BYTES = 64 << 20, PART_BYTES = 1 << 20 };

static uint64_t hash_place(uint64_t file, int64_t line) {
    uint64_t place[] = {file, (uint64_t)line};
    return XXH3_64bits(place, sizeof place);
}

/* Finds file `name` of a packing, whose output may be a folder or the start of names. The caller frees. */
static char *find_file(const char *packing, const char *name) {
    static const char *const endings[] = {"", "-train"};
    for (int i = 0; i < 4; i++) {
        char *path = memory_format("%.*s%s%s%s", (int)path_length(packing), packing, endings[i / 2], i % 2 ? "." : "/", name);
        if (file_kind(path, NULL) != FILE_ABSENT) return path;
        free(path);
    }
    return NULL;
}

/* Checks that the earlier packing read the same inputs in the same way. */
static bool check_record(const char *packing, const json_t *inputs, const json_t *settings, Error *error) {
    static const char *const keys[] = {"separator", "field", "tokens", "format", "invalid", "special", "bos", "chat", "filter"};
    SCOPED_FREE char *path = find_file(packing, "pack.json");
    SCOPED_FREE char *text = path ? file_read(path, RECORD_BYTES, NULL, error) : NULL;
    json_auto_t *record = text ? json_loads(text, 0, NULL) : NULL;
    if (path && !text) return error_recode(error, ERROR_DATA);
    if (!json_is_true(json_object_get(record, "complete")))
        return error_set(error, ERROR_USAGE, "restore: %s is not a complete packing: give the OUTPUT of one", packing);
    if (!json_equal(json_object_get(record, "inputs"), inputs))
        return error_set(error, ERROR_USAGE,
            "restore: the inputs are not those of %s, or have changed: give the same names and files in the same order", packing);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const json_t *was = json_object_get(json_object_get(record, "settings"), keys[i]), *is = json_object_get(settings, keys[i]);
        if ((was || is) && !json_equal(was, is))
            return error_set(error, ERROR_USAGE, "restore: the setting %s is not that of %s: set it to the same value", keys[i], packing);
    }
    return true;
}

static bool take_line(RestoreList *list, const char *line, size_t size, const char *path, const char *folder, Error *error) {
    json_auto_t *entry = json_parse(line, size, 0, error);
    const char *file = json_string_value(json_object_get(entry, "file")), *rule = json_string_value(json_object_get(entry, "rule"));
    const json_t *number = json_object_get(entry, "line");
    bool seen;
    if (!file || !rule || !json_is_integer(number))
        return error_set(error, ERROR_DATA, "%s is not a list of dropped documents: pack again", path);
    if (!starts_with(rule, "dedup=")) return true;
    if (!list->documents) list->documents = hash_set_open(folder, false);
    if (!hash_set_add(list->documents, hash_place(XXH3_64bits(file, strlen(file)), json_integer_value(number)), 0, &seen, NULL, error))
        return false;
    list->count += !seen;
    return true;
}

/* Reads the lines of the list. */
static bool read_list(RestoreList *list, const char *path, const char *folder, Error *error) {
    Input *input = input_open(&(ObjectPlace){.path = path}, NULL, error);
    char *text = NULL;
    size_t size = 0, capacity = 0, count = PART_BYTES;
    bool good = input != NULL;
    while (good && count == PART_BYTES) {
        array_reserve(text, capacity, size + PART_BYTES);
        good = input_read(input, text + size, PART_BYTES, &count, error);
        list->identity = XXH3_64bits_withSeed(text + size, count, list->identity);
        size += count;
        const char *at = text, *end;
        while (good && (end = memchr(at, '\n', size - (size_t)(at - text)))) {
            good = take_line(list, at, (size_t)(end - at), path, folder, error);
            at = end + 1;
        }
        size -= (size_t)(at - text);
        memmove(text, at, size);
    }
    free(text);
    input_close(input);
    return good;
}

RestoreList *restore_open(
    const char *packing, const PackFiles *files, const json_t *inputs, const json_t *settings, const char *folder, Error *error) {
    SCOPED_FREE char *path = find_file(packing, PACK_DROPPED);
    RestoreList *list = memory_allocate(sizeof *list);
    list->files = memory_allocate((files->list.count + 1) * sizeof *list->files);
    for (size_t i = 0; i < files->list.count; i++) {
        const char *name = files->list.entries[i].name;
        size_t size;
        SCOPED_FREE char *written = utf8_replace(name, strlen(name), &size);
        list->files[i] = XXH3_64bits(written, size);
    }
    bool good = check_record(packing, inputs, settings, error);
    if (good && !path)
        good = error_set(error, ERROR_USAGE, "restore: %s has no list of dropped documents: it was packed without dedup=", packing);
    good = good && (read_list(list, path, folder, error) || error_recode(error, ERROR_DATA));
    if (good && !list->count)
        good = error_set(error, ERROR_USAGE, "restore: %s dropped no repeats, so there is nothing to restore", packing);
    if (good) return list;
    restore_free(list);
    return NULL;
}

bool restore_wants(const RestoreList *list, int64_t file, int64_t line) {
    uint64_t first;
    return hash_set_has(list->documents, hash_place(list->files[file], line), &first);
}

uint64_t restore_identity(const RestoreList *list) { return list->identity; }

void restore_free(RestoreList *list) {
    if (!list) return;
    hash_set_free(list->documents);
    free(list->files);
    free(list);
}
