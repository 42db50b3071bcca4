/* How long a run is: steps, tokens or epochs give its length, and no sequence beyond that is read. */
#include "base/scope.h"
#include "support/mentions.h"
#include "support/train_run.h"

static const char *const tiny_file = "data: {train: text, length: 32}\n"
                                     "model: {width: 32, layers: 2, heads: 2, kv_heads: 1, ffn: 32}\n"
                                     "batch: {sequences: 4, tokens: 256, ramp_tokens: 128, ramp_steps: 30}\n"
                                     "threads: 2\ntensorboard: false\n";

static void train_file(int code, const char *words) {
    SCOPED_FREE char *whole = memory_format("train c.yaml %s", words);
    ProcessResult result = smelt(whole);
    expect_code(&result, code, whole);
    if (code == ERROR_USAGE) assert_mentions(result.errors, "error tokens epochs");
    process_free(&result);
}

static void assert_config_has(const char *path, const char *line) {
    size_t length;
    SCOPED_FREE char *config = (char *)read_bytes(path, &length);
    if (!strstr(config, line)) fail_msg("%s lacks \"%s\":\n%s", path, line, config);
}

/* The batches grow. 10,000 tokens are 313 sequences of 32. */
static void tokens_come_to_steps_and_replace_those_of_the_file(void **state) {
    (void)state;
    SCOPED_FREE char *file = memory_format("steps: 700\n%s", tiny_file);
    write_text("c.yaml", file);
    train_file(ERROR_NONE, "run=t tokens=10k");
    int steps = count_records("t", "step");
    assert_true(recorded("t", "step", -1, "tokens_seen") == 313 * 32);
    assert_true(recorded("t", "step", -1, "tokens") < recorded("t", "step", -2, "tokens"));
    SCOPED_FREE char *last = memory_format("\n  last: %.0f ", recorded("t", "step", -1, "tokens"));
    SCOPED_FREE char *line = memory_format("\nsteps: %d ", steps);
    assert_config_has("t/config.yaml", line);
    assert_config_has("t/config.yaml", last);
    assert_config_has("t/config.yaml", "\ntokens: 0 ");
    SCOPED_FREE char *same = memory_format("run=s steps=%d batch.last=%.0f", steps, recorded("t", "step", -1, "tokens"));
    train_file(ERROR_NONE, same);
    assert_same_steps("t", "s"); /* the schedule of the learning rate too */
}

/* Sequences of the training part. */
static int sequences_of(const char *shard) {
    SCOPED_FREE char *words = memory_format("data show %s", shard);
    ProcessResult shown = smelt(words);
    const char *at = strstr(shown.output, "tokens:");
    assert_non_null(at);
    int sequences = (int)ceil((strtod(at + strlen("tokens:"), NULL) - 1) / 32);
    process_free(&shown);
    return sequences;
}

static void epochs_read_the_training_data_so_many_times(void **state) {
    (void)state;
    write_corpus("text", 600);
    SCOPED_FREE char *file = memory_format("epochs: 1.5\n%s", tiny_file);
    write_text("c.yaml", file);
    train_file(ERROR_NONE, "run=e batch.ramp_tokens=0");
    int sequences = sequences_of("e/data/text-train"), read = (int)ceil(1.5 * sequences);
    assert_int_not_equal(read % 8, 0);
    assert_int_equal(count_records("e", "step"), (read + 7) / 8);
    assert_true(recorded("e", "step", -1, "tokens_seen") == read * 32);
    ProcessResult more = smelt("train e epochs=2"); /* extends the run behind its short step */
    expect_code(&more, ERROR_NONE, "epochs=2");
    assert_int_equal(count_records("e", "step"), (read + 7) / 8 + (2 * sequences - read + 7) / 8);
    assert_true(recorded("e", "step", -1, "tokens_seen") == 2 * sequences * 32);
    process_free(&more);
    smelt_says(ERROR_USAGE, "read", "train e epochs=1");
    smelt_good("train e steps=40"); /* steps are whole */
    assert_true(recorded("e", "step", -1, "tokens") == 256);
    assert_config_has("e/config.yaml", "\n  last: 0 ");
}

static void one_setting_decides_the_length(void **state) {
    (void)state;
    write_text("c.yaml", tiny_file);
    train_file(ERROR_USAGE, "run=r steps=10 epochs=1");
    train_file(ERROR_USAGE, "run=r tokens=10k epochs=1");
    SCOPED_FREE char *file = memory_format("steps: 700\ntokens: 10k\n%s", tiny_file);
    write_text("c.yaml", file);
    train_file(ERROR_USAGE, "run=r");
    assert_int_not_equal(access("r", F_OK), 0);
}

/* 48 bytes and the token that ends them: 6 sequences of 8, of which a step takes 4. */
#define SIX                                                                                                                                \
    "data.train=six data.valid_fraction=0 data.length=8 batch.tokens=32 model.layers=1 model.width=8 model.heads=1 model.kv_heads=1 "      \
    "model.ffn=8 precision=fp32 tensorboard=false threads=1 "

static void write_six(void) { write_text("six", "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKL"); }

static void assert_loss_of(const char *run, double loss) {
    assert_int_equal(count_records(run, "step"), 2);
    assert_true(recorded(run, "step", 1, "tokens") == 16 && recorded(run, "step", 1, "tokens_seen") == 48);
    assert_float_equal(recorded(run, "step", 1, "loss"), loss, 1e-5); /* means over other microbatches round otherwise */
}

/* What the short step has no sequence for adds nothing, neither to its loss nor to what that is divided by: so microbatches
 * of any size, which are padded differently, and ranks without one give the same loss. */
static void the_last_step_takes_what_is_left_of_an_epoch(void **state) {
    (void)state;
    write_six();
    smelt_says(ERROR_NONE, "steps    2 of 32 tokens, the last one of 16: 48 tokens, 1 epoch\n",
        "train " SIX "epochs=1 batch.sequences=4 run=four");
    double loss = recorded("four", "step", 1, "loss");
    smelt_good("train " SIX "epochs=1 batch.sequences=1 run=one");
    assert_loss_of("one", loss);
    smelt_good("train " SIX "epochs=1 batch.sequences=2 run=two");
    assert_loss_of("two", loss);
    smelt_good("launch -n 2 self_test=false -- train " SIX "epochs=1 batch.sequences=2 run=ranks device=cpu");
    assert_loss_of("ranks", loss);
    smelt_good("launch -n 4 self_test=false -- train " SIX "epochs=1 batch.sequences=1 run=more device=cpu");
    assert_loss_of("more", loss);
}

static void a_run_that_stops_before_its_short_step_takes_it_when_it_goes_on(void **state) {
    (void)state;
    write_six();
    smelt_good("train " SIX "epochs=1 batch.sequences=4 run=whole");
    smelt_good("train " SIX "epochs=1 batch.sequences=4 run=parts stop_at=1");
    smelt_says(ERROR_NONE, "steps    2 of 32 tokens, the last one of 16", "train parts");
    assert_same_steps("whole", "parts");
    smelt_good("train " SIX "epochs=1 batch.sequences=4 run=again stop_at=1");
    smelt_good("train " SIX "epochs=1 batch.sequences=4 run=again"); /* the command counts them anew */
    assert_same_steps("whole", "again");
}

static void no_bin_of_best_fit_is_read_twice_in_an_epoch(void **state) {
    (void)state;
    assert_int_equal(mkdir("lines", 0777), 0);
    for (int i = 0; i < 6; i++) {
        SCOPED_FREE char *name = memory_format("lines/%d", i), *line = memory_format("%d23456", i);
        write_text(name, line);
    }
    smelt_says(ERROR_NONE, "6 sequences 8 packed", "train " SIX "data.train=lines data.packing=best_fit epochs=1 batch.sequences=4 run=r");
    assert_true(recorded("r", "step", -1, "tokens_seen") == 48);
}

/* epochs: 1 of the source would not allow a whole second step. */
static void the_last_phase_of_a_mixture_ends_with_its_tokens(void **state) {
    (void)state;
    write_six();
    write_text("mix.yaml", "sources:\n  - {name: six, path: six}\nphases:\n  - {name: all, tokens: 48, weights: {six: 1}}\n");
    smelt_says(ERROR_NONE, "steps    2, the last one of 16, 48 tokens\n",
        "train " SIX "data.train=mix.yaml batch.sequences=4 run=r data.valid=six");
    assert_true(recorded("r", "step", -1, "tokens_seen") == 48);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(tokens_come_to_steps_and_replace_those_of_the_file),
        TRAIN_TEST(epochs_read_the_training_data_so_many_times),
        TRAIN_TEST(one_setting_decides_the_length),
        TRAIN_TEST(the_last_step_takes_what_is_left_of_an_epoch),
        TRAIN_TEST(a_run_that_stops_before_its_short_step_takes_it_when_it_goes_on),
        TRAIN_TEST(no_bin_of_best_fit_is_read_twice_in_an_epoch),
        TRAIN_TEST(the_last_phase_of_a_mixture_ends_with_its_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
