/* End to end: runs that read a mixture of sources in phases of different lengths. A phase's end is a place like any
 * other: whoever stops, kills or resumes there or elsewhere gets the bits of an unbroken run. */
#include "support/mixture_run.h"

/* -- Phases -------------------------------------------------------------------------------------------------------- */

static void a_run_goes_through_its_phases_and_ends_with_the_last(void **state) {
    (void)state;
    ProcessResult result =
        smelt("train data.train=mix.yaml model.family=zaya model.width=32 model.layers=2 model.heads=2 model.kv_heads=1 "
              "model.ffn=32 model.experts=4 model.router_width=8 batch.tokens=256 batch.sequences=8 threads=2 tensorboard=false run=whole");
    expect_code(&result, ERROR_NONE, "whole");
    process_free(&result);
    json_auto_t *steps = records("whole", "step"), *phases = records("whole", "phase");
    assert_int_equal(json_array_size(steps), STEPS);
    assert_int_equal(json_array_size(phases), 3);
    static const int first[] = {0, SHORT_END, MIDDLE_END}, length[] = {16, 32, 64};
    static const double rope[] = {1e4, 1e6, 5e6};
    for (int i = 0; i < 3; i++) {
        const json_t *phase = json_array_get(phases, (size_t)i);
        assert_int_equal(number(phase, "step"), first[i]);
        assert_int_equal(number(phase, "phase"), i + 1);
        assert_int_equal(number(phase, "length"), length[i]);
        assert_true(number(phase, "rope_theta") == rope[i]);
    }
    double seen = 0;
    for (int i = 0; i < STEPS; i++) { /* 2,600 tokens are 82 sequences of 32, the last two of which make a step */
        double tokens = i == MIDDLE_END - 1 ? 2 * 32 : i >= SHORT_END && i < SHORT_END + 4 ? 128 : 256;
        seen += tokens;
        assert_true(number(json_array_get(steps, (size_t)i), "tokens") == tokens);
        assert_true(number(json_array_get(steps, (size_t)i), "tokens_seen") == seen);
    }
}

static void every_phase_is_checked_before_the_first_step(void **state) {
    (void)state;
    change_mixture("length: 64, rope_theta", "length: 60, rope_theta");
    train_says(ERROR_USAGE, "data.train=mix.yaml batch.tokens=256", MIXED "run=r");
    change_mixture("tokens: 2560, length: 64", "length: 16777216, batch: {sequences: 120, tokens: 2013265920}");
    train_says(ERROR_MEMORY, "data.train=mix.yaml", MIXED "run=r");
    assert_int_not_equal(access("r", F_OK), 0);
    change_mixture("path: code, epochs: 1000000", "path: code, epochs: 0.01");
    train_says(ERROR_USAGE, "source code", MIXED "run=r");
    train_says(ERROR_NONE, "source code epochs", MIXED "run=r plan=true");
    smelt_good("data pack code code-shard");
    change_mixture("path: code, epochs: 1000000", "path: code-shard, epochs: 0.01");
    train_says(ERROR_USAGE, "the run reads source code", MIXED "run=r plan=true");
    change_mixture("path: code, epochs", "path: code-shard, epochs");
    train_good(MIXED "run=r plan=true");
    write_text("mix.yaml", mixture_text);
    smelt_says(ERROR_USAGE, "epochs", "train data.train=mix.yaml run=r epochs=2");
}

static void the_first_phase_gives_its_own_batch(void **state) {
    (void)state;
    static const char batches[] = "sources: [{name: a, path: code, epochs: 9}]\nphases:\n"
                                  "  - {name: p, tokens: 960, length: 32, weights: {a: 1}, batch: {tokens: 96, sequences: 3}}\n"
                                  "  - {name: q, tokens: 960, length: 32, weights: {a: 1}, batch: {tokens: 256%s}}\n";
    SCOPED_FREE char *some = replaced(batches, "%s", ""), *all = replaced(batches, "%s", ", sequences: 4");
    write_text("mix.yaml", some);
    train_good("data.train=mix.yaml run=some batch.sequences=8 steps=12");
    assert_true(recorded("some", "phase", 0, "sequences") == 3 && recorded("some", "phase", 1, "sequences") == 8);
    write_text("mix.yaml", all);
    train_good("data.train=mix.yaml run=all steps=12 stop_at=3");
    assert_true(recorded("all", "phase", 0, "sequences") == 3);
    static const char *const without[] = {"data.length=128", "batch.tokens=1280", "batch.sequences=5"};
    for (int i = 0; i < 3; i++) {
        SCOPED_FREE char *expected = memory_format("%s no effect every phase data.train=", without[i]);
        smelt_says(ERROR_NONE, expected, "train all plan=true %s", without[i]);
    }
    ProcessResult plain = smelt("train all plan=true");
    expect_code(&plain, ERROR_NONE, "plain");
    assert_null(strstr(plain.errors, "no effect"));
    process_free(&plain);
}

/* -- Stopping ------------------------------------------------------------------------------------------------------ */

static void a_run_that_stops_anywhere_equals_an_unbroken_one_bit_for_bit(void **state) {
    (void)state;
    static const int stops[] = {4, SHORT_END, 15, MIDDLE_END, 25};
    train_good(MIXED "run=whole");
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) train_good(MIXED "run=parts stop_at=%d threads=1", stops[i]);
    train_good(MIXED "run=parts");
    assert_same_steps("whole", "parts");
    assert_true(same_checkpoint("whole", "parts", STEPS));
    assert_true(recorded("whole", "evaluation", -1, "loss") == recorded("parts", "evaluation", -1, "loss"));
    assert_int_equal(count_records("parts", "phase"), 3);
}

/* Kills a run that waits after each step of the list, and once more right behind each phase's end. */
static void a_run_killed_in_every_phase_and_between_them_ends_like_an_unbroken_one(void **state) {
    (void)state;
    static const int kills[] = {3, SHORT_END, SHORT_END + 1, 16, MIDDLE_END, MIDDLE_END + 1, 27};
    train_good(MIXED "run=whole");
    for (size_t i = 0; i < sizeof kills / sizeof *kills; i++) {
        Process process = train_start(MIXED "run=killed checkpoint.every=2 log.every=1");
        SCOPED_FREE char *reached = memory_format(" %d/%d ", kills[i], STEPS);
        process_await_text(&process, reached, 1);
        kill(process.id, SIGKILL);
        ProcessResult result = process_finish(&process);
        process_free(&result);
    }
    train_good(MIXED "run=killed");
    assert_same_steps("whole", "killed");
    assert_true(same_checkpoint("whole", "killed", STEPS));
}

/* -- Ranks --------------------------------------------------------------------------------------------------------- */

/* Sums are added in another order, which in double is 1e-16 and, carried on, 1e-14. */
static void expect_near(const char *run, const char *other) {
    const double tolerance = 1e-10;
    for (int step = 0; step < STEPS; step++) {
        double loss = recorded(other, "step", step, "loss"), expected = recorded(run, "step", step, "loss");
        if (!(fabs(loss - expected) <= tolerance * expected))
            fail_msg("%s, step %d: loss %.12g in place of %.12g", other, step + 1, loss, expected);
    }
}

#define EXACT MIXED "precision=fp64 model.family=llama model.experts=0 "

static void ranks_and_microbatches_see_the_same_samples(void **state) {
    (void)state;
    train_good(EXACT "run=one");
    smelt_good("launch -n 2 -- train " TINY " " EXACT "run=two threads=1");
    expect_near("one", "two");
    change_mixture(", batch: {ramp_tokens: 128, ramp_steps: 4}", ""); /* a ramp grows by whole microbatches */
    train_good(EXACT "run=large");
    train_good(EXACT "run=small batch.sequences=4");
    expect_near("large", "small");
}

int main(void) {
    train_main();
    static const struct CMUnitTest tests[] = {
        PHASES_TEST(a_run_goes_through_its_phases_and_ends_with_the_last),
        PHASES_TEST(the_first_phase_gives_its_own_batch),
        PHASES_TEST(every_phase_is_checked_before_the_first_step),
        PHASES_TEST(a_run_that_stops_anywhere_equals_an_unbroken_one_bit_for_bit),
        PHASES_TEST(a_run_killed_in_every_phase_and_between_them_ends_like_an_unbroken_one),
        PHASES_TEST(ranks_and_microbatches_see_the_same_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
