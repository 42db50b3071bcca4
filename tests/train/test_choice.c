/* End to end: which checkpoint of a run is meant, which of them stay, and when a validation loss ends a run. */
#include "support/train_run.h"

/* What a command prints on stdout. The caller frees. */
static char *output_of(const char *words) {
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    char *output = memory_copy_string(result.output);
    process_free(&result);
    return output;
}

static void assert_same_output(const char *words, const char *other) {
    char *output = output_of(words), *other_output = output_of(other);
    assert_string_equal(output, other_output);
    free(output);
    free(other_output);
}

static void a_checkpoint_is_named_by_its_step_or_its_folder(void **state) {
    (void)state;
    train_good("run=short stop_at=20");
    train_good("run=run checkpoint.every=10 checkpoint.keep=4");
    assert_same_output("eval short text json=true", "eval run@20 text json=true");
    assert_same_output("eval run@20 text json=true", "eval run/checkpoints/step-00000020 text json=true");
    assert_same_output("eval run text json=true", "eval run@40 text json=true");
    assert_same_output("generate short the tokens=8 temperature=0", "generate run/checkpoints/step-00000020/ the tokens=8 temperature=0");
    free(output_of("convert short a"));
    free(output_of("convert run@20 b"));
    assert_true(same_bytes("a/model.safetensors", "b/model.safetensors"));
    smelt_says(ERROR_CHECKPOINT, "run@11 11 40 30 20 10", "eval run@11 text");
    smelt_says(ERROR_CHECKPOINT, "run@0", "eval run@0 text");
    assert_int_equal(mkdir("runs", 0777), 0);
    smelt_says(ERROR_CHECKPOINT, "runs/no", "eval runs/no text");
    smelt_says(ERROR_CHECKPOINT, "llm.c", "eval runs/no text");
    smelt_says(ERROR_CHECKPOINT, "other/run@bset", "eval other/run@bset text");
    smelt_says(ERROR_CHECKPOINT, "run@20 is a checkpoint, run use run", "show run@20");
}

static void checkpoints_in_another_store_have_the_same_names(void **state) {
    (void)state;
    train_good("run=run checkpoint.every=10 checkpoint.store=store");
    assert_same_output("eval run@30 text json=true", "eval run/checkpoints/step-00000030 text json=true");
    smelt_says(ERROR_CHECKPOINT, "run@10 10 40 30 checkpoint.keep checkpoint.keep_every", "eval run@10 text");
}

static void a_folder_whose_own_name_has_an_at_sign_is_that_run(void **state) {
    (void)state;
    train_good("run=run stop_at=2");
    train_good("run=run@2 stop_at=4");
    smelt_says(ERROR_CHECKPOINT, "run@2@9 9", "eval run@2@9 text");
    assert_same_output("eval run@2 text json=true", "eval run@2@4 text json=true");
}

static void a_run_starts_from_the_checkpoint_that_is_named(void **state) {
    (void)state;
    train_good("run=base checkpoint.every=10 checkpoint.keep=4");
    train_good("run=short stop_at=10");
    train_good("run=a init=short stop_at=3");
    train_good("run=b init=base@10 stop_at=3");
    assert_true(same_checkpoint("a", "b", 3));
    char *shown = output_of("show b");
    if (!strstr(shown, "/base@10: run ") || !strstr(shown, " after step 10\n")) fail_msg("%s", shown);
    free(shown);
}

static void the_best_checkpoint_is_saved_kept_and_found(void **state) {
    (void)state;
    static const char settings[] = "run=run checkpoint.every=20 checkpoint.keep=1 checkpoint.keep_best=true";
    train_to_best(settings);
    train_good("%s " RISING, settings);
    assert_true(has_checkpoint("run", BEST) && has_checkpoint("run", 40) && !has_checkpoint("run", 20));
    char *named = memory_format("eval run@%d text json=true", BEST), *line = memory_format("  step %d, ", BEST);
    assert_same_output("eval run@best text json=true", named);
    char *shown = output_of("show run"), *at = strstr(shown, line);
    if (!at || !memmem(at, strcspn(at, "\n"), ", the best", 10)) fail_msg("%s is not the best in:\n%s", line, shown);
    free(shown);
    free(named);
    free(line);
    train_good("run=run checkpoint.every=1 checkpoint.keep=1 checkpoint.keep_best=true " RISING "steps=42 resume.accept=steps");
    assert_true(has_checkpoint("run", BEST) && has_checkpoint("run", 42) && !has_checkpoint("run", 40));
}

/* Every evaluation before the newest checkpoint is known from it, and the lowest of them has a checkpoint. That of its
 * own step may be unknown, as it follows the save: then the next start makes it again. */
static void the_best_survives_kills(void **state) {
    (void)state;
    enum { KILLS = 4 };
    for (int i = 1; i <= KILLS; i++) {
        Process process = train_start("run=run steps=1000000 checkpoint.every=7 checkpoint.keep=1 checkpoint.keep_best=true eval.every=2");
        process_await_text(&process, "checkpoint", 2);
        process_await_steps(&process, 13 * i);
        assert_int_equal(kill(process.id, SIGKILL), 0);
        ProcessResult killed = process_finish(&process);
        process_free(&killed);
        char *shown = output_of("show run json=true");
        json_auto_t *record = json_loads(shown, 0, NULL), *list = records("run", "evaluation");
        json_t *checkpoints = json_object_get(record, "checkpoints"), *one, *best = NULL;
        json_t *last = json_array_get(checkpoints, 0);
        double newest = number(last, "step") - !json_object_get(last, "loss"), lowest = INFINITY;
        size_t index;
        json_array_foreach(checkpoints, index, one) if (json_object_get(one, "best")) best = one;
        json_array_foreach(list, index, one) if (number(one, "step") <= newest) lowest = fmin(lowest, number(one, "loss"));
        assert_non_null(best);
        assert_float_equal(number(best, "loss"), lowest, 1e-6); /* records have seven digits */
        free(shown);
        free(output_of("eval run@best text"));
    }
}

static void without_evaluations_no_checkpoint_is_the_best(void **state) {
    (void)state;
    train_good("run=run stop_at=10");
    smelt_says(ERROR_CHECKPOINT, "run has no checkpoint with a validation loss", "eval run@best text");
}

static void checkpoints_of_some_steps_stay_for_ever(void **state) {
    (void)state;
    train_good("run=run checkpoint.every=5 checkpoint.keep=1 checkpoint.keep_every=15");
    for (int step = 5; step <= 40; step += 5) assert_true(has_checkpoint("run", step) == (step == 15 || step == 30 || step == 40));
    train_says(ERROR_USAGE, "checkpoint.keep_every=15 checkpoint.every=10", "run=run checkpoint.every=10 checkpoint.keep_every=15");
}

static void a_run_without_progress_stops_early(void **state) {
    (void)state;
    const int stopped = BEST + 6;
    train_to_best("run=run eval.patience=3");
    train_says(ERROR_NONE, "smelt train run eval.patience=0    (continues training)\n", "run=run eval.patience=3 " RISING);
    assert_int_equal((int)recorded("run", "step", -1, "step"), stopped);
    assert_true(has_checkpoint("run", stopped));
    int evaluations = count_records("run", "evaluation");
    train_says(ERROR_NONE, "stopped", "run=run eval.patience=3 " RISING);
    assert_int_equal((int)recorded("run", "step", -1, "step"), stopped);
    assert_int_equal(count_records("run", "evaluation"), evaluations);
    train_good("run=run " RISING);
    assert_true(has_checkpoint("run", 40));
}

/* The count goes on where it was, also on two ranks, and after a kill. */
static void patience_survives_restarts(void **state) {
    (void)state;
    const int stopped = BEST + 8;
    train_to_best("run=whole eval.patience=4");
    train_good("run=whole eval.patience=4 " RISING);
    assert_int_equal((int)recorded("whole", "step", -1, "step"), stopped);
    train_to_best("run=broken eval.patience=4");
    train_good("run=broken eval.patience=4 stop_at=%d " RISING, stopped - 3);
    int port = process_free_port();
    Process ranks[2] = {
        rank_start(0, port, "run=broken eval.patience=4 " RISING), rank_start(1, port, "run=broken eval.patience=4 " RISING)};
    for (int r = 0; r < 2; r++) {
        ProcessResult result = process_finish(&ranks[r]);
        expect_code(&result, ERROR_NONE, "a rank");
        process_free(&result);
    }
    assert_int_equal((int)recorded("broken", "step", -1, "step"), stopped);
    /* The sum over two ranks rounds in another order than the sum of one. */
    double whole = recorded("whole", "evaluation", -1, "loss"), broken = recorded("broken", "evaluation", -1, "loss");
    assert_true(fabs(broken / whole - 1) < 1e-5);
}

/* Losses of other validation data do not compare. */
static void other_validation_data_begin_anew(void **state) {
    (void)state;
    const int stopped = BEST + 4;
    train_to_best("run=run eval.patience=2");
    train_good("run=run eval.patience=2 " RISING);
    assert_int_equal((int)recorded("run", "step", -1, "step"), stopped);
    train_good("run=run eval.patience=2 eval.sequences=12 stop_at=%d " RISING, stopped + 2);
    assert_int_equal((int)recorded("run", "step", -1, "step"), stopped);
    write_corpus("text2", 3000);
    train_good("run=run eval.patience=2 data.valid=text2 resume.accept=data stop_at=%d " RISING, stopped + 2);
    assert_int_equal((int)recorded("run", "step", -1, "step"), stopped + 2);
}

static void what_compares_evaluations_needs_some(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "eval.patience=2 eval.every", "run=run eval.patience=2");
    train_says(ERROR_USAGE, "checkpoint.keep_best=true has no effect without eval.every", "run=run checkpoint.keep_best=true");
    train_says(ERROR_USAGE, "data.valid", "run=run eval.patience=2 eval.every=2 data.valid_fraction=0");
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_checkpoint_is_named_by_its_step_or_its_folder),
        TRAIN_TEST(checkpoints_in_another_store_have_the_same_names),
        TRAIN_TEST(a_folder_whose_own_name_has_an_at_sign_is_that_run),
        TRAIN_TEST(a_run_starts_from_the_checkpoint_that_is_named),
        EACH_ISA(TRAIN_TEST(the_best_checkpoint_is_saved_kept_and_found)),
        TRAIN_TEST(the_best_survives_kills),
        TRAIN_TEST(without_evaluations_no_checkpoint_is_the_best),
        TRAIN_TEST(checkpoints_of_some_steps_stay_for_ever),
        EACH_ISA(TRAIN_TEST(a_run_without_progress_stops_early)),
        EACH_ISA(TRAIN_TEST(patience_survives_restarts)),
        EACH_ISA(TRAIN_TEST(other_validation_data_begin_anew)),
        TRAIN_TEST(what_compares_evaluations_needs_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
