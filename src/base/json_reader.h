/* The only reader of JSON that other programs wrote: side files of models and tokenizers, and records of data sets.
 * It accepts what Python's json accepts: integers of any size, NaN, Infinity, -Infinity, numbers that overflow to an
 * infinity, and U+0000 in texts. If an object repeats a name, the last value counts, unless the caller refuses
 * repeated names. A byte order mark and a trailing comma are errors with line and column, as in Python. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Parses an object or an array; `flags` are jansson's (0, or JSON_REJECT_DUPLICATES). The caller owns the reference. NULL
 * with ERROR_DATA "line L, column C: what is wrong", of one line "column C: ...". Time is linear in `size`. */
json_t *json_parse(const char *bytes, size_t size, size_t flags, Error *error);

enum { JSON_FILE_LIMIT = 256 << 20 }; /* bytes of a file that json_read takes */
/* Reads a file that must hold an object, and must be there; the caller owns the reference. NULL with `code` and the path. */
json_t *json_read(const char *path, ErrorCode code, Error *error);
/* Reads a file that may be absent. If it is absent, the result is true and *object is NULL. A file that exists and
 * cannot be read, or does not hold an object, is an error. */
bool json_read_optional(const char *path, json_t **object, ErrorCode code, Error *error);

/* A number that jansson cannot hold stands in a tree as an object of its own, so that nothing takes it for another number
 * or a text. These tell such an object, and are the same as jansson's for other numbers. */
const char *json_wide_number(
    const json_t *value);                      /* as Python's json writes it ("NaN", "-Infinity", digits); NULL: jansson holds the number */
bool json_is_finite(const json_t *value);      /* a number, however large an integer, but neither NaN nor an infinity */
double json_finite_value(const json_t *value); /* 0 if the value is not a finite number; integers are rounded */

/* The text of a tree in indented lines, with the fewest digits that read back as the same numbers (1e-5, not
 * 1.0000000000000001e-5). The caller frees. NULL: a text in the tree is not UTF-8, or memory is exhausted. */
char *json_format(const json_t *value);
