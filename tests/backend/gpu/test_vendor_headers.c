/* The tables of what smelt calls of HIP and ROCm's libraries, against their real headers; and the real libamdhip64 on a
 * machine without a card. Debian's packages bring both. The other vendors' libraries are compared where they are
 * installed (tools/check-headers). */
#include <dlfcn.h>
#include <sys/stat.h>

#include "support/mentions.h"
#include "support/train_run.h"

static char *checker; /* absolute path of tools/check-headers */
static char *sources; /* and of src */

static ProcessResult check_headers(char *folder) {
    Process process = process_start((char *[]){checker, "--require", "hip,rocm_smi", folder, NULL});
    return process_finish(&process);
}

static void tables_are_those_of_the_headers(void **state) {
    ProcessResult result = check_headers(*state);
    if (result.code) fail_msg("%s%s", result.output, result.errors);
    assert_int_equal(process_lines(result.output, "hip: 49 functions and numbers"), 1);
    assert_int_equal(process_lines(result.output, "rocm_smi: 34 functions and numbers"), 1);
    process_free(&result);
}

/* A header of ours with one text in place of another, in the working directory, which is searched before src/. */
static void change(const char *header, const char *from, const char *to) {
    size_t size;
    char *path = memory_format("%s/%s", sources, header), *text = (char *)read_bytes(path, &size);
    char *at = strstr(text, from);
    if (!at) fail_msg("%s has no %s", header, from);
    char *changed = memory_format("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    for (char *slash = strchr(header, '/'); slash; slash = strchr(slash + 1, '/')) {
        char *folder = memory_format("%.*s", (int)(slash - header), header);
        mkdir(folder, 0700);
        free(folder);
    }
    write_text(header, changed);
    free(changed);
    free(text);
    free(path);
}

static void what_differs_is_named(void **state) {
    static const struct {
        const char *header, *from, *to, *message;
    } mistakes[] = {
        {"backend/gpu/driver_calls.h", "(processors, 63", "(processors, 62", "hipDeviceAttributeMultiprocessorCount is not 62"},
        {"backend/gpu/driver_calls.h", "hipMemsetD8Async, cuMemsetD8Async, (void *to, unsigned char",
            "hipMemsetD8Async, cuMemsetD8Async, (void *to, int", "hipMemsetD8Async has other arguments"},
        {"backend/gpu/driver_calls.h", "(void *stream, void *event, unsigned flags)", "(void *stream, void *event)",
            "hipStreamWaitEvent has other arguments"},
        {"backend/gpu/driver_calls.h", "(float *milliseconds", "(int *milliseconds", "hipEventElapsedTime has other arguments"},
        {"backend/gpu/driver_calls.h", "hipModuleUnload", "hipModuleUnloadAll", "hipModuleUnloadAll"},
        {"backend/gpu/driver_calls.h", "EVENT_WITHOUT_TIME, 2", "EVENT_WITHOUT_TIME, 1", "is not 1"},
        {"launch/health_amd_calls_internal.h", "int64_t *value", "int32_t *value", "rsmi_dev_temp_metric_get has other arguments"},
        {"launch/health_amd_calls_internal.h", "uint32_t gpu, uint64_t block", "uint32_t gpu, uint32_t block",
            "rsmi_dev_ecc_count_get has other arguments"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        change(mistakes[i].header, mistakes[i].from, mistakes[i].to);
        ProcessResult result = check_headers(*state);
        if (result.code == 0 || !mentions(result.output, mistakes[i].message))
            fail_msg("%s in place of %s: code %d\n%s", mistakes[i].to, mistakes[i].from, result.code, result.output);
        process_free(&result);
        assert_int_equal(remove(mistakes[i].header), 0);
    }
}

/* AMD's own runtime opens, says that it has no card, and training on the CPU is as without it. */
static void real_runtime_without_a_card(void **state) {
    (void)state;
    if (access("/dev/kfd", F_OK) == 0) skip();
    void *library = dlopen("libamdhip64.so", RTLD_LAZY);
    assert_non_null(library);
    dlclose(library);
    write_corpus("text", 10000);
    train_says(ERROR_USAGE, "HIP finds no GPU", "device=hip steps=2 schedule.warmup=0 run=hip");
    train_says(ERROR_NONE, "device", "device=auto steps=2 schedule.warmup=0 run=auto");
}

int main(void) {
    checker = realpath("tools/check-headers", NULL);
    sources = realpath("src", NULL);
    char *program = process_smelt();
    setenv("SMELT", program, 1);
    unsetenv("LD_LIBRARY_PATH"); /* the emulator's library has the same name */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tables_are_those_of_the_headers, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(what_differs_is_named, enter_folder, leave_folder),
        cmocka_unit_test_setup_teardown(real_runtime_without_a_card, enter_folder, leave_folder),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(program);
    free(sources);
    free(checker);
    return failed;
}
