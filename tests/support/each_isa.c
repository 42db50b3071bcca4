/* Runs the cases of a test program whose names match SMELT_TEST_CASES, a pattern with * and ?; a pattern that no case matches is a
 * failure. Processes that the cases start run all their own cases. The linker calls __wrap__cmocka_run_group_tests where a program
 * calls cmocka's function. Owns the names that each_isa makes. */
#include "support/each_isa.h"

#include <assert.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_EACH_ISA = 32, MOST_CASES = 256, NAME_BYTES = 160 };

int __real__cmocka_run_group_tests(
    const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup, CMFixtureFunction teardown);
int __wrap__cmocka_run_group_tests(
    const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup, CMFixtureFunction teardown);

struct CMUnitTest each_isa(struct CMUnitTest row) {
    static char names[MOST_EACH_ISA][NAME_BYTES];
    static int count;
    assert(count < MOST_EACH_ISA);
    snprintf(names[count], NAME_BYTES, "%s, each instruction set", row.name);
    row.name = names[count++];
    return row;
}

int __wrap__cmocka_run_group_tests(
    const char *name, const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup, CMFixtureFunction teardown) {
    const char *pattern = getenv("SMELT_TEST_CASES");
    if (!pattern) return __real__cmocka_run_group_tests(name, tests, count, setup, teardown);
    struct CMUnitTest chosen[MOST_CASES];
    size_t matches = 0;
    assert(count <= MOST_CASES);
    for (size_t i = 0; i < count; i++)
        if (!fnmatch(pattern, tests[i].name, FNM_NOESCAPE)) chosen[matches++] = tests[i];
    if (!matches) {
        fprintf(stderr, "SMELT_TEST_CASES=\"%s\" matches none of the %zu cases of this program; it is one pattern, with * for any text\n",
            pattern, count);
        return EXIT_FAILURE;
    }
    unsetenv("SMELT_TEST_CASES");
    return __real__cmocka_run_group_tests(name, chosen, matches, setup, teardown);
}
