/* Exact numbers are decimal digits with an exponent. A product of two is computed digit by digit, so
 * quotients are compared by cross-multiplication without rounding. Expressions are normalized in a
 * copy, by the rules of Hendrycks' is_equiv, and compared as strings. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "base/match.h"

#include <ctype.h>
#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"

/* Bytes of a text; not owned. */
typedef struct MatchSpan { const char *at, *end; } MatchSpan;

static bool span_begins(MatchSpan span, const char *start) {
    size_t length = strlen(start);
    return (size_t)(span.end - span.at) >= length && memcmp(span.at, start, length) == 0;
}

/* Skips a string at the start of a span; returns whether it was there. */
static bool span_skip(MatchSpan *span, const char *start) {
    bool found = span_begins(*span, start);
    if (found) span->at += strlen(start);
    return found;
}

static MatchSpan trim(MatchSpan span) {
    while (span.at < span.end && isspace((unsigned char)*span.at)) span.at++;
    while (span.at < span.end && isspace((unsigned char)span.end[-1])) span.end--;
    return span;
}

static MatchSpan span_of(const char *text) { return (MatchSpan){text, text + strlen(text)}; }

static bool spans_equal(MatchSpan a, MatchSpan b) {
    return a.end - a.at == b.end - b.at && memcmp(a.at, b.at, (size_t)(a.end - a.at)) == 0;
}

bool match_exact(const char *text, size_t size, const char *answer) {
    return spans_equal(trim((MatchSpan){text, text + size}), trim(span_of(answer)));
}

/* -- Numbers ------------------------------------------------------------------------------------------------------- */

/* digits x 10^exponent, most significant digit first. Invariant: the first and the last digit are not
 * 0; zero has no digits, the exponent 0 and no sign. */
typedef struct Decimal {
    bool negative;
    int count;
    int64_t exponent;
    uint8_t digits[2 * MATCH_DIGITS];
} Decimal;

typedef struct Quotient { Decimal above, below; } Quotient; /* below is not 0 */

static Decimal decimal_normal(Decimal d) {
    int zeros = 0;
    while (zeros < d.count && d.digits[zeros] == 0) zeros++;
    memmove(d.digits, d.digits + zeros, (size_t)(d.count - zeros));
    d.count -= zeros;
    for (; d.count > 0 && d.digits[d.count - 1] == 0; d.count--) d.exponent++;
    if (d.count == 0) d.exponent = 0, d.negative = false;
    return d;
}

static bool decimals_equal(const Decimal *a, const Decimal *b) {
    return a->negative == b->negative && a->count == b->count && a->exponent == b->exponent &&
           memcmp(a->digits, b->digits, (size_t)a->count) == 0;
}

/* Factors have at most MATCH_DIGITS digits. */
static Decimal decimal_product(const Decimal *a, const Decimal *b) {
    Decimal product = {.negative = a->negative != b->negative, .count = a->count + b->count, .exponent = a->exponent + b->exponent};
    for (int i = a->count - 1; i >= 0; i--) {
        int carry = 0;
        for (int j = b->count - 1; j >= 0; j--) {
            carry += product.digits[i + j + 1] + a->digits[i] * b->digits[j];
            product.digits[i + j + 1] = (uint8_t)(carry % 10);
            carry /= 10;
        }
        product.digits[i] = (uint8_t)carry;
    }
    return decimal_normal(product);
}

static bool quotients_equal(const Quotient *a, const Quotient *b) {
    Decimal left = decimal_product(&a->above, &b->below), right = decimal_product(&b->above, &a->below);
    return decimals_equal(&left, &right);
}

static bool is_digit(MatchSpan span, int64_t offset) { return offset < span.end - span.at && isdigit((unsigned char)span.at[offset]); }

/* Whether a comma and exactly three digits follow. */
static bool is_group(MatchSpan span) {
    return span_begins(span, ",") && is_digit(span, 1) && is_digit(span, 2) && is_digit(span, 3) && !is_digit(span, 4);
}

static bool take_digits(MatchSpan *span, Decimal *d) {
    for (; is_digit(*span, 0); span->at++) {
        if (d->count == MATCH_DIGITS) return false;
        d->digits[d->count++] = (uint8_t)(*span->at - '0');
    }
    return true;
}

static void take_exponent(MatchSpan *span, Decimal *d) {
    enum { MOST_EXPONENT = 1000000 };
    MatchSpan rest = *span;
    if (!span_skip(&rest, "e") && !span_skip(&rest, "E")) return;
    bool negative = span_skip(&rest, "-");
    int64_t exponent = 0;
    if (!negative) span_skip(&rest, "+");
    if (!is_digit(rest, 0)) return;
    for (; is_digit(rest, 0); rest.at++) exponent = exponent < MOST_EXPONENT ? exponent * 10 + (*rest.at - '0') : exponent;
    d->exponent += negative ? -exponent : exponent;
    *span = rest;
}

static bool take_sign(MatchSpan *span) { return span_skip(span, "-") || span_skip(span, "\xE2\x88\x92" /* U+2212 */); }

/* Takes a number without a quotient from the start of a span. */
static bool take_decimal(MatchSpan *span, Decimal *d) {
    MatchSpan rest = *span;
    *d = (Decimal){.negative = take_sign(&rest)};
    if (!d->negative) span_skip(&rest, "+");
    (void)(span_skip(&rest, "\\$") || span_skip(&rest, "$"));
    bool whole = is_digit(rest, 0);
    int64_t first = 1;
    while (is_digit(rest, first)) first++;
    if (!take_digits(&rest, d)) return false;
    while (whole && first <= 3 && is_group(rest)) rest.at++, take_digits(&rest, d);
    if (span_begins(rest, ".") && is_digit(rest, 1)) {
        int before = d->count;
        rest.at++;
        if (!take_digits(&rest, d)) return false;
        d->exponent = before - d->count;
    } else if (!whole) {
        return false;
    }
    take_exponent(&rest, d);
    *d = decimal_normal(*d);
    *span = rest;
    return true;
}

static bool take_braced(MatchSpan *span, Decimal *d) { return span_skip(span, "{") && take_decimal(span, d) && span_skip(span, "}"); }

static bool take_fraction(MatchSpan *span, Quotient *q) {
    static const char *const names[] = {"\\frac", "\\dfrac", "\\tfrac"};
    MatchSpan rest = *span;
    bool negative = take_sign(&rest), found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) found = span_skip(&rest, names[i]);
    if (!found || !take_braced(&rest, &q->above) || !take_braced(&rest, &q->below) || q->below.count == 0) return false;
    if (q->above.count) q->above.negative = q->above.negative != negative;
    *span = rest;
    return true;
}

/* Takes a number from the start of a span. */
static bool take_number(MatchSpan *span, Quotient *q) {
    if (take_fraction(span, q)) return true;
    if (!take_decimal(span, &q->above)) return false;
    q->below = (Decimal){.count = 1, .digits = {1}};
    MatchSpan rest = *span;
    Decimal below;
    if (span_skip(&rest, "/") && is_digit(rest, 0) && take_decimal(&rest, &below) && below.count > 0) q->below = below, *span = rest;
    return true;
}

static bool last_number(MatchSpan text, Quotient *last) {
    bool found = false;
    for (MatchSpan rest = text; rest.at < rest.end;) {
        Quotient q;
        unsigned char before = rest.at > text.at ? (unsigned char)rest.at[-1] : ' ';
        MatchSpan sign = rest;
        bool hyphen = take_sign(&sign) && (isalnum(before) || before == ')' || before == ']' || before == '}');
        bool digit = is_digit(rest, 0);
        if (!hyphen && take_number(&rest, &q)) found = true, *last = q;
        else rest.at++;
        while (digit && is_digit(rest, 0)) rest.at++; /* of a number with too many */
    }
    return found;
}

bool match_last_number(const char *text, size_t size, const char *answer) {
    Quotient a, b;
    return last_number((MatchSpan){text, text + size}, &a) && last_number(span_of(answer), &b) && quotients_equal(&a, &b);
}

/* -- Expressions --------------------------------------------------------------------------------------------------- */

/* Returns the content of the braces that a span begins with; at NULL: there is no end. */
static MatchSpan braced(MatchSpan span) {
    int64_t depth = 0;
    for (const char *c = span.at; c < span.end; c++) {
        depth += (*c == '{') - (*c == '}');
        if (depth == 0) return (MatchSpan){span.at + 1, c};
    }
    return (MatchSpan){0};
}

/* Returns the content of the last \boxed or else \fbox; at NULL: none. */
static MatchSpan last_boxed(MatchSpan text) {
    static const char *const names[] = {"\\boxed", "\\fbox"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (const char *c = text.end; c-- > text.at;) {
            MatchSpan rest = {c, text.end};
            if (!span_skip(&rest, names[i]) || rest.at == rest.end) continue;
            if (*rest.at == '{') return braced(rest);
            if (*rest.at != ' ') continue;
            const char *end = rest.at;
            while (end < rest.end && *end != '$' && *end != '\n') end++;
            return (MatchSpan){rest.at, end};
        }
    return (MatchSpan){0};
}

/* A text of which parts are removed or replaced; it never grows beyond `capacity`. */
typedef struct MatchExpression {
    char *text;
    size_t size, capacity;
} MatchExpression;

static void replace_at(MatchExpression *e, size_t at, size_t length, const char *by) {
    size_t more = strlen(by);
    e->size += more - length;
    if (e->size > e->capacity) e->text = memory_resize(e->text, e->capacity = 2 * e->size);
    memmove(e->text + at + more, e->text + at + length, e->size - at - more);
    memcpy(e->text + at, by, more);
}

static MatchSpan rest_of(const MatchExpression *e, size_t at) { return (MatchSpan){e->text + at, e->text + e->size}; }

static void replace_all(MatchExpression *e, const char *what, const char *by) {
    for (size_t at = 0; at < e->size;)
        if (span_begins(rest_of(e, at), what)) replace_at(e, at, strlen(what), by), at += strlen(by);
        else at++;
}

/* Removes units, which are \text{ ...} after something; of other texts only the command goes. */
static void remove_text(MatchExpression *e, const char *command) {
    size_t length = strlen(command);
    for (size_t at = 0; at < e->size; at++) {
        MatchSpan rest = rest_of(e, at);
        if (!span_skip(&rest, command) || !span_begins(rest, "{")) continue;
        MatchSpan content = braced(rest);
        if (!content.at) return;
        size_t size = (size_t)(content.end - content.at);
        bool unit = at > 0 && size > 0 && content.at[0] == ' ';
        if (unit) {
            replace_at(e, at, length + size + 2, "");
        } else {
            replace_at(e, at + length + 1 + size, 1, "");
            replace_at(e, at, length + 1, "");
        }
    }
}

/* Puts braces around single characters after a command: \frac12 becomes \frac{1}{2}. */
static void brace_arguments(MatchExpression *e, const char *command, int arguments) {
    size_t length = strlen(command);
    for (size_t at = 0; at < e->size; at++) {
        if (!span_begins(rest_of(e, at), command)) continue;
        size_t next = at + length;
        for (int i = 0; i < arguments && next < e->size; i++) {
            MatchSpan rest = rest_of(e, next), content = {0};
            if (*rest.at == '\\') break;
            if (*rest.at == '{') {
                content = braced(rest);
                if (!content.at) return;
                next = (size_t)(content.end + 1 - e->text);
            } else {
                const char argument[] = {'{', *rest.at, '}', 0};
                replace_at(e, next, 1, argument);
                next += 3;
            }
        }
    }
}

static void remove_name(MatchExpression *e) {
    const char *equal = memchr(e->text, '=', e->size);
    if (!equal || equal - e->text > 2) return;
    size_t length = (size_t)(equal + 1 - e->text);
    if (!memchr(equal + 1, '=', e->size - length)) replace_at(e, 0, length, "");
}

/* Takes time quadratic in the size. */
static MatchExpression normalize(MatchSpan span) {
    static const struct {
        const char *what, *by;
    } replaced[] = {{"\\!", ""}, {"\\,", ""}, {"\\;", ""}, {"\\:", ""}, {"\\ ", ""}, {"\\quad", ""}, {"~", ""}, {"\n", ""}, {"\\\\", "\\"},
        {"tfrac", "frac"}, {"dfrac", "frac"}, {"\\left", ""}, {"\\right", ""}, {"^{\\circ}", ""}, {"^\\circ", ""}, {"\\$", ""}, {"$", ""},
        {"\\%", ""}, {"%", ""}, {"{,}", ","}};
    MatchExpression e = {.size = (size_t)(span.end - span.at), .capacity = (size_t)(span.end - span.at) + 1};
    e.text = memory_allocate(e.capacity);
    memcpy(e.text, span.at, e.size);
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++) replace_all(&e, replaced[i].what, replaced[i].by);
    remove_text(&e, "\\text");
    remove_text(&e, "\\textbf");
    remove_text(&e, "\\mathrm");
    replace_all(&e, " ", "");
    remove_name(&e);
    brace_arguments(&e, "\\frac", 2);
    brace_arguments(&e, "\\sqrt", 1);
    if (e.size > 0 && e.text[e.size - 1] == '.') e.size--;
    return e;
}

static bool whole_number(MatchSpan span, Quotient *q) { return take_number(&span, q) && span.at == span.end; }

static bool numbers_equal(MatchSpan a, MatchSpan b) {
    Quotient a_number, b_number;
    return whole_number(a, &a_number) && whole_number(b, &b_number) && quotients_equal(&a_number, &b_number);
}

bool match_boxed(const char *text, size_t size, const char *answer) {
    enum { MOST_EXPRESSION = 10000 };
    MatchSpan own = last_boxed((MatchSpan){text, text + size}), expected = last_boxed(span_of(answer));
    if (!expected.at) expected = span_of(answer);
    if (!own.at || own.end - own.at > MOST_EXPRESSION || expected.end - expected.at > MOST_EXPRESSION) return false;
    MatchExpression a = normalize(own), b = normalize(expected);
    bool equal = spans_equal(rest_of(&a, 0), rest_of(&b, 0)) || numbers_equal(rest_of(&a, 0), rest_of(&b, 0));
    free(a.text), free(b.text);
    return equal;
}

/* -- Regular expressions ------------------------------------------------------------------------------------------- */

struct MatchRegex {
    pcre2_code *code;
    bool numbers;
};

MatchRegex *match_regex_compile(const char *pattern, bool numbers, Error *error) {
    int reason;
    size_t offset;
    PCRE2_UCHAR message[200];
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
        PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C, &reason, &offset, NULL);
    if (!code) {
        pcre2_get_error_message(reason, message, sizeof message);
        error_set(error, ERROR_USAGE, "the pattern %s is not a regular expression of PCRE2: %s at character %zu", pattern,
            (const char *)message, offset + 1);
        return NULL;
    }
    MatchRegex *regex = memory_allocate(sizeof *regex);
    *regex = (MatchRegex){code, numbers};
    return regex;
}

void match_regex_free(MatchRegex *regex) {
    if (regex) pcre2_code_free(regex->code);
    free(regex);
}

static bool group_matches(const MatchRegex *regex, MatchSpan group, const char *answer) {
    return match_exact(group.at, (size_t)(group.end - group.at), answer) ||
           (regex->numbers && numbers_equal(trim(group), trim(span_of(answer))));
}

bool match_regex(const MatchRegex *regex, const char *text, size_t size, const char *answer, bool *matches, Error *error) {
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(regex->code, NULL);
    if (!data) memory_refused(0);
    int count = pcre2_match(regex->code, (PCRE2_SPTR)text, size, 0, 0, data, NULL), group = count > 1;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(data);
    uint32_t groups = pcre2_get_ovector_count(data) - 1;
    while (group > 0 && group < count - 1 && at[2 * group] == at[2 * group + 1]) group++;
    const MatchSpan found = count > 0 ? (MatchSpan){text + at[2 * group], text + at[2 * group + 1]} : (MatchSpan){0};
    *matches = count > 0 && (!answer || ((groups == 0 || group > 0) && group_matches(regex, found, answer)));
    pcre2_match_data_free(data);
    if (count > 0 || count == PCRE2_ERROR_NOMATCH) return true;
    PCRE2_UCHAR message[200];
    pcre2_get_error_message(count, message, sizeof message);
    return error_set(
        error, ERROR_DATA, "the regular expression failed on a text of %zu bytes: %s: simplify it", size, (const char *)message);
}
