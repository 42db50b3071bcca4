/* Recognizes whether a file holds text, JSON records, rows of a table or of a Parquet file, or why it is left out. The
 * content decides, or the name if the content is ambiguous. Owns nothing. Called by the record
 * reader for each file. */
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"
#include "data/pack_internal.h"

/* Returns whether a name has the ending, alone or before the ending of a compression. */
bool name_ends(const char *path, const char *ending) {
    static const char *const packed[] = {"", ".gz", ".zst", ".xz", ".lzma", ".zz"};
    for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) {
        SCOPED_FREE char *whole = memory_format("%s%s", ending, packed[i]);
        if (ends_with(path, whole)) return true;
    }
    return false;
}

/* -- JSON ------------------------------------------------------------------------------------------------------------ */

/* Returns the number of white space bytes from `at` on. */
static size_t blank_bytes(const char *text, size_t size, size_t at) {
    size_t start = at;
    while (at < size && text[at] && strchr(" \t\r\n", text[at])) at++;
    return at - start;
}

/* Returns whether a line begins as a JSON object and, if its end is in the buffer, ends as one. */
static bool is_json_line(const char *line, size_t length, bool ends) {
    size_t at = 1;
    if (length > 0 && line[length - 1] == '\r') length--;
    while (at < length && line[at] == ' ') at++;
    return at < length && line[0] == '{' && line[at] == '"' && (!ends || line[length - 1] == '}');
}

/* Returns whether the first two lines, or the only one, are objects. */
static bool is_json_lines(const char *text, size_t size) {
    int lines = 0;
    while (lines < 2 && size > 0) {
        const char *newline = memchr(text, '\n', size);
        size_t length = newline ? (size_t)(newline - text) : size;
        bool blank = length == 0 || (length == 1 && *text == '\r');
        if (!blank && !is_json_line(text, length, newline)) return false;
        lines += !blank;
        text += length + (newline != NULL);
        size -= length + (newline != NULL);
    }
    return lines > 0;
}

/* Returns whether the text begins with "{" and a key with its colon. */
static bool is_object(const char *text, size_t size) {
    size_t at = 1 + blank_bytes(text, size, 1);
    if (size == 0 || text[0] != '{' || at >= size || text[at++] != '"') return false;
    while (at < size && text[at] != '"') at += text[at] == '\\' ? 2 : 1;
    at += 1 + blank_bytes(text, size, at + 1);
    return at < size && text[at] == ':';
}

/* Returns whether the text is an object followed by another one or by nothing, as far as the buffer
 * shows. */
static bool is_objects(const char *text, size_t size) {
    RecordScan scan = {.shape = SHAPE_VALUES};
    bool ends;
    size_t end = record_scan(&scan, text, size, &ends);
    if (ends) end += blank_bytes(text, size, end);
    return is_object(text, size) && (end == size || text[end] == '{');
}

/* Returns whether the text begins as an array of objects, or an empty one. Other text may begin
 * with "[" too. */
static bool is_array(const char *text, size_t size) {
    size_t at = 1 + blank_bytes(text, size, 1);
    return size > 0 && text[0] == '[' && at < size && (text[at] == ']' || is_object(text + at, size - at));
}

/* Returns the shape. `lines`: the name says that each line is a record, so a broken first line is
 * not taken for the start of a multi-line object. */
static RecordShape json_shape(const char *text, size_t size, bool lines) {
    size_t start = blank_bytes(text, size, 0), first = start + 1;
    const char *at = text + start;
    while (first < size && strchr(" \t\r", text[first])) first++;
    bool alone = first < size && text[first] == '\n'; /* "{" on a line of its own */
    if (is_array(at, size - start)) return SHAPE_ARRAY;
    if (is_json_lines(text, size)) return SHAPE_LINES;
    return (alone || !lines) && is_objects(at, size - start) ? SHAPE_VALUES : SHAPE_TEXT;
}

/* -- Whole file ------------------------------------------------------------------------------------------------------- */

/* Returns whether a table has the columns that rules read. */
static bool has_rule_columns(const PackOptions *options, const char *bytes, size_t size, const RecordFormat *format) {
    bool all = true;
    for (size_t i = 0; options->filter && i < filter_field_count(options->filter) && all; i++) {
        RecordFormat found = *format;
        char names[2];
        all = table_header(bytes, size, filter_field(options->filter, i), &found, names, sizeof names);
    }
    return all;
}

static bool is_table(const PackOptions *options, const char *bytes, size_t size, RecordFormat *format, NotText *why) {
    static const NotText chat = {"a table, and a table cannot hold conversations", "write them as JSON lines"};
    static const NotText commas = {"a CSV table without the column that field= names", "give field=NAME to smelt data pack"},
                         tabs = {"a TSV table without the column that field= names", "give field=NAME to smelt data pack"};
    static const NotText rules = {"a table without a column that a rule reads", "name one of its columns in where="};
    format->shape = SHAPE_TABLE;
    *why = pack_is_chat(options->format) ? chat : format->delimiter == ',' ? commas : tabs;
    if (pack_is_chat(options->format) || !table_header(bytes, size, options->field, format, format->columns, sizeof format->columns))
        return false;
    *why = rules;
    return has_rule_columns(options, bytes, size, format);
}

bool file_format(const PackOptions *options, const char *path, const char *bytes, size_t size, RecordFormat *format, NotText *why) {
    static const NotText no_records = {"JSON without records",
        "write one object per document, as {\"text\": \"...\"}, or pass format=text to smelt data pack to read the file as plain text"};
    static const NotText no_fields = {"text without the fields that a rule reads", "give records, or leave the rule out"};
    static const NotText no_rows = {"named .parquet, but does not begin like a Parquet file",
        "download it again (git lfs pull, if it is a pointer of Git LFS), or give it another name"};
    PackFormat asked = options->format;
    bool known = asked != PACK_AUTO && asked != PACK_TEXT, lines = name_ends(path, ".jsonl") || name_ends(path, ".ndjson");
    size_t seen = (size_t)int_min((int64_t)size, NOT_TEXT_PROBE_BYTES);
    *format = (RecordFormat){.shape = SHAPE_TEXT, .delimiter = name_ends(path, ".csv") ? ',' : name_ends(path, ".tsv") ? '\t' : '\0'};
    bool rows = seen >= 4 && !memcmp(bytes, "PAR1", 4) && memchr(bytes, 0, seen), secret = seen >= 4 && !memcmp(bytes, "PARE", 4);
    *why = no_rows;
    if (asked != PACK_TEXT && (rows || (name_ends(path, ".parquet") && !secret))) return format->shape = SHAPE_ROWS, rows;
    if (not_text((const unsigned char *)bytes, seen, why)) return false;
    if (asked == PACK_TEXT) return true;
    format->mark = size >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3) ? 3 : 0;
    bytes += format->mark;
    seen -= int_min((int64_t)format->mark, (int64_t)seen);
    if (format->delimiter && asked != PACK_JSON) return is_table(options, bytes, size - format->mark, format, why);
    format->shape = json_shape(bytes, seen, lines || (known && !name_ends(path, ".json")));
    if (format->shape == SHAPE_TEXT && (known || lines)) format->shape = SHAPE_LINES;
    if (format->shape == SHAPE_TEXT) format->mark = 0;
    bool fields = options->filter && filter_field_count(options->filter) > 0;
    *why = no_fields;
    if (fields && format->shape == SHAPE_TEXT && !name_ends(path, ".json")) return format->shape = SHAPE_LINES, false;
    *why = no_records;
    return format->shape != SHAPE_TEXT || !name_ends(path, ".json");
}
