/* Chooses the cases of a test program by SMELT_TEST_CASES, a pattern with * and ? of their names. Owns the names that each_isa makes. */
#include "support/each_isa.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_CASES = 32, NAME_BYTES = 160 };

struct CMUnitTest each_isa(struct CMUnitTest row) {
    static char names[MOST_CASES][NAME_BYTES];
    static int count;
    assert(count < MOST_CASES);
    snprintf(names[count], NAME_BYTES, "%s, each instruction set", row.name);
    row.name = names[count++];
    return row;
}

__attribute__((constructor)) static void choose_cases(void) {
    const char *pattern = getenv("SMELT_TEST_CASES");
    if (pattern) cmocka_set_test_filter(pattern);
}
