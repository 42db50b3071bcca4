/* End to end: where `smelt train` puts checkpoints and how it goes on when one cannot be saved. */
#include <fcntl.h>
#include <sys/stat.h>

#include "support/train_run.h"

static void waiting_for_saves_gives_the_same_checkpoints(void **state) {
    (void)state;
    train_good("run=apart checkpoint.every=7");
    train_good("run=waiting checkpoint.every=7 checkpoint.async=false");
    assert_true(same_checkpoint("apart", "waiting", 35));
    assert_true(same_checkpoint("apart", "waiting", 40));
}

static void sharing_unchanged_files_gives_the_same_checkpoints(void **state) {
    (void)state;
    train_good("run=whole checkpoint.every=7");
    train_good("run=sharing checkpoint.every=7 checkpoint.whole_every=14");
    assert_true(same_checkpoint("whole", "sharing", 35));
    assert_true(same_checkpoint("whole", "sharing", 40));
}

static void another_folder_holds_the_checkpoints_and_an_empty_run_folder_continues_from_it(void **state) {
    (void)state;
    train_good("run=whole");
    train_good("run=first checkpoint.store=elsewhere checkpoint.every=10 stop_at=20");
    assert_true(access("first/checkpoints", F_OK) != 0);
    assert_true(has_checkpoint("elsewhere", 20));
    train_says(ERROR_NONE, "continuing second after step 20", "run=second checkpoint.store=elsewhere resume.accept=run");
    assert_true(same_checkpoint("whole", "elsewhere", 40));
}

static void each_save_reports_its_rate_and_how_long_training_stood_still(void **state) {
    (void)state;
    train_says(ERROR_NONE, "/s; training stood still for ", "run=run checkpoint.every=10");
    train_says(ERROR_NONE, "checkpoint of step 50: ", "run=more steps=50");
}

static void a_save_that_fails_is_a_warning_and_the_next_one_counts(void **state) {
    (void)state;
    assert_int_equal(mkdir("run", 0777), 0);
    assert_int_equal(mkdir("run/checkpoints", 0777), 0);
    /* a file with the name of the checkpoint's folder: a rename cannot replace it */
    int file = open("run/checkpoints/step-00000010", O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    assert_true(file >= 0);
    close(file);
    train_says(ERROR_NONE, "the checkpoint of step 10 was not saved", "run=run checkpoint.every=10");
    assert_true(has_checkpoint("run", 40));
}

/* With one checkpoint kept and a save at every step, checkpoints vanish between listing and reading. */
static void readers_follow_a_run_whose_checkpoints_vanish(void **state) {
    (void)state;
    enum { READS = 60 };
    Process training = train_start("run=run steps=1000000000 checkpoint.every=1 checkpoint.keep=1");
    process_await_text(&training, "checkpoint of step 2", 1);
    for (int i = 0; i < READS; i++) {
        ProcessResult result = smelt("generate run the tokens=1");
        expect_code(&result, ERROR_NONE, "generate beside a training");
        if (process_lines(result.errors, "warning: ")) fail_msg("a reader complains: %s", result.errors);
        process_free(&result);
    }
    assert_int_equal(kill(training.id, SIGTERM), 0);
    ProcessResult result = process_finish(&training);
    expect_code(&result, ERROR_PREEMPTED, "the training beside readers");
    process_free(&result);
}

static void only_the_training_calls_a_save_half_written(void **state) {
    (void)state;
    train_good("run=run stop_at=2");
    assert_int_equal(mkdir("run/checkpoints/step-00000003.partial-7", 0777), 0);
    ProcessResult result = smelt("generate run the tokens=1");
    expect_code(&result, ERROR_NONE, "generate beside a save");
    assert_null(strstr(result.errors, "half-written"));
    process_free(&result);
    train_says(ERROR_NONE, "step-00000003.partial-7 is half-written", "run=run stop_at=3");
}

/* What a kill between a save and its record leaves. */
static void a_checkpoint_without_a_record_gets_one_when_the_run_goes_on(void **state) {
    (void)state;
    train_good("run=run stop_at=4");
    char *text = read_text("run/metrics.jsonl"), *last = strstr(text, "{\"kind\": \"checkpoint\"");
    assert_non_null(last);
    char *end = strchr(last, '\n') + 1;
    memmove(last, end, strlen(end) + 1);
    write_text("run/metrics.jsonl", text);
    free(text);
    assert_int_equal(count_records("run", "checkpoint"), 0);
    train_good("run=run stop_at=6");
    assert_int_equal(count_records("run", "checkpoint"), 2);
    assert_int_equal(recorded("run", "checkpoint", 0, "step"), 4);
    train_good("run=run stop_at=8");
    assert_int_equal(count_records("run", "checkpoint"), 3);
}

static void a_store_that_cannot_be_is_refused_before_the_first_step(void **state) {
    (void)state;
    unsetenv("AWS_ACCESS_KEY_ID");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    train_says(ERROR_USAGE, "no S3 credentials", "run=run checkpoint.store=s3://bucket/run");
    train_says(ERROR_USAGE, "is no name of a bucket", "run=run checkpoint.store=s3://key:secret@bucket/run");
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(waiting_for_saves_gives_the_same_checkpoints),
        TRAIN_TEST(sharing_unchanged_files_gives_the_same_checkpoints),
        TRAIN_TEST(another_folder_holds_the_checkpoints_and_an_empty_run_folder_continues_from_it),
        TRAIN_TEST(each_save_reports_its_rate_and_how_long_training_stood_still),
        TRAIN_TEST(a_save_that_fails_is_a_warning_and_the_next_one_counts),
        TRAIN_TEST(readers_follow_a_run_whose_checkpoints_vanish),
        TRAIN_TEST(only_the_training_calls_a_save_half_written),
        TRAIN_TEST(a_checkpoint_without_a_record_gets_one_when_the_run_goes_on),
        TRAIN_TEST(a_store_that_cannot_be_is_refused_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
