/* Reads the line of a step as smelt train writes it: an object of numbers, without jansson, which takes ten times as long
 * and would let `smelt watch` of a long run wait for its first page. What is written otherwise is left to jansson. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "report/history_internal.h"

#define FIELD(name) {#name, sizeof #name - 1, offsetof(StepRecord, name)}
static const struct {
    const char *name;
    size_t length, offset;
} fields[] = {FIELD(step), FIELD(loss), FIELD(grad_norm), FIELD(lr), FIELD(milliseconds), FIELD(tokens_seen), FIELD(tokens_per_second),
    FIELD(tflops), FIELD(peak_percent), FIELD(best_percent), FIELD(memory_bytes)};
#undef FIELD
enum { FIELDS = sizeof fields / sizeof *fields };

static double *field_of(StepRecord *record, int field) { return (double *)((char *)record + fields[field].offset); }

static bool skip(const char **at, const char *text) {
    size_t length = strlen(text);
    if (strncmp(*at, text, length) != 0) return false;
    *at += length;
    return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* A number of at most 15 digits without an exponent, which a double and a power of ten give exactly rounded; others by
 * strtod. Integers that jansson refuses are none. */
static bool read_number(const char **at, double *value) {
    static const double powers[] = {1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15};
    enum { DIGITS = 15 };
    const char *start = *at, *c = start + (*start == '-'), *first = c;
    int64_t mantissa = 0;
    int digits = 0, decimals = 0;
    for (; is_digit(*c) && digits <= DIGITS; c++, digits++) mantissa = 10 * mantissa + (*c - '0');
    if (!digits || (*first == '0' && digits > 1)) return false;
    if (*c == '.' && is_digit(c[1]))
        for (c++; is_digit(*c) && digits <= DIGITS; c++, digits++, decimals++) mantissa = 10 * mantissa + (*c - '0');
    if (digits <= DIGITS && (*c == ',' || *c == '}')) {
        *value = (double)mantissa / powers[decimals];
        if (*start == '-') *value = -*value;
        *at = c;
        return true;
    }
    size_t length = strspn(start, "-+.0123456789eE");
    json_error_t ignored;
    json_auto_t *number = json_loadb(start, length, JSON_DECODE_ANY, &ignored);
    *value = json_number_value(number);
    *at = start + length;
    return json_is_number(number);
}

static bool read_value(const char **at, double *value, bool *truth) {
    *truth = skip(at, "true");
    if (*truth || skip(at, "false") || skip(at, "null")) return *value = NAN, true;
    return read_number(at, value);
}

bool step_line_scan(const char *line, StepRecord *record) {
    const char *at = line;
    if (!skip(&at, "{\"kind\": \"step\"")) return false;
    *record = (StepRecord){0};
    for (int i = 0; i < FIELDS; i++) *field_of(record, i) = NAN;
    for (int next = 0; skip(&at, ", \"");) {
        const char *name = at;
        while ((*at >= 'a' && *at <= 'z') || *at == '_') at++;
        size_t length = (size_t)(at - name);
        double value;
        bool truth;
        if (!skip(&at, "\": ") || !read_value(&at, &value, &truth)) return false;
        if (length == strlen("skipped") && !memcmp(name, "skipped", length)) record->skipped = truth;
        for (int tried = 0; tried < FIELDS; tried++, next = (next + 1) % FIELDS)
            if (fields[next].length == length && !memcmp(fields[next].name, name, length)) {
                *field_of(record, next) = value;
                break;
            }
    }
    return !strcmp(at, "}");
}

void step_line_take(const json_t *json, StepRecord *record) {
    record->skipped = json_is_true(json_object_get(json, "skipped"));
    for (int i = 0; i < FIELDS; i++) {
        const json_t *value = json_object_get(json, fields[i].name);
        *field_of(record, i) = json_is_number(value) ? json_number_value(value) : NAN;
    }
}
