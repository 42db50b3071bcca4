/* End to end: the text that a run writes at each evaluation. */
#include "base/scope.h"
#include "support/train_run.h"

#define FP32 "precision=fp32 data.valid=text eval.sequences=8 model.context=96 eval.sample_tokens=24 "

/* A text of a record; the caller frees. */
static char *sample(const char *run, int index, const char *name) {
    json_auto_t *list = records(run, "sample");
    const char *text = json_string_value(json_object_get(json_array_get(list, (size_t)index), name));
    if (!text) fail_msg("sample %d of %s has no %s", index, run, name);
    return memory_copy_string(text);
}

static void assert_same_samples(const char *run, const char *other, int count) {
    assert_int_equal(count_records(run, "sample"), count);
    assert_int_equal(count_records(other, "sample"), count);
    for (int i = 0; i < count; i++) {
        SCOPED_FREE char *text = sample(run, i, "text"), *same = sample(other, i, "text");
        assert_string_equal(text, same);
    }
}

static const struct {
    const char *name, *settings;
} families[] = {
    {"zaya", ""},
    {"llama", "model.family=llama model.experts=0"},
    {"moe", "model.family=llama model.experts_per_token=2"},
    {"mpt", "model.family=mpt model.experts=0 model.ffn=128 model.kv_heads=2"},
    {"gpt2", "model.family=gpt2 model.experts=0 model.kv_heads=2"},
};

/* generate has caches, and another program. */
static void a_sample_is_what_generate_writes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        const char *run = families[i].name;
        train_good("run=%s " FP32 "%s", run, families[i].settings);
        SCOPED_FREE char *prompt = sample(run, 0, "prompt"), *text = sample(run, 0, "text");
        if (strlen(prompt) != 32 || strlen(text) < 4) fail_msg("\"%s\" after \"%s\"", text, prompt);
        write_text("prompt", prompt);
        SCOPED_FREE char *words = memory_format("-c %s generate %s - tokens=24 temperature=0.8 < prompt", getenv("SMELT"), run);
        SCOPED_FREE char *whole = memory_format("%s%s\n", prompt, text);
        char *arguments[] = {"/bin/sh", "-c", words + 3, NULL};
        Process process = process_start(arguments);
        ProcessResult result = process_finish(&process);
        expect_code(&result, ERROR_NONE, words);
        assert_string_equal(result.output, whole);
        process_free(&result);
    }
}

static void samples_change_no_bit_of_training(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        SCOPED_FREE char *with = memory_format("%s-with", families[i].name), *without = memory_format("%s-without", families[i].name);
        train_good("run=%s %s eval.every=4 steps=12", with, families[i].settings);
        train_good("run=%s %s eval.every=4 steps=12 eval.sample_tokens=0", without, families[i].settings);
        assert_int_equal(count_records(with, "sample"), 3);
        assert_int_equal(count_records(without, "sample"), 0);
        assert_same_steps(with, without);
        assert_true(same_checkpoint(with, without, 12));
    }
}

/* Whatever the ranks share out of the weights; one that holds a part alone could write nothing. */
static void ranks_write_the_sample_of_one_process(void **state) {
    (void)state;
    train_good("run=base " FP32 "steps=4");
    static const struct {
        const char *name, *settings;
    } layouts[] = {{"zero0", "layout.zero=0"}, {"zero1", "layout.zero=1"}, {"zero3", "layout.zero=3"}, {"lora", "lora.rank=2 init=base"}};
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        SCOPED_FREE char *alone = memory_format("%s-alone", layouts[i].name);
        SCOPED_FREE char *ranked = memory_format("run=%s " FP32 "%s steps=8 eval.every=4", layouts[i].name, layouts[i].settings);
        train_good("run=%s " FP32 "%s steps=8 eval.every=4", alone, layouts[i].settings);
        int port = process_free_port();
        Process ranks[2] = {rank_start(0, port, ranked), rank_start(1, port, ranked)};
        for (int r = 0; r < 2; r++) {
            ProcessResult result = process_finish(&ranks[r]);
            expect_code(&result, ERROR_NONE, ranked);
            process_free(&result);
        }
        assert_same_samples(layouts[i].name, alone, 2);
    }
}

static void a_run_that_goes_on_writes_the_same_samples(void **state) {
    (void)state;
    train_good("run=whole steps=20 eval.every=5");
    train_good("run=parts steps=20 eval.every=5 stop_at=7");
    train_good("run=parts steps=20 eval.every=5 stop_at=10");
    train_good("run=parts steps=20 eval.every=5");
    assert_same_samples("whole", "parts", 4);
}

static void the_prompt_is_a_setting(void **state) {
    (void)state;
    write_text("prompt.yaml", "eval:\n  prompt: \"one\\ttwo\"\n");
    train_says(ERROR_USAGE, "eval.prompt 62 model.context=32", "run=run eval.prompt=%062d", 0);
    ProcessResult result = smelt("train prompt.yaml " TINY " run=run steps=6");
    expect_code(&result, ERROR_NONE, "prompt.yaml");
    assert_non_null(strstr(result.output, "\n  sample  after \"one\\ttwo\": "));
    process_free(&result);
    SCOPED_FREE char *prompt = sample("run", 0, "prompt");
    assert_string_equal(prompt, "one\ttwo");
}

static void blanks_are_no_prompt(void **state) {
    (void)state;
    char *valid = memory_format(
        "%100s\n%s", "", "A text that goes on for more than some tens of bytes, so that an evaluation has something to read.");
    write_text("valid", valid);
    free(valid);
    train_good(
        "run=run steps=1 schedule.warmup=0 checkpoint.every=0 data.valid=valid model.context=96 eval.sample_tokens=8 eval.sequences=1");
    SCOPED_FREE char *prompt = sample("run", 0, "prompt");
    assert_non_null(strstr(prompt, "A text that"));
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_sample_is_what_generate_writes),
        EACH_ISA(TRAIN_TEST(samples_change_no_bit_of_training)),
        TRAIN_TEST(ranks_write_the_sample_of_one_process),
        TRAIN_TEST(a_run_that_goes_on_writes_the_same_samples),
        TRAIN_TEST(the_prompt_is_a_setting),
        TRAIN_TEST(blanks_are_no_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
