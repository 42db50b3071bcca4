/* tools/test-gpu on an emulated card: its report passes, has the modeled time of each kernel beside the "measured" one, which the
 * emulator takes from the same model, and fails if a kernel stores a wrong sign (ROCEMU_PLANT). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/memory.h"
#include "base/scope.h"
#include "support/process.h"

static const double TIME_BOUND = 0.03; /* cycles.csv may be out of date by as much (test_cycles.c) */

static void skip_without_emulator(void) {
    if (getenv("ROCEMU_LIBRARY")) return;
    print_message("skipped: ROCEMU_LIBRARY is not set (make test-amd sets it)\n");
    skip();
}

/* Runs test-gpu on `program`, a test of an operation, and checks the exit code. Returns the JSON report, for the caller to free. */
static json_t *report_of(const char *parts, const char *program, int code) {
    char path[] = "/tmp/smelt-report-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    char *smelt = process_smelt();
    *strrchr(smelt, '/') = '\0';
    setenv("BUILD", smelt, 1);
    SCOPED_FREE char *test = memory_format("%s/tests/%s", smelt, program), *text = memory_format("%s.txt", path),
                     *table = memory_format("%s.json", path);
    setenv("PARTS", parts, 1);
    setenv("MINUTES", "600", 1); /* more than a busy machine needs */
    setenv("KERNEL_CASES", "norm small", 1);
    Process process = process_start((char *[]){"/usr/bin/python3", "tools/test-gpu", "hip", path, test, NULL});
    ProcessResult result = process_finish(&process);
    if (result.code != code) fail_msg("test-gpu ended with %d instead of %d:\n%s%s", result.code, code, result.output, result.errors);
    json_t *report = json_load_file(table, 0, NULL);
    assert_non_null(report);
    process_free(&result);
    free(smelt);
    unlink(path);
    unlink(text);
    unlink(table);
    return report;
}

/* Returns how many lines of a part have the result. */
static int count_lines(const json_t *report, const char *part, const char *result) {
    size_t i;
    json_t *line;
    int count = 0;
    json_array_foreach(json_object_get(report, "lines"), i, line) count +=
        !strcmp(json_string_value(json_object_get(line, "part")), part) &&
        !strcmp(json_string_value(json_object_get(line, "result")), result);
    return count;
}

static void a_report_of_right_kernels_passes(void **state) {
    (void)state;
    skip_without_emulator();
    process_offer_cards("1");
    json_auto_t *report = report_of("results rates collectives", "ops/test_activation", 0);
    json_t *row;
    size_t i;
    static const char *const parts[] = {"machine", "results", "rates", "capture"};
    for (int p = 0; p < 4; p++)
        if (count_lines(report, parts[p], "passed") < 1) fail_msg("no line of %s passed", parts[p]);
    assert_int_equal(count_lines(report, "collectives", "note"), 1); /* one card */
    json_t *kernels = json_object_get(report, "kernels");
    assert_int_equal(json_array_size(kernels), 3);
    const char *compiler = getenv("CYCLES_COMPILER_gfx942"), *known = json_string_value(json_object_get(report, "modeled_for"));
    if (!compiler || !known || strcmp(compiler, known) != 0) return; /* other code than that of the table */
    json_array_foreach(kernels, i, row) {
        double ratio = json_number_value(json_object_get(row, "ratio"));
        if (!(fabs(ratio - 1) <= TIME_BOUND)) fail_msg("%s: ratio %.4f", json_string_value(json_object_get(row, "kernel")), ratio);
    }
}

static void a_report_names_the_test_of_a_wrong_kernel(void **state) {
    (void)state;
    skip_without_emulator();
    setenv("ROCEMU_PLANT", "gelu", 1);
    json_auto_t *report = report_of("results", "ops/test_activation", 1);
    unsetenv("ROCEMU_PLANT");
    assert_int_equal(count_lines(report, "results", "FAILED"), 2); /* with load, and again without */
    assert_int_equal(count_lines(report, "results", "passed"), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_of_right_kernels_passes), cmocka_unit_test(a_report_names_the_test_of_a_wrong_kernel)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
