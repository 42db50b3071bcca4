/* GGUF, the file format of llama.cpp (docs/gguf.md of ggml-org/ggml): typed keys and values, then the descriptions of
 * tensors, then their data. Versions 2 and 3 are read, 3 is written, little-endian. What keys and tensors of a model
 * mean is not known here: that is src/model/gguf_config.c and src/token/gguf_tokenizer.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"

/* -- Types of tensors (gguf_types.c) ------------------------------------------------------------------------------- */

/* Elements are stored in blocks along the rows of a tensor. */
typedef struct GgufType {
    const char *name; /* "Q8_0" */
    uint32_t code;
    int file_type;    /* general.file_type of a file whose matrices have it; -1: not written */
    int64_t elements; /* of a block */
    int64_t bytes;    /* of a block */
    float most;       /* the largest magnitude that it can hold */
    /* Both take whole blocks, `count` elements in all, on one thread; blocks need no alignment. */
    void (*decode)(const unsigned char *blocks, float *values, int64_t count);
    void (*encode)(const float *values, unsigned char *blocks, int64_t count); /* NULL: it is only read */
} GgufType;
/* F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q6_K; NULL for others. */
const GgufType *gguf_type(uint32_t code);
const GgufType *gguf_type_named(const char *name);
/* The bytes of `count` elements, which are whole blocks. */
static inline int64_t gguf_bytes(const GgufType *type, int64_t count) { return count / type->elements * type->bytes; }

/* -- Reading (gguf_read.c) ----------------------------------------------------------------------------------------- */

typedef enum GgufKind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_TEXT,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_KINDS,
} GgufKind;

/* A value inside the mapped file, whose bounds were checked. */
typedef struct GgufValue {
    char *key;
    GgufKind kind; /* of the value, or of the items of an array */
    bool array;
    uint64_t count; /* items; 1 for what is no array */
    const unsigned char *data, *end;
} GgufValue;

enum { GGUF_MAX_RANK = 4 };
typedef struct GgufTensor {
    char *name;
    const GgufType *type;
    int rank;
    int64_t shape[GGUF_MAX_RANK]; /* rows last, as elsewhere in smelt; the file has them the other way round */
    uint64_t offset;              /* of the data behind all descriptions */
    const unsigned char *data;    /* inside the mapped file */
    int64_t bytes;
} GgufTensor;

typedef struct Gguf {
    GgufValue *values; /* in order of key */
    size_t value_count;
    GgufTensor *tensors; /* in order of name */
    size_t tensor_count;
    FileMap map;
} Gguf;

/* Whether `path` is a file that begins with the format's magic. */
bool gguf_is_file(const char *path);
/* Maps a file. Every length, key, shape and byte range is checked against the file; keys and names are unique and have
 * no control characters, and tensors do not overlap. ERROR_CHECKPOINT. */
bool gguf_open(Gguf *file, const char *path, Error *error);
void gguf_close(Gguf *file); /* also of a zeroed one */

const GgufValue *gguf_find(const Gguf *file, const char *key);     /* NULL when absent */
const GgufTensor *gguf_tensor(const Gguf *file, const char *name); /* NULL when absent */

/* Bytes of the file: a text has no NUL behind it. */
typedef struct GgufText {
    const char *bytes;
    size_t size;
} GgufText;
/* False when `value` (may be NULL) is none of the kind, or does not fit. A real may be stored as an integer. */
bool gguf_integer(const GgufValue *value, int64_t *integer);
bool gguf_real(const GgufValue *value, double *real);
bool gguf_boolean(const GgufValue *value, bool *boolean);
bool gguf_text(const GgufValue *value, GgufText *text);
/* Item `index` of an array, or the value itself, as a number of its own; false as above. */
bool gguf_item(const GgufValue *value, uint64_t index, double *number);
/* The texts of an array one after another, `at` being how far one is, zero at first. False behind the last. */
bool gguf_next_text(const GgufValue *value, size_t *at, GgufText *text);

/* -- Writing (gguf_write.c) ---------------------------------------------------------------------------------------- */

/* Collects keys and tensors; then the file is written tensor by tensor. Zero-initialise, close in any case. */
typedef struct GgufWriter {
    char *values, *tensors; /* as in the file */
    size_t values_size, values_room, tensors_size, tensors_room;
    uint64_t value_count, tensor_count, data_bytes;
    File file;
} GgufWriter;

void gguf_put_integer(GgufWriter *writer, const char *key, GgufKind kind, int64_t value);
void gguf_put_real(GgufWriter *writer, const char *key, double value); /* as F32 */
void gguf_put_boolean(GgufWriter *writer, const char *key, bool value);
void gguf_put_text(GgufWriter *writer, const char *key, const char *bytes, size_t size);
/* Begins an array of `count` items, each of which one of the functions after it must append. */
void gguf_put_array(GgufWriter *writer, const char *key, GgufKind kind, uint64_t count);
void gguf_append_text(GgufWriter *writer, const char *bytes, size_t size);
void gguf_append_integer(GgufWriter *writer, GgufKind kind, int64_t value);
void gguf_append_real(GgufWriter *writer, double value); /* F32 */

/* `shape` as in GgufTensor; rows are whole blocks. */
void gguf_add_tensor(GgufWriter *writer, const char *name, const GgufType *type, int rank, const int64_t *shape);
/* Writes all that was put and added, after which the data of every tensor is appended in the order in which they were
 * added, and each ended. `path` appears whole with the commit, or stays what it was. */
bool gguf_begin(GgufWriter *writer, const char *path, Error *error);
bool gguf_append_data(GgufWriter *writer, const void *data, int64_t bytes, Error *error);
bool gguf_end_tensor(GgufWriter *writer, Error *error);
bool gguf_commit(GgufWriter *writer, Error *error);
void gguf_writer_close(GgufWriter *writer);
