/* Strangers at the ports of a run: whatever they send, no run ends or starts again, no start is delayed, nobody gets
 * the place of a rank, and the result is that of a run without them, to the bit. Each scenario of the table attacks
 * the rendezvous of three nodes, and the meeting of three ranks that were started without a supervisor; over a small
 * stand-in for training. A stranger is a process that begins before the run is complete and goes on until its end. */
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/prctl.h>

#include "support/launch_run.h"

#include "comm/channel.h"
#include "support/mentions.h"

enum { MEMBERS = 3, MOST_OPEN = 500, MOST_FIRST = 1024, TRIES = 5 };
/* A scenario passes when one of TRIES starts took no longer than this beyond an undisturbed one: a busy machine delays
 * some, a stranger all. */
static const double most_delay = 2; /* seconds */

/* -- A run --------------------------------------------------------------------------------------------------------- */

/* What strangers attack: the port of the nodes' supervisors, each with one rank, or that of rank 0. */
typedef enum Target { NODES, RANKS } Target;
static const char *const targets[] = {[NODES] = "nodes", [RANKS] = "ranks"};

typedef struct Run {
    Target target;
    int port;
    Process members[MEMBERS];
} Run;

/* They wait in step 7 until the file "go" is there. */
static void start_member(Run *run, int member) {
    char *node[] = {"/proc/self/exe", "supervise", "ranks=1", "away=300", "--", "train", folder, "hold", NULL};
    char *rank[] = {"/proc/self/exe", "train", folder, "hold", NULL};
    static const char *const size_name[] = {"NNODES", "WORLD_SIZE"}, *const number_name[] = {"NODE_RANK", "RANK"};
    process_set_number(size_name[run->target], MEMBERS);
    process_set_number(number_name[run->target], member);
    process_set_number("MASTER_PORT", run->port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    run->members[member] = process_start(run->target == NODES ? node : rank);
    unsetenv(size_name[run->target]);
    unsetenv(number_name[run->target]);
}

static Run start_first(Target target) {
    Run run = {.target = target, .port = process_free_port()};
    start_member(&run, 0);
    return run;
}

/* Where the lines of rank 0 are. */
static const Process *shown(const Run *run) { return &run->members[0]; }

static bool trains(const Run *run) { return process_has_said(shown(run), "rank 0 starts at step 0", 1); }

static bool has_lost_a_member(const Run *run) {
    for (int i = 0; i < MEMBERS; i++)
        if (process_has_ended(&run->members[i])) return true;
    return false;
}

/* What each member said and did, for a failure. */
static void show_members(const Run *run) {
    for (int i = 0; i < MEMBERS; i++) {
        char *errors = process_text(run->members[i].errors);
        print_message("member %d, which %s:\n%s\n", i, process_has_ended(&run->members[i]) ? "has ended" : "still runs", errors);
        free(errors);
    }
}

static void await_training(const Run *run) {
    double start = log_seconds();
    while (!trains(run) && !has_lost_a_member(run) && log_seconds() - start < WAIT_LIMIT) process_sleep(1e-3);
    if (trains(run)) return;
    show_members(run);
    fail_msg("rank 0 does not train");
}

/* Returns the seconds from the start of the last member until rank 0 trains. */
static double complete(Run *run) {
    double start = log_seconds();
    start_member(run, MEMBERS - 1);
    await_training(run);
    return log_seconds() - start;
}

static State finish(Run *run, const char *name) {
    make_file(folder, "go");
    for (int i = 0; i < MEMBERS; i++) {
        ProcessResult result = process_finish(&run->members[i]);
        if (result.code != 0) fail_msg("%s: member %d ended with %d: %s", name, i, result.code, result.errors);
        if (strstr(result.errors, "restarting all ranks")) fail_msg("%s: the run began anew: %s", name, result.errors);
        if (strstr(result.errors, PROCESS_SECRET)) fail_msg("%s: the secret is shown: %s", name, result.errors);
        process_free(&result);
    }
    return load(folder);
}

static void discard(Process *process) {
    kill(process->id, SIGKILL);
    ProcessResult result = process_finish(process);
    process_free(&result);
}

/* -- Strangers ----------------------------------------------------------------------------------------------------- */

/* What a stranger knows: where to connect, and what a member sent first to somebody else at that port. */
typedef struct Stranger {
    struct sockaddr_storage address;
    ChannelService service;
    char first[MOST_FIRST]; /* opening, header, hello, proof */
    size_t first_bytes;
    int open[MOST_OPEN]; /* connections that are kept, the oldest first */
    int count;
    int64_t round;
} Stranger;

static int call(const Stranger *stranger) {
    int made = socket_connect(&stranger->address, WAIT_LIMIT, log_seconds() + 1);
    if (made >= 0) socket_reset_at_close(made); /* or a flood would leave the machine without ports */
    return made;
}

static void say(int socket, const void *data, size_t bytes) {
    if (socket >= 0) (void)!send(socket, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* The newest `most` connections stay open. */
static void keep(Stranger *stranger, int socket, int most) {
    if (socket < 0) return;
    if (stranger->count == most) {
        close(stranger->open[0]);
        memmove(stranger->open, stranger->open + 1, (size_t)--stranger->count * sizeof *stranger->open);
    }
    stranger->open[stranger->count++] = socket;
}

static void call_and_say(Stranger *stranger, const void *data, size_t bytes) {
    int made = call(stranger);
    say(made, data, bytes);
    keep(stranger, made, 20);
}

/* Those that were closed come again. */
static void are_silent(Stranger *stranger) {
    int alive = 0;
    for (int i = 0; i < stranger->count; i++) {
        struct pollfd ready = {stranger->open[i], POLLRDHUP, 0};
        if (poll(&ready, 1, 0) > 0 && ready.revents) close(stranger->open[i]);
        else stranger->open[alive++] = stranger->open[i];
    }
    for (stranger->count = alive; alive < 30; alive++) keep(stranger, call(stranger), 30);
}

static void write_slowly(Stranger *stranger) {
    while (stranger->count < 20) keep(stranger, call(stranger), 20);
    for (int i = 0; i < stranger->count; i++) say(stranger->open[i], stranger->first + stranger->round % (int64_t)stranger->first_bytes, 1);
}

static void send_garbage(Stranger *stranger) {
    char noise[4096];
    Error error = {0};
    if (secret_random(noise, sizeof noise, &error)) call_and_say(stranger, noise, sizeof noise);
}

static void send_wrong_magic(Stranger *stranger) {
    char first[MOST_FIRST];
    memcpy(first, stranger->first, sizeof first);
    first[0] ^= 1;
    call_and_say(stranger, first, stranger->first_bytes);
}

static void claim_huge_lengths(Stranger *stranger) {
    char first[MOST_FIRST];
    memcpy(first, stranger->first, sizeof first);
    memset(first + sizeof(Opening) + 4, 0xff, 4);
    call_and_say(stranger, first, stranger->first_bytes);
}

static void leave_out_the_proof(Stranger *stranger) {
    char first[MOST_FIRST];
    memcpy(first, stranger->first, sizeof first);
    memset(first + stranger->first_bytes - SECRET_BYTES, 0, SECRET_BYTES);
    call_and_say(stranger, first, stranger->first_bytes);
}

static void replay_a_recorded_hello(Stranger *stranger) { call_and_say(stranger, stranger->first, stranger->first_bytes); }

/* The recorded hello, on a connection whose opening is the server's. */
static void reflect_the_challenge(Stranger *stranger) {
    char first[MOST_FIRST];
    int made = call(stranger);
    memcpy(first, stranger->first, sizeof first);
    if (made >= 0) socket_receive(made, first, sizeof(Opening), log_seconds() + 1);
    say(made, first, stranger->first_bytes);
    keep(stranger, made, 20);
}

/* The recorded hello of a node with the state "ends" and code 0; of a rank it is another hello. */
static void say_that_the_run_is_over(Stranger *stranger) {
    enum { STATE_AT = sizeof(Opening) + 8 + 16, ENDS = 2 };
    char first[MOST_FIRST];
    memcpy(first, stranger->first, sizeof first);
    memcpy(first + STATE_AT, &(int32_t){ENDS}, sizeof(int32_t));
    call_and_say(stranger, first, stranger->first_bytes);
}

static void greet_with(Stranger *stranger, const Secret *secret) {
    Channel channel;
    Error error = {0};
    int made = call(stranger);
    size_t hello_bytes = stranger->first_bytes - sizeof(Opening) - 8 - SECRET_BYTES;
    if (made < 0) return;
    if (channel_greet(
            &channel, made, secret, stranger->service, stranger->first + sizeof(Opening) + 8, hello_bytes, log_seconds() + 1, &error))
        keep(stranger, channel.socket, 20);
}

static void pass_for_rank_1(Stranger *stranger) { greet_with(stranger, &(Secret){0}); }

static void know_an_old_jobs_secret(Stranger *stranger) { greet_with(stranger, &(Secret){"the secret of another job"}); }

static void scan_the_port(Stranger *stranger) {
    for (int i = 0; i < 20; i++) {
        int made = call(stranger);
        if (made < 0) continue;
        if (i % 2) shutdown(made, SHUT_WR);
        if (i % 4 < 2) close(made);
        else keep(stranger, made, 20);
    }
}

static void flood(Stranger *stranger) {
    for (int i = 0; i < 100; i++) keep(stranger, call(stranger), MOST_OPEN);
}

static void stop_midway(Stranger *stranger) {
    size_t length = (size_t)stranger->round * 7 % stranger->first_bytes;
    call_and_say(stranger, stranger->first, length);
    if (stranger->count > 10) shutdown(stranger->open[stranger->count - 1], SHUT_WR);
}

/* When the stranger begins. */
typedef enum Phase { EARLY, LATE, TRAINING } Phase; /* before rank 1 comes, after it, while all train */

static const struct Scenario {
    const char *name;
    void (*act)(Stranger *stranger); /* again and again */
    Phase phase;
} scenarios[] = {
    {"30 silent connections", are_silent, EARLY},
    {"slow writers", write_slowly, EARLY},
    {"garbage", send_garbage, EARLY},
    {"wrong magic", send_wrong_magic, EARLY},
    {"huge lengths", claim_huge_lengths, EARLY},
    {"a hello without proof", leave_out_the_proof, EARLY},
    {"a recorded hello", replay_a_recorded_hello, EARLY},
    {"a reflected challenge", reflect_the_challenge, EARLY},
    {"finished, from a stranger", say_that_the_run_is_over, EARLY},
    {"an impostor before rank 1", pass_for_rank_1, EARLY},
    {"an impostor after rank 1", pass_for_rank_1, LATE},
    {"an old job's secret", know_an_old_jobs_secret, EARLY},
    {"port scan and half-open", scan_the_port, EARLY},
    {"a flood at the start", flood, EARLY},
    {"a flood during training", flood, TRAINING},
    {"messages cut off midway", stop_midway, EARLY},
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

/* Started with rounds[0]: how often the stranger has done what it does. */
static pid_t start_stranger(const struct Scenario *scenario, Stranger *stranger, _Atomic int64_t *rounds) {
    fflush(NULL);
    pid_t child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;; stranger->round++) {
        scenario->act(stranger);
        (*rounds)++;
        process_sleep(2e-3);
    }
}

static void await_rounds(_Atomic int64_t *rounds, const char *name) {
    int64_t now = *rounds;
    WAIT_UNTIL(*rounds > now + 1, "the stranger (%s) is stuck", name);
}

/* -- What a stranger may have recorded ----------------------------------------------------------------------------- */

/* Rank 1 meets somebody else at the port, who opens a connection as rank 0 does and notes what it sends first. */
static Stranger record(Target target) {
    Error error = {0};
    Opening opening;
    Run run = {.target = target, .port = process_free_port()};
    Stranger stranger = {.service = target == NODES ? CHANNEL_NODES : CHANNEL_RANKS};
    assert_true(socket_resolve("127.0.0.1", run.port, &stranger.address, &error));
    int listener = socket_listen_for("127.0.0.1", &stranger.address), taken;
    assert_true(listener >= 0 && channel_opening(stranger.service, &opening, &error));
    start_member(&run, 1);
    assert_true(socket_await(listener, POLLIN, log_seconds() + WAIT_LIMIT));
    assert_true((taken = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    assert_true(socket_send(taken, &opening, sizeof opening, log_seconds() + WAIT_LIMIT));
    assert_true(socket_receive(taken, stranger.first, sizeof opening + 8, log_seconds() + WAIT_LIMIT));
    uint32_t hello_bytes;
    memcpy(&hello_bytes, stranger.first + sizeof opening + 4, sizeof hello_bytes);
    assert_true(hello_bytes < MOST_FIRST / 2);
    stranger.first_bytes = channel_first_bytes(hello_bytes);
    assert_true(
        socket_receive(taken, stranger.first + sizeof opening + 8, stranger.first_bytes - sizeof opening - 8, log_seconds() + WAIT_LIMIT));
    discard(&run.members[1]);
    close(taken);
    close(listener);
    return stranger;
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static State calm_state;
static double calm_seconds;

static void run_undisturbed(Target target) {
    Run run = start_first(target);
    start_member(&run, 1);
    calm_seconds = complete(&run);
    calm_state = finish(&run, "undisturbed");
    assert_int_equal(calm_state.step, STEPS);
}

static void begin_anew(void) {
    char *command = memory_format("rm -f %s/*", folder);
    assert_int_equal(system(command), 0);
    free(command);
}

/* Returns by how many seconds the start was delayed. */
static double run_among_strangers(Target target, const struct Scenario *scenario, Stranger stranger, _Atomic int64_t *rounds) {
    Run run = start_first(target);
    pid_t child = -1;
    double seconds = 0;
    socket_set_port(&stranger.address, run.port);
    WAIT_UNTIL(process_port_has_listener(run.port), "rank 0 does not listen");
    for (Phase phase = EARLY; phase <= TRAINING; phase++) {
        if (phase == scenario->phase) child = start_stranger(scenario, &stranger, rounds);
        if (child > 0) await_rounds(rounds, scenario->name);
        if (phase == EARLY) start_member(&run, 1);
        if (phase == EARLY) WAIT_UNTIL(process_port_has_caller(run.port), "rank 1 does not come");
        if (phase == LATE) seconds = complete(&run);
    }
    await_step(7);
    State state = finish(&run, scenario->name);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (memcmp(&state, &calm_state, sizeof state)) fail_msg("%s: the result is not that of an undisturbed run", scenario->name);
    return seconds - calm_seconds;
}

static void attack(Target target) {
    Error error = {0};
    _Atomic int64_t *rounds = memory_map_shared(-1, sizeof *rounds, &error);
    assert_non_null(rounds);
    run_undisturbed(target);
    begin_anew();
    Stranger stranger = record(target);
    for (int i = 0; i < SCENARIOS; i++) {
        if (target == RANKS && scenarios[i].phase == TRAINING) continue; /* ranks do not listen any more */
        double delay = INFINITY;
        for (int try = 0; try < TRIES && delay > most_delay; try++) {
            begin_anew();
            delay = run_among_strangers(target, &scenarios[i], stranger, rounds);
        }
        print_message("%s: %-28s start %+.2f s, %lld rounds so far\n", targets[target], scenarios[i].name, delay, (long long)*rounds);
        if (delay > most_delay) fail_msg("%s delays the start of %s by %.1f s", scenarios[i].name, targets[target], delay);
    }
    memory_unmap(rounds, sizeof *rounds);
}

static void strangers_change_nothing_for_nodes(void **state) {
    (void)state;
    attack(NODES);
}

static void strangers_change_nothing_for_ranks(void **state) {
    (void)state;
    attack(RANKS);
}

/* Its rank 1 has died, after it got its place where rank 0 was quick enough, and all others are there. */
static Run start_without_rank_1(void) {
    begin_anew();
    Run run = start_first(RANKS);
    WAIT_UNTIL(process_port_has_listener(run.port), "rank 0 does not listen");
    start_member(&run, 1);
    WAIT_UNTIL(process_port_has_caller(run.port), "rank 1 does not come");
    process_sleep(1);
    discard(&run.members[1]);
    start_member(&run, 2);
    process_sleep(1);
    return run;
}

/* When the first process of rank 1 is dead, one of two others gets its place, and the other one never. */
static void a_rank_keeps_its_place_until_it_dies(void **state) {
    (void)state;
    run_undisturbed(RANKS);
    Run run = start_without_rank_1(), twin = run;
    start_member(&run, 1);
    start_member(&twin, 1);
    await_training(&run);
    Process *seated[] = {&run.members[1], &twin.members[1]};
    WAIT_UNTIL(process_has_said(seated[0], "rank 1 starts", 1) || process_has_said(seated[1], "rank 1 starts", 1), "nobody is rank 1");
    if (process_has_said(seated[1], "rank 1 starts", 1)) {
        Process first = *seated[0];
        *seated[0] = *seated[1];
        *seated[1] = first;
    }
    assert_false(process_has_said(seated[1], "rank 1 starts", 1));
    State end = finish(&run, "two processes of rank 1");
    discard(seated[1]);
    assert_memory_equal(&end, &calm_state, sizeof end);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(int argc, char **argv) {
    int code = launch_stand_in(argc, argv);
    if (code >= 0) return code;
    const struct CMUnitTest tests[] = {
        TEST(strangers_change_nothing_for_nodes),
        TEST(strangers_change_nothing_for_ranks),
        TEST(a_rank_keeps_its_place_until_it_dies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
