/* Checkpoints of tensors that are cut along any dimension: what is written in one cut is read in any other, shared where
 * it did not change, and checked. Checkpoints of the first format, which had contiguous intervals alone, are read. */
#include "support/ckpt_fixture.h"

enum { ROWS = 96, COLUMNS = 60, MOST_PARTS = 16 };

/* A matrix of `rows` x `columns` cut into `parts` along its rows, or along its columns. */
typedef struct Cutting {
    int64_t rows, columns;
    int parts;
    bool by_columns;
} Cutting;

/* Part `index` of the matrix; `data` is the caller's. */
static Interval part_of(const Cutting *cutting, int index, void *data) {
    int64_t along = cutting->by_columns ? cutting->columns : cutting->rows;
    int64_t begin = along * index / cutting->parts, count = along * (index + 1) / cutting->parts - begin;
    Slice columns = {.first = begin, .count = cutting->rows * count, .run = count, .stride = cutting->columns};
    Slice rows = {.first = begin * cutting->columns, .count = count * cutting->columns};
    return (Interval){.name = "w",
        .type = STORED_BF16,
        .rank = 2,
        .shape = {cutting->rows, cutting->columns},
        .slice = cutting->by_columns ? slice_part(&columns, 0, columns.count) : rows,
        .data = data};
}

static uint16_t value_of(int64_t element) { return (uint16_t)(element * 40503u >> 7); }

/* The parts in one memory after another, for the caller to free. */
static uint16_t *parts_new(const Cutting *cutting, Interval *parts) {
    uint16_t *values = memory_allocate((size_t)(cutting->rows * cutting->columns) * sizeof *values), *at = values;
    for (int i = 0; i < cutting->parts; at += parts[i++].slice.count) parts[i] = part_of(cutting, i, at);
    return values;
}

/* Saves the cut matrix, cut again into parts of parts as ZeRO does, with one rank for each half. */
static void save_cut(const char *run, int64_t step, const Cutting *cutting, bool share, int64_t *shared) {
    Interval parts[MOST_PARTS], halves[2][MOST_PARTS];
    CheckpointJob *jobs[2];
    Error error = {0};
    CheckpointStats stats = {0};
    uint16_t *values = parts_new(cutting, parts);
    for (int i = 0; i < cutting->parts; i++) {
        for (int64_t k = 0; k < parts[i].slice.count; k++) ((uint16_t *)parts[i].data)[k] = value_of(slice_at(&parts[i].slice, k));
        int64_t middle = parts[i].slice.count / 3; /* inside a run */
        halves[0][i] = halves[1][i] = parts[i];
        halves[0][i].slice = slice_part(&parts[i].slice, 0, middle);
        halves[1][i].slice = slice_part(&parts[i].slice, middle, parts[i].slice.count - middle);
        halves[1][i].data = (uint16_t *)parts[i].data + middle;
    }
    for (int r = 1; r >= 0; r--) {
        CheckpointPlan plan = {.where = run, .step = step, .intervals = halves[r], .count = (size_t)cutting->parts, .keep = 9};
        plan.rank = r, plan.ranks = 2, plan.attempt = (uint64_t)step, plan.timeout = 600, plan.share = share;
        jobs[r] = checkpoint_start(&plan);
    }
    *shared = 0;
    for (int r = 0; r < 2; r++) {
        if (!checkpoint_finish(jobs[r], &stats, &error)) fail_msg("%s", error.message);
        *shared += stats.shared;
    }
    free(values);
}

static void load_cut(const char *run, int64_t step, const Cutting *cutting) {
    Interval parts[MOST_PARTS];
    Error error = {0};
    uint16_t *values = parts_new(cutting, parts);
    if (!checkpoint_load(run, step, parts, (size_t)cutting->parts, NULL, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < cutting->parts; i++)
        for (int64_t k = 0; k < parts[i].slice.count; k++)
            if (((uint16_t *)parts[i].data)[k] != value_of(slice_at(&parts[i].slice, k)))
                fail_msg("element %lld of part %d is wrong", (long long)k, i);
    free(values);
}

static void any_cut_is_read_in_any_other(void **state) {
    Fixture *fixture = *state;
    int64_t step = 1, shared;
    for (int parts = 1; parts <= 5; parts++)
        for (int by_columns = 0; by_columns < 2; by_columns++, step++) {
            save_cut(fixture->run, step, &(Cutting){ROWS, COLUMNS, parts, by_columns}, false, &shared);
            for (int others = 1; others <= 6; others++) {
                load_cut(fixture->run, step, &(Cutting){ROWS, COLUMNS, others, false});
                load_cut(fixture->run, step, &(Cutting){ROWS, COLUMNS, others, true});
            }
        }
}

static void a_large_matrix_cut_by_columns_is_read_whole_and_by_rows(void **state) {
    Fixture *fixture = *state;
    int64_t shared;
    save_cut(fixture->run, 1, &(Cutting){8192, 8192, 8, true}, false, &shared);
    load_cut(fixture->run, 1, &(Cutting){8192, 8192, 1, false});
    load_cut(fixture->run, 1, &(Cutting){8192, 8192, 4, false});
    load_cut(fixture->run, 1, &(Cutting){8192, 8192, 8, true});
}

static void unchanged_slices_are_shared_with_a_checkpoint_of_the_same_cut_only(void **state) {
    Fixture *fixture = *state;
    Cutting columns = {ROWS, COLUMNS, 2, true}, others = {ROWS, COLUMNS, 3, true};
    int64_t shared;
    save_cut(fixture->run, 1, &columns, true, &shared);
    save_cut(fixture->run, 2, &columns, true, &shared);
    assert_int_equal(shared, ROWS * COLUMNS * sizeof(uint16_t));
    save_cut(fixture->run, 3, &others, true, &shared);
    assert_int_equal(shared, 0);
    load_cut(fixture->run, 2, &others);
    load_cut(fixture->run, 3, &columns);
}

static void an_element_that_no_slice_has_is_named(void **state) {
    Fixture *fixture = *state;
    Cutting columns = {ROWS, COLUMNS, 3, true};
    Interval parts[MOST_PARTS];
    Error error = {0};
    uint16_t *values = parts_new(&columns, parts);
    assert_true(checkpoint_save(fixture->run, 1, parts, 2, NULL, 1, NULL, &error));
    assert_false(checkpoint_load(fixture->run, 1, &parts[2], 1, NULL, &error));
    assert_message(&error, "tensor w lacks element 40");
    Interval whole = part_of(&(Cutting){ROWS, COLUMNS, 1, false}, 0, values);
    assert_false(checkpoint_load(fixture->run, 1, &whole, 1, NULL, &error));
    assert_message(&error, "tensor w lacks element 40");
    parts[1].slice = slice_part(&parts[1].slice, 0, parts[1].slice.count - 5); /* of the last row */
    assert_true(checkpoint_save(fixture->run, 2, parts, 3, NULL, 1, NULL, &error));
    assert_false(checkpoint_load(fixture->run, 2, &whole, 1, NULL, &error));
    assert_message(&error, "tensor w lacks element 5735");
    assert_true(checkpoint_load(fixture->run, 2, &parts[2], 1, NULL, &error));
    free(values);
}

/* -- The first format ---------------------------------------------------------------------------------------------- */

/* tests/golden/checkpoint was written by two ranks of the last version without slices. */
static void a_checkpoint_of_the_first_format_is_read(void **state) {
    (void)state;
    float whole[24] = {0}, columns[8] = {0};
    uint16_t b[6] = {0};
    Error error = {0};
    Slice middle = {.first = 2, .count = 8, .run = 2, .stride = 6};
    Interval intervals[3] = {{"w", STORED_F32, 2, {4, 6}, {.count = 24}, whole}, {"w", STORED_F32, 2, {4, 6}, middle, columns},
        {"b", STORED_BF16, 1, {6}, {.count = 6}, b}};
    if (!checkpoint_load("tests/golden/checkpoint", 3, intervals, 3, NULL, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < 24; i++) assert_true(whole[i] == (float)i / 4);
    for (int i = 0; i < 8; i++) assert_true(columns[i] == whole[i / 2 * 6 + 2 + i % 2]);
    for (int i = 0; i < 6; i++) assert_int_equal(b[i], 0x3f80 + i);
}

/* A reader of the first format would misplace runs, so it must not take them for contiguous. */
static void only_a_checkpoint_with_runs_has_the_second_format(void **state) {
    Fixture *fixture = *state;
    int64_t shared;
    save_cut(fixture->run, 1, &(Cutting){ROWS, COLUMNS, 2, false}, false, &shared);
    save_cut(fixture->run, 2, &(Cutting){ROWS, COLUMNS, 2, true}, false, &shared);
    for (int step = 1; step <= 2; step++) {
        char *path = memory_format("%s/checkpoints/step-%08d/manifest.json", fixture->run, step);
        json_t *manifest = json_load_file(path, 0, NULL);
        char *format = memory_format("smelt checkpoint %d", step);
        assert_string_equal(json_string_value(json_object_get(manifest, "format")), format);
        json_decref(manifest);
        free(format);
        free(path);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(any_cut_is_read_in_any_other),
        TEST(a_large_matrix_cut_by_columns_is_read_whole_and_by_rows),
        TEST(unchanged_slices_are_shared_with_a_checkpoint_of_the_same_cut_only),
        TEST(an_element_that_no_slice_has_is_named),
        TEST(a_checkpoint_of_the_first_format_is_read),
        TEST(only_a_checkpoint_with_runs_has_the_second_format),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
