/* End to end: training on three "nodes" (supervisors on this machine that differ in NODE_RANK), of which one is lost
 * and comes back; and on three ranks, of which one is slow. */
#include "support/train_run.h"

enum { NODES = 3, AWAY = 30 }; /* AWAY: seconds, far more than the nodes' self-tests differ by on a busy machine */

/* A step's sums are added in another order on another number of ranks: in double they differ by 1e-16 and, carried
 * on, by 1e-14. A step that was lost or trained twice moves the loss by 1e-4 and more. */
static const double tolerance = 1e-10;

/* Endless: a run goes on until it is stopped, however long its nodes take. */
#define SETTINGS                                                                                                                           \
    "data.train=text model.family=llama model.width=32 model.layers=2 model.heads=2 model.kv_heads=1 model.ffn=64 data.length=32 "        \
    "batch.sequences=2 batch.tokens=192 optimizer.lr=1e-3 schedule.kind=constant schedule.warmup=4 threads=1 checkpoint.every=50 "        \
    "tensorboard=false precision=fp64 device=cpu steps=1000000"

static Process start_node(int node) {
    process_set_number("NODE_RANK", node);
    char *words = memory_format("launch -n 1 least=2 away=%d -- train " SETTINGS " layout.zero=1 run=nodes", AWAY);
    Process process = smelt_start(words);
    free(words);
    return process;
}

/* Waits until the run's first rank has printed so many steps more. */
static void await_steps(const Process *supervisor, int steps) {
    char *printed = process_text(supervisor->output);
    int before = process_steps(printed);
    free(printed);
    process_await_steps(supervisor, before + steps);
}

/* A rank of a supervisor. */
static pid_t rank_of(const Process *supervisor, int rank) {
    int id = 0;
    char *path = memory_format("/proc/%d/task/%d/children", supervisor->id, supervisor->id);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    for (int i = 0; i <= rank; i++) assert_int_equal(fscanf(file, "%d", &id), 1);
    fclose(file);
    free(path);
    return id;
}

static void finish(Process *process, int code) {
    ProcessResult result = process_finish(process);
    if (result.code != code) fail_msg("exit code %d in place of %d: %s", result.code, code, result.errors);
    process_free(&result);
}

static void expect_same_losses(int steps) {
    json_t *found = records("nodes", "step"), *wanted = records("whole", "step");
    assert_int_equal(json_array_size(found), steps);
    assert_int_equal(json_array_size(wanted), steps);
    for (int step = 0; step < steps; step++) {
        double loss = number(json_array_get(found, (size_t)step), "loss"), expected = number(json_array_get(wanted, (size_t)step), "loss");
        if (!(fabs(loss - expected) <= tolerance * expected)) fail_msg("step %d: loss %.9g in place of %.9g", step + 1, loss, expected);
    }
    json_decref(found);
    json_decref(wanted);
}

static void train_alone(int steps) {
    char *words = memory_format("train " SETTINGS " stop_at=%d run=whole", steps);
    Process alone = smelt_start(words);
    finish(&alone, 0);
    free(words);
}

static void a_run_goes_on_without_a_lost_node_and_takes_it_back(void **state) {
    (void)state;
    Process nodes[NODES];
    int port = process_free_port();
    process_set_number("NNODES", NODES);
    process_set_number("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    for (int node = 0; node < NODES; node++) nodes[node] = start_node(node);
    await_steps(&nodes[0], 70);
    kill(nodes[1].id, SIGKILL); /* its rank goes with it */
    finish(&nodes[1], -1);
    process_await_text(&nodes[0], "2 of 3 nodes 2 ranks node 1 30", 1);
    nodes[1] = start_node(1);
    process_await_text(&nodes[1], "1 self-test", 1);
    WAIT_UNTIL(process_port_has_caller(port), "node 1 does not wait for the next rendezvous");
    await_steps(&nodes[0], 20);
    kill(rank_of(&nodes[2], 0), SIGKILL);
    process_await_text(&nodes[0], "3 nodes again", 1);
    await_steps(&nodes[0], 70);
    for (int node = 0; node < NODES; node++) kill(nodes[node].id, SIGTERM);
    for (int node = 0; node < NODES; node++) finish(&nodes[node], ERROR_PREEMPTED);
    int steps = count_records("nodes", "step");
    train_alone(steps);
    expect_same_losses(steps);
}

/* Stopped for most of the time, it takes many times as long. On a busy machine other ranks may be named before. */
static void a_rank_that_makes_the_others_wait_is_named(void **state) {
    (void)state;
    unsetenv("NNODES");
    unsetenv("NODE_RANK");
    Process run = smelt_start("launch -n 3 -- train " SETTINGS " run=nodes");
    await_steps(&run, 20);
    pid_t slow = rank_of(&run, 1);
    for (bool named = false; !named && !process_has_ended(&run);) {
        kill(slow, SIGSTOP);
        process_sleep(0.06);
        kill(slow, SIGCONT);
        process_sleep(0.01);
        named = process_has_said(&run, "1 0 local 1 computes", 1);
    }
    kill(run.id, SIGTERM);
    finish(&run, ERROR_PREEMPTED);
}

/* The ranks say where they paused, and for the hand's own signal; the launcher how to go on. */
/* The command that goes on is one that works: on each node, with its ranks. */
static void several_nodes_are_told_what_each_of_them_starts(void **state) {
    (void)state;
    Process nodes[2];
    process_set_number("NNODES", 2);
    process_set_number("MASTER_PORT", process_free_port());
    for (int i = 0; i < 2; i++) {
        process_set_number("NODE_RANK", i);
        nodes[i] = smelt_start("launch -n 1 self_test=false -- train " SETTINGS " run=nodes steps=1 batch.tokens=128 schedule.warmup=0");
    }
    for (int i = 0; i < 2; i++) {
        ProcessResult result = process_finish(&nodes[i]);
        expect_code(&result, ERROR_NONE, "a node");
        if (i == 0)
            assert_non_null(
                strstr(result.output, "smelt launch -n 1 -- train nodes steps=2, on each of the 2 nodes    (continues training)"));
        process_free(&result);
    }
}

static void an_interrupted_run_says_once_where_it_paused_and_how_to_go_on(void **state) {
    (void)state;
    unsetenv("NNODES");
    unsetenv("NODE_RANK");
    Process run = smelt_start("launch -n 2 -- train " SETTINGS " run=nodes");
    await_steps(&run, 2);
    kill(run.id, SIGINT);
    ProcessResult result = process_finish(&run);
    expect_code(&result, ERROR_PREEMPTED, "launch");
    assert_int_equal(process_lines(result.errors, "paused by SIGINT after step "), 1);
    assert_int_equal(process_lines(result.errors, "all ranks exited: the same command continues"), 1);
    assert_null(strstr(result.errors, "stopped after"));
    assert_null(strstr(result.errors, "continue with"));
    process_free(&result);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_run_goes_on_without_a_lost_node_and_takes_it_back),
        TRAIN_TEST(several_nodes_are_told_what_each_of_them_starts),
        TRAIN_TEST(an_interrupted_run_says_once_where_it_paused_and_how_to_go_on),
        TRAIN_TEST(a_rank_that_makes_the_others_wait_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
