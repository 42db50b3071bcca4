/* The build and the choice of test cases do what was asked, or say that they did not: other flags compile an object again, and a
 * pattern that no case matches is a failure. Runs make and this program itself. */
#include "support/files.h"
#include "support/process.h"

static char *own_path, *sources; /* this program, and the folder that holds the Makefile */

/* Runs make in the sources for one object below the test's folder; returns whether the object was compiled. */
static bool compiles(const char *flags, const char *strict) {
    char *build = realpath(".", NULL), *folder = memory_format("BUILD=%s", build), *object = memory_format("%s/base/error.o", build);
    Process process = process_start((char *[]){"/usr/bin/env", "-u", "MAKEFLAGS", "-u", "MAKELEVEL", "-u", "WERROR", "-u", "SANITIZE",
        "make", "-C", sources, "GPU_TARGETS=", folder, (char *)flags, object, (char *)strict, NULL});
    ProcessResult result = process_finish(&process);
    if (result.code) fail_msg("make: exit code %d\n%s%s", result.code, result.output, result.errors);
    bool compiled = strstr(result.output, "  CC ");
    process_free(&result);
    free(object), free(folder), free(build);
    return compiled;
}

static void other_flags_compile_an_object_again(void **state) {
    (void)state;
    assert_true(compiles("CFLAGS=-O0", NULL));
    assert_false(compiles("CFLAGS=-O0", NULL));
    assert_true(compiles("CFLAGS=-O1", NULL));
    assert_true(compiles("CFLAGS=-O1", "WERROR=-Werror"));
    assert_false(compiles("CFLAGS=-O1", NULL)); /* a folder that was built with -Werror remains strict */
    assert_true(compiles("CFLAGS=-O1", "WERROR="));
}

/* Processes that a case starts do not inherit the pattern: a rank has other cases, and runs them all. */
static void first_case(void **state) {
    (void)state;
    assert_null(getenv("SMELT_TEST_CASES"));
}

static void second_case(void **state) { (void)state; }

/* Expects the exit code and the line of the cases that a pattern chooses from the two above. */
static void check_pattern(const char *pattern, int code, const char *said) {
    setenv("SMELT_TEST_CASES", pattern, 1);
    Process process = process_start((char *[]){own_path, "cases", NULL});
    unsetenv("SMELT_TEST_CASES");
    ProcessResult result = process_finish(&process);
    assert_int_equal(result.code, code);
    assert_holds(code ? result.errors : result.output, said);
    process_free(&result);
}

static void a_pattern_without_a_case_fails(void **state) {
    (void)state;
    check_pattern("*_case", 0, "2 test(s) run");
    check_pattern("second*", 0, "1 test(s) run");
    check_pattern("first_case,second_case", 1, "SMELT_TEST_CASES=\"first_case,second_case\" matches none of the 2 cases");
    check_pattern("third*", 1, "matches none of the 2 cases");
}

int main(int argc, char **argv) {
    const struct CMUnitTest cases[] = {cmocka_unit_test(first_case), cmocka_unit_test(second_case)};
    if (argc > 1) return cmocka_run_group_tests(cases, NULL, NULL);
    own_path = realpath(argv[0], NULL);
    sources = realpath(".", NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(other_flags_compile_an_object_again, enter_folder, leave_folder),
        cmocka_unit_test(a_pattern_without_a_case_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
