/* GGUF, the file format of llama.cpp (docs/gguf.md of ggml-org/ggml): typed keys and values, then
 * the descriptions of tensors, then their data. Reads versions 2 and 3, writes version 3,
 * little-endian. The meaning of a model's keys and tensors is defined elsewhere:
 * src/formats/gguf_config.c and src/token/gguf_tokenizer.c. */
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
    int file_type;    /* general.file_type of a file whose matrices have this type; -1: not written */
    int64_t elements; /* of a block */
    int64_t bytes;    /* of a block */
    float most;       /* the largest absolute value that it can hold */
    /* Both process whole blocks, `count` elements in total, on one thread; blocks need no
     * alignment. */
    void (*decode)(const unsigned char *blocks, float *values, int64_t count);
    void (*encode)(const float *values, unsigned char *blocks, int64_t count); /* NULL: read-only type */
} GgufType;
/* Return F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K; NULL for other types. */
const GgufType *gguf_type(uint32_t code);
const GgufType *gguf_type_named(const char *name);
/* Returns the bytes of `count` elements, which must be whole blocks. */
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

/* A value inside the mapped file; its bounds were checked. */
typedef struct GgufValue {
    char *key;
    GgufKind kind; /* of the value, or of the items of an array */
    bool array;
    uint64_t count; /* items; 1 if it is not an array */
    const unsigned char *data, *end;
} GgufValue;

enum { GGUF_MAX_RANK = 4 };
typedef struct GgufTensor {
    char *name;
    const GgufType *type;
    int rank;
    int64_t shape[GGUF_MAX_RANK]; /* rows last, as elsewhere in smelt; the file has the reverse order */
    uint64_t offset;              /* in the data, which follows all descriptions */
    const unsigned char *data;    /* inside the mapped file */
    int64_t bytes;
} GgufTensor;

typedef struct Gguf {
    GgufValue *values; /* sorted by key */
    size_t value_count;
    GgufTensor *tensors; /* sorted by name */
    size_t tensor_count;
    FileMap map;
} Gguf;

/* Returns whether `path` is a file that begins with the format's magic. */
bool gguf_is_file(const char *path);
/* Maps a file. Every length, key, shape and byte range is checked against the file. Keys and names
 * are unique and have no control characters; tensors do not overlap. ERROR_CHECKPOINT. */
bool gguf_open(Gguf *file, const char *path, Error *error);
void gguf_close(Gguf *file); /* a zeroed one is fine */

const GgufValue *gguf_find(const Gguf *file, const char *key);     /* NULL when absent */
const GgufTensor *gguf_tensor(const Gguf *file, const char *name); /* NULL when absent */

/* Bytes of the file, without a final NUL. */
typedef struct GgufText {
    const char *bytes;
    size_t size;
} GgufText;
/* Return false if `value` (may be NULL) does not have the kind, or does not fit. A real may be
 * stored as an integer. */
bool gguf_integer(const GgufValue *value, int64_t *integer);
bool gguf_real(const GgufValue *value, double *real);
bool gguf_boolean(const GgufValue *value, bool *boolean);
bool gguf_text(const GgufValue *value, GgufText *text);
/* Returns item `index` of an array, or the value itself, as a number; false as above. */
bool gguf_item(const GgufValue *value, uint64_t index, double *number);
/* Returns the texts of an array one after another; *at is the position, initially zero. Returns
 * false after the last text. */
bool gguf_next_text(const GgufValue *value, size_t *at, GgufText *text);

/* -- Writing (gguf_write.c) ---------------------------------------------------------------------------------------- */

/* Collects keys and tensors; then the file is written tensor by tensor. Zero-initialize it, and
 * always close it. */
typedef struct GgufWriter {
    char *values, *tensors; /* in the file's format */
    size_t values_size, values_room, tensors_size, tensors_room;
    uint64_t value_count, tensor_count, data_bytes;
    File file;
} GgufWriter;

void gguf_put_integer(GgufWriter *writer, const char *key, GgufKind kind, int64_t value);
void gguf_put_real(GgufWriter *writer, const char *key, double value); /* as F32 */
void gguf_put_boolean(GgufWriter *writer, const char *key, bool value);
void gguf_put_text(GgufWriter *writer, const char *key, const char *bytes, size_t size);
/* Begins an array of `count` items; each must be appended with one of the functions below. */
void gguf_put_array(GgufWriter *writer, const char *key, GgufKind kind, uint64_t count);
void gguf_append_text(GgufWriter *writer, const char *bytes, size_t size);
void gguf_append_integer(GgufWriter *writer, GgufKind kind, int64_t value);
void gguf_append_real(GgufWriter *writer, double value); /* F32 */

/* `shape` as in GgufTensor; rows must be whole blocks. */
void gguf_add_tensor(GgufWriter *writer, const char *name, const GgufType *type, int rank, const int64_t *shape);
/* Writes all keys and descriptions. Then append the data of every tensor, in the order in which
 * they were added, and end each one. The commit creates or replaces `path` atomically. */
bool gguf_begin(GgufWriter *writer, const char *path, Error *error);
bool gguf_append_data(GgufWriter *writer, const void *data, int64_t bytes, Error *error);
bool gguf_end_tensor(GgufWriter *writer, Error *error);
bool gguf_commit(GgufWriter *writer, Error *error);
void gguf_writer_close(GgufWriter *writer);
