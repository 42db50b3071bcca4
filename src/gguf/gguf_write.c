/* Writes GGUF files. Keys and descriptions of tensors are collected in memory in the file's format.
 * Tensor data goes straight to the file, so a model of any size needs no memory here. Called by the
 * writer of models. */
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "gguf/gguf.h"

enum { VERSION = 3, ALIGNMENT = 32 };

static void append_room(char **bytes, size_t *size, size_t *room, const void *more, size_t more_size) {
    array_reserve(*bytes, *room, *size + more_size);
    if (more_size) memcpy(*bytes + *size, more, more_size);
    *size += more_size;
}

static void put_bytes_once(GgufWriter *writer, const void *bytes, size_t size) {
    append_room(&writer->values, &writer->values_size, &writer->values_room, bytes, size);
}

static void write_description(GgufWriter *writer, const void *bytes, size_t size) {
    append_room(&writer->tensors, &writer->tensors_size, &writer->tensors_room, bytes, size);
}

void gguf_append_text(GgufWriter *writer, const char *bytes, size_t size) {
    put_bytes_once(writer, &(uint64_t){size}, sizeof(uint64_t));
    put_bytes_once(writer, bytes, size);
}

/* Little-endian: writes the lower bytes of the number. */
void gguf_append_integer(GgufWriter *writer, GgufKind kind, int64_t value) {
    bool single = kind == GGUF_BOOL || kind == GGUF_U8 || kind == GGUF_I8;
    put_bytes_once(writer, &value, single ? 1 : kind == GGUF_U64 || kind == GGUF_I64 ? 8 : 4);
}

void gguf_append_real(GgufWriter *writer, double value) { put_bytes_once(writer, &(float){(float)value}, sizeof(float)); }

static void put_key(GgufWriter *writer, const char *key, GgufKind kind) {
    gguf_append_text(writer, key, strlen(key));
    put_bytes_once(writer, &(uint32_t){kind}, sizeof(uint32_t));
    writer->value_count++;
}

void gguf_put_integer(GgufWriter *writer, const char *key, GgufKind kind, int64_t value) {
    put_key(writer, key, kind);
    gguf_append_integer(writer, kind, value);
}

void gguf_put_real(GgufWriter *writer, const char *key, double value) {
    put_key(writer, key, GGUF_F32);
    gguf_append_real(writer, value);
}

void gguf_put_boolean(GgufWriter *writer, const char *key, bool value) { gguf_put_integer(writer, key, GGUF_BOOL, value); }

void gguf_put_text(GgufWriter *writer, const char *key, const char *bytes, size_t size) {
    put_key(writer, key, GGUF_TEXT);
    gguf_append_text(writer, bytes, size);
}

void gguf_put_array(GgufWriter *writer, const char *key, GgufKind kind, uint64_t count) {
    put_key(writer, key, GGUF_ARRAY);
    put_bytes_once(writer, &(uint32_t){kind}, sizeof(uint32_t));
    put_bytes_once(writer, &count, sizeof count);
}

void gguf_add_tensor(GgufWriter *writer, const char *name, const GgufType *type, int rank, const int64_t *shape) {
    int64_t count = 1;
    write_description(writer, &(uint64_t){strlen(name)}, sizeof(uint64_t));
    write_description(writer, name, strlen(name));
    write_description(writer, &(uint32_t){(uint32_t)rank}, sizeof(uint32_t));
    for (int i = rank - 1; i >= 0; i--) {
        write_description(writer, &shape[i], sizeof shape[i]);
        count *= shape[i];
    }
    write_description(writer, &type->code, sizeof type->code);
    write_description(writer, &writer->data_bytes, sizeof writer->data_bytes);
    writer->data_bytes += (uint64_t)round_up(gguf_bytes(type, count), ALIGNMENT);
    writer->tensor_count++;
}

bool gguf_begin(GgufWriter *writer, const char *path, Error *error) {
    const struct {
        char magic[4];
        uint32_t version;
        uint64_t tensors, values;
    } header = {{'G', 'G', 'U', 'F'}, VERSION, writer->tensor_count, writer->value_count};
    return file_replace_begin(&writer->file, path, error) && gguf_append_data(writer, &header, sizeof header, error) &&
           gguf_append_data(writer, writer->values, (int64_t)writer->values_size, error) &&
           gguf_append_data(writer, writer->tensors, (int64_t)writer->tensors_size, error) && gguf_end_tensor(writer, error);
}

bool gguf_append_data(GgufWriter *writer, const void *data, int64_t bytes, Error *error) {
    return file_append(&writer->file, data, bytes, error);
}

bool gguf_end_tensor(GgufWriter *writer, Error *error) {
    static const char zeros[ALIGNMENT];
    return file_append(&writer->file, zeros, round_up(writer->file.bytes, ALIGNMENT) - writer->file.bytes, error);
}

bool gguf_commit(GgufWriter *writer, Error *error) { return file_replace_commit(&writer->file, error); }

void gguf_writer_close(GgufWriter *writer) {
    file_close(&writer->file);
    free(writer->values);
    free(writer->tensors);
}
