/* Tests of `smelt eval MODEL QUESTIONS.jsonl`. tests/engine compares the scores of tokens; here: what a choice is, what
 * precedes it, and what is refused. */
#include "support/train_run.h"

#include "base/file.h"
#include "base/scope.h"

static void make_run(void) { train_good("run=r steps=6 model.context=300 checkpoint.every=0 eval.every=0"); }

/* Evaluates the file q.jsonl; returns the printed objects, the sums last. */
static json_t *evaluated(const char *settings) {
    SCOPED_FREE char *words = memory_format("eval r q.jsonl json=true threads=1 %s", settings);
    ProcessResult result = smelt(words);
    if (result.code) fail_msg("%s: %d: %s", words, result.code, result.errors);
    json_t *lines = json_array();
    for (char *at = result.output, *next; *at; at = next + 1) {
        next = strchr(at, '\n');
        assert_non_null(next);
        json_t *line = json_loadb(at, (size_t)(next - at), 0, NULL);
        assert_non_null(line);
        json_array_append_new(lines, line);
    }
    process_free(&result);
    return lines;
}

static double likelihood(const json_t *lines, size_t question, size_t choice) {
    const json_t *list = json_object_get(json_array_get(lines, question), "log_likelihoods"), *value = json_array_get(list, choice);
    assert_true(json_is_real(value));
    return json_real_value(value);
}
static json_int_t number_at(const json_t *lines, size_t line, const char *name) {
    return json_integer_value(json_object_get(json_array_get(lines, line), name));
}

static void a_choice_follows_its_question_after_a_space(void **state) {
    (void)state;
    make_run();
    write_text("q.jsonl", "{\"question\": \"the sea and \", \"choices\": [\"the land\", \"xq\"], \"answer\": 0}\n\n"
                          "{\"context\": \"the sea and\", \"choices\": {\"text\": [\"xq\", \"the\", \"the land\"], \"label\": [\"1\", "
                          "\"2\", \"3\"]}, \"answerKey\": \"3\"}\n"
                          "{\"query\": \"the sea and the\", \"choices\": [\"land\", \"sea\"], \"gold\": \"B\"}\n"
                          "{\"prompt\": \"the sea and\", \"choices\": [\"the\", \"land\"], \"label\": \"land\", \"own\": 1}");
    json_auto_t *lines = evaluated("");
    static const int answers[] = {0, 2, 1, 1};
    assert_int_equal(json_array_size(lines), 5);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(number_at(lines, i, "answer"), answers[i]);
        assert_int_equal(number_at(lines, i, "index"), i);
        size_t best = (size_t)number_at(lines, i, "chosen");
        for (size_t k = 0; k < 2; k++) assert_true(likelihood(lines, i, k) <= likelihood(lines, i, best));
    }
    assert_float_equal(likelihood(lines, 0, 0), likelihood(lines, 1, 2), 1e-5);
    assert_float_equal(likelihood(lines, 0, 1), likelihood(lines, 1, 0), 1e-5);
    assert_float_equal(likelihood(lines, 1, 2), likelihood(lines, 1, 1) + likelihood(lines, 2, 0), 1e-4); /* "the", then " land" */
    double right = 0;
    for (size_t i = 0; i < 4; i++) right += number_at(lines, i, "chosen") == answers[i];
    const json_t *sums = json_array_get(lines, 4);
    double acc = json_real_value(json_object_get(sums, "acc"));
    assert_float_equal(acc, right / 4, 1e-12);
    assert_float_equal(json_real_value(json_object_get(sums, "acc_stderr")), sqrt(acc * (1 - acc) / 3), 1e-12);
}

static void shots_are_the_first_questions_with_their_answers(void **state) {
    (void)state;
    make_run();
    write_text("q.jsonl", "{\"question\": \"one\", \"choices\": [\"a\", \"bc\"], \"answer\": 1}\n"
                          "{\"question\": \"two\", \"choices\": [\"d\", \"e\"], \"answer\": 0}\n"
                          "{\"question\": \"three\", \"choices\": [\"fg\", \"h\"], \"answer\": 0}\n");
    json_auto_t *with = evaluated("shots=2"), *less = evaluated("shots=1 sequences=1");
    assert_int_equal(json_array_size(with), 2);
    assert_int_equal(number_at(with, 0, "index"), 2);
    assert_int_equal(json_array_size(less), 2);
    assert_int_equal(number_at(less, 0, "index"), 1);
    write_text("q.jsonl", "{\"question\": \"one bc\\n\\ntwo d\\n\\nthree\", \"choices\": [\"fg\", \"h\"], \"answer\": 0}\n");
    json_auto_t *joined = evaluated("");
    for (size_t k = 0; k < 2; k++) assert_float_equal(likelihood(with, 0, k), likelihood(joined, 0, k), 1e-5);
}

static void what_is_no_question_is_refused_by_its_line(void **state) {
    (void)state;
    static const char *const lines[] = {
        "{\"question\": \"a\", \"choices\": [\"b\"], \"answer\": 0}",
        "{\"question\": \"a\", \"choices\": [\"b\", 3], \"answer\": 0}",
        "{\"question\": \"a\", \"choices\": [\"b\", \"\"], \"answer\": 0}",
        "{\"question\": \" \", \"choices\": [\"b\", \"c\"], \"answer\": 0}",
        "{\"question\": \"a\\u0000\", \"choices\": [\"b\", \"c\"], \"answer\": 0}",
        "{\"choices\": [\"b\", \"c\"], \"answer\": 0}",
        "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}",
        "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": -1}",
        "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": \"C\"}",
        "{\"question\": \"a\", \"choices\": [\"b\", \"c\"]}",
        "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0",
        "[3]",
    };
    make_run();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        SCOPED_FREE char *text = memory_format("{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n%s\n", lines[i]);
        write_text("q.jsonl", text);
        smelt_says(ERROR_DATA, "q.jsonl 2", "eval r q.jsonl");
    }
    write_text("q.jsonl", "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n");
    smelt_says(ERROR_USAGE, "q.jsonl 1 shots=1", "eval r q.jsonl shots=1");
    smelt_says(ERROR_USAGE, "batch", "eval r q.jsonl batch=8");
    smelt_says(ERROR_USAGE, "shots", "eval r text shots=1");
    SCOPED_FREE char *longer = memory_format("{\"question\": \"%0400d\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n", 0);
    write_text("q.jsonl", longer);
    smelt_says(ERROR_USAGE, "q.jsonl 402 300", "eval r q.jsonl");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_choice_follows_its_question_after_a_space),
        TRAIN_TEST(shots_are_the_first_questions_with_their_answers),
        TRAIN_TEST(what_is_no_question_is_refused_by_its_line),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
