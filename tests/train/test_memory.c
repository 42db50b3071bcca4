/* Memory of the host: a training stays within its plan and what train_memory sets aside for the process itself, so that a
 * control group that has room for both does not end it. */
#include "support/files.h"
#include "support/process.h"
#include "support/sanitized.h"

#include "base/scope.h"

enum { MIB = 1 << 20, PROCESS_MIB = 24, THREAD_MIB = 4 }; /* as in src/train/start.c */
enum { HUGE_MIB = 4 };                                    /* a stack and a heap of each thread, where the system gives huge pages unasked */

static char *smelt;

static ProcessResult train(const char *threads, const char *run, const char *setting) {
    char *arguments[] = {smelt, "train", "data.train=text", "model.layers=4", "model.width=128", "model.heads=4", "batch.tokens=4096",
        "data.length=256", "steps=3", "checkpoint.every=2", (char *)run, (char *)setting, NULL};
    setenv("OMP_NUM_THREADS", threads, 1);
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    if (result.code != 0) fail_msg("%s", result.errors);
    return result;
}

static void a_run_stays_within_its_plan_and_what_the_process_takes(void **state) {
    (void)state;
    if (SANITIZED) skip(); /* a sanitizer's shadow is memory of the process too */
    static const char *const threads[] = {"1", "4"};
    char text[20000];
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 80 == 79 ? '\n' : (char)('a' + i * i % 23);
    write_bytes("text", text, sizeof text);
    for (size_t i = 0; i < sizeof threads / sizeof threads[0]; i++) {
        SCOPED_FREE char *run = memory_format("run=run%s", threads[i]);
        SCOPED(process_free) ProcessResult planned = train(threads[i], run, "plan=true"), trained = train(threads[i], run, "plan=false");
        const char *sum = strstr(planned.output, "memory of this machine: ");
        double plan_mib = 0;
        if (!sum || sscanf(sum, "memory of this machine: %lf MiB", &plan_mib) != 1) fail_msg("%s", planned.output);
        double beside = (double)(trained.peak_bytes - planned.peak_bytes) / MIB - plan_mib;
        if (beside > PROCESS_MIB + (THREAD_MIB + HUGE_MIB) * atoi(threads[i]))
            fail_msg("with %s threads a run takes %.1f MiB beside its plan of %.1f MiB", threads[i], beside, plan_mib);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_stays_within_its_plan_and_what_the_process_takes, enter_folder, leave_folder),
    };
    smelt = process_smelt();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
