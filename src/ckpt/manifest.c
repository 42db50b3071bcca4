/* manifest.json: the files of a checkpoint, and the place of each interval of each tensor. It is
 * ordinary JSON whose last member, "manifest_xxh3", is the XXH3 of every byte before its sixteen
 * digits. With the checksums of the shards' headers and intervals inside, no bit of a checkpoint
 * can change unnoticed. If there are several ranks, each describes its shard in a file of the same
 * form, and rank 0 joins them. The checksums protect against accidents, not against attacks, so
 * every number is checked as well. A Manifest that was read owns its arrays and the parsed JSON
 * that its strings point into. Called by save.c and load.c. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/ckpt_internal.h"

/* The second format adds intervals that are runs, which readers of the first would misplace. */
static const char FORMAT[] = "smelt checkpoint 1", FORMAT_OF_RUNS[] = "smelt checkpoint 2";
static const char HASH_LABEL[] = ",\n\"manifest_xxh3\": \"";
static const char TAIL[] = "\"\n}\n";
enum { HASH_DIGITS = 16, MANIFEST_MAX_BYTES = 1 << 30 };

typedef char HashText[HASH_DIGITS + 1];

static const char *hash_format(uint64_t hash, HashText text) {
    snprintf(text, sizeof(HashText), "%016" PRIx64, hash);
    return text;
}

static bool hash_parse(const char *text, uint64_t *hash) {
    if (strlen(text) != HASH_DIGITS || strspn(text, "0123456789abcdef") != HASH_DIGITS) return false;
    *hash = strtoull(text, NULL, 16);
    return true;
}

/* -- Fields ------------------------------------------------------------------------------------------------------- */

typedef enum FieldKind {
    FIELD_TEXT,   /* const char *; read, it points into the JSON */
    FIELD_NUMBER, /* int64_t, not negative */
    FIELD_HASH,   /* uint64_t */
    FIELD_TYPE,   /* StoredType */
    FIELD_SHAPE,  /* `shape` and `rank` of the Interval at the offset */
    FIELD_RUNS,   /* of the Slice at the offset; a contiguous one has no such field */
} FieldKind;

/* A field of an entry: its name in the JSON, and the place of its value in the entry's struct. To
 * add a field, add it to the struct and add a row. */
typedef struct ManifestField {
    const char *name;
    FieldKind kind;
    size_t offset;
} ManifestField;

#define FILE_FIELD(name, kind, member) {name, kind, offsetof(ManifestFile, member)}
static const ManifestField file_fields[] = {
    FILE_FIELD("name", FIELD_TEXT, name),
    FILE_FIELD("bytes", FIELD_NUMBER, bytes),
    FILE_FIELD("header_bytes", FIELD_NUMBER, header.end),
    FILE_FIELD("header_xxh3", FIELD_HASH, header.hash),
    {0},
};

#define INTERVAL_FIELD(name, kind, member) {name, kind, offsetof(ManifestInterval, member)}
static const ManifestField interval_fields[] = {
    INTERVAL_FIELD("tensor", FIELD_TEXT, interval.name),
    INTERVAL_FIELD("dtype", FIELD_TYPE, interval.type),
    INTERVAL_FIELD("shape", FIELD_SHAPE, interval),
    INTERVAL_FIELD("first", FIELD_NUMBER, interval.slice.first),
    INTERVAL_FIELD("count", FIELD_NUMBER, interval.slice.count),
    INTERVAL_FIELD("file", FIELD_NUMBER, file),
    INTERVAL_FIELD("begin", FIELD_NUMBER, range.begin),
    INTERVAL_FIELD("end", FIELD_NUMBER, range.end),
    INTERVAL_FIELD("xxh3", FIELD_HASH, range.hash),
    INTERVAL_FIELD("runs", FIELD_RUNS, interval.slice),
    {0},
};

static json_t *field_to_json(FieldKind kind, const void *value) {
    HashText hash;
    const Interval *interval = value;
    const Slice *slice = value;
    switch (kind) {
    case FIELD_TEXT: return json_string(*(const char *const *)value);
    case FIELD_NUMBER: return json_integer(*(const int64_t *)value);
    case FIELD_HASH: return json_string(hash_format(*(const uint64_t *)value, hash));
    case FIELD_TYPE: return json_string(stored_type_name(*(const StoredType *)value));
    case FIELD_SHAPE: return stored_shape_to_json(interval->shape, interval->rank);
    case FIELD_RUNS:
        return slice->run ? json_pack("[I, I, I]", (json_int_t)slice->run, (json_int_t)slice->stride, (json_int_t)slice->skip) : NULL;
    }
    return NULL;
}

static bool runs_parse(json_t *json, Slice *slice) {
    json_int_t run, stride, skip;
    if (!json) return true;
    if (json_unpack(json, "[III!]", &run, &stride, &skip) != 0) return false;
    slice->run = run;
    slice->stride = stride;
    slice->skip = skip;
    return true;
}

/* `json` is NULL if the entry lacks the field. */
static bool field_parse(FieldKind kind, json_t *json, void *value) {
    const char *text = json_string_value(json);
    Interval *interval = value;
    switch (kind) {
    case FIELD_TEXT: return (*(const char **)value = text) != NULL;
    case FIELD_NUMBER: return json_is_integer(json) && (*(int64_t *)value = json_integer_value(json)) >= 0;
    case FIELD_HASH: return text && hash_parse(text, value);
    case FIELD_TYPE: return text && stored_type_parse(text, value);
    case FIELD_SHAPE: return stored_shape_parse(json, interval->shape, &interval->rank);
    case FIELD_RUNS: return runs_parse(json, value);
    }
    return false;
}

static json_t *entry_to_json(const ManifestField *fields, const void *entry) {
    json_t *json = json_object();
    for (; fields->name; fields++) {
        json_t *value = field_to_json(fields->kind, (const char *)entry + fields->offset);
        if (value) json_object_set_new(json, fields->name, value);
    }
    return json;
}

/* Returns the name of the first field that is missing or impossible; NULL: none. */
static const char *entry_parse(const ManifestField *fields, json_t *json, void *entry) {
    while (fields->name && field_parse(fields->kind, json_object_get(json, fields->name), (char *)entry + fields->offset)) fields++;
    return fields->name;
}

/* -- Writing ------------------------------------------------------------------------------------------------------ */

static json_t *manifest_to_json(const Manifest *manifest) {
    json_t *files = json_array(), *intervals = json_array();
    bool runs = false;
    for (size_t i = 0; i < manifest->file_count; i++) json_array_append_new(files, entry_to_json(file_fields, &manifest->files[i]));
    for (size_t i = 0; i < manifest->interval_count; i++) {
        json_array_append_new(intervals, entry_to_json(interval_fields, &manifest->intervals[i]));
        runs = runs || manifest->intervals[i].interval.slice.run;
    }
    return json_pack("{s:s, s:I, s:O?, s:o, s:o}", "format", runs ? FORMAT_OF_RUNS : FORMAT, "step", (json_int_t)manifest->step, "metadata",
        manifest->metadata, "files", files, "intervals", intervals);
}

bool manifest_write(const Manifest *manifest, Store *store, const char *name, int64_t *bytes, Error *error) {
    StorePath path = store_path(store, name);
    json_auto_t *json = manifest_to_json(manifest);
    SCOPED_FREE char *body = json ? json_dumps(json, JSON_INDENT(1)) : NULL;
    if (!body) return error_set(error, ERROR_CHECKPOINT, "%s: the manifest cannot be expressed as JSON", path.text);
    body[strlen(body) - 1] = '\0'; /* the closing brace; TAIL adds it again */

    HashText hash;
    SCOPED_FREE char *hashed = memory_format("%s%s", body, HASH_LABEL);
    SCOPED_FREE char *text = memory_format("%s%s%s", hashed, hash_format(XXH3_64bits(hashed, strlen(hashed)), hash), TAIL);
    *bytes = (int64_t)strlen(text);
    if (*bytes > MANIFEST_MAX_BYTES)
        return error_set(error, ERROR_CHECKPOINT, "%s would have %lld bytes; the limit is %d: save fewer tensors", path.text,
            (long long)*bytes, MANIFEST_MAX_BYTES);
    return store_put(store, name, &(StoreSpan){.data = text, .bytes = *bytes}, 1, error);
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

static bool in_range(int64_t value, int64_t minimum, int64_t maximum) { return value >= minimum && value <= maximum; }

/* Return the name of the first field with an impossible value; NULL: none. */
static const char *file_parse(ManifestFile *file, json_t *json) {
    const char *bad = entry_parse(file_fields, json, file);
    if (bad) return bad;
    if (strchr(file->name, '/')) return "name";
    return file->header.end <= file->bytes ? NULL : "header_bytes";
}

static const char *interval_parse(const Manifest *manifest, ManifestInterval *stored, json_t *json) {
    const char *bad = entry_parse(interval_fields, json, stored);
    if (bad) return bad;
    const Interval *interval = &stored->interval;
    const Slice *slice = &interval->slice;
    const StoredRange *range = &stored->range;
    int64_t bytes, element = (int64_t)stored_type_bytes(interval->type);
    if (!stored_bytes(interval->type, interval->shape, interval->rank, &bytes)) return "shape";
    if (!slice_is_valid(slice, bytes / element) || slice->count > bytes / element) return "count";
    if (!in_range(stored->file, 0, (int64_t)manifest->file_count - 1)) return "file";
    const ManifestFile *file = &manifest->files[stored->file];
    if (!in_range(range->begin, file->header.end, file->bytes)) return "begin";
    return in_range(range->end, range->begin, file->bytes) && range->end - range->begin == slice->count * element ? NULL : "end";
}

/* Fills `manifest` from its JSON. */
static bool manifest_parse(Manifest *manifest, Error *error) {
    const char *format = json_string_value(json_object_get(manifest->json, "format")), *bad;
    if (!format || (strcmp(format, FORMAT) != 0 && strcmp(format, FORMAT_OF_RUNS) != 0))
        return error_set(error, ERROR_CHECKPOINT,
            "its format is neither \"smelt checkpoint 1\" nor \"smelt checkpoint 2\"; use the build that wrote it");
    json_t *files, *intervals;
    json_int_t step;
    if (json_unpack(manifest->json, "{s:I, s:o, s:o}", "step", &step, "files", &files, "intervals", &intervals) != 0 || step < 0 ||
        !json_is_array(files) || !json_is_array(intervals))
        return error_set(error, ERROR_CHECKPOINT, "step, files or intervals are missing");
    manifest->step = step;
    manifest->metadata = json_object_get(manifest->json, "metadata");
    if (json_is_null(manifest->metadata)) manifest->metadata = NULL;

    manifest->files = memory_allocate((json_array_size(files) + 1) * sizeof *manifest->files);
    for (size_t *i = &manifest->file_count; *i < json_array_size(files); ++*i)
        if ((bad = file_parse(&manifest->files[*i], json_array_get(files, *i))))
            return error_set(error, ERROR_CHECKPOINT, "%s of file %zu is missing or impossible", bad, *i);
    manifest->intervals = memory_allocate((json_array_size(intervals) + 1) * sizeof *manifest->intervals);
    for (size_t *i = &manifest->interval_count; *i < json_array_size(intervals); ++*i)
        if ((bad = interval_parse(manifest, &manifest->intervals[*i], json_array_get(intervals, *i))))
            return error_set(error, ERROR_CHECKPOINT, "%s of interval %zu is missing or impossible", bad, *i);
    return true;
}

bool manifest_read(Manifest *manifest, Store *store, const char *name, Error *error) {
    *manifest = (Manifest){0};
    StorePath path = store_path(store, name);
    int64_t length;
    SCOPED_FREE char *text = store_get(store, name, MANIFEST_MAX_BYTES, &length, error);
    bool good = text != NULL;
    if (good && !checksum_check(text, length))
        good = error_set(error, ERROR_CHECKPOINT, "%s is damaged: its checksum does not match", path.text) ||
               error_find(error, FINDING_DAMAGED);
    if (good) {
        json_error_t reason;
        manifest->json = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &reason);
        good = manifest->json ? manifest_parse(manifest, error) : error_set(error, ERROR_CHECKPOINT, "%s", one_line(reason.text));
        if (!good) error_context(error, "%s is not a valid manifest", path.text);
    }
    if (!good) manifest_free(manifest);
    return good;
}

void manifest_free(Manifest *manifest) {
    free(manifest->files);
    free(manifest->intervals);
    json_decref(manifest->json);
    *manifest = (Manifest){0};
}
