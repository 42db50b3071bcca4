/* Tests of packing pairs of answers: the forms of records, shards of pairs, bins that keep pairs whole, and batches of them. Each
 * test runs in a temporary folder of its own; run by `make test`. Tokens are bytes, so that counts can be checked by eye. */
#include <sys/stat.h>

#include "support/data_files.h"

#include "base/scope.h"
#include "data/loader.h"
#include "data/pack.h"
#include "support/mentions.h"

#define USER(text) "{\"role\": \"user\", \"content\": \"" text "\"}"
#define ANSWER(text) "{\"role\": \"assistant\", \"content\": \"" text "\"}"
#define TEXTS(prompt, chosen, rejected) "{\"prompt\": \"" prompt "\", \"chosen\": \"" chosen "\", \"rejected\": \"" rejected "\"}\n"
/* What ChatML puts around it. */
#define ASKED(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"
#define YES ASKED("hi") "YES<|IM_END|>\n/"
#define NO ASKED("hi") "NO<|IM_END|>\n/"

static PackOptions options_for(const char *input) {
    static const char *inputs[2];
    inputs[0] = input;
    return (PackOptions){
        .inputs = inputs, .output = "out", .separator = "", .format = PACK_PREFERENCE, .template = "chatml", .overwrite = true};
}

static PackResult pack_with(PackOptions options) {
    PackResult result;
    Error error = {0};
    if (!pack_text(&options, &result, &error)) fail_msg("%s", error.message);
    return result;
}

static void assert_refused(const char *records, const char *part) {
    PackResult result;
    Error error = {0};
    write_text("in", records);
    PackOptions options = options_for("in");
    assert_false(pack_text(&options, &result, &error));
    if (error.code != ERROR_DATA || !mentions(error.message, part)) fail_msg("\"%s\" does not contain \"%s\"", error.message, part);
}

/* The tokens of a set as text, those that are trained in upper case, with | for a separator and / behind a document. */
static char *masked_text(const char *path) {
    ShardSet set = open_set(path);
    uint8_t *marks;
    int32_t *tokens = read_tokens(&set, &marks);
    char *text = memory_allocate((size_t)(2 * set.token_count + 1)), *out = text;
    assert_true(set.masked && set.pairs);
    for (int64_t i = 0; i < set.token_count; i++) {
        char letter = tokens[i] == BYTE_SEPARATOR ? '|' : (char)tokens[i];
        *out++ = (char)(!(marks[i] & TOKEN_UNTRAINED) && letter >= 'a' && letter <= 'z' ? letter - 32 : letter);
        if (marks[i] & TOKEN_ENDS) *out++ = '/';
    }
    free(tokens);
    free(marks);
    shard_set_close(&set);
    return text;
}

static void assert_packed(const char *records, const char *expected) {
    write_text("in", records);
    pack_with(options_for("in"));
    SCOPED_FREE char *text = masked_text("out");
    assert_string_equal(text, expected);
}

/* -- Records ------------------------------------------------------------------------------------------------------- */

static void prompts_are_given_or_what_both_answers_begin_with(void **state) {
    (void)state;
    assert_packed(TEXTS("2+2=", "4", "five"), "2+2=4|/2+2=FIVE|/");
    assert_packed(TEXTS("2+2=", "2+2=4", "2+2=five"), "2+2=4|/2+2=FIVE|/"); /* which both answers may repeat */
    assert_packed(TEXTS("2+2=", "2+2=4", "five"), "2+2=2+2=4|/2+2=FIVE|/");
    assert_packed(TEXTS("a", "an", "as"), "aAN|/aAS|/"); /* words that begin with it do not repeat it */
    assert_packed("{\"chosen\": \"q: two? a: four\", \"rejected\": \"q: two? a: five\"}\n", "q: two? a: fOUR|/q: two? a: fIVE|/");
    assert_packed("{\"chosen\": \"q: two? a: 4\", \"rejected\": \"q: two? a: five\"}\n", "q: two? a: 4|/q: two? a: FIVE|/");
    static const char *const records[] = {
        "{\"prompt\": [" USER("hi") "], \"chosen\": [" ANSWER("yes") "], \"rejected\": [" ANSWER("no") "]}\n",
        "{\"chosen\": [" USER("hi") "," ANSWER("yes") "], \"rejected\": [" USER("hi") "," ANSWER("no") "]}\n",
        "{\"prompt\": [" USER("hi") "], \"chosen\": [" USER("hi") "," ANSWER("yes") "], \"rejected\": [" USER("hi") "," ANSWER("no") "]}\n",
        "{\"prompt\": \"hi\", \"chosen\": [" USER("hi") "," ANSWER("yes") "], \"rejected\": [" USER("hi") "," ANSWER("no") "]}\n",
        "{\"prompt\": \"hi\", \"chosen\": [" ANSWER("yes") "], \"rejected\": [" ANSWER("no") "]}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}], \"chosen\": {\"from\": \"gpt\", \"value\": \"yes\"}, "
        "\"rejected\": "
        "{\"from\": \"gpt\", \"value\": \"no\"}}\n",
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}], \"chosen\": \"yes\", \"rejected\": \"no\"}\n",
        "{\"prompt\": [" USER("hi") "], \"chosen\": " ANSWER("yes") ", \"rejected\": " ANSWER("no") "}\n",
        "{\"instruction\": \"hi\", \"input\": \"\", \"chosen\": \"yes\", \"rejected\": \"no\"}\n"};
    for (size_t i = 0; i < sizeof records / sizeof *records; i++) assert_packed(records[i], YES NO);
}

/* Answers of the prompt are no part of the pair. */
static void only_what_differs_is_trained(void **state) {
    (void)state;
    assert_packed("{\"chosen\": [" USER("a") "," ANSWER("b") "," USER("hi") "," ANSWER("yes") "], \"rejected\": [" USER("a") "," ANSWER(
                      "b") "," USER("hi") "," ANSWER("no") "]}\n",
        ASKED("a") "b<|im_end|>\n" YES ASKED("a") "b<|im_end|>\n" NO);
    assert_packed("{\"chosen\": \"q\xc3\xa9\", \"rejected\": \"q\xc3\xa8\"}\n", "q\xc3\xa9|/q\xc3\xa8|/"); /* in whole characters */
}

static void records_that_are_no_pairs_are_refused(void **state) {
    (void)state;
    assert_refused("{\"prompt\": \"a\", \"completion\": \"b\"}\n", "rejected");
    assert_refused("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": []}\n", "rejected");
    assert_refused(TEXTS("a", "b", "b"), "answer");
    assert_refused(TEXTS("", "b", "c"), "prompt");
    assert_refused("{\"chosen\": \"a\", \"rejected\": \"b\"}\n", "prompt");
    assert_refused("{\"prompt\": [" USER("hi") "], \"chosen\": \"a\", \"rejected\": \"b\"}\n", "three");
    assert_refused("{\"system\": \"s\", \"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n", "system");
    assert_refused("{\"question\": \"q\", \"chosen\": \"a b\", \"rejected\": \"a c\"}\n", "the record has question");
    assert_refused(
        "{\"system\": \"s\", \"prompt\": [" USER("hi") "], \"chosen\": [" ANSWER("a") "], \"rejected\": [" ANSWER("b") "]}\n", "system");
    assert_refused("{\"system\": \"s\", \"prompt\": [{\"role\": \"system\", \"content\": \"t\"}, " USER("hi") "], \"chosen\": [" ANSWER(
                       "a") "], \"rejected\": [" ANSWER("b") "]}\n",
        "system");
    assert_refused("{\"prompt\": \"ho\", \"chosen\": [" USER("hi") "," ANSWER("a") "], \"rejected\": [" USER("hi") "," ANSWER("b") "]}\n",
        "messages prompt last");
    assert_refused(
        "{\"prompt\": [" USER("hi") "], \"chosen\": [" ANSWER("a") "], \"rejected\": [" USER("b") "]}\n", "rejected: no token: no answer");
    assert_refused("{\"prompt\": [" USER("hi") "], \"chosen\": [{}], \"rejected\": [" USER("b") "]}\n", "chosen[0]");
    assert_refused("{\"prompt\": [{}], \"chosen\": [" ANSWER("a") "], \"rejected\": [" ANSWER("b") "]}\n", "prompt[0]");
    assert_refused("{\"chosen\": [" USER("hi") "," ANSWER("a") "], \"rejected\": [" USER("hi") "," ANSWER("b") ",{}]}\n", "rejected[2]");
    assert_refused("{\"images\": [\"x.png\"], \"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n", "the record has images");
    assert_refused("{\"weight\": 0.5, \"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n", "the record has weight");
}

static void bad_pairs_leave_nothing_behind(void **state) {
    (void)state;
    write_text("in", TEXTS("a", "b", "b") TEXTS("a=", "b", "c") "{\"prompt\": [" USER("hi") "], \"chosen\": [" ANSWER(
                         "a") "], \"rejected\": [" USER("b") "]}\n");
    PackResult result = pack_with(options_for("in"));
    assert_int_equal(result.documents, 1);
    assert_int_equal(result.bad[PACK_BAD_PAIR], 2);
    assert_int_equal(result.trained_train, 4);
    SCOPED_FREE char *text = masked_text("out");
    assert_string_equal(text, "a=B|/a=C|/");
}

static void empty_answers_are_counted(void **state) {
    (void)state;
    write_text("in", TEXTS("a=", "b", "") TEXTS("c=", "d", "e"));
    PackResult result = pack_with(options_for("in"));
    assert_int_equal(result.documents, 2);
    assert_int_equal(result.empty_answers, 1);
}

/* -- Shards, bins, batches ----------------------------------------------------------------------------------------- */

enum { PAIRS = 40 };

/* Pairs whose answers have 1 to 40 letters. */
static void write_pairs(void) {
    FILE *file = fopen("in", "w");
    assert_non_null(file);
    for (int i = 1; i <= PAIRS; i++)
        fprintf(file, TEXTS("%02d=", "%.*s", "%.*s"), i, i, "cccccccccccccccccccccccccccccccccccccccc", PAIRS + 1 - i,
            "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr");
    assert_int_equal(fclose(file), 0);
}

/* A folder of shards ends none inside of a pair, and neither part of a split does. */
static void pairs_stay_together_in_every_shard(void **state) {
    (void)state;
    write_pairs();
    pack_with(options_for("in"));
    SCOPED_FREE char *one = masked_text("out");
    PackOptions options = options_for("in");
    options.output = "folder";
    options.shard_tokens = 60;
    assert_true(pack_with(options).shards > 10);
    SCOPED_FREE char *many = masked_text("folder");
    assert_string_equal(many, one);
    options = options_for("in");
    options.valid_fraction = 0.25;
    pack_with(options);
    ShardSet valid = open_set("out-valid"), train = open_set("out-train");
    assert_int_equal(valid.document_count, 2 * PAIRS / 4);
    assert_int_equal(train.document_count, 2 * PAIRS - 2 * PAIRS / 4);
    shard_set_close(&valid);
    shard_set_close(&train);
}

static void a_shard_of_pairs_is_another_than_one_of_conversations(void **state) {
    (void)state;
    assert_int_equal(mkdir("both", 0700), 0);
    write_text("in", TEXTS("a=", "b", "c"));
    write_text("chat", "{\"prompt\": \"a=\", \"completion\": \"b\"}\n{\"prompt\": \"a=\", \"completion\": \"c\"}\n");
    PackOptions options = options_for("in");
    options.output = "both/pairs";
    pack_with(options);
    static const char *inputs[] = {"chat", NULL};
    options.inputs = inputs;
    options.output = "both/chats";
    options.format = PACK_CHAT;
    pack_with(options);
    ShardSet pairs = open_set("both/pairs"), chats = open_set("both/chats"), set;
    uint64_t one, other;
    Error error = {0};
    assert_true(shard_set_checksum(&pairs, &one, &error));
    assert_true(shard_set_checksum(&chats, &other, &error));
    assert_true(one != other); /* of the same tokens */
    assert_false(shard_set_open(&set, "both", &error));
    assert_mentions(error.message, "both/chats both/pairs");
    shard_set_close(&pairs);
    shard_set_close(&chats);
}

/* The index of a shard of three documents cannot be one of pairs, whatever its trailer says. */
static void an_odd_number_of_documents_is_refused(void **state) {
    (void)state;
    write_text("chat", "{\"prompt\": \"a=\", \"completion\": \"b\"}\n");
    static const char *inputs[] = {"chat", NULL};
    PackOptions options = options_for("chat");
    options.inputs = inputs;
    options.format = PACK_CHAT;
    pack_with(options);
    size_t size;
    unsigned char *index = read_bytes("out.idx", &size);
    memcpy(index + size - 48, "SMELTPRF", 8); /* the trailer has 48 bytes */
    write_bytes("out.idx", index, size);
    free(index);
    ShardSet set;
    Error error = {0};
    assert_false(shard_set_open(&set, "out", &error));
    assert_mentions(error.message, "pairs documents 1");
}

static void pairs_are_whole_in_bins_or_left_out(void **state) {
    (void)state;
    enum { TOKENS = 2 * 4 + PAIRS + 1 }; /* of each pair: twice a prompt of three and the end, and both answers */
    write_pairs();
    pack_with(options_for("in"));
    ShardSet set = open_set("out");
    BinPlan plan;
    Error error = {0};
    assert_true(bin_plan_open(&plan, ".", "bins", &set, 2 * TOKENS + 5, &error));
    assert_int_equal(plan.part_count, PAIRS);
    assert_int_equal(plan.bins, PAIRS / 2);
    for (int64_t i = 0; i < plan.part_count; i++) assert_true(plan.parts[i].count == TOKENS && plan.parts[i].start % TOKENS == 0);
    bin_plan_close(&plan);
    assert_false(bin_plan_open(&plan, ".", "bins", &set, TOKENS - 1, &error));
    assert_mentions(error.message, "data.length=48");
    shard_set_close(&set);
    write_text("in", TEXTS("a=", "bb", "c") TEXTS("a=", "bbb", "cccc") TEXTS("a=", "b", "c"));
    pack_with(options_for("in"));
    set = open_set("out");
    assert_true(bin_plan_open(&plan, ".", "bins", &set, 10, &error));
    assert_int_equal(plan.part_count, 2); /* of 9, 13 and 8 tokens */
    bin_plan_close(&plan);
    shard_set_close(&set);
}

static void batches_say_where_their_pairs_lie(void **state) {
    (void)state;
    write_text("in", TEXTS("a=", "bb", "c") TEXTS("a=", "bbb", "cccc") TEXTS("a=", "b", "c"));
    pack_with(options_for("in"));
    ShardSet set = open_set("out");
    BinPlan plan;
    Error error = {0};
    assert_true(bin_plan_open(&plan, ".", "bins", &set, 18, &error));
    Order *order = order_of_one(1, false, "out", plan.bins * 18, 18, &error);
    LoaderSource source = {.set = &set, .bins = &plan};
    LoaderOptions options = {
        .order = order, .sources = &source, .sequences = 2, .vocabulary = BYTE_VOCABULARY, .separator = -1, .document_mask = true};
    Loader *loader = loader_open(&options, 0, &error);
    const Batch *batch = loader ? loader_next(loader, &error) : NULL;
    assert_non_null(batch);
    static const BatchPair expected[] = {{0, 6, 13, 9}, {18, 23, 27, 0}, {27, 31, 35, 22}}; /* the longest comes first */
    assert_int_equal(batch->pair_count, 3);
    for (int i = 0; i < 3; i++) {
        const BatchPair *pair = &batch->pairs[i];
        assert_int_equal(pair->first, expected[i].first);
        assert_int_equal(pair->middle, expected[i].middle);
        assert_int_equal(pair->end, expected[i].end);
        assert_int_equal(pair->token, expected[i].token);
        assert_true(batch->positions[pair->first] == 0 && batch->positions[pair->middle] == 0);
    }
    loader_close(loader);
    source.bins = NULL;
    assert_null(loader_open(&options, 0, &error));
    assert_mentions(error.message, "preference.loss=dpo");
    order_free(order);
    bin_plan_close(&plan);
    shard_set_close(&set);
}

#define FOLDER_TEST(test) cmocka_unit_test_setup_teardown(test, enter_folder, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(prompts_are_given_or_what_both_answers_begin_with),
        FOLDER_TEST(only_what_differs_is_trained),
        FOLDER_TEST(records_that_are_no_pairs_are_refused),
        FOLDER_TEST(bad_pairs_leave_nothing_behind),
        FOLDER_TEST(empty_answers_are_counted),
        FOLDER_TEST(pairs_stay_together_in_every_shard),
        FOLDER_TEST(a_shard_of_pairs_is_another_than_one_of_conversations),
        FOLDER_TEST(an_odd_number_of_documents_is_refused),
        FOLDER_TEST(pairs_are_whole_in_bins_or_left_out),
        FOLDER_TEST(batches_say_where_their_pairs_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
