/* The wheel in a fresh virtual environment: the Python package, its types and the notebook of the documents. All cases are
 * skipped in the build of a sanitizer, which has no wheel, and if PyPI, which NumPy comes from, cannot be reached. */
#include <glob.h>

#include "support/train_run.h"

enum { SKIPPED = 77 };

static char *repository, *environment; /* environment: the folder that has it; NULL: none was made */
static bool installed;
static const double import_seconds = 0.2; /* of the processor, at most */

/* Runs a program that has to succeed; the caller frees its output. */
static char *output_of(char *const *arguments) {
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    if (result.code) fail_msg("%s %s: exit code %d:\n%s\n%s", arguments[0], arguments[1], result.code, result.output, result.errors);
    char *output = memory_format("%s%s", result.output, result.errors);
    process_free(&result);
    return output;
}

static int remove_environment(void **state) {
    (void)state;
    if (environment) free(output_of((char *[]){"/bin/rm", "-rf", environment, NULL}));
    free(environment);
    environment = NULL;
    return 0;
}

static int make_environment(void **state) {
    (void)state;
    unsetenv("PYTHONPATH");
    char *pattern = memory_format("%.*s/smelt-*.whl", (int)(strrchr(getenv("SMELT"), '/') - getenv("SMELT")), getenv("SMELT"));
    char folder[] = "/tmp/smelt-python-XXXXXX";
    bool failed = false;
    glob_t found;
    if (glob(pattern, 0, NULL, &found) == 0 && mkdtemp(folder)) {
        char *script = memory_format("%s/tests/packaging/python.sh", repository), *venv = memory_format("%s/venv", folder);
        Process process = process_start((char *[]){script, found.gl_pathv[0], venv, NULL});
        ProcessResult result = process_finish(&process);
        environment = memory_copy_string(folder);
        installed = result.code == 0;
        if (!installed) print_message("%s%s", result.output, result.errors);
        if (result.code == SKIPPED) print_message("PyPI cannot be reached\n");
        failed = !installed && result.code != SKIPPED;
        process_free(&result);
        free(script);
        free(venv);
        globfree(&found);
    } else {
        print_message("%s does not exist: the build of a sanitizer has no wheel\n", pattern);
    }
    free(pattern);
    unsetenv("SMELT"); /* the package must find its own program */
    if (failed) remove_environment(state);
    return failed ? -1 : 0;
}

/* Runs the environment's Python; the caller frees its output. */
static char *python(const char *first, const char *second) {
    if (!installed) skip();
    char *program = memory_format("%s/venv/bin/python", environment);
    char *output = output_of((char *[]){program, (char *)first, (char *)second, NULL});
    free(program);
    return output;
}

static void importing_takes_little_time_and_loads_no_other_package(void **state) {
    (void)state;
    char *output =
        python("-c", "import sys, time; before = set(sys.modules); began = time.process_time(); import smelt\n"
                     "took = time.process_time() - began; loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
                     "print(took, sorted(loaded - set(sys.stdlib_module_names) - {'smelt', 'numpy'}))");
    assert_in_range((int64_t)(1e6 * atof(output)), 0, (int64_t)(1e6 * import_seconds));
    assert_holds(output, " []\n");
    free(output);
}

static void the_package_does_what_its_tests_say(void **state) {
    (void)state;
    char *tests = memory_format("%s/tests/packaging/package.py", repository);
    free(python(tests, NULL));
    free(tests);
}

static void its_types_are_right(void **state) {
    (void)state;
    free(python("-c",
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'mypy', '--strict', '--ignore-missing-imports', '--cache-dir=/dev/null', '-p', 'smelt']\n"
        "sys.exit(subprocess.run(command).returncode)"));
}

static void the_notebook_runs(void **state) {
    (void)state;
    char *command =
        memory_format("import runpy, sys; sys.argv[1:] = ['%s/docs/python.ipynb']; runpy.run_path('%s/tests/packaging/notebook.py')",
            repository, repository);
    free(python("-c", command));
    free(command);
}

int main(void) {
    repository = realpath(".", NULL);
    train_main();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(importing_takes_little_time_and_loads_no_other_package),
        cmocka_unit_test(the_package_does_what_its_tests_say),
        cmocka_unit_test(its_types_are_right),
        TRAIN_TEST(the_notebook_runs),
    };
    int failed = cmocka_run_group_tests(tests, make_environment, remove_environment);
    free(repository);
    return failed;
}
