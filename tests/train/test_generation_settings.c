/* Tests of what models say of generation, and of the JSON files of model folders: each with every malformed and extreme
 * value is read as Python reads it, or is an error that names the file. Run by `make test`. */
#include "model/hf.h"
#include "model/peft.h"
#include "support/files.h"
#include "train/generation_settings.h"

static const char *const bad[] = {
    "", "{", "{\"a\":1,}", "[1]", "null", "{'a':1}", "\xef\xbb\xbf{}", "{\"a\":\"\xff\"}", "{\"a\":nan}", "{\"a\":01}", "{} {}"};
enum { BAD = sizeof bad / sizeof *bad };
static const char *const numbers[] = {"1000000000000000019884624838656", "-9223372036854775809", "18446744073709551615", "1e400", "-1e400",
    "Infinity", "-Infinity", "NaN", "1e-400"};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

/* The ends of model folder "m". */
static bool ends_of(TokenIds *ends, Error *error) {
    Config config;
    OptionStrings strings = {0};
    options_defaults(&config_table, &config, &strings);
    token_ids_free(ends);
    bool good = generation_end_tokens("m", &config, NULL, ends, error);
    options_free_strings(&strings);
    return good;
}

static void start_folder(void) {
    assert_int_equal(mkdir("m", 0700), 0);
    write_text("m/config.json", "{\"model_type\": \"llama\", \"eos_token_id\": [7, 8], \"pad_token_id\": 0}");
}

static void ends_are_those_of_generation_config_else_of_config(void **state) {
    (void)state;
    TokenIds ends = {0};
    Error error = {0};
    start_folder();
    assert_true(ends_of(&ends, &error));
    assert_int_equal(ends.count, 2);
    assert_int_equal(ends.items[1], 8);
    write_text("m/generation_config.json", "{\"eos_token_id\": [3, 1, 2], \"temperature\": 0.6}");
    assert_true(ends_of(&ends, &error));
    assert_int_equal(ends.count, 3);
    assert_int_equal(ends.items[0], 3);
    write_text("m/generation_config.json", "{\"eos_token_id\": null}");
    assert_true(ends_of(&ends, &error));
    assert_int_equal(ends.count, 0);
    token_ids_free(&ends);
}

static void a_generation_config_of_any_numbers_keeps_its_ends_and_a_broken_one_is_an_error(void **state) {
    (void)state;
    TokenIds ends = {0};
    Error error = {0};
    char text[200];
    start_folder();
    for (int i = 0; i < NUMBERS; i++) {
        snprintf(text, sizeof text, "{\"max_length\": %s, \"eos_token_id\": [3, 4]}", numbers[i]);
        write_text("m/generation_config.json", text);
        assert_true(ends_of(&ends, &error));
        assert_int_equal(ends.count, 2);
        snprintf(text, sizeof text, "{\"eos_token_id\": %s}", numbers[i]);
        write_text("m/generation_config.json", text);
        assert_false(ends_of(&ends, &error));
        assert_holds(error.message, "eos_token_id");
    }
    for (int i = 0; i < BAD; i++) {
        write_text("m/generation_config.json", bad[i]);
        assert_false(ends_of(&ends, &error));
        assert_int_equal(error.code, ERROR_DATA);
        assert_holds(error.message, "m/generation_config.json");
    }
    assert_int_equal(remove("m/generation_config.json"), 0);
    for (int i = 0; i < BAD; i++) {
        write_text("m/config.json", bad[i]);
        assert_false(ends_of(&ends, &error));
        assert_holds(error.message, "m/config.json");
    }
    token_ids_free(&ends);
}

static void a_broken_config_or_adapter_config_is_an_error_that_names_it(void **state) {
    (void)state;
    start_folder();
    for (int i = 0; i < BAD; i++) {
        Error error = {0};
        HfModel model;
        PeftFolder peft;
        write_text("m/config.json", bad[i]);
        assert_false(hf_read("m", &model, &error));
        assert_int_equal(error.code, ERROR_CHECKPOINT);
        assert_holds(error.message, "m/config.json is not JSON at");
        write_text("m/adapter_config.json", bad[i]);
        assert_false(peft_open(&peft, "m", &error));
        assert_int_equal(error.code, ERROR_CHECKPOINT);
        assert_holds(error.message, "m/adapter_config.json is not JSON at");
    }
    for (int i = 0; i < NUMBERS; i++) {
        Error error = {0};
        PeftFolder peft;
        char text[200];
        snprintf(
            text, sizeof text, "{\"peft_type\": \"LORA\", \"r\": %s, \"lora_alpha\": 1, \"target_modules\": [\"q_proj\"]}", numbers[i]);
        write_text("m/adapter_config.json", text);
        assert_false(peft_open(&peft, "m", &error));
        assert_holds(error.message, "m/adapter_config.json");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(ends_are_those_of_generation_config_else_of_config),
        IN_FOLDER(a_generation_config_of_any_numbers_keeps_its_ends_and_a_broken_one_is_an_error),
        IN_FOLDER(a_broken_config_or_adapter_config_is_an_error_that_names_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
