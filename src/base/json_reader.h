/* The reader of all JSON that other programs wrote: side files of models and tokenizers, and
 * records of data sets. It accepts what Python's json accepts: integers of any size, NaN, Infinity,
 * -Infinity, numbers that overflow to an infinity, and U+0000 in texts. If an object repeats a
 * name, the last value counts, unless the caller refuses repeated names. A byte order mark and a
 * trailing comma are errors with line and column, as in Python. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Parses an object or an array; `flags` are jansson's (0, or JSON_REJECT_DUPLICATES). The caller
 * owns the reference. NULL with ERROR_DATA "line L, column C: what is wrong", or "column C: ..."
 * for a text of one line. Takes time linear in `size`. */
json_t *json_parse(const char *bytes, size_t size, size_t flags, Error *error);

enum { JSON_FILE_LIMIT = 256 << 20 }; /* maximum bytes of a file for json_read */
/* Reads a file, which must exist and hold an object; the caller owns the reference. NULL with
 * `code` and the path. */
json_t *json_read(const char *path, ErrorCode code, Error *error);
/* Reads a file that may be absent. If it is absent, the result is true and *object is NULL. A file
 * that exists but cannot be read, or does not hold an object, is an error. */
bool json_read_optional(const char *path, json_t **object, ErrorCode code, Error *error);

/* A line of a file, from 1; the receiver owns the reference to its value. */
typedef struct JsonLine {
    int64_t number;
    json_t *value;
} JsonLine;
/* Reads a file of JSON lines of at most `limit` bytes, without its empty lines; `flags` as above. `take`
 * gets each line in order; false stops. Errors of a line name the file and the line. */
bool json_read_lines(
    const char *path, int64_t limit, size_t flags, bool (*take)(void *context, JsonLine line, Error *error), void *context, Error *error);

/* A number that jansson cannot hold is represented in a tree by an object, so that it is not
 * mistaken for another number or a text. These functions recognize such an object, and treat other
 * numbers like jansson. */
const char *json_wide_number(
    const json_t *value);                      /* as Python's json writes it ("NaN", "-Infinity", digits); NULL: jansson holds the number */
bool json_is_finite(const json_t *value);      /* a number, including integers of any size, except NaN and infinities */
double json_finite_value(const json_t *value); /* 0 if the value is not a finite number; integers are rounded */

/* Formats a tree in indented lines, with the fewest digits that read back as the same numbers
 * (1e-5, not 1.0000000000000001e-5). The caller frees it. NULL: a text in the tree is not UTF-8, or
 * memory is exhausted. */
char *json_format(const json_t *value);
char *json_format_line(const json_t *value); /* the same in one line, without its end */
