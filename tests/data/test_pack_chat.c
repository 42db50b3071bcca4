/* Tests of packing conversations into shards with a loss mask, and of reading the mask again. Each test runs in a
 * temporary folder of its own; run by `make test`. Tokens are bytes, so that counts can be checked by eye. */
#include <zlib.h>
#include <zstd.h>

#include "support/data_files.h"

#include "base/scope.h"
#include "data/loader.h"
#include "data/pack.h"
#include "support/mentions.h"

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ANSWER(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define LINE(...) "{\"messages\": [" __VA_ARGS__ "]}\n"
#define PART(type, text) "{\"type\": \"" type "\", \"text\": \"" text "\"}"
/* What ChatML puts around it. */
#define ASKED(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"
static const char three[] = LINE(USER("hi") "," ANSWER("yes")) "{\"prompt\": \"2+2=\", \"completion\": \"4\"}\n" LINE(
    USER("a") "," ANSWER("b") "," USER("c") "," ANSWER("dd"));

static PackOptions chat_options(const char *input) {
    static const char *inputs[2];
    inputs[0] = input;
    return (PackOptions){.inputs = inputs, .output = "out", .separator = "", .format = PACK_CHAT, .template = "chatml", .overwrite = true};
}

static PackResult pack_with(PackOptions options) {
    PackResult result;
    Error error = {0};
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void assert_refused(PackOptions options, ErrorCode code, const char *part) {
    PackResult result;
    Error error = {0};
    assert_false(pack_text(&options, &result, &error));
    if (error.code != code || !mentions(error.message, part))
        fail_msg("\"%s\" (%d) does not contain \"%s\"", error.message, error.code, part);
}

/* The tokens of a set as text, those that are trained in upper case, with | for a separator and / behind a document. */
static char *masked_text(const char *path, int64_t step) {
    ShardSet set = open_set(path);
    Error error = {0};
    char *text = memory_allocate((size_t)(2 * set.token_count + 1)), *out = text;
    int32_t tokens[512];
    uint8_t marks[512];
    assert_true(set.masked);
    for (int64_t at = 0, part; at < set.token_count; at += part) {
        part = set.token_count - at < step ? set.token_count - at : step;
        assert_true(shard_set_read(&set, at, part, ANY_TOKEN, tokens, marks, &error));
        for (int64_t i = 0; i < part; i++) {
            char letter = tokens[i] == BYTE_SEPARATOR ? '|' : (char)tokens[i];
            *out++ = (char)(!(marks[i] & TOKEN_UNTRAINED) && letter >= 'a' && letter <= 'z' ? letter - 32 : letter);
            if (marks[i] & TOKEN_ENDS) *out++ = '/';
        }
    }
    shard_set_close(&set);
    return text;
}

static const char expected[] = ASKED("hi") "YES<|IM_END|>\n/2+2=4|/" ASKED("a") "B<|IM_END|>\n" ASKED("c") "DD<|IM_END|>\n/";

static void answers_are_trained_and_questions_are_not(void **state) {
    (void)state;
    write_text("in", three);
    PackResult result = pack_with(chat_options("in"));
    assert_int_equal(result.documents, 3);
    assert_int_equal(result.trained_train, 14 + 2 + 12 + 13);
    for (int64_t step = 1; step <= 512; step = step < 20 ? step + 1 : 2 * step) { /* wherever reads begin and end */
        SCOPED_FREE char *text = masked_text("out", step);
        assert_string_equal(text, expected);
    }
    ShardSet set = open_set("out");
    int64_t trained;
    Error error = {0};
    assert_true(shard_set_trained(&set, &trained, &error));
    assert_int_equal(trained, result.trained_train);
    shard_set_close(&set);
}

static void compressed_lines_and_folders_of_shards_give_the_same(void **state) {
    (void)state;
    gzFile gzip = gzopen("in.gz", "wb");
    assert_int_equal(gzwrite(gzip, three, sizeof three - 1), sizeof three - 1);
    assert_int_equal(gzclose(gzip), Z_OK);
    char zstd[1024];
    write_bytes("in.zst", zstd, ZSTD_compress(zstd, sizeof zstd, three, sizeof three - 1, 3));
    static const char *const names[] = {"in.gz", "in.zst"};
    for (int i = 0; i < 2; i++) {
        pack_with(chat_options(names[i]));
        SCOPED_FREE char *text = masked_text("out", 100);
        assert_string_equal(text, expected);
    }
    PackOptions options = chat_options("in.gz");
    options.output = "folder";
    options.shard_tokens = 1;
    assert_int_equal(pack_with(options).shards, 3);
    SCOPED_FREE char *text = masked_text("folder", 100);
    assert_string_equal(text, expected);
}

static void masks_of_nothing_and_of_all_are_refused(void **state) {
    (void)state;
    write_text("in", LINE(USER("a")) LINE(USER("b")));
    assert_refused(chat_options("in"), ERROR_DATA, "answer");
    write_text("in", "{\"prompt\": \"\", \"completion\": \"a\"}\n");
    assert_refused(chat_options("in"), ERROR_DATA, "all 2 tokens");
    write_text("in", "{\"text\": \"a\"}\n");
    assert_refused(chat_options("in"), ERROR_DATA, "no record of in is a conversation");
    write_text("in", LINE(USER("a") "," ANSWER("b")));
    PackOptions options = chat_options("in");
    json_auto_t *tokenizer = byte_tokenizer();
    options.template = "";
    assert_refused(options, ERROR_USAGE, "line 1 of in: model no chat template");
    write_text("in", LINE(USER("a") "," ANSWER(BYTE_SEPARATOR_TEXT)));
    SCOPED_FREE char *tokens = json_dumps(tokenizer, 0);
    assert_int_equal(mkdir("bytes", 0700), 0);
    write_text("bytes/tokenizer.json", tokens);
    write_text("bytes/tokenizer_config.json", "{\"eos_token\": \"" BYTE_SEPARATOR_TEXT "\"}");
    options.tokenizer = "bytes";
    assert_refused(options, ERROR_USAGE, "line 1 of in: model no chat template"); /* before the special token is looked at */
    options.template = "nowhere.jinja";
    assert_refused(options, ERROR_DATA, "nowhere.jinja");
}

static void empty_answers_are_counted_and_pictures_left_out(void **state) {
    (void)state;
    write_text("in", LINE(USER("hi") "," ANSWER("")) "{\"image\": \"x.png\", \"messages\": [" USER("hi") "," ANSWER("yes") "]}\n");
    PackResult result = pack_with(chat_options("in"));
    assert_int_equal(result.documents, 1);
    assert_int_equal(result.empty_answers, 1);
    assert_int_equal(result.bad[PACK_BAD_CHAT], 1);
}

static void arguments_as_text_are_counted(void **state) {
    (void)state;
#define CALLS(arguments) "{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]}"
    write_text("calls.jinja",
        "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}");
    write_text("in", LINE(USER("a") "," CALLS("\"{\\\"x\\\":1}\"")) LINE(USER("a") "," CALLS("\"x\"")) LINE(USER("a") "," CALLS("{}")));
    PackOptions options = chat_options("in");
    options.template = "calls.jinja";
    PackResult result = pack_with(options);
    assert_int_equal(result.decoded_arguments, 1);
    assert_int_equal(result.text_arguments, 1);
    SCOPED_FREE char *text = masked_text("out", 100);
    assert_string_equal(text, "user:aassistant:{\"X\": 1}/user:aassistant:\"X\"/user:aassistant:{}/");
#undef CALLS
}

/* The template writes contents, and thoughts of the last message: what else a conversation has is lost, and counted once. */
static void what_a_template_does_not_write_is_counted(void **state) {
    (void)state;
#define CALL "{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {}}}]}"
#define THINKS(name, thought, text) "{\"role\": \"assistant\", \"" name "\": \"" thought "\", \"content\": \"" text "\"}"
#define TOOLS "\"tools\": [{\"name\": \"f\"}]"
    static const char template[] =
        "{%- for m in messages %}{{ '<' + m.role + '>' }}{% if loop.last and m.thinking %}{{ m.thinking }}{% endif %}"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content or '' }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}";
    static const char lines[] = LINE(USER("a") "," CALL "," ANSWER("b")) LINE(USER("a") "," ANSWER("b")) "{" TOOLS ", \"messages\": [" USER(
        "a") "," CALL "," CALL "," ANSWER("b") "]}\n"
                                               "{\"tools\": [], \"messages\": [" USER("a") "," THINKS("thinking", "t", "b") "]}\n" LINE(
                                                   USER("a") "," THINKS("reasoning_content", "t", "b") "," USER("c") "," ANSWER(
                                                       "d")) "{\"instruction\": \"a\", \"output\": \"b\", \"history\": [[\"c\", \"d\"]]}\n"
                                                             "{\"instruction\": \"a\", \"output\": \"b\", \"history\": []}\n";
    write_text("in", lines);
    write_text("lossy.jinja", template);
    PackOptions options = chat_options("in");
    options.template = "lossy.jinja";
    PackResult result = pack_with(options);
    assert_int_equal(result.documents, 7);
    assert_int_equal(result.lost[CHAT_TOOL_CALLS], 2);
    assert_int_equal(result.lost[CHAT_TOOLS], 1);
    assert_int_equal(result.lost[CHAT_THOUGHTS], 1);
    assert_int_equal(result.lost[CHAT_HISTORY], 1);
}

/* OpenAI's older form of tools, and members that few templates write. */
static void older_members_that_a_template_does_not_write_are_counted(void **state) {
    (void)state;
#define NAMED "{\"role\": \"user\", \"name\": \"n\", \"content\": \"a\"}"
#define CALLED "{\"role\": \"assistant\", \"content\": \"b\", \"function_call\": {\"name\": \"f\", \"arguments\": \"{}\"}}"
#define DOCUMENTS "\"documents\": [{\"text\": \"d\"}]"
    static const char silent[] = "{%- for m in messages %}{{ '<' + m.role + '>' }}{% if m.role == 'assistant' %}{% generation %}"
                                 "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
                      writes[] = "{%- for d in documents or [] %}{{ d.text }}{% endfor %}{% for m in messages %}{{ m.name or '' }}"
                                 "{{ m.function_call.name if m.function_call else '' }}{% if m.role == 'assistant' %}{% generation %}"
                                 "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    static const int parts[] = {CHAT_DOCUMENTS, CHAT_FUNCTIONS, CHAT_FUNCTION_CALL, CHAT_NAMES};
    write_text("in", LINE(NAMED "," ANSWER("b")) "{" DOCUMENTS ", \"messages\": [" USER("a") "," ANSWER("b") "]}\n" LINE(
                         USER("a") "," CALLED) "{\"functions\": [{\"name\": \"f\"}], \"messages\": [" USER("a") "," ANSWER("b") "]}\n");
    write_text("silent.jinja", silent);
    write_text("writes.jinja", writes);
    PackOptions options = chat_options("in");
    options.template = "silent.jinja";
    PackResult result = pack_with(options);
    for (int i = 0; i < 4; i++) assert_int_equal(result.lost[parts[i]], 1);
    options.template = "writes.jinja";
    result = pack_with(options);
    for (int i = 0; i < 4; i++) assert_int_equal(result.lost[parts[i]], parts[i] == CHAT_FUNCTIONS); /* which no template is given */
    options.template = "silent.jinja";
    options.format = PACK_PREFERENCE;
    write_text("in", "{" DOCUMENTS ", \"prompt\": [" USER("a") "], \"chosen\": [" ANSWER("b") "], \"rejected\": [" ANSWER("c") "]}\n");
    result = pack_with(options);
    assert_int_equal(result.lost[CHAT_DOCUMENTS], 1);
    options.format = PACK_CHAT;
    write_text("in", "{" DOCUMENTS ", \"prompt\": \"a\", \"completion\": \"b\"}\n");
    result = pack_with(options);
    assert_int_equal(result.lost[CHAT_DOCUMENTS], 1);
}

/* A prompt with the text of a message is no conversation of its own. */
static void conversations_beside_messages_are_counted(void **state) {
    (void)state;
#define BESIDE(member) "{" member ", \"messages\": [" USER("a") "," ANSWER("b") "]}\n"
    write_text("in", BESIDE("\"conversations\": [{\"from\": \"human\", \"value\": \"c\"}]") BESIDE("\"conversations\": []")
                         BESIDE("\"prompt\": \"a\"") BESIDE("\"prompt\": \"c\"") BESIDE("\"prompt\": [" USER("c") "]"));
    PackResult result = pack_with(chat_options("in"));
    assert_int_equal(result.documents, 5);
    assert_int_equal(result.lost[CHAT_CONVERSATIONS], 1);
    assert_int_equal(result.lost[CHAT_PROMPTS], 2);
}

/* As OpenAI's form has them: texts become one, and what else there is takes the conversation out. */
static void content_in_parts_is_their_text(void **state) {
    (void)state;
    write_text("in", LINE(USER("hi") ",{\"role\": \"assistant\", \"content\": [" PART("text", "yes") "," PART("text", "no") "]}"));
    pack_with(chat_options("in"));
    SCOPED_FREE char *text = masked_text("out", 400);
    assert_non_null(strstr(text, "YES\nNO"));
    assert_null(strstr(text, "type"));
    PackOptions options = chat_options("in");
    options.invalid = PACK_INVALID_STOP;
    write_text("in", LINE("{\"role\": \"user\", \"content\": [" PART("image", "x") "]}," ANSWER("yes")));
    assert_refused(options, ERROR_DATA, "\"image\"");
    write_text("in", "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": false}\n");
    assert_refused(options, ERROR_DATA, "label");
    write_text("in", LINE(USER("hi") ",{\"role\": \"assistant\", \"content\": \"a\", \"train_on_turn\": false}"));
    assert_refused(options, ERROR_DATA, "has train_on_turn");
}

static void bad_records_are_counted_and_left_out(void **state) {
    (void)state;
    write_text("in", "{\"text\": 1}\n[]\n{\"messages\": 5}\n" LINE(USER("hi") "," ANSWER("yes")));
    PackResult result = pack_with(chat_options("in"));
    assert_int_equal(result.documents, 1);
    assert_int_equal(result.bad[PACK_BAD_CHAT], 2);
    assert_int_equal(result.bad[PACK_BAD_JSON], 1);
    PackOptions options = chat_options("in");
    options.invalid = PACK_INVALID_STOP;
    assert_refused(options, ERROR_DATA, "line 1 in");
    write_text("in",
        "[{\"instruction\": \"a\", \"output\": \"b\"},\n{\"instruction\": \"c\", \"output\": \"d\"}]\n"); /* as Alpaca is distributed */
    assert_int_equal(pack_with(chat_options("in")).documents, 2);
}

/* A loader over the whole set, best-fit packed or cut. */
static void assert_targets(int64_t length, bool best_fit, bool mask) {
    ShardSet set = open_set("out");
    BinPlan plan = {0};
    Error error = {0};
    if (best_fit) assert_true(bin_plan_open(&plan, ".", "bins", &set, length, &error));
    Order *order = order_of_one(1, false, "out", best_fit ? plan.bins * length : set.token_count - 1, length, &error);
    LoaderSource source = {.set = &set, .bins = best_fit ? &plan : NULL};
    LoaderOptions options = {
        .order = order, .sources = &source, .sequences = 1, .vocabulary = BYTE_VOCABULARY, .separator = -1, .document_mask = mask};
    Loader *loader = loader_open(&options, 0, &error);
    assert_non_null(loader);
    int64_t samples = best_fit ? plan.bins : order_sequences(set.token_count, length), targets = 0;
    for (int64_t sample = 0; sample < samples; sample++) {
        const Batch *batch = loader_next(loader, &error);
        assert_non_null(batch);
        for (int64_t i = 0; i < length; i++) targets += batch->targets[i] >= 0;
    }
    assert_int_equal(targets, 14 + 2 + 12 + 13); /* every trained token is a target once: none begins a document */
    loader_close(loader);
    order_free(order);
    bin_plan_close(&plan);
    shard_set_close(&set);
}

static void untrained_tokens_are_no_targets(void **state) {
    (void)state;
    write_text("in", three);
    pack_with(chat_options("in"));
    assert_targets(16, false, true);
    assert_targets(37, false, false);
    assert_targets(256, true, true);
}

static void the_template_of_the_tokenizers_folder_is_used_and_travels(void **state) {
    (void)state;
    json_auto_t *content = byte_tokenizer();
    SCOPED_FREE char *tokenizer = json_dumps(content, 0);
    assert_int_equal(mkdir("tok", 0700), 0);
    write_text("tok/tokenizer.json", tokenizer);
    write_text("tok/tokenizer_config.json", "{\"eos_token\": \"" BYTE_SEPARATOR_TEXT "\", \"chat_template\": \"{{ 1 / 0 }}\"}");
    write_text("tok/chat_template.jinja",
        "{% for m in messages %}{{ m.role[0] + ':' + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}");
    write_text("in", LINE(USER("hi") "," ANSWER("yes")));
    PackOptions options = chat_options("in");
    options.tokenizer = "tok";
    options.template = "";
    pack_with(options);
    SCOPED_FREE char *text = masked_text("out", 100);
    assert_string_equal(text, "u:hi|a:YES|/");
    size_t size;
    unsigned char *kept = read_bytes("out.tokenizer/chat_template.jinja", &size);
    assert_int_equal(size,
        strlen(
            "{% for m in messages %}{{ m.role[0] + ':' + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}a:{% endif %}"));
    free(kept);
    write_text("own.jinja",
        "{% for m in messages %}{{ m.role[0] + '=' + m.content + eos_token }}{% endfor %}{% if add_generation_prompt %}a={% endif %}");
    options.template = "own.jinja";
    options.output = "given";
    pack_with(options); /* a template that was given takes the place of the tokenizer's in the copy, or nobody knew it later */
    kept = read_bytes("given.tokenizer/chat_template.jinja", &size);
    assert_non_null(memmem(kept, size, "'='", 3));
    free(kept);
    options.template = "";
    options.tokenizer = "out.tokenizer";
    options.output = "again";
    pack_with(options);
    SCOPED_FREE char *again = masked_text("again", 100);
    assert_string_equal(again, text);
}

/* format=auto: the first record says what records are; a text field makes them text. */
static void conversations_are_recognized(void **state) {
    (void)state;
    static const char share[] = "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}, {\"from\": \"gpt\", \"value\": \"yes\"}]}";
    SCOPED_FREE char *array = memory_format("[%s,\n%s]", share, share), *beside = memory_format("{\"text\": \"a\", %s\n", share + 1);
    PackOptions options = chat_options("in");
    options.format = PACK_AUTO;
    write_text("in", three);
    assert_int_equal(pack_with(options).format, PACK_CHAT);
    SCOPED_FREE char *text = masked_text("out", 512), *again = NULL;
    assert_string_equal(text, expected);
    write_text("in", array);
    assert_int_equal(pack_with(options).format, PACK_CHAT);
    again = masked_text("out", 512);
    assert_string_equal(again, ASKED("hi") "YES<|IM_END|>\n/" ASKED("hi") "YES<|IM_END|>\n/");
    write_text("in", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    assert_int_equal(pack_with(options).format, PACK_PREFERENCE);
    write_text("in", beside);
    options.template = NULL;
    assert_int_equal(pack_with(options).format, PACK_AUTO);
    assert_shard_text("out", "a|");
    write_text("in", three);
    assert_refused(options, ERROR_USAGE, "model no chat template");
    assert_int_equal(system("rm in && mkdir in"), 0); /* of a folder, the first file of records decides */
    write_text("in/LICENSE", "words\n");
    write_text("in/empty.jsonl", "");
    write_text("in/train.jsonl", three);
    options.template = "chatml";
    assert_int_equal(pack_with(options).format, PACK_CHAT);
}

static void settings_of_the_other_kind_are_refused(void **state) {
    (void)state;
    write_text("in", three);
    PackOptions chat = chat_options("in"), text = chat_options("in");
    chat.field = "answer";
    assert_refused(chat, ERROR_USAGE, "field is not for conversations");
    chat.field = NULL;
    chat.separator = "%";
    assert_refused(chat, ERROR_USAGE, "separator is not for conversations");
    write_text("in", "{\"text\": \"a\"}\n");
    text.format = PACK_AUTO;
    assert_refused(text, ERROR_USAGE, "template is for conversations");
    text.template = "";
    text.turns = CHAT_TURNS_LAST;
    assert_refused(text, ERROR_USAGE, "turns is for conversations");
}

static void a_spoiled_mask_is_noticed(void **state) {
    (void)state;
    write_text("in", three);
    pack_with(chat_options("in"));
    size_t size;
    unsigned char *index = read_bytes("out.idx", &size);
    index[34] ^= 1; /* the length of the first sequence, behind the header of 34 bytes */
    write_bytes("out.idx", index, size);
    free(index);
    ShardSet set;
    Error error = {0};
    assert_false(open_verified(&set, "out", &error));
    assert_mentions(error.message, "written");
}

#define CHAT_TEST(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        CHAT_TEST(answers_are_trained_and_questions_are_not),
        CHAT_TEST(compressed_lines_and_folders_of_shards_give_the_same),
        CHAT_TEST(masks_of_nothing_and_of_all_are_refused),
        CHAT_TEST(empty_answers_are_counted_and_pictures_left_out),
        CHAT_TEST(arguments_as_text_are_counted),
        CHAT_TEST(what_a_template_does_not_write_is_counted),
        CHAT_TEST(older_members_that_a_template_does_not_write_are_counted),
        CHAT_TEST(conversations_beside_messages_are_counted),
        CHAT_TEST(content_in_parts_is_their_text),
        CHAT_TEST(bad_records_are_counted_and_left_out),
        CHAT_TEST(untrained_tokens_are_no_targets),
        CHAT_TEST(the_template_of_the_tokenizers_folder_is_used_and_travels),
        CHAT_TEST(conversations_are_recognized),
        CHAT_TEST(settings_of_the_other_kind_are_refused),
        CHAT_TEST(a_spoiled_mask_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
