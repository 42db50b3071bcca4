/* A libFuzzer entry for what is packed: the first byte chooses settings, the rest is a file of text or JSON lines,
 * plain or compressed. The file is refused with one line, or gives documents of well-formed UTF-8, whose places follow
 * one another; and a reader that starts at the end of any document gives the next one, as a packing does that was
 * killed. */
#include <utf8proc.h>

#include "base/memory.h"
#include "data/pack_internal.h"
#include "fuzz.h"

enum { PIECE = 1 << 18 };

/* Before the last character, as for byte tokens. */
static size_t cut(const void *context, const char *text, size_t size) {
    (void)context;
    size_t at = size - 1;
    while (at > 0 && size - at < 4 && (text[at] & 0xc0) == 0x80) at--;
    return at;
}

static void require_utf8(const char *text, size_t size) {
    utf8proc_int32_t character;
    for (size_t at = 0; at < size;) {
        utf8proc_ssize_t bytes = utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(size - at), &character);
        require(bytes > 0);
        at += (size_t)bytes;
    }
}

/* The raw text of the first document behind a position; the caller frees. NULL: there is none. */
static char *next_document(const PackOptions *options, const PackFiles *files, RecordPosition start, size_t *size) {
    RecordReader *reader = record_reader_open(options, files, cut, NULL, start);
    Block block = {0};
    Error error = {0};
    char *text = NULL;
    for (bool whole = false; !whole && (block_clear(&block), record_reader_fill(reader, &block, &error)) && block.count > 0;) {
        const Record *first = block.records;
        size_t held = text ? *size : 0;
        text = memory_resize(text, held + first->size + 1);
        memcpy(text + held, block.text + first->start, first->size);
        *size = held + first->size;
        whole = first->last;
    }
    block_free(&block);
    record_reader_free(reader);
    return text;
}

static void require_resumable(
    const PackOptions *options, const PackFiles *files, RecordPosition start, const Block *block, const Record *record) {
    size_t size;
    if (!record->first || !record->last || record->bad == PACK_BAD_FILE) return;
    char *text = next_document(options, files, start, &size);
    require(text && size == record->size && memcmp(text, block->text + record->start, size) == 0);
    free(text);
}

FUZZ(documents) {
    if (size < 1) return;
    char *path = memory_copy_string(fuzz_file("documents", data + 1, size - 1));
    PackOptions options = {.inputs = (const char *[]){path, NULL},
        .separator = data[0] & 1   ? "%"
                     : data[0] & 2 ? "<|end|>"
                                   : "",
        .field = "text",
        .format = (PackFormat)(data[0] >> 2 & 3) % 3,
        .valid_fraction = data[0] & 16 ? 0.2 : 0};
    PackFiles files;
    Error error = {0};
    require(pack_files_list(&files, options.inputs, false, NULL, &error));
    RecordPosition before = {.line = 1};
    RecordReader *reader = record_reader_open(&options, &files, cut, NULL, before);
    Block block = {0};
    bool good;
    int resumed = 0;
    while ((good = record_reader_fill(reader, &block, &error)) && block.count > 0) {
        for (Record *record = block.records; record < block.records + block.count; record++) {
            require(record->start + record->size <= block.size && record->line >= before.line);
            if (resumed++ < 3) require_resumable(&options, &files, before, &block, record);
            record_text(record, block.text, options.field, PACK_INVALID_REPLACE, NULL);
            require_utf8(record->text ? record->text : "", record->text_size);
            if (!record->last) continue;
            require(record->end.file > before.file || record->end.byte >= before.byte);
            before = record->end;
        }
        block_clear(&block);
    }
    if (!good) require_line(&error);
    block_free(&block);
    record_reader_free(reader);
    pack_files_free(&files);
    free(path);
}
