/* The supervisor, over a small stand-in for training: this program starts itself as supervisor and as ranks. The stand-in adds over all ranks in
 * every step, keeps a checkpoint, and meets misfortunes that its arguments name. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "process.h"

#include "comm/comm.h"
#include "launch/beacon.h"
#include "launch/health.h"
#include "launch/launch.h"
#include "launch/rules.h"
#include "launch/watchdog.h"

enum { STEPS = 40, KILLS = 8 };

/* -- The stand-in for training ---------------------------------------------------------------------------------------- */

static volatile sig_atomic_t stopped;
static void on_stop(int number) { stopped = number; }

static void give_up(const Error *error) {
    fprintf(stderr, "%s\n", error->message);
    exit(error->code);
}

/* Once in a run: whether this is the first time. */
static bool first_time(const char *folder, const char *what) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, what);
    int file = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (file >= 0) close(file);
    return file >= 0;
}

typedef struct State { int64_t step; double sum; } State;

static State load(const char *folder) {
    char path[512];
    State state = {0};
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    FILE *file = fopen(path, "rb");
    if (file) {
        if (fread(&state, sizeof state, 1, file) != 1) state = (State){-1, 0};
        fclose(file);
    }
    return state;
}

static void save(const char *folder, State state) {
    char path[512], next[512];
    snprintf(path, sizeof path, "%s/checkpoint", folder);
    snprintf(next, sizeof next, "%s/checkpoint.next", folder);
    FILE *file = fopen(next, "wb");
    if (!file || fwrite(&state, sizeof state, 1, file) != 1 || fclose(file) != 0 || rename(next, path) != 0) exit(ERROR_CHECKPOINT);
}

static void note_process(const char *folder, int rank) {
    char path[512];
    snprintf(path, sizeof path, "%s/process.%d", folder, rank);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%d", getpid()) < 0 || fclose(file) != 0) exit(1);
}

static void meet(const char *misfortune, const char *folder, int rank, int64_t step) {
    if (step != 7 || rank != 1) return;
    if (!strcmp(misfortune, "hang") && first_time(folder, "hung"))
        for (;;) process_sleep(10);
    if (!strcmp(misfortune, "stop") && first_time(folder, "stopped")) kill(getpid(), SIGSTOP);
    if (!strcmp(misfortune, "crash")) abort();
    if (!strcmp(misfortune, "usage")) exit(ERROR_USAGE);
    if (!strcmp(misfortune, "nan")) exit(ERROR_NUMERICS);
    if (!strcmp(misfortune, "line") && first_time(folder, "said")) fprintf(stderr, "NCCL WARN something timed out\n");
}

/* FOLDER MISFORTUNE [on_nan=skip] */
static int train(int argc, char **argv) {
    Error error = {0};
    const char *folder = argv[1], *misfortune = argc > 3 && !strcmp(argv[3], "on_nan=skip") ? "" : argv[2];
    CommOptions options = {.appear = 20};
    signal(SIGTERM, !strcmp(misfortune, "stubborn") ? SIG_IGN : on_stop);
    Comm *comm = comm_open(&options, &error);
    Watchdog *watchdog = comm ? watchdog_start(comm, !strcmp(misfortune, "hang") ? 1 : 0, &error) : NULL;
    if (!watchdog) give_up(&error);
    int rank = comm_rank(comm);
    State state = load(folder);
    note_process(folder, rank);
    fprintf(stderr, "rank %d starts at step %lld\n", rank, (long long)state.step);
    while (state.step < STEPS) {
        double values[2] = {1.0 / (state.step + rank + 1), stopped};
        meet(misfortune, folder, rank, state.step);
        if (!comm_host_all_reduce(comm, "sum", values, 2, COMM_F64, COMM_SUM, &error)) give_up(&error);
        state = (State){state.step + 1, state.sum + values[0]};
        if (rank == 0) save(folder, state);
        watchdog_alive(watchdog, state.step);
        if (values[1] > 0) return ERROR_PREEMPTED;
        process_sleep(!strcmp(misfortune, "stubborn") || !strcmp(misfortune, "slow") ? 0.1 : 0.01);
    }
    watchdog_stop(watchdog);
    comm_close(comm);
    return 0;
}

/* [key=value ...] -- train ... */
static int supervise(int argc, char **argv) {
    LaunchOptions options;
    OptionStrings strings = {0};
    Error error = {0};
    options_defaults(&launch_table, &options, &strings);
    int at = 2;
    for (; at < argc && strcmp(argv[at], "--"); at++)
        if (!options_set(&launch_table, &options, &strings, argv[at], &error)) give_up(&error);
    int code = launch(&options, argv + at + 1, &error);
    if (code) fprintf(stderr, "%s\n", error.message);
    options_free_strings(&strings);
    return code;
}

/* -- Tests ---------------------------------------------------------------------------------------------------------- */

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/smelt-test-launch-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static Process start_run(const char *misfortune, const char *option) {
    char *arguments[] = {"/proc/self/exe", "supervise", "ranks=3", (char *)option, "--", "train", folder, (char *)misfortune, NULL};
    return process_start(arguments);
}

static ProcessResult run(const char *misfortune, const char *option) {
    Process process = start_run(misfortune, option);
    return process_finish(&process);
}

static void expect(const ProcessResult *result, int code, const char *text) {
    if (result->code != code) fail_msg("exit code %d in place of %d: %s", result->code, code, result->errors);
    if (!strstr(result->errors, text)) fail_msg("no '%s' in: %s", text, result->errors);
}

/* The result is that of three ranks without misfortunes. */
static void expect_sum(void) {
    State state = load(folder);
    double sum = 0;
    for (int64_t step = 0; step < STEPS; step++) {
        double next = 1.0 / (step + 1);
        for (int rank = 1; rank < 3; rank++) next += 1.0 / (step + rank + 1);
        sum += next;
    }
    assert_int_equal(state.step, STEPS);
    assert_memory_equal(&state.sum, &sum, sizeof sum);
}

static void only_the_first_rank_is_shown_unless_all_are_asked_for(void **state) {
    (void)state;
    ProcessResult result = run("", "output=first");
    expect(&result, 0, "rank 0 starts at step 0");
    expect_sum();
    assert_null(strstr(result.errors, "rank 1 starts"));
    process_free(&result);
    remove_folder(state);
    make_folder(state);
    result = run("", "output=all");
    expect(&result, 0, "[1] rank 1 starts at step 0");
    process_free(&result);
}

/* -1 where the rank is not there. */
static pid_t process_of(int rank) {
    char path[128];
    int id = -1;
    snprintf(path, sizeof path, "%s/process.%d", folder, rank);
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    if (fscanf(file, "%d", &id) != 1) id = -1;
    fclose(file);
    return id;
}

static void ranks_killed_at_random_moments_do_not_change_the_result(void **state) {
    (void)state;
    Process process = start_run("", "restarts=100");
    siginfo_t info = {0};
    int kills = 0;
    for (int i = 0; i < KILLS * 4 && kills < KILLS && info.si_pid == 0; i++) {
        process_sleep(0.02 + i * 7 % 10 * 0.02);
        pid_t victim = process_of(i % 3);
        if (victim > 0 && kill(victim, SIGKILL) == 0) {
            kills++;
            for (int rank = 0; rank < 3; rank++) { /* their successors write new ones */
                char path[128];
                snprintf(path, sizeof path, "%s/process.%d", folder, rank);
                unlink(path);
            }
        }
        waitid(P_PID, (id_t)process.id, &info, WEXITED | WNOHANG | WNOWAIT);
    }
    assert_true(kills >= 3);
    ProcessResult result = process_finish(&process);
    expect(&result, 0, "was killed by signal 9");
    expect_sum();
    process_free(&result);
}

static void a_hang_is_ended_by_the_watchdog_with_collectives_and_stacks(void **state) {
    (void)state;
    ProcessResult result = run("hang", "restarts=3");
    expect(&result, 0, "made no progress for 1 s after step 7: ended by its watchdog");
    expect(&result, 0, "last collectives of rank 0, newest first:");
    expect(&result, 0, "all_reduce     'sum' 16 B, running");
    expect(&result, 0, "stack of thread");
    expect(&result, 0, "starting all ranks again");
    expect_sum();
    process_free(&result);
}

static void a_rank_that_shows_no_life_is_killed_by_the_supervisor(void **state) {
    (void)state;
    ProcessResult result = run("stop", "hang=1.5");
    expect(&result, 0, "hung: starting all ranks again");
    expect_sum();
    process_free(&result);
}

static void failures_without_progress_are_bounded(void **state) {
    (void)state;
    ProcessResult result = run("crash", "restarts=1");
    expect(&result, ERROR_INTERNAL, "rank 1 was killed by signal 6 (Aborted); given up after 2 failures in a row without progress (restarts=1)");
    expect(&result, ERROR_INTERNAL, "the last output of rank 1:\nrank 1 starts at step");
    process_free(&result);
}

static void a_wrong_setting_is_not_tried_again(void **state) {
    (void)state;
    ProcessResult result = run("usage", "restarts=3");
    expect(&result, ERROR_USAGE, "rank 1 refused its settings (exit code 2): starting again would not help");
    assert_null(strstr(result.errors, "starting all ranks again"));
    process_free(&result);
}

static void nan_stops_or_goes_back_and_skips_as_told(void **state) {
    (void)state;
    ProcessResult result = run("nan", "on_nan=stop");
    expect(&result, ERROR_NUMERICS, "rank 1 met NaN or infinity");
    process_free(&result);
    result = run("nan", "on_nan=skip");
    expect(&result, 0, "starting all ranks again");
    expect_sum();
    process_free(&result);
}

static void a_line_of_output_can_start_all_again_or_stop_them(void **state) {
    (void)state;
    ProcessResult result = run("line", "restart_on=NCCL WARN.*timed out");
    expect(&result, 0, "rank 1 printed a line that restart_on names: starting all ranks again");
    expect_sum();
    process_free(&result);
    remove_folder(state);
    make_folder(state);
    result = run("line", "stop_on=NCCL WARN");
    expect(&result, ERROR_INTERNAL, "rank 1 printed a line that stop_on names");
    process_free(&result);
}

static void await_steps(int64_t steps) {
    for (int i = 0; i < 500 && load(folder).step < steps; i++) process_sleep(0.02);
}

static void sigterm_reaches_the_ranks_and_the_run_continues_later(void **state) {
    (void)state;
    Process process = start_run("", "grace=20");
    await_steps(5);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect(&result, ERROR_PREEMPTED, "the same command continues");
    process_free(&result);
    result = run("", "grace=20");
    expect(&result, 0, "rank 0 starts at step");
    assert_null(strstr(result.errors, "rank 0 starts at step 0"));
    expect_sum();
    process_free(&result);
}

static void ranks_that_do_not_stop_are_killed_after_the_grace_time(void **state) {
    (void)state;
    Process process = start_run("stubborn", "grace=0.5");
    double start = log_seconds();
    await_steps(5);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect(&result, ERROR_PREEMPTED, "stopped after step");
    assert_true(log_seconds() - start < 10);
    process_free(&result);
}

static void a_rank_that_fails_again_and_again_is_left_out_if_wanted(void **state) {
    (void)state;
    char *arguments[] = {"/proc/self/exe", "supervise", "ranks=2", "shrink=true", "restarts=5", "--", "train", folder, "crash", NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    expect(&result, 0, "leaving out rank 1, which failed twice in a row without progress: going on with 1 ranks");
    process_free(&result);
}

static void the_rank_nearest_to_the_cause_decides(void **state) {
    (void)state;
    LaunchOptions options = {0};
    assert_true(rules_find(EVENT_SIGNAL, SIGKILL, &options) < rules_find(EVENT_EXIT, ERROR_COMMUNICATION, &options));
    assert_true(rules_find(EVENT_EXIT, ERROR_USAGE, &options) < rules_find(EVENT_EXIT, ERROR_COMMUNICATION, &options));
    assert_int_equal(rules_find(EVENT_EXIT, ERROR_NUMERICS, &options)->action, ACTION_STOP);
    options.on_nan = LAUNCH_NAN_SKIP;
    assert_int_equal(rules_find(EVENT_EXIT, ERROR_NUMERICS, &options)->action, ACTION_RESTART_SKIPPING);
    assert_int_equal(rules_find(EVENT_EXIT, 99, &options)->action, ACTION_RESTART);
}

static void slurms_host_lists_give_their_first_host(void **state) {
    (void)state;
    static const struct { const char *list, *host; } cases[] = {{"node[07-12,15],login", "node07"}, {"a,b", "a"}, {"gpu-1", "gpu-1"}, {"n[3]", "n3"},
                                                                {"x[1,2]", "x1"}};
    char host[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(comm_first_host(cases[i].list, host, sizeof host));
        assert_string_equal(host, cases[i].host);
    }
    assert_false(comm_first_host("", host, sizeof host));
    assert_false(comm_first_host("n[", host, sizeof host));
    assert_false(comm_first_host("n[a]", host, sizeof host));
    assert_false(comm_first_host("a-very-long-name", host, 4));
}

/* -- Counters ------------------------------------------------------------------------------------------------------- */

static void write_counter(const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s%s", folder, name);
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void collect(void *context, const char *line) {
    char *text = context;
    strcat(text, line);
    strcat(text, "\n");
}

static void counters_that_grow_are_reported(void **state) {
    (void)state;
    char text[2048] = "";
    write_counter("/sys/class/net/eth0/carrier_down_count", "1\n");
    write_counter("/sys/class/drm/card0/device/ras/umc_err_count", "ue: 0\nce: 4\n");
    Health *health = health_open(folder);
    assert_int_equal(health_look(health, collect, text), 0);
    write_counter("/sys/class/net/eth0/carrier_down_count", "3\n");
    write_counter("/sys/class/drm/card0/device/ras/umc_err_count", "ue: 1\nce: 9\n");
    assert_int_equal(health_look(health, collect, text), 2);
    assert_int_equal(health_look(health, collect, text), 0);
    health_close(health);
    assert_string_equal(text, "/sys/class/net/eth0/carrier_down_count: the link went down, 2 more, 3 in all\n"
                              "/sys/class/drm/card0/device/ras/umc_err_count: the GPU's memory had errors that cannot be corrected, 1 more, 1 in all\n");
}

static void a_rank_that_computes_much_longer_than_the_others_is_found(void **state) {
    (void)state;
    Beacon beacons[4] = {{.busy = 0.1}, {.busy = 0.11}, {.busy = 0.2}, {.busy = 0.1}};
    double ratio;
    assert_int_equal(beacon_straggler(beacons, 4, &ratio), 2);
    assert_true(fabs(ratio - 2) < 1e-12);
    assert_int_equal(beacon_straggler(beacons, 2, &ratio), -1);
    beacons[2].busy = 0.14;
    assert_int_equal(beacon_straggler(beacons, 4, &ratio), -1);
    beacons[3].busy = 0;
    beacons[2].busy = 9;
    assert_int_equal(beacon_straggler(beacons, 4, &ratio), -1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "supervise")) return supervise(argc, argv);
    if (argc > 3 && !strcmp(argv[1], "train")) return train(argc - 1, argv + 1);
    const struct CMUnitTest tests[] = {
        TEST(only_the_first_rank_is_shown_unless_all_are_asked_for),
        TEST(ranks_killed_at_random_moments_do_not_change_the_result),
        TEST(a_hang_is_ended_by_the_watchdog_with_collectives_and_stacks),
        TEST(a_rank_that_shows_no_life_is_killed_by_the_supervisor),
        TEST(failures_without_progress_are_bounded),
        TEST(a_wrong_setting_is_not_tried_again),
        TEST(nan_stops_or_goes_back_and_skips_as_told),
        TEST(a_line_of_output_can_start_all_again_or_stop_them),
        TEST(sigterm_reaches_the_ranks_and_the_run_continues_later),
        TEST(ranks_that_do_not_stop_are_killed_after_the_grace_time),
        TEST(a_rank_that_fails_again_and_again_is_left_out_if_wanted),
        TEST(the_rank_nearest_to_the_cause_decides),
        TEST(slurms_host_lists_give_their_first_host),
        TEST(counters_that_grow_are_reported),
        TEST(a_rank_that_computes_much_longer_than_the_others_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
