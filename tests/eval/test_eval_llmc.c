/* `smelt eval` on llm.c's own files, against what PyTorch made of them (tests/golden/llmc.py): multiple choice and
 * debug states. */
#include "eval/multiple_choice.h"
#include "support/mentions.h"
#include "support/train_run.h"

static char *golden; /* tests/golden/llmc as an absolute path */

enum { EXAMPLES = 12, ENDINGS = 4, HEADER = 1024, WIDTH = 16, VOCABULARY = 40 };

static void copy_golden(const char *name) {
    char *path = memory_format("%s/%s", golden, name);
    size_t size;
    unsigned char *bytes = read_bytes(path, &size);
    write_bytes(name, bytes, size);
    free(bytes);
    free(path);
}

static int setup(void **state) {
    if (enter_folder(state) != 0) return -1;
    copy_golden("model.bin");
    copy_golden("model_bf16.bin");
    copy_golden("choices.bin");
    copy_golden("debug_state.bin");
    return 0;
}

#define LLMC_TEST(test) cmocka_unit_test_setup_teardown(test, setup, leave_folder)

/* Overwrites some bytes of a file. */
static void patch(const char *name, size_t at, const void *bytes, size_t count) {
    size_t size;
    unsigned char *content = read_bytes(name, &size);
    assert_true(at + count <= size);
    memcpy(content + at, bytes, count);
    write_bytes(name, content, size);
    free(content);
}

static void expect_failure(const char *words, int code, const char *message) {
    ProcessResult result = smelt(words);
    expect_code(&result, code, words);
    if (!mentions(result.errors, message)) fail_msg("%s: \"%s\" does not contain \"%s\"", words, result.errors, message);
    process_free(&result);
}

/* -- Multiple choice ----------------------------------------------------------------------------------------------- */

/* label and losses of every example as PyTorch has them, and the tokens of each ending as the file has them */
typedef struct Expected {
    int label[EXAMPLES], length[EXAMPLES][ENDINGS];
    double loss[EXAMPLES][ENDINGS];
} Expected;

static void read_expected(Expected *e) {
    char *path = memory_format("%s/choices.txt", golden);
    FILE *file = fopen(path, "r");
    size_t size;
    unsigned char *content = read_bytes("choices.bin", &size);
    const uint16_t *at = (const uint16_t *)(content + HEADER);
    assert_non_null(file);
    for (int i = 0; i < EXAMPLES; i++) {
        assert_int_equal(fscanf(file, "%d", &e->label[i]), 1);
        at += 5 + 1 + at[5]; /* over its header and its context */
        for (int j = 0; j < ENDINGS; j++) {
            assert_int_equal(fscanf(file, "%lf", &e->loss[i][j]), 1);
            e->length[i][j] = *at;
            at += 1 + *at;
        }
    }
    fclose(file);
    free(content);
    free(path);
}

static int least(const double *values) {
    int best = 0;
    for (int i = 1; i < ENDINGS; i++)
        if (values[i] < values[best]) best = i;
    return best;
}

static int chosen_per_token(const Expected *e, int example) {
    double mean[ENDINGS];
    for (int i = 0; i < ENDINGS; i++) mean[i] = e->loss[example][i] / e->length[example][i];
    return least(mean);
}

static int64_t integer(const json_t *object, const char *key) {
    assert_true(json_is_integer(json_object_get(object, key)));
    return json_integer_value(json_object_get(object, key));
}

/* Sums of up to 32 losses in fp32: about 1e-5 of the largest, which is 117. */
static void check_example(const Expected *e, int i, const char *line) {
    json_t *object = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL), *losses = json_object_get(object, "losses");
    assert_string_equal(json_string_value(json_object_get(object, "kind")), "example");
    assert_int_equal(integer(object, "index"), i);
    assert_int_equal(integer(object, "label"), e->label[i]);
    assert_int_equal(json_array_size(losses), ENDINGS);
    for (int j = 0; j < ENDINGS; j++) assert_float_equal(json_real_value(json_array_get(losses, (size_t)j)), e->loss[i][j], 1e-4);
    assert_int_equal(integer(object, "chosen"), least(e->loss[i]));
    assert_int_equal(integer(object, "chosen_per_token"), chosen_per_token(e, i));
    json_decref(object);
}

static void endings_have_the_losses_of_pytorch(void **state) {
    (void)state;
    Expected e;
    read_expected(&e);
    ProcessResult result = smelt("eval model.bin choices.bin json=true");
    expect_code(&result, ERROR_NONE, "json=true");
    const char *line = result.output;
    int right = 0, right_per_token = 0;
    for (int i = 0; i < EXAMPLES; i++) {
        check_example(&e, i, line);
        right += least(e.loss[i]) == e.label[i];
        right_per_token += chosen_per_token(&e, i) == e.label[i];
        line = strchr(line, '\n') + 1;
    }
    assert_true(right > 0 && right != right_per_token); /* else the two accuracies could be mixed up */
    json_t *sum = json_loads(line, 0, NULL);
    assert_int_equal(integer(sum, "examples"), EXAMPLES);
    assert_float_equal(json_real_value(json_object_get(sum, "acc")), (double)right / EXAMPLES, 1e-12);
    assert_float_equal(json_real_value(json_object_get(sum, "acc_norm")), (double)right_per_token / EXAMPLES, 1e-12);
    json_decref(sum);
    process_free(&result);
}

static void the_accuracies_are_printed(void **state) {
    (void)state;
    int examples;
    double acc, acc_norm;
    ProcessResult result = smelt("eval model.bin choices.bin sequences=5");
    expect_code(&result, ERROR_NONE, "sequences=5");
    assert_int_equal(
        sscanf(result.output, "examples %d acc %lf by likelihood acc_norm %lf by likelihood per token", &examples, &acc, &acc_norm), 3);
    assert_int_equal(examples, 5);
    Expected e;
    read_expected(&e);
    int right = 0, right_per_token = 0;
    for (int i = 0; i < 5; i++) {
        right += least(e.loss[i]) == e.label[i];
        right_per_token += chosen_per_token(&e, i) == e.label[i];
    }
    assert_float_equal(acc, right / 5.0, 1e-4);
    assert_float_equal(acc_norm, right_per_token / 5.0, 1e-4);
    process_free(&result);
}

static void ranks_share_the_examples_and_print_the_same(void **state) {
    (void)state;
    ProcessResult alone = smelt("eval model.bin choices.bin json=true"),
                  shared = smelt("launch -n 2 self_test=false -- eval model.bin choices.bin json=true device=cpu");
    expect_code(&alone, 0, "eval");
    expect_code(&shared, 0, "eval by ranks");
    assert_string_equal(shared.output, alone.output);
    process_free(&alone);
    process_free(&shared);
}

static void ranks_that_share_each_example_choose_the_same(void **state) {
    (void)state;
    static const char *const layouts[] = {"layout.tp=2", "layout.cp=2"};
    ProcessResult alone = smelt("eval model.bin choices.bin");
    for (int i = 0; i < 2; i++) {
        char *words = memory_format("launch -n 2 self_test=false -- eval model.bin choices.bin device=cpu %s", layouts[i]);
        ProcessResult shared = smelt(words);
        expect_code(&shared, 0, words);
        assert_string_equal(shared.output, alone.output);
        process_free(&shared);
        free(words);
    }
    process_free(&alone);
}

static void files_of_choices_that_lie_are_refused(void **state) {
    (void)state;
    const struct {
        size_t at;
        uint16_t value;
        const char *message;
    } cases[] = {
        {4, 2, "1 llm.c's"},
        {8, 0, "claims 0 examples"},
        {10, 1, "into"},
        {8, EXAMPLES - 1, "more data after 11"},
        {8, EXAMPLES + 1, "example 12 13 missing"},
        {HEADER, 7, "example 0 12 begin 65535"},
        {HEADER + 2, 65534, "longer"},
        {HEADER + 2, 4, "shorter"},
        {HEADER + 4, 1, "index"},
        {HEADER + 6, 4, "label"},
        {HEADER + 8, 1, "fewer 2"},
        {HEADER + 8, 17, "16 endings"},
        {HEADER + 8, 3, "texts"},
        {HEADER + 10, 0, "example 0 empty"},
        {HEADER + 10, 65535, "texts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MultipleChoice choices;
        Error error = {0};
        copy_golden("choices.bin");
        patch("choices.bin", cases[i].at, &cases[i].value, 2);
        assert_false(multiple_choice_open(&choices, "choices.bin", &error));
        multiple_choice_close(&choices);
        assert_int_equal(error.code, ERROR_DATA);
        if (!mentions(error.message, cases[i].message)) fail_msg("\"%s\" does not contain \"%s\"", error.message, cases[i].message);
    }
}

static void a_file_of_choices_cut_anywhere_is_refused(void **state) {
    (void)state;
    size_t size;
    unsigned char *content = read_bytes("choices.bin", &size);
    for (size_t length = 4; length < size; length++) {
        MultipleChoice choices;
        Error error = {0};
        write_bytes("cut.bin", content, length);
        assert_false(multiple_choice_open(&choices, "cut.bin", &error));
        assert_int_equal(error.code, ERROR_DATA);
        multiple_choice_close(&choices);
    }
    free(content);
}

/* The model without its last position: the header says so, and its row of the position table is gone. */
static void write_short_model(void) {
    const int32_t context = 31;
    const size_t row = 4 * WIDTH, end = HEADER + (128 + 32) * row;
    size_t size;
    unsigned char *content = read_bytes("model.bin", &size);
    memcpy(content + 8, &context, 4);
    memmove(content + end - row, content + end, size - end);
    write_bytes("short.bin", content, size - row);
    free(content);
}

static void choices_made_for_another_model_are_refused(void **state) {
    (void)state;
    const uint16_t foreign = VOCABULARY;
    patch("choices.bin", HEADER + 12, &foreign, 2);
    expect_failure("eval model.bin choices.bin", ERROR_DATA, "choices.bin 40 40");
    copy_golden("choices.bin");
    expect_failure("eval model.bin choices.bin length=8", ERROR_USAGE, "length=8");
    write_short_model();
    expect_failure("eval short.bin choices.bin", ERROR_DATA, "longest 32 positions 31");
}

/* -- Debug states -------------------------------------------------------------------------------------------------- */

static char *losses_argument(void) {
    char *path = memory_format("%s/losses.txt", golden);
    size_t size;
    unsigned char *text = read_bytes(path, &size);
    char *argument = memory_format("losses=%.*s", (int)strcspn((char *)text, "\n"), text);
    free(text);
    free(path);
    return argument;
}

static ProcessResult check_state(const char *model) {
    char *losses = losses_argument(), *words = memory_format("eval %s debug_state.bin %s", model, losses);
    ProcessResult result = smelt(words);
    free(words);
    free(losses);
    return result;
}

static int count_word(const char *text, const char *word) {
    int count = 0;
    for (const char *at = text; (at = strstr(at, word)); at += strlen(word)) count++;
    return count;
}

/* logits, 28 gradients, the loss, ten steps */
enum { COMPARISONS = 1 + 2 + 2 * 12 + 2 + 1 + 10 };

static void a_state_of_pytorch_is_matched_in_every_number(void **state) {
    (void)state;
    const char *const models[] = {"model.bin", "model_bf16.bin"};
    for (int i = 0; i < 2; i++) {
        ProcessResult result = check_state(models[i]);
        expect_code(&result, ERROR_NONE, models[i]);
        assert_int_equal(count_word(result.output, "  ok\n"), COMPARISONS);
        process_free(&result);
    }
}

static void expect_difference(const char *model, int count, const char *line) {
    ProcessResult result = check_state(model);
    expect_code(&result, ERROR_INTERNAL, line);
    assert_int_equal(count_word(result.output, "DIFFERS\n"), count);
    const char *at = strstr(result.output, line);
    assert_non_null(at);
    assert_int_equal(strncmp(strchr(at, '\n') - 7, "DIFFERS", 7), 0);
    process_free(&result);
}

/* A sign that is wrong, in fp32 and in bf16, where tolerances are wide. */
static void one_gradient_of_the_wrong_sign_is_found(void **state) {
    (void)state;
    size_t size;
    unsigned char *content = read_bytes("debug_state.bin", &size);
    float *last = (float *)(content + size) - WIDTH; /* transformer.ln_f.bias */
    for (int i = 0; i < WIDTH; i++) last[i] = -last[i];
    write_bytes("debug_state.bin", content, size);
    free(content);
    expect_difference("model.bin", 1, "transformer.ln_f.bias");
    expect_difference("model_bf16.bin", 1, "transformer.ln_f.bias");
}

static void a_logit_and_a_loss_that_are_wrong_are_found(void **state) {
    (void)state;
    const float wrong = 7;
    const size_t logits = HEADER + 2 * 48 * 4;
    patch("debug_state.bin", logits + 4 * 100, &wrong, 4);
    expect_difference("model.bin", 1, "logits");
    copy_golden("debug_state.bin");
    patch("debug_state.bin", logits + 4 * 48 * VOCABULARY, &wrong, 4);
    expect_difference("model.bin", 1, "loss  ");
}

static void losses_that_are_not_given_are_printed_only(void **state) {
    (void)state;
    ProcessResult result = smelt("eval model.bin debug_state.bin");
    expect_code(&result, ERROR_NONE, "no losses");
    assert_int_equal(count_word(result.output, "  ok\n"), COMPARISONS - 10);
    assert_int_equal(count_word(result.output, "loss before step"), 10);
    process_free(&result);
}

static void states_and_losses_that_lie_are_refused(void **state) {
    (void)state;
    const struct {
        size_t at;
        int32_t value;
        const char *message;
    } cases[] = {
        {4, 1, "llm.c 2"},
        {8, 0, "0 sequences 24 tokens"},
        {8, 3, "3 24 tokens model"},
        {8, INT32_MAX, "match 2147483647 24 tokens"},
        {12, 33, "32 model's context"},
        {HEADER + 4, VOCABULARY, "row 1 token 40"},
        {HEADER + 4, -1, "row 1 has token -1"},
        {HEADER + 4 * 48, -2, "and target -2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        copy_golden("debug_state.bin");
        patch("debug_state.bin", cases[i].at, &cases[i].value, 4);
        expect_failure("eval model.bin debug_state.bin", ERROR_CHECKPOINT, cases[i].message);
    }
    copy_golden("debug_state.bin");
    expect_failure("eval model.bin debug_state.bin losses=1,2,3", ERROR_USAGE, "number 3");
    expect_failure("eval model.bin debug_state.bin json=true", ERROR_USAGE, "text");
    expect_failure("eval model.bin debug_state.bin batch=2", ERROR_USAGE, "batch=2");
}

int main(void) {
    train_main();
    golden = realpath("tests/golden/llmc", NULL);
    assert_non_null(golden);
    const struct CMUnitTest tests[] = {
        LLMC_TEST(endings_have_the_losses_of_pytorch),
        LLMC_TEST(the_accuracies_are_printed),
        LLMC_TEST(ranks_share_the_examples_and_print_the_same),
        LLMC_TEST(ranks_that_share_each_example_choose_the_same),
        LLMC_TEST(files_of_choices_that_lie_are_refused),
        LLMC_TEST(a_file_of_choices_cut_anywhere_is_refused),
        LLMC_TEST(choices_made_for_another_model_are_refused),
        LLMC_TEST(a_state_of_pytorch_is_matched_in_every_number),
        LLMC_TEST(one_gradient_of_the_wrong_sign_is_found),
        LLMC_TEST(a_logit_and_a_loss_that_are_wrong_are_found),
        LLMC_TEST(losses_that_are_not_given_are_printed_only),
        LLMC_TEST(states_and_losses_that_lie_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(golden);
    return failed;
}
