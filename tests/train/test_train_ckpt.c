/* End to end: where `smelt train` puts checkpoints and how it goes on when one cannot be saved. */
#include <fcntl.h>
#include <sys/stat.h>

#include "support/mentions.h"
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
    train_says(ERROR_NONE, "/s; training paused", "run=run checkpoint.every=10");
    train_says(ERROR_NONE, "checkpoint step 50", "run=more steps=50");
}

static void a_save_that_fails_is_a_warning_and_the_next_one_counts(void **state) {
    (void)state;
    assert_int_equal(mkdir("run", 0777), 0);
    assert_int_equal(mkdir("run/checkpoints", 0777), 0);
    /* a file with the name of the checkpoint's folder: a rename cannot replace it */
    int file = open("run/checkpoints/step-00000010", O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    assert_true(file >= 0);
    close(file);
    train_says(ERROR_NONE, "checkpoint 10 saved", "run=run checkpoint.every=10");
    assert_true(has_checkpoint("run", 40));
}

/* With one checkpoint kept and a save at every step, checkpoints vanish between listing and reading. */
static void readers_follow_a_run_whose_checkpoints_vanish(void **state) {
    (void)state;
    enum { READS = 60 };
    Process training = train_start("run=run steps=1000000000 checkpoint.every=1 checkpoint.keep=1");
    process_await_text(&training, "checkpoint step 2", 1);
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
    train_says(ERROR_NONE, "step-00000003.partial-7", "run=run stop_at=3");
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

/* A run folder whose store was removed, or is not mounted. */
static void a_run_whose_checkpoints_vanished_does_not_begin_again_by_itself(void **state) {
    (void)state;
    static const char *const gone[] = {"run", "elsewhere"}, *const stores[] = {"", "checkpoint.store=elsewhere"};
    for (int i = 0; i < 2; i++) {
        Error error = {0};
        train_good("run=run %s stop_at=4 checkpoint.every=2", stores[i]);
        char *records = read_text("run/metrics.jsonl"), *folder = memory_format("%s/checkpoints", gone[i]);
        assert_true(file_remove(folder, &error));
        train_says(ERROR_CHECKPOINT, "records of run checkpoint 4", "run=run %s", stores[i]);
        train_says(ERROR_CHECKPOINT, "step 0, set resume.accept=checkpoints", "run=run %s", stores[i]);
        char *after = read_text("run/metrics.jsonl");
        assert_string_equal(after, records);
        static const char *const readers[] = {"generate run the tokens=1", "generate run@best the tokens=1", "generate run@4 the tokens=1",
            "convert run out", "eval run text"};
        for (size_t j = 0; j < sizeof readers / sizeof *readers; j++)
            smelt_says(ERROR_CHECKPOINT, "records of run checkpoint of step 4", "%s", readers[j]);
        smelt_says(ERROR_NONE, "none: records of run checkpoint of step 4", "show run");
        train_good("run=run %s stop_at=2 resume.accept=checkpoints", stores[i]);
        assert_int_equal(count_records("run", "checkpoint"), 1);
        assert_true(file_remove("run", &error) && file_remove("elsewhere", &error));
        free(folder);
        free(records);
        free(after);
    }
}

/* A link to itself stands for a disk that fails: the manifest is there and cannot be read. */
static void a_start_does_not_pass_over_a_checkpoint_that_cannot_be_read_now(void **state) {
    (void)state;
    static const char manifest[] = "run/checkpoints/step-00000004/manifest.json";
    train_good("run=run stop_at=4 checkpoint.every=2");
    assert_int_equal(rename(manifest, "kept"), 0);
    assert_int_equal(symlink("manifest.json", manifest), 0);
    train_says(ERROR_CHECKPOINT, "checkpoint step 4", "run=run stop_at=6");
    assert_int_equal(rename("kept", manifest), 0);
    train_says(ERROR_NONE, "after step 4", "run=run stop_at=6");
}

/* Two ranks, of which the second may write files of so many bytes at most; its messages go through a pipe, so that they
 * are whole. */
static void train_pair(const char *limit, const char *settings, ProcessResult results[2]) {
    int port = process_free_port();
    Process ranks[2] = {rank_start(0, port, settings)};
    write_text("limited", "set -o pipefail; prlimit --fsize=$1 \"${@:2}\" 2>&1 | cat >&2\n");
    char *words =
        memory_format("limited %s /usr/bin/env RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=%d %s train %s %s", limit,
            port, getenv("SMELT"), TINY, settings);
    ranks[1] = words_start("/bin/bash", words);
    for (int i = 0; i < 2; i++) results[i] = process_finish(&ranks[i]);
    free(words);
}

/* Its way to rank 0 is not the store, which it cannot write: nobody waits for checkpoint.timeout, half an hour. */
static void a_rank_that_cannot_write_its_shard_is_known_to_rank_0_at_once(void **state) {
    (void)state;
    ProcessResult results[2];
    train_pair("4096", "run=run steps=6 checkpoint.every=3", results);
    expect_code(&results[0], ERROR_CHECKPOINT, "rank 0");
    expect_code(&results[1], ERROR_CHECKPOINT, "rank 1");
    assert_mentions(results[0].errors, "checkpoint 3 saved");
    assert_mentions(results[0].errors, "rank 1: ");
    assert_mentions(results[0].errors, "File too large");
    for (int i = 0; i < 2; i++) process_free(&results[i]);
}

static void a_rank_that_cannot_write_at_all_is_named_before_the_first_step(void **state) {
    (void)state;
    ProcessResult results[2];
    train_pair("0", "run=run steps=6 checkpoint.every=3", results);
    expect_code(&results[0], ERROR_CHECKPOINT, "rank 0");
    expect_code(&results[1], ERROR_CHECKPOINT, "rank 1");
    assert_mentions(results[1].errors, "rank 1 on ");
    assert_mentions(results[1].errors, "checkpoints");
    for (int i = 0; i < 2; i++) process_free(&results[i]);
}

static void a_store_that_cannot_be_is_refused_before_the_first_step(void **state) {
    (void)state;
    unsetenv("AWS_ACCESS_KEY_ID");
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent", 1);
    setenv("AWS_CONFIG_FILE", "/nonexistent", 1);
    train_says(ERROR_USAGE, "no S3 credentials", "run=run checkpoint.store=s3://bucket/run");
    train_says(ERROR_USAGE, "bucket", "run=run checkpoint.store=s3://key:secret@bucket/run");
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
        TRAIN_TEST(a_run_whose_checkpoints_vanished_does_not_begin_again_by_itself),
        TRAIN_TEST(a_start_does_not_pass_over_a_checkpoint_that_cannot_be_read_now),
        TRAIN_TEST(a_rank_that_cannot_write_its_shard_is_known_to_rank_0_at_once),
        TRAIN_TEST(a_rank_that_cannot_write_at_all_is_named_before_the_first_step),
        TRAIN_TEST(a_store_that_cannot_be_is_refused_before_the_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
