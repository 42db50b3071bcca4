/* Checkpoints in a bucket, against a real S3 server (tests/support/s3_server.py) that each group of tests starts;
 * where its packages are missing the tests are skipped. What is tested is what a bucket does differently from a
 * folder: signed requests, parts, listings, copies, and a server that dies. */
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/scope.h"
#include "ckpt/store_internal.h"
#include "support/ckpt_fixture.h"
#include "support/mentions.h"
#include "support/s3_server.h"
#include "support/train_run.h"

#define NAME "some prefix"
static const char WHERE[] = "s3://smelt-tests/" NAME "/run+1";

/* -- A tensor whose bytes tell where they are ---------------------------------------------------------------------- */

typedef struct Tensor {
    uint32_t *values;
    Interval interval;
} Tensor;

static Tensor tensor_new(const char *name, int64_t count, uint32_t seed) {
    Tensor tensor = {.values = memory_allocate((size_t)count * sizeof *tensor.values)};
    for (int64_t i = 0; i < count; i++) tensor.values[i] = (uint32_t)i * 2654435761u + seed;
    tensor.interval =
        (Interval){.name = name, .type = STORED_F32, .rank = 1, .shape = {count}, .slice.count = count, .data = tensor.values};
    return tensor;
}

static void save_good(int64_t step, const Interval *intervals, size_t count, int keep) {
    Error error = {0};
    if (!checkpoint_save(WHERE, step, intervals, count, NULL, keep, NULL, &error)) fail_msg("%s", error.message);
}

static void assert_loads(int64_t step, const Tensor *tensor, int64_t first, int64_t count) {
    Error error = {0};
    uint32_t *loaded = memory_allocate((size_t)count * sizeof *loaded);
    Interval wanted = tensor->interval;
    wanted.slice.first = first, wanted.slice.count = count, wanted.data = loaded;
    if (!checkpoint_load(WHERE, step, &wanted, 1, NULL, &error)) fail_msg("%s", error.message);
    assert_memory_equal(loaded, tensor->values + first, (size_t)count * sizeof *loaded);
    free(loaded);
}

static size_t object_count_in(const char *where, const char *folder) {
    Error error = {0};
    FileList listing;
    Store *store = store_open(where, &error);
    assert_non_null(store);
    if (!store_list(store, folder, &listing, &error)) fail_msg("%s", error.message);
    size_t count = listing.count;
    file_list_free(&listing);
    store_close(store);
    return count;
}

static size_t object_count(const char *folder) { return object_count_in(WHERE, folder); }

/* -- Tests --------------------------------------------------------------------------------------------------------- */

enum { SMALL = 1000, LARGE = 9 << 19 /* 18 MiB: two parts */ };

static void small_and_large_checkpoints_come_back_whole_and_in_part(void **state) {
    (void)state;
    Tensor tensors[2] = {tensor_new("small", SMALL, 1), tensor_new("large", LARGE, 2)};
    Interval intervals[2] = {tensors[0].interval, tensors[1].interval};
    save_good(1, intervals, 2, 2);
    assert_int_equal(latest_good(WHERE), 1);
    assert_loads(1, &tensors[0], 0, SMALL);
    assert_loads(1, &tensors[1], 0, LARGE);
    assert_loads(1, &tensors[1], LARGE / 3, LARGE / 2);
    assert_int_equal(object_count("checkpoints/step-00000001"), 2);
    free(tensors[0].values);
    free(tensors[1].values);
}

static void the_newest_ones_are_kept_and_a_step_is_replaced(void **state) {
    (void)state;
    Tensor old = tensor_new("v", SMALL, 1), new = tensor_new("v", SMALL, 7);
    for (int64_t step = 1; step <= 4; step++) save_good(step, &old.interval, 1, 2);
    assert_int_equal(object_count("checkpoints"), 2);
    CheckpointPlan again = {.where = WHERE, .step = 4, .intervals = &new.interval, .count = 1, .keep = 2, .ranks = 1, .attempt = 99};
    Error error = {0};
    assert_true(checkpoint_write(&again, NULL, &error));
    assert_loads(4, &new, 0, SMALL);
    assert_loads(3, &old, 0, SMALL);
    assert_int_equal(object_count("checkpoints/step-00000004"), 2);
    free(old.values);
    free(new.values);
}

static void unchanged_parts_are_copied_by_the_server(void **state) {
    (void)state;
    Tensor still = tensor_new("still", LARGE, 1), moving = tensor_new("moving", SMALL, 2);
    Interval intervals[2] = {still.interval, moving.interval};
    Error error = {0};
    CheckpointStats stats = {0};
    for (int64_t step = 1; step <= 3; step++) {
        moving.values[0] = (uint32_t)step;
        CheckpointPlan plan = {.where = WHERE,
            .step = step,
            .intervals = intervals,
            .count = 2,
            .keep = 1,
            .ranks = 1,
            .attempt = (uint64_t)step,
            .share = true};
        if (!checkpoint_write(&plan, &stats, &error)) fail_msg("%s", error.message);
        assert_int_equal(stats.shared, step == 1 ? 0 : LARGE * sizeof(uint32_t));
    }
    assert_int_equal(object_count("checkpoints"), 1);
    assert_int_equal(latest_good(WHERE), 3);
    assert_loads(3, &still, 0, LARGE);
    assert_loads(3, &moving, 0, SMALL);
    free(still.values);
    free(moving.values);
}

static void several_ranks_write_one_checkpoint(void **state) {
    (void)state;
    enum { RANKS = 3 };
    Tensor tensor = tensor_new("v", LARGE, 3);
    CheckpointJob *jobs[RANKS];
    Interval parts[RANKS];
    Error error = {0};
    for (int r = 0; r < RANKS; r++) {
        parts[r] = tensor.interval;
        parts[r].slice.first = (int64_t)LARGE * r / RANKS;
        parts[r].slice.count = (int64_t)LARGE * (r + 1) / RANKS - parts[r].slice.first;
        parts[r].data = tensor.values + parts[r].slice.first;
        jobs[r] = checkpoint_start(&(CheckpointPlan){.where = WHERE,
            .step = 1,
            .intervals = &parts[r],
            .count = 1,
            .keep = 1,
            .rank = r,
            .ranks = RANKS,
            .attempt = 5,
            .timeout = 600});
    }
    for (int r = 0; r < RANKS; r++)
        if (!checkpoint_finish(jobs[r], NULL, &error)) fail_msg("%s", error.message);
    assert_int_equal(object_count("checkpoints/step-00000001"), RANKS + 1);
    assert_loads(1, &tensor, 0, LARGE);
    free(tensor.values);
}

static void a_server_that_dies_in_mid_upload_costs_only_the_new_checkpoint(void **state) {
    (void)state;
    Tensor tensor = tensor_new("v", LARGE, 4);
    Error error = {0};
    save_good(1, &tensor.interval, 1, 2);
    setenv("AWS_MAX_ATTEMPTS", "2", 1);
    CheckpointPlan plan = {.where = WHERE, .step = 2, .intervals = &tensor.interval, .count = 1, .keep = 2, .ranks = 1, .attempt = 8};
    kill(server.process, SIGSTOP); /* or a fast machine would have the whole upload behind it by then */
    CheckpointJob *job = checkpoint_start(&plan);
    nanosleep(&(struct timespec){.tv_nsec = 150000000}, NULL);
    server_stop();
    assert_false(checkpoint_finish(job, NULL, &error));
    assert_message(&error, "step 2 saved");
    unsetenv("AWS_MAX_ATTEMPTS");
    server_start();
    assert_int_equal(latest_good(WHERE), 1);
    assert_loads(1, &tensor, 0, LARGE);
    save_good(3, &tensor.interval, 1, 2);
    assert_int_equal(latest_good(WHERE), 3);
    assert_int_equal(object_count("checkpoints"), 2);
    free(tensor.values);
}

static void a_server_that_comes_back_in_time_costs_nothing(void **state) {
    (void)state;
    Tensor tensor = tensor_new("v", LARGE, 6);
    Error error = {0};
    CheckpointPlan plan = {.where = WHERE, .step = 1, .intervals = &tensor.interval, .count = 1, .keep = 2, .ranks = 1, .attempt = 9};
    setenv("AWS_MAX_ATTEMPTS", "100", 1); /* however long the server takes to start */
    CheckpointJob *job = checkpoint_start(&plan);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    server_stop();
    server_start();
    if (!checkpoint_finish(job, NULL, &error)) fail_msg("%s", error.message);
    unsetenv("AWS_MAX_ATTEMPTS");
    assert_loads(1, &tensor, 0, LARGE);
    free(tensor.values);
}

/* Pauses between attempts take no time while a test says so. */
static bool hurries;
int nanosleep(const struct timespec *time, struct timespec *left) { return hurries ? 0 : (int)syscall(SYS_nanosleep, time, left); }

/* None of these answers of a server says that a checkpoint is bad. 404 is of objects that its listing names. */
static void objects_that_the_server_does_not_give_now_are_kept(void **state) {
    Fixture *fixture = *state;
    static const char *const objects[] = {"manifest.json", "shard-*"}, *const answers[] = {"404", "403", "503", "500", "400"};
    Tensor tensor = tensor_new("v", SMALL, 1);
    hurries = true;
    setenv("AWS_MAX_ATTEMPTS", "1", 1);
    for (size_t i = 0; i < 10; i++) {
        SCOPED_FREE char *key = memory_format("*/%s", objects[i / 5]), *older = memory_format("*/step-0000000[123]/%s", objects[i / 5]);
        Error error = {0};
        bool failed;
        for (int64_t step = 1; step <= 2; step++) save_good(step, &tensor.interval, 1, 9);
        server_refuse(NAME, key, answers[i % 5]);
        save_good(3, &tensor.interval, 1, 1);
        assert_true(warned(fixture, "checkpoint 3 written"));
        server_accept(NAME);
        assert_int_equal(object_count("checkpoints"), 3);
        for (int64_t step = 1; step <= 3; step++) assert_loads(step, &tensor, 0, SMALL);
        server_refuse(NAME, older, answers[i % 5]);
        save_good(4, &tensor.interval, 1, 2);
        assert_true(warned(fixture, "step"));
        server_accept(NAME);
        assert_int_equal(object_count("checkpoints"), 4);
        assert_int_equal(checkpoint_latest(WHERE, &failed, &error), 4);
        save_good(5, &tensor.interval, 1, 1);
        assert_int_equal(object_count("checkpoints"), 1);
        Store *store = store_open(WHERE, &error);
        assert_true(store_remove(store, "checkpoints", &error));
        store_close(store);
    }
    unsetenv("AWS_MAX_ATTEMPTS");
    hurries = false;
    free(tensor.values);
}

static void a_bucket_that_may_not_be_read_is_refused_before_the_first_step(void **state) {
    Error error = {0};
    hurries = true;
    server_refuse(NAME, "*probe*", "503");
    assert_false(checkpoint_probe(WHERE, 0, &error));
    assert_true(warned(*state, "server answered 503 3"));
    hurries = false;
    setenv("AWS_MAX_ATTEMPTS", "1", 1);
    server_refuse(NAME, "*probe*", "403");
    assert_false(checkpoint_probe(WHERE, 0, &error));
    assert_message(&error, "written");
    server_accept(NAME);
    assert_true(checkpoint_probe(WHERE, 0, &error));
    unsetenv("AWS_MAX_ATTEMPTS");
}

/* Takes one connection and hangs up after 7 s. */
static void *stay_silent(void *listener) {
    int peer = accept(*(int *)listener, NULL, NULL);
    sleep(7);
    close(peer);
    close(*(int *)listener);
    return NULL;
}

static void a_server_that_stays_silent_is_named_while_it_is_waited_for(void **state) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pthread_t thread;
    Error error = {0};
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(pthread_create(&thread, NULL, stay_silent, &listener), 0);
    SCOPED_FREE char *endpoint = memory_copy_string(getenv("AWS_ENDPOINT_URL")),
                     *silent = memory_format("http://127.0.0.1:%d", ntohs(address.sin_port));
    setenv("AWS_ENDPOINT_URL", silent, 1);
    setenv("AWS_MAX_ATTEMPTS", "1", 1);
    assert_false(checkpoint_probe(WHERE, 0, &error));
    pthread_join(thread, NULL);
    setenv("AWS_ENDPOINT_URL", endpoint, 1);
    unsetenv("AWS_MAX_ATTEMPTS");
    assert_true(warned(*state, "server answered 5"));
}

static void wrong_secrets_are_refused_and_not_printed(void **state) {
    Fixture *fixture = *state;
    Error error = {0};
    Tensor tensor = tensor_new("v", SMALL, 1);
    setenv("AWS_SECRET_ACCESS_KEY", "hunter2-is-wrong", 1);
    assert_false(checkpoint_save(WHERE, 1, &tensor.interval, 1, NULL, 1, NULL, &error));
    setenv("AWS_SECRET_ACCESS_KEY", "testing", 1);
    assert_message(&error, "403");
    assert_null(strstr(error.message, "hunter2"));
    assert_null(strstr(error.message, "test:tester"));
    assert_false(warned(fixture, "hunter2"));
    free(tensor.values);
}

static void credentials_come_from_the_files_of_the_profile(void **state) {
    Fixture *fixture = *state;
    char *credentials = memory_format("%s/credentials", fixture->folder), *config = memory_format("%s/config", fixture->folder);
    char *endpoint = memory_copy_string(getenv("AWS_ENDPOINT_URL")), *text;
    static const char keys[] =
        "[default]\naws_access_key_id = nobody\n[tests]\naws_access_key_id=test:tester\n aws_secret_access_key = nested\n"
        "aws_secret_access_key = testing\n";
    text = memory_format("[profile tests]\nregion = us-east-1\nendpoint_url = %s/\n", endpoint);
    fixture_write(credentials, keys, sizeof keys - 1);
    fixture_write(config, text, strlen(text));
    unsetenv("AWS_ACCESS_KEY_ID"), unsetenv("AWS_SECRET_ACCESS_KEY"), unsetenv("AWS_ENDPOINT_URL");
    setenv("AWS_SHARED_CREDENTIALS_FILE", credentials, 1), setenv("AWS_CONFIG_FILE", config, 1), setenv("AWS_PROFILE", "tests", 1);
    Tensor tensor = tensor_new("v", SMALL, 1);
    save_good(1, &tensor.interval, 1, 1);
    assert_loads(1, &tensor, 0, SMALL);
    setenv("AWS_PROFILE", "absent", 1);
    Error error = {0};
    assert_null(store_open(WHERE, &error));
    assert_int_equal(error.code, ERROR_USAGE);
    assert_mentions(error.message, "no S3 credentials");
    unsetenv("AWS_SHARED_CREDENTIALS_FILE"), unsetenv("AWS_CONFIG_FILE"), unsetenv("AWS_PROFILE");
    setenv("AWS_ACCESS_KEY_ID", "test:tester", 1), setenv("AWS_SECRET_ACCESS_KEY", "testing", 1), setenv("AWS_ENDPOINT_URL", endpoint, 1);
    free(credentials), free(config), free(endpoint), free(text), free(tensor.values);
}

static void a_missing_bucket_is_named(void **state) {
    (void)state;
    Error error = {0};
    Tensor tensor = tensor_new("v", SMALL, 1);
    assert_false(checkpoint_save("s3://smelt-absent/run", 1, &tensor.interval, 1, NULL, 1, NULL, &error));
    assert_message(&error, "s3://smelt-absent/run");
    assert_message(&error, "NoSuchBucket");
    free(tensor.values);
}

static void a_run_keeps_the_best_and_every_so_many_and_finds_the_best_by_name(void **state) {
    static const char where[] = "s3://smelt-tests/trained";
    Fixture *fixture = *state;
    char folder[PATH_MAX];
    assert_non_null(getcwd(folder, sizeof folder));
    assert_int_equal(chdir(fixture->folder), 0);
    write_corpus("text", 10000);
    SCOPED_FREE char *settings = memory_format("run=trained checkpoint.store=%s steps=20 eval.sequences=8 checkpoint.every=5 "
                                               "checkpoint.keep=1 checkpoint.keep_every=10 checkpoint.keep_best=true",
        where);
    train_to_best(settings);
    train_good("%s " RISING, settings);
    const int kept[] = {BEST, 10, 20};
    ProcessResult shown = smelt("show trained");
    for (int i = 0; i < 3; i++) {
        char *line = memory_format("  step %d, ", kept[i]);
        if (!strstr(shown.output, line)) fail_msg("no '%s' in:\n%s", line, shown.output);
        free(line);
    }
    process_free(&shown);
    char *words = memory_format("eval trained@%d text json=true", BEST);
    ProcessResult chosen = smelt(words), named = smelt("eval trained@best text json=true"), last = smelt("eval trained text json=true");
    assert_string_equal(named.output, chosen.output);
    assert_string_not_equal(named.output, last.output);
    process_free(&chosen), process_free(&named), process_free(&last);
    free(words);
    assert_int_equal(object_count_in(where, "checkpoints"), 3);
    assert_int_equal(chdir(folder), 0);
}

/* -- Setup --------------------------------------------------------------------------------------------------------- */

static int setup(void **state) {
    Error error = {0};
    server_need();
    Store *store = store_open(WHERE, &error);
    bool removed = store && store_remove(store, "checkpoints", &error);
    store_close(store);
    if (!removed) fail_msg("%s", error.message);
    return fixture_setup(state);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TEST(small_and_large_checkpoints_come_back_whole_and_in_part),
        TEST(the_newest_ones_are_kept_and_a_step_is_replaced),
        TEST(unchanged_parts_are_copied_by_the_server),
        TEST(several_ranks_write_one_checkpoint),
        TEST(a_server_that_dies_in_mid_upload_costs_only_the_new_checkpoint),
        TEST(a_server_that_comes_back_in_time_costs_nothing),
        TEST(objects_that_the_server_does_not_give_now_are_kept),
        TEST(a_bucket_that_may_not_be_read_is_refused_before_the_first_step),
        TEST(a_server_that_stays_silent_is_named_while_it_is_waited_for),
        TEST(wrong_secrets_are_refused_and_not_printed),
        TEST(credentials_come_from_the_files_of_the_profile),
        TEST(a_missing_bucket_is_named),
        TEST(a_run_keeps_the_best_and_every_so_many_and_finds_the_best_by_name),
    };
    return cmocka_run_group_tests(tests, server_setup, server_teardown);
}
