/* Rewards: texts, and values against their definitions and Python's difflib. test_reward_programs.c tests programs. */
#include "rl_rewards.h"

static double value_of(const char *reward, const char *completion, const char *record) {
    RewardSet *rewards = open_set(reward, reward_limits_of_tests);
    submit(rewards, 7, completion, record);
    RewardResult result = take(rewards, 7);
    double total = result.total;
    reward_result_free(&result);
    rewards_free(rewards);
    return total;
}

static void assert_value(const char *reward, const char *completion, const char *record, double expected) {
    double value = value_of(reward, completion, record);
    if (value != expected) fail_msg("%s of \"%s\" is %.17g, not %.17g", reward, completion, value, expected);
}

static void texts_have_weights_and_quoted_arguments(void **state) {
    (void)state;
    RewardSet *rewards = open_set(" exact , 0.5*format:<a>.*</a>,-2 * regex:\"x{1,2}(\\\"?\\d+)\" , exact", reward_limits_of_tests);
    assert_int_equal(rewards_count(rewards), 4);
    assert_string_equal(rewards_name(rewards, 0), "exact");
    assert_string_equal(rewards_name(rewards, 1), "format");
    assert_string_equal(rewards_name(rewards, 2), "regex");
    assert_string_equal(rewards_name(rewards, 3), "exact2");
    submit(rewards, 1, "<a>xx\"7</a>", "{\"answer\": \"\\\"7\"}");
    RewardResult result = take(rewards, 1);
    const double expected[] = {0, 1, 1, 0};
    assert_memory_equal(result.values, expected, sizeof expected);
    assert_true(result.total == 0.5 - 2);
    reward_result_free(&result);
    rewards_free(rewards);
}

static void wrong_texts_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } wrong[] = {{"", "is not a reward; there are exact"}, {"exakt", "\"exakt\" is not a reward"}, {"exact,", "\"\" is not a reward"},
        {"exact:5", "takes no argument"}, {"regex", "needs an argument"}, {"regex:\"(\"", "regex"}, {"regex:\"abc", "no end"},
        {"regex:\"abc\"d", "follows quotes"}, {"0.5 exact", "does not begin with a weight"},
        {"1e999*exact", "does not begin with a weight"}, {"nan*exact", "is not a reward"}, {"exact x", "follows"},
        {"length:x", "length:64"}, {"overlong:9-3", "overlong:3072-4096"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Error error;
        assert_null(rewards_create(wrong[i].text, reward_limits_of_tests, &error));
        assert_int_equal(error.code, ERROR_USAGE);
        assert_holds(error.message, wrong[i].part);
    }
}

static void values_are_those_of_their_definitions(void **state) {
    (void)state;
    assert_value("exact", " 5\n", "{\"answer\": \"5\"}", 1);
    assert_value("exact", "so 5", "{\"answer\": \"5\"}", 0);
    assert_value("last_number", "first 3, then 5.0", "{\"answer\": 5}", 1);
    assert_value("last_number", "5 or 6", "{\"answer\": 5}", 0);
    assert_value("boxed", "\\boxed{\\frac{1}{2}}", "{\"answer\": \"0.5\"}", 1);
    assert_value("regex:answer is (\\w+)", "the answer is blue.", "{\"answer\": \"blue\"}", 1);
    assert_value("regex:answer is (\\w+)", "the answer is red.", "{\"answer\": \"blue\"}", 0);
    assert_value("regex:= (\\S+)", "x = 5.0 ", "{\"answer\": \"5\"}", 1);
    assert_value("regex:= (\\S+)", "x = 5.0m", "{\"answer\": \"5\"}", 0);
    assert_value("format:<think>.*</think>", "<think>a\nb</think>\n", "{}", 1);
    assert_value("format:<think>.*</think>", "a <think>a</think>", "{}", 0);
    assert_value("format:a|b", "ba", "{}", 0);
    assert_value("characters", " dcba ", "{\"answer\": \"dcxa\"}", 0.75);
    assert_value("characters", "ab", "{\"answer\": \"abcd\"}", 0.5);
    assert_value("characters", "\xc3\xa9x", "{\"answer\": \"\xc3\xa9y\"}", 0.5);
    assert_value("characters", "", "{\"answer\": \"\"}", 1);
    assert_value("length:4", "four", "{}", 1);
    assert_value("length:4", "sixsix", "{}", 0.5);
    assert_value("length:4", "far too long", "{}", 0);
    assert_value("overlong:2-6", "ab", "{}", 0);
    assert_value("overlong:2-6", "abc", "{}", -0.25);
    assert_value("overlong:2-6", "far too long", "{}", -1);
}

/* Texts are alike in part, and some are long enough for difflib's rule of popular characters. */
static void similarity_is_that_of_difflib(void **state) {
    (void)state;
    static const char script[] = "import difflib, json, random\n"
                                 "random.seed(5)\n"
                                 "with open('texts.jsonl', 'w') as file:\n"
                                 "    for i in range(300):\n"
                                 "        size, letters = random.choice((0, 1, 8, 40, 199, 200, 450)), random.choice(('ab', 'abcdefgh', "
                                 "'abc \\u00e9\\u4e2d\\U0001f600'))\n"
                                 "        a = [random.choice(letters) for _ in range(size)]\n"
                                 "        b = list(a)\n"
                                 "        for _ in range(random.choice((0, 1, size // 4, size))):\n"
                                 "            at = random.randrange(len(b) + 1)\n"
                                 "            b[at:at + random.randrange(3)] = random.choices(letters, k=random.randrange(3))\n"
                                 "        if i % 3 == 0: a = random.choices([chr(0x4e00 + i) for i in range(90)], k=size)\n"
                                 "        if i % 3 == 0: b = a[size // 3:] + a[:size // 2]\n"
                                 "        a, b = ''.join(a).strip(), ''.join(b).strip()\n"
                                 "        ratio = difflib.SequenceMatcher(None, a, b).ratio()\n"
                                 "        print(json.dumps({'completion': a, 'answer': b, 'ratio': ratio}), file=file)\n";
    write_text("make.py", script);
    assert_int_equal(system("python3 make.py"), 0);
    SCOPED_FREE char *texts = read_text("texts.jsonl");
    int count = 0;
    for (char *line = strtok(texts, "\n"); line; line = strtok(NULL, "\n"), count++) {
        json_auto_t *object = json_loads(line, 0, NULL);
        double ratio = json_real_value(json_object_get(object, "ratio"));
        assert_value("similarity", json_string_value(json_object_get(object, "completion")), line, ratio);
    }
    assert_int_equal(count, 300);
}

static void records_without_their_fields_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *reward, *record, *part;
    } wrong[] = {{"exact", "{\"reply\": \"5\"}", "no \"answer\""}, {"exact", "{\"answer\": [5]}", "no \"answer\""},
        {"exact", "{\"answer\": 123456789012345678901234567890}", "number 123456789012345678901234567890 of \"answer\" is too large"},
        {"code", "{\"answer\": 5}", "no \"tests\""}, {"code", "{\"tests\": [\"pass\", {\"input\": \"a\"}]}", "test 2 of the record"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Error error;
        RewardResult result;
        json_auto_t *record = json_parse(wrong[i].record, strlen(wrong[i].record), 0, &error);
        RewardSet *rewards = open_set(wrong[i].reward, reward_limits_of_tests);
        assert_false(rewards_check_record(rewards, record, &error));
        assert_int_equal(error.code, ERROR_DATA);
        assert_holds(error.message, wrong[i].part);
        if (!strcmp(wrong[i].reward, "exact")) {
            submit(rewards, 1, "x", wrong[i].record);
            assert_false(rewards_take(rewards, &result, &error));
            assert_holds(error.message, wrong[i].part);
        }
        rewards_free(rewards);
    }
}

/* A pattern that takes too many steps is no reward of 0. */
static void a_pattern_without_an_end_is_a_failure(void **state) {
    (void)state;
    RewardLimits limits = reward_limits_of_tests;
    limits.skip = true;
    char text[64];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    RewardSet *rewards = open_set("format:(a+)+[bc]", limits);
    submit(rewards, 0, text, "{}");
    RewardResult result = take(rewards, 0);
    assert_holds(result.failure ? result.failure : "none", "regular expression");
    reward_result_free(&result);
    rewards_free(rewards);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_have_weights_and_quoted_arguments),
        cmocka_unit_test(wrong_texts_are_refused),
        cmocka_unit_test(values_are_those_of_their_definitions),
        IN_FOLDER(similarity_is_that_of_difflib),
        cmocka_unit_test(records_without_their_fields_are_refused),
        cmocka_unit_test(a_pattern_without_an_end_is_a_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
