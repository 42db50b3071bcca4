/* Several nodes, each with a supervisor of its own: who takes part, who is left out, who comes back. Over a small
 * stand-in for training; test_train_nodes.c trains. The nodes are processes on this machine that differ in
 * NODE_RANK. */
#include "support/launch_run.h"

#include "base/file.h"
#include "support/mentions.h"

enum { MOST_NODES = 3 };

/* Where nodes are awaited until the time is over (away=10), it must not be over for those that come: they are ready
 * within milliseconds of each other. */

/* A run's nodes and where they meet. */
typedef struct Cluster {
    int count, port;
    Process nodes[MOST_NODES];
} Cluster;

/* As many ranks as the node's number plus one. */
static void start_node(Cluster *cluster, int node, const char *misfortune, const char *option) {
    char ranks[32];
    snprintf(ranks, sizeof ranks, "ranks=%d", node + 1);
    process_set_number("NNODES", cluster->count);
    process_set_number("NODE_RANK", node);
    process_set_number("MASTER_PORT", cluster->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    char *arguments[] = {"/proc/self/exe", "supervise", ranks, "away=10", (char *)option, "--", "train", folder, (char *)misfortune, NULL};
    cluster->nodes[node] = process_start(arguments);
}

static Cluster start_cluster(int count, const char *misfortune, const char *option) {
    Cluster cluster = {.count = count, .port = process_free_port()};
    for (int node = 0; node < count; node++) start_node(&cluster, node, misfortune, option);
    return cluster;
}

static void expect_node(Cluster *cluster, int node, int code, const char *text) {
    ProcessResult result = process_finish(&cluster->nodes[node]);
    expect(&result, code, text);
    process_free(&result);
}

static void kill_node(Cluster *cluster, int node) {
    kill(cluster->nodes[node].id, SIGKILL);
    ProcessResult result = process_finish(&cluster->nodes[node]);
    process_free(&result);
}

static void await_text(const Cluster *cluster, int node, const char *text, int times) {
    process_await_text(&cluster->nodes[node], text, times);
}

static void ranks_are_numbered_from_node_to_node(void **state) {
    (void)state;
    Cluster cluster = start_cluster(3, "", "output=all");
    expect_node(&cluster, 0, 0, "[0] rank 0 starts at step 0");
    expect_node(&cluster, 1, 0, "[2] rank 2 starts at step 0");
    expect_node(&cluster, 2, 0, "[5] rank 5 starts at step 0");
    assert_int_equal(load(folder).step, STEPS);
}

static void a_node_that_does_not_come_back_is_left_out_after_the_time(void **state) {
    (void)state;
    Cluster cluster = start_cluster(3, "hold", "least=2");
    await_step(7);
    kill_node(&cluster, 1);
    make_file(folder, "go");
    expect_node(&cluster, 0, 0, "2 of 3 nodes 4 ranks node 1 10");
    expect_node(&cluster, 2, 0, "2 of 3 nodes 4 ranks node 1 10");
    assert_int_equal(load(folder).step, STEPS);
}

static void too_few_nodes_end_the_run_on_all_of_them(void **state) {
    (void)state;
    Cluster cluster = start_cluster(3, "hold", "least=3");
    await_step(7);
    kill_node(&cluster, 1);
    make_file(folder, "go");
    expect_node(&cluster, 0, ERROR_COMMUNICATION, "2 of 3 nodes 3 (least=) node 1 10 s");
    expect_node(&cluster, 2, ERROR_COMMUNICATION, "2 of 3 nodes 3 (least=) node 1 10 s");
}

static void a_node_that_fails_its_test_is_left_out_until_it_passes(void **state) {
    (void)state;
    make_file(folder, "sick.1");
    Cluster cluster = start_cluster(3, "hold", "least=2");
    await_text(&cluster, 1, "node 1 excluded self_test.gemm GPU 3: 7", 1);
    await_text(&cluster, 1, "node 1 failed self-test", 2);
    await_step(7);
    remove_file(folder, "sick.1");
    kill_rank(0); /* node 1 is left out by its last test once more, and is tested anew */
    await_text(&cluster, 1, "node 1 excluded", 2);
    await_text(&cluster, 1, "node 1 passed self-test", 1);
    WAIT_UNTIL(process_port_has_caller(cluster.port), "node 1 does not wait for the next rendezvous");
    kill_rank(2);
    await_text(&cluster, 0, "all 3 nodes again", 1);
    make_file(folder, "go");
    expect_node(&cluster, 0, 0, "2 of 3 nodes 4 ranks node 1");
    expect_node(&cluster, 1, 0, "");
    expect_node(&cluster, 2, 0, "all 3 nodes again");
    assert_int_equal(load(folder).step, STEPS);
}

static void node_0_may_be_left_out_too(void **state) {
    (void)state;
    make_file(folder, "sick.0");
    Cluster cluster = start_cluster(2, "", "least=1");
    expect_node(&cluster, 1, 0, "rank 0 starts at step 0");
    expect_node(&cluster, 0, 0, "other nodes finished");
    assert_int_equal(load(folder).step, STEPS);
}

static void a_node_that_waits_hears_of_the_end(void **state) {
    (void)state;
    make_file(folder, "sick.1");
    Cluster cluster = start_cluster(2, "", "least=1");
    expect_node(&cluster, 0, 0, "1 of 2 nodes 1 ranks node 1");
    expect_node(&cluster, 1, 0, "other nodes finished");
}

static void a_node_whose_ranks_fail_again_and_again_is_left_out(void **state) {
    (void)state;
    Cluster cluster = start_cluster(2, "crash", "least=1"); /* rank 1 is node 1's first */
    expect_node(&cluster, 0, 0, "failed twice");
    expect_node(&cluster, 1, 0, "other nodes finished");
    assert_int_equal(load(folder).step, STEPS);
}

static void a_wrong_setting_on_one_node_ends_all(void **state) {
    (void)state;
    Cluster cluster = start_cluster(2, "usage", "least=1");
    expect_node(&cluster, 0, ERROR_USAGE, "step 7 rank 1 settings (exit code 2)");
    expect_node(&cluster, 1, ERROR_USAGE, "rank 1 settings (exit code 2)");
}

static void without_node_0_the_others_end(void **state) {
    (void)state;
    Cluster cluster = start_cluster(3, "hold", "least=1");
    await_step(7);
    kill_node(&cluster, 0);
    expect_node(&cluster, 1, ERROR_COMMUNICATION, "node 0 10 s");
    expect_node(&cluster, 2, ERROR_COMMUNICATION, "node 0 10 s");
}

static void nodes_of_another_run_are_refused(void **state) {
    (void)state;
    Cluster cluster = {.count = 2, .port = process_free_port()};
    start_node(&cluster, 0, "", "least=1");
    start_node(&cluster, 1, "slow", "least=1");
    expect_node(&cluster, 1, ERROR_USAGE, "node 0 command number");
    expect_node(&cluster, 0, 0, "1 of 2 nodes 1 ranks node 1 10");
}

/* Of two supervisors with one number, the run has the first that came, and tells the other; it waits for node 2
 * meanwhile. */
static void a_node_keeps_its_place_while_it_lives(void **state) {
    (void)state;
    Cluster cluster = {.count = 3, .port = process_free_port()}, twin = cluster;
    start_node(&cluster, 0, "", "away=600");
    start_node(&cluster, 1, "", "away=3");
    WAIT_UNTIL(process_port_has_caller(cluster.port), "node 1 does not come");
    start_node(&twin, 1, "", "away=3");
    WAIT_UNTIL(process_has_ended(&cluster.nodes[1]) || process_has_ended(&twin.nodes[1]), "both are node 1");
    if (process_has_ended(&cluster.nodes[1])) {
        Process ended = cluster.nodes[1];
        cluster.nodes[1] = twin.nodes[1];
        twin.nodes[1] = ended;
    }
    expect_node(&twin, 1, ERROR_COMMUNICATION, "NODE_RANK");
    start_node(&cluster, 2, "", "away=600");
    for (int node = 0; node < 3; node++) expect_node(&cluster, node, 0, "");
    assert_int_equal(load(folder).step, STEPS);
}

/* For longer than node 1 would wait for a node 0 that is not there. */
static void node_0_welcomes_others_while_it_tests_itself(void **state) {
    (void)state;
    make_file(folder, "slow.0");
    Cluster cluster = {.count = 2, .port = process_free_port()};
    start_node(&cluster, 0, "", "away=600");
    WAIT_UNTIL(process_port_has_listener(cluster.port), "node 0 does not listen");
    start_node(&cluster, 1, "", "away=6");
    await_text(&cluster, 1, "node 1 passed self-test", 1);
    process_sleep(8);
    remove_file(folder, "slow.0");
    expect_node(&cluster, 0, 0, "node 0 passed self-test");
    expect_node(&cluster, 1, 0, "");
}

static void a_node_with_another_secret_is_told_so_and_does_not_take_part(void **state) {
    (void)state;
    Cluster cluster = {.count = 2, .port = process_free_port()};
    start_node(&cluster, 0, "", "least=1");
    setenv("SMELT_SECRET", "the secret of another job", 1);
    start_node(&cluster, 1, "", "least=1");
    unsetenv("SMELT_SECRET");
    expect_node(&cluster, 1, ERROR_COMMUNICATION, "SMELT_SECRET");
    expect_node(&cluster, 0, 0, "1 of 2 nodes 1 ranks node 1 10");
}

static void several_nodes_without_a_secret_are_refused(void **state) {
    (void)state;
    Cluster cluster = {.count = 2, .port = process_free_port()};
    setenv("SMELT_SECRET", "", 1);
    start_node(&cluster, 0, "", "least=1");
    unsetenv("SMELT_SECRET");
    expect_node(&cluster, 0, ERROR_USAGE, "2 nodes secret them");
}

/* The whole of a file of /proc, with its NULs as newlines; the caller frees. */
static char *read_process(pid_t id, const char *name) {
    char *path = memory_format("/proc/%d/%s", id, name), *text = memory_allocate(1 << 16);
    int64_t length = file_read_start(path, text, 1 << 16);
    for (int64_t i = 0; i < length; i++)
        if (!text[i]) text[i] = '\n';
    free(path);
    return text;
}

/* SMELT_SECRET of a process; the caller frees. */
static char *secret_of(pid_t id) {
    char *variables = read_process(id, "environ"), *found = NULL, *rest = variables;
    for (char *line; (line = strtok_r(rest, "\n", &rest));)
        if (!strncmp(line, "SMELT_SECRET=", 13)) found = memory_copy_string(line + 13);
    free(variables);
    assert_non_null(found);
    return found;
}

static void expect_hidden(pid_t id, const char *secret) {
    char *command = read_process(id, "cmdline");
    assert_true(strlen(command) > 0);
    assert_null(strstr(command, secret));
    free(command);
}

/* Of the job, and of its ranks: those of each attempt have one of their own. */
static void secrets_are_in_no_output_and_on_no_command_line(void **state) {
    (void)state;
    char *secrets[2];
    Cluster cluster = start_cluster(2, "hold", "output=all");
    for (int attempt = 0; attempt < 2; attempt++) {
        pid_t ranks[2] = {await_rank(0), await_rank(1)};
        char *second = secret_of(ranks[1]);
        secrets[attempt] = secret_of(ranks[0]);
        assert_string_equal(second, secrets[attempt]);
        assert_string_not_equal(second, PROCESS_SECRET);
        for (int node = 0; node < 2; node++) {
            expect_hidden(cluster.nodes[node].id, PROCESS_SECRET);
            expect_hidden(ranks[node], second);
        }
        free(second);
        if (attempt == 0) kill_rank(0);
    }
    assert_string_not_equal(secrets[0], secrets[1]);
    make_file(folder, "go");
    for (int node = 0; node < 2; node++) {
        ProcessResult result = process_finish(&cluster.nodes[node]);
        assert_int_equal(result.code, 0);
        const char *const hidden[] = {PROCESS_SECRET, secrets[0], secrets[1]};
        for (int i = 0; i < 3; i++) assert_true(!mentions(result.errors, hidden[i]) && !mentions(result.output, hidden[i]));
        process_free(&result);
    }
    free(secrets[0]);
    free(secrets[1]);
}

static void more_nodes_needed_than_there_are_is_an_error(void **state) {
    (void)state;
    Cluster cluster = {.count = 2, .port = process_free_port()};
    start_node(&cluster, 0, "", "least=3");
    expect_node(&cluster, 0, ERROR_USAGE, "least=3 2");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(int argc, char **argv) {
    int code = launch_stand_in(argc, argv);
    if (code >= 0) return code;
    const struct CMUnitTest tests[] = {
        TEST(ranks_are_numbered_from_node_to_node),
        TEST(a_node_that_does_not_come_back_is_left_out_after_the_time),
        TEST(too_few_nodes_end_the_run_on_all_of_them),
        TEST(a_node_that_fails_its_test_is_left_out_until_it_passes),
        TEST(node_0_may_be_left_out_too),
        TEST(a_node_that_waits_hears_of_the_end),
        TEST(a_node_whose_ranks_fail_again_and_again_is_left_out),
        TEST(a_wrong_setting_on_one_node_ends_all),
        TEST(without_node_0_the_others_end),
        TEST(nodes_of_another_run_are_refused),
        TEST(a_node_keeps_its_place_while_it_lives),
        TEST(node_0_welcomes_others_while_it_tests_itself),
        TEST(a_node_with_another_secret_is_told_so_and_does_not_take_part),
        TEST(several_nodes_without_a_secret_are_refused),
        TEST(secrets_are_in_no_output_and_on_no_command_line),
        TEST(more_nodes_needed_than_there_are_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
