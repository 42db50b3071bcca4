/* Finds where a record ends: a line, a JSON value, or a row of a table. The bytes of a file come in
 * parts of any size. A RecordScan holds the state between two parts, so memory does not grow with a
 * record. The threads that read a record check that it is well-formed. Called by the record reader;
 * record.c calls it for tables. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "data/pack_internal.h"

/* The next expected token of an array, and the place in a row. */
enum { EXPECT_OPEN, EXPECT_FIRST, EXPECT_VALUE, EXPECT_COMMA, EXPECT_NOTHING };
enum { ROW_START, ROW_PLAIN, ROW_QUOTED, ROW_QUOTE /* after a quote inside quotes: their end, or the first of two that represent one */ };

RecordScan record_scan_start(const RecordFormat *format, bool resumed) {
    bool array = format->shape == SHAPE_ARRAY;
    return (RecordScan){.shape = format->shape,
        .delimiter = format->delimiter,
        .expects = !array    ? EXPECT_VALUE
                   : resumed ? EXPECT_COMMA
                             : EXPECT_OPEN};
}

/* -- Between records ----------------------------------------------------------------------------------------------- */

/* Consumes a byte between two elements of an array. Returns false if an element begins with it, or
 * it is a fault. */
static bool take_punctuation(RecordScan *scan, char byte, bool *fault) {
    int expects = scan->expects;
    bool opens = expects == EXPECT_OPEN && byte == '[', comma = expects == EXPECT_COMMA && byte == ',';
    bool closes = (expects == EXPECT_FIRST || expects == EXPECT_COMMA) && byte == ']';
    if (opens) scan->expects = EXPECT_FIRST;
    if (comma) scan->expects = EXPECT_VALUE;
    if (closes) scan->expects = EXPECT_NOTHING;
    *fault = !opens && !comma && !closes && ((expects != EXPECT_FIRST && expects != EXPECT_VALUE) || strchr(",]}:", byte));
    return opens || comma || closes;
}

size_t record_scan_gap(RecordScan *scan, const char *bytes, size_t size, bool *fault) {
    const char *blank = scan->shape == SHAPE_TABLE ? "\r\n" : " \t\r\n";
    *fault = false;
    for (size_t at = 0; at < size; at++) {
        if (bytes[at] && strchr(blank, bytes[at])) continue;
        if (scan->shape == SHAPE_VALUES) *fault = bytes[at] != '{';
        if (scan->shape != SHAPE_ARRAY || !take_punctuation(scan, bytes[at], fault)) return at;
    }
    return size;
}

bool record_scan_open(const RecordScan *scan) { return scan->shape == SHAPE_ARRAY && scan->expects != EXPECT_NOTHING; }

void record_scan_give_up(RecordScan *scan) { scan->expects = EXPECT_NOTHING; }

/* -- Inside a record ------------------------------------------------------------------------------------------------- */

static size_t scan_line(const char *bytes, size_t size, bool *ends) {
    const char *newline = memchr(bytes, '\n', size);
    *ends = newline;
    return newline ? (size_t)(newline - bytes) + 1 : size;
}

/* Scans a row. A quote opens a field only as its first byte, as in RFC 4180; elsewhere it is
 * text. */
static size_t scan_row(RecordScan *scan, const char *bytes, size_t size, bool *ends) {
    for (size_t at = 0; at < size; at++) {
        char byte = bytes[at];
        if (scan->state == ROW_QUOTED) scan->state = byte == '"' ? ROW_QUOTE : ROW_QUOTED;
        else if (byte == '"' && scan->state != ROW_PLAIN) scan->state = ROW_QUOTED;
        else scan->state = byte == scan->delimiter ? ROW_START : ROW_PLAIN;
        *ends = byte == '\n' && scan->state != ROW_QUOTED;
        if (!*ends) continue;
        scan->state = ROW_START;
        return at + 1;
    }
    return size;
}

/* Scans a value. A value that is not an object, array or string ends before the byte after it. */
static size_t scan_value(RecordScan *scan, const char *bytes, size_t size, bool *ends) {
    for (size_t at = 0; at < size; at++) {
        char byte = bytes[at];
        bool escaped = scan->escaped, string = scan->string;
        scan->escaped = string && byte == '\\' && !escaped;
        if (byte == '"' && !escaped) scan->string = !string;
        bool opens = !string && (byte == '{' || byte == '['), closes = !string && (byte == '}' || byte == ']');
        bool behind = scan->depth == 0 && !string && (closes || (byte && strchr(", \t\r\n", byte)));
        scan->depth += opens - (closes && !behind);
        *ends = behind || (scan->depth == 0 && !scan->string && (closes || byte == '"'));
        if (*ends) return at + !behind;
    }
    return size;
}

size_t record_scan(RecordScan *scan, const char *bytes, size_t size, bool *ends) {
    *ends = false;
    if (scan->shape == SHAPE_LINES) return scan_line(bytes, size, ends);
    if (scan->shape == SHAPE_TABLE) return scan_row(scan, bytes, size, ends);
    size_t used = scan_value(scan, bytes, size, ends);
    if (*ends) scan->expects = scan->shape == SHAPE_ARRAY ? EXPECT_COMMA : EXPECT_VALUE;
    return used;
}

/* -- Fields of a row ------------------------------------------------------------------------------------------------- */

/* Copies a field without its quotes to `to`, which may be its own place; NULL: nothing is copied.
 * Returns the end of the field: its delimiter, or `end`. NULL: its quotes do not end. */
static const char *scan_field(const char *at, const char *end, char delimiter, char *to, size_t *size) {
    *size = 0;
    if (at < end && *at == '"') {
        for (at++; at < end && (*at != '"' || (at + 1 < end && at[1] == '"')); at++) {
            at += *at == '"';
            if (to) to[*size] = *at;
            ++*size;
        }
        if (at++ == end) return NULL;
    }
    for (; at < end && *at != delimiter; at++) {
        if (to) to[*size] = *at;
        ++*size;
    }
    return at;
}

static const char *without_line_end(const char *row, const char *end) {
    if (end > row && end[-1] == '\n') end--;
    if (end > row && end[-1] == '\r') end--;
    return end;
}

bool table_field(const char *row, size_t size, const TablePlace *place, char *to, size_t *length, char what[TABLE_FAULT]) {
    const char *at = row, *end = without_line_end(row, row + size);
    size_t other;
    int count = 0;
    *length = 0;
    for (bool more = true; more; at += more, count++) {
        bool wanted = count == place->column;
        at = scan_field(at, end, place->delimiter, wanted ? to : NULL, wanted ? length : &other);
        if (!at) return snprintf(what, TABLE_FAULT, "an unterminated quote"), false;
        more = at < end;
    }
    snprintf(what, TABLE_FAULT, "%d fields, but the table has %d columns", count, place->columns);
    return count == place->columns;
}

bool table_header(const char *bytes, size_t size, const char *field, RecordFormat *format, char *names, size_t room) {
    RecordScan scan = {.shape = SHAPE_TABLE, .delimiter = format->delimiter};
    char name[256];
    bool ends;
    size_t used = 0, length;
    format->header = record_scan(&scan, bytes, size, &ends);
    const char *at = bytes, *end = without_line_end(bytes, bytes + format->header);
    format->place = (TablePlace){.delimiter = format->delimiter, .column = -1};
    for (bool more = true; more; at += more) {
        const char *start = at;
        at = scan_field(at, end, format->delimiter, NULL, &length);
        if (!at) return false;
        if (length < sizeof name) scan_field(start, end, format->delimiter, name, &length);
        else length = 0;
        if (length == strlen(field) && !memcmp(name, field, length)) format->place.column = format->place.columns;
        if (used < room)
            used += (size_t)snprintf(names + used, room - used, "%s%.*s", format->place.columns ? ", " : "", (int)length, name);
        format->place.columns++;
        more = at < end;
    }
    return format->place.column >= 0;
}

json_t *table_object(const char *row, size_t size, const TablePlace *place) {
    json_t *object = json_object();
    SCOPED_FREE char *text = memory_allocate(size + 1);
    TablePlace cell = *place;
    char what[TABLE_FAULT];
    size_t length;
    for (size_t i = 0; i < filter_field_count(place->fields->filter); i++) {
        cell.column = place->fields->columns[i];
        if (table_field(row, size, &cell, text, &length, what))
            json_object_set_new(object, filter_field(place->fields->filter, i), json_stringn(text, length));
    }
    return object;
}
