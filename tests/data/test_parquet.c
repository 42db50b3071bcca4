/* Tests of Parquet files as inputs of a packing. Files of pyarrow, polars, duckdb and carquet (tests/golden/parquet.py) give
 * the shards of the same rows as JSON lines. Other files are written here byte by byte, for what no writer writes. Each
 * test runs in a temporary folder of its own; run by `make test`. */
#include <omp.h>

#include "support/data_files.h"

#include "base/array.h"
#include "base/rng.h"
#include "data/pack.h"
#include "data/pack_internal.h"
#include "support/mentions.h"

static char golden[4096];

static PackResult pack_input(const char *input, const char *output, PackOptions options) {
    PackResult result;
    Error error = {0};
    options.inputs = (const char *[]){input, NULL};
    options.output = output;
    options.separator = "";
    options.overwrite = true;
    SCOPED_FREE char *template = memory_format("%s/template.jinja", golden);
    if (options.format == PACK_CHAT) options.template = template;
    if (!pack_text(&options, &result, &error)) fail_msg("%s: %s", input, error.message);
    return result;
}

static void assert_input_refused(const char *input, PackOptions options, const char *part) {
    PackResult result;
    Error error = {0};
    options.inputs = (const char *[]){input, NULL};
    options.output = "out";
    options.separator = "";
    options.overwrite = true;
    assert_false(pack_text(&options, &result, &error));
    assert_int_equal(error.code, ERROR_DATA);
    if (!mentions(error.message, part)) fail_msg("%s: \"%s\" does not contain \"%s\"", input, error.message, part);
}

static void assert_same_file(const char *a, const char *b) {
    size_t sizes[2];
    SCOPED_FREE unsigned char *left = read_bytes(a, &sizes[0]), *right = read_bytes(b, &sizes[1]);
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(left, right, sizes[0]);
}

static void assert_same_shard(const char *a, const char *b) {
    static const char *const endings[] = {".bin", ".idx"};
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *left = memory_format("%s%s", a, endings[i]), *right = memory_format("%s%s", b, endings[i]);
        assert_same_file(left, right);
    }
}

/* -- Files of other programs ------------------------------------------------------------------------------------------- */

static void rows_give_the_shard_of_their_json_lines(void **state) {
    (void)state;
    FileList list;
    Error error = {0};
    int counts[2] = {0};
    assert_true(file_list(golden, &list, &error));
    for (int chat = 0; chat < 2; chat++) {
        SCOPED_FREE char *lines = memory_format("%s/%s.jsonl", golden, chat ? "chats" : "texts");
        PackOptions options = {.format = chat ? PACK_CHAT : PACK_AUTO, .valid_fraction = 0.25};
        PackResult expected = pack_input(lines, "lines", options);
        for (size_t i = 0; i < list.count; i++) {
            const char *name = list.entries[i].name;
            if (strncmp(name, chat ? "chats-" : "texts-", 6) != 0) continue;
            SCOPED_FREE char *path = memory_format("%s/%s", golden, name);
            print_message("%s\n", name);
            PackResult result = pack_input(path, "rows", options);
            assert_int_equal(result.documents, expected.documents);
            assert_int_equal(result.bad[PACK_BAD_FIELD], expected.bad[PACK_BAD_FIELD]);
            assert_int_equal(result.bad[PACK_BAD_EMPTY], expected.bad[PACK_BAD_EMPTY]);
            assert_int_equal(result.bad[PACK_BAD_CHAT], expected.bad[PACK_BAD_CHAT]);
            assert_same_shard("rows-train", "lines-train");
            assert_same_shard("rows-valid", "lines-valid");
            counts[chat]++;
        }
    }
    assert_true(counts[0] >= 18 && counts[1] >= 4);
    file_list_free(&list);
}

/* The name of each file is what its message says. */
static void columns_that_are_not_read_are_refused_by_name(void **state) {
    (void)state;
    FileList list;
    Error error = {0};
    SCOPED_FREE char *folder = memory_format("%s/refused", golden);
    assert_true(file_list(folder, &list, &error));
    assert_true(list.count >= 11);
    for (size_t i = 0; i < list.count; i++) {
        SCOPED_FREE char *path = memory_format("%s/%s", folder, list.entries[i].name);
        SCOPED_FREE char *told = memory_format("%.*s", (int)strlen(list.entries[i].name) - 8, list.entries[i].name);
        assert_input_refused(path, (PackOptions){0}, told);
    }
    file_list_free(&list);
}

static void copy_golden(const char *name, const char *to) {
    size_t size;
    SCOPED_FREE char *path = memory_format("%s/%s", golden, name);
    SCOPED_FREE unsigned char *bytes = read_bytes(path, &size);
    write_bytes(to, bytes, size);
}

/* A schema of its root alone, no rows, no row groups, and the 20 bytes of this footer. */
static const char no_columns[] = "PAR1\x15\x02\x19\x1c\x48\x06schema\x15\0\0\x16\0\x19\x0c\0\x14\0\0\0PAR1";

static void files_of_a_folder_are_taken_or_left_out_by_reason(void **state) {
    (void)state;
    assert_int_equal(mkdir("in", 0777), 0);
    copy_golden("texts-dictionary-snappy.parquet", "in/a.parquet");
    copy_golden("texts-polars.parquet", "in/b"); /* recognized by its content */
    copy_golden("refused/text is a list.parquet", "in/c.parquet");
    write_text("in/d.parquet", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    write_bytes("in/e.parquet", "PAR1\0\0\0\0and nothing more", 24);
    write_bytes("in/f.parquet", "PARE\0\0\0\0", 8);
    PackResult result = pack_input("in", "out", (PackOptions){0}), one = pack_input("in/a.parquet", "one", (PackOptions){0});
    assert_int_equal(result.files, 2);
    assert_int_equal(result.documents, 2 * one.documents);
    size_t size;
    SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size);
    static const char *const reasons[] = {
        "a Parquet file whose column text is a list, not text", "named .parquet", "a damaged Parquet file (its end is missing)"};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) assert_holds(record, reasons[i]);
    assert_input_refused("in/d.parquet", (PackOptions){0}, "git lfs pull");
    assert_input_refused("in/f.parquet", (PackOptions){0}, "an encrypted Parquet file");
    assert_input_refused("in/a.parquet", (PackOptions){.field = "body"}, "without the column body; its columns are");
    assert_input_refused("in/a.parquet", (PackOptions){.format = PACK_TEXT}, "leave format=text out");
    write_bytes("empty.parquet", no_columns, sizeof no_columns - 1);
    assert_input_refused("empty.parquet", (PackOptions){0}, "a Parquet file without columns");
    assert_int_equal(system("gzip -k in/a.parquet"), 0);
    assert_input_refused("in/a.parquet.gz", (PackOptions){0}, "write it to a file first");
    copy_golden("chats-polars.parquet", "chats");
    assert_input_refused("chats", (PackOptions){.format = PACK_JSON}, "pass format=chat");
    SCOPED_FREE char *template = memory_format("%s/template.jinja", golden);
    assert_int_equal(pack_input("chats", "out", (PackOptions){.template = template}).format, PACK_CHAT);
    copy_golden("texts-duckdb.parquet", "chats");
    assert_input_refused("chats", (PackOptions){.format = PACK_CHAT, .template = "chatml"}, "its columns are id, text, score, flag");
}

/* Each prefix of a file, and the file with each byte changed, is refused or gives texts. */
static void damaged_files_are_refused_or_read(void **state) {
    (void)state;
    static const char *const names[] = {"texts-delta-byte-array.parquet", "chats-deltas.parquet"};
    for (int i = 0; i < 2; i++) {
        size_t size;
        SCOPED_FREE char *path = memory_format("%s/%s", golden, names[i]);
        SCOPED_FREE unsigned char *bytes = read_bytes(path, &size);
        for (size_t at = 8; at < 2 * size; at += i ? 29 : 5) {
            PackResult result;
            Error error = {0};
            PackOptions options = {.inputs = (const char *[]){"in.parquet", NULL}, .output = "out", .separator = "", .overwrite = true};
            if (i) options.format = PACK_CHAT, options.template = "chatml";
            if (at >= size) bytes[at - size] ^= (unsigned char)(1 + at % 255);
            write_bytes("in.parquet", bytes, at < size ? at : size);
            bool good = pack_text(&options, &result, &error);
            assert_true(good ? at >= size : error.code == ERROR_DATA && !strchr(error.message, '\n'));
            if (at >= size) bytes[at - size] ^= (unsigned char)(1 + at % 255);
        }
    }
}

/* -- Files that are written here --------------------------------------------------------------------------------------- */

typedef struct Bytes {
    unsigned char *at;
    size_t size, capacity;
} Bytes;

static void put(Bytes *out, const void *bytes, size_t size) {
    array_reserve(out->at, out->capacity, out->size + size + 1);
    if (size > 0) memcpy(out->at + out->size, bytes, size);
    out->size += size;
}

static void put_byte(Bytes *out, unsigned byte) { put(out, &(unsigned char){(unsigned char)byte}, 1); }

static void put_varint(Bytes *out, uint64_t value) {
    for (; value > 127; value >>= 7) put_byte(out, (unsigned)(value & 127) | 128);
    put_byte(out, (unsigned)value);
}

/* A field of a struct of Thrift's compact protocol, `step` after the one before. */
static void put_number(Bytes *out, int step, int64_t value) {
    put_byte(out, (unsigned)step << 4 | 6);
    put_varint(out, (uint64_t)value << 1 ^ (uint64_t)(value >> 63));
}

static void put_name(Bytes *out, int step, const char *name) {
    put_byte(out, (unsigned)step << 4 | 8);
    put_varint(out, strlen(name));
    put(out, name, strlen(name));
}

static void put_text(Bytes *out, const char *text, size_t size) {
    put(out, &(uint32_t){(uint32_t)size}, 4);
    put(out, text, size);
}

enum { PLAIN = 0, RLE = 3, DELTAS = 5, DELTA_LENGTHS = 6, DELTA_TEXTS = 7, DICTIONARY = 8 };
/* A page of a file: `dictionary`, or one of data. A field that is not 0 is written in place of the true one. */
typedef struct Page {
    bool dictionary;
    int encoding;
    int64_t values, bytes, stored;
    Bytes body;
} Page;

static void put_page(Bytes *out, const Page *page) {
    put_number(out, 1, page->dictionary ? 2 : 0);
    put_number(out, 1, page->bytes ? page->bytes : (int64_t)page->body.size);
    put_number(out, 1, page->stored ? page->stored : (int64_t)page->body.size);
    put_byte(out, (page->dictionary ? 4u : 2u) << 4 | 12);
    put_number(out, 1, page->values);
    put_number(out, 1, page->encoding);
    if (!page->dictionary) put_number(out, 1, RLE), put_number(out, 1, RLE);
    put_byte(out, 0);
    put_byte(out, 0);
    put(out, page->body.at, page->body.size);
}

/* An element of a schema; a value of -1 is not written. */
typedef struct Element {
    const char *name;
    int type, repetition, children, converted;
} Element;

static void put_element(Bytes *out, const Element *element) {
    const int64_t values[] = {[1] = element->type, [3] = element->repetition, [5] = element->children, [6] = element->converted};
    for (int id = 1, before = 0; id <= 6; id++) {
        if (id == 2 || (id != 4 && values[id] < 0)) continue;
        if (id == 4) put_name(out, id - before, element->name);
        else put_number(out, id - before, values[id]);
        before = id;
    }
    put_byte(out, 0);
}

/* What the footer of a file with one row group says, of each column the same. */
typedef struct Footer {
    const Element *schema;
    int elements, codec;
    int64_t rows, values;
} Footer;

/* Writes a file whose columns have `count` pages each, and frees the bodies of the pages. */
static void write_columns(const char *path, const Footer *said, Page *pages, size_t count, int columns) {
    Bytes out = {0}, footer = {0};
    put(&out, "PAR1", 4);
    put_number(&footer, 1, 1);
    put_byte(&footer, 1 << 4 | 9), put_byte(&footer, (unsigned)said->elements << 4 | 12);
    for (int i = 0; i < said->elements; i++) put_element(&footer, &said->schema[i]);
    put_number(&footer, 1, said->rows);
    put(&footer, "\x19\x1c", 2); /* a row group */
    put_byte(&footer, 1 << 4 | 9), put_byte(&footer, (unsigned)columns << 4 | 12);
    for (int i = 0; i < columns; i++) {
        int64_t start = (int64_t)out.size;
        for (Page *page = pages + i * count; page < pages + (i + 1) * count; page++) put_page(&out, page), free(page->body.at);
        put_number(&footer, 2, start);
        put_byte(&footer, 1 << 4 | 12);
        put_number(&footer, 1, 6), put_number(&footer, 3, said->codec), put_number(&footer, 1, said->values);
        put_number(&footer, 2, (int64_t)out.size - start), put_number(&footer, 2, start), put_byte(&footer, 0), put_byte(&footer, 0);
    }
    put_number(&footer, 2, said->rows), put_byte(&footer, 0), put_byte(&footer, 0);
    put(&out, footer.at, footer.size);
    put(&out, &(uint32_t){(uint32_t)footer.size}, 4);
    put(&out, "PAR1", 4);
    write_bytes(path, out.at, out.size);
    free(footer.at);
    free(out.at);
}

/* Writes a file with a required column `text`. */
static void write_parquet(const char *path, int codec, int64_t rows, Page *pages, size_t count) {
    static const Element schema[] = {{"schema", -1, -1, 1, -1}, {"text", 6, 0, -1, -1}};
    write_columns(path, &(Footer){schema, 2, codec, rows, rows}, pages, count, 1);
}

/* Numbered texts of `size` bytes; row `wrong` (-1: none) is said to be longer than the page. */
static Page plain_page(int64_t first, int64_t count, size_t size, int64_t wrong) {
    Page page = {.encoding = PLAIN, .values = count};
    SCOPED_FREE char *text = memory_allocate(size + 32);
    for (int64_t i = 0; i < count; i++) {
        snprintf(text, size + 32, "%0*lld", (int)size, (long long)(first + i));
        put_text(&page.body, text, size);
        if (i == wrong) page.body.at[page.body.size - size - 1] = 0x40;
    }
    return page;
}

enum { ROWS = 9000 };
/* Pages below 64 KiB, from there to 4 MiB, and above. */
static void write_pages(const char *path, int64_t wrong) {
    static const struct {
        int64_t rows;
        size_t size;
    } parts[] = {{100, 50}, {900, 300}, {1000, 120}, {2000, 3000}, {3000, 40}, {2000, 700}};
    Page pages[6];
    int64_t first = 0;
    for (int i = 0; i < 6; i++) {
        pages[i] = plain_page(first, parts[i].rows, parts[i].size, wrong >= first && wrong < first + parts[i].rows ? wrong - first : -1);
        first += parts[i].rows;
    }
    assert_int_equal(first, ROWS);
    write_parquet(path, 0, ROWS, pages, 6);
}

static void pages_of_all_sizes_give_the_same_on_any_number_of_threads(void **state) {
    (void)state;
    int threads = omp_get_max_threads();
    write_pages("in", -1);
    for (int count = 1; count <= 4; count++) {
        omp_set_num_threads(count);
        SCOPED_FREE char *output = memory_format("out%d", count);
        PackResult result = pack_input("in", output, (PackOptions){.valid_fraction = 0.1});
        assert_int_equal(result.documents, ROWS);
        assert_int_equal(result.text_bytes, 100 * 50 + 900 * 300 + 1000 * 120 + 2000 * 3000 + 3000 * 40 + 2000 * 700);
        SCOPED_FREE char *train = memory_format("%s-train", output), *valid = memory_format("%s-valid", output);
        if (count > 1) assert_same_shard(train, "out1-train"), assert_same_shard(valid, "out1-valid");
    }
    omp_set_num_threads(threads);
    SCOPED_FREE char *text = shard_text("out1-valid");
    int64_t number = 9;
    for (char *at = text; *at; at = strchr(at, '|') + 1, number += 10) assert_int_equal(strtoll(at, NULL, 10), number);
    assert_int_equal(number, ROWS + 9);
}

/* A damaged page loses its rows from the damaged one on; the pages after it are read. */
static void a_damaged_page_loses_its_rest_alone(void **state) {
    (void)state;
    static const struct { int64_t wrong, end; } cases[] = {{70, 100}, {100, 1000}, {1500, 2000}, {2500, 4000}, {8999, 9000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_pages("in", cases[i].wrong);
        PackResult result = pack_input("in", "out", (PackOptions){0});
        assert_int_equal(result.bad[PACK_BAD_FILE], 1);
        assert_int_equal(result.documents, ROWS - (cases[i].end - cases[i].wrong));
        size_t size;
        SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size),
                         *line = memory_format("\"line\": %lld", (long long)cases[i].wrong + 1);
        SCOPED_FREE char *lost = memory_format("\"%lld row%s lost: ", (long long)(cases[i].end - cases[i].wrong), i == 4 ? " is" : "s are");
        assert_holds(record, line);
        assert_holds(record, lost);
        PackResult unused;
        Error error = {0};
        PackOptions options = {
            .inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "", .overwrite = true, .invalid = PACK_INVALID_STOP};
        assert_false(pack_text(&options, &unused, &error));
        assert_int_equal(error.code, ERROR_DATA);
    }
}

/* -- Pages of indices -------------------------------------------------------------------------------------------------- */

/* Texts of 1.5 MB in a dictionary, so that a block gets 87 rows of a page, and a page is in many blocks. */
enum { ENTRIES = 500, ENTRY_BYTES = 3000, INDEXED_ROWS = 2700 };
static const int64_t indexed_parts[] = {1000, 1000, 700};

static int64_t entry_of(int64_t row) { return row * 7 % ENTRIES; }

/* Indices of 9 bits, each in a run of its own; that of row `wrong` (-1: none) is above the dictionary. */
static Page indexed_page(int64_t first, int64_t count, int64_t wrong) {
    Page page = {.encoding = DICTIONARY, .values = count};
    put_byte(&page.body, 9);
    for (int64_t row = first; row < first + count; row++) {
        put_varint(&page.body, 1 << 1);
        put(&page.body, &(uint16_t){(uint16_t)(row == wrong ? ENTRIES : entry_of(row))}, 2);
    }
    return page;
}

static Page entries_page(void) {
    Page page = plain_page(0, ENTRIES, ENTRY_BYTES, -1);
    page.dictionary = true;
    return page;
}

static void write_indexed(const char *path, int64_t wrong) {
    Page pages[4] = {entries_page()};
    int64_t first = 0;
    for (int i = 0; i < 3; first += indexed_parts[i++]) pages[i + 1] = indexed_page(first, indexed_parts[i], wrong);
    assert_int_equal(first, INDEXED_ROWS);
    write_parquet(path, 0, INDEXED_ROWS, pages, 4);
}

static void rows_of_a_dictionary_give_the_same_on_any_number_of_threads(void **state) {
    (void)state;
    int threads = omp_get_max_threads();
    Page plain = {.encoding = PLAIN, .values = INDEXED_ROWS};
    char text[ENTRY_BYTES + 1];
    for (int64_t row = 0; row < INDEXED_ROWS; row++) {
        snprintf(text, sizeof text, "%0*lld", ENTRY_BYTES, (long long)entry_of(row));
        put_text(&plain.body, text, ENTRY_BYTES);
    }
    write_parquet("plain", 0, INDEXED_ROWS, &plain, 1);
    pack_input("plain", "expected", (PackOptions){.valid_fraction = 0.1});
    write_indexed("in", -1);
    for (int count = 1; count <= 4; count++) {
        omp_set_num_threads(count);
        assert_int_equal(pack_input("in", "out", (PackOptions){.valid_fraction = 0.1}).documents, INDEXED_ROWS);
        assert_same_shard("out-train", "expected-train");
        assert_same_shard("out-valid", "expected-valid");
    }
    omp_set_num_threads(threads);
}

/* A damaged index loses the rows from it on, once, though other blocks have rows of the page too. */
static void a_damaged_index_loses_the_rest_of_its_page_once(void **state) {
    (void)state;
    static const struct {
        int64_t wrong, end;
    } cases[] = {{0, 1000}, {40, 1000}, {86, 1000}, {87, 1000}, {999, 1000}, {1500, 2000}, {2699, 2700}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_indexed("in", cases[i].wrong);
        PackResult result = pack_input("in", "out", (PackOptions){0});
        assert_int_equal(result.bad[PACK_BAD_FILE], 1);
        assert_int_equal(result.documents, INDEXED_ROWS - (cases[i].end - cases[i].wrong));
        size_t size;
        SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size),
                         *line = memory_format("\"line\": %lld", (long long)cases[i].wrong + 1);
        SCOPED_FREE char *lost = memory_format("\"%lld row", (long long)(cases[i].end - cases[i].wrong));
        assert_holds(record, line);
        assert_holds(record, lost);
    }
}

static void a_damaged_dictionary_loses_its_pages_alone(void **state) {
    (void)state;
    Page pages[4] = {entries_page(), indexed_page(0, 1000, -1), indexed_page(1000, 800, -1), plain_page(0, 900, 300, -1)};
    pages[0].body.at[3] = 0x40; /* the first text is longer than the page */
    write_parquet("in", 0, INDEXED_ROWS, pages, 4);
    PackResult result = pack_input("in", "out", (PackOptions){0});
    assert_int_equal(result.bad[PACK_BAD_FILE], 2);
    assert_int_equal(result.documents, 900);
    size_t size;
    SCOPED_FREE char *record = (char *)read_bytes("out.pack.json", &size);
    assert_holds(record, "\"1000 rows are lost: column text: its dictionary is malformed");
    assert_holds(record, "\"800 rows are lost: column text: its dictionary is malformed");
    assert_holds(record, "\"line\": 1001");
}

/* -- Continued packings ------------------------------------------------------------------------------------------------ */

static size_t cut_nowhere(const void *context, const char *text, size_t size) {
    (void)context, (void)text, (void)size;
    return 0;
}

/* The number that the first text from a position on ends with. */
static long long number_at(const PackOptions *options, const PackFiles *files, RecordPosition at) {
    RecordReader *reader = record_reader_open(options, files, cut_nowhere, NULL, at);
    Block block = {0};
    ParquetValues values = {0};
    Error error = {0};
    assert_true(record_reader_fill(reader, &block, &error));
    block_read_page(&block, &values, "text");
    assert_true(block.count > 0);
    enum { DIGITS = 10 };
    char digits[DIGITS + 1] = "";
    memcpy(digits, block.text + block.records[0].start + block.records[0].size - DIGITS, DIGITS);
    assert_int_equal(block.records[0].line, at.line);
    parquet_values_free(&values);
    block_free(&block);
    record_reader_free(reader);
    return strtoll(digits, NULL, 10);
}

static void a_packing_goes_on_at_any_row(void **state) {
    (void)state;
    write_pages("in", -1);
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .separator = "", .field = "text"};
    PackFiles files;
    Error error = {0};
    assert_true(pack_files_list(&files, options.inputs, false, NULL, &error));
    static const int64_t rows[] = {0, 1, 99, 100, 101, 999, 1000, 1999, 2000, 3333, 5000, 8999};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        RecordPosition at = {.byte = rows[i], .line = rows[i] + 1, .document = rows[i]};
        assert_int_equal(number_at(&options, &files, at), rows[i]);
    }
    write_indexed("in", -1);
    for (size_t i = 0; rows[i] < INDEXED_ROWS; i++) {
        RecordPosition at = {.byte = rows[i], .line = rows[i] + 1, .document = rows[i]};
        assert_int_equal(number_at(&options, &files, at), entry_of(rows[i]));
    }
    pack_files_free(&files);
}

/* Lists as older writers have them: the repeated field is the element (LogicalTypes.md, rules 2 and 3), or is a list that
 * no annotation names. */
static void lists_of_older_writers_are_read(void **state) {
    (void)state;
    enum { REQUIRED, OPTIONAL, REPEATED };
    static const Element schemas[][5] = {{{"schema", -1, -1, 1, -1}, {"messages", -1, OPTIONAL, 1, 3}, {"array", -1, REPEATED, 2, -1},
                                             {"role", 6, REQUIRED, -1, 0}, {"content", 6, REQUIRED, -1, 0}},
        {{"schema", -1, -1, 1, -1}, {"messages", -1, OPTIONAL, 1, 3}, {"messages_tuple", -1, REPEATED, 2, -1}, {"role", 6, REQUIRED, -1, 0},
            {"content", 6, REQUIRED, -1, 0}},
        {{"schema", -1, -1, 1, -1}, {"messages", -1, REPEATED, 2, -1}, {"role", 6, REQUIRED, -1, 0}, {"content", 6, REQUIRED, -1, 0}}};
    static const char *const texts[][4] = {{"user", "assistant", "user", "assistant"}, {"one", "two", "three", "four"}};
    write_text("lines",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"two\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"three\"}, {\"role\": \"assistant\", \"content\": \"four\"}]}\n");
    pack_input("lines", "expected", (PackOptions){.format = PACK_CHAT});
    for (int i = 0; i < 3; i++) {
        Page pages[2] = {{.values = 4}, {.values = 4}};
        bool bare = i == 2;
        for (int c = 0; c < 2; c++) {
            put(&pages[c].body, "\2\0\0\0\3\x0a", 6);                           /* repetition 0 1 0 1, bit-packed */
            put(&pages[c].body, bare ? "\2\0\0\0\x08\1" : "\2\0\0\0\x08\2", 6); /* definition: a run of 4 */
            for (int v = 0; v < 4; v++) put_text(&pages[c].body, texts[c][v], strlen(texts[c][v]));
        }
        write_columns("in", &(Footer){schemas[i], bare ? 4 : 5, 0, 2, 4}, pages, 1, 2);
        pack_input("in", "out", (PackOptions){.format = PACK_CHAT});
        assert_same_shard("out", "expected");
    }
}

/* -- Hostile pages ----------------------------------------------------------------------------------------------------- */

/* A page of `values` values whose body is the bytes. */
static Page page_of(int encoding, int64_t values, const char *bytes, size_t size) {
    Page page = {.encoding = encoding, .values = values};
    put(&page.body, bytes, size);
    return page;
}

static Page dictionary_of(int64_t values, const char *bytes, size_t size) {
    Page page = page_of(PLAIN, values, bytes, size);
    page.dictionary = true;
    return page;
}

#define BODY(text) text, sizeof text - 1
#define TWO "\1\0\0\0a\1\0\0\0b"

/* One row group of `rows` rows; what is said of the first record that is lost. */
static void assert_damage(int codec, int64_t rows, Page *pages, size_t count, const char *what) {
    write_parquet("in", codec, rows, pages, count);
    PackResult result;
    Error error = {0};
    PackOptions options = {
        .inputs = (const char *[]){"in", NULL}, .output = "out", .separator = "", .overwrite = true, .invalid = PACK_INVALID_STOP};
    if (pack_text(&options, &result, &error) || error.code != ERROR_DATA || !mentions(error.message, what))
        fail_msg("\"%s\" does not contain \"%s\"", error.message, what);
}

static void pages_that_lie_are_refused(void **state) {
    (void)state;
    static const char malformed[] = "malformed", longer[] = "longer than its column", more[] = "more values than its column";
    Page pages[2];
    const struct {
        int codec;
        int64_t rows;
        Page first, second; /* values 0: no second one */
        const char *what;
    } cases[] = {
        {0, 2, dictionary_of(2, BODY(TWO)), page_of(DICTIONARY, 2, BODY("\3\4\5")), "values of a page are malformed"}, /* index 5 of 2 */
        {0, 2, dictionary_of(3, BODY(TWO)), page_of(DICTIONARY, 2, BODY("\1\4\0")), "dictionary is malformed"},
        {0, 2, dictionary_of(1, BODY("\xff\xff\xff\xff")), page_of(DICTIONARY, 2, BODY("\1\4\0")), "dictionary is malformed"},
        {0, 2, page_of(DICTIONARY, 2, BODY("\1\4\0")), {0}, malformed},                          /* no dictionary */
        {0, 2, dictionary_of(2, BODY(TWO)), page_of(DICTIONARY, 2, BODY("\41\4\0")), malformed}, /* 33 bits */
        {0, 2, dictionary_of(2, BODY(TWO)), page_of(DICTIONARY, 2, BODY("\1\2\0")), malformed},  /* one index for two values */
        {0, 2, dictionary_of(2, BODY(TWO)), page_of(DICTIONARY, 2, BODY("\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\1")), malformed},
        {0, 2, page_of(PLAIN, 2, BODY("\1\0\0\0a")), {0}, malformed},
        {0, 2, page_of(PLAIN, 2, BODY("\1\0\0\0a\377\377\377\377")), {0}, malformed},
        {0, 2, page_of(9, 2, BODY(TWO)), {0}, "encoding 9"},
        {0, 2, page_of(DELTAS, 2, BODY("\x80\1\4\2\0")), {0}, "encoding 5"},
        {0, 2, page_of(DELTA_LENGTHS, 2, BODY("\x80\1\4\3\2")), {0}, malformed},             /* three lengths */
        {0, 2, page_of(DELTA_LENGTHS, 2, BODY("\x80\1\0\2\2")), {0}, malformed},             /* no parts */
        {0, 2, page_of(DELTA_LENGTHS, 2, BODY("\x80\1\4\2\2\0\101\0\0\0")), {0}, malformed}, /* 65 bits */
        {0, 2, page_of(DELTA_LENGTHS, 2, BODY("\x80\1\4\2\2\0\10\0\0\0")), {0}, malformed},  /* cut off */
        {0, 2, page_of(DELTA_LENGTHS, 2, BODY("\x80\1\4\2\1\0\0\0\0\0")), {0}, malformed},   /* a length of -1 */
        {0, 2, page_of(DELTA_TEXTS, 1, BODY("\x80\1\4\1\2\x80\1\4\1\2a")), {0}, malformed},  /* shares a byte with none */
        {0, 2, {.encoding = PLAIN, .values = 2, .stored = 1 << 20}, {0}, longer},
        {0, 2, {.encoding = PLAIN, .values = 2, .stored = -1}, {0}, longer},
        {0, 2, {.encoding = PLAIN, .values = 2, .bytes = 5}, {0}, "does not have its size"},
        {0, 2, {.encoding = PLAIN, .values = 3}, {0}, more},
        {0, 2, {.encoding = PLAIN, .values = -3}, {0}, more},
        {0, 1 << 25, {.encoding = PLAIN, .values = 1 << 25}, {0}, "more than 1073741824 bytes or 16777216 values"},
        {2, 2, {.encoding = PLAIN, .values = 2, .bytes = (1 << 30) + 1}, {0}, "more than 1073741824 bytes or 16777216 values"},
        {0, 9, page_of(PLAIN, 2, BODY(TWO)), {0}, "malformed"},
        {1, 2, page_of(PLAIN, 2, BODY("\xff\xff\xff\xff\x0f")), {0}, "does not decompress"},
        {1, 2, {.encoding = PLAIN, .values = 2, .bytes = 10, .body = page_of(0, 0, BODY("\12\1\0\0")).body}, {0}, "it is malformed"},
        {1, 2, {.encoding = PLAIN, .values = 2, .bytes = 10, .body = page_of(0, 0, BODY("\12\44abcdefghij\0k")).body}, {0},
            "longer than its page"},
        {1, 2, {.encoding = PLAIN, .values = 2, .bytes = 10, .body = page_of(0, 0, BODY("\12\44abc")).body}, {0}, "it is malformed"},
        {7, 2, {.encoding = PLAIN, .values = 2, .bytes = 10, .body = page_of(0, 0, BODY("\20a\2\0\20b")).body}, {0}, "it is malformed"},
        {7, 2, {.encoding = PLAIN, .values = 2, .bytes = 10, .body = page_of(0, 0, BODY("\37a\1\0\377\377\0")).body}, {0},
            "longer than its page"},
        {2, 2, page_of(PLAIN, 2, BODY(TWO)), {0}, "does not decompress"},
        {6, 2, page_of(PLAIN, 2, BODY(TWO)), {0}, "does not decompress"},
        {3, 2, page_of(PLAIN, 2, BODY(TWO)), {0}, "compressed by lzo"},
        {5, 2, page_of(PLAIN, 2, BODY(TWO)), {0}, "compressed by lz4 in Hadoop's frames"},
        {99, 2, page_of(PLAIN, 2, BODY(TWO)), {0}, "compressed by an unknown codec"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pages[0] = cases[i].first;
        pages[1] = cases[i].second;
        assert_damage(cases[i].codec, cases[i].rows, pages, cases[i].second.values ? 2 : 1, cases[i].what);
    }
}

/* A short page may stand for many long texts; a block has few of them at a time. In the dictionary, one long text is among
 * many empty ones, so a block gets many rows that all have the long one. */
static void a_page_of_few_bytes_and_many_texts_is_read_in_parts(void **state) {
    (void)state;
    enum { TEXT = 100000, EMPTY = 999, COUNT = 700, MOST = (1 << 24) + TEXT };
    Page pages[2] = {{.dictionary = true, .values = 1 + EMPTY}, {.encoding = DICTIONARY, .values = COUNT}};
    SCOPED_FREE char *text = memory_allocate(TEXT);
    memset(text, 'x', TEXT);
    put_text(&pages[0].body, text, TEXT);
    for (int i = 0; i < EMPTY; i++) put_text(&pages[0].body, "", 0);
    put_byte(&pages[1].body, 1);
    put_varint(&pages[1].body, COUNT << 1);
    put_byte(&pages[1].body, 0);
    write_parquet("in", 0, COUNT, pages, 2);
    int threads = omp_get_max_threads();
    for (int count = 1; count <= 3; count += 2) {
        omp_set_num_threads(count);
        assert_int_equal(pack_input("in", "out", (PackOptions){0}).text_bytes, (int64_t)COUNT * TEXT);
    }
    omp_set_num_threads(threads);
    PackOptions options = {.inputs = (const char *[]){"in", NULL}, .separator = "", .field = "text"};
    PackFiles files;
    Block block = {0};
    Error error = {0};
    int64_t rows = 0, parts = 0;
    ParquetValues values = {0};
    assert_true(pack_files_list(&files, options.inputs, false, NULL, &error));
    RecordReader *reader = record_reader_open(&options, &files, cut_nowhere, NULL, (RecordPosition){.line = 1});
    while (block.page.stored || (record_reader_fill(reader, &block, &error) && block.page.stored)) {
        block_read_page(&block, &values, "text");
        assert_true(block.count > 0 && block.size <= MOST);
        rows += (int64_t)block.count;
        parts++;
        block_clear(&block);
    }
    assert_int_equal(rows, COUNT);
    assert_int_equal(parts, 1 + COUNT * TEXT / MOST);
    parquet_values_free(&values);
    block_free(&block);
    record_reader_free(reader);
    pack_files_free(&files);
}

static void lists_of_tokens_are_packed_as_they_are(void **state) {
    (void)state;
    size_t sizes[2];
    unsigned char *bytes[2];
    SCOPED_FREE char *tokenizer = memory_format("%s/../tokenizers/gpt2.json", golden);
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *rows = memory_format("%s/../token_lists/rows.%s", golden, i ? "parquet" : "jsonl");
        PackResult result;
        Error error = {0};
        PackOptions options = {.inputs = (const char *[]){rows, NULL},
            .output = "out",
            .separator = "",
            .tokens = "input_ids",
            .tokenizer = tokenizer,
            .overwrite = true};
        if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
        assert_int_equal(result.records, 61);
        assert_int_equal(result.documents, 48); /* rows of 1 to 10 ids; 7 are null, 5 empty, and one has an id above the vocabulary */
        assert_int_equal(result.bad[PACK_BAD_FIELD], 8);
        assert_int_equal(result.bad[PACK_BAD_EMPTY], 5);
        bytes[i] = read_bytes("out.bin", &sizes[i]);
        options.tokenizer = "";
        assert_false(pack_text(&options, &result, &error));
        assert_true(mentions(error.message, "tokens=input_ids tokenizer="));
    }
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
    free(bytes[0]);
    free(bytes[1]);
}

int main(void) {
    if (!realpath("tests/golden/parquet", golden)) return 1;
    const struct CMUnitTest tests[] = {
        IN_FOLDER(lists_of_tokens_are_packed_as_they_are),
        IN_FOLDER(rows_give_the_shard_of_their_json_lines),
        IN_FOLDER(columns_that_are_not_read_are_refused_by_name),
        IN_FOLDER(files_of_a_folder_are_taken_or_left_out_by_reason),
        IN_FOLDER(damaged_files_are_refused_or_read),
        IN_FOLDER(pages_of_all_sizes_give_the_same_on_any_number_of_threads),
        IN_FOLDER(a_damaged_page_loses_its_rest_alone),
        IN_FOLDER(rows_of_a_dictionary_give_the_same_on_any_number_of_threads),
        IN_FOLDER(a_damaged_index_loses_the_rest_of_its_page_once),
        IN_FOLDER(a_damaged_dictionary_loses_its_pages_alone),
        IN_FOLDER(a_packing_goes_on_at_any_row),
        IN_FOLDER(lists_of_older_writers_are_read),
        IN_FOLDER(pages_that_lie_are_refused),
        IN_FOLDER(a_page_of_few_bytes_and_many_texts_is_read_in_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
