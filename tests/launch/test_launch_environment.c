/* The variables by which clusters tell a supervisor its node: two of them on this machine, started with what Kubeflow
 * Trainer, JobSet and SkyPilot set. Over a small stand-in for training. */
#include "support/launch_run.h"

#include "support/mentions.h"

enum { NODES = 2 };

/* "NAME=value", in which \1 is the number of the node and \2 the port. NULL: the end. */
typedef struct ClusterKind {
    const char *name, *variables[8];
    int ranks; /* of a node */
} ClusterKind;

static const ClusterKind kubeflow = {"Kubeflow Trainer",
                             {"PET_NNODES=2", "PET_NODE_RANK=\1", "PET_NPROC_PER_NODE=2", "PET_MASTER_ADDR=127.0.0.1", "PET_MASTER_PORT=\2",
                                 "JOB_COMPLETION_INDEX=\1"},
                             2},
                         jobset = {"JobSet", {"NNODES=2", "JOB_COMPLETION_INDEX=\1", "MASTER_ADDR=localhost", "MASTER_PORT=\2"}, 1},
                         skypilot = {"SkyPilot",
                             {"SKYPILOT_NUM_NODES=2", "SKYPILOT_NODE_RANK=\1", "SKYPILOT_NODE_IPS=127.0.0.1\n127.0.0.2",
                                 "SKYPILOT_NUM_GPUS_PER_NODE=2", "MASTER_PORT=\2"},
                             2},
                         skypilot_cpu = {"SkyPilot without GPUs",
                             {"SKYPILOT_NUM_NODES=2", "SKYPILOT_NODE_RANK=\1", "SKYPILOT_NODE_IPS=127.0.0.1\n127.0.0.2",
                                 "SKYPILOT_NUM_GPUS_PER_NODE=0", "MASTER_PORT=\2"},
                             1},
                         own_first = {"a person's own variables, and others",
                             {"NNODES=2", "PET_NNODES=3", "NODE_RANK=\1", "PET_NODE_RANK=0", "MASTER_ADDR=127.0.0.1",
                                 "PET_MASTER_ADDR=192.0.2.1", "MASTER_PORT=\2"},
                             1};

/* Replaces the byte `mark` by a number. */
static void put_number(char *text, size_t size, char mark, int number) {
    char *at = strchr(text, mark), after[128];
    if (!at) return;
    snprintf(after, sizeof after, "%s", at + 1);
    snprintf(at, size - (size_t)(at - text), "%d%s", number, after);
}

static void set_variables(const ClusterKind *kind, int node, int port, bool set) {
    for (const char *const *variable = kind->variables; *variable; variable++) {
        char text[128];
        snprintf(text, sizeof text, "%s", *variable);
        put_number(text, sizeof text, '\1', node);
        put_number(text, sizeof text, '\2', port);
        char *value = strchr(text, '=');
        *value++ = 0;
        if (set) setenv(text, value, 1);
        else unsetenv(text);
    }
}

static Process start_node(const ClusterKind *kind, int node, int port, const char *setting) {
    set_variables(kind, node, port, true);
    Process process = process_start(
        (char *[]){"/proc/self/exe", "supervise", "away=600", "output=all", (char *)setting, "--", "train", folder, "", NULL});
    set_variables(kind, node, port, false);
    return process;
}

static void expect_cluster(const ClusterKind *kind) {
    int port = process_free_port();
    Process nodes[NODES];
    for (int node = 0; node < NODES; node++) nodes[node] = start_node(kind, node, port, "grace=9");
    for (int node = 0; node < NODES; node++) {
        char text[64];
        ProcessResult result = process_finish(&nodes[node]);
        for (int rank = node * kind->ranks; rank < (node + 1) * kind->ranks; rank++) {
            snprintf(text, sizeof text, "[%d] rank %d starts at step 0", rank, rank);
            if (result.code || !strstr(result.errors, text)) fail_msg("%s, node %d: no '%s' in: %s", kind->name, node, text, result.errors);
        }
        snprintf(text, sizeof text, "rank %d starts", (node + 1) * kind->ranks);
        assert_null(strstr(result.errors, text));
        process_free(&result);
    }
    assert_int_equal(load(folder).step, STEPS);
}

#define CLUSTER_CASE(kind)                              \
    static void the_variables_of_##kind(void **state) { \
        (void)state;                                    \
        expect_cluster(&kind);                          \
    }
CLUSTER_CASE(kubeflow)
CLUSTER_CASE(jobset)
CLUSTER_CASE(skypilot)
CLUSTER_CASE(skypilot_cpu)
CLUSTER_CASE(own_first)

static void expect_alone(const ClusterKind *kind, const char *setting, int code, const char *text, const char *absent) {
    Process process = start_node(kind, 0, 0, setting);
    ProcessResult result = process_finish(&process);
    expect(&result, code, text);
    if (absent) assert_null(strstr(result.errors, absent));
    process_free(&result);
}

static void a_number_of_ranks_overrides_the_variable(void **state) {
    (void)state;
    static const ClusterKind one = {"one node", {"PET_NNODES=1", "PET_NODE_RANK=0", "PET_NPROC_PER_NODE=3"}, 3};
    expect_alone(&one, "ranks=1", 0, "rank 0 starts", "rank 1 starts");
    expect_alone(&one, "grace=9", 0, "rank 2 starts", "rank 3 starts");
}

/* As for a training in each pod of an indexed Job. */
static void an_index_alone_is_no_node(void **state) {
    (void)state;
    static const ClusterKind pods = {"pods", {"JOB_COMPLETION_INDEX=5"}, 1}, automatic = {"auto", {"PET_NPROC_PER_NODE=auto"}, 1};
    expect_alone(&pods, "grace=9", 0, "rank 0 starts", NULL);
    expect_alone(&automatic, "grace=9", 0, "rank 0 starts", NULL);
}

static void wrong_variables_are_errors(void **state) {
    (void)state;
    static const ClusterKind numberless = {"", {"PET_NNODES=2", "PET_MASTER_ADDR=127.0.0.1"}, 1},
                             high = {"", {"SKYPILOT_NUM_NODES=2", "SKYPILOT_NODE_RANK=2", "SKYPILOT_NODE_IPS=127.0.0.1\n127.0.0.2"}, 1},
                             nowhere = {"", {"PET_NNODES=2", "PET_NODE_RANK=0"}, 1}, words = {"", {"PET_NPROC_PER_NODE=all"}, 1};
    expect_alone(&numberless, "grace=9", ERROR_USAGE, "PET_NNODES=2 NODE_RANK, from 0 to 1", NULL);
    expect_alone(&high, "grace=9", ERROR_USAGE, "SKYPILOT_NODE_RANK=2 from 0 to 1", NULL);
    static const ClusterKind empty = {"", {"SKYPILOT_NUM_NODES=2", "SKYPILOT_NODE_RANK=0", "SKYPILOT_NODE_IPS=\n10.0.0.2"}, 1};
    expect_alone(&empty, "grace=9", ERROR_USAGE, "SKYPILOT_NODE_IPS must begin with a host", NULL);
    expect_alone(&nowhere, "grace=9", ERROR_USAGE, "2 nodes MASTER_ADDR", NULL);
    expect_alone(&words, "grace=9", ERROR_USAGE, "PET_NPROC_PER_NODE=all number", NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(int argc, char **argv) {
    int code = launch_stand_in(argc, argv);
    if (code >= 0) return code;
    const struct CMUnitTest tests[] = {
        TEST(the_variables_of_kubeflow),
        TEST(the_variables_of_jobset),
        TEST(the_variables_of_skypilot),
        TEST(the_variables_of_skypilot_cpu),
        TEST(the_variables_of_own_first),
        TEST(a_number_of_ranks_overrides_the_variable),
        TEST(an_index_alone_is_no_node),
        TEST(wrong_variables_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
