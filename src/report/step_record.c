/* The scanner of records of steps. What it accepts, it reads as jansson does, number by number; it refuses everything unusual. */
#include "report/step_record_internal.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

const char *const step_fields[STEP_FIELDS] = {[SERIES_LOSS] = "loss",
    [SERIES_NORM] = "grad_norm",
    [SERIES_LR] = "lr",
    [SERIES_SPEED] = "tokens_per_second",
    [SERIES_MARGIN] = "reward_margin",
    [SERIES_ACCURACY] = "reward_accuracy",
    [SERIES_REWARD] = "reward",
    [SERIES_LENGTH] = "sample_length",
    [SERIES_ENTROPY] = "entropy",
    [SERIES_MISMATCH] = "mismatch_kl",
    [SERIES_CPU] = "machine_cpu",
    [SERIES_MACHINE_MEMORY] = "machine_memory",
    [SERIES_DISK] = "machine_disk",
    [SERIES_NETWORK] = "machine_network",
    [SERIES_GPU] = "machine_gpu",
    [SERIES_WATTS] = "machine_power",
    [SERIES_CELSIUS] = "machine_temperature",
    [STEP_NUMBER] = "step",
    [STEP_MILLISECONDS] = "milliseconds",
    [STEP_TOKENS_SEEN] = "tokens_seen",
    [STEP_TFLOPS] = "tflops",
    [STEP_PEAK_PERCENT] = "peak_percent",
    [STEP_BEST_PERCENT] = "best_percent",
    [STEP_MEMORY] = "memory_bytes",
    [STEP_TIME] = "time"};

StepRecord step_record_of(const json_t *record) {
    StepRecord step = {.skipped = json_is_true(json_object_get(record, "skipped"))};
    for (StepField i = 0; i < STEP_FIELDS; i++) {
        const json_t *value = json_object_get(record, step_fields[i]);
        step.numbers[i] = json_is_number(value) ? json_number_value(value) : NAN;
    }
    return step;
}

/* -- Scanning ------------------------------------------------------------------------------------------------------ */

/* A piece of a line. */
typedef struct LinePiece {
    const char *start;
    size_t length;
} LinePiece;

static bool piece_is(LinePiece piece, const char *text) { return !strncmp(text, piece.start, piece.length) && !text[piece.length]; }

static bool is_line_digit(char c) { return c >= '0' && c <= '9'; }

static void skip_line_blanks(const char **at) {
    while (**at == ' ' || **at == '\t') ++*at;
}

static bool skip_line_sign(const char **at, char sign) {
    skip_line_blanks(at);
    if (**at != sign) return false;
    ++*at;
    skip_line_blanks(at);
    return true;
}

/* A string of plain ASCII. */
static bool take_step_string(const char **at, LinePiece *piece) {
    if (**at != '"') return false;
    piece->start = ++*at;
    while (**at >= ' ' && **at < 0x7f && **at != '"' && **at != '\\') ++*at;
    piece->length = (size_t)(*at - piece->start);
    return *(*at)++ == '"';
}

/* Adds digits to the mantissa; false: there is none, or are too many. */
static bool take_digits(const char **at, uint64_t *mantissa) {
    const uint64_t most = UINT64_C(1) << 53; /* exact in a double */
    const char *first = *at;
    for (; is_line_digit(**at); ++*at) {
        *mantissa = *mantissa * 10 + (uint64_t)(**at - '0');
        if (*mantissa > most) return false;
    }
    return *at > first;
}

/* A mantissa below 2^53 and a power of ten up to 10^22 are exact in doubles, so one multiplication or division rounds correctly (Clinger, "How to
 * Read Floating Point Numbers Accurately", 1990). */
static bool take_step_number(const char **at, double *value) {
    static const double powers[] = {
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    const int64_t most = sizeof powers / sizeof *powers - 1;
    bool negative = **at == '-';
    uint64_t mantissa = 0, size = 0;
    int64_t exponent = 0;
    *at += negative;
    const char *first = *at;
    if (!take_digits(at, &mantissa) || (*first == '0' && *at > first + 1)) return false;
    if (**at == '.') {
        const char *point = (*at)++;
        if (!take_digits(at, &mantissa)) return false;
        exponent = -(*at - point - 1);
    }
    if (**at == 'e' || **at == 'E') {
        bool below = *++*at == '-';
        *at += below || **at == '+';
        if (!take_digits(at, &size) || size > (uint64_t)(2 * most)) return false;
        exponent += below ? -(int64_t)size : (int64_t)size;
    }
    if (exponent < -most || exponent > most || (negative && !mantissa)) return false;
    *value = exponent < 0 ? (double)mantissa / powers[-exponent] : (double)mantissa * powers[exponent];
    if (negative) *value = -*value;
    return true;
}

/* Scans a value that is no string; *value is NaN if it is no number. */
static bool take_step_value(const char **at, double *value, bool *is_true) {
    static const char *const words[] = {"true", "false", "null"};
    *value = NAN;
    *is_true = false;
    if (**at == '-' || is_line_digit(**at)) return take_step_number(at, value);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t length = strlen(words[i]);
        if (strncmp(*at, words[i], length) != 0) continue;
        *at += length;
        *is_true = i == 0;
        return true;
    }
    return false;
}

/* Returns the field with this name, beginning the search at `next`; STEP_FIELDS: none. */
static StepField step_field_named(LinePiece name, StepField next) {
    for (StepField i = 0; i < STEP_FIELDS; i++) {
        StepField field = (next + i) % STEP_FIELDS;
        if (piece_is(name, step_fields[field])) return field;
    }
    return STEP_FIELDS;
}

bool step_record_scan(const char *line, size_t length, StepRecord *record) {
    const char *at = line;
    StepField next = 0;
    bool is_step = false;
    *record = (StepRecord){0};
    for (StepField i = 0; i < STEP_FIELDS; i++) record->numbers[i] = NAN;
    if (!skip_line_sign(&at, '{')) return false;
    do {
        LinePiece name, text = {"", 0};
        double value = NAN;
        bool is_true = false;
        skip_line_blanks(&at);
        if (!take_step_string(&at, &name) || !skip_line_sign(&at, ':')) return false;
        if (*at == '"' ? !take_step_string(&at, &text) : !take_step_value(&at, &value, &is_true)) return false;
        StepField field = step_field_named(name, next);
        if (field < STEP_FIELDS) record->numbers[field] = value, next = field + 1;
        else if (piece_is(name, "skipped")) record->skipped = is_true;
        else if (piece_is(name, "kind")) is_step = piece_is(text, "step");
    } while (skip_line_sign(&at, ','));
    return skip_line_sign(&at, '}') && at == line + length && is_step;
}
