/* TensorBoard event files. A file is a row of TFRecords (length, masked CRC-32C of the length,
 * data, masked CRC-32C of the data; little endian, as this machine is), each holding one Event in
 * protobuf encoding. We need from tensorflow/core/util/event.proto and framework/summary.proto:
 *   Event       1 wall_time double, 2 step int64, 3 file_version string, 5 summary, 7 session_log
 *   Summary     1 value, repeated;   Value  1 tag string, 2 simple_value float, 5 histo, 8 tensor, 9 metadata;
 *   HistogramProto  1 min, 2 max, 3 num, 4 sum, 5 sum_squares, all double; 6 bucket_limit (upper ends), 7 bucket, packed doubles
 *               metadata 1 plugin_data, whose 1 is a plugin's name;   SessionLog  1 status (1: START)
 * From framework/tensor.proto, for a text: TensorProto  1 dtype (7: string), 8 string_val (a scalar
 * has no shape). These few messages are encoded by hand. A Tensorboard owns its file and the
 * buffers that records are built in, so a step allocates nothing once they have grown. Called by
 * metrics.c. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "run/tensorboard_internal.h"

typedef struct EventBuffer {
    uint8_t *data;
    size_t length, capacity;
} EventBuffer;

struct Tensorboard {
    File journal;
    EventBuffer part, value, summary, event, record;
};

enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2, WIRE_FIXED32 = 5 };
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION_LOG = 7 };
enum { VALUE_TENSOR = 8, VALUE_METADATA = 9, METADATA_PLUGIN = 1, PLUGIN_NAME = 1, TENSOR_TYPE = 1, TENSOR_TEXT = 8, TYPE_STRING = 7 };
enum {
    VALUE_HISTOGRAM = 5,
    HISTOGRAM_MIN = 1,
    HISTOGRAM_MAX,
    HISTOGRAM_NUM,
    HISTOGRAM_SUM,
    HISTOGRAM_SQUARES,
    HISTOGRAM_LIMITS,
    HISTOGRAM_COUNTS
};
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1, SESSION_START = 1 };

uint32_t tensorboard_crc32c(const void *data, size_t bytes) {
    const uint32_t polynomial = 0x82F63B78; /* reflected */
    const uint8_t *from = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= from[i];
        for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (polynomial & -(crc & 1));
    }
    return ~crc;
}

/* -- Encoding ------------------------------------------------------------------------------------------------------ */

static void put_buffer(EventBuffer *buffer, const void *data, size_t bytes) {
    array_reserve(buffer->data, buffer->capacity, buffer->length + bytes);
    if (bytes > 0) memcpy(buffer->data + buffer->length, data, bytes);
    buffer->length += bytes;
}

static void put_varint(EventBuffer *buffer, uint64_t value) {
    uint8_t encoded[10];
    int length = 0;
    for (; value >= 0x80; value >>= 7) encoded[length++] = (uint8_t)(value | 0x80);
    encoded[length++] = (uint8_t)value;
    put_buffer(buffer, encoded, (size_t)length);
}

static void put_field(EventBuffer *buffer, int field, int wire) { put_varint(buffer, (uint64_t)(field << 3 | wire)); }

static void put_field_bytes(EventBuffer *buffer, int field, const void *data, size_t bytes) {
    put_field(buffer, field, WIRE_BYTES);
    put_varint(buffer, bytes);
    put_buffer(buffer, data, bytes);
}

static void put_field_integer(EventBuffer *buffer, int field, int64_t value) {
    put_field(buffer, field, WIRE_VARINT);
    put_varint(buffer, (uint64_t)value);
}

static void put_field_double(EventBuffer *buffer, int field, double value) {
    put_field(buffer, field, WIRE_FIXED64);
    put_buffer(buffer, &value, sizeof value);
}

static void put_field_float(EventBuffer *buffer, int field, float value) {
    put_field(buffer, field, WIRE_FIXED32);
    put_buffer(buffer, &value, sizeof value);
}

/* -- Records ------------------------------------------------------------------------------------------------------- */

/* The mask keeps the CRC of data that itself contains CRCs from being trivial (TFRecord format). */
static void put_masked_crc(EventBuffer *buffer, const void *data, size_t bytes) {
    uint32_t crc = tensorboard_crc32c(data, bytes), masked = ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
    put_buffer(buffer, &masked, sizeof masked);
}

/* Appends an event with one field besides its time and step; negative: without a step. */
static bool write_event(Tensorboard *tensorboard, double time, int64_t step, int field, const void *data, size_t bytes, Error *error) {
    EventBuffer *event = &tensorboard->event, *record = &tensorboard->record;
    event->length = record->length = 0;
    put_field_double(event, EVENT_TIME, time);
    if (step >= 0) put_field_integer(event, EVENT_STEP, step);
    put_field_bytes(event, field, data, bytes);
    uint64_t length = event->length;
    put_buffer(record, &length, sizeof length);
    put_masked_crc(record, &length, sizeof length);
    put_buffer(record, event->data, event->length);
    put_masked_crc(record, event->data, event->length);
    return file_append(&tensorboard->journal, record->data, record->length, error);
}

static bool write_version(Tensorboard *tensorboard, double time, Error *error) {
    static const char version[] = "brain.Event:2";
    return write_event(tensorboard, time, -1, EVENT_VERSION, version, sizeof version - 1, error);
}

/* A session start at a step makes TensorBoard drop that step and later ones from earlier files. */
static bool write_session_start(Tensorboard *tensorboard, int64_t step, double time, Error *error) {
    EventBuffer *log = &tensorboard->summary;
    log->length = 0;
    put_field_integer(log, SESSION_STATUS, SESSION_START);
    return write_event(tensorboard, time, step, EVENT_SESSION_LOG, log->data, log->length, error);
}

bool tensorboard_write(Tensorboard *tensorboard, int64_t step, double time, const TensorboardScalar *scalars, size_t count, Error *error) {
    if (!tensorboard) return true;
    EventBuffer *value = &tensorboard->value, *summary = &tensorboard->summary;
    summary->length = 0;
    for (size_t i = 0; i < count; i++) {
        value->length = 0;
        put_field_bytes(value, VALUE_TAG, scalars[i].tag, strlen(scalars[i].tag));
        put_field_float(value, VALUE_SIMPLE, (float)scalars[i].value);
        put_field_bytes(summary, SUMMARY_VALUE, value->data, value->length);
    }
    return write_event(tensorboard, time, step, EVENT_SUMMARY, summary->data, summary->length, error);
}

/* Sums use the middle of a bin for all of its values. */
bool tensorboard_write_histogram(
    Tensorboard *tensorboard, int64_t step, double time, const char *tag, int first, const int64_t *counts, int count, Error *error) {
    if (!tensorboard) return true;
    EventBuffer *part = &tensorboard->part, *value = &tensorboard->value, *summary = &tensorboard->summary;
    SCOPED_FREE double *limits = memory_allocate(2 * (size_t)count * sizeof *limits);
    double *numbers = limits + count, num = 0, sum = 0, squares = 0, least = INFINITY, most = -INFINITY;
    for (int i = 0; i < count; i++) {
        double low = first + i, middle = low + 0.5;
        limits[i] = low + 1;
        numbers[i] = (double)counts[i];
        num += numbers[i];
        sum += numbers[i] * middle;
        squares += numbers[i] * middle * middle;
        if (counts[i]) least = fmin(least, low), most = fmax(most, limits[i]);
    }
    if (num == 0) return true;
    const double fields[] = {least, most, num, sum, squares};
    part->length = value->length = summary->length = 0;
    for (int i = 0; i < HISTOGRAM_SQUARES; i++) put_field_double(part, HISTOGRAM_MIN + i, fields[i]);
    put_field_bytes(part, HISTOGRAM_LIMITS, limits, (size_t)count * sizeof *limits);
    put_field_bytes(part, HISTOGRAM_COUNTS, numbers, (size_t)count * sizeof *numbers);
    put_field_bytes(value, VALUE_TAG, tag, strlen(tag));
    put_field_bytes(value, VALUE_HISTOGRAM, part->data, part->length);
    put_field_bytes(summary, SUMMARY_VALUE, value->data, value->length);
    return write_event(tensorboard, time, step, EVENT_SUMMARY, summary->data, summary->length, error);
}

bool tensorboard_write_text(Tensorboard *tensorboard, int64_t step, double time, const char *tag, const char *text, Error *error) {
    static const char plugin[] = "text";
    if (!tensorboard) return true;
    EventBuffer *part = &tensorboard->part, *value = &tensorboard->value, *summary = &tensorboard->summary;
    value->length = summary->length = part->length = 0;
    put_field_bytes(value, VALUE_TAG, tag, strlen(tag));
    put_field_integer(part, TENSOR_TYPE, TYPE_STRING);
    put_field_bytes(part, TENSOR_TEXT, text, strlen(text));
    put_field_bytes(value, VALUE_TENSOR, part->data, part->length);
    part->length = 0;
    put_field_bytes(part, PLUGIN_NAME, plugin, sizeof plugin - 1);
    put_field_bytes(summary, METADATA_PLUGIN, part->data, part->length);
    put_field_bytes(value, VALUE_METADATA, summary->data, summary->length);
    summary->length = 0;
    put_field_bytes(summary, SUMMARY_VALUE, value->data, value->length);
    return write_event(tensorboard, time, step, EVENT_SUMMARY, summary->data, summary->length, error);
}

/* -- Files --------------------------------------------------------------------------------------------------------- */

/* Names the file events.out.tfevents.TIMESTAMP.HOST. TensorBoard reads files in the order of their
 * names, so a process that starts in the same second as the previous one takes the next second. */
static bool open_new_file(File *journal, const char *folder, double time, Error *error) {
    enum { TRIES = 1000 };
    char host[65] = "unknown";
    gethostname(host, sizeof host - 1);
    for (char *c = host; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr(".-_", *c)) *c = '_';
    for (int64_t second = (int64_t)time; second < (int64_t)time + TRIES; second++) {
        SCOPED_FREE char *path = memory_format("%s/events.out.tfevents.%010lld.%s", folder, (long long)second, host);
        errno = 0;
        if (file_open_append(journal, path, true, error)) return true;
        if (errno != EEXIST) return false;
    }
    return false;
}

Tensorboard *tensorboard_open(const char *folder, int64_t step, double time, Error *error) {
    Tensorboard *tensorboard = memory_allocate(sizeof *tensorboard);
    if (file_make_folder(folder, error) && open_new_file(&tensorboard->journal, folder, time, error) &&
        write_version(tensorboard, time, error) && write_session_start(tensorboard, step + 1, time, error))
        return tensorboard;
    tensorboard_close(tensorboard);
    return NULL;
}

void tensorboard_close(Tensorboard *tensorboard) {
    if (!tensorboard) return;
    file_close(&tensorboard->journal);
    free(tensorboard->part.data);
    free(tensorboard->value.data);
    free(tensorboard->summary.data);
    free(tensorboard->event.data);
    free(tensorboard->record.data);
    free(tensorboard);
}
