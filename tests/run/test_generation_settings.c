/* Tests of what models say of generation, and of the JSON files of model folders: each with every malformed and extreme
 * value is read as Python reads it, or is an error that names the file. Run by `make test`. */
#include "base/scope.h"
#include "formats/hf.h"
#include "formats/peft.h"
#include "run/generation_settings.h"
#include "support/files.h"
#include "support/mentions.h"

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
        assert_mentions(error.message, "eos_token_id");
    }
    for (int i = 0; i < BAD; i++) {
        write_text("m/generation_config.json", bad[i]);
        assert_false(ends_of(&ends, &error));
        assert_int_equal(error.code, ERROR_DATA);
        assert_mentions(error.message, "m/generation_config.json");
    }
    assert_int_equal(remove("m/generation_config.json"), 0);
    for (int i = 0; i < BAD; i++) {
        write_text("m/config.json", bad[i]);
        assert_false(ends_of(&ends, &error));
        assert_mentions(error.message, "m/config.json");
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
        assert_mentions(error.message, "m/config.json JSON");
        write_text("m/adapter_config.json", bad[i]);
        assert_false(peft_open(&peft, "m", &error));
        assert_int_equal(error.code, ERROR_CHECKPOINT);
        assert_mentions(error.message, "m/adapter_config.json JSON");
    }
    for (int i = 0; i < NUMBERS; i++) {
        Error error = {0};
        PeftFolder peft;
        char text[200];
        snprintf(
            text, sizeof text, "{\"peft_type\": \"LORA\", \"r\": %s, \"lora_alpha\": 1, \"target_modules\": [\"q_proj\"]}", numbers[i]);
        write_text("m/adapter_config.json", text);
        assert_false(peft_open(&peft, "m", &error));
        assert_mentions(error.message, "m/adapter_config.json");
    }
}

/* -- The whole walk ----------------------------------------------------------------------------------------------------- */

typedef struct Reader {
    const char *file, *field; /* a field that it reads, which a number or an object must not be */
    bool (*read)(Error *error);
} Reader;

static bool read_model(Error *error) {
    HfModel model = {0};
    bool good = hf_read("m", &model, error);
    hf_release(&model);
    return good;
}

static bool read_ends(Error *error) {
    TokenIds ends = {0};
    bool good = ends_of(&ends, error);
    token_ids_free(&ends);
    return good;
}

static bool read_adapter(Error *error) {
    PeftFolder peft = {0};
    return peft_open(&peft, "m", error);
}

static bool read_tokenizer(Error *error) {
    Tokenizer *tokenizer = tokenizer_open("m", error);
    tokenizer_free(tokenizer);
    return tokenizer;
}

static const Reader readers[] = {{"config.json", "model_type", read_model}, {"generation_config.json", "eos_token_id", read_ends},
    {"adapter_config.json", "peft_type", read_adapter}, {"adapter_config.json", "r", read_adapter},
    {"tokenizer_config.json", "eos_token", read_tokenizer}, {"tokenizer_config.json", "bos_token", read_tokenizer},
    {"tokenizer_config.json", "pad_token", read_tokenizer}, {"tokenizer_config.json", "added_tokens_decoder", read_tokenizer},
    {"tokenizer_config.json", "additional_special_tokens", read_tokenizer}, {"special_tokens_map.json", "eos_token", read_tokenizer},
    {"special_tokens_map.json", "unk_token", read_tokenizer}, {"added_tokens.json", "<x>", read_tokenizer},
    {"tokenizer.json", "model", read_tokenizer}};

static void assert_unread(const Reader *reader, const char *text, const char *part) {
    Error error = {0};
    if (reader->read(&error)) fail_msg("%s is read: %.80s", reader->file, text);
    assert_true(error.code == ERROR_DATA || error.code == ERROR_CHECKPOINT);
    if (!mentions(error.message, part)) fail_msg("%s in %s: \"%s\" does not name %s", text, reader->file, error.message, part);
}

static void write_tokens(void) {
    write_text("m/tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},\"added_tokens\":[{\"id\":1,"
                                   "\"content\":\"</s>\",\"special\":true}]}");
}

/* A nest of lists, deeper than Python's json and jansson read. */
static char *deep(void) {
    enum { DEPTH = 100000 };
    char *text = memory_format("{\"a\": %*s}", 2 * DEPTH, "");
    memset(text + 6, '[', DEPTH);
    memset(text + 6 + DEPTH, ']', DEPTH);
    return text;
}

static void every_file_with_every_malformed_text_is_an_error_that_names_it(void **state) {
    (void)state;
    char *nest = deep();
    const char *const texts[] = {"", " ", "{", "}", "[1]", "null", "1", "\"a\"", "{\"a\":1,}", "{,}", "{'a':1}", "{a:1}", "{\"a\":nan}",
        "{\"a\":inf}", "{\"a\":01}", "{\"a\":.5}", "{\"a\":1.}", "{\"a\":+1}", "{\"a\":0x1}", "{} {}", "{}x", "\xef\xbb\xbf{}",
        "{\"a\":\"\xff\"}", "{\"a\":\"\xe2\x82\"}", "{\"a\":\"\xed\xa0\x80\"}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\\udc00x\"}",
        "{\"a\":\"\\x\"}", "{\"a\":\"\n\"}", "{\"a\":tru}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "// x\n{}", "\xff\xfe{\0}", nest};
    assert_int_equal(mkdir("m", 0700), 0);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        SCOPED_FREE char *path = memory_format("m/%s", readers[i].file);
        write_text("m/config.json", "{\"model_type\": \"llama\"}");
        write_tokens();
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++) {
            write_text(path, texts[j]);
            assert_unread(&readers[i], texts[j], readers[i].file);
        }
        assert_int_equal(remove(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
        assert_unread(&readers[i], "a folder", readers[i].file);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(symlink("itself", "m/itself"), 0);
        assert_int_equal(symlink("itself", path), 0);
        assert_unread(&readers[i], "a link to itself", readers[i].file);
        assert_int_equal(remove(path), 0);
        assert_int_equal(remove("m/itself"), 0);
    }
    free(nest);
}

static void every_field_of_another_type_is_an_error_that_names_it(void **state) {
    (void)state;
    static const char *const values[] = {
        "true", "1.5", "-7", "1e400", "NaN", "1000000000000000019884624838656", "{\"a\": 1}", "[[]]", "[null]", "\"\""};
    assert_int_equal(mkdir("m", 0700), 0);
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        SCOPED_FREE char *path = memory_format("m/%s", readers[i].file);
        write_text("m/config.json", "{\"model_type\": \"llama\"}");
        write_tokens();
        for (size_t j = 0; j < sizeof values / sizeof *values; j++) {
            SCOPED_FREE char *text = memory_format("{%s\"%s\": %s}",
                strcmp(readers[i].field, "r") ? "" : "\"peft_type\": \"LORA\", \"lora_alpha\": 1, ", readers[i].field, values[j]);
            write_text(path, text);
            assert_unread(&readers[i], text, readers[i].field);
        }
        assert_int_equal(remove(path), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_FOLDER(every_file_with_every_malformed_text_is_an_error_that_names_it),
        IN_FOLDER(every_field_of_another_type_is_an_error_that_names_it),
        IN_FOLDER(ends_are_those_of_generation_config_else_of_config),
        IN_FOLDER(a_generation_config_of_any_numbers_keeps_its_ends_and_a_broken_one_is_an_error),
        IN_FOLDER(a_broken_config_or_adapter_config_is_an_error_that_names_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
