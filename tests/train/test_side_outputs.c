/* Every field of a folder's side files in every output: kept, or named by a message. Run by `make test`. */
#include <jansson.h>

#include "base/scope.h"
#include "support/mentions.h"
#include "support/train_run.h"

#define TEMPLATE "{% for m in messages %}{{ m.content }}{% endfor %}"

/* A field, its value, and the key that a GGUF file holds it by; NULL: a message names the field. */
typedef struct SideField { const char *name, *value, *key; } SideField;

static const SideField generation[] = {{"eos_token_id", "[0, 4, 5, 6, 7]", "tokenizer.ggml.eom_token_id"},
    {"bos_token_id", "3", "tokenizer.ggml.bos_token_id"}, {"pad_token_id", "2", "tokenizer.ggml.padding_token_id"},
    {"temperature", "0.6", NULL}, {"top_p", "0.9", NULL}, {"top_k", "20", NULL}, {"min_p", "0.05", NULL}, {"typical_p", "0.9", NULL},
    {"do_sample", "true", NULL}, {"repetition_penalty", "1.1", NULL}, {"max_new_tokens", "9", NULL}, {"max_length", "99", NULL},
    {"stop_strings", "[\"x\"]", NULL}, {"suppress_tokens", "[5]", NULL}, {"bad_words_ids", "[[7, 8]]", NULL},
    {"forced_eos_token_id", "2", NULL}, {"a_field_of_tomorrow", "{\"a\": 1e400}", NULL}};

static const SideField tokenizer[] = {{"eos_token", "\"<|endoftext|>\"", "tokenizer.ggml.eos_token_id"},
    {"bos_token", "\"a\"", "tokenizer.ggml.add_bos_token"}, {"unk_token", "\"b\"", "tokenizer.ggml.unknown_token_id"},
    {"pad_token", "\"c\"", "tokenizer.ggml.padding_token_id"}, {"sep_token", "\"d\"", "tokenizer.ggml.seperator_token_id"},
    {"cls_token", "\"e\"", "tokenizer.ggml.cls_token_id"},
    {"mask_token", "{\"content\": \"f\", \"lstrip\": true}", "tokenizer.ggml.mask_token_id"},
    {"additional_special_tokens", "[\"g\"]", "tokenizer.ggml.token_type"},
    {"added_tokens_decoder", "{\"0\": {\"content\": \"<|endoftext|>\", \"special\": true}}", "tokenizer.ggml.tokens"},
    {"chat_template", "[{\"name\": \"default\", \"template\": \"" TEMPLATE "\"}, {\"name\": \"tool_use\", \"template\": \"T\"}]",
        "tokenizer.chat_template.tool_use"},
    {"extra_special_tokens", "{\"image_token\": \"h\"}", NULL}, {"image_token", "\"h\"", NULL},
    {"tokenizer_class", "\"PreTrainedTokenizerFast\"", NULL}, {"model_max_length", "1000000000000000019884624838656", NULL},
    {"padding_side", "\"left\"", NULL}, {"truncation_side", "\"left\"", NULL}, {"clean_up_tokenization_spaces", "true", NULL},
    {"add_prefix_space", "true", NULL}, {"processor_class", "\"X\"", NULL}, {"a_field_of_tomorrow", "NaN", NULL}};

static const SideField parts[] = {{"truncation", "{\"max_length\": 8}", NULL}, {"padding", "{\"pad_id\": 0}", NULL}};

#define COUNT(fields) (sizeof(fields) / sizeof *(fields))

static void write_fields(const char *path, const SideField *fields, size_t count) {
    char *text = memory_copy_string("{");
    for (size_t i = 0; i < count; i++) {
        char *longer = memory_format("%s%s\"%s\": %s", text, i ? ", " : "", fields[i].name, fields[i].value);
        free(text);
        text = longer;
    }
    char *whole = memory_format("%s}", text);
    write_text(path, whole);
    free(text);
    free(whole);
}

/* The folder "base" with every field. */
static void make_base(void) {
    char *golden = memory_format("%s/tests/golden/tokenizers/gpt2.json", getenv("REPOSITORY"));
    train_good("run=first model.family=llama model.experts=0 precision=fp32 steps=1 schedule.warmup=0 data.tokenizer=%s", golden);
    free(golden);
    smelt_good("convert first base");
    json_auto_t *content = json_load_file("base/tokenizer.json", 0, NULL);
    for (size_t i = 0; i < COUNT(parts); i++) json_object_set_new(content, parts[i].name, json_loads(parts[i].value, 0, NULL));
    assert_int_equal(json_dump_file(content, "base/tokenizer.json", 0), 0);
    write_fields("base/tokenizer_config.json", tokenizer, COUNT(tokenizer));
    write_fields("base/generation_config.json", generation, COUNT(generation));
    assert_int_equal(mkdir("base/additional_chat_templates", 0700), 0);
    write_text("base/additional_chat_templates/tool_use.jinja", "R");
    write_text("base/chat_template.jinja", TEMPLATE);
    write_text("base/special_tokens_map.json", "{\"eos_token\": \"<|endoftext|>\", \"other\": 1}");
}

static void assert_kept(const char *folder, bool with_generation) {
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja", "generation_config.json"};
    for (size_t i = 0; i < COUNT(files) - !with_generation; i++) {
        SCOPED_FREE char *here = memory_format("base/%s", files[i]), *there = memory_format("%s/%s", folder, files[i]);
        if (!same_bytes(here, there)) fail_msg("%s is not %s", there, here);
    }
}

/* A file that was written anew, with the same fields. */
static void assert_settings(const char *path) {
    SCOPED_FREE char *text = read_text(path);
    for (size_t i = 0; i < COUNT(generation); i++) assert_holds(text, generation[i].name);
    assert_holds(text, "Infinity");
}

static void assert_held_or_named(const SideField *fields, size_t count, const char *file, size_t size, const char *messages) {
    for (size_t i = 0; i < count; i++) {
        const char *key = fields[i].key;
        if (key && !memmem(file, size, key, strlen(key))) fail_msg("%s is not in the GGUF file as %s", fields[i].name, key);
        if (!key && !strstr(messages, fields[i].name)) fail_msg("%s is neither held nor named: %s", fields[i].name, messages);
    }
}

static void every_field_of_side_files_is_kept_or_named(void **state) {
    (void)state;
    make_base();
    smelt_good("convert base folder");
    assert_kept("folder", true);
    smelt_good("train init=base data.train=text data.special=true run=run steps=1 data.length=16 batch.tokens=16 batch.sequences=1 "
               "lora.rank=2 schedule.warmup=0");
    assert_kept("run/tokenizer", false);
    assert_settings("run/generation_config.json");
    smelt_good("convert run merged");
    assert_kept("merged", false);
    assert_settings("merged/generation_config.json");
    smelt_good("convert run adapter adapter=true");
    smelt_good("convert adapter@base again");
    assert_kept("again", true);
    ProcessResult result = smelt("convert base file.gguf");
    expect_code(&result, ERROR_NONE, "convert base file.gguf");
    SCOPED_FREE char *messages = memory_format("%s%s", result.output, result.errors);
    size_t size;
    char *file = (char *)read_bytes("file.gguf", &size);
    assert_held_or_named(generation, COUNT(generation), file, size, messages);
    assert_held_or_named(tokenizer, COUNT(tokenizer), file, size, messages);
    assert_held_or_named(parts, COUNT(parts), file, size, messages);
    assert_non_null(memmem(file, size, "tokenizer.chat_templates", 24));
    assert_mentions(messages, "2 end-of-text tokens");
    assert_mentions(messages, "lstrip, rstrip single_word");
    free(file);
    process_free(&result);
}

/* The folder of a GGUF file has the special tokens of the folder that the file was made of. */
static void special_tokens_come_back_from_a_gguf_file(void **state) {
    (void)state;
    static const char *const files[] = {"back/config.json", "back/generation_config.json"};
    make_base();
    for (int one = 0; one < 2; one++) { /* several tokens that end a text; one, which the tokenizer does not name */
        if (one) write_text("base/generation_config.json", "{\"eos_token_id\": 4}");
        smelt_good("convert base file.gguf overwrite=true");
        smelt_good("convert file.gguf back overwrite=true");
        json_auto_t *tokens = json_load_file("back/tokenizer.json", 0, NULL),
                    *names = json_load_file("back/tokenizer_config.json", 0, NULL);
        json_auto_t *vocabulary = json_incref(json_object_get(json_object_get(tokens, "model"), "vocab"));
        json_auto_t *expected = json_pack("{ss ss ss ss ss ss ss}", "eos_token", "<|endoftext|>", "bos_token", "a", "unk_token", "b",
                        "pad_token", "c", "sep_token", "d", "cls_token", "e", "mask_token", "f"),
                    *ends = one ? json_pack("[ii]", 0, 4) : json_pack("[iii]", 0, 4, 5);
        const char *name;
        json_t *text;
        json_object_foreach(expected, name, text) if (!json_equal(json_object_get(names, name), text)) fail_msg("%s is lost", name);
        for (size_t i = 0; i < COUNT(files); i++) {
            json_auto_t *settings = json_load_file(files[i], 0, NULL);
            assert_true(json_equal(json_object_get(settings, "pad_token_id"), json_object_get(vocabulary, "c")));
            assert_true(json_equal(json_object_get(settings, "bos_token_id"), json_object_get(vocabulary, "a")));
            assert_true(json_equal(json_object_get(settings, "eos_token_id"), ends));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(special_tokens_come_back_from_a_gguf_file), TRAIN_TEST(every_field_of_side_files_is_kept_or_named)};
    setenv("REPOSITORY", realpath(".", NULL), 1);
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
