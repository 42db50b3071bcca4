/* A libFuzzer entry for Parquet files: the first byte chooses settings, the rest is the file. The file is refused with one
 * line, or gives records whose places follow one another; and a reader that starts at the end of any record gives the
 * next one, as a packing does that was killed. */
#include "base/memory.h"
#include "data/pack_internal.h"
#include "fuzz.h"

enum { RECORDS = 20000 /* a page of few bytes may stand for millions of rows */ };

static size_t no_cut(const void *context, const char *text, size_t size) {
    (void)context, (void)text, (void)size;
    return 0;
}

/* The first record behind a position; the caller frees its text. NULL: there is none. */
static char *next_row(const PackOptions *options, const PackFiles *files, RecordPosition start, Record *record) {
    RecordReader *reader = record_reader_open(options, files, no_cut, NULL, start);
    Block block = {0};
    ParquetValues values = {0};
    Error error = {0};
    char *text = NULL;
    if (record_reader_fill(reader, &block, &error)) {
        block_read_page(&block, &values, options->field);
        if (block.count) {
            *record = block.records[0];
            text = memory_allocate(record->size + 1);
            memcpy(text, block.text + record->start, record->size);
        }
    }
    parquet_values_free(&values);
    block_free(&block);
    record_reader_free(reader);
    return text;
}

static void require_row_resumable(
    const PackOptions *options, const PackFiles *files, RecordPosition start, const Block *block, const Record *record) {
    Record again;
    if (record->bad == PACK_BAD_FILE || record->left_out.what) return;
    char *text = next_row(options, files, start, &again);
    require(text && again.size == record->size && again.bad == record->bad && again.line == record->line && again.valid == record->valid);
    require(memcmp(text, block->text + record->start, record->size) == 0);
    free(text);
}

/* Makes room for more records of the block's page, or else fills the block anew. */
static bool next_block(RecordReader *reader, Block *block, Error *error) {
    block_clear(block);
    return block->page.stored || record_reader_fill(reader, block, error);
}

FUZZ(parquet) {
    if (size < 5 || memcmp(data + 1, "PAR1", 4) != 0) return; /* text, which is fuzzed as documents */
    char *path = memory_copy_string(fuzz_file("rows.parquet", data + 1, size - 1));
    PackOptions options = {.inputs = (const char *[]){path, NULL},
        .separator = "",
        .field = "text",
        .format = data[0] & 1 ? PACK_CHAT : PACK_AUTO,
        .valid_fraction = data[0] & 2 ? 0.2 : 0};
    PackFiles files;
    Error error = {0};
    require(pack_files_list(&files, options.inputs, false, NULL, &error));
    RecordPosition before = {.line = 1};
    RecordReader *reader = record_reader_open(&options, &files, no_cut, NULL, before);
    Block block = {0};
    ParquetValues values = {0};
    bool good;
    size_t count = 0;
    while (count < RECORDS && (good = next_block(reader, &block, &error)) && (block.count > 0 || block.page.stored)) {
        block_read_page(&block, &values, options.field);
        for (Record *record = block.records; record < block.records + block.count; record++, count++) {
            if (!record->last) continue; /* why the file is left out */
            require(record->start + record->size <= block.size && record->line >= before.line);
            if (count < 3 || count % 4096 == 7) require_row_resumable(&options, &files, before, &block, record);
            record_text(record, block.text, options.format == PACK_CHAT ? NULL : options.field, PACK_INVALID_REPLACE, NULL);
            require(record->end.file > before.file || record->end.byte > before.byte);
            before = record->end;
        }
    }
    if (count < RECORDS && !good) require_line(&error);
    parquet_values_free(&values);
    block_free(&block);
    record_reader_free(reader);
    pack_files_free(&files);
    free(path);
}
