/* What `smelt show` says of real trainings that ended in different ways, and while one trains. */
#include <signal.h>

#include "base/error.h"
#include "support/train_run.h"

/* Makes NaN after some steps. */
#define EXPLODING "schedule.kind=constant schedule.warmup=0 optimizer.lr=100 optimizer.weight_decay=100"

static void assert_state(const char *state) { smelt_says(ERROR_NONE, state, "show run"); }

static void an_end_is_recorded_with_its_reason(void **state) {
    (void)state;
    train_good("run=run steps=8 stop_at=4");
    assert_state("state stopped after step 4 of 8: stop_at=4");
    train_good("run=run steps=8");
    assert_state("state finished after step 8 of 8");
    train_says(ERROR_NUMERICS, ": NaN or infinity in tensor ", "run=nan %s", EXPLODING);
    smelt_says(ERROR_NONE, ": NaN or infinity in tensor ", "show nan");
    smelt_says(ERROR_NONE, "state failed after step", "show nan");
}

static void alarms_of_a_training_reach_the_command(void **state) {
    (void)state;
    write_text("hook.sh", "#!/bin/sh\ncat >>events\n");
    assert_int_equal(chmod("hook.sh", 0777), 0);
    train_good("run=run steps=8 eval.every=8 on_event=./hook.sh");
    train_says(ERROR_NUMERICS, "21 consecutive updates", "run=nan on_event=./hook.sh on_nan=skip %s", EXPLODING);
    char *events = read_text("events");
    static const char *const sent[] = {"{\"event\":\"best\"", "{\"event\":\"finished\"", "{\"event\":\"nan\"", "{\"event\":\"failed\""};
    for (size_t i = 0; i < sizeof sent / sizeof *sent; i++) {
        const char *first = strstr(events, sent[i]);
        assert_non_null(first);
        assert_null(strstr(first + 1, sent[i]));
    }
    free(events);
    char *records = read_text("run/metrics.jsonl");
    assert_holds(records, "\"event\": \"best\"");
    free(records);
}

static void a_training_run_is_training_and_a_killed_one_is_not(void **state) {
    (void)state;
    Process process = train_start("run=run steps=1000000");
    WAIT_UNTIL(access("run/metrics.jsonl", F_OK) == 0, "no step was recorded");
    assert_state("state training");
    kill(process.id, SIGKILL);
    ProcessResult result = process_finish(&process);
    process_free(&result);
    assert_state("its process was killed, or crashed, without a message");
}

static void a_paused_run_says_which_signal(void **state) {
    (void)state;
    Process process = train_start("run=run steps=1000000");
    char *text = NULL;
    WAIT_UNTIL(access("run/metrics.jsonl", F_OK) == 0 && (free(text), text = read_text("run/metrics.jsonl"), strstr(text, "\"step\": 2,")),
        "no step was recorded");
    free(text);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    assert_int_equal(result.code, ERROR_PREEMPTED);
    process_free(&result);
    assert_state("of 1000000: paused by SIGTERM after step");
}

static void warnings_are_events_of_the_run(void **state) {
    (void)state;
    train_says(0, "warning: schedule.kind=wsd", "run=warned schedule.kind=wsd steps=6");
    static const char wsd[] =
        "{\"kind\": \"event\", \"step\": 1, \"event\": \"warning\", \"message\": \"schedule.kind=wsd with schedule.decay=0";
    char *records = read_text("warned/metrics.jsonl"), *warning = strstr(records, wsd);
    assert_non_null(warning);
    assert_null(strstr(warning + 1, wsd));
    free(records);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(an_end_is_recorded_with_its_reason),
        TRAIN_TEST(alarms_of_a_training_reach_the_command),
        TRAIN_TEST(a_training_run_is_training_and_a_killed_one_is_not),
        TRAIN_TEST(a_paused_run_says_which_signal),
        TRAIN_TEST(warnings_are_events_of_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
