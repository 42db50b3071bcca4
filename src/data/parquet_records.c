/* Turns the rows of a Parquet file into records: the text of a column, or, for conversations and for
 * rules that read fields, a row as the JSON line that it would be. The reader's thread decodes pages
 * and collects rows in blocks. It passes a page of plain text that is neither short nor long on as
 * stored, and an encoding thread decompresses the page. It passes a page of indices on in several
 * blocks. Each block has a copy of the page, a share of its rows, and the dictionary, which the first
 * thread that needs it decompresses. A RowReader owns the open file and the pages that it reads; a
 * block owns its page and holds its dictionary. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "chat/chat.h"
#include "data/pack_internal.h"

/* Pages whose texts have these sizes, decompressed, leave the reader's thread. The pipeline bounds
 * the memory of blocks in flight. */
enum { PAGE_LEAST_BYTES = 1 << 16, PAGE_MOST_BYTES = 1 << 22, PAGE_MOST_ROWS = 1 << 13 };
/* The most bytes of the indices and of the dictionary of a page that leaves the reader's thread. */
enum { INDEX_MOST_BYTES = 1 << 16, DICTIONARY_MOST_BYTES = 1 << 26 };
enum { SHARE_BYTES = 1 << 18 }; /* text of a block's share of a page of indices, if all texts are equally long */
enum { PART_BYTES = 1 << 24 };  /* text that a block takes from its page at once: indices may repeat a long text */

struct RowReader {
    ParquetFile *file;
    const char *field;
    const ParquetNode **nodes; /* the columns that are read */
    size_t count;
    const DocumentFilter *filter; /* its rules may read columns */
    bool json_rows;               /* rows become JSON; otherwise nodes[0] is text */
    int64_t group, row, rows;     /* the open row group, the next row in it, and its rows; group -1: before the first */
    int64_t before, bytes;        /* of row groups before, and of the file, for the progress */
    ParquetColumn column;         /* of the text */
    ParquetPage page;
    int64_t page_row; /* the first row of `page` that is not in a block yet */
    bool shared;      /* a block has rows of `page`, undecoded */
    ParquetValues values;
    bool decoding; /* `values` are those of `page` */
    ParquetRows *json;
};

/* -- Opening --------------------------------------------------------------------------------------------------------- */

static bool refuse_columns(const RowReader *reader, const char *what, const char *advice, Error *error) {
    char names[256];
    if (!parquet_next(reader->file, NULL)) return parquet_refuse(error, "a Parquet file without columns: write it with a column of text");
    parquet_names(reader->file, names, sizeof names);
    return parquet_refuse(error, "a Parquet file without %s; its columns are %s: %s", what, names, advice);
}

static bool take_column(RowReader *reader, const ParquetNode *node, Error *error) {
    for (const ParquetNode *other = node; (other = parquet_next(reader->file, other));)
        if (!strcmp(other->name, node->name))
            return parquet_refuse(error, "a Parquet file with several columns named %s: rename all but one", node->name);
    array_append(reader->nodes, reader->count, node);
    return parquet_check(reader->file, node, error);
}

/* Says what a column holds that is not text. */
static const char *describe_column(const ParquetNode *node) {
    if (node->kind != PARQUET_LEAF) return node->kind == PARQUET_LIST ? "a list" : "a struct";
    return node->is_null ? "null in every row" : node->type == PARQUET_BOOLEAN ? "a boolean" : "a number";
}

static bool take_text_column(RowReader *reader, Error *error) {
    const ParquetNode *node = parquet_find(reader->file, reader->field);
    bool chat = parquet_find(reader->file, "messages");
    const char *advice = chat ? "pass format=chat to smelt data pack" : "give field=NAME to smelt data pack";
    SCOPED_FREE char *missing = memory_format("the column %s", reader->field);
    if (!node) return refuse_columns(reader, missing, advice, error);
    if (!take_column(reader, node, error)) return false;
    if (node->kind == PARQUET_LEAF && node->type == PARQUET_BYTES && !node->is_null) return true;
    return parquet_refuse(error, "a Parquet file whose column %s is %s, not text: %s", reader->field, describe_column(node), advice);
}

/* Takes the columns that conversations or pairs of answers are made of. */
static bool take_chat_columns(RowReader *reader, Error *error) {
    static const char *const any[] = {"messages", "conversations", "completion", "instruction", "chosen"};
    bool found = false;
    for (size_t i = 0; i < sizeof any / sizeof *any; i++) found = found || parquet_find(reader->file, any[i]);
    if (!found)
        return refuse_columns(reader, "a conversation",
            "they must be messages, prompt and completion, instruction and output, or chosen and rejected", error);
    for (const ParquetNode *node = NULL; (node = parquet_next(reader->file, node));)
        if (chat_reads(node->name) && !take_column(reader, node, error)) return false;
    return true;
}

/* Takes the column with lists of token ids. */
static bool take_token_column(RowReader *reader, const char *name, Error *error) {
    const ParquetNode *node = parquet_find(reader->file, name);
    SCOPED_FREE char *missing = memory_format("the column %s", name);
    return node ? take_column(reader, node, error) : refuse_columns(reader, missing, "name one of them in tokens=", error);
}

/* Takes the columns that rules of a filter read. */
static bool take_rule_columns(RowReader *reader, Error *error) {
    for (size_t i = 0; reader->filter && i < filter_field_count(reader->filter); i++) {
        const char *name = filter_field(reader->filter, i);
        const ParquetNode *node = parquet_find(reader->file, name);
        SCOPED_FREE char *missing = memory_format("the column %s", name);
        bool taken = false;
        for (size_t j = 0; j < reader->count; j++) taken = taken || reader->nodes[j] == node;
        if (!node) return refuse_columns(reader, missing, "name one of them in where=", error);
        if (!taken && !take_column(reader, node, error)) return false;
    }
    return true;
}

/* -- Row groups ------------------------------------------------------------------------------------------------------ */

/* Closes the row group, and opens the next one that has rows. */
static void next_group(RowReader *reader) {
    parquet_page_free(&reader->page);
    parquet_rows_free(reader->json);
    reader->decoding = false;
    reader->json = NULL;
    reader->row = reader->rows = 0;
    while (reader->rows == 0 && ++reader->group < parquet_groups(reader->file))
        reader->rows = parquet_group_rows(reader->file, reader->group);
    if (reader->rows == 0) return;
    if (reader->json_rows) reader->json = parquet_rows_open(reader->file, reader->group, reader->nodes, reader->count);
    else parquet_column_start(&reader->column, reader->file, reader->nodes[0], reader->group);
}

bool row_reader_ended(const RowReader *reader) { return reader->group == parquet_groups(reader->file); }

int64_t row_reader_rows(const RowReader *reader) {
    int64_t rows = 0;
    for (int64_t group = 0; group < parquet_groups(reader->file); group++) rows += parquet_group_rows(reader->file, group);
    return rows;
}

int64_t row_reader_position(const RowReader *reader) {
    int64_t groups = parquet_groups(reader->file);
    double part = groups ? ((double)reader->group + (reader->rows ? (double)reader->row / (double)reader->rows : 0)) / (double)groups : 1;
    return (int64_t)(part * (double)reader->bytes);
}

/* Reads the next page of the text, unless one is open. */
static bool open_text_page(RowReader *reader, Error *error) {
    if (reader->page.stored) return true;
    reader->page_row = 0;
    reader->shared = false;
    if (!parquet_column_page(&reader->column, &reader->page, error)) return false;
    return reader->page.stored || parquet_refuse(error, "column %s has fewer values than rows", reader->field);
}

/* -- Records --------------------------------------------------------------------------------------------------------- */

/* Steps over rows: each is a line and a document. */
static void pass_position(RecordPosition *at, int64_t rows) {
    at->byte += rows;
    at->line += rows;
    at->document += rows;
}

/* Adds the record of the next row, and steps over the row. */
static Record *add_row(Block *block, RecordPosition *at) {
    array_reserve(block->records, block->record_capacity, block->count + 1);
    Record *record = &block->records[block->count++];
    *record = (Record){.start = block->size,
        .valid = record_is_valid(at->document, block->valid_fraction),
        .first = true,
        .last = true,
        .file = at->file,
        .line = at->line};
    pass_position(at, 1);
    record->end = *at;
    return record;
}

static void set_row_text(Block *block, Record *record, const char *text, size_t size) {
    if (size > RECORD_LIMIT) record->bad = PACK_BAD_LONG;
    else if (size == 0) record->bad = PACK_BAD_EMPTY;
    else block_append(block, text, size);
    record->size = block->size - record->start;
}

/* Adds a record that says why this row and the `more` rows after it are lost. */
static void add_row_fault(Block *block, RecordPosition *at, int64_t more, const char *what) {
    Record *record = add_row(block, at);
    SCOPED_FREE char *lost = memory_format("%" PRId64 " row%s lost: %s", more + 1, more ? "s are" : " is", what);
    record_mark(record, PACK_BAD_FILE, lost);
    pass_position(at, more);
    record->end = *at;
}

/* Adds the texts of a page until `left` of its values are left or the block is full. A damaged value loses the rest of the
 * page. */
static void add_texts(
    Block *block, ParquetValues *values, RecordPosition *at, const char *field, int64_t left, bool (*is_full)(const Block *block)) {
    ParquetValue value;
    Error fault = {0};
    char null[sizeof((Record *)0)->what];
    snprintf(null, sizeof null, "%s; it is null", field);
    while (values->left > left && !is_full(block)) {
        if (!parquet_values_next(values, &value, &fault)) {
            add_row_fault(block, at, values->left, fault.message);
            values->left = 0;
            return;
        }
        Record *record = add_row(block, at);
        if (value.defined < values->defined) record_mark(record, PACK_BAD_FIELD, null);
        else set_row_text(block, record, (const char *)value.bytes, value.size);
    }
}

/* -- Undecoded pages ------------------------------------------------------------------------------------------------- */

void block_drop_page(Block *block) {
    parquet_page_free(&block->page);
    parquet_dictionary_release(block->dictionary);
    block->dictionary = NULL;
}

static bool part_is_full(const Block *block) { return block->size >= PART_BYTES; }

/* Opens the block's page at the block's first row. */
static bool open_share(const Block *block, ParquetValues *values, Error *error) {
    ParquetValue value;
    if (!parquet_values_open(values, &block->page, block->dictionary, error)) return false;
    for (int64_t row = 0; row < block->page_row; row++)
        if (!parquet_values_next(values, &value, error)) return false;
    return true;
}

/* Damage loses the rest of the page. The block with the damaged row reports the loss; later blocks have no records. */
void block_read_page(Block *block, ParquetValues *values, const char *field) {
    Error fault = {0};
    int64_t left = block->page.values - block->page_end;
    if (!block->page.stored) return;
    if (block->page_open || open_share(block, values, &fault)) {
        block->page_open = true;
        add_texts(block, values, &block->page_at, field, left, part_is_full);
        if (values->left > left) return;
    } else if (block->page_first) add_row_fault(block, &block->page_at, block->page.values - block->page_row - 1, fault.message);
    block_drop_page(block);
}

/* Returns the average bytes of a dictionary's text. */
static int64_t indexed_bytes(const ParquetDictionary *dictionary) { return (int64_t)(dictionary->size / (dictionary->count + 1)) + 1; }

/* Returns how many rows of the open page a block gets undecoded; 0: the reader's thread decodes it. */
static int64_t rows_of_share(const RowReader *reader) {
    const ParquetPage *page = &reader->page;
    const ParquetDictionary *dictionary = reader->column.dictionary;
    bool alone = page->stands_alone && page->bytes >= PAGE_LEAST_BYTES && page->bytes <= PAGE_MOST_BYTES;
    if (page->values > PAGE_MOST_ROWS) return 0;
    if (alone) return page->values;
    if (!page->indexed || !dictionary || dictionary->size > DICTIONARY_MOST_BYTES) return 0;
    if (page->bytes > INDEX_MOST_BYTES || page->stored_bytes > INDEX_MOST_BYTES) return 0;
    int64_t each = indexed_bytes(dictionary);
    return each * page->values >= PAGE_LEAST_BYTES ? int_max(SHARE_BYTES / each, 1) : 0;
}

/* Gives a block the next rows of the open page, up to a multiple of `share`: a continued packing then makes the same blocks
 * wherever it begins. */
static void share_page(RowReader *reader, int64_t share, Block *block, RecordPosition *at) {
    ParquetPage *page = &reader->page;
    ParquetDictionary *dictionary = page->indexed ? reader->column.dictionary : NULL;
    int64_t end = int_min((reader->page_row / share + 1) * share, page->values), rows = end - reader->page_row;
    block->page = *page;
    if (end < page->values) {
        block->page.stored = memory_resize(NULL, (size_t)page->stored_bytes + 1);
        memcpy(block->page.stored, page->stored, (size_t)page->stored_bytes);
    } else page->stored = NULL;
    block->page_at = *at;
    block->page_row = reader->page_row;
    block->page_end = end;
    block->page_open = false;
    block->page_first = !reader->shared;
    block->page_bytes = page->bytes + (dictionary ? rows * indexed_bytes(dictionary) : 0);
    if (dictionary && !parquet_dictionary_is_shared(dictionary)) block->page_bytes += (int64_t)dictionary->size;
    block->dictionary = dictionary ? parquet_dictionary_hold(dictionary) : NULL;
    reader->page_row = end;
    reader->shared = true;
    pass_position(at, rows);
}

/* -- Filling blocks -------------------------------------------------------------------------------------------------- */

static bool fill_texts(RowReader *reader, RecordPosition *at, Block *block, Error *error) {
    Error fault = {0};
    if (!open_text_page(reader, error)) return false;
    int64_t before = at->byte, share = reader->decoding ? 0 : rows_of_share(reader);
    if (share > 0) share_page(reader, share, block, at);
    else if (!reader->decoding && !parquet_values_open(&reader->values, &reader->page, reader->column.dictionary, &fault)) {
        add_row_fault(block, at, reader->page.values - 1, fault.message);
        parquet_page_free(&reader->page);
    } else {
        reader->decoding = true;
        add_texts(block, &reader->values, at, reader->field, 0, block_is_full);
        reader->decoding = reader->values.left > 0;
        if (!reader->decoding) parquet_page_free(&reader->page);
    }
    reader->row += at->byte - before;
    return true;
}

static bool fill_json(RowReader *reader, RecordPosition *at, Block *block, Error *error) {
    const char *json;
    size_t size;
    for (; reader->row < reader->rows && !block_is_full(block); reader->row++) {
        if (!parquet_rows_next(reader->json, RECORD_LIMIT, &json, &size, error)) return false;
        Record *record = add_row(block, at);
        record->json = true;
        set_row_text(block, record, json, size);
    }
    return true;
}

bool row_reader_fill(RowReader *reader, RecordPosition *at, Block *block, Error *error) {
    bool good = reader->json_rows ? fill_json(reader, at, block, error) : fill_texts(reader, at, block, error);
    if (good && reader->row >= reader->rows) next_group(reader);
    return good;
}

/* -- Places ---------------------------------------------------------------------------------------------------------- */

/* Passes over the rows of the open row group before row `row`. */
static bool pass_rows(RowReader *reader, int64_t row, Error *error) {
    const char *json;
    size_t size;
    ParquetValue value;
    for (; reader->json_rows && reader->row < row; reader->row++)
        if (!parquet_rows_next(reader->json, RECORD_LIMIT, &json, &size, error)) return false;
    while (reader->row < row) {
        if (!open_text_page(reader, error)) return false;
        int64_t rest = row - reader->row;
        if (reader->page.values <= rest) {
            reader->row += reader->page.values;
            parquet_page_free(&reader->page);
            continue;
        }
        if (rows_of_share(reader) > 0) {
            reader->page_row = rest;
            reader->row = row;
            return true;
        }
        if (!parquet_values_open(&reader->values, &reader->page, reader->column.dictionary, error)) return false;
        for (reader->decoding = true; rest > 0; rest--, reader->row++)
            if (!parquet_values_next(&reader->values, &value, error)) return false;
    }
    return true;
}

static bool go_to(RowReader *reader, int64_t row, Error *error) {
    next_group(reader);
    while (!row_reader_ended(reader) && row >= reader->rows) {
        row -= reader->rows;
        next_group(reader);
    }
    parquet_expect(reader->file, reader->nodes, reader->count, reader->group);
    return row_reader_ended(reader) || pass_rows(reader, row, error);
}

RowReader *row_reader_open(const PackOptions *options, const ObjectPlace *place, int64_t row, Error *error) {
    static const char piped[] = "a Parquet file in a pipe or a compressed file, but it is read from its end: write it to a file first";
    if (!place) {
        parquet_refuse(error, "%s", piped);
        return NULL;
    }
    RowReader *reader = memory_allocate(sizeof *reader);
    bool chat = pack_is_chat(options->format), fields = options->filter && filter_field_count(options->filter) > 0;
    *reader = (RowReader){.field = options->field,
        .filter = options->filter,
        .json_rows = chat || fields || options->tokens,
        .group = -1,
        .file = parquet_open(place, error)};
    if (place->s3) reader->bytes = place->bytes;
    else file_kind(place->path, &reader->bytes);
    if (reader->file &&
        (options->tokens ? take_token_column(reader, options->tokens, error)
            : chat       ? take_chat_columns(reader, error)
                         : take_text_column(reader, error)) &&
        take_rule_columns(reader, error) && go_to(reader, row, error))
        return reader;
    row_reader_close(reader);
    return NULL;
}

void row_reader_close(RowReader *reader) {
    if (!reader) return;
    parquet_rows_free(reader->json);
    parquet_page_free(&reader->page);
    parquet_column_free(&reader->column);
    parquet_values_free(&reader->values);
    parquet_close(reader->file);
    free(reader->nodes);
    free(reader);
}
