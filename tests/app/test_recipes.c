/* The recipes of CONTRIBUTING.md: recipes.py applies the listings of a section to a copy of the source tree, builds what changed,
 * and runs the tests that the section adds. */
#include "base/scope.h"
#include "base/strings.h"
#include "support/process.h"

static void check_recipe(const char *heading) {
    SCOPED_FREE char *build = process_smelt();
    *strrchr(build, '/') = '\0';
    if (!ends_with(build, "/build")) skip(); /* objects of another compiler or of sanitizers */
    Process process = process_start((char *[]){"/usr/bin/python3", "tests/app/recipes.py", build, (char *)heading, NULL});
    ProcessResult result = process_finish(&process);
    if (result.code) fail_msg("\"%s\": exit code %d\n%s%s", heading, result.code, result.output, result.errors);
    process_free(&result);
}

static void an_operation(void **state) {
    (void)state;
    check_recipe("Add an operation");
}

static void an_activation_function(void **state) {
    (void)state;
    check_recipe("Add an activation function");
}

static void an_optimizer(void **state) {
    (void)state;
    check_recipe("Add an optimizer");
}

static void a_data_source(void **state) {
    (void)state;
    check_recipe("Add a data source");
}

static void a_model_family(void **state) {
    (void)state;
    check_recipe("Add a model family");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_operation),
        cmocka_unit_test(an_activation_function),
        cmocka_unit_test(an_optimizer),
        cmocka_unit_test(a_data_source),
        cmocka_unit_test(a_model_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
