/* manifest.json: the files of a checkpoint, and the place of each interval of each tensor. It is
 * ordinary JSON whose last member, "manifest_xxh3", is the XXH3 of every byte before its sixteen
 * digits. With the checksums of the shards' headers and intervals inside, no bit of a checkpoint
 * can change unnoticed. If there are several ranks, each describes its shard in a file of the same
 * form, and rank 0 joins them. The checksums protect against accidents, not against attacks, so
 * every number is checked as well. A Manifest that was read owns its arrays and the parsed JSON
 * that its strings point into. Called by save.c and load.c. */
#include <inttypes.h>
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
/* Formats of the entries of "files" and "intervals" for jansson's pack and unpack. */
#define FILE_FORMAT "{s:s, s:I, s:I, s:s}"
#define INTERVAL_FORMAT "{s:s, s:s, s:o, s:I, s:I, s:I, s:I, s:I, s:s"
#define PACK_RUNS ", s:o*}"      /* contiguous intervals have no "runs" */
#define UNPACK_RUNS ", s?[III!]}"
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

/* -- Writing ------------------------------------------------------------------------------------------------------ */

static json_t *runs_to_json(const Slice *slice) {
    return slice->run ? json_pack("[I, I, I]", (json_int_t)slice->run, (json_int_t)slice->stride, (json_int_t)slice->skip) : NULL;
}

static json_t *manifest_to_json(const Manifest *manifest) {
    HashText hash;
    json_t *files = json_array(), *intervals = json_array();
    bool runs = false;
    for (size_t i = 0; i < manifest->file_count; i++) {
        const ManifestFile *file = &manifest->files[i];
        json_array_append_new(files, json_pack(FILE_FORMAT, "name", file->name, "bytes", (json_int_t)file->bytes, "header_bytes",
                                         (json_int_t)file->header.end, "header_xxh3", hash_format(file->header.hash, hash)));
    }
    for (size_t i = 0; i < manifest->interval_count; i++) {
        const Interval *interval = &manifest->intervals[i].interval;
        const StoredRange *range = &manifest->intervals[i].range;
        json_array_append_new(intervals,
            json_pack(INTERVAL_FORMAT PACK_RUNS, "tensor", interval->name, "dtype", stored_type_name(interval->type), "shape",
                stored_shape_to_json(interval->shape, interval->rank), "first", (json_int_t)interval->slice.first, "count",
                (json_int_t)interval->slice.count, "file", (json_int_t)manifest->intervals[i].file, "begin", (json_int_t)range->begin,
                "end", (json_int_t)range->end, "xxh3", hash_format(range->hash, hash), "runs", runs_to_json(&interval->slice)));
        runs = runs || interval->slice.run;
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
        return error_set(error, ERROR_CHECKPOINT, "%s would have %lld bytes; at most %d are accepted: save fewer tensors", path.text,
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

static bool file_parse(ManifestFile *file, json_t *json) {
    const char *hash;
    json_int_t bytes, header_bytes;
    if (json_unpack(json, FILE_FORMAT, "name", &file->name, "bytes", &bytes, "header_bytes", &header_bytes, "header_xxh3", &hash) != 0)
        return false;
    file->bytes = bytes;
    file->header.end = header_bytes;
    return !strchr(file->name, '/') && bytes >= 0 && in_range(header_bytes, 0, bytes) && hash_parse(hash, &file->header.hash);
}

static bool interval_parse(const Manifest *manifest, ManifestInterval *stored, json_t *json) {
    Interval *interval = &stored->interval;
    const char *type, *hash;
    json_t *shape;
    json_int_t first, count, file, begin, end, run = 0, stride = 0, skip = 0;
    int64_t tensor_bytes;
    if (json_unpack(json, INTERVAL_FORMAT UNPACK_RUNS, "tensor", &interval->name, "dtype", &type, "shape", &shape, "first", &first, "count",
            &count, "file", &file, "begin", &begin, "end", &end, "xxh3", &hash, "runs", &run, &stride, &skip) != 0 ||
        !stored_type_parse(type, &interval->type) || !stored_shape_parse(shape, interval->shape, &interval->rank) ||
        !stored_bytes(interval->type, interval->shape, interval->rank, &tensor_bytes) ||
        !in_range(file, 0, (int64_t)manifest->file_count - 1))
        return false;
    const ManifestFile *holder = &manifest->files[file];
    const int64_t element = (int64_t)stored_type_bytes(interval->type), elements = tensor_bytes / element;
    stored->file = (size_t)file;
    interval->slice = (Slice){.first = first, .count = count, .run = run, .stride = stride, .skip = skip};
    stored->range.begin = begin;
    stored->range.end = end;
    return slice_is_valid(&interval->slice, elements) && count <= elements && in_range(begin, holder->header.end, holder->bytes) &&
           in_range(end, begin, holder->bytes) && end - begin == count * element && hash_parse(hash, &stored->range.hash);
}

/* Fills `manifest` from its JSON; returns the fault, or NULL. */
static const char *manifest_parse(Manifest *manifest) {
    const char *format = json_string_value(json_object_get(manifest->json, "format"));
    if (!format || (strcmp(format, FORMAT) != 0 && strcmp(format, FORMAT_OF_RUNS) != 0))
        return "its format is neither \"smelt checkpoint 1\" nor \"smelt checkpoint 2\", which this build reads: use the build that wrote "
               "it";
    json_t *files, *intervals;
    json_int_t step;
    if (json_unpack(manifest->json, "{s:I, s:o, s:o}", "step", &step, "files", &files, "intervals", &intervals) != 0 || step < 0 ||
        !json_is_array(files) || !json_is_array(intervals))
        return "step, files or intervals are missing";
    manifest->step = step;
    manifest->metadata = json_object_get(manifest->json, "metadata");
    if (json_is_null(manifest->metadata)) manifest->metadata = NULL;

    manifest->files = memory_allocate((json_array_size(files) + 1) * sizeof *manifest->files);
    for (size_t *i = &manifest->file_count; *i < json_array_size(files); ++*i)
        if (!file_parse(&manifest->files[*i], json_array_get(files, *i))) return "a file has an impossible entry";
    manifest->intervals = memory_allocate((json_array_size(intervals) + 1) * sizeof *manifest->intervals);
    for (size_t *i = &manifest->interval_count; *i < json_array_size(intervals); ++*i)
        if (!interval_parse(manifest, &manifest->intervals[*i], json_array_get(intervals, *i)))
            return "an interval has an impossible entry";
    return NULL;
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
        const char *fault = manifest->json ? manifest_parse(manifest) : one_line(reason.text);
        if (fault) good = error_set(error, ERROR_CHECKPOINT, "%s is not a valid manifest: %s", path.text, fault);
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
