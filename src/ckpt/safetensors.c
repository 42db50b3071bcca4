/* safetensors files: eight bytes of little-endian header length, a JSON header padded with spaces,
 * then the tensors without holes. Reading maps the file and checks the header at least as strictly
 * as the official library, so that an opened file needs no further checks. Writing lays the file
 * out and writes the caller's memory without a copy. A Safetensors owns its mapping, the parsed
 * header and the tensor array; names point into the header. Called by checkpoints and by the
 * readers and writers of model folders. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/bf16.h"
#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "ckpt/ckpt_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are stored little-endian, as they lie in memory");

enum {
    LENGTH_BYTES = 8,
    DATA_ALIGNMENT = 64,
    HEADER_MAX_BYTES = 100000000, /* the official library's limit */
    HEADER_MAX_MARKS = 3000000,   /* commas, colons and opening brackets (11 per tensor); more would take gigabytes to parse */
};
static const char METADATA_KEY[] = "__metadata__";

typedef struct TypeRow {
    const char *name;
    size_t bytes;
    uint64_t exponent; /* exponent bits, all set only in NaN and infinity; 0: an integer type */
} TypeRow;
/* By StoredType. */
static const TypeRow stored_types[] = {{"F32", 4, 0x7f800000}, {"BF16", 2, 0x7f80}, {"F16", 2, 0x7c00}, {"F64", 8, 0x7ff0000000000000},
    {"I32", 4, 0}, {"I64", 8, 0}, {"U8", 1, 0}, {"F8_E4M3", 1, 0x7f}};
enum { STORED_TYPES = sizeof stored_types / sizeof stored_types[0] };

size_t stored_type_bytes(StoredType type) { return stored_types[type].bytes; }

const char *stored_type_name(StoredType type) { return stored_types[type].name; }

bool stored_type_parse(const char *name, StoredType *type) {
    for (int i = 0; i < STORED_TYPES; i++)
        if (strcmp(name, stored_types[i].name) == 0) {
            *type = (StoredType)i;
            return true;
        }
    return false;
}

json_t *stored_shape_to_json(const int64_t *shape, int rank) {
    json_t *array = json_array();
    for (int i = 0; i < rank; i++) json_array_append_new(array, json_integer(shape[i]));
    return array;
}

bool stored_shape_parse(const json_t *json, int64_t shape[STORED_MAX_RANK], int *rank) {
    if (!json_is_array(json) || json_array_size(json) > STORED_MAX_RANK) return false;
    *rank = (int)json_array_size(json);
    for (int i = 0; i < *rank; i++) {
        const json_t *extent = json_array_get(json, (size_t)i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 0) return false;
        shape[i] = json_integer_value(extent);
    }
    return true;
}

bool stored_bytes(StoredType type, const int64_t *shape, int rank, int64_t *bytes) {
    *bytes = (int64_t)stored_type_bytes(type);
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(*bytes, shape[i], bytes)) return false;
    return true;
}

/* -- Values ------------------------------------------------------------------------------------------------------- */

/* The data may be unaligned. */
static bool is_finite_at(const StoredTensor *tensor, const TypeRow *type, int64_t at) {
    const char *from = (const char *)tensor->data + at * (int64_t)type->bytes;
    uint64_t bits = 0;
    switch (type->bytes) {
    case 1: memcpy(&bits, from, 1); break;
    case 2: memcpy(&bits, from, 2); break;
    case 4: memcpy(&bits, from, 4); break;
    case 8: memcpy(&bits, from, 8); break;
    }
    return (bits & type->exponent) != type->exponent;
}

bool stored_check_finite(const StoredTensor *tensor, Error *error) {
    const TypeRow *type = &stored_types[tensor->type];
    int64_t count = type->exponent != 0, first;
    for (int i = 0; i < tensor->rank; i++) count *= tensor->shape[i];
    first = count;
#pragma omp parallel for schedule(static) reduction(min : first)
    for (int64_t i = 0; i < count; i++)
        if (!is_finite_at(tensor, type, i)) first = int_min(first, i);
    return first == count || error_set(error, ERROR_NUMERICS, "tensor %s contains NaN or infinity, first at element %lld of %lld",
                                 tensor->name, (long long)first, (long long)count);
}

static uint16_t f16_element(const char *from, int64_t index) {
    uint16_t half;
    memcpy(&half, from + index * (int64_t)sizeof half, sizeof half);
    return half;
}

void stored_to_floats(const StoredTensor *tensor, int64_t first, int64_t count, float *values) {
    const size_t bytes = stored_type_bytes(tensor->type);
    const char *from = (const char *)tensor->data + first * (int64_t)bytes;
    assert(tensor->type <= STORED_F16);
    if (tensor->type == STORED_F32) memcpy(values, from, (size_t)count * bytes);
    else if (tensor->type == STORED_BF16)
        for (int64_t i = 0; i < count; i++) values[i] = bf16_to_float(f16_element(from, i));
    else
        for (int64_t i = 0; i < count; i++) values[i] = fp16_to_float(f16_element(from, i));
}

/* -- Writing ------------------------------------------------------------------------------------------------------ */

static bool metadata_check(const char *path, json_t *metadata, Error *error) {
    if (!json_is_object(metadata)) return error_set(error, ERROR_CHECKPOINT, "%s: %s must be an object of strings", path, METADATA_KEY);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) {
        if (!name_is_plain(key))
            return error_set(error, ERROR_CHECKPOINT, "%s: a key of %s contains a control character", path, METADATA_KEY);
        if (!json_is_string(value))
            return error_set(
                error, ERROR_CHECKPOINT, "%s: %s may hold only strings, but the value of \"%s\" is not a string", path, METADATA_KEY, key);
    }
    return true;
}

/* Adds one tensor to the header; `range` is relative to the start of the data. */
static bool header_add(json_t *header, const char *path, const StoredTensor *tensor, int64_t begin, StoredRange *range, Error *error) {
    int64_t bytes;
    if (tensor->rank < 0 || tensor->rank > STORED_MAX_RANK || !stored_bytes(tensor->type, tensor->shape, tensor->rank, &bytes) ||
        bytes < 0 || __builtin_add_overflow(begin, bytes, &range->end))
        return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s has an invalid shape", path, tensor->name);
    range->begin = begin;
    if (json_object_get(header, tensor->name) || strcmp(tensor->name, METADATA_KEY) == 0)
        return error_set(error, ERROR_CHECKPOINT, "%s: two tensors have the name %s", path, tensor->name);
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype", stored_type_name(tensor->type), "shape",
        stored_shape_to_json(tensor->shape, tensor->rank), "data_offsets", (json_int_t)range->begin, (json_int_t)range->end);
    if (json_object_set_new(header, tensor->name, entry) != 0)
        return error_set(error, ERROR_CHECKPOINT, "%s: a tensor's name is not UTF-8", path);
    return true;
}

/* Returns the JSON header of a file, for free(). `ranges` receives the place of each tensor,
 * relative to the start of the data. */
static char *header_format(
    const char *path, const StoredTensor *tensors, size_t count, json_t *metadata, StoredRange *ranges, Error *error) {
    json_auto_t *header = json_object();
    bool good = !metadata || metadata_check(path, metadata, error);
    if (metadata) json_object_set(header, METADATA_KEY, metadata);
    for (size_t i = 0; i < count && good; i++)
        good = header_add(header, path, &tensors[i], i > 0 ? ranges[i - 1].end : 0, &ranges[i], error);
    char *text = good ? json_dumps(header, JSON_COMPACT) : NULL;
    if (good && !text) error_set(error, ERROR_MEMORY, "%s: out of memory for the header", path);
    return text;
}

StoreSpan *safetensors_layout(
    const char *path, const StoredTensor *tensors, size_t count, json_t *metadata, StoredRange *ranges, Error *error) {
    SCOPED_FREE char *text = header_format(path, tensors, count, metadata, ranges + 1, error);
    if (!text) return NULL;
    const size_t length = strlen(text), total = (size_t)round_up((int64_t)(LENGTH_BYTES + length), DATA_ALIGNMENT);
    const uint64_t stored_length = total - LENGTH_BYTES;
    int64_t end = count > 0 ? ranges[count].end : 0;
    if (stored_length > HEADER_MAX_BYTES || __builtin_add_overflow(end, (int64_t)total, &end)) {
        error_set(
            error, ERROR_CHECKPOINT, "%s: the header needs %zu bytes; the limit is %d: write fewer tensors", path, total, HEADER_MAX_BYTES);
        return NULL;
    }
    StoreSpan *spans = memory_allocate((count + 1) * sizeof *spans + total);
    char *header = (char *)(spans + count + 1);
    memcpy(header, &stored_length, LENGTH_BYTES);
    memcpy(header + LENGTH_BYTES, text, length);
    memset(header + LENGTH_BYTES + length, ' ', total - LENGTH_BYTES - length);
    spans[0] = (StoreSpan){.data = header, .bytes = (int64_t)total};
    ranges[0] = (StoredRange){.end = (int64_t)total, .hash = XXH3_64bits(header, total)};
    for (size_t i = 0; i < count; i++) {
        StoredRange *range = &ranges[i + 1];
        range->begin += (int64_t)total;
        range->end += (int64_t)total;
        spans[i + 1] = (StoreSpan){.data = tensors[i].data, .bytes = range->end - range->begin};
    }
    return spans;
}

bool safetensors_write(const char *path, const StoredTensor *tensors, size_t count, json_t *metadata, Error *error) {
    SCOPED_FREE StoredRange *ranges = memory_allocate((count + 1) * sizeof *ranges);
    SCOPED_FREE StoreSpan *spans = safetensors_layout(path, tensors, count, metadata, ranges, error);
    return spans && file_write_spans(path, spans, count + 1, error);
}

/* -- Reading ------------------------------------------------------------------------------------------------------ */

/* Counts the commas, colons and opening brackets outside strings: one per JSON value, except the
 * first. */
static size_t count_marks(const char *text, size_t length) {
    size_t marks = 0;
    bool inside = false;
    for (size_t i = 0; i < length; i++) {
        if (inside && text[i] == '\\') i++;
        else if (text[i] == '"') inside = !inside;
        else marks += !inside && (text[i] == ',' || text[i] == ':' || text[i] == '[' || text[i] == '{');
    }
    return marks;
}

/* Parses the JSON; `data_begin` receives the offset of the tensors. */
static bool header_parse(Safetensors *file, const char *path, size_t *data_begin, Error *error) {
    uint64_t length;
    if (file->map.size < LENGTH_BYTES + 2)
        return error_set(error, ERROR_CHECKPOINT, "%s has %zu bytes, too few for a safetensors file", path, file->map.size);
    memcpy(&length, file->map.bytes, LENGTH_BYTES);
    if (length > HEADER_MAX_BYTES || length > file->map.size - LENGTH_BYTES)
        return error_set(error, ERROR_CHECKPOINT,
            "%s: the first eight bytes announce a header of %llu bytes, but the file has %zu bytes and the limit is %d; the file is "
            "truncated or not in safetensors format",
            path, (unsigned long long)length, file->map.size, HEADER_MAX_BYTES);
    const char *text = (const char *)file->map.bytes + LENGTH_BYTES;
    if (length == 0 || text[0] != '{') return error_set(error, ERROR_CHECKPOINT, "%s: the header does not start with '{'", path);
    if (count_marks(text, (size_t)length) > HEADER_MAX_MARKS)
        return error_set(error, ERROR_CHECKPOINT,
            "%s: the header of %llu bytes has more than %d commas, colons and brackets. The limit allows 270,000 tensors: split the file",
            path, (unsigned long long)length, HEADER_MAX_MARKS);
    json_error_t reason;
    file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &reason);
    if (!file->header)
        return error_set(
            error, ERROR_CHECKPOINT, "%s: the header is not valid JSON at byte %d: %s", path, reason.position, one_line(reason.text));
    *data_begin = LENGTH_BYTES + (size_t)length;
    file->metadata = json_object_get(file->header, METADATA_KEY);
    return !file->metadata || metadata_check(path, file->metadata, error);
}

/* Returns the bytes of a tensor whose header entry was checked. */
static int64_t stored_tensor_bytes(const StoredTensor *tensor) {
    int64_t bytes = 0;
    stored_bytes(tensor->type, tensor->shape, tensor->rank, &bytes);
    return bytes;
}

/* Checks one entry of the header against the `available` bytes of `data`. */
static bool tensor_parse(StoredTensor *tensor, const char *path, json_t *entry, const char *data, int64_t available, Error *error) {
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    json_int_t begin, end;
    int64_t bytes;
    if (!type || !stored_type_parse(type, &tensor->type))
        return error_set(error, ERROR_CHECKPOINT, "%s: tensor %s has dtype %s; supported are F32, BF16, F16, F64, I32, I64, U8 and F8_E4M3",
            path, tensor->name, type ? type : "(none)");
    if (!stored_shape_parse(json_object_get(entry, "shape"), tensor->shape, &tensor->rank))
        return error_set(error, ERROR_CHECKPOINT, "%s: the shape of tensor %s must have at most %d dimensions, none negative", path,
            tensor->name, STORED_MAX_RANK);
    if (json_unpack(entry, "{s:[I,I!]}", "data_offsets", &begin, &end) != 0)
        return error_set(error, ERROR_CHECKPOINT, "%s: data_offsets of tensor %s must be two integers", path, tensor->name);
    if (begin < 0 || begin > end || end > available)
        return error_set(error, ERROR_CHECKPOINT,
            "%s: tensor %s has data_offsets %lld to %lld, but the file has %lld bytes of data; it is truncated or damaged", path,
            tensor->name, begin, end, (long long)available);
    if (!stored_bytes(tensor->type, tensor->shape, tensor->rank, &bytes) || bytes != end - begin)
        return error_set(
            error, ERROR_CHECKPOINT, "%s: tensor %s has %lld bytes, which do not match its shape", path, tensor->name, end - begin);
    tensor->data = data + begin;
    return true;
}

/* Sorts by address, empty tensors first. */
static int compare_offsets(const void *left, const void *right) {
    const StoredTensor *a = left, *b = right;
    const char *begin = a->data, *other = b->data;
    int64_t bytes = stored_tensor_bytes(a), other_bytes = stored_tensor_bytes(b);
    return begin != other ? (begin > other) - (begin < other) : (bytes > other_bytes) - (bytes < other_bytes);
}

/* Tensors, sorted by address, must tile the data, because overlaps and holes can hide data. */
static bool tiles_check(const char *path, const StoredTensor *tensors, size_t count, const char *data, int64_t available, Error *error) {
    int64_t end = 0;
    for (size_t i = 0; i < count; end += stored_tensor_bytes(&tensors[i++])) {
        int64_t begin = (const char *)tensors[i].data - data;
        if (begin != end)
            return error_set(error, ERROR_CHECKPOINT,
                "%s: tensor %s starts at byte %lld of the data, but the previous tensor ends at %lld: the tensors %s; the file is damaged",
                path, tensors[i].name, (long long)begin, (long long)end, begin < end ? "overlap" : "leave a gap");
    }
    if (end != available)
        return error_set(
            error, ERROR_CHECKPOINT, "%s has %lld bytes of data after the last tensor; it is damaged", path, (long long)(available - end));
    return true;
}

static int compare_tensor_names(const void *left, const void *right) {
    return strcmp(((const StoredTensor *)left)->name, ((const StoredTensor *)right)->name);
}

static bool tensors_parse(Safetensors *file, const char *path, size_t data_begin, Error *error) {
    const char *data = (const char *)file->map.bytes + data_begin;
    int64_t available = (int64_t)(file->map.size - data_begin);
    size_t entries = json_object_size(file->header);
    file->tensors = memory_allocate((entries + 1) * sizeof *file->tensors);
    bool good = true;
    const char *name;
    json_t *entry;
    json_object_foreach(file->header, name, entry) {
        if (entry == file->metadata) continue;
        StoredTensor *tensor = &file->tensors[file->count];
        tensor->name = name;
        good = name_is_plain(name) ||
               error_set(error, ERROR_CHECKPOINT, "%s: the name of tensor %zu contains a control character", path, file->count + 1);
        good = good && tensor_parse(tensor, path, entry, data, available, error);
        if (!good) break;
        file->count++;
    }
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_offsets);
    good = good && tiles_check(path, file->tensors, file->count, data, available, error);
    qsort(file->tensors, file->count, sizeof *file->tensors, compare_tensor_names);
    return good;
}

bool safetensors_open(Safetensors *file, const char *path, Error *error) {
    *file = (Safetensors){0};
    size_t data_begin = 0;
    if (file_map(&file->map, path, error) && header_parse(file, path, &data_begin, error) && tensors_parse(file, path, data_begin, error))
        return true;
    safetensors_close(file);
    return false;
}

void safetensors_close(Safetensors *file) {
    free(file->tensors);
    json_decref(file->header);
    file_unmap(&file->map);
    *file = (Safetensors){0};
}

bool safetensors_is_file(const char *path) {
    Safetensors file = {0};
    Error ignored = {0};
    bool opened = safetensors_open(&file, path, &ignored);
    if (opened) safetensors_close(&file);
    return opened;
}

const StoredTensor *safetensors_find(const Safetensors *file, const char *name) {
    StoredTensor wanted = {.name = name};
    return file->count > 0 ? bsearch(&wanted, file->tensors, file->count, sizeof wanted, compare_tensor_names) : NULL;
}
