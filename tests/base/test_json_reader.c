/* Tests of the reader of others' JSON: it takes and refuses what Python's json (3.11) takes and refuses, keeps numbers that
 * jansson cannot hold, and tells absent files from unreadable ones. Run by `make test`. */
#include <float.h>
#include <math.h>

#include "base/json_reader.h"
#include "support/files.h"
#include "support/mentions.h"

static json_t *parse(const char *text) {
    Error error = {0};
    json_t *value = json_parse(text, strlen(text), 0, &error);
    if (!value) fail_msg("%s: %s", text, error.message);
    return value;
}

/* -- Numbers --------------------------------------------------------------------------------------------------------- */

typedef struct Number {
    const char *text, *wide; /* how Python's json.dumps writes it, where jansson does not hold it; else NULL */
    double value;            /* 0 of what is not finite */
} Number;

static const Number numbers[] = {
    {"9223372036854775807", NULL, 9223372036854775807.0},
    {"-9223372036854775808", NULL, -9223372036854775808.0},
    {"9223372036854775808", "9223372036854775808", 9223372036854775808.0},
    {"-9223372036854775809", "-9223372036854775809", -9223372036854775809.0},
    {"18446744073709551615", "18446744073709551615", 18446744073709551615.0},
    {"1000000000000000019884624838656", "1000000000000000019884624838656", 1e30},
    {"-1000000000000000019884624838656", "-1000000000000000019884624838656", -1e30},
    {"NaN", "NaN", 0},
    {"Infinity", "Infinity", 0},
    {"-Infinity", "-Infinity", 0},
    {"1e400", "Infinity", 0},
    {"-1.5E+400", "-Infinity", 0},
    {"1e-400", NULL, 0},
    {"-0", NULL, 0},
    {"1.7976931348623157e308", NULL, DBL_MAX},
    {"0.1e2", NULL, 10},
    {"1E3", NULL, 1000},
};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

static void numbers_of_any_size_are_read_and_written(void **state) {
    (void)state;
    static const char *const around[] = {"[%s]", "[ 1 ,\n%s\t]", "[{\"a\":%s}, \"NaN 1e400 \\\" -Infinity\"]", "[1e400,%s]"};
    for (int i = 0; i < NUMBERS; i++)
        for (int j = 0; j < 4; j++) {
            char text[200];
            snprintf(text, sizeof text, around[j], numbers[i].text);
            json_auto_t *list = parse(text);
            const json_t *value = json_array_get(list, j == 1 || j == 3), *member = json_object_get(value, "a");
            if (member) value = member, assert_string_equal(json_string_value(json_array_get(list, 1)), "NaN 1e400 \" -Infinity");
            const char *wide = json_wide_number(value);
            assert_int_equal(!wide, !numbers[i].wide);
            if (wide) assert_string_equal(wide, numbers[i].wide);
            assert_true(json_is_finite(value) == (!wide || isfinite(strtod(wide, NULL))));
            assert_true(json_finite_value(value) == numbers[i].value);
            char *written = json_format(list);
            json_auto_t *again = parse(written);
            assert_true(json_equal(again, list));
            assert_null(strstr(written, "smelt"));
            free(written);
        }
}

static void other_values_are_no_numbers(void **state) {
    (void)state;
    json_auto_t *list = parse("[\"NaN\", {\"smelt:number\": \"x\"}, {\"smelt:number\": 1}, [], {}, null, true, \"\\u0000\"]");
    for (size_t i = 0; i < json_array_size(list); i++) {
        assert_false(json_is_finite(json_array_get(list, i)));
        assert_null(json_wide_number(json_array_get(list, i)));
    }
    assert_int_equal(json_string_length(json_array_get(list, 7)), 1);
    char *written = json_format(list);
    json_auto_t *again = parse(written);
    assert_true(json_equal(again, list));
    free(written);
}

static void of_equal_names_the_last_counts(void **state) {
    (void)state;
    Error error = {0};
    static const char text[] = "{\"a\": 1, \"a\": NaN, \"b\": 1, \"b\": 2}";
    json_auto_t *object = parse(text);
    assert_string_equal(json_wide_number(json_object_get(object, "a")), "NaN");
    assert_int_equal(json_integer_value(json_object_get(object, "b")), 2);
    assert_null(json_parse(text, strlen(text), JSON_REJECT_DUPLICATES, &error));
    assert_mentions(error.message, "duplicate");
}

/* -- What Python's json refuses ---------------------------------------------------------------------------------------- */

static void what_python_refuses_is_an_error_with_its_place(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"", "column 1"}, {"{\"a\": 1,}", "column"}, {"{\n\"a\": 1,\n}", "line 3"}, {"[1,]", "column"},
        {"{'a': 1}", "column"}, {"[+1]", "column"}, {"[01]", "column"}, {"[.5]", "column"}, {"[1.]", "column"}, {"[0x10]", "column"},
        {"[-]", "column"}, {"[nan]", "column"}, {"[Infinityx]", "column"}, {"[-NaN]", "column"}, {"[+Infinity]", "column"},
        {"[1] x", "column"}, {"[\"a", "column"}, {"[\"\t\"]", "column"}, {"// a\n[1]", "line 1"}, {"[1 2]", "column"},
        {"{\"a\" 1}", "column"}, {"{1: 2}", "column"}, {"\xef\xbb\xbf[1]", "column 1: the text begins with a byte order mark"},
        {"[1e400,\n\n NaN,, 2]", "line 3"}, {"[\"\xff\"]", "column"}, {"[True]", "column"}, {"[099999999999999999999]", "column"},
        {"[1e400.5]", "column"}, {"[1", "column"}, {"{\"a\": \"b}", "column"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Error error = {0};
        json_auto_t *value = json_parse(cases[i][0], strlen(cases[i][0]), 0, &error);
        if (value) fail_msg("%s was read", cases[i][0]);
        assert_int_equal(error.code, ERROR_DATA);
        if (!strstr(error.message, cases[i][1])) fail_msg("%s: \"%s\" does not contain \"%s\"", cases[i][0], error.message, cases[i][1]);
    }
    char digits[4310] = "[";
    memset(digits + 1, '7', 4300);
    strcpy(digits + 4301, "]");
    json_decref(parse(digits));
    Error error = {0};
    strcpy(digits + 4301, "7]");
    assert_null(json_parse(digits, strlen(digits), 0, &error));
}

/* -- Files ------------------------------------------------------------------------------------------------------------ */

static void absent_present_and_unreadable_are_three_answers(void **state) {
    (void)state;
    static const char *const bad[] = {"", "[]", "1", "null", "{", "{\"a\":1,}", "\xef\xbb\xbf{}"};
    Error error = {0};
    json_t *object = NULL;
    assert_true(json_read_optional("a.json", &object, ERROR_DATA, &error));
    assert_null(object);
    assert_null(json_read("a.json", ERROR_CHECKPOINT, &error));
    assert_int_equal(error.code, ERROR_CHECKPOINT);
    write_text("a.json", "{\"a\": 1e999}");
    assert_true(json_read_optional("a.json", &object, ERROR_DATA, &error));
    assert_non_null(object);
    json_decref(object);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text("a.json", bad[i]);
        assert_false(json_read_optional("a.json", &object, ERROR_DATA, &error));
        assert_null(object);
        assert_int_equal(error.code, ERROR_DATA);
        assert_mentions(error.message, "a.json JSON");
    }
    assert_int_equal(remove("a.json"), 0);
    assert_int_equal(mkdir("a.json", 0700), 0);
    assert_false(json_read_optional("a.json", &object, ERROR_DATA, &error));
    assert_mentions(error.message, "a.json");
    assert_true(json_read_optional("a.json/b/c.json", &object, ERROR_DATA, &error));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_any_size_are_read_and_written),
        cmocka_unit_test(other_values_are_no_numbers),
        cmocka_unit_test(of_equal_names_the_last_counts),
        cmocka_unit_test(what_python_refuses_is_an_error_with_its_place),
        IN_FOLDER(absent_present_and_unreadable_are_three_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
