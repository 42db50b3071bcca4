/* The files for clusters: manifests of Kubernetes against the published models, exit codes against the rules for pods, and
 * batch scripts by shellcheck (clusters.sh). Two cases are skipped if PyPI cannot be reached. */
#include "support/train_run.h"

enum { SKIPPED = 77 };

static char *repository;

static void run_check(const char *check) {
    char *script = memory_format("%s/tests/packaging/clusters.sh", repository);
    Process process = process_start((char *[]){script, (char *)check, repository, getenv("SMELT"), NULL});
    ProcessResult result = process_finish(&process);
    free(script);
    if (result.code && result.code != SKIPPED) fail_msg("%s: exit code %d:\n%s%s", check, result.code, result.output, result.errors);
    print_message("%s", result.code ? "PyPI cannot be reached\n" : result.output);
    bool skipped = result.code == SKIPPED;
    process_free(&result);
    if (skipped) skip();
}

#define CLUSTER_CASE(name, check)      \
    static void name(void **state) {   \
        (void)state;                   \
        run_check(check);           \
    }
CLUSTER_CASE(manifests_fit_the_published_models, "schemas")
CLUSTER_CASE(exit_codes_meet_the_rules_for_pods, "codes")
CLUSTER_CASE(batch_scripts_pass_shellcheck, "scripts")

int main(void) {
    repository = realpath(".", NULL);
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(manifests_fit_the_published_models),
        TRAIN_TEST(exit_codes_meet_the_rules_for_pods),
        TRAIN_TEST(batch_scripts_pass_shellcheck),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(repository);
    return failed;
}
