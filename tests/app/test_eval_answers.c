/* Tests of `smelt eval MODEL QUESTIONS.jsonl` without choices. tests/base/test_match.c compares the matches; here: the
 * model's texts are those of `smelt generate`, what precedes and ends them, and what is refused. */
#include "support/train_run.h"

#include "base/file.h"
#include "base/scope.h"

/* A run that has learned one line, so that its texts are words. */
static void make_run(void) {
    FILE *file = fopen("lines", "w");
    for (int i = 0; i < 2000; i++) fputs("the land and the sea\n", file);
    fclose(file);
    train_good("run=r data.train=lines model.family=llama model.layers=1 optimizer.lr=1e-2 steps=120 model.context=300 checkpoint.every=0 "
               "eval.every=0");
}

/* Parses lines of JSON. */
static json_t *lines_of(char *at) {
    json_t *lines = json_array();
    for (char *next; *at; at = next + 1) {
        next = strchr(at, '\n');
        assert_non_null(next);
        json_t *line = json_loadb(at, (size_t)(next - at), 0, NULL);
        assert_non_null(line);
        json_array_append_new(lines, line);
    }
    return lines;
}

/* Evaluates the file q.jsonl; returns the printed objects, the sums last. */
static json_t *evaluated(const char *settings) {
    SCOPED_FREE char *words = memory_format("eval r q.jsonl json=true threads=1 tokens=12 %s", settings);
    ProcessResult result = smelt(words);
    if (result.code) fail_msg("%s: %d: %s", words, result.code, result.errors);
    json_t *lines = lines_of(result.output);
    process_free(&result);
    return lines;
}

/* Returns what the model writes after a prompt, greedily. The caller frees. */
static char *completion_of(const char *prompt, const char *settings) {
    json_auto_t *record = json_pack("{ss}", "prompt", prompt);
    SCOPED_FREE char *line = json_dumps(record, 0);
    write_text("p.jsonl", line);
    SCOPED_FREE char *words = memory_format("generate r p.jsonl temperature=0 tokens=12 threads=1 %s", settings);
    ProcessResult result = smelt(words);
    if (result.code) fail_msg("%s: %d: %s", words, result.code, result.errors);
    json_auto_t *lines = lines_of(result.output);
    char *text = memory_copy_string(json_string_value(json_object_get(json_array_get(lines, 0), "completion")));
    process_free(&result);
    return text;
}

static const char *text_at(const json_t *lines, size_t line) {
    const char *text = json_string_value(json_object_get(json_array_get(lines, line), "text"));
    assert_non_null(text);
    return text;
}
static bool matches_at(const json_t *lines, size_t line) { return json_is_true(json_object_get(json_array_get(lines, line), "matches")); }
static double number_at(const json_t *lines, size_t line, const char *name) {
    return json_number_value(json_object_get(json_array_get(lines, line), name));
}

/* Writes q.jsonl: each text with its answer. */
static void write_questions(const char *const texts[], const char *const answers[], int count) {
    FILE *file = fopen("q.jsonl", "w");
    for (int i = 0; i < count; i++) {
        json_auto_t *record = json_pack("{ss ss}", "question", texts[i], "answer", answers[i]);
        json_dumpf(record, file, 0);
        putc('\n', file);
    }
    fclose(file);
}

static void answers_are_what_the_model_writes(void **state) {
    (void)state;
    make_run();
    SCOPED_FREE char *sea = completion_of("the land and the", ""), *land = completion_of("the land", "");
    const char *const texts[] = {"the land and the ", "the land and the", "the land", "the land"}, *const answers[] = {
                                                                                                       sea, "another answer", land, "x"};
    write_questions(texts, answers, 4);
    json_auto_t *lines = evaluated("");
    assert_int_equal(json_array_size(lines), 5);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(text_at(lines, i), i < 2 ? sea : land);
        assert_int_equal(matches_at(lines, i), i % 2 == 0);
    }
    assert_float_equal(number_at(lines, 4, "questions"), 4, 0);
    assert_float_equal(number_at(lines, 4, "exact_match"), 0.5, 0);
    assert_float_equal(number_at(lines, 4, "exact_match_stderr"), sqrt(0.5 * 0.5 / 3), 1e-12);
    SCOPED_FREE char *several =
        memory_format("{\"query\": \"the land\", \"target\": [\"b\", 3, \"%.3s\"]}\n", land + strcspn(land, "abcdefghijklmnopqrstuvwxyz"));
    write_text("q.jsonl", several);
    json_auto_t *regex = evaluated("match=regex pattern=([a-z]{3})"), *none = evaluated("match=regex pattern=([A-Z]{3})");
    assert_true(matches_at(regex, 0) && !matches_at(none, 0));
    write_text("q.jsonl", "{\"query\": \"the land\", \"gold\": 3}\n");
    json_auto_t *number = evaluated("match=number"), *boxed = evaluated("match=boxed");
    assert_false(matches_at(number, 0) || matches_at(boxed, 0));
}

static void shots_precede_a_question_and_end_its_answer(void **state) {
    (void)state;
    make_run();
    static const char *const texts[] = {"one", "two", "three", "four"}, *const answers[] = {"a", "b c", "d", "e"};
    write_questions(texts, answers, 4);
    SCOPED_FREE char *alone = completion_of("one a\n\ntwo b c\n\nthree", "stop=[\"\\n\\n\"]");
    json_auto_t *with = evaluated("shots=2 sequences=1");
    assert_int_equal(json_array_size(with), 2);
    assert_float_equal(number_at(with, 0, "index"), 2, 0);
    assert_string_equal(text_at(with, 0), alone);
}

/* Shots are turns of a conversation, and the template's end of a turn ends an answer. */
static void questions_are_messages_with_a_template(void **state) {
    (void)state;
    make_run();
    static const char *const texts[] = {"one", "two"}, *const answers[] = {"a", "b"};
    write_questions(texts, answers, 2);
    write_text("p.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"a\"}, "
                          "{\"role\": \"user\", \"content\": \"two\"}]}\n");
    ProcessResult result = smelt("generate r p.jsonl temperature=0 tokens=12 threads=1 template=chatml");
    json_auto_t *expected = lines_of(result.output), *with = evaluated("shots=1 template=chatml"), *without = evaluated("shots=1");
    const char *completion = json_string_value(json_object_get(json_array_get(expected, 0), "completion"));
    assert_string_equal(text_at(with, 0), completion);
    assert_string_not_equal(text_at(with, 0), text_at(without, 0));
    process_free(&result);
    smelt_says(ERROR_USAGE, "r template=FILE template=chatml", "eval r q.jsonl template=own");
}

/* Returns a list of two texts without blanks, which would divide the arguments. */
static char *list_of(const char *first, const char *second) {
    char *list = memory_format("[\"%s\",\"", first);
    for (const char *c = second; *c; c++) {
        char *longer = memory_format("%s\\u%04x", list, (unsigned char)*c);
        free(list);
        list = longer;
    }
    char *whole = memory_format("%s\"]", list);
    free(list);
    return whole;
}

/* The first of the texts counts, also if it spans tokens. */
static void a_stop_text_ends_an_answer(void **state) {
    (void)state;
    make_run();
    SCOPED_FREE char *whole = completion_of("the land", "");
    assert_true(strlen(whole) >= 6);
    const char *const texts[] = {"the land"}, *const answers[] = {"x"};
    write_questions(texts, answers, 1);
    for (int from = 0; from < 4; from++) {
        SCOPED_FREE char *stop = memory_format("%.2s", whole + from);
        size_t at = (size_t)(strstr(whole, stop) - whole);
        SCOPED_FREE char *list = list_of("never", stop), *settings = memory_format("stop=%s", list);
        json_auto_t *lines = evaluated(settings);
        SCOPED_FREE char *completion = completion_of("the land", settings), *expected = memory_format("%.*s", (int)at, whole);
        assert_string_equal(text_at(lines, 0), expected);
        assert_string_equal(completion, expected);
        assert_string_equal(json_string_value(json_object_get(json_array_get(lines, 0), "finish")), "stop");
    }
}

static void what_is_no_task_is_refused_by_its_line(void **state) {
    (void)state;
    static const char *const lines[] = {"{\"question\": \"a\"}", "{\"question\": \" \", \"answer\": \"b\"}",
        "{\"question\": \"a\", \"answer\": \"\"}", "{\"question\": \"a\", \"answer\": []}", "{\"question\": \"a\", \"answer\": [true]}",
        "{\"question\": \"a\", \"answer\": {}}", "{\"question\": 1, \"answer\": \"b\"}", "[1]", "{\"question\": \"a\", \"answer\": \"b\""};
    make_run();
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        SCOPED_FREE char *text = memory_format("{\"question\": \"a\", \"answer\": \"b\"}\n%s\n", lines[i]);
        write_text("q.jsonl", text);
        smelt_says(ERROR_DATA, "q.jsonl 2", "eval r q.jsonl");
    }
    write_text("q.jsonl", "{\"question\": \"a\", \"answer\": \"b\"}\n");
    smelt_says(ERROR_DATA, "q.jsonl 1 match=number", "eval r q.jsonl match=number");
    smelt_says(ERROR_USAGE, "match=regex pattern=", "eval r q.jsonl match=regex");
    smelt_says(ERROR_USAGE, "pattern=", "eval r q.jsonl pattern=a");
    smelt_says(ERROR_USAGE, "(", "eval r q.jsonl match=regex pattern=(");
    smelt_says(ERROR_USAGE, "q.jsonl 1 shots=1", "eval r q.jsonl shots=1");
    smelt_says(ERROR_USAGE, "stop=[1]", "eval r q.jsonl stop=[1]");
    smelt_says(ERROR_USAGE, "stop=[]", "eval r q.jsonl stop=[]");
    smelt_says(ERROR_USAGE, "batch", "eval r q.jsonl batch=8");
    smelt_says(ERROR_USAGE, "match", "eval r text match=number");
    SCOPED_FREE char *longer = memory_format("{\"question\": \"%0400d\", \"answer\": \"b\"}\n", 0);
    write_text("q.jsonl", longer);
    smelt_says(ERROR_USAGE, "q.jsonl 1 400 300", "eval r q.jsonl");
    write_text("q.jsonl", "{\"question\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n");
    smelt_says(ERROR_USAGE, "match", "eval r q.jsonl match=number");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(answers_are_what_the_model_writes),
        TRAIN_TEST(shots_precede_a_question_and_end_its_answer),
        TRAIN_TEST(questions_are_messages_with_a_template),
        TRAIN_TEST(a_stop_text_ends_an_answer),
        TRAIN_TEST(what_is_no_task_is_refused_by_its_line),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
