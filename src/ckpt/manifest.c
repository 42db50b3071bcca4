/* manifest.json: which files make up a checkpoint and which interval of which tensor lies where. It is ordinary JSON
 * whose last member, "manifest_xxh3", is the XXH3 of every byte before its own sixteen digits; together with the
 * checksums of the shards' headers and intervals inside, no bit of a checkpoint can change unnoticed. Each of several
 * ranks describes its own part in a file of the same form, and rank 0 joins them. The checksums guard
 * against accidents, not against malice, so every number is checked as well. A Manifest that was read owns its arrays
 * and the parsed JSON that its strings point into. Called by those that save and load. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "ckpt/ckpt_internal.h"

static const char FORMAT[] = "smelt checkpoint 1";
static const char HASH_LABEL[] = ",\n\"manifest_xxh3\": \"";
static const char TAIL[] = "\"\n}\n";
enum { HASH_DIGITS = 16, MANIFEST_MAX_BYTES = 1 << 30 };

typedef char HashText[HASH_DIGITS + 1];

static const char *hash_format(uint64_t hash, HashText text) {
    snprintf(text, sizeof(HashText), "%016" PRIx64, hash);
    return text;
}

static bool hash_parse(const json_t *json, uint64_t *hash) {
    const char *text = json_string_value(json);
    if (!text || strlen(text) != HASH_DIGITS || strspn(text, "0123456789abcdef") != HASH_DIGITS) return false;
    *hash = strtoull(text, NULL, 16);
    return true;
}

/* -- Writing ------------------------------------------------------------------------------------------------------ */

static json_t *manifest_to_json(const Manifest *manifest) {
    HashText hash;
    json_t *files = json_array(), *intervals = json_array();
    for (size_t i = 0; i < manifest->file_count; i++) {
        const ManifestFile *file = &manifest->files[i];
        json_array_append_new(files, json_pack("{s:s, s:I, s:I, s:s}", "name", file->name, "bytes", (json_int_t)file->bytes, "header_bytes",
                                         (json_int_t)file->header.end, "header_xxh3", hash_format(file->header.hash, hash)));
    }
    for (size_t i = 0; i < manifest->interval_count; i++) {
        const Interval *interval = &manifest->intervals[i].interval;
        const StoredRange *range = &manifest->intervals[i].range;
        json_array_append_new(intervals,
            json_pack("{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:s}", "tensor", interval->name, "dtype", stored_type_name(interval->type),
                "shape", stored_shape_to_json(interval->shape, interval->rank), "first", (json_int_t)interval->first, "count",
                (json_int_t)interval->count, "file", (json_int_t)manifest->intervals[i].file, "begin", (json_int_t)range->begin, "end",
                (json_int_t)range->end, "xxh3", hash_format(range->hash, hash)));
    }
    return json_pack("{s:s, s:I, s:O?, s:o, s:o}", "format", FORMAT, "step", (json_int_t)manifest->step, "metadata", manifest->metadata,
        "files", files, "intervals", intervals);
}

bool manifest_write(const Manifest *manifest, Store *store, const char *name, int64_t *bytes, Error *error) {
    char *path = store_path(store, name);
    json_t *json = manifest_to_json(manifest);
    char *body = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    json_decref(json);
    if (!body) {
        error_set(error, ERROR_CHECKPOINT, "%s: the manifest cannot be expressed as JSON", path);
        free(path);
        return false;
    }
    body[strlen(body) - 1] = '\0'; /* the closing brace, which comes back with TAIL */

    HashText hash;
    char *hashed = memory_format("%s%s", body, HASH_LABEL);
    char *text = memory_format("%s%s%s", hashed, hash_format(XXH3_64bits(hashed, strlen(hashed)), hash), TAIL);
    *bytes = (int64_t)strlen(text);
    bool good;
    if (*bytes > MANIFEST_MAX_BYTES)
        good = error_set(error, ERROR_CHECKPOINT, "%s would have %lld bytes; at most %d are accepted: save fewer tensors", path,
            (long long)*bytes, MANIFEST_MAX_BYTES);
    else good = store_put(store, name, &(StoreSpan){.data = text, .bytes = *bytes}, 1, error);
    free(text);
    free(hashed);
    free(body);
    free(path);
    return good;
}

/* -- Reading ------------------------------------------------------------------------------------------------------ */

static bool checksum_check(const char *text, int64_t length) {
    const int64_t label = sizeof HASH_LABEL - 1, tail = sizeof TAIL - 1, hashed = length - tail - HASH_DIGITS;
    if (hashed < label || memcmp(text + hashed - label, HASH_LABEL, (size_t)label) != 0 ||
        memcmp(text + length - tail, TAIL, (size_t)tail) != 0)
        return false;
    HashText hash;
    hash_format(XXH3_64bits(text, (size_t)hashed), hash);
    return memcmp(text + hashed, hash, HASH_DIGITS) == 0;
}

static bool integer_parse(const json_t *object, const char *key, int64_t minimum, int64_t maximum, int64_t *value) {
    const json_t *json = json_object_get(object, key);
    *value = json_integer_value(json);
    return json_is_integer(json) && *value >= minimum && *value <= maximum;
}

static bool file_parse(ManifestFile *file, const json_t *json) {
    file->name = json_string_value(json_object_get(json, "name"));
    return file->name && !strchr(file->name, '/') && integer_parse(json, "bytes", 0, INT64_MAX, &file->bytes) &&
           integer_parse(json, "header_bytes", 0, file->bytes, &file->header.end) &&
           hash_parse(json_object_get(json, "header_xxh3"), &file->header.hash);
}

static bool interval_parse(const Manifest *manifest, ManifestInterval *stored, const json_t *json) {
    Interval *interval = &stored->interval;
    interval->name = json_string_value(json_object_get(json, "tensor"));
    const char *type = json_string_value(json_object_get(json, "dtype"));
    int64_t tensor_bytes, file;
    if (!interval->name || !type || !stored_type_parse(type, &interval->type) ||
        !stored_shape_parse(json_object_get(json, "shape"), interval->shape, &interval->rank) ||
        !stored_bytes(interval->type, interval->shape, interval->rank, &tensor_bytes) ||
        !integer_parse(json, "file", 0, (int64_t)manifest->file_count - 1, &file))
        return false;
    stored->file = (size_t)file;
    const ManifestFile *holder = &manifest->files[stored->file];
    int64_t element = (int64_t)stored_type_bytes(interval->type), elements = tensor_bytes / element;
    return integer_parse(json, "first", 0, elements, &interval->first) &&
           integer_parse(json, "count", 0, elements - interval->first, &interval->count) &&
           integer_parse(json, "begin", holder->header.end, holder->bytes, &stored->range.begin) &&
           integer_parse(json, "end", stored->range.begin, holder->bytes, &stored->range.end) &&
           stored->range.end - stored->range.begin == interval->count * element &&
           hash_parse(json_object_get(json, "xxh3"), &stored->range.hash);
}

/* Fills `manifest` from its JSON; returns what is wrong, or NULL. */
static const char *manifest_parse(Manifest *manifest) {
    const char *format = json_string_value(json_object_get(manifest->json, "format"));
    if (!format || strcmp(format, FORMAT) != 0) return "it is of another format version";
    const json_t *files = json_object_get(manifest->json, "files");
    const json_t *intervals = json_object_get(manifest->json, "intervals");
    manifest->metadata = json_object_get(manifest->json, "metadata");
    if (json_is_null(manifest->metadata)) manifest->metadata = NULL;
    if (!integer_parse(manifest->json, "step", 0, INT64_MAX, &manifest->step) || !json_is_array(files) || !json_is_array(intervals))
        return "step, files or intervals are missing";

    manifest->files = memory_allocate((json_array_size(files) + 1) * sizeof *manifest->files);
    for (; manifest->file_count < json_array_size(files); manifest->file_count++)
        if (!file_parse(&manifest->files[manifest->file_count], json_array_get(files, manifest->file_count)))
            return "a file has an impossible entry";
    manifest->intervals = memory_allocate((json_array_size(intervals) + 1) * sizeof *manifest->intervals);
    for (; manifest->interval_count < json_array_size(intervals); manifest->interval_count++)
        if (!interval_parse(manifest, &manifest->intervals[manifest->interval_count], json_array_get(intervals, manifest->interval_count)))
            return "an interval has an impossible entry";
    return NULL;
}

bool manifest_read(Manifest *manifest, Store *store, const char *name, Error *error) {
    *manifest = (Manifest){0};
    char *path = store_path(store, name);
    int64_t length;
    char *text = store_get(store, name, MANIFEST_MAX_BYTES, &length, error);
    bool good = text != NULL;
    if (good && !checksum_check(text, length))
        good = error_set(error, ERROR_CHECKPOINT, "%s is damaged: its checksum does not match", path);
    if (good) {
        json_error_t reason;
        manifest->json = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &reason);
        const char *fault = manifest->json ? manifest_parse(manifest) : reason.text;
        if (fault) good = error_set(error, ERROR_CHECKPOINT, "%s is not a valid manifest: %s", path, fault);
    }
    free(text);
    free(path);
    if (!good) manifest_free(manifest);
    return good;
}

void manifest_free(Manifest *manifest) {
    free(manifest->files);
    free(manifest->intervals);
    json_decref(manifest->json);
    *manifest = (Manifest){0};
}
