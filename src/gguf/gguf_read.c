/* Reads GGUF files, which are not trusted. A cursor takes bytes only after it has compared their
 * number with the rest of the file, and no number in the file determines an allocation before that
 * many bytes were found. The file stays mapped; values and tensors point into it. Names are copied,
 * because they have no final NUL in the file. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/strings.h"
#include "gguf/gguf.h"

enum { NAME_LIMIT = 256, DEFAULT_ALIGNMENT = 32 };
static const char magic[] = {'G', 'G', 'U', 'F'};

/* By GgufKind: bytes of a value; 0 if they depend on the value. */
static const size_t kind_bytes[GGUF_KINDS] = {
    [GGUF_U8] = 1,
    [GGUF_I8] = 1,
    [GGUF_U16] = 2,
    [GGUF_I16] = 2,
    [GGUF_U32] = 4,
    [GGUF_I32] = 4,
    [GGUF_F32] = 4,
    [GGUF_BOOL] = 1,
    [GGUF_U64] = 8,
    [GGUF_I64] = 8,
    [GGUF_F64] = 8,
};

bool gguf_is_file(const char *path) { return file_begins(path, magic, sizeof magic); }

/* -- Bytes --------------------------------------------------------------------------------------------------------- */

typedef struct GgufCursor {
    const unsigned char *at;
    size_t left;
    Error *error;
} GgufCursor;

static bool fail_short(GgufCursor *cursor) {
    return error_set(cursor->error, ERROR_CHECKPOINT, "the file ends too early: it is truncated or damaged");
}

/* Returns the next `bytes` and advances past them; NULL with an error if the file has fewer. */
static const unsigned char *take_span(GgufCursor *cursor, uint64_t bytes) {
    const unsigned char *at = cursor->at;
    if (bytes > cursor->left) return fail_short(cursor), NULL;
    cursor->at += bytes;
    cursor->left -= bytes;
    return at;
}

static bool take_number(GgufCursor *cursor, void *number, size_t bytes) {
    const unsigned char *at = take_span(cursor, bytes);
    if (at) memcpy(number, at, bytes);
    return at != NULL;
}

static bool take_gguf_text(GgufCursor *cursor, GgufText *text) {
    uint64_t size;
    const unsigned char *at = take_number(cursor, &size, sizeof size) ? take_span(cursor, size) : NULL;
    if (at) *text = (GgufText){(const char *)at, size};
    return at != NULL;
}

/* Returns a copy of a key or of the name of a tensor; NULL with an error. */
static char *take_tensor_name(GgufCursor *cursor, const char *what) {
    GgufText text;
    if (!take_gguf_text(cursor, &text)) return NULL;
    bool plain = text.size > 0 && text.size <= NAME_LIMIT;
    for (size_t i = 0; i < text.size && plain; i++) plain = (unsigned char)text.bytes[i] >= 0x20 && text.bytes[i] != 0x7f;
    if (plain) return memory_format("%.*s", (int)text.size, text.bytes);
    error_set(cursor->error, ERROR_CHECKPOINT, "%s is empty, contains a control character, or is longer than %d bytes", what, NAME_LIMIT);
    return NULL;
}

/* -- Values -------------------------------------------------------------------------------------------------------- */

/* Skips `count` items of a kind. */
static bool skip_items(GgufCursor *cursor, GgufKind kind, uint64_t count) {
    GgufText text;
    uint64_t bytes;
    if (kind == GGUF_TEXT) {
        while (count > 0 && take_gguf_text(cursor, &text)) count--;
        return count == 0;
    }
    if (__builtin_mul_overflow(count, kind_bytes[kind], &bytes)) return fail_short(cursor);
    return take_span(cursor, bytes) != NULL;
}

static bool take_kind(GgufCursor *cursor, GgufKind *kind) {
    uint32_t number;
    if (!take_number(cursor, &number, sizeof number)) return false;
    *kind = number < GGUF_KINDS ? (GgufKind)number : GGUF_KINDS;
    return number < GGUF_KINDS ||
           error_set(cursor->error, ERROR_CHECKPOINT, "the file has a value of type %u, which GGUF does not define", number);
}

static bool take_value(GgufCursor *cursor, GgufValue *value) {
    value->count = 1;
    if (!take_kind(cursor, &value->kind)) return false;
    if (value->kind == GGUF_ARRAY) {
        value->array = true;
        if (!take_kind(cursor, &value->kind) || !take_number(cursor, &value->count, sizeof value->count)) return false;
        if (value->kind == GGUF_ARRAY)
            return error_set(cursor->error, ERROR_CHECKPOINT, "the file has an array of arrays, which smelt does not read");
    }
    value->data = cursor->at;
    bool good = skip_items(cursor, value->kind, value->count);
    value->end = cursor->at;
    return good;
}

static int value_compare(const void *left, const void *right) {
    return strcmp(((const GgufValue *)left)->key, ((const GgufValue *)right)->key);
}

static bool take_array_values(Gguf *file, GgufCursor *cursor, uint64_t count) {
    while (file->value_count < count) {
        GgufValue value = {.key = take_tensor_name(cursor, "a key")};
        if (!value.key) return false;
        array_append(file->values, file->value_count, value);
        if (!take_value(cursor, &file->values[file->value_count - 1])) return error_context(cursor->error, "key %s", value.key);
    }
    if (count) qsort(file->values, count, sizeof *file->values, value_compare);
    for (size_t i = 1; i < count; i++)
        if (!value_compare(&file->values[i - 1], &file->values[i]))
            return error_set(cursor->error, ERROR_CHECKPOINT, "key %s occurs twice", file->values[i].key);
    return true;
}

const GgufValue *gguf_find(const Gguf *file, const char *key) {
    GgufValue wanted = {.key = (char *)key};
    return file->value_count ? bsearch(&wanted, file->values, file->value_count, sizeof wanted, value_compare) : NULL;
}

/* Reads the signed or unsigned integer at `data`; returns false if it exceeds int64_t, or the kind
 * is not an integer. */
static bool integer_at(GgufKind kind, const unsigned char *data, int64_t *integer) {
    uint64_t bits = 0;
    size_t bytes = kind_bytes[kind];
    memcpy(&bits, data, bytes);
    int unused = 64 - 8 * (int)bytes;
    switch (kind) {
    case GGUF_I8:
    case GGUF_I16:
    case GGUF_I32:
    case GGUF_I64: *integer = (int64_t)(bits << unused) >> unused; return true;
    case GGUF_U8:
    case GGUF_U16:
    case GGUF_U32:
    case GGUF_U64: *integer = (int64_t)bits; return bits <= INT64_MAX;
    default: return false;
    }
}

bool gguf_integer(const GgufValue *value, int64_t *integer) {
    return value && !value->array && value->kind != GGUF_TEXT && integer_at(value->kind, value->data, integer);
}

bool gguf_item(const GgufValue *value, uint64_t index, double *number) {
    int64_t integer;
    float single;
    if (!value || value->kind == GGUF_TEXT || index >= value->count) return false;
    const unsigned char *data = value->data + index * kind_bytes[value->kind];
    if (value->kind == GGUF_F32) *number = (memcpy(&single, data, sizeof single), single);
    else if (value->kind == GGUF_F64) memcpy(number, data, sizeof *number);
    else if (integer_at(value->kind, data, &integer)) *number = (double)integer;
    else return false;
    return true;
}

bool gguf_real(const GgufValue *value, double *real) { return value && !value->array && gguf_item(value, 0, real); }

bool gguf_boolean(const GgufValue *value, bool *boolean) {
    bool good = value && !value->array && value->kind == GGUF_BOOL;
    if (good) *boolean = *value->data != 0;
    return good;
}

static bool text_at(const unsigned char *data, GgufText *text) {
    uint64_t size;
    memcpy(&size, data, sizeof size);
    *text = (GgufText){(const char *)data + sizeof size, size};
    return true;
}

bool gguf_text(const GgufValue *value, GgufText *text) {
    return value && !value->array && value->kind == GGUF_TEXT && text_at(value->data, text);
}

bool gguf_next_text(const GgufValue *value, size_t *at, GgufText *text) {
    const unsigned char *data = value->data + *at;
    if (data == value->end) return false;
    text_at(data, text);
    *at += sizeof(uint64_t) + text->size;
    return true;
}

/* -- Tensors ------------------------------------------------------------------------------------------------------- */

static int tensor_compare(const void *left, const void *right) {
    return strcmp(((const GgufTensor *)left)->name, ((const GgufTensor *)right)->name);
}

static int place_compare(const void *left, const void *right) {
    const GgufTensor *a = left, *b = right;
    return a->data != b->data ? (a->data > b->data) - (a->data < b->data) : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* The file has the row length first. */
static bool take_shape(GgufCursor *cursor, GgufTensor *tensor, int64_t *count) {
    uint32_t rank;
    if (!take_number(cursor, &rank, sizeof rank)) return false;
    if (rank > GGUF_MAX_RANK)
        return error_set(cursor->error, ERROR_CHECKPOINT, "it has %u dimensions, but GGUF allows at most %d", rank, GGUF_MAX_RANK);
    tensor->rank = (int)rank;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (!take_number(cursor, &tensor->shape[i], sizeof tensor->shape[i])) return false;
        if (tensor->shape[i] < 1 || __builtin_mul_overflow(*count, tensor->shape[i], count))
            return error_set(cursor->error, ERROR_CHECKPOINT, "its shape has a dimension of 0, or too many elements");
    }
    return true;
}

static bool take_tensor(GgufCursor *cursor, GgufTensor *tensor) {
    int64_t count = 1;
    uint32_t code;
    if (!take_shape(cursor, tensor, &count) || !take_number(cursor, &code, sizeof code) ||
        !take_number(cursor, &tensor->offset, sizeof tensor->offset))
        return false;
    tensor->type = gguf_type(code);
    if (!tensor->type)
        return error_set(cursor->error, ERROR_CHECKPOINT,
            "its ggml type is %u, but smelt reads only F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K and Q6_K", code);
    int64_t row = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    if (row % tensor->type->elements)
        return error_set(cursor->error, ERROR_CHECKPOINT, "rows of %lld elements are not a multiple of the block size of %s",
            (long long)row, tensor->type->name);
    return !__builtin_mul_overflow(count / tensor->type->elements, tensor->type->bytes, &tensor->bytes) ||
           error_set(cursor->error, ERROR_CHECKPOINT, "its shape has too many elements");
}

static bool find_alignment(const Gguf *file, int64_t *alignment, Error *error) {
    const GgufValue *value = gguf_find(file, "general.alignment");
    *alignment = DEFAULT_ALIGNMENT;
    if (!value) return true;
    return (gguf_integer(value, alignment) && *alignment > 0 && *alignment <= 1 << 20 && (*alignment & (*alignment - 1)) == 0) ||
           error_set(error, ERROR_CHECKPOINT, "general.alignment is not a power of two up to 2^20");
}

/* Sets the tensors' data pointers. */
static bool place_tensors(Gguf *file, GgufCursor *cursor) {
    int64_t alignment;
    if (!find_alignment(file, &alignment, cursor->error)) return false;
    size_t here = (size_t)(cursor->at - file->map.bytes), begin = (size_t)round_up((int64_t)here, alignment);
    if (file->tensor_count && begin > file->map.size) return fail_short(cursor);
    for (size_t i = 0; i < file->tensor_count; i++) {
        GgufTensor *tensor = &file->tensors[i];
        uint64_t available = file->map.size - begin;
        if (tensor->offset % (uint64_t)alignment)
            return error_set(cursor->error, ERROR_CHECKPOINT,
                "tensor %s begins at byte %llu of the data, which is not a multiple of the alignment %lld", tensor->name,
                (unsigned long long)tensor->offset, (long long)alignment);
        if (tensor->offset > available || (uint64_t)tensor->bytes > available - tensor->offset)
            return error_set(cursor->error, ERROR_CHECKPOINT,
                "tensor %s has %lld bytes from byte %llu on, but the data has only %llu bytes: the file is truncated or damaged",
                tensor->name, (long long)tensor->bytes, (unsigned long long)tensor->offset, (unsigned long long)available);
        tensor->data = file->map.bytes + begin + tensor->offset;
    }
    return true;
}

static bool check_tensors(Gguf *file, Error *error) {
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, place_compare);
    for (size_t i = 1; i < file->tensor_count; i++)
        if (file->tensors[i].data < file->tensors[i - 1].data + file->tensors[i - 1].bytes)
            return error_set(error, ERROR_CHECKPOINT, "tensors %s and %s overlap", file->tensors[i - 1].name, file->tensors[i].name);
    qsort(file->tensors, file->tensor_count, sizeof *file->tensors, tensor_compare);
    for (size_t i = 1; i < file->tensor_count; i++)
        if (!tensor_compare(&file->tensors[i - 1], &file->tensors[i]))
            return error_set(error, ERROR_CHECKPOINT, "tensor %s occurs twice", file->tensors[i].name);
    return true;
}

static bool take_tensors(Gguf *file, GgufCursor *cursor, uint64_t count) {
    while (file->tensor_count < count) {
        GgufTensor tensor = {.name = take_tensor_name(cursor, "the name of a tensor")};
        if (!tensor.name) return false;
        bool good = take_tensor(cursor, &tensor);
        array_append(file->tensors, file->tensor_count, tensor);
        if (!good) return error_context(cursor->error, "tensor %s", tensor.name);
    }
    return count == 0 || (place_tensors(file, cursor) && check_tensors(file, cursor->error));
}

const GgufTensor *gguf_tensor(const Gguf *file, const char *name) {
    GgufTensor wanted = {.name = (char *)name};
    return file->tensor_count ? bsearch(&wanted, file->tensors, file->tensor_count, sizeof wanted, tensor_compare) : NULL;
}

/* -- The file ------------------------------------------------------------------------------------------------------ */

static bool parse_gguf(Gguf *file, Error *error) {
    GgufCursor cursor = {file->map.bytes, file->map.size, error};
    uint32_t version;
    uint64_t tensors, values;
    const unsigned char *start = take_span(&cursor, sizeof magic);
    if (!start || memcmp(start, magic, sizeof magic))
        return error_set(error, ERROR_CHECKPOINT, "the file does not begin with GGUF: give a GGUF file");
    if (!take_number(&cursor, &version, sizeof version)) return false;
    if (version != 2 && version != 3)
        return error_set(error, ERROR_CHECKPOINT,
            "the file has GGUF version %u%s, but smelt reads only 2 and 3 in little-endian byte order", version,
            version > 0xffff ? "  or big-endian byte order" : "");
    return take_number(&cursor, &tensors, sizeof tensors) && take_number(&cursor, &values, sizeof values) &&
           take_array_values(file, &cursor, values) && take_tensors(file, &cursor, tensors);
}

bool gguf_open(Gguf *file, const char *path, Error *error) {
    *file = (Gguf){0};
    if (!file_map(&file->map, path, error)) return false;
    if (parse_gguf(file, error)) return true;
    gguf_close(file);
    return error_context(error, "%s", path);
}

void gguf_close(Gguf *file) {
    for (size_t i = 0; i < file->value_count; i++) free(file->values[i].key);
    for (size_t i = 0; i < file->tensor_count; i++) free(file->tensors[i].name);
    free(file->values);
    free(file->tensors);
    file_unmap(&file->map);
    *file = (Gguf){0};
}
