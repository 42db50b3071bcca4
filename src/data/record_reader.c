/* Cuts the text of files into records, and collects them into blocks. A record of text is the part
 * between two separators; for JSON and tables, record_scan.c finds the records. A long document is
 * passed on in pieces, cut at places across which no tokenizer looks, so memory does not grow with
 * its length. Lines are counted for messages.
 *
 * A RecordReader owns a window on the current file. Its output depends only on the files and the
 * start position: a killed packing resumes at a recorded position. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "base/file.h"
#include "data/shard_set.h"
#include "token/tokenizer.h"
#include "data/data_internal.h"
#include "data/mixture.h"
#include "data/pack_internal.h"

enum { WINDOW_BYTES = 1 << 18, BLOCK_BYTES = 1 << 18, BLOCK_RECORDS = 1 << 12, PIECE_LIMIT = 1 << 30 /* limit of a tokenizer */ };

/* Objects of a bucket that are requested ahead: each costs a request, however small it is. */
enum { AHEAD_FILES = 16 };

struct RecordReader {
    const PackOptions *options;
    const PackFiles *files;
    PieceCut *cut;
    const void *context;
    RecordPosition at;
    const char *first_records; /* the first file that is not text; NULL: none yet */
    int64_t before;            /* bytes of the files before this one */
    /* The open file; the window holds bytes `begin` to `end`, which start at byte at.byte. */
    Input *input;
    Object *ahead[AHEAD_FILES]; /* objects of a bucket whose start is requested: file n at n % AHEAD_FILES */
    int64_t ahead_end;          /* the files before it have been opened */
    char *window;
    size_t begin, end, capacity;
    bool ended, line_start;
    RecordFormat format;
    RecordScan scan;      /* unless the format is text */
    TableFields **tables; /* of all tables, because blocks refer to them */
    size_t table_count;
    RowReader *rows; /* of a Parquet file, instead of the window */
    int64_t split;   /* byte at which the validation part begins; INT64_MAX: none, -1: every 1/fraction-th document */
    /* The open document. */
    bool open, valid;
    int64_t line;
    char *rest; /* its remaining text, cut off for the next block */
    size_t rest_size, rest_capacity;
    bool continued;
    int64_t first_document; /* first_document of the open file; -1: records have come from it */
    Error fault;            /* for compressed data: the file ends there */
};

static const ObjectPlace *place_of(const RecordReader *reader) { return &reader->files->items[reader->at.file].place; }

/* -- Blocks ------------------------------------------------------------------------------------------------------ */

static void free_records(Block *block) {
    for (size_t i = 0; i < block->count; i++) {
        free(block->records[i].owned);
        free(block->records[i].keys);
        free(block->records[i].spans);
    }
    block->count = 0;
}

void block_clear(Block *block) {
    free_records(block);
    block->size = block->ids.count = 0;
    part_words_clear(&block->words);
}

void block_free(Block *block) {
    free_records(block);
    block_drop_page(block);
    free(block->text);
    free(block->records);
    token_ids_free(&block->ids);
    part_words_free(&block->words);
    *block = (Block){0};
}

int64_t block_bytes(const Block *block) {
    int64_t rows = (int64_t)block->count + (block->page.stored ? block->page_end - block->page_row : 0);
    return (int64_t)block->size + rows * (int64_t)sizeof *block->records + (block->page.stored ? block->page_bytes : 0);
}

bool block_is_full(const Block *block) { return block->size >= BLOCK_BYTES || block->count >= BLOCK_RECORDS; }

void block_append(Block *block, const char *bytes, size_t size) {
    array_reserve(block->text, block->capacity, block->size + size);
    if (size > 0) memcpy(block->text + block->size, bytes, size);
    block->size += size;
}

/* Adds the record that begins here. */
static Record *open_record_format(RecordReader *reader, Block *block) {
    array_reserve(block->records, block->record_capacity, block->count + 1);
    Record *record = &block->records[block->count++];
    *record = (Record){.start = block->size,
        .json = reader->format.shape != SHAPE_TEXT && reader->format.shape != SHAPE_TABLE,
        .place = reader->format.place,
        .valid = reader->valid,
        .first = !reader->continued,
        .file = reader->at.file,
        .line = reader->line};
    return record;
}

/* -- Start of the validation part of a plain text ------------------------------------------------------------------ */

/* A mapped file. */
typedef struct WindowText {
    const char *bytes;
    size_t size;
} WindowText;

/* Returns one past the newline that ends the line with byte `at`, or the size. */
static size_t line_end(WindowText text, size_t at) {
    const char *newline = memchr(text.bytes + at, '\n', text.size - at);
    return newline ? (size_t)(newline - text.bytes) + 1 : text.size;
}

static size_t line_start(WindowText text, size_t at) {
    const char *newline = memrchr(text.bytes, '\n', at);
    return newline ? (size_t)(newline - text.bytes) + 1 : 0;
}

/* Returns the bytes of the separator line that `text` begins with, including the line end; 0:
 * none. */
static size_t separator_bytes(WindowText text, const char *separator) {
    size_t size = strlen(separator);
    if (text.size < size || memcmp(text.bytes, separator, size) != 0) return 0;
    if (size < text.size && text.bytes[size] == '\r') size++;
    if (size == text.size) return size;
    return text.bytes[size] == '\n' ? size + 1 : 0;
}

/* Returns whether a file may be cut after the line [start, end): any line, or only separators. */
static bool is_cut(WindowText text, size_t start, size_t end, const char *separator) {
    return !*separator || separator_bytes((WindowText){text.bytes + start, end - start}, separator) > 0;
}

/* Returns the first cut at or after `wanted` (>= 1), or else the last one before it that leaves
 * half of the file in the head, or else 0. */
static size_t find_cut(WindowText text, size_t wanted, const char *separator) {
    size_t start, end;
    for (start = line_start(text, wanted - 1); start < text.size; start = end) {
        end = line_end(text, start);
        if (end < text.size && is_cut(text, start, end, separator)) return end;
    }
    for (end = line_start(text, wanted - 1); end >= text.size / 2 && end > 0; end = start) {
        start = line_start(text, end - 1);
        if (is_cut(text, start, end, separator)) return end;
    }
    return 0;
}

static int64_t split_point(WindowText text, const PackOptions *options) {
    size_t tail = (size_t)((double)text.size * options->valid_fraction);
    if (text.size < 2) return INT64_MAX;
    size_t wanted = text.size - (tail > 0 ? tail : 1);
    size_t cut = find_cut(text, wanted, options->separator);
    if (cut == 0) cut = find_cut(text, wanted, "");
    return cut == 0 ? INT64_MAX : (int64_t)cut;
}

static bool find_split(RecordReader *reader, const char *path, Error *error) {
    reader->split = INT64_MAX;
    if (reader->options->valid_fraction == 0) return true;
    bool stream = !strcmp(path, "-") || input_compressed(reader->input) || place_of(reader)->s3;
    bool documents = *reader->options->separator || reader->files->list.count > 1;
    if (reader->format.shape != SHAPE_TEXT || (stream && documents)) reader->split = -1; /* every so many documents */
    if (reader->split < 0) return true;
    if (stream)
        return error_set(error, ERROR_DATA,
            "%s is one document of unknown length, so smelt cannot split off a validation part: set separator=, %s, or set "
            "valid=0 (in training data.valid=FILE for another text, or data.valid_fraction=0 for none)",
            path, place_of(reader)->s3 ? "copy it to a local file" : "unpack it to a file");
    SCOPED(file_unmap) FileMap map;
    if (!file_map(&map, path, error)) return error_recode(error, ERROR_DATA);
    reader->split = split_point((WindowText){(const char *)map.bytes, map.size}, reader->options);
    return true;
}

/* -- The window ---------------------------------------------------------------------------------------------------- */

/* Reads more data into the window, and enlarges a full one. Damaged data ends the file. */
static bool refill(RecordReader *reader, Error *error) {
    size_t held = reader->end - reader->begin, count;
    if (held > 0) memmove(reader->window, reader->window + reader->begin, held);
    reader->begin = 0;
    array_reserve(reader->window, reader->capacity, held >= reader->capacity / 2 ? 2 * held + WINDOW_BYTES : WINDOW_BYTES);
    size_t wanted = held ? reader->capacity - held : WINDOW_BYTES;
    bool good = input_read(reader->input, reader->window + held, wanted, &count, error);
    reader->end = held + count;
    reader->ended = !good || count < wanted;
    if (good || !input_damaged(reader->input)) return good;
    reader->fault = *error;
    *error = (Error){0};
    return true;
}

static int64_t count_lines(const char *bytes, size_t size) {
    int64_t lines = 0;
#pragma omp simd reduction(+ : lines)
    for (size_t i = 0; i < size; i++) lines += bytes[i] == '\n';
    return lines;
}

static void step_over(RecordReader *reader, size_t size) {
    if (size == 0) return;
    reader->at.line += count_lines(reader->window + reader->begin, size);
    reader->line_start = reader->window[reader->begin + size - 1] == '\n';
    reader->at.byte += (int64_t)size;
    reader->begin += size;
}

/* -- Documents of text ----------------------------------------------------------------------------------------------- */

bool record_is_valid(int64_t number, double fraction) {
    return (int64_t)((double)(number + 1) * fraction) > (int64_t)((double)number * fraction);
}

static void begin_record_document(RecordReader *reader) {
    if (reader->open) return;
    int64_t number = reader->at.document++;
    reader->open = true;
    reader->continued = false;
    reader->line = reader->at.line;
    reader->valid = reader->split < 0 ? record_is_valid(number, reader->options->valid_fraction) : reader->at.byte >= reader->split;
}

/* Returns how many bytes of the window belong to the open document. `*behind`: bytes of the
 * separator after it; `*ends`: the document ends. */
static size_t find_text(const RecordReader *reader, size_t *behind, bool *ends) {
    const char *separator = reader->options->separator;
    WindowText text = {reader->window + reader->begin, reader->end - reader->begin};
    int64_t to_split = reader->split - reader->at.byte;
    bool split = to_split > 0 && to_split <= (int64_t)text.size, whole = split || reader->ended;
    if (split) text.size = (size_t)to_split;
    *behind = 0;
    *ends = whole;
    size_t length = strlen(separator), at = 0;
    while (length > 0 && at < text.size) {
        const char *found = memmem(text.bytes + at, text.size - at, separator, length);
        if (!found) return whole ? text.size : text.size - (size_t)int_min((int64_t)length - 1, (int64_t)(text.size - at));
        at = (size_t)(found - text.bytes);
        bool starts = at == 0 ? reader->line_start : text.bytes[at - 1] == '\n';
        if (starts && !whole && text.size - at < length + 2) return at; /* its line end is not in the window yet */
        *behind = starts ? separator_bytes((WindowText){found, text.size - at}, separator) : 0;
        if (*behind > 0) *ends = true;
        if (*behind > 0) return at;
        at++;
    }
    return text.size;
}

static bool close_record(RecordReader *reader, Block *block, Record *record) {
    record->size = block->size - record->start;
    record->last = true;
    reader->open = false;
    if (record->first && record->size == 0) record->bad = PACK_BAD_EMPTY;
    record->end = reader->at;
    return true;
}

/* Leaves a piece of the open document in the block, and keeps the rest for the next block. Returns
 * false if there is no place to cut. */
static bool cut_piece(RecordReader *reader, Block *block, Record *record) {
    size_t size = block->size - record->start, cut = reader->cut(reader->context, block->text + record->start, size);
    if (cut == 0) return false;
    reader->rest_size = size - cut;
    array_reserve(reader->rest, reader->rest_capacity, reader->rest_size);
    if (reader->rest_size > 0) memcpy(reader->rest, block->text + record->start + cut, reader->rest_size);
    block->size -= reader->rest_size;
    record->size = cut;
    reader->line += count_lines(block->text + record->start, cut);
    reader->continued = true;
    return true;
}

/* Adds text to the block until a document ends or the block is full. */
static bool read_text(RecordReader *reader, Block *block, Error *error) {
    if (reader->begin == reader->end && !reader->ended && !refill(reader, error)) return false;
    if (!reader->open && reader->begin == reader->end) return true;
    begin_record_document(reader);
    Record *record = open_record_format(reader, block);
    size_t room = BLOCK_BYTES;
    block_append(block, reader->rest, reader->rest_size);
    reader->rest_size = 0;
    for (;;) {
        size_t behind, size;
        bool ends;
        size = find_text(reader, &behind, &ends);
        block_append(block, reader->window + reader->begin, size);
        step_over(reader, size + behind);
        if (ends) return close_record(reader, block, record);
        if (block->size - record->start >= room) {
            if (cut_piece(reader, block, record)) return true;
            room = 2 * (block->size - record->start);
            if (room > PIECE_LIMIT)
                return error_set(error, ERROR_DATA, "line %" PRId64 " of %s begins a document above 512 MiB: set separator= to divide it",
                    record->line, reader->files->list.entries[reader->at.file].name);
        }
        if (!refill(reader, error)) return false;
    }
}

/* -- Records of JSON and of tables -------------------------------------------------------------------------------------- */

/* Adds a record that reports a fault at this place of the file. */
static void add_fault(RecordReader *reader, Block *block, PackBad bad, const char *what) {
    begin_record_document(reader);
    Record *record = open_record_format(reader, block);
    record_mark(record, bad, what);
    record->last = true;
    record->end = reader->at;
    reader->open = false;
}

/* Skips the bytes between two records, up to the next record or the end of the file. A byte that cannot begin a
 * record ends the file, because nothing says where the next record begins. */
static bool find_record(RecordReader *reader, Block *block, bool *found, Error *error) {
    bool fault;
    for (;;) {
        step_over(reader, record_scan_gap(&reader->scan, reader->window + reader->begin, reader->end - reader->begin, &fault));
        *found = reader->begin < reader->end && !fault;
        if (reader->begin < reader->end || reader->ended) break;
        if (!refill(reader, error)) return false;
    }
    if (!fault) return true;
    char what[96];
    snprintf(what, sizeof what, "byte %02x is neither a record nor the end of the array: the rest of the file is skipped",
        (unsigned char)reader->window[reader->begin]);
    add_fault(reader, block, PACK_BAD_JSON, what);
    record_scan_give_up(&reader->scan);
    reader->begin = reader->end;
    reader->ended = true;
    return true;
}

/* Adds one record; one above the limit is skipped. */
static bool read_next_record(RecordReader *reader, Block *block, Error *error) {
    bool ends = false, found;
    if (!find_record(reader, block, &found, error)) return false;
    if (!found) return true;
    begin_record_document(reader);
    Record *record = open_record_format(reader, block);
    int64_t start = reader->at.byte;
    for (;;) {
        size_t used = record_scan(&reader->scan, reader->window + reader->begin, reader->end - reader->begin, &ends);
        bool keeps = reader->at.byte + (int64_t)used - start <= RECORD_LIMIT;
        if (keeps) block_append(block, reader->window + reader->begin, used);
        step_over(reader, used);
        if (ends || (reader->begin == reader->end && reader->ended)) break;
        if (!refill(reader, error)) return false;
    }
    if (!ends) record_scan_give_up(&reader->scan);
    close_record(reader, block, record);
    if (reader->at.byte - start <= RECORD_LIMIT) return true;
    record->bad = PACK_BAD_LONG;
    block->size = record->start;
    record->size = 0;
    return true;
}

/* -- Files ----------------------------------------------------------------------------------------------------------- */

static bool named(const RecordReader *reader) { return reader->files->items[reader->at.file].named; }

/* Returns whether a path is a file of a token shard or of a folder of shards, including its record,
 * its lists of documents and its tokenizer. Its bytes would pass for text, and a model would learn them. */
static bool is_shard_file(const char *path, char **prefix) {
    static const struct {
        const char *suffix, *tokens; /* after PREFIX, or after the name of a folder of shards */
        bool folder;                 /* the suffix names a folder of files */
    } kinds[] = {{".bin", ".bin", false}, {".idx", ".bin", false}, {".pack.json", ".bin", false}, {"/pack.json", "/shard-00000.bin", false},
        {"." PACK_DROPPED, ".bin", false}, {"/" PACK_DROPPED, "/shard-00000.bin", false}, {"." PACK_DEDUP_NAME, ".bin", false},
        {"/" PACK_DEDUP_NAME, "/shard-00000.bin", false}, {".tokenizer", ".bin", true}, {"/tokenizer", "/shard-00000.bin", true}};
    const char *slash = strrchr(path, '/');
    SCOPED_FREE char *folder = memory_format("%.*s", slash ? (int)(slash - path) : 0, path);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const char *name = kinds[i].folder ? folder : path;
        if (!ends_with(name, kinds[i].suffix)) continue;
        free(*prefix);
        *prefix = memory_format("%.*s", (int)(strlen(name) - strlen(kinds[i].suffix)), name);
        SCOPED_FREE char *tokens = memory_format("%s%s", *prefix, kinds[i].tokens);
        if (file_exists(tokens) && shard_set_exists(*prefix)) return true;
    }
    return false;
}

static bool refuse_file(const RecordReader *reader, const char *path, const NotText *why, Error *error) {
    const char *columns = reader->format.shape == SHAPE_TABLE ? reader->format.columns : "";
    const char *after = *columns ? "; its columns are " : reader->format.shape == SHAPE_TEXT ? ", not text" : "";
    return error_set(
        error, ERROR_DATA, "%s is %s%s%s: %s", strcmp(path, "-") ? path : "standard input", why->what, after, columns, why->advice);
}

/* Recognizes the content of the file, from its name and the start of the window. A named file must
 * hold text. */
static bool take_format(RecordReader *reader, const char *path, NotText *why, Error *error) {
    static const NotText of_shard = {"a file of a token shard", "give the prefix of the shard, without .bin or .idx"};
    SCOPED_FREE char *prefix = NULL;
    bool shard = is_shard_file(path, &prefix);
    if (named(reader) && !mixture_refuse(path, error)) return false;
    if (named(reader) && shard)
        return error_set(
            error, ERROR_DATA, "%s is part of a token shard, not text: give the prefix of the shard, as in data.train=%s", path, prefix);
    bool text =
        !shard && file_format(reader->options, path, reader->window + reader->begin, reader->end - reader->begin, &reader->format, why);
    if (shard) *why = of_shard;
    if (text) *why = (NotText){0};
    return text || !named(reader) || refuse_file(reader, path, why, error);
}

/* Finds the columns that rules read, which file_format has found in the header. */
static void find_table_fields(RecordReader *reader, const char *header, size_t size) {
    const DocumentFilter *filter = reader->options->filter;
    size_t count = filter ? filter_field_count(filter) : 0;
    if (count == 0 || reader->format.shape != SHAPE_TABLE) return;
    TableFields *fields = memory_allocate(sizeof *fields);
    *fields = (TableFields){filter, memory_allocate(count * sizeof *fields->columns)};
    array_append(reader->tables, reader->table_count, fields);
    for (size_t i = 0; i < count; i++) {
        RecordFormat format = reader->format;
        char names[2];
        table_header(header, size, filter_field(filter, i), &format, names, sizeof names);
        fields->columns[i] = format.place.column;
    }
    reader->format.place.fields = fields;
}

/* Moves to the byte where a packing was interrupted, the start of a line. Compressed data is read
 * up to it. */
static bool skip_to(RecordReader *reader, const char *path, int64_t byte, Error *error) {
    int64_t line = reader->at.line;
    if (strcmp(path, "-") && !input_compressed(reader->input)) {
        input_seek(reader->input, byte);
        reader->begin = reader->end = 0;
        return refill(reader, error);
    }
    for (reader->at.byte = 0; reader->at.byte < byte;) {
        if (reader->begin == reader->end && !reader->ended && !refill(reader, error)) return false;
        if (reader->begin == reader->end)
            return error_set(error, ERROR_DATA, "%s became shorter since the packing started: set overwrite=true to start over", path);
        step_over(reader, (size_t)int_min(byte - reader->at.byte, (int64_t)(reader->end - reader->begin)));
    }
    reader->at.line = line;
    return true;
}

/* Adds a record that says why a file is skipped. */
static Record *leave_file_out(RecordReader *reader, Block *block, const NotText *why) {
    reader->format = (RecordFormat){0};
    reader->line = reader->at.line;
    Record *record = open_record_format(reader, block);
    record->left_out = *why;
    reader->first_document = -1;
    reader->begin = reader->end;
    reader->ended = true;
    return record;
}

/* Leaves out a Parquet file for the reason that the error gives; for a named file it stays an error. */
static bool refuse_rows(RecordReader *reader, const char *path, Block *block, Error *error) {
    if (error->finding != FINDING_DAMAGED) return error_context(error, "%s", path);
    if (named(reader)) return error_set(error, ERROR_DATA, "%s is %s", strcmp(path, "-") ? path : "standard input", error->message);
    char *what = memory_copy_string(error->message), *advice = what;
    for (char *colon = what; (colon = strstr(colon, ": ")); colon++) advice = colon;
    *advice = '\0';
    leave_file_out(reader, block, &(NotText){what, advice + 2})->owned = what;
    *error = (Error){0};
    return true;
}

/* Opens a Parquet file, whose footer is at its end. */
static bool open_rows(RecordReader *reader, const char *path, Block *block, Error *error) {
    bool stream = !strcmp(path, "-") || input_compressed(reader->input);
    reader->begin = reader->end = 0;
    reader->rows = row_reader_open(reader->options, stream ? NULL : place_of(reader), reader->at.byte, error);
    reader->ended = !reader->rows || row_reader_ended(reader->rows);
    return reader->rows || refuse_rows(reader, path, block, error);
}

static bool read_rows(RecordReader *reader, Block *block, Error *error) {
    bool good = row_reader_fill(reader->rows, &reader->at, block, error);
    reader->ended = !good || row_reader_ended(reader->rows);
    if (good || error->finding != FINDING_DAMAGED) return good;
    error_context(error, "the last %" PRId64 " rows are lost", row_reader_rows(reader->rows) - reader->at.byte);
    reader->fault = *error;
    *error = (Error){0};
    return true;
}

/* Opens the next objects of a bucket. A failure is ignored: open_input_file tries again. */
static void open_ahead(RecordReader *reader) {
    int64_t end = int_min(reader->at.file + AHEAD_FILES, (int64_t)reader->files->list.count);
    if (reader->ahead_end < reader->at.file) reader->ahead_end = reader->at.file;
    for (; reader->ahead_end < end; reader->ahead_end++) {
        const ObjectPlace *place = &reader->files->items[reader->ahead_end].place;
        Error ignored = {0};
        Object *object = place->s3 ? object_open(place, &ignored) : NULL;
        if (object) object_begin(object, INPUT_START);
        reader->ahead[reader->ahead_end % AHEAD_FILES] = object;
    }
}

static Object *take_ahead(RecordReader *reader) {
    Object **place = &reader->ahead[reader->at.file % AHEAD_FILES], *object = *place;
    *place = NULL;
    return object;
}

static bool open_input_file(RecordReader *reader, Block *block, Error *error) {
    const char *path = reader->files->list.entries[reader->at.file].name;
    int64_t start = reader->at.byte;
    open_ahead(reader);
    reader->input = input_open(place_of(reader), take_ahead(reader), error);
    reader->begin = reader->end = 0;
    reader->ended = false;
    reader->line_start = true;
    reader->fault = (Error){0};
    reader->format = (RecordFormat){0};
    reader->scan = (RecordScan){0};
    if (!reader->input || !refill(reader, error)) return false;
    reader->first_document = start > 0 ? -1 : reader->at.document;
    NotText why;
    if (reader->end == 0 && !reader->fault.code) return true;
    if (!take_format(reader, path, &why, error)) return false;
    if (why.what) leave_file_out(reader, block, &why);
    if (why.what) return true;
    if (reader->format.shape != SHAPE_TEXT && !reader->first_records) reader->first_records = path;
    if (reader->format.shape == SHAPE_ROWS) return open_rows(reader, path, block, error);
    find_table_fields(reader, reader->window + reader->begin + reader->format.mark, reader->end - reader->begin - reader->format.mark);
    reader->scan = record_scan_start(&reader->format, start > 0);
    if (!find_split(reader, path, error)) return false;
    if (start > 0) return skip_to(reader, path, start, error);
    step_over(reader, reader->format.mark + reader->format.header);
    return true;
}

/* Closes the file; a damaged one leaves a record of the damage. */
static void close_file(RecordReader *reader, Block *block) {
    input_close(reader->input);
    row_reader_close(reader->rows);
    reader->input = NULL;
    reader->rows = NULL;
    static const NotText nothing = {"without a document", NULL};
    if (reader->first_document == reader->at.document && !reader->fault.code) leave_file_out(reader, block, &nothing);
    reader->line = reader->at.line;
    Record *record = reader->fault.code || record_scan_open(&reader->scan) ? open_record_format(reader, block) : NULL;
    if (record && reader->fault.code) record_mark(record, PACK_BAD_FILE, reader->fault.message);
    else if (record) record_mark(record, PACK_BAD_JSON, "the array does not end");
    reader->before += int_max(pack_files_bytes(reader->files, reader->at.file), 0);
    reader->at = (RecordPosition){reader->at.file + 1, 0, 1, reader->at.document};
    if (record) record->last = true, record->end = reader->at;
}

/* -- Reading --------------------------------------------------------------------------------------------------------- */

RecordReader *record_reader_open(
    const PackOptions *options, const PackFiles *files, PieceCut *cut, const void *context, RecordPosition start) {
    RecordReader *reader = memory_allocate(sizeof *reader);
    *reader = (RecordReader){.options = options, .files = files, .cut = cut, .context = context, .at = start};
    for (int64_t i = 0; i < start.file; i++) reader->before += int_max(pack_files_bytes(files, i), 0);
    return reader;
}

const char *record_reader_first_records(const RecordReader *reader) { return reader->first_records; }

bool record_reader_fill(RecordReader *reader, Block *block, Error *error) {
    array_reserve(block->text, block->capacity, BLOCK_BYTES);
    block->valid_fraction = reader->options->valid_fraction;
    while (reader->at.file < (int64_t)reader->files->list.count && !block_is_full(block) && !block->page.stored) {
        if (!reader->input && !open_input_file(reader, block, error)) return false;
        bool left = reader->open || reader->begin < reader->end || !reader->ended;
        if (!left) close_file(reader, block);
        else if (reader->rows && !read_rows(reader, block, error)) return false;
        else if (!reader->rows &&
                 !(reader->format.shape == SHAPE_TEXT ? read_text(reader, block, error) : read_next_record(reader, block, error)))
            return false;
        if (reader->continued && reader->open) break; /* the piece fills the block */
    }
    block->done = reader->before + (reader->rows ? row_reader_position(reader->rows) : reader->input ? input_position(reader->input) : 0);
    return true;
}

void record_reader_free(RecordReader *reader) {
    if (!reader) return;
    input_close(reader->input);
    row_reader_close(reader->rows);
    for (int i = 0; i < AHEAD_FILES; i++) object_close(reader->ahead[i]);
    for (size_t i = 0; i < reader->table_count; i++) {
        free(reader->tables[i]->columns);
        free(reader->tables[i]);
    }
    free(reader->tables);
    free(reader->window);
    free(reader->rest);
    free(reader);
}
