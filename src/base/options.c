/* Options: one table of rows drives all reading, writing and explaining of settings. This file has
 * the rows' values: parsing and formatting text, key=value, differences. options_names.c (which row
 * a name means), options_help.c (explanations of rows) and options_yaml.c (the YAML reader and
 * writer) build on it. User strings are copied into the caller's OptionStrings. Called by
 * commands. */
#include "base/options.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/array.h"
#include "base/file.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/options_internal.h"
#include "base/scope.h"
#include "base/strings.h"

/* -- Text ------------------------------------------------------------------------------------------------------- */

int options_decode_utf8(const char *text, size_t length, uint32_t *code_point) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* a smaller code point with an encoding of this length is overlong */
    const unsigned char *bytes = (const unsigned char *)text;
    if (length == 0) return 0;
    int size = bytes[0] < 0x80 ? 1 : bytes[0] >> 5 == 6 ? 2 : bytes[0] >> 4 == 14 ? 3 : bytes[0] >> 3 == 30 ? 4 : 0;
    if (size == 0 || (size_t)size > length) return 0;
    uint32_t value = size == 1 ? bytes[0] : bytes[0] & (0x7Fu >> size);
    for (int i = 1; i < size; i++) {
        if (bytes[i] >> 6 != 2) return 0;
        value = value << 6 | (bytes[i] & 0x3F);
    }
    if (value < least[size] || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return 0;
    *code_point = value;
    return size;
}

const char *options_check_utf8(const char *text, size_t length, size_t *at) {
    uint32_t code_point;
    for (*at = 0; *at < length;) {
        int size = options_decode_utf8(text + *at, length - *at, &code_point);
        if (size == 0) return "is not valid UTF-8";
        if (code_point == 0) return "contains a NUL byte";
        *at += (size_t)size;
    }
    return NULL;
}

const char *options_quote(char quoted[OPTIONS_QUOTED], const char *text, size_t length) {
    size_t used = 0, at = 0;
    quoted[used++] = '\'';
    while (at < length && used < OPTIONS_QUOTED - 16) { /* room for one character, "..." and the closing quote */
        uint32_t code_point = 0;
        int size = options_decode_utf8(text + at, length - at, &code_point);
        if (size == 0 || code_point < 0x20 || (code_point >= 0x7F && code_point < 0xA0)) {
            used += (size_t)snprintf(quoted + used, 5, "\\x%02x", (unsigned char)text[at]);
            at++;
        } else {
            memcpy(quoted + used, text + at, (size_t)size);
            used += (size_t)size;
            at += (size_t)size;
        }
    }
    snprintf(quoted + used, OPTIONS_QUOTED - used, "%s'", at < length ? "..." : "");
    return quoted;
}

/* -- Numbers ---------------------------------------------------------------------------------------------------- */

/* A number as written: (-1)^negative * mantissa * 10^exponent * scale. */
typedef struct NumberText {
    bool negative;
    uint64_t mantissa;
    bool too_long; /* the mantissa has more than 64 bits */
    int64_t exponent;
    uint64_t scale;
} NumberText;

typedef struct Suffix {
    const char *text;
    uint64_t scale;
} Suffix;
static const Suffix suffixes[] = {{"", 1}, {"k", 1000}, {"M", 1000000}, {"G", 1000000000}, {"T", 1000000000000}, {"Ki", 1ull << 10},
    {"Mi", 1ull << 20}, {"Gi", 1ull << 30}, {"Ti", 1ull << 40}};

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void append_digit(NumberText *number, int digit) {
    if (__builtin_mul_overflow(number->mantissa, 10, &number->mantissa) ||
        __builtin_add_overflow(number->mantissa, (uint64_t)digit, &number->mantissa))
        number->too_long = true;
}

/* Scans digits, with or without a point. Trailing zeros of the fraction are dropped, so that 1.500
 * is 15 * 10^-1. */
static const char *scan_digits(const char *c, NumberText *number, bool *any) {
    for (; is_digit(*c); c++, *any = true) append_digit(number, *c - '0');
    if (*c != '.') return c;
    const char *fraction = c + 1, *end = fraction + strspn(fraction, "0123456789"), *last = end;
    while (last > fraction && last[-1] == '0') last--;
    for (c = fraction; c < last; c++) append_digit(number, *c - '0');
    number->exponent -= last - fraction;
    *any = *any || end > fraction;
    return end;
}

/* Scans [+-] digits [. digits] [e [+-] digits] [suffix], and nothing else: no hexadecimal, NaN or
 * infinity. */
static bool scan_number(const char *text, NumberText *number) {
    *number = (NumberText){.scale = 1};
    const char *c = text;
    bool any = false;
    if (*c == '+' || *c == '-') number->negative = *c++ == '-';
    c = scan_digits(c, number, &any);
    if (!any) return false;
    if (*c == 'e' || *c == 'E') {
        bool negative = c[1] == '-';
        c += c[1] == '-' || c[1] == '+' ? 2 : 1;
        if (!is_digit(*c)) return false;
        int64_t exponent = 0;
        for (; is_digit(*c); c++)
            if (exponent < 1000000000) /* far beyond any double, far below overflow */
                exponent = exponent * 10 + (*c - '0');
        number->exponent += negative ? -exponent : exponent;
    }
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        if (strcmp(c, suffixes[i].text) == 0) {
            number->scale = suffixes[i].scale;
            return true;
        }
    }
    return false;
}

static const char not_a_number[] = "is not a finite number like 4096, 4k, 16Ki, 0.5 or 3e-4";

/* Returns NULL, or why the text is not a value. */
static const char *parse_integer(const char *text, int64_t *value) {
    static const char too_large[] = "does not fit in 64 bits";
    NumberText number;
    if (!scan_number(text, &number)) return not_a_number;
    if (number.too_long) return too_large;
    uint64_t size = number.mantissa;
    if (__builtin_mul_overflow(size, number.scale, &size)) return too_large;
    for (; size != 0 && number.exponent < 0; number.exponent++) {
        if (size % 10) return "is not a whole number";
        size /= 10;
    }
    for (; size != 0 && number.exponent > 0; number.exponent--)
        if (__builtin_mul_overflow(size, 10, &size)) return too_large;
    if (size > (uint64_t)INT64_MAX + number.negative) return too_large;
    *value = number.negative ? (int64_t)(0 - size) : (int64_t)size;
    return NULL;
}

static const char *parse_real(const char *text, double *value) {
    NumberText number;
    if (!scan_number(text, &number)) return not_a_number;
    *value = strtod(text, NULL) * (double)number.scale;
    if (*value == 0 && (number.mantissa || number.too_long)) return "is too close to 0 for a double";
    return isfinite(*value) ? NULL : "is too large for a double";
}

/* Parses numbers between commas. */
static const char *parse_reals(const char *text, RealList *list) {
    *list = (RealList){0};
    while (*text) {
        SCOPED_FREE char *item = memory_format("%.*s", (int)strcspn(text, ","), text);
        if (list->count == REAL_LIST_MOST) return "has more than 128 numbers";
        const char *reason = parse_real(item, &list->items[list->count++]);
        if (reason) return list->count > 1 || strchr(text, ',') ? "is not a list of numbers like 1,1.5,2" : reason;
        text += strlen(item);
        if (*text == ',' && !*++text) return "ends with a comma";
    }
    return NULL;
}

/* Writes the fewest digits that read back as the same double. */
static void format_real(double value, char text[32]) {
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) return;
    }
}

/* -- Rows ------------------------------------------------------------------------------------------------------- */

/* Finds choice number `index` in "a|b|c"; returns false if there are fewer. */
static bool choice_at(const char *choices, int index, const char **start, size_t *length) {
    for (; index > 0 && choices; index--) {
        choices = strchr(choices, '|');
        choices = choices ? choices + 1 : NULL;
    }
    *start = choices;
    *length = choices ? strcspn(choices, "|") : 0;
    return choices;
}

/* The parsers return NULL, or why the text is not a value. */
static const char *parse_choice(const char *choices, const char *text, int *value) {
    const char *start;
    size_t length;
    for (*value = 0; choice_at(choices, *value, &start, &length); ++*value)
        if (strlen(text) == length && memcmp(start, text, length) == 0) return NULL;
    return "is not one of the choices";
}

static const char *parse_bool(const char *text, bool *value) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on"};
    for (int i = 0; i < 6; i++) {
        *value = i % 2;
        if (strcasecmp(text, words[i]) == 0) return NULL;
    }
    return "is neither true nor false";
}

static const char *keep_string(OptionStrings *strings, const char *text) {
    return array_append(strings->items, strings->count, memory_copy_string(text));
}

/* Writes "1 to 8", "at least 0"; "" if the type is the only limit. */
static void format_range(const Option *option, char text[80]) {
    text[0] = '\0';
    if (option->type != OPTION_INT && option->type != OPTION_REAL && option->type != OPTION_REALS) return;
    double limit = option->type == OPTION_INT ? 0x1p63 : INFINITY;
    char low[32], high[32];
    format_real(option->minimum, low);
    format_real(option->maximum, high);
    if (option->minimum > -limit && option->maximum < limit) snprintf(text, 80, "%s to %s", low, high);
    else if (option->minimum > -limit) snprintf(text, 80, "at least %s", low);
    else if (option->maximum < limit) snprintf(text, 80, "at most %s", high);
}

/* By OptionType: the allowed values, in a message and in --help if there is no range and no
 * choices. */
typedef struct TypeWords { const char *allowed, *help; } TypeWords;
static const TypeWords type_words[] = {{"true or false", "true|false"}, {"a whole number", "whole number"}, {"a number", "number"},
    {"UTF-8 text", ""}, {"one of ", ""}, {"numbers between commas", "numbers"}};

/* "a whole number, 1 to 8 (layers)", "one of a|b|c" */
static void format_allowed(const Option *option, char text[512]) {
    char range[80];
    format_range(option, range);
    snprintf(text, 512, "%s%s%s%s%s%s%s", option->path ? "a literal UTF-8 path" : type_words[option->type].allowed,
        option->choices ? option->choices : "", *range ? ", " : "", range, *option->unit ? " (" : "", option->unit,
        *option->unit ? ")" : "");
}

void options_format_limits(const Option *option, char text[512]) {
    char range[80];
    Option shown = *option;
    if (option->type == OPTION_INT && option->maximum >= 1e15) shown.maximum = 0x1p63; /* nobody reaches this limit */
    format_range(&shown, range);
    snprintf(text, 512, "%s", *range ? range : option->choices ? option->choices : type_words[option->type].help);
}

static const char *check_range(const Option *option, double value) {
    return value >= option->minimum && value <= option->maximum ? NULL : "is out of range";
}

/* A value of any type, as in its field. */
typedef union OptionValue {
    bool flag;
    int64_t integer;
    double real;
    const char *string;
    int choice;
    RealList reals;
} OptionValue;
/* By OptionType. */
static const size_t value_bytes[] = {sizeof(bool), sizeof(int64_t), sizeof(double), sizeof(char *), sizeof(int), sizeof(RealList)};

static OptionValue value_get(const Option *option, const void *values) {
    OptionValue value = {0};
    memcpy(&value, (const char *)values + option->offset, value_bytes[option->type]);
    return value;
}

/* Returns whether a shell would have to expand the path: "~", "~/data", "$HOME/data",
 * "${HOME}/data". YAML has no shell, and in key=~/data a shell leaves the tilde. */
static bool is_for_shell(const char *path) {
    return (path[0] == '~' && (path[1] == '/' || !path[1])) || (path[0] == '$' && (path[1] == '{' || (path[1] >= 'A' && path[1] <= 'Z')));
}

/* Returns NULL, or why the text is not a value of this row. A string value is `text` itself. */
static const char *parse_text_option(const Option *option, const char *text, size_t length, OptionValue *result) {
    size_t at = 0;
    const char *reason = options_check_utf8(text, length, &at);
    OptionValue value = {0};
    if (reason) return reason;
    switch (option->type) {
    case OPTION_BOOL: reason = parse_bool(text, &value.flag); break;
    case OPTION_INT:
        reason = parse_integer(text, &value.integer);
        if (!reason) reason = check_range(option, (double)value.integer);
        break;
    case OPTION_REAL:
        reason = parse_real(text, &value.real);
        if (!reason) reason = check_range(option, value.real);
        break;
    case OPTION_CHOICE: reason = parse_choice(option->choices, text, &value.choice); break;
    case OPTION_STRING:
        if (option->path && file_scheme(text) && !starts_with(text, "s3://")) reason = "has an unsupported URL scheme";
        else if (option->path && is_for_shell(text)) reason = "is a shell expression that smelt does not expand";
        else value.string = text;
        break;
    case OPTION_REALS:
        reason = parse_reals(text, &value.reals);
        for (int64_t i = 0; i < value.reals.count && !reason; i++) reason = check_range(option, value.reals.items[i]);
        break;
    }
    *result = value;
    return reason;
}

/* Parses into the field; returns NULL, or why the text is not a value of this row. On failure
 * nothing changes. */
static const char *parse_value(const Option *option, void *values, OptionStrings *strings, const char *text, size_t length) {
    OptionValue value;
    const char *reason = parse_text_option(option, text, length, &value);
    if (reason) return reason;
    if (option->type == OPTION_STRING) value.string = keep_string(strings, text);
    memcpy((char *)values + option->offset, &value, value_bytes[option->type]);
    return NULL;
}

bool options_set_row(
    const Option *option, void *values, OptionStrings *strings, const char *text, size_t length, const char *where, Error *error) {
    const char *reason = parse_value(option, values, strings, text, length);
    if (!reason) return true;
    char quoted[OPTIONS_QUOTED], allowed[512];
    const char *other = options_reason_of_value(option->name, text);
    if (other) return error_set(error, ERROR_USAGE, "%s %s is %s: %s", option->name, where, options_quote(quoted, text, length), other);
    format_allowed(option, allowed);
    return error_set(
        error, ERROR_USAGE, "%s %s is %s, which %s; give %s", option->name, where, options_quote(quoted, text, length), reason, allowed);
}

void options_defaults(const OptionTable *table, void *values, OptionStrings *strings) {
    memset(values, 0, table->zeroed);
    for (size_t i = 0; i < table->count; i++) {
        const Option *option = &table->rows[i];
        assert(strlen(option->name) <= OPTIONS_NAME_LIMIT);
        assert(option->initial && option->unit && option->help);
        Error error = {0};
        bool valid = options_set_row(option, values, strings, option->initial, strlen(option->initial), "by default", &error);
        assert(valid && "the initial value of a row is one that its option allows");
        (void)valid;
    }
}

/* -- Rows by name ----------------------------------------------------------------------------------------------- */

bool options_set(const OptionTable *table, void *values, OptionStrings *strings, const char *assignment, Error *error) {
    char quoted[OPTIONS_QUOTED], where[OPTIONS_QUOTED + 4];
    options_quote(quoted, assignment, strlen(assignment));
    const char *equals = strchr(assignment, '=');
    if (!equals) return error_set(error, ERROR_USAGE, "%s is not key=value", quoted);
    snprintf(where, sizeof where, "in %s", quoted);
    size_t length = (size_t)(equals - assignment);
    const Option *option = options_find(table, assignment, length);
    if (!option && file_exists(assignment))
        return error_set(error, ERROR_USAGE,
            "%s is a file or folder, but an argument that contains = is parsed as key=value: rename it, or pass a link to it", quoted);
    if (!option) return options_unknown(table, assignment, length, where, error);
    return options_set_row(option, values, strings, equals + 1, strlen(equals + 1), where, error);
}

bool options_set_all(const OptionTable *table, void *values, OptionStrings *strings, const OptionStrings *assignments, Error *error) {
    Error wrong = {0}, one;
    for (size_t i = 0; i < assignments->count; i++)
        if (!options_set(table, values, strings, assignments->items[i], &one)) error_also(&wrong, &one);
    if (wrong.code) *error = wrong;
    return !wrong.code;
}

/* -- Output ----------------------------------------------------------------------------------------------------- */

const char *options_string(const Option *option, const void *values) { return value_get(option, values).string; }

static void format_reals(const RealList *list, char *text, size_t size) {
    size_t used = 0;
    if (size) *text = '\0';
    for (int64_t i = 0; i < list->count && used < size; i++) {
        char number[32];
        format_real(list->items[i], number);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i ? "," : "", number);
    }
}

void options_format_value(const Option *option, const void *values, char *text, size_t size) {
    const OptionValue value = value_get(option, values);
    char number[32];
    const char *start;
    size_t length;
    switch (option->type) {
    case OPTION_BOOL: snprintf(text, size, "%s", value.flag ? "true" : "false"); break;
    case OPTION_INT: snprintf(text, size, "%" PRId64, value.integer); break;
    case OPTION_REAL:
        format_real(value.real, number);
        snprintf(text, size, "%s", number);
        break;
    case OPTION_CHOICE:
        if (!choice_at(option->choices, value.choice, &start, &length)) assert(!"the value of a choice is one of its choices");
        snprintf(text, size, "%.*s", (int)length, start);
        break;
    case OPTION_STRING: snprintf(text, size, "%s", value.string); break;
    case OPTION_REALS: format_reals(&value.reals, text, size); break;
    }
}

size_t options_group_length(const char *name) {
    const char *dot = strchr(name, '.');
    return dot ? (size_t)(dot - name) : 0;
}

bool options_opens_group(const OptionTable *table, size_t row) {
    const char *name = table->rows[row].name, *before = row ? table->rows[row - 1].name : NULL;
    size_t length = options_group_length(name);
    return !before || options_group_length(before) != length || memcmp(before, name, length) != 0;
}

static bool same_value(const Option *option, OptionValue left, OptionValue right) {
    if (option->type == OPTION_STRING) return strcmp(left.string, right.string) == 0;
    if (option->type == OPTION_REAL) return left.real == right.real;
    if (option->type == OPTION_REALS) {
        bool same = left.reals.count == right.reals.count;
        for (int64_t i = 0; i < left.reals.count && same; i++) same = left.reals.items[i] == right.reals.items[i];
        return same;
    }
    return memcmp(&left, &right, value_bytes[option->type]) == 0;
}

bool options_is_initial(const Option *option, const void *values) {
    OptionValue initial = {0};
    const char *reason = parse_text_option(option, option->initial, strlen(option->initial), &initial);
    assert(!reason);
    (void)reason;
    return same_value(option, value_get(option, values), initial);
}

static void format_shown(const Option *option, const void *values, char text[OPTIONS_QUOTED]) {
    if (option->type == OPTION_STRING) options_quote(text, options_string(option, values), strlen(options_string(option, values)));
    else options_format_value(option, values, text, OPTIONS_QUOTED);
}

int options_difference(const OptionTable *table, const void *old_values, const void *new_values, char *text, size_t size) {
    int count = 0;
    size_t used = 0;
    if (size) text[0] = '\0';
    for (size_t i = 0; i < table->count; i++) {
        const Option *option = &table->rows[i];
        if (same_value(option, value_get(option, old_values), value_get(option, new_values))) continue;
        count++;
        char old_text[OPTIONS_QUOTED], new_text[OPTIONS_QUOTED];
        format_shown(option, old_values, old_text);
        format_shown(option, new_values, new_text);
        if (used < size) used += (size_t)snprintf(text + used, size - used, "%s: %s -> %s\n", option->name, old_text, new_text);
    }
    return count;
}

char *options_absolute_path(const char *path) {
    while (!strncmp(path, "./", 2)) path += 2 + strspn(path + 2, "/");
    size_t length = path_length(path);
    if (strstr(path, "://")) return memory_copy_string(path);
    SCOPED_FREE char *folder = *path == '/' || !strcmp(path, "none") ? NULL : getcwd(NULL, 0);
    return memory_format("%s%s%.*s", folder ? folder : "", folder && length ? "/" : "", (int)length, path);
}

void options_remember(const OptionTable *table, void *values, OptionStrings *strings) {
    for (size_t i = 0; i < table->count; i++) {
        const Option *option = &table->rows[i];
        const char *path = option->path ? options_string(option, values) : "";
        SCOPED_FREE char *absolute = *path ? options_absolute_path(path) : NULL;
        const char *text = option->class == OPTION_ONCE ? option->initial : absolute;
        if (text) parse_value(option, values, strings, text, strlen(text));
    }
}

void options_free_strings(OptionStrings *strings) {
    for (size_t i = 0; i < strings->count; i++) free(strings->items[i]);
    free(strings->items);
    *strings = (OptionStrings){0};
}
