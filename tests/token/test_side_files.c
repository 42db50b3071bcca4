/* Tests of a tokenizer's side files: every file with every malformed and extreme value, folders that transformers and
 * sentencepiece made with the ids that transformers 5.24 gives (tests/golden/check_side_files.py has many more), and their
 * copies. Run by `make test`. */
#include "chat/chat.h"
#include "support/files.h"
#include "support/mentions.h"
#include "token/tokenizer.h"

#define MODEL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]}"
#define ADDED(id, text) "{\"id\":" id ",\"content\":\"" text "\",\"special\":true}"

static Tokenizer *open_good(const char *path) {
    Error error = {0};
    Tokenizer *tokenizer = tokenizer_open(path, &error);
    if (!tokenizer) fail_msg("%s: %s", path, error.message);
    return tokenizer;
}

static void assert_refused(const char *part) {
    Error error = {0};
    Tokenizer *tokenizer = tokenizer_open(".", &error);
    tokenizer_free(tokenizer);
    if (tokenizer) fail_msg("read, and no \"%s\"", part);
    assert_int_equal(error.code, ERROR_DATA);
    if (!mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

static void assert_end(int32_t end) {
    Tokenizer *tokenizer = open_good(".");
    assert_int_equal(tokenizer_end_of_text(tokenizer), end);
    tokenizer_free(tokenizer);
}

static void assert_ids(const char *path, const char *text, unsigned flags, const int32_t *ids, size_t count) {
    Error error = {0};
    Tokenizer *tokenizer = open_good(path);
    TokenizerEncoder *encoder = tokenizer_encoder_open(tokenizer);
    TokenIds found = {0};
    assert_true(tokenizer_encode(encoder, text, strlen(text), flags, &found, &error));
    assert_int_equal(found.count, count);
    assert_memory_equal(found.items, ids, count * sizeof *ids);
    token_ids_free(&found);
    tokenizer_encoder_free(encoder);
    tokenizer_free(tokenizer);
}
#define ASSERT_IDS(path, text, flags, ...) \
    assert_ids(path, text, flags, (int32_t[]){__VA_ARGS__}, sizeof(int32_t[]){__VA_ARGS__} / sizeof(int32_t))

static const char *const json_files[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};

/* -- Every file with every value ----------------------------------------------------------------------------------- */

static void a_side_file_that_is_not_json_is_an_error(void **state) {
    (void)state;
    static const char *const bad[] = {"", "{", "{\"a\":1,}", "[1]", "null", "1", "{'a':1}", "\xef\xbb\xbf{}", "{\"a\":\"\xff\"}",
        "{\"a\":nan}", "{\"a\":01}", "{} {}", "{\"a\":\"\n\"}", "\xff\xfe{\0}"};
    write_text("tokenizer.json", "{" MODEL ",\"added_tokens\":[" ADDED("3", "</s>") "]}");
    for (size_t i = 0; i < sizeof json_files / sizeof *json_files; i++) {
        for (size_t j = 0; j < sizeof bad / sizeof *bad; j++) {
            write_text(json_files[i], bad[j]);
            assert_refused(json_files[i]);
        }
        assert_int_equal(remove(json_files[i]), 0);
        assert_int_equal(mkdir(json_files[i], 0700), 0);
        assert_refused(json_files[i]);
        assert_int_equal(rmdir(json_files[i]), 0);
    }
    write_text("chat_template.jinja", "\xff");
    assert_refused("chat_template.jinja UTF-8");
    assert_int_equal(remove("chat_template.jinja"), 0);
    write_text("additional_chat_templates", "");
    assert_end(3);
}

static void numbers_of_any_size_leave_the_rest_as_it_is(void **state) {
    (void)state;
    static const char *const numbers[] = {"1000000000000000019884624838656", "-9223372036854775809", "18446744073709551615", "1e400",
        "-1e400", "Infinity", "-Infinity", "NaN", "1e-400", "9223372036854775807", "[[NaN]]", "{\"b\":1e999}"};
    write_text("tokenizer.json", "{" MODEL ",\"added_tokens\":[" ADDED("3", "</s>") "," ADDED("4", "<e>") "]}");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char text[200];
        snprintf(text, sizeof text, "{\"model_max_length\": %s, \"eos_token\": \"<e>\"}", numbers[i]);
        write_text("tokenizer_config.json", text);
        assert_end(4);
        snprintf(text, sizeof text, "{\"eos_token\": \"</s>\", \"x\": %s}", numbers[i]);
        write_text("special_tokens_map.json", text);
        assert_end(3);
        assert_int_equal(remove("special_tokens_map.json"), 0);
        snprintf(text, sizeof text, "{\"eos_token\": %s}", numbers[i]);
        write_text("tokenizer_config.json", text);
        assert_refused("eos_token");
        snprintf(text, sizeof text, "{\"<x>\": %s}", numbers[i]);
        write_text("tokenizer_config.json", "{}");
        write_text("added_tokens.json", text);
        assert_refused("<x>");
        assert_int_equal(remove("added_tokens.json"), 0);
    }
}

/* -- Tokens of side files -------------------------------------------------------------------------------------------- */

static void side_files_name_tokens_as_transformers_reads_them(void **state) {
    (void)state;
    write_text("tokenizer.json", "{" MODEL ",\"added_tokens\":[" ADDED("3", "</s>") "," ADDED("4", "<e>") "]}");
    write_text("tokenizer_config.json", "{\"eos_token\":\"</s>\"}");
    write_text("special_tokens_map.json", "{\"eos_token\":{\"content\":\"<e>\"}}");
    assert_end(4); /* the old file goes first */
    write_text("tokenizer_config.json", "{\"eos_token\":\"</s>\",\"added_tokens_decoder\":{}}");
    assert_end(3); /* and does not count beside added_tokens_decoder */
    write_text("tokenizer_config.json",
        "{\"eos_token\":\"<new>\",\"pad_token\":\"<pad>\",\"extra_special_tokens\":[\"<x>\"],"
        "\"image_token\":\"<i>\",\"added_tokens_decoder\":{\"6\":{\"content\":\"<b>\"},\"5\":{\"content\":\"<a>\"}}}");
    assert_end(7);
    ASSERT_IDS(".", "<a><b><new><pad><i><x>ab", 0, 5, 6, 7, 8, 9, 10, 2);
    write_text("tokenizer_config.json", "{\"added_tokens_decoder\":{\"9\":{\"content\":\"<a>\"}}}");
    assert_refused("'<a>' id 9");
    write_text("tokenizer_config.json", "{\"pad_token\":{\"special\":true}}");
    assert_int_equal(remove("special_tokens_map.json"), 0);
    assert_refused("pad_token");
}

static void settings_that_change_ids_are_read_or_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *config, *part; /* NULL: it is read */
    } cases[] = {
        {"{\"split_special_tokens\":true}", "split_special_tokens"},
        {"{\"split_special_tokens\":\"no\"}", "split_special_tokens"},
        {"{\"split_special_tokens\":false,\"add_prefix_space\":null}", NULL},
        {"{\"tokenizer_class\":\"GPT2TokenizerFast\",\"add_prefix_space\":true}", "add_prefix_space is true"},
        {"{\"tokenizer_class\":\"GPT2Tokenizer\",\"add_prefix_space\":false}", NULL},
        {"{\"tokenizer_class\":\"PreTrainedTokenizerFast\",\"add_prefix_space\":true}", NULL},
        {"{\"added_tokens_decoder\":[\"<x>\"]}", "added_tokens_decoder"},
        {"{\"added_tokens_decoder\":{\"3\":\"<x>\"}}", "added_tokens_decoder"},
        {"{\"added_tokens_decoder\":{\"3\":{\"content\":\"\"}}}", "added_tokens_decoder"},
        {"{\"additional_special_tokens\":\"<x>\"}", "additional_special_tokens"},
        {"{\"extra_special_tokens\":7}", "extra_special_tokens"},
        {"{\"extra_special_tokens\":null,\"added_tokens_decoder\":null}", NULL},
    };
    write_text("tokenizer.json",
        "{" MODEL ",\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"added_tokens\":[" ADDED("3", "</s>") "]}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("tokenizer_config.json", cases[i].config);
        if (cases[i].part) assert_refused(cases[i].part);
        else assert_end(3);
    }
    assert_int_equal(remove("tokenizer.json"), 0);
    write_text("vocab.json", "{}");
    write_text("tokenizer_config.json", "{}");
    assert_refused("vocab.json and merges.txt");
}

static void added_tokens_have_the_ids_of_tokenizers_or_are_refused(void **state) {
    (void)state;
    static const char *const refused[] = {ADDED("10", "<x>"), ADDED("4", "<x>") "," ADDED("3", "<y>"), ADDED("7", "a"), ADDED("1", "<x>"),
        ADDED("3", "<x>") "," ADDED("3", "<y>"), ADDED("3", "<x>") "," ADDED("4", "<x>")};
    char text[400];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(text, sizeof text, "{" MODEL ",\"added_tokens\":[%s]}", refused[i]);
        write_text("tokenizer.json", text);
        assert_refused("without");
    }
    write_text("tokenizer.json", "{" MODEL ",\"added_tokens\":[" ADDED("0", "a") "," ADDED("3", "<x>") "," ADDED("4", "<y>") "]}");
    ASSERT_IDS(".", "a<y><x>", 0, 0, 4, 3);
}

/* -- Folders --------------------------------------------------------------------------------------------------------- */

/* $SMELT is the program's path; the golden folders lie in the repository, where the tests start. */
static const char *golden;

static void copy_golden(const char *name, const char *const *files) {
    for (; *files; files++) {
        size_t size;
        char *path = memory_format("%s/%s/%s", golden, name, *files);
        unsigned char *bytes = read_bytes(path, &size);
        write_bytes(*files, bytes, size);
        free(bytes);
        free(path);
    }
}

/* A Llama 2 folder without tokenizer.json. The ids are those of transformers' AutoTokenizer. */
static void a_sentencepiece_model_with_side_files_is_what_transformers_makes_of_it(void **state) {
    (void)state;
    static const char *const files[] = {
        "tokenizer.model", "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "config.json", NULL};
    static const char text[] = "a  b <s> c<|im_end|>d";
    Error error = {0};
    copy_golden("llama2", files);
    ASSERT_IDS(".", "hello world", TOKENIZER_ADD_SPECIAL, 1, 261, 280, 273, 281);
    ASSERT_IDS(".", text, TOKENIZER_ADD_SPECIAL, 1, 260, 284, 271, 284, 1, 272, 301, 296);
    ASSERT_IDS(".", " x", TOKENIZER_ADD_SPECIAL, 1, 284, 123);
    assert_end(301);
    assert_true(tokenizer_copy(".", "copy", &error));
    bool differs;
    assert_true(tokenizer_differs(".", "copy", &differs, &error) && !differs);
    ASSERT_IDS("copy", text, TOKENIZER_ADD_SPECIAL, 1, 260, 284, 271, 284, 1, 272, 301, 296);
    json_auto_t *config = tokenizer_config("copy", &error);
    assert_string_equal(json_string_value(json_object_get(config, "eos_token")), "<|im_end|>");
    write_text("added_tokens.json", "{\"<|im_start|>\":305}");
    assert_refused("305");
    write_text("added_tokens.json", "{}");
    write_text("config.json", "{\"model_type\":\"gemma\"}");
    assert_refused("model_type 'gemma'");
    write_text("config.json", "{\"model_type\":1e400,}");
    assert_refused("config.json");
    write_text("tokenizer_config.json", "{\"tokenizer_class\":\"T5Tokenizer\"}");
    assert_int_equal(remove("config.json"), 0);
    assert_refused("T5Tokenizer");
}

/* As in SentencePiece itself, control tokens are not matched. */
static void a_sentencepiece_model_alone_has_its_own_ways(void **state) {
    (void)state;
    static const char *const files[] = {"tokenizer.model", NULL};
    copy_golden("llama2", files);
    ASSERT_IDS(".", "<s> x", 0, 284, 63, 286, 65, 284, 123);
    assert_end(2);
}

/* -- Templates --------------------------------------------------------------------------------------------------------- */

static char *render(const char *folder, const char *record) {
    Error error = {0};
    Tokenizer *tokenizer = open_good(folder);
    ChatOptions options = {.source = folder, .template = "", .end_token = -1};
    Chat *chat = chat_open(&options, tokenizer, &error);
    if (!chat) fail_msg("%s", error.message);
    ChatEncoder *encoder = chat_encoder_open(chat);
    json_auto_t *json = json_loads(record, 0, NULL);
    ChatDocument document = {0};
    bool good = chat_encode(encoder, json, &document, &error);
    if (!good) fail_msg("%s", error.message);
    char *text = memory_format("%.*s", (int)document.text.size, document.text.bytes);
    chat_document_free(&document);
    chat_encoder_free(encoder);
    chat_free(chat);
    tokenizer_free(tokenizer);
    return text;
}

static void assert_rendered(const char *folder, bool tools, const char *expected) {
    char *text =
        render(folder, tools ? "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}],"
                               "\"tools\":[{\"name\":\"f\"}]}"
                             : "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}");
    assert_string_equal(text, expected);
    free(text);
}

#define LOOP(mark) "{% for m in messages %}" mark "{{ m.content }}{% endfor %}"
static void templates_in_files_go_before_those_of_the_configuration(void **state) {
    (void)state;
    Error error = {0};
    write_text("tokenizer.json", "{" MODEL "}");
    write_text("tokenizer_config.json", "{\"eos_token\":\"ab\",\"chat_template\":[{\"name\":\"default\",\"template\":\"" LOOP(
                                            "c") "\"},"
                                                 "{\"name\":\"tool_use\",\"template\":\"" LOOP("t") "\"}]}");
    assert_rendered(".", false, "cacb");
    assert_rendered(".", true, "tatb");
    write_text("chat_template.jinja", LOOP("f"));
    assert_rendered(".", false, "fafb");
    assert_rendered(".", true, "fafb");
    assert_int_equal(mkdir("additional_chat_templates", 0700), 0);
    write_text("additional_chat_templates/tool_use.jinja", LOOP("F"));
    write_text("additional_chat_templates/rag.jinja", LOOP("R"));
    write_text("additional_chat_templates/notes.txt", "{");
    assert_rendered(".", false, "fafb");
    assert_rendered(".", true, "FaFb");
    assert_true(tokenizer_copy(".", "copy", &error));
    assert_rendered("copy", true, "FaFb");
    assert_true(access("copy/additional_chat_templates/rag.jinja", F_OK) == 0);
    assert_true(tokenizer_put_template("copy", LOOP("p"), &error));
    assert_rendered("copy", true, "papb");
}

int main(void) {
    golden = realpath("tests/golden/folders", NULL);
    const struct CMUnitTest tests[] = {
        IN_FOLDER(a_side_file_that_is_not_json_is_an_error),
        IN_FOLDER(numbers_of_any_size_leave_the_rest_as_it_is),
        IN_FOLDER(side_files_name_tokens_as_transformers_reads_them),
        IN_FOLDER(settings_that_change_ids_are_read_or_refused_by_name),
        IN_FOLDER(added_tokens_have_the_ids_of_tokenizers_or_are_refused),
        IN_FOLDER(a_sentencepiece_model_with_side_files_is_what_transformers_makes_of_it),
        IN_FOLDER(a_sentencepiece_model_alone_has_its_own_ways),
        IN_FOLDER(templates_in_files_go_before_those_of_the_configuration),
    };
    return golden ? cmocka_run_group_tests(tests, NULL, NULL) : 1;
}
