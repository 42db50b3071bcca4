/* Finds what the records of a packing are, for format=auto: conversations, pairs of answers, or text.
 * The first record of the first file of records decides; of a Parquet file its columns do. A
 * record that has the text field is text, whatever else it has. Owns nothing beyond a call. */
#include <string.h>

#include "base/json_reader.h"
#include "chat/chat.h"
#include "data/pack_internal.h"

static PackFormat format_of_record(const json_t *record, const char *field) {
    static const PackFormat formats[] = {[CHAT_NO_RECORD] = PACK_AUTO, [CHAT_CONVERSATION] = PACK_CHAT, [CHAT_PAIR] = PACK_PREFERENCE};
    return json_object_get(record, field) ? PACK_AUTO : formats[chat_kind(record)];
}

static PackFormat format_of_columns(const ObjectPlace *place, const char *field) {
    Error ignored;
    ParquetFile *file = parquet_open(place, &ignored);
    json_auto_t *record = json_object();
    for (const ParquetNode *node = NULL; file && (node = parquet_next(file, node));) json_object_set_new(record, node->name, json_true());
    parquet_close(file);
    return format_of_record(record, field);
}

static bool begins_as_rows(const ObjectPlace *place) {
    static const char magic[] = "PAR1";
    enum { BYTES = sizeof magic - 1 };
    char start[BYTES];
    Error ignored = {0};
    Object *object = object_open(place, &ignored);
    bool begins = object && object_bytes(object) >= BYTES && object_read(object, start, BYTES, 0, &ignored) && !memcmp(start, magic, BYTES);
    object_close(object);
    return begins;
}

static size_t cut_record(const void *context, const char *text, size_t size) {
    (void)context, (void)text, (void)size;
    return 0;
}

/* Sets *format by the first record of a file. Returns false if it has no records, or cannot be
 * read; the packing then says why. */
static bool format_of_file(const PackOptions *options, const PackFiles *files, int64_t file, PackFormat *format) {
    RecordReader *reader = record_reader_open(options, files, cut_record, NULL, (RecordPosition){.file = file, .line = 1});
    Block block = {0};
    Error ignored = {0};
    bool found = false;
    if (record_reader_fill(reader, &block, &ignored) && block.count > 0 && block.records[0].file == file && block.records[0].json) {
        json_auto_t *record = json_parse(block.text + block.records[0].start, block.records[0].size, 0, &ignored);
        found = json_is_object(record);
        if (found) *format = format_of_record(record, options->field);
    }
    block_free(&block);
    record_reader_free(reader);
    return found;
}

static bool may_hold_records(const PackFiles *files, size_t file) {
    static const char *const endings[] = {".json", ".jsonl", ".ndjson", ".parquet"};
    const char *path = files->list.entries[file].name;
    bool may = files->items[file].named;
    for (size_t i = 0; i < sizeof endings / sizeof *endings && !may; i++) may = name_ends(path, endings[i]);
    return may && strcmp(path, "-") != 0;
}

PackFormat pack_find_format(const PackOptions *options, const PackFiles *files) {
    PackFormat format = PACK_AUTO;
    for (size_t i = 0; i < files->list.count; i++) {
        const ObjectPlace *place = &files->items[i].place;
        if (!may_hold_records(files, i)) continue;
        if (begins_as_rows(place)) return format_of_columns(place, options->field);
        if (format_of_file(options, files, (int64_t)i, &format)) break;
    }
    return format;
}
