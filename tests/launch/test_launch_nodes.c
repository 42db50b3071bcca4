/* Several nodes, each with a supervisor of its own: who takes part, who is left out, who comes back. Over a small
 * stand-in for training; test_train_nodes.c trains. The nodes are processes on this machine that differ in
 * NODE_RANK. */
#include "support/launch_run.h"

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
    expect_node(&cluster, 0, 0, "going on with 2 of 3 nodes, 4 ranks: node 1 did not come in 10 s");
    expect_node(&cluster, 2, 0, "going on with 2 of 3 nodes, 4 ranks: node 1 did not come in 10 s");
    assert_int_equal(load(folder).step, STEPS);
}

static void too_few_nodes_end_the_run_on_all_of_them(void **state) {
    (void)state;
    Cluster cluster = start_cluster(3, "hold", "least=3");
    await_step(7);
    kill_node(&cluster, 1);
    make_file(folder, "go");
    expect_node(&cluster, 0, ERROR_COMMUNICATION, "2 of 3 nodes can go on, and 3 are needed (least=): node 1 did not come in 10 s");
    expect_node(&cluster, 2, ERROR_COMMUNICATION, "2 of 3 nodes can go on, and 3 are needed (least=): node 1 did not come in 10 s");
}

static void a_node_that_fails_its_test_is_left_out_until_it_passes(void **state) {
    (void)state;
    make_file(folder, "sick.1");
    Cluster cluster = start_cluster(3, "hold", "least=2");
    await_text(&cluster, 1, "node 1 is left out: error self_test.gemm GPU 3: 7 elements are wrong", 1);
    await_text(&cluster, 1, "node 1 fails its self-test", 2);
    await_step(7);
    remove_file(folder, "sick.1");
    kill_rank(0); /* node 1 is left out by its last test once more, and is tested anew */
    await_text(&cluster, 1, "node 1 is left out", 2);
    await_text(&cluster, 1, "node 1 passes its self-test", 1);
    WAIT_UNTIL(process_port_has_caller(cluster.port), "node 1 does not wait for the next rendezvous");
    kill_rank(2);
    await_text(&cluster, 0, "all 3 nodes take part again", 1);
    make_file(folder, "go");
    expect_node(&cluster, 0, 0, "going on with 2 of 3 nodes, 4 ranks: node 1");
    expect_node(&cluster, 1, 0, "");
    expect_node(&cluster, 2, 0, "all 3 nodes take part again");
    assert_int_equal(load(folder).step, STEPS);
}

static void node_0_may_be_left_out_too(void **state) {
    (void)state;
    make_file(folder, "sick.0");
    Cluster cluster = start_cluster(2, "", "least=1");
    expect_node(&cluster, 1, 0, "rank 0 starts at step 0");
    expect_node(&cluster, 0, 0, "the other nodes have finished the run");
    assert_int_equal(load(folder).step, STEPS);
}

static void a_node_that_waits_hears_of_the_end(void **state) {
    (void)state;
    make_file(folder, "sick.1");
    Cluster cluster = start_cluster(2, "", "least=1");
    expect_node(&cluster, 0, 0, "going on with 1 of 2 nodes, 1 ranks: node 1");
    expect_node(&cluster, 1, 0, "the other nodes have finished the run");
}

static void a_node_whose_ranks_fail_again_and_again_is_left_out(void **state) {
    (void)state;
    Cluster cluster = start_cluster(2, "crash", "least=1"); /* rank 1 is node 1's first */
    expect_node(&cluster, 0, 0, "its ranks failed twice in a row without progress");
    expect_node(&cluster, 1, 0, "the other nodes have finished the run");
    assert_int_equal(load(folder).step, STEPS);
}

static void a_wrong_setting_on_one_node_ends_all(void **state) {
    (void)state;
    Cluster cluster = start_cluster(2, "usage", "least=1");
    expect_node(&cluster, 0, ERROR_USAGE, "the nodes ended the run: after step 7 rank 1 refused its settings (exit code 2)");
    expect_node(&cluster, 1, ERROR_USAGE, "rank 1 refused its settings (exit code 2): starting again would not help");
}

static void without_node_0_the_others_end(void **state) {
    (void)state;
    Cluster cluster = start_cluster(3, "hold", "least=1");
    await_step(7);
    kill_node(&cluster, 0);
    expect_node(&cluster, 1, ERROR_COMMUNICATION, "was not there for 10 s");
    expect_node(&cluster, 2, ERROR_COMMUNICATION, "was not there for 10 s");
}

static void nodes_of_another_run_are_refused(void **state) {
    (void)state;
    Cluster cluster = {.count = 2, .port = process_free_port()};
    start_node(&cluster, 0, "", "least=1");
    start_node(&cluster, 1, "slow", "least=1");
    expect_node(&cluster, 1, ERROR_USAGE, "node 0 runs another command, or with another number of nodes");
    expect_node(&cluster, 0, 0, "going on with 1 of 2 nodes, 1 ranks: node 1 did not come in 10 s");
}

/* Something that is no supervisor, and one that says nothing. */
static void strangers_at_the_door_are_sent_away(void **state) {
    (void)state;
    Error error = {0};
    struct sockaddr_storage address;
    char noise[1024];
    Cluster cluster = {.count = 2, .port = process_free_port()};
    start_node(&cluster, 0, "", "least=2");
    assert_true(socket_resolve("127.0.0.1", cluster.port, &address, &error));
    int loud = -1;
    WAIT_UNTIL((loud = socket_connect(&address, 60, log_seconds() + 1)) >= 0, "node 0 does not listen");
    int silent = socket_connect(&address, 60, log_seconds() + WAIT_LIMIT);
    assert_true(silent >= 0);
    memset(noise, 0x5a, sizeof noise);
    assert_true(socket_send(loud, noise, sizeof noise, log_seconds() + WAIT_LIMIT));
    start_node(&cluster, 1, "", "least=2");
    expect_node(&cluster, 0, 0, "rank 0 starts at step 0");
    expect_node(&cluster, 1, 0, "");
    close(loud);
    close(silent);
}

static void more_nodes_needed_than_there_are_is_an_error(void **state) {
    (void)state;
    Cluster cluster = {.count = 2, .port = process_free_port()};
    start_node(&cluster, 0, "", "least=3");
    expect_node(&cluster, 0, ERROR_USAGE, "least=3 is more than the 2 nodes of the run");
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
        TEST(strangers_at_the_door_are_sent_away),
        TEST(more_nodes_needed_than_there_are_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
