/* `smelt train data.train=s3://...` against a real S3 server (tests/support/s3_server.py): the same bits as from a local
 * copy, by one rank and by two, and through a process that is killed; and the data exit code with a checkpoint when the
 * server stays away. */
#include "support/mentions.h"
#include "support/s3_server.h"
#include "support/train_run.h"

#define LOCAL "data.train=local data.valid=valid"
#define REMOTE "data.train=s3://smelt-tests/local data.valid=s3://smelt-tests/valid data.cache_mib=64"
#define SETTINGS "model.vocabulary=257 eval.every=20 checkpoint.every=10"

static void upload(const char *folder) {
    Error error = {0};
    FileList list;
    assert_true(file_list(folder, &list, &error));
    for (size_t i = 0; i < list.count; i++) {
        char *path = memory_format("%s/%s", folder, list.entries[i].name);
        if (list.entries[i].kind == FILE_FOLDER) upload(path);
        else server_put_file(path, path);
        free(path);
    }
    file_list_free(&list);
}

static char *folder; /* of all tests */

/* Many more blocks than are fetched ahead. */
static int group_setup(void **state) {
    if (server_setup(state) != 0 || enter_folder((void **)&folder) != 0) return -1;
    if (!server.port) return 0;
    write_corpus("text", 600000);
    write_corpus("few", 5000);
    smelt_good("data pack text local shard_tokens=1500000");
    smelt_good("data pack few valid shard_tokens=1500000");
    upload("local");
    upload("valid");
    train_good("run=local-run " LOCAL " " SETTINGS);
    return 0;
}

static int group_teardown(void **state) { return leave_folder((void **)&folder) || server_teardown(state) ? -1 : 0; }

static int setup(void **state) {
    (void)state;
    server_need();
    return 0;
}

static void a_bucket_trains_the_same_bits_as_a_local_copy(void **state) {
    (void)state;
    train_says(0, "s3:// 0", "run=remote-run " REMOTE " " SETTINGS);
    assert_same_steps("local-run", "remote-run");
    assert_true(same_checkpoint("local-run", "remote-run", 40));
    assert_true(recorded("local-run", "evaluation", -1, "loss") == recorded("remote-run", "evaluation", -1, "loss"));
}

static void two_ranks_share_a_cache(void **state) {
    (void)state;
    static const char *const settings[] = {"run=local-two " LOCAL " " SETTINGS, "run=remote-two " REMOTE " " SETTINGS};
    for (int i = 0; i < 2; i++) {
        int port = process_free_port();
        Process ranks[2] = {rank_start(0, port, settings[i]), rank_start(1, port, settings[i])};
        for (int r = 0; r < 2; r++) {
            ProcessResult result = process_finish(&ranks[r]);
            expect_code(&result, 0, settings[i]);
            process_free(&result);
        }
    }
    assert_same_steps("local-two", "remote-two");
}

static void a_process_that_is_killed_while_it_fetches_goes_on_with_its_cache(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        Process process = train_start("run=killed-run " REMOTE " " SETTINGS);
        process_await_steps(&process, 2);
        kill(process.id, SIGKILL);
        ProcessResult result = process_finish(&process);
        process_free(&result);
    }
    train_good("run=killed-run " REMOTE " " SETTINGS);
    assert_true(same_checkpoint("local-run", "killed-run", 40));
}

static void a_server_that_stays_away_ends_training_with_a_checkpoint(void **state) {
    (void)state;
    Process process = train_start("run=away-run data.patience=2 checkpoint.every=1000 " REMOTE " model.vocabulary=257 eval.every=20");
    process_await_steps(&process, 1);
    server_stop();
    ProcessResult result = process_finish(&process);
    server_start();
    expect_code(&result, ERROR_DATA, "without a server");
    if (!mentions(result.errors, "s3://smelt-tests/local")) fail_msg("%s", result.errors);
    process_free(&result);
    assert_true(count_records("away-run", "step") < 40);
    train_good("run=away-run checkpoint.every=10 " REMOTE " model.vocabulary=257 eval.every=20");
    assert_same_steps("local-run", "away-run"); /* none was lost */
    assert_true(same_checkpoint("local-run", "away-run", 40));
}

static void a_signal_ends_the_wait_for_a_server(void **state) {
    (void)state;
    Process process = train_start("run=paused-run data.patience=100000 checkpoint.every=1000 " REMOTE " model.vocabulary=257");
    process_await_steps(&process, 1);
    server_stop();
    process_await_text(&process, "answer", 1);
    kill(process.id, SIGTERM);
    ProcessResult result = process_finish(&process);
    server_start();
    expect_code(&result, ERROR_PREEMPTED, "a signal without a server");
    process_free(&result);
    assert_true(count_records("paused-run", "checkpoint") == 1);
}

static void documents_are_held_out_of_a_bucket(void **state) {
    (void)state;
    FILE *file = fopen("lines.jsonl", "w");
    for (int i = 0; i < 20000; i++) fprintf(file, "{\"text\": \"x%d = f(%d);\"}\n", i % 9973, i * 31 % 101);
    assert_int_equal(fclose(file), 0);
    smelt_good("data pack lines.jsonl lines shard_tokens=150000");
    upload("lines");
    train_good("run=local-part data.train=lines data.valid_documents=0.1 " SETTINGS);
    train_good("run=remote-part data.train=s3://smelt-tests/lines data.valid_documents=0.1 " SETTINGS);
    assert_same_steps("local-part", "remote-part");
    assert_true(recorded("local-part", "evaluation", -1, "loss") == recorded("remote-part", "evaluation", -1, "loss"));
}

/* Texts in a bucket are packed into the run, as local ones are. */
static void texts_in_a_bucket_train_the_same_bits(void **state) {
    (void)state;
    server_put_file("text", "texts/a.txt");
    server_put_file("few", "texts/b.txt");
    assert_int_equal(mkdir("texts", 0777), 0);
    assert_int_equal(system("cp text texts/a.txt && cp few texts/b.txt"), 0);
    train_good("run=local-texts data.train=texts data.valid=few " SETTINGS);
    train_good("run=remote-texts data.train=s3://smelt-tests/texts data.valid=s3://smelt-tests/texts/b.txt " SETTINGS);
    assert_same_steps("local-texts", "remote-texts");
    assert_true(same_checkpoint("local-texts", "remote-texts", 40));
    server_stop();
    train_says(0, "s3://smelt-tests/texts does not answer",
        "run=remote-texts data.train=s3://smelt-tests/texts data.valid=s3://smelt-tests/texts/b.txt steps=44 " SETTINGS);
    server_start();
    smelt_says(ERROR_DATA, "s3://smelt-tests/none contains neither", "train " TINY " run=none data.train=s3://smelt-tests/none");
}

#define TEST(name) cmocka_unit_test_setup(name, setup)

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TEST(a_bucket_trains_the_same_bits_as_a_local_copy),
        TEST(two_ranks_share_a_cache),
        TEST(a_process_that_is_killed_while_it_fetches_goes_on_with_its_cache),
        TEST(a_server_that_stays_away_ends_training_with_a_checkpoint),
        TEST(texts_in_a_bucket_train_the_same_bits),
        TEST(documents_are_held_out_of_a_bucket),
        TEST(a_signal_ends_the_wait_for_a_server),
    };
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
