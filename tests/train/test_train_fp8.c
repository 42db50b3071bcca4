/* End to end: what is computed in fp8 beside training's steps. The tiny model's layers have multiples of 16 rows and columns and are
 * below the usual fp8.min_size. */
#include "base/scope.h"
#include "support/train_run.h"

#define LLAMA                                                                                                                              \
    "model.family=llama model.experts=0 model.context=96 model.width=64 model.heads=4 model.kv_heads=2 model.ffn=96 data.valid=text eval.sequences=40 "     \
    "eval.sample_tokens=11 eval.every=5 steps=10 "

static double loss_of(const char *words) {
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    json_auto_t *record = json_loads(result.output, 0, NULL);
    assert_non_null(record);
    double loss = json_real_value(json_object_get(record, "loss"));
    process_free(&result);
    return loss;
}

static double evaluated(const char *run, const char *settings) {
    char *words = memory_format("eval %s text json=true sequences=40 %s", run, settings);
    double loss = loss_of(words);
    free(words);
    return loss;
}

/* Largest magnitudes that weights had at the evaluation before would give another loss. Samples have 43 rows, and 93 are no
 * multiple of 16 either. */
static void evaluations_of_a_run_are_computed_by_its_recipe_and_eval_only_when_asked(void **state) {
    (void)state;
    static const char *const recipes[] = {"tensor", "row", "row_gw_hp", "block"};
    for (size_t i = 0; i < sizeof recipes / sizeof *recipes; i++) {
        train_good("run=%s " LLAMA "fp8.recipe=%s fp8.min_size=0", recipes[i], recipes[i]);
        SCOPED_FREE char *asked = memory_format("fp8.recipe=%s", recipes[i]),
                         *odd = memory_format("fp8.recipe=%s length=31 batch=3", recipes[i]);
        double own = recorded(recipes[i], "evaluation", -1, "loss"), same = evaluated(recipes[i], "fp8.recipe=same");
        assert_true(fabs(own - same) < 1e-9 && same == evaluated(recipes[i], asked));
        double plain = evaluated(recipes[i], ""), plain_odd = evaluated(recipes[i], "length=31 batch=3"),
               in_fp8 = evaluated(recipes[i], odd);
        /* Codes of three bits of mantissa change the loss a little. */
        assert_true(plain != same && fabs(plain - same) < 0.01 && plain_odd != in_fp8 && fabs(plain_odd - in_fp8) < 0.01);
    }
    smelt_says(ERROR_USAGE, "which precision=fp64 cannot use", "eval tensor text precision=fp64 fp8.recipe=tensor");
}

static void generation_takes_a_recipe_with_and_without_the_cache(void **state) {
    (void)state;
    static const char words[] = "generate run The_model tokens=9 temperature=0 precision=fp32 fp8.recipe=%s cache=%s";
    train_good("run=run " LLAMA "precision=fp32 fp8.recipe=row fp8.min_size=0");
    char *cached = memory_format(words, "row", "true"), *whole = memory_format(words, "row", "false");
    ProcessResult first = smelt(cached), second = smelt(whole);
    expect_code(&first, ERROR_NONE, cached);
    expect_code(&second, ERROR_NONE, whole);
    assert_string_equal(first.output, second.output); /* scales are of rows, so other rows change nothing */
    process_free(&first);
    process_free(&second);
    free(cached);
    free(whole);
}

static void a_recipe_that_changes_is_printed_and_recorded(void **state) {
    (void)state;
    train_good("run=run " LLAMA "stop_at=5");
    smelt_says(ERROR_NONE, "fp8.recipe: none -> row from step 6 on\n", "train run fp8.recipe=row fp8.min_size=0");
    smelt_says(ERROR_NONE, "changed: fp8.recipe: none -> row", "show run");
    train_good("run=other " LLAMA "stop_at=5");
    train_good("run=other " LLAMA);
    assert_true(recorded("run", "step", 4, "loss") == recorded("other", "step", 4, "loss"));
    assert_true(recorded("run", "step", 9, "loss") != recorded("other", "step", 9, "loss"));
}

static void a_recipe_is_no_part_of_the_model_that_a_run_starts_from(void **state) {
    (void)state;
    train_good("run=first " LLAMA "fp8.recipe=tensor fp8.min_size=0 steps=2 schedule.warmup=0");
    smelt_good("convert first folder");
    static const char start[] =
        "train init=%s run=%s data.train=text data.length=32 batch.sequences=4 batch.tokens=256 steps=1 schedule.warmup=0 %s";
    const struct {
        const char *from, *run, *settings;
    } cases[] = {{"folder", "second", "fp8.recipe=block fp8.min_size=0"}, {"first", "third", ""}};
    for (int i = 0; i < 2; i++) {
        char *words = memory_format(start, cases[i].from, cases[i].run, cases[i].settings);
        smelt_good(words);
        free(words);
    }
    char *second = read_text("second/config.yaml"), *third = read_text("third/config.yaml");
    assert_non_null(strstr(second, "recipe: block"));
    assert_non_null(strstr(third, "recipe: none"));
    free(second);
    free(third);
}

static void what_has_no_effect_is_named(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "fp8.recipe=tensor, row, row_gw_hp or block computes linear layers in fp8", "run=run precision=fp8");
    train_says(ERROR_USAGE, "fp8.min_size=3 is for a run with fp8.recipe: give one, or fp8.min_size=400", "run=run fp8.min_size=3");
    train_says(ERROR_NONE, "fp8.recipe: no linear layer is computed in fp8", "run=run " LLAMA "fp8.recipe=row steps=1 schedule.warmup=0");
    train_good("run=plain " LLAMA "steps=1 schedule.warmup=0");
    smelt_says(ERROR_NONE, "fp8.recipe: no linear layer is computed in fp8", "train plain steps=2 fp8.recipe=row");
    smelt_says(ERROR_NONE, "fp8.recipe: no linear layer is computed in fp8", "eval run text fp8.recipe=tensor");
    smelt_says(ERROR_NONE, "fp8.recipe: no linear layer is computed in fp8", "generate run The tokens=1 fp8.recipe=tensor");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(evaluations_of_a_run_are_computed_by_its_recipe_and_eval_only_when_asked),
        TRAIN_TEST(generation_takes_a_recipe_with_and_without_the_cache),
        TRAIN_TEST(a_recipe_that_changes_is_printed_and_recorded),
        TRAIN_TEST(a_recipe_is_no_part_of_the_model_that_a_run_starts_from),
        TRAIN_TEST(what_has_no_effect_is_named),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
