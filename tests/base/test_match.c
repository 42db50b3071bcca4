/* Scores of texts against other code (tests/golden/match.py), and what only C can show: texts that are not strings,
 * and patterns that never end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_reader.h"
#include "base/match.h"
#include "base/memory.h"
#include "support/mentions.h"

static bool matches_regex(const char *pattern, const char *text, size_t size, const char *answer) {
    Error error = {0};
    bool matches = false;
    MatchRegex *regex = match_regex_compile(pattern, false, &error);
    if (!regex || !match_regex(regex, text, size, answer, &matches, &error)) fail_msg("%s", error.message);
    match_regex_free(regex);
    return matches;
}

static bool check_row(void *context, JsonLine line, Error *error) {
    json_t *row = line.value;
    (void)error;
    const json_t *value = json_object_get(row, "text");
    const char *kind = json_string_value(json_object_get(row, "kind")), *text = json_string_value(value),
               *answer = json_string_value(json_object_get(row, "answer"));
    size_t size = json_string_length(value);
    bool matches = *kind == 'e'   ? match_exact(text, size, answer)
                   : *kind == 'n' ? match_last_number(text, size, answer)
                   : *kind == 'b' ? match_boxed(text, size, answer)
                                  : matches_regex(json_string_value(json_object_get(row, "pattern")), text, size, answer);
    if (matches != json_is_true(json_object_get(row, "matches"))) print_error("%s\n", json_dumps(row, 0)), ++*(int *)context;
    json_decref(row);
    return true;
}

static void texts_match_as_other_code_says(void **state) {
    (void)state;
    Error error = {0};
    int wrong = 0;
    if (!json_read_lines("tests/golden/match.jsonl", 1 << 24, 0, check_row, &wrong, &error)) fail_msg("%s", error.message);
    assert_int_equal(wrong, 0);
}

static void bytes_that_are_no_text_are_searched(void **state) {
    (void)state;
    static const char text[] = "\xff\0\xfe answer: 5";
    assert_true(matches_regex("answer: (\\d)", text, sizeof text - 1, "5"));
    assert_true(match_last_number(text, sizeof text - 1, "5"));
    assert_true(matches_regex("^[A-Z]+$", "ABC", 3, NULL));
    assert_false(matches_regex("^[A-Z]+$", "ABc", 3, NULL));
}

static void a_pattern_without_an_end_is_an_error(void **state) {
    (void)state;
    Error error = {0};
    bool matches;
    char text[64];
    memset(text, 'a', sizeof text);
    MatchRegex *regex = match_regex_compile("^(a+)+$", false, &error);
    text[sizeof text - 1] = 'b';
    assert_false(match_regex(regex, text, sizeof text, "a", &matches, &error));
    assert_mentions(error.message, "limit exceeded simplify");
    match_regex_free(regex);
    assert_null(match_regex_compile("(", false, &error));
    assert_mentions(error.message, "pattern character 2");
}

/* Every size takes linear time, or is refused. */
static void long_texts_end(void **state) {
    (void)state;
    enum { SIZE = 1 << 20 };
    static const char *const parts[] = {"9", "1,234", "-", "\\frac{", "\\boxed{", "{", "}", "$", "\\text{ "};
    char *text = memory_allocate(SIZE + 16);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        size_t length = strlen(parts[i]);
        for (size_t at = 0; at < SIZE; at += length) memcpy(text + at, parts[i], length);
        match_last_number(text, SIZE, "5");
        match_boxed(text, SIZE, "5");
        memcpy(text, "\\boxed{", 7);
        text[9000] = '}';
        match_boxed(text, 9001, "5");
    }
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_match_as_other_code_says),
        cmocka_unit_test(bytes_that_are_no_text_are_searched),
        cmocka_unit_test(a_pattern_without_an_end_is_an_error),
        cmocka_unit_test(long_texts_end),
    };
    return cmocka_run_group_tests_name("match", tests, NULL, NULL);
}
