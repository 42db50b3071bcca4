/* The commands of README.md and of docs/, run in the order in which they stand: a reader pastes them. What does not run
 * is printed with its reason (tests/support/document.sh). */
#include "support/train_run.h"

static char *script; /* document.sh as an absolute path */

static void its_commands_work_in_their_order(void **state, const char *document) {
    (void)state;
    Process process = process_start((char *[]){script, (char *)document, NULL});
    ProcessResult result = process_finish(&process);
    if (result.code) fail_msg("%s: exit code %d:\n%s\n%s", document, result.code, result.output, result.errors);
    for (char *rest = result.errors, *line; (line = strsep(&rest, "\n"));)
        if (!strncmp(line, "not run ", 8)) print_message("%s\n", line);
    process_free(&result);
}

#define DOCUMENT(name, path) \
    static void the_commands_of_##name##_work(void **state) { its_commands_work_in_their_order(state, path); }
DOCUMENT(readme, "README.md")
DOCUMENT(amd, "docs/amd.md")
DOCUMENT(amd_card, "docs/amd-card.md")
DOCUMENT(checkpoints, "docs/checkpoints.md")
DOCUMENT(cluster, "docs/cluster.md")
DOCUMENT(debugging, "docs/debugging.md")
DOCUMENT(finetune, "docs/finetune.md")
DOCUMENT(flux, "docs/flux.md")
DOCUMENT(generate, "docs/generate.md")
DOCUMENT(install, "docs/install.md")
DOCUMENT(kubernetes, "docs/kubernetes.md")
DOCUMENT(parallel, "docs/parallel.md")
DOCUMENT(rewards, "docs/rewards.md")
DOCUMENT(report, "docs/report.md")
DOCUMENT(rl, "docs/rl.md")
DOCUMENT(sizing, "docs/sizing.md")
DOCUMENT(start, "docs/start.md")

int main(void) {
    script = realpath("tests/support/document.sh", NULL);
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(the_commands_of_readme_work),
        TRAIN_TEST(the_commands_of_amd_work),
        TRAIN_TEST(the_commands_of_amd_card_work),
        TRAIN_TEST(the_commands_of_checkpoints_work),
        TRAIN_TEST(the_commands_of_cluster_work),
        TRAIN_TEST(the_commands_of_debugging_work),
        TRAIN_TEST(the_commands_of_finetune_work),
        TRAIN_TEST(the_commands_of_flux_work),
        TRAIN_TEST(the_commands_of_generate_work),
        TRAIN_TEST(the_commands_of_install_work),
        TRAIN_TEST(the_commands_of_kubernetes_work),
        TRAIN_TEST(the_commands_of_parallel_work),
        TRAIN_TEST(the_commands_of_rewards_work),
        TRAIN_TEST(the_commands_of_report_work),
        TRAIN_TEST(the_commands_of_rl_work),
        TRAIN_TEST(the_commands_of_sizing_work),
        TRAIN_TEST(the_commands_of_start_work),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(script);
    return failed;
}
