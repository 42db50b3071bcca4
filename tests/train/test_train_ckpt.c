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
        TRAIN_TEST(a_store_that_cannot_be_is_refused_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
