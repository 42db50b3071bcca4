/* Collectives over the loopback: two child processes sum over TCP like two ranks of a run. Failures
 * stay inside the children. Owns the children. */
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "comm/secret.h"
#include "comm/socket.h"
#include "advise/doctor.h"

enum { RANKS = 2, COUNT = 4 << 20, ROUNDS = 4, LIMIT = 20 };

typedef struct ChildOutcome {
    double seconds;
    char message[256];
} ChildOutcome; /* of an all-reduce; empty message: no error */

/* Sets torchrun's variables, from which comm_open finds the place of a rank. */
static ChildVariables describe_place(int rank, int port, const Secret *secret) {
    ChildVariables variables = {0};
    child_set_variable(&variables, memory_format("RANK=%d", rank));
    child_set_variable(&variables, memory_format("LOCAL_RANK=%d", rank));
    child_set_variable(&variables, memory_format("WORLD_SIZE=%d", RANKS));
    child_set_variable(&variables, memory_format("LOCAL_WORLD_SIZE=%d", RANKS));
    child_set_variable(&variables, memory_format("MASTER_ADDR=127.0.0.1"));
    child_set_variable(&variables, memory_format("MASTER_PORT=%d", port));
    child_set_variable(&variables, secret_variable(secret));
    return variables;
}

/* The ranks contribute 1 and 2, so all values become 3, then 6, 12 and so on. */
static bool sum(Comm *comm, ChildOutcome *outcome, Error *error) {
    SCOPED_FREE float *values = memory_allocate(COUNT * sizeof *values);
    float expected = 1.5f;
    for (int64_t i = 0; i < COUNT; i++) values[i] = (float)(comm_rank(comm) + 1);
    outcome->seconds = INFINITY;
    for (int round = 0; round < ROUNDS; round++) {
        double start = log_seconds();
        comm_wait(comm, comm_all_reduce(comm, "doctor", values, COUNT, COMM_F32, COMM_SUM));
        if (!comm_ok(comm, error)) return false;
        outcome->seconds = fmin(outcome->seconds, log_seconds() - start);
        expected *= RANKS;
        for (int64_t i = 0; i < COUNT; i++)
            if (values[i] != expected)
                return error_set(error, ERROR_NUMERICS, "a sum over %d ranks is %g, not %g", RANKS, (double)values[i], (double)expected);
    }
    return true;
}

/* Runs in a child; `context` is the descriptor of the pipe to the doctor. */
static int run_child_rank(void *context) {
    ChildOutcome outcome = {0};
    Error error = {0};
    Comm *comm = comm_open(&(CommOptions){.transport = COMM_TCP, .appear = LIMIT / 2, .lost = LIMIT / 2, .timeout = LIMIT / 2}, &error);
    bool good = comm && sum(comm, &outcome, &error);
    if (!good) snprintf(outcome.message, sizeof outcome.message, "%.250s", error.message);
    bool delivered = write(*(int *)context, &outcome, sizeof outcome) == sizeof outcome;
    if (good) comm_close(comm);
    return !delivered;
}

static pid_t start_child_rank(int rank, int port, const Secret *secret, int pipe) {
    ChildVariables variables = describe_place(rank, port, secret);
    pid_t child = child_start(&(ChildOptions){.run = run_child_rank, .context = &pipe, .variables = &variables, .limit_seconds = LIMIT});
    child_free_variables(&variables);
    return child;
}

void doctor_check_collective(Doctor *doctor) {
    int ends[2], port = socket_free_port(), delivered = 0;
    Secret secret;
    Error error = {0};
    pid_t children[RANKS];
    ChildOutcome outcome, worst = {0};
    if (!port || !secret_random(&secret, sizeof secret, &error) || pipe(ends)) {
        doctor_warn(
            doctor, "self_test.collective", "bring the loopback up: sudo ip link set lo up", "cannot listen on any port of 127.0.0.1");
        return;
    }
    for (int rank = 0; rank < RANKS; rank++) children[rank] = start_child_rank(rank, port, &secret, ends[1]);
    close(ends[1]);
    while (read(ends[0], &outcome, sizeof outcome) == sizeof outcome) {
        delivered++;
        if (*outcome.message || outcome.seconds > worst.seconds) worst = outcome;
    }
    close(ends[0]);
    for (int rank = 0; rank < RANKS; rank++)
        if (children[rank] > 0) waitpid(children[rank], NULL, 0);
    if (delivered == RANKS && !*worst.message)
        doctor_ok(doctor, "self_test.collective",
            "all-reduce of 16 MiB over %d processes and the loopback: correct sums, %.2f GB/s bus bandwidth", RANKS,
            COUNT * sizeof(float) / 1e9 / worst.seconds);
    else
        doctor_error(doctor, "self_test.collective", "check the firewall rules of the loopback: sudo iptables -L", "%s",
            *worst.message ? worst.message : "a process exited early or took too long");
}
