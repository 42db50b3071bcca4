/* Checkpoints of several ranks, saved by threads while others go on, and checkpoints that share what did not change.
 * Ranks are jobs of one process here: they exchange nothing but files, so they cannot tell the difference. Run with
 * `--save-forever RUN`, the program is the victim of the kill test. */
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "support/ckpt_fixture.h"

enum { MOST_RANKS = 8, ELEMENTS = 1003, LARGE = 20 << 20 };

/* -- Ranks --------------------------------------------------------------------------------------------------------- */

static Interval whole_of(uint32_t *values, int64_t count) {
    return (Interval){.name = "v", .type = STORED_F32, .rank = 1, .shape = {count}, .slice.count = count, .data = values};
}

static Interval part_of(const Interval *whole, int rank, int ranks) {
    Interval part = *whole;
    part.slice.first = whole->slice.count * rank / ranks;
    part.slice.count = whole->slice.count * (rank + 1) / ranks - part.slice.first;
    part.data = (uint32_t *)whole->data + part.slice.first;
    return part;
}

/* Saves an interval by `ranks` of which `absent` (or -1) never comes; returns what rank 0 says. */
static bool save_by_ranks(const char *run, int64_t step, uint64_t attempt, const Interval *whole, int ranks, int absent, Error *error) {
    CheckpointJob *jobs[MOST_RANKS] = {0};
    Interval parts[MOST_RANKS];
    bool saved = false;
    for (int r = ranks - 1; r >= 0; r--) {
        parts[r] = part_of(whole, r, ranks);
        CheckpointPlan plan = {.where = run,
            .step = step,
            .intervals = &parts[r],
            .count = 1,
            .keep = 2,
            .rank = r,
            .ranks = ranks,
            .attempt = attempt,
            .timeout = absent < 0 ? 600 : 0.2};
        if (r != absent) jobs[r] = checkpoint_start(&plan);
    }
    for (int r = 0; r < ranks; r++) {
        Error own = {0};
        bool good = jobs[r] && checkpoint_finish(jobs[r], NULL, &own);
        if (r == 0) {
            saved = good;
            *error = own;
        }
    }
    return saved;
}

static void load_by_ranks(const char *run, int64_t step, const uint32_t *expected, int64_t count, int ranks) {
    uint32_t *loaded = memory_allocate((size_t)count * sizeof *loaded);
    Interval whole = whole_of(loaded, count);
    for (int r = 0; r < ranks; r++) {
        Interval part = part_of(&whole, r, ranks);
        Error error = {0};
        if (!checkpoint_load(run, step, &part, 1, NULL, &error)) fail_msg("%d ranks: %s", ranks, error.message);
    }
    assert_memory_equal(loaded, expected, (size_t)count * sizeof *loaded);
    free(loaded);
}

static uint32_t *values_new(int64_t count, uint32_t seed) {
    uint32_t *values = memory_allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = (uint32_t)i * 2654435761u + seed;
    return values;
}

/* -- Several ranks ------------------------------------------------------------------------------------------------- */

static const int rank_counts[] = {1, 2, 3, 4, 8};
enum { RANK_COUNTS = sizeof rank_counts / sizeof rank_counts[0] };

static void any_number_of_ranks_loads_what_any_other_number_saved(void **state) {
    Fixture *fixture = *state;
    for (int i = 0; i < RANK_COUNTS; i++) {
        uint32_t *values = values_new(ELEMENTS, (uint32_t)i);
        Interval whole = whole_of(values, ELEMENTS);
        Error error = {0};
        if (!save_by_ranks(fixture->run, i, 7, &whole, rank_counts[i], -1, &error)) fail_msg("%s", error.message);
        assert_int_equal(latest_good(fixture->run), i);
        for (int j = 0; j < RANK_COUNTS; j++) load_by_ranks(fixture->run, i, values, ELEMENTS, rank_counts[j]);
        free(values);
    }
}

static void only_shards_and_the_manifest_stay(void **state) {
    Fixture *fixture = *state;
    uint32_t *values = values_new(ELEMENTS, 1);
    Interval whole = whole_of(values, ELEMENTS);
    Error error = {0};
    assert_true(save_by_ranks(fixture->run, 1, 7, &whole, 3, -1, &error));
    static const char *const expected[] = {
        "manifest.json", "shard-00000-of-00003.safetensors", "shard-00001-of-00003.safetensors", "shard-00002-of-00003.safetensors"};
    for (int i = 0; i < 4; i++) {
        char *path = memory_format("%s/checkpoints/step-00000001/%s", fixture->run, expected[i]);
        assert_int_equal(unlink(path), 0);
        free(path);
    }
    char *folder = memory_format("%s/checkpoints/step-00000001", fixture->run);
    assert_int_equal(rmdir(folder), 0); /* fails if anything else is there */
    free(folder);
    free(values);
}

static void a_rank_that_never_writes_its_part_is_named_and_costs_only_the_new_checkpoint(void **state) {
    Fixture *fixture = *state;
    uint32_t *values = values_new(ELEMENTS, 1);
    Interval whole = whole_of(values, ELEMENTS);
    Error error = {0};
    assert_true(save_by_ranks(fixture->run, 1, 7, &whole, 3, -1, &error));
    assert_false(save_by_ranks(fixture->run, 2, 8, &whole, 3, 1, &error));
    assert_message(&error, "2 3 ranks within 0.2 1");
    assert_int_equal(latest_good(fixture->run), 1);
    assert_true(save_by_ranks(fixture->run, 2, 9, &whole, 3, -1, &error));
    assert_int_equal(latest_good(fixture->run), 2);
    free(values);
}

/* The process group carries a failure to rank 0, because the rank may be unable to reach the store. */
static void rank_0_gives_up_for_the_reason_of_a_rank_that_fails(void **state) {
    Fixture *fixture = *state;
    uint32_t *values = values_new(ELEMENTS, 1);
    Interval whole = whole_of(values, ELEMENTS), parts[2];
    CheckpointJob *jobs[2];
    Error error = {0};
    char *blocked = memory_format("%s/checkpoints/step-00000002.partial-8/shard-00001-of-00002.safetensors/x", fixture->run);
    assert_true(file_make_folder(blocked, &error)); /* a folder in the place of a file */
    for (int r = 0; r < 2; r++) {
        parts[r] = part_of(&whole, r, 2);
        jobs[r] = checkpoint_start(&(CheckpointPlan){.where = fixture->run,
            .step = 2,
            .intervals = &parts[r],
            .count = 1,
            .keep = 2,
            .rank = r,
            .ranks = 2,
            .attempt = 8,
            .timeout = 600});
    }
    while (!checkpoint_is_done(jobs[1])) usleep(1000);
    assert_null(checkpoint_failure(jobs[0]));
    checkpoint_give_up(jobs[0], checkpoint_failure(jobs[1])->message);
    assert_false(checkpoint_finish(jobs[0], NULL, &error));
    assert_message(&error, "shard-00001-of-00002.safetensors: Is a directory");
    assert_false(checkpoint_finish(jobs[1], NULL, &error));
    free(blocked);
    free(values);
}

static void parts_of_a_broken_attempt_are_not_mixed_into_the_next(void **state) {
    Fixture *fixture = *state;
    uint32_t *old = values_new(ELEMENTS, 1), *new = values_new(ELEMENTS, 2);
    Interval stale = whole_of(old, ELEMENTS), whole = whole_of(new, ELEMENTS);
    Error error = {0};
    assert_false(save_by_ranks(fixture->run, 5, 7, &stale, 2, 0, &error)); /* rank 1 leaves its part */
    assert_true(save_by_ranks(fixture->run, 5, 8, &whole, 2, -1, &error));
    load_by_ranks(fixture->run, 5, new, ELEMENTS, 1);
    free(old);
    free(new);
}

static void a_missing_shard_is_noticed_and_the_older_checkpoint_chosen(void **state) {
    Fixture *fixture = *state;
    uint32_t *values = values_new(ELEMENTS, 1);
    Interval whole = whole_of(values, ELEMENTS);
    Error error = {0};
    assert_true(save_by_ranks(fixture->run, 1, 7, &whole, 4, -1, &error));
    assert_true(save_by_ranks(fixture->run, 2, 8, &whole, 4, -1, &error));
    char *path = memory_format("%s/checkpoints/step-00000002/shard-00002-of-00004.safetensors", fixture->run);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(latest_good(fixture->run), 1);
    assert_true(warned(fixture, "shard-00002-of-00004.safetensors: No such file"));
    free(path);
    free(values);
}

static void a_rank_reads_only_the_files_that_it_needs(void **state) {
    Fixture *fixture = *state;
    uint32_t *values = values_new(ELEMENTS, 1), loaded[ELEMENTS];
    Interval whole = whole_of(values, ELEMENTS), target = whole_of(loaded, ELEMENTS);
    Error error = {0};
    assert_true(save_by_ranks(fixture->run, 1, 7, &whole, 4, -1, &error));
    char *path = memory_format("%s/checkpoints/step-00000001/shard-00003-of-00004.safetensors", fixture->run);
    assert_int_equal(unlink(path), 0);
    for (int r = 0; r < 4; r++) {
        Interval part = part_of(&target, r, 4);
        assert_int_equal(checkpoint_load(fixture->run, 1, &part, 1, NULL, &error), r < 3);
    }
    free(path);
    free(values);
}

/* -- Sharing ------------------------------------------------------------------------------------------------------- */

static bool save_sharing(const char *run, int64_t step, const Interval *intervals, size_t count, bool share, int64_t *shared) {
    CheckpointPlan plan = {.where = run,
        .step = step,
        .intervals = intervals,
        .count = count,
        .keep = 1,
        .ranks = 1,
        .attempt = (uint64_t)step,
        .share = share};
    CheckpointStats stats = {0};
    Error error = {0};
    bool saved = checkpoint_write(&plan, &stats, &error);
    if (!saved) fail_msg("%s", error.message);
    *shared = stats.shared;
    return saved;
}

static void what_did_not_change_is_shared_and_survives_its_first_checkpoint(void **state) {
    Fixture *fixture = *state;
    uint32_t *still = values_new(LARGE, 1), moving[3] = {0};
    Interval intervals[2] = {whole_of(still, LARGE), whole_of(moving, 3)};
    intervals[1].name = "moving";
    int64_t shared;
    for (int64_t step = 1; step <= 4; step++) {
        moving[0] = (uint32_t)step;
        save_sharing(fixture->run, step, intervals, 2, true, &shared);
        assert_int_equal(shared, step == 1 ? 0 : LARGE * sizeof *still);
    }
    assert_int_equal(latest_good(fixture->run), 4);
    load_by_ranks(fixture->run, 4, still, LARGE, 2);
    char *path = memory_format("%s/checkpoints/step-00000004/step-00000001-shard-00000-of-00001.safetensors", fixture->run);
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    int file = open(path, O_RDWR);
    char byte;
    assert_int_equal(pread(file, &byte, 1, status.st_size / 2), 1);
    byte ^= 4;
    assert_int_equal(pwrite(file, &byte, 1, status.st_size / 2), 1);
    close(file);
    Error error = {0};
    bool failed;
    checkpoint_latest(fixture->run, &failed, &error);
    assert_true(failed);
    assert_message(&error, "checksum");
    free(path);
    free(still);
}

static void a_file_of_which_little_is_left_is_not_shared(void **state) {
    Fixture *fixture = *state;
    uint32_t *values = values_new(LARGE, 1);
    Interval whole = whole_of(values, LARGE);
    int64_t shared;
    save_sharing(fixture->run, 1, &whole, 1, true, &shared);
    for (int64_t i = 0; i < LARGE * 3 / 4; i += 1000) values[i]++;
    save_sharing(fixture->run, 2, &whole, 1, true, &shared);
    assert_int_equal(shared, 0);
    load_by_ranks(fixture->run, 2, values, LARGE, 1);
    free(values);
}

static void a_whole_checkpoint_shares_nothing(void **state) {
    Fixture *fixture = *state;
    uint32_t *values = values_new(ELEMENTS, 1);
    Interval whole = whole_of(values, ELEMENTS);
    int64_t shared;
    save_sharing(fixture->run, 1, &whole, 1, true, &shared);
    save_sharing(fixture->run, 2, &whole, 1, false, &shared);
    assert_int_equal(shared, 0);
    save_sharing(fixture->run, 3, &whole, 1, true, &shared);
    assert_int_equal(shared, ELEMENTS * sizeof *values);
    load_by_ranks(fixture->run, 3, values, ELEMENTS, 3);
    free(values);
}

/* -- Kill ---------------------------------------------------------------------------------------------------------- */

enum { VICTIM_ELEMENTS = 1 << 16, VICTIM_RANKS = 3 };

static int save_forever(const char *run) {
    uint32_t *values = memory_allocate(VICTIM_ELEMENTS * sizeof *values);
    Interval whole = whole_of(values, VICTIM_ELEMENTS);
    Error error = {0};
    bool failed;
    for (int64_t step = checkpoint_latest(run, &failed, &error) + 1;; step++) {
        for (int i = 0; i < VICTIM_ELEMENTS; i++) values[i] = (uint32_t)step;
        uint64_t attempt = (uint64_t)getpid() << 20 | (uint64_t)step;
        if (failed || !save_by_ranks(run, step, attempt, &whole, VICTIM_RANKS, -1, &error)) return 1;
        if (write(STDOUT_FILENO, &step, sizeof step) != sizeof step) return 2;
    }
}

static void kill_at_any_moment_keeps_every_acknowledged_step_of_all_ranks(void **state) {
    Fixture *fixture = *state;
    uint32_t *expected = memory_allocate(VICTIM_ELEMENTS * sizeof *expected);
    srand(3);
    for (int round = 0; round < 20; round++) {
        struct timespec delay = {.tv_nsec = rand() % 40000000};
        int64_t acknowledged = fixture_kill_saver(fixture->run, delay), latest = latest_good(fixture->run);
        assert_true(latest >= acknowledged);
        for (int i = 0; i < VICTIM_ELEMENTS; i++) expected[i] = (uint32_t)latest;
        load_by_ranks(fixture->run, latest, expected, VICTIM_ELEMENTS, 2);
    }
    free(expected);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "--save-forever") == 0) return save_forever(argv[2]);
    const struct CMUnitTest tests[] = {
        TEST(any_number_of_ranks_loads_what_any_other_number_saved),
        TEST(only_shards_and_the_manifest_stay),
        TEST(a_rank_that_never_writes_its_part_is_named_and_costs_only_the_new_checkpoint),
        TEST(rank_0_gives_up_for_the_reason_of_a_rank_that_fails),
        TEST(parts_of_a_broken_attempt_are_not_mixed_into_the_next),
        TEST(a_missing_shard_is_noticed_and_the_older_checkpoint_chosen),
        TEST(a_rank_reads_only_the_files_that_it_needs),
        TEST(what_did_not_change_is_shared_and_survives_its_first_checkpoint),
        TEST(a_file_of_which_little_is_left_is_not_shared),
        TEST(a_whole_checkpoint_shares_nothing),
        TEST(kill_at_any_moment_keeps_every_acknowledged_step_of_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
