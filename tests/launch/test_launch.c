/* The supervisor of one node, over a small stand-in for training. */
#include <math.h>

#include "support/launch_run.h"

#include "launch/straggler_internal.h"
#include "launch/rules_internal.h"

enum { KILLS = 8 };

static Process start_run(const char *misfortune, const char *option) {
    char *arguments[] = {"/proc/self/exe", "supervise", "ranks=3", (char *)option, "--", "train", folder, (char *)misfortune, NULL};
    return process_start(arguments);
}

static ProcessResult run(const char *misfortune, const char *option) {
    Process process = start_run(misfortune, option);
    return process_finish(&process);
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

static void ranks_killed_at_random_moments_do_not_change_the_result(void **state) {
    (void)state;
    Process process = start_run("hold at the end", "restarts=100");
    for (int i = 0; i < KILLS; i++) {
        await_rank(i % 3);
        process_sleep(i * 7 % 10 * 0.01);
        kill_rank(i % 3);
    }
    make_file(folder, "go");
    ProcessResult result = process_finish(&process);
    expect(&result, 0, "was killed by signal 9");
    expect_sum();
    process_free(&result);
}

static void a_rank_that_is_lost_before_the_ranks_meet_is_named_and_all_start_again(void **state) {
    (void)state;
    ProcessResult result = run("early", "restarts=3");
    expect(&result, 0, "step 0 rank 1 signal 9 restarting");
    expect_sum();
    process_free(&result);
}

static void a_hang_is_ended_by_the_watchdog_with_collectives_and_stacks(void **state) {
    (void)state;
    ProcessResult result = run("hang", "restarts=3");
    expect(&result, 0, "5 s step 7 watchdog");
    expect(&result, 0, "last collectives of rank 0, newest first:");
    expect(&result, 0, "all_reduce     'sum' 16 B, running");
    expect(&result, 0, "stack of thread");
    assert_null(strstr(result.errors, "no answer"));
    expect(&result, 0, "restarting all ranks");
    expect_sum();
    process_free(&result);
}

static void a_rank_that_shows_no_life_is_killed_by_the_supervisor(void **state) {
    (void)state;
    ProcessResult result = run("stop", "hang=5");
    expect(&result, 0, "hung restarting");
    expect_sum();
    process_free(&result);
}

/* A command such as serve has no heartbeat. */
static void a_suspended_rank_without_a_heartbeat_is_killed_by_the_supervisor(void **state) {
    (void)state;
    ProcessResult result = run("quiet stop", "hang=2");
    expect(&result, 0, "hung restarting");
    expect_sum();
    process_free(&result);
}

static void failures_without_progress_are_bounded(void **state) {
    (void)state;
    ProcessResult result = run("crash", "restarts=1");
    expect(&result, ERROR_COMMUNICATION, "rank 1 signal 6 2 failures (restarts=1)");
    expect(&result, ERROR_COMMUNICATION, "the last output of rank 1:\nrank 1 starts at step");
    process_free(&result);
}

/* As of eval and generate, which never start again. */
static void a_killed_rank_that_is_not_started_again_is_a_lost_one_whichever_it_is(void **state) {
    for (int rank = 0; rank < 2; rank++) {
        Process process = start_run("hold", "restarts=0");
        kill_rank(rank);
        ProcessResult result = process_finish(&process);
        expect(&result, ERROR_COMMUNICATION, "signal 9 1 failure in a row");
        process_free(&result);
        remove_folder(state);
        make_folder(state);
    }
}

static void a_wrong_setting_is_not_tried_again(void **state) {
    (void)state;
    ProcessResult result = run("usage", "restarts=3");
    expect(&result, ERROR_USAGE, "rank 1 settings (exit code 2)");
    assert_null(strstr(result.errors, "restarting all ranks"));
    process_free(&result);
}

/* A rank ends with the code of a collective without device memory. */
static void a_lack_of_memory_restarts_nothing(void **state) {
    (void)state;
    ProcessResult result = run("memory", "restarts=3");
    expect(&result, ERROR_MEMORY, "rank 1 ran out of memory (exit code 4): a restart would not help");
    assert_null(strstr(result.errors, "restarting all ranks"));
    process_free(&result);
}

static void nan_stops_or_goes_back_and_skips_as_configured(void **state) {
    (void)state;
    ProcessResult result = run("nan", "on_nan=stop");
    expect(&result, ERROR_NUMERICS, "rank 1 NaN");
    process_free(&result);
    result = run("nan", "on_nan=skip");
    expect(&result, 0, "restarting all ranks");
    expect_sum();
    process_free(&result);
}

static void a_line_of_output_can_start_all_again_or_stop_them(void **state) {
    (void)state;
    ProcessResult result = run("line", "restart_on=NCCL WARN.*timed out");
    expect(&result, 0, "rank 1 restart_on restarting");
    expect_sum();
    process_free(&result);
    remove_folder(state);
    make_folder(state);
    result = run("line", "stop_on=NCCL WARN");
    expect(&result, ERROR_INTERNAL, "rank 1 stop_on");
    process_free(&result);
}

static void sigterm_reaches_the_ranks_and_the_run_continues_later(void **state) {
    (void)state;
    Process process = start_run("hold", "grace=600");
    await_step(7);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect(&result, ERROR_PREEMPTED, "the same command continues");
    process_free(&result);
    result = run("", "grace=600");
    expect(&result, 0, "rank 0 starts at step");
    assert_null(strstr(result.errors, "rank 0 starts at step 0"));
    expect_sum();
    process_free(&result);
}

static void a_stop_promises_checkpoints_of_commands_that_write_them_alone(void **state) {
    (void)state;
    char *arguments[] = {"/proc/self/exe", "supervise", "ranks=3", "grace=600", "--", "eval", folder, "stubborn", NULL};
    Process process = process_start(arguments);
    await_step(7);
    for (int i = 1; i <= 3; i++) {
        kill(process.id, SIGTERM);
        process_await_text(&process, "request to stop", i);
    }
    ProcessResult result = process_finish(&process);
    expect(&result, ERROR_PREEMPTED, "request to stop: 600 s to end");
    expect(&result, ERROR_PREEMPTED, "third request killing");
    expect(&result, ERROR_PREEMPTED, "stopped before the same command");
    assert_null(strstr(result.errors, "checkpoint"));
    process_free(&result);
}

static void ranks_that_do_not_stop_are_killed_after_the_grace_time(void **state) {
    (void)state;
    Process process = start_run("stubborn", "grace=0.5");
    await_step(7);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect(&result, ERROR_PREEMPTED, "stopped after step");
    process_free(&result);
}

static void a_stopped_rank_is_not_waited_for_once_all_others_have_ended(void **state) {
    (void)state;
    enum { GRACE = 300 };
    Process process = start_run("stop at the end", "grace=300");
    await_step(7);
    double start = log_seconds();
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect(&result, ERROR_PREEMPTED, "rank 1 (SIGSTOP)");
    expect(&result, ERROR_PREEMPTED, "all ranks exited same command");
    assert_true(log_seconds() - start < GRACE / 2.0);
    process_free(&result);
}

static void the_third_request_to_stop_kills_and_the_second_does_not(void **state) {
    (void)state;
    Process process = start_run("stubborn", "grace=600");
    await_step(7);
    kill(process.id, SIGTERM);
    process_await_text(&process, "request 600 checkpoint", 1);
    kill(process.id, SIGTERM);
    process_await_text(&process, "second request to stop", 1);
    process_sleep(0.5); /* a few looks of the supervisor */
    assert_false(process_has_ended(&process));
    assert_int_equal(kill(process_of(1), 0), 0);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    expect(&result, ERROR_PREEMPTED, "third request killing");
    process_free(&result);
}

static void a_rank_that_fails_again_and_again_is_left_out_if_wanted(void **state) {
    (void)state;
    char *arguments[] = {"/proc/self/exe", "supervise", "ranks=2", "shrink=true", "restarts=5", "--", "train", folder, "crash", NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    expect(&result, 0, "excluding rank 1, 1 rank");
    process_free(&result);
}

static void a_node_is_tested_after_a_failure_that_may_be_the_hardwares(void **state) {
    (void)state;
    make_file(folder, "sick.0");
    ProcessResult result = run("abort", "restarts=3");
    expect(&result, ERROR_DEVICE, "self-test: self_test.gemm GPU 3: 7");
    process_free(&result);
    remove_file(folder, "sick.0");
    remove_file(folder, "broke");
    result = run("abort", "restarts=3");
    expect(&result, 0, "signal 6 restarting");
    expect_sum();
    process_free(&result);
}

static void the_self_test_can_be_left_out(void **state) {
    (void)state;
    make_file(folder, "sick.0");
    ProcessResult result = run("abort", "self_test=false");
    expect(&result, 0, "restarting all ranks");
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
    static const struct {
        const char *list, *host;
    } cases[] = {{"node[07-12,15],login", "node07"}, {"a,b", "a"}, {"gpu-1", "gpu-1"}, {"n[3]", "n3"}, {"x[1,2]", "x1"}};
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

static void a_rank_that_computes_much_longer_than_the_others_is_found(void **state) {
    (void)state;
    double busy[4] = {0.1, 0.11, 0.2, 0.1}, ratio;
    const int one[4] = {0};
    assert_int_equal(straggler_slowest(busy, one, 4, &ratio), 2);
    assert_true(fabs(ratio - 2) < 1e-12);
    assert_int_equal(straggler_slowest(busy + 1, one, 2, &ratio), 1);
    assert_int_equal(straggler_slowest(busy, one, 2, &ratio), -1);
    assert_int_equal(straggler_slowest(busy, one, 1, &ratio), -1);
    busy[2] = 0.14;
    assert_int_equal(straggler_slowest(busy, one, 4, &ratio), -1);
    busy[3] = 0;
    busy[2] = 9;
    assert_int_equal(straggler_slowest(busy, one, 4, &ratio), -1);
}

static void ranks_are_compared_with_those_of_their_stage(void **state) {
    (void)state;
    const double busy[6] = {0.1, 0.11, 0.3, 0.31, 0.1, 0.3}, slow[6] = {0.1, 0.11, 0.3, 0.31, 0.2, 0.3};
    const int stages[6] = {0, 0, 1, 1, 0, 1};
    double ratio;
    assert_int_equal(straggler_slowest(busy, stages, 6, &ratio), -1);
    assert_int_equal(straggler_slowest(slow, stages, 6, &ratio), 4);
    assert_true(fabs(ratio - 0.2 / 0.11) < 1e-12);
}

static void a_hang_names_the_group_and_the_ranks_that_did_not_come(void **state) {
    (void)state;
    char *arguments[] = {"/proc/self/exe", "supervise", "ranks=4", "restarts=3", "--", "train", folder, "pairs hang", NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    expect(&result, 0, "rank 0 (dp 0, tp 0) waits in all_reduce 9 'sum' of all for\n  rank 1 (dp 0, tp 1), which is in no collective\n");
    expect(&result, 0, "rank 1 (dp 0, tp 1) is in no collective");
    process_free(&result);
}

static void ranks_are_left_out_by_whole_copies_of_the_model(void **state) {
    (void)state;
    char *arguments[] = {"/proc/self/exe", "supervise", "ranks=4", "shrink=true", "restarts=5", "--", "train", folder, "pairs crash", NULL};
    Process process = process_start(arguments);
    ProcessResult result = process_finish(&process);
    expect(&result, 0, "rank 1 (dp 0, tp 1) was killed by signal 6");
    expect(&result, 0, "excluding rank 1, 2 ranks");
    expect(&result, 0, "2 ranks: 1 reserve");
    process_free(&result);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(int argc, char **argv) {
    int code = launch_stand_in(argc, argv);
    if (code >= 0) return code;
    const struct CMUnitTest tests[] = {
        TEST(only_the_first_rank_is_shown_unless_all_are_asked_for),
        TEST(ranks_killed_at_random_moments_do_not_change_the_result),
        TEST(a_rank_that_is_lost_before_the_ranks_meet_is_named_and_all_start_again),
        TEST(a_hang_is_ended_by_the_watchdog_with_collectives_and_stacks),
        TEST(a_rank_that_shows_no_life_is_killed_by_the_supervisor),
        TEST(a_suspended_rank_without_a_heartbeat_is_killed_by_the_supervisor),
        TEST(failures_without_progress_are_bounded),
        TEST(a_killed_rank_that_is_not_started_again_is_a_lost_one_whichever_it_is),
        TEST(a_wrong_setting_is_not_tried_again),
        TEST(a_lack_of_memory_restarts_nothing),
        TEST(nan_stops_or_goes_back_and_skips_as_configured),
        TEST(a_line_of_output_can_start_all_again_or_stop_them),
        TEST(sigterm_reaches_the_ranks_and_the_run_continues_later),
        TEST(a_stop_promises_checkpoints_of_commands_that_write_them_alone),
        TEST(ranks_that_do_not_stop_are_killed_after_the_grace_time),
        TEST(a_stopped_rank_is_not_waited_for_once_all_others_have_ended),
        TEST(the_third_request_to_stop_kills_and_the_second_does_not),
        TEST(a_rank_that_fails_again_and_again_is_left_out_if_wanted),
        TEST(a_node_is_tested_after_a_failure_that_may_be_the_hardwares),
        TEST(the_self_test_can_be_left_out),
        TEST(the_rank_nearest_to_the_cause_decides),
        TEST(slurms_host_lists_give_their_first_host),
        TEST(ranks_are_compared_with_those_of_their_stage),
        TEST(a_hang_names_the_group_and_the_ranks_that_did_not_come),
        TEST(ranks_are_left_out_by_whole_copies_of_the_model),
        TEST(a_rank_that_computes_much_longer_than_the_others_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
