/* A sample of the table of io_faults.py: single calls of commands fail, and what was acknowledged must be there. */
#include "base/scope.h"
#include "support/files.h"
#include "support/process.h"

enum { NO_FILTER = 125 };

/* The program fault_calls, which lies beside this one. The caller frees. */
static char *layer_path(void) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(length > 0);
    path[length] = '\0';
    *strrchr(path, '/') = '\0';
    return memory_format("%s/fault_calls", path);
}

static int run(char *const *arguments) {
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    int code = result.code;
    if (code != 0 && code != NO_FILTER) printf("%s%s\n", result.errors, result.output);
    process_free(&result);
    return code;
}

/* Runs io_faults.py with a choice of cells: "--only" or "--cells", and how many of each scenario (0: all). */
static void check_cells(const char *choice, const char *value, const char *sample) {
    SCOPED_FREE char *layer = layer_path(), *smelt = process_smelt();
    if (access("/usr/bin/python3", X_OK) != 0) skip();
    if (run((char *[]){layer, "/tmp", "/dev/null", "--", "/bin/true", NULL}) == NO_FILTER) {
        print_message("the kernel, or a container, permits no filter of system calls: skipped\n");
        skip();
    }
    char *arguments[] = {"/usr/bin/python3", "tests/reliability/io_faults.py", "--smelt", smelt, "--layer", layer, "--durations",
        "once,three,ever", "--limit", "500", "--jobs", "2", (char *)choice, (char *)value, "--sample", (char *)sample, NULL};
    assert_int_equal(run(arguments), 0);
}

static void files_that_commands_make_are_whole_or_refused(void **state) {
    (void)state;
    check_cells("--only", "pack-over,pack-split,pack-folder,tokenizer-over,convert-over,convert-gguf-over", "25");
}

/* Cells that once went wrong, and those that a training run meets most. */
static void chosen_calls_fail_and_nothing_is_lost(void **state) {
    (void)state;
    check_cells("--cells", "tests/reliability/io_faults.cells", "0");
}

static void a_bucket_that_refuses_at_the_start_loses_nothing(void **state) {
    (void)state;
    if (run((char *[]){"/usr/bin/python3", "-c", "import swift.proxy.server", NULL}) != 0) skip();
    check_cells("--cells", "tests/reliability/io_faults_s3.cells", "0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_that_commands_make_are_whole_or_refused),
        cmocka_unit_test(chosen_calls_fail_and_nothing_is_lost),
        cmocka_unit_test(a_bucket_that_refuses_at_the_start_loses_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
