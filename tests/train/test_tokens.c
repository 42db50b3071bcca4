/* End to end: the tokenizer travels with the tokens that it made, from shards to runs to model folders, and is never
 * guessed. */
#include "support/train_run.h"

static char *gpt2, *llama3; /* tokenizers of 700 tokens and of others */

static void good(const char *words) {
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    process_free(&result);
}

static void refuses(int code, const char *fragment, const char *words) {
    ProcessResult result = smelt(words);
    expect_code(&result, code, words);
    if (!strstr(result.errors, fragment)) fail_msg("\"%s\" is not in:\n%s", fragment, result.errors);
    process_free(&result);
}

static void prints(const char *fragment, const char *words) {
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    if (!strstr(result.output, fragment)) fail_msg("\"%s\" is not in:\n%s", fragment, result.output);
    process_free(&result);
}

static void pack(const char *output, const char *tokenizer, const char *more) {
    char *words = memory_format("data pack text %s tokenizer=%s %s", output, tokenizer, more);
    good(words);
    free(words);
}

static void remove_folder(const char *path) { assert_int_equal(nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0); }

/* Neither the tokenizer nor the vocabulary is given, and the tokenizer's own file is elsewhere by then. */
static void a_shard_brings_its_tokenizer_to_run_text_and_folder(void **state) {
    (void)state;
    pack("s", gpt2, "valid=0.1");
    assert_true(same_bytes(gpt2, "s-train.tokenizer/tokenizer.json") && same_bytes(gpt2, "s-valid.tokenizer/tokenizer.json"));
    prints("tokenizer:        s-train.tokenizer\n", "data show s-train");
    train_good("run=run data.train=s-train data.valid=s-valid steps=3 schedule.warmup=0");
    char *settings = read_text("run/config.yaml");
    assert_non_null(strstr(settings, "  vocabulary: 704"));
    assert_non_null(strstr(settings, "/s-train.tokenizer\""));
    free(settings);
    remove_folder("s-train.tokenizer");
    prints("A_model\n", "generate run A_model tokens=0");
    prints("bits per byte", "eval run text");
    prints("bits per byte", "eval run s-valid");
    good("convert run folder");
    assert_true(same_bytes(gpt2, "folder/tokenizer.json"));
    prints("A_model\n", "generate folder A_model tokens=0");
}

static void bytes_are_recorded_too(void **state) {
    (void)state;
    pack("s", "", "");
    prints("tokenizer:        bytes\n", "data show s");
    train_good("run=run data.train=s data.valid=s steps=3 schedule.warmup=0");
    prints("A_model\n", "generate run A_model tokens=0");
    prints("bits per byte", "eval run s");
    good("convert run folder");
    assert_true(access("folder/tokenizer.json", F_OK) == 0);
    char *settings = read_text("run/config.yaml");
    assert_non_null(strstr(settings, "  vocabulary: 320"));
    free(settings);
}

/* As another program's shard: the program once took its tokens for bytes. */
static void without_a_record_the_tokenizer_is_not_guessed(void **state) {
    (void)state;
    pack("s", gpt2, "");
    remove_folder("s.tokenizer");
    prints("tokenizer:        not recorded\n", "data show s");
    train_good("run=run data.train=s data.valid=s model.vocabulary=4096 steps=3 schedule.warmup=0");
    refuses(ERROR_USAGE, "the tokenizer of run is not known: put its tokenizer.json into RUN/tokenizer", "generate run the tokens=1");
    refuses(ERROR_USAGE, "do not tell their tokenizer", "convert run folder");
    refuses(ERROR_USAGE, "the model has no tokenizer", "eval run text");
    good("generate run 5 tokens=1 text=false");
    ProcessResult result = smelt("eval run s");
    expect_code(&result, ERROR_NONE, "eval");
    assert_null(strstr(result.output, "bits per byte"));
    process_free(&result);
    good("convert run bare tokenizer=none");
    assert_true(access("bare/tokenizer.json", F_OK) != 0);
    char *words = memory_format("run=named data.train=s data.tokenizer=%s steps=3 schedule.warmup=0", gpt2);
    train_good("%s", words);
    free(words);
    prints("A_model\n", "generate named A_model tokens=0");
    assert_int_equal(mkdir("run/tokenizer", 0777), 0);
    words = memory_format("%s/named/tokenizer/tokenizer.json", ".");
    assert_int_equal(rename(words, "run/tokenizer/tokenizer.json"), 0);
    free(words);
    prints("A_model\n", "generate run A_model tokens=0");
}

static void tokens_of_two_tokenizers_do_not_meet(void **state) {
    (void)state;
    pack("s", gpt2, "");
    pack("other", llama3, "");
    pack("bytes", "", "");
    train_says(ERROR_USAGE, "data.valid=other was packed with other.tokenizer, and here the tokenizer is s.tokenizer",
        "run=run data.train=s data.valid=other");
    train_says(ERROR_USAGE, "data.valid=bytes was packed with the byte tokenizer", "run=run data.train=s data.valid=bytes");
    train_says(ERROR_USAGE, "data.train=s was packed with s.tokenizer", "run=run data.train=s data.tokenizer=%s", llama3);
    train_good("run=run data.train=s data.valid=s data.tokenizer=%s steps=3 schedule.warmup=0", gpt2);
    refuses(ERROR_DATA, "other: it was packed with other.tokenizer, and the model's tokenizer is run/tokenizer/tokenizer.json",
        "eval run other");
    refuses(ERROR_DATA, "bytes: it was packed with the byte tokenizer", "eval run bytes");
    prints("bits per byte", "eval run s");
}

static void a_tokenizer_with_more_tokens_than_the_model_has_rows_is_not_exported(void **state) {
    (void)state;
    train_good("run=run data.tokenizer=%s steps=1 schedule.warmup=0", llama3);
    train_good("run=small data.tokenizer=%s steps=1 schedule.warmup=0", gpt2);
    good("data train-tokenizer text run/tokenizer/tokenizer.json vocabulary=257");
    assert_int_equal(rename("run/tokenizer/tokenizer.json", "few.json"), 0);
    train_good("run=few data.tokenizer=few.json steps=1 schedule.warmup=0");
    assert_int_equal(rename("small/tokenizer/tokenizer.json", "few/tokenizer/tokenizer.json"), 0);
    refuses(ERROR_USAGE, "model.vocabulary=320 of few is below the 700 tokens of few/tokenizer/tokenizer.json", "convert few folder");
}

static void rows_that_no_token_reaches_are_named(void **state) {
    (void)state;
    train_says(ERROR_NONE, "model.vocabulary=4096 is more than twice the 257 tokens of the byte tokenizer",
        "run=run model.vocabulary=4096 stop_at=1");
}

static void an_existing_shard_is_replaced_only_when_that_is_wanted(void **state) {
    (void)state;
    pack("s", gpt2, "");
    pack("t", "", "valid=0.1");
    refuses(ERROR_USAGE, "the shard s exists: give another name, or overwrite=true", "data pack text s");
    refuses(ERROR_USAGE, "the shard t-train exists", "data pack text t valid=0.2");
    prints("tokenizer:        s.tokenizer\n", "data show s");
    good("data pack text s overwrite=true");
    prints("tokenizer:        bytes\n", "data show s");
}

int main(void) {
    train_main();
    gpt2 = realpath("tests/golden/tokenizers/gpt2.json", NULL);
    llama3 = realpath("tests/golden/tokenizers/llama3.json", NULL);
    assert_true(gpt2 && llama3);
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_shard_brings_its_tokenizer_to_run_text_and_folder),
        TRAIN_TEST(bytes_are_recorded_too),
        TRAIN_TEST(without_a_record_the_tokenizer_is_not_guessed),
        TRAIN_TEST(tokens_of_two_tokenizers_do_not_meet),
        TRAIN_TEST(a_tokenizer_with_more_tokens_than_the_model_has_rows_is_not_exported),
        TRAIN_TEST(rows_that_no_token_reaches_are_named),
        TRAIN_TEST(an_existing_shard_is_replaced_only_when_that_is_wanted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
