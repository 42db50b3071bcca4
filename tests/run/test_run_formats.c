/* Run folders of older builds, which tests/run/runs keeps (its README says how each was made): they continue, or are
 * refused by their format with the way out, and are left as they are. A new build adds a folder and forgets none. */
#include "base/scope.h"
#include "support/train_run.h"

static char *runs; /* tests/run/runs as an absolute path */

/* A folder of tests/run/runs is copied here, and *name* given to `run`. */
static void take_run(const char *name) {
    SCOPED_FREE char *copy = memory_format("rm -rf run && cp -r %s/%s run && chmod -R u+w run", runs, name);
    assert_int_equal(system(copy), 0);
}

static void a_run_of_each_older_build_continues_or_is_refused_by_its_format(void **state) {
    (void)state;
    static const struct {
        const char *name;
        double loss;         /* of step 6; a continuation by the build of at-550bb084 itself gave its value */
        const char *refused; /* NULL: it continues after step 3 */
    } folders[] = {{"format-1", 5.75973, NULL}, {"at-16b61191", 5.75973, NULL}, {"at-550bb084", 5.75009, NULL},
        {"at-3c94abe3", 0, "run has run format 0 of smelt of an unknown version, and this build (run format 1)"}};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        take_run(folders[i].name);
        if (folders[i].refused) {
            smelt_says(ERROR_CHECKPOINT, folders[i].refused, "train run steps=6");
            smelt_says(ERROR_CHECKPOINT, "weights", "train run steps=6");
            SCOPED_FREE char *same = memory_format("diff -r %s/%s run", runs, folders[i].name);
            assert_int_equal(system(same), 0);
            continue;
        }
        smelt_good("train run steps=6");
        assert_true(has_checkpoint("run", 6));
        assert_int_equal(count_records("run", "step"), 6);
        assert_true(fabs(recorded("run", "step", -1, "loss") - folders[i].loss) < 1e-4); /* bf16, by any instruction set */
        smelt_good("generate run the tokens=1");
        smelt_good("eval run text");
    }
}

static void set_format(const char *format) {
    SCOPED_FREE char *edit = memory_format("sed -i 's/\"format\": 1/\"format\": %s/' run/run.json", format);
    assert_int_equal(system(edit), 0);
}

static void a_run_of_a_newer_format_is_refused_by_every_reader(void **state) {
    (void)state;
    static const char *const readers[] = {"train run steps=6", "generate run the tokens=1", "eval run text", "convert run folder",
        "train " TINY " run=other init=run", "train run fork=other steps=6"};
    smelt_good("train " TINY " run=run steps=3 schedule.warmup=1");
    set_format("2");
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) smelt_says(ERROR_CHECKPOINT, "format 2 formats 1", "%s", readers[i]);
    assert_true(has_checkpoint("run", 3));
    set_format("1");
}

static void a_setting_that_an_older_build_had_is_named_with_the_way_out(void **state) {
    (void)state;
    smelt_good("train " TINY " run=run steps=3 schedule.warmup=1");
    assert_int_equal(system("echo 'forgotten: 1' >> run/config.yaml"), 0);
    smelt_says(ERROR_USAGE, "forgotten", "train run steps=6"); /* of this build: somebody wrote it there */
    assert_int_equal(system("sed -i '/\"format\": 1/d' run/run.json"), 0);
    smelt_says(ERROR_CHECKPOINT, "format 0 0.9 started", "train run steps=6");
    smelt_says(ERROR_CHECKPOINT, "smelt convert run FOLDER init=FOLDER", "generate run the tokens=1");
}

int main(void) {
    train_main();
    runs = realpath("tests/run/runs", NULL);
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_run_of_each_older_build_continues_or_is_refused_by_its_format),
        TRAIN_TEST(a_run_of_a_newer_format_is_refused_by_every_reader),
        TRAIN_TEST(a_setting_that_an_older_build_had_is_named_with_the_way_out),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(runs);
    return failed;
}
