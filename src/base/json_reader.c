/* Reads JSON like Python's json. jansson refuses only numbers that Python accepts. A text that
 * jansson refuses is therefore read again, with each such number rewritten as an object,
 * {"smelt:number": "1e400"}. Owns nothing beyond a call. */
#include "base/json_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/scope.h"
#include "base/strings.h"

#define WIDE_KEY "smelt:number"
#define WIDE_START "{\"" WIDE_KEY "\":\""
#define WIDE_END "\"}"

/* -- Numbers ------------------------------------------------------------------------------------------------------- */

typedef struct JsonBytes {
    char *at;
    size_t size, capacity;
} JsonBytes;

static void append_output(JsonBytes *out, const char *bytes, size_t size) {
    array_reserve(out->at, out->capacity, out->size + size + 1);
    memcpy(out->at + out->size, bytes, size);
    out->size += size;
    out->at[out->size] = '\0';
}

static void append_wide(JsonBytes *out, const char *number, size_t size) {
    append_output(out, WIDE_START, strlen(WIDE_START));
    append_output(out, number, size);
    append_output(out, WIDE_END, strlen(WIDE_END));
}

static size_t digits_at(const char *bytes, size_t size) {
    size_t count = 0;
    while (count < size && bytes[count] >= '0' && bytes[count] <= '9') count++;
    return count;
}

/* Returns the bytes of the number at the start of a text; 0: none. `*whole`: it is an integer. */
static size_t number_size(const char *bytes, size_t size, bool *whole) {
    size_t at = size > 0 && bytes[0] == '-', digits = digits_at(bytes + at, size - at);
    *whole = true;
    if (digits == 0) return 0;
    at += bytes[at] == '0' ? 1 : digits;
    size_t fraction = at < size && bytes[at] == '.' ? digits_at(bytes + at + 1, size - at - 1) : 0;
    if (fraction) at += 1 + fraction, *whole = false;
    size_t sign = at + 1 < size && strchr("+-", bytes[at + 1]) && bytes[at + 1];
    size_t power = at < size && (bytes[at] | 0x20) == 'e' ? digits_at(bytes + at + 1 + sign, size - at - 1 - sign) : 0;
    if (power) at += 1 + sign + power, *whole = false;
    return at;
}

/* Python reads at most 4,300 digits, and so does this reader: jansson then refuses the number. */
static bool is_wide_integer(const char *number, size_t size) {
    enum { DIGITS = 19, MOST_DIGITS = 4300 };
    bool negative = *number == '-';
    size_t digits = size - negative;
    if (digits != DIGITS) return digits > DIGITS && digits <= MOST_DIGITS;
    return memcmp(number + negative, negative ? "9223372036854775808" : "9223372036854775807", DIGITS) > 0;
}

/* Returns the text that Python's json writes for a number that jansson cannot hold; NULL: jansson
 * holds it. *size receives its bytes in the text. */
static const char *wide_at(const char *bytes, size_t left, size_t *size) {
    static const char *const names[] = {"NaN", "Infinity", "-Infinity"};
    bool whole;
    for (int i = 0; i < 3; i++)
        if (left >= strlen(names[i]) && !memcmp(bytes, names[i], strlen(names[i]))) return *size = strlen(names[i]), names[i];
    if (!(*size = number_size(bytes, left, &whole))) return NULL;
    if (whole) return is_wide_integer(bytes, *size) ? bytes : NULL;
    SCOPED_FREE char *text = memory_format("%.*s", (int)*size, bytes);
    return isinf(strtod(text, NULL)) ? names[*bytes == '-' ? 2 : 1] : NULL;
}

/* Returns the position after the JSON string that begins at `at`, or the end of the text. */
static size_t string_end(const char *bytes, size_t size, size_t at) {
    for (at++; at < size && bytes[at] != '"';) at += bytes[at] == '\\' ? 2 : 1;
    return at < size ? at + 1 : size;
}

/* Copies a text with its wide numbers as objects, until the copy has `wanted` bytes. Returns how
 * much of the text was read. */
static size_t rewrite_json(const char *bytes, size_t size, size_t wanted, JsonBytes *out) {
    size_t at = 0;
    while (at < size && out->size < wanted) {
        size_t next = at + 1, number = 0;
        const char *wide = NULL;
        if (bytes[at] == '"') next = string_end(bytes, size, at);
        else if (strchr("-0123456789NI", bytes[at]) && bytes[at]) wide = wide_at(bytes + at, size - at, &number);
        if (number) next = at + number;
        if (wide) append_wide(out, wide, wide == bytes + at ? number : strlen(wide));
        else append_output(out, bytes + at, next - at);
        at = !wide && out->size > wanted ? next - (out->size - wanted) : next;
    }
    return at;
}

/* -- Texts ----------------------------------------------------------------------------------------------------------- */

static void fail_at(const char *bytes, size_t size, size_t at, const char *what, Error *error) {
    long long line = 1, column = 1;
    for (size_t i = 0; i < at; i++) column = bytes[i] == '\n' ? (line++, 1) : column + 1;
    if (memchr(bytes, '\n', size)) error_set(error, ERROR_DATA, "line %lld, column %lld: %s", line, column, what);
    else error_set(error, ERROR_DATA, "column %lld: %s", column, what);
}

json_t *json_parse(const char *bytes, size_t size, size_t flags, Error *error) {
    json_error_t reason;
    if (size >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3)) {
        fail_at(bytes, size, 0, "the text begins with a byte order mark: save it as UTF-8 without one", error);
        return NULL;
    }
    json_t *value = json_loadb(bytes, size, flags | JSON_ALLOW_NUL, &reason);
    if (value) return value;
    SCOPED_FREE char *text = NULL;
    JsonBytes out = {0};
    rewrite_json(bytes, size, SIZE_MAX, &out);
    text = out.at;
    if (text && (value = json_loadb(text, out.size, flags | JSON_ALLOW_NUL, &reason))) return value;
    JsonBytes before = {0};
    size_t at = rewrite_json(bytes, size, reason.position > 0 ? (size_t)reason.position : 0, &before);
    free(before.at);
    fail_at(bytes, size, at, one_line(reason.text), error);
    return NULL;
}

/* Takes ownership of `text`. */
static json_t *parse_file(const char *path, char *text, int64_t bytes, ErrorCode code, Error *error) {
    json_t *value = json_parse(text, (size_t)bytes, 0, error);
    bool object = json_is_object(value);
    free(text);
    if (value && !object) error_set(error, code, "line 1: the top level is not an object; write {\"key\": value}");
    if (object) return value;
    json_decref(value);
    error_recode(error, code);
    error_context(error, "%s is not valid JSON at", path);
    return NULL;
}

json_t *json_read(const char *path, ErrorCode code, Error *error) {
    int64_t bytes;
    char *text = file_read(path, JSON_FILE_LIMIT, &bytes, error);
    if (!text) error_recode(error, code);
    return text ? parse_file(path, text, bytes, code, error) : NULL;
}

bool json_read_lines(
    const char *path, int64_t limit, size_t flags, bool (*take)(void *context, JsonLine line, Error *error), void *context, Error *error) {
    int64_t bytes, line = 1;
    SCOPED_FREE char *content = file_read(path, limit, &bytes, error);
    if (!content) return false;
    for (char *at = content, *end = content + bytes; at < end; line++) {
        char *next = memchr(at, '\n', (size_t)(end - at)), *after = next ? next : end;
        size_t length = (size_t)(after - at);
        if (strspn(at, " \t\r") < length) {
            json_t *value = json_parse(at, length, flags, error);
            if (!value || !take(context, (JsonLine){line, value}, error)) return error_context(error, "%s, line %" PRId64, path, line);
        }
        at = after + 1;
    }
    return true;
}

bool json_read_optional(const char *path, json_t **object, ErrorCode code, Error *error) {
    int64_t bytes;
    char *text = file_read(path, JSON_FILE_LIMIT, &bytes, error);
    *object = text ? parse_file(path, text, bytes, code, error) : NULL;
    if (!text && error->finding == FINDING_ABSENT) *error = (Error){0};
    else if (!*object) return error_recode(error, code);
    return true;
}

/* -- Values ---------------------------------------------------------------------------------------------------------- */

/* Returns the bytes of a wide number at the start of a text. */
static size_t wide_size(const char *text) { return strspn(text, "-0123456789NaInfity"); }

const char *json_wide_number(const json_t *value) {
    const char *text = json_object_size(value) == 1 ? json_string_value(json_object_get(value, WIDE_KEY)) : NULL;
    return text && *text && !text[wide_size(text)] ? text : NULL;
}

bool json_is_finite(const json_t *value) {
    const char *wide = json_wide_number(value);
    return json_is_number(value) || (wide && isfinite(strtod(wide, NULL)));
}

double json_finite_value(const json_t *value) {
    const char *wide = json_wide_number(value);
    return !json_is_finite(value) ? 0 : wide ? strtod(wide, NULL) : json_number_value(value);
}

/* Rewrites the objects that represent numbers as numbers: "{", white space, the key, the number,
 * white space, "}". */
static char *without_wide(const char *text) {
    static const char key[] = "\"" WIDE_KEY "\": \"", blanks[] = " \n";
    JsonBytes out = {0};
    const char *from = text;
    for (const char *found = text; (found = strstr(found, key));) {
        const char *start = found, *number = found + strlen(key);
        size_t size = wide_size(number);
        do start--;
        while (strchr(blanks, *start));
        found = number + size;
        if (*start != '{' || size == 0 || *found != '"') continue;
        found += 1 + strspn(found + 1, blanks);
        if (*found != '}') continue;
        append_output(&out, from, (size_t)(start - from));
        append_output(&out, number, size);
        from = ++found;
    }
    append_output(&out, from, strlen(from));
    return out.at;
}

static char *format_json(const json_t *value, size_t flags) {
    SCOPED_FREE char *text = NULL;
    for (int digits = 15; digits <= 17; digits++) {
        free(text);
        text = json_dumps(value, flags | JSON_REAL_PRECISION(digits));
        json_auto_t *again = text ? json_loads(text, JSON_ALLOW_NUL, NULL) : NULL;
        if (json_equal(again, value)) break;
    }
    return text ? without_wide(text) : NULL;
}

char *json_format(const json_t *value) { return format_json(value, JSON_INDENT(2)); }

char *json_format_line(const json_t *value) { return format_json(value, 0); }
