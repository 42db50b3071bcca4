/* Regular expressions of tokenizers: searches within windows give the matches that PCRE2 finds in the whole text, and the time
 * of an expression that backtracks or looks ahead is bounded for every text. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "support/files.h"

#include "base/scope.h"
#include "support/mentions.h"
#include "token/token_internal.h"

/* `count` times `part`; the caller frees. */
static Buffer repeated(const char *part, size_t count) {
    Buffer text = {0};
    for (size_t i = 0; i < count; i++) buffer_append(&text, part, strlen(part));
    return text;
}

/* The matches of one text, one after another as an encoder looks for them. */
static bool next_place(Span text, size_t start, size_t end, size_t *from) {
    size_t size = 1;
    if (start == end && end < text.size) text_character(text.bytes + end, &size);
    *from = start == end ? end + size : end;
    return *from <= text.size;
}

/* Fails unless all matches are those that PCRE2 finds without windows and limits. */
static void assert_matches_of_whole_text(const char *pattern, Span text) {
    int code;
    size_t offset, from = 0, start, end, count = 0;
    pcre2_code *whole =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &code, &offset, NULL);
    assert_non_null(whole);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    Error error = {0};
    Regex *regex = regex_open(pattern, strlen(pattern), REGEX_ONIGURUMA, &error);
    if (!regex) fail_msg("%s", error.message);
    RegexSearch search = {.scratch = regex_scratch_open(), .text = text};
    for (bool more = true; more; count++) {
        int expected = pcre2_match(whole, (PCRE2_SPTR)text.bytes, text.size, from, 0, data, NULL);
        int found = regex_find(regex, &search, from, &start, &end, &error);
        const size_t *bounds = pcre2_get_ovector_pointer(data);
        if (found < 0) fail_msg("%s", error.message);
        if (found != (expected > 0) || (found && (start != bounds[0] || end != bounds[1])))
            fail_msg(
                "/%s/ from %zu: %d [%zu, %zu), and not %d [%zu, %zu)", pattern, from, found, start, end, expected, bounds[0], bounds[1]);
        more = found && next_place(text, start, end, &from);
    }
    assert_true(count > 0);
    regex_scratch_free(search.scratch);
    regex_free(regex);
    pcre2_match_data_free(data);
    pcre2_code_free(whole);
}

static void windows_change_no_match(void **state) {
    (void)state;
    static const char *const patterns[] = {" ?\\p{L}+| ?\\p{N}+|[ \\n]+(?![^ \\n])|[ \\n]+", "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))",
        "(?<=a)b+|a|[^a]", "[^x]*x|.", "$", "x$", "(?:a|b)*c|a", "(?=.*x)a|x", "^a*", "\\p{L}*?x", "q", "a{0,1000}"};
    static const struct {
        const char *part;
        size_t count;
    } runs[] = {{"a", 2000}, {"a", 255}, {"a", 256}, {"a", 257}, {"1", 1500}, {" ", 1200}, {"\xc3\xa9", 700}, {"\xe4\xb8\x80", 700},
        {"\xf0\x9f\x98\x80", 400}, {"ab c\n", 300}, {"\n", 600}, {"abx1 \xc3\xa9\n\n", 150}};
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
        for (size_t r = 0; r < sizeof runs / sizeof *runs; r++) {
            SCOPED(buffer_free) Buffer text = repeated(runs[r].part, runs[r].count);
            assert_matches_of_whole_text(patterns[p], buffer_span(&text));
            buffer_append(&text, "x\n", 2);
            assert_matches_of_whole_text(patterns[p], buffer_span(&text));
        }
}

/* The result of the search of a whole text; 0: all matches are found. */
static ErrorCode search_all(const char *pattern, Span text, Error *error) {
    *error = (Error){0};
    Regex *regex = regex_open(pattern, strlen(pattern), REGEX_ONIGURUMA, error);
    assert_non_null(regex);
    RegexSearch search = {.scratch = regex_scratch_open(), .text = text};
    size_t from = 0, start, end;
    while (regex_find(regex, &search, from, &start, &end, error) > 0 && next_place(text, start, end, &from)) continue;
    regex_scratch_free(search.scratch);
    regex_free(regex);
    return error->code;
}

/* Exponential, cubic and quadratic ones; without the budget they take from a minute to for ever on 200 kB. */
static void expressions_that_backtrack_are_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "(?:a|aa)+b|a", "(?:a+)+b|a", "(?:a|b)*c|.", "a*b|.", "a*a*b|.", "(?=.*x)a|.", "(?=[^x]*x)a|.", "(?:a?){40}a{40}b|.", "(a*)*b|."};
    SCOPED(buffer_free) Buffer text = repeated("a", 200000);
    buffer_append(&text, "\n", 1);
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        Error error;
        char quoted[80];
        snprintf(quoted, sizeof quoted, "/%s/", patterns[p]);
        if (search_all(patterns[p], buffer_span(&text), &error) != ERROR_DATA) fail_msg("%s ends with %d", patterns[p], error.code);
        if (!mentions(error.message, quoted) || !mentions(error.message, "200001 \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\""))
            fail_msg("%s", error.message);
    }
}

/* Short words, each of which takes many steps but none the limit of one match, took 40 s together. */
static void steps_of_many_matches_are_counted_together(void **state) {
    (void)state;
    Error error;
    SCOPED(buffer_free) Buffer text = repeated("aaaaaaaaaaaaaaaaaaaaaaaa ", 8000);
    assert_int_equal(search_all("(?:a|aa)+b|a+| ", buffer_span(&text), &error), ERROR_DATA);
    assert_mentions(error.message, "backtracks");
}

static void long_runs_are_within_the_budget(void **state) {
    (void)state;
    static const char *const patterns[] = {
        " ?\\p{L}+| ?\\p{N}+|\\s+(?!\\S)|\\s+", "\\p{N}{1,3}|[^\\p{N}]+", "\\s*[\\r\\n]+|\\s+|\\S+", "b"};
    static const char *const parts[] = {"a", " ", "1", "\n"};
    Error error;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        SCOPED(buffer_free) Buffer text = repeated(parts[i], 1000000);
        for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++)
            if (search_all(patterns[p], buffer_span(&text), &error) != ERROR_NONE) fail_msg("%s", error.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_change_no_match),
        cmocka_unit_test(expressions_that_backtrack_are_refused),
        cmocka_unit_test(steps_of_many_matches_are_counted_together),
        cmocka_unit_test(long_runs_are_within_the_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
