/* End to end: what is computed in fp8 beside training's steps. The tiny model's layers have multiples of 16 rows and columns and are
 * below the usual fp8.min_size. */
#include "base/scope.h"
#include "support/train_run.h"

#define LLAMA                                                                                                                              \
    "model.family=llama model.experts=0 model.context=96 model.width=64 model.heads=4 model.kv_heads=2 model.ffn=96 data.valid=text eval.sequences=40 "     \
    "eval.sample_tokens=11 eval.every=5 steps=10 "

#define MIXTRAL LLAMA "model.experts=4 model.experts_per_token=2 "

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
    static const char *const recipes[] = {"tensor", "row", "row_gw_hp", "block", "mxfp8"};
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
    smelt_says(ERROR_USAGE, "precision=fp64", "eval tensor text precision=fp64 fp8.recipe=tensor");
    assert_true(evaluated("tensor", "fp8.recipe=row fp8.min_size=1000") == evaluated("tensor", ""));
    assert_true(evaluated("tensor", "fp8.recipe=row fp8.min_size=35") != evaluated("tensor", "fp8.recipe=row"));
    smelt_says(ERROR_USAGE, "fp8.min_size=3", "eval tensor text fp8.min_size=3");
    smelt_says(ERROR_USAGE, "fp8.min_size=3", "generate tensor The tokens=1 fp8.min_size=3");
}

/* Evaluations of a run are computed with the head in fp8, and eval only where it asks for all that the run had. */
static void a_head_in_fp8_is_that_of_evaluations_too(void **state) {
    (void)state;
    train_good("run=head " LLAMA "fp8.recipe=row fp8.head=true fp8.min_size=0");
    double own = recorded("head", "evaluation", -1, "loss"), same = evaluated("head", "fp8.recipe=same"),
           layers = evaluated("head", "fp8.recipe=row");
    assert_true(fabs(own - same) < 1e-9 && same != layers && fabs(same - layers) < 0.01);
    train_says(
        ERROR_NONE, "fp8.head layout.tp fp8 16", "run=odd " LLAMA "model.vocabulary=323 fp8.recipe=row fp8.head=true fp8.min_size=0");
    train_says(ERROR_USAGE, "fp8.head=true", "run=none " LLAMA "fp8.head=true");
}

/* 24 rows: gradients of weights cannot be in fp8, and then nothing of a layer is. */
static void evaluations_are_in_fp8_where_training_is(void **state) {
    (void)state;
    static const char format[] = "run=%s " LLAMA "data.length=24 batch.sequences=1 batch.tokens=240 fp8.recipe=%s";
    train_good(format, "plain", "none");
    train_says(ERROR_NONE, "computed fp8 microbatch 16", format, "uneven", "tensor fp8.min_size=0");
    assert_true(recorded("plain", "evaluation", -1, "loss") == recorded("uneven", "evaluation", -1, "loss"));
    assert_true(evaluated("uneven", "fp8.recipe=same") == evaluated("uneven", ""));
    assert_true(evaluated("uneven", "fp8.recipe=tensor") != evaluated("uneven", "fp8.recipe=same"));
}

static void the_plan_of_a_mixture_says_of_each_phase_what_is_in_fp8(void **state) {
    (void)state;
    write_text("mix.yaml", "sources:\n  - {name: web, path: text}\nphases:\n  - {name: short, tokens: 2560, length: 8, weights: {web: 1}}\n"
                           "  - {name: long, tokens: 5120, length: 32, weights: {web: 1}}\n");
    ProcessResult result = smelt("train data.train=mix.yaml run=run model.family=llama model.experts=0 model.context=96 model.width=64 "
                                 "model.layers=2 model.heads=4 model.kv_heads=2 model.ffn=96 batch.sequences=1 batch.tokens=768 steps=9 "
                                 "fp8.recipe=tensor fp8.min_size=0 plan=true");
    expect_code(&result, ERROR_NONE, "plan");
    const char *first = strstr(result.output, ", 0.0% of linear layers in fp8");
    if (!first || !strstr(first, ", 75.0% of linear layers in fp8")) fail_msg("not both phases in %s", result.output);
    process_free(&result);
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

/* -- Delayed scaling ----------------------------------------------------------------------------------------------- */

#define DELAYED "fp8.recipe=tensor fp8.min_size=0 fp8.scaling=delayed "
static const char down_proj[] = "amax_history/d_y/model.layers.0.mlp.down_proj.weight";

/* Evaluations of other runs do not change the history either. */
static void delayed_scaling_resumes_bit_for_bit(void **state) {
    (void)state;
    static const char settings[] = LLAMA DELAYED "fp8.amax_history_len=3 checkpoint.every=2";
    train_good("run=whole %s", settings);
    train_good("run=resumed %s stop_at=5", settings);
    train_good("run=resumed %s", settings);
    assert_same_steps("whole", "resumed");
    train_good("run=quiet %s eval.every=0", settings);
    assert_true(recorded("whole", "step", 9, "loss") == recorded("quiet", "step", 9, "loss"));
    train_good("run=dynamic " LLAMA "fp8.recipe=tensor fp8.min_size=0");
    double delayed = recorded("whole", "step", 9, "loss"), dynamic = recorded("dynamic", "step", 9, "loss");
    assert_true(delayed != dynamic && fabs(delayed - dynamic) < 0.02);
}

/* Step s of the history lies at s modulo its length. */
static void a_history_of_another_length_keeps_its_newest_steps(void **state) {
    (void)state;
    train_good("run=run " LLAMA DELAYED "fp8.amax_history_len=4 stop_at=6");
    float *four = amax_history_of("run", 6, down_proj, 1, 4);
    smelt_says(ERROR_NONE, "fp8.amax_history_len 4 -> 8 7", "train run fp8.amax_history_len=8 stop_at=7");
    float *eight = amax_history_of("run", 7, down_proj, 1, 8);
    for (int step = 1; step <= 7; step++)
        assert_true(step < 3 ? eight[step] == 0 : step > 6 ? eight[step] > 0 : eight[step] == four[step % 4]);
    assert_true(eight[0] == 0);
    smelt_good("train run fp8.amax_history_len=2 stop_at=8");
    float *two = amax_history_of("run", 8, down_proj, 1, 2);
    assert_true(two[1] == eight[7] && two[0] > 0);
    free(four), free(eight), free(two);
}

static void a_run_without_a_history_is_taken_over(void **state) {
    (void)state;
    train_good("run=run " LLAMA "fp8.recipe=tensor fp8.min_size=0 stop_at=5");
    smelt_says(ERROR_NONE, "fp8.scaling=delayed 5", "train run fp8.scaling=delayed stop_at=7");
    float *history = amax_history_of("run", 7, down_proj, 1, 1024);
    assert_true(history[5] == 0 && history[6] > 0 && history[7] > 0 && history[8] == 0);
    free(history);
    smelt_good("train run fp8.scaling=dynamic");
    assert_int_equal(count_records("run", "step"), 10);
    train_good("run=left " LLAMA "fp8.recipe=tensor fp8.scaling=delayed fp8.min_size=0 stop_at=5");
    smelt_good("train left fp8.recipe=none");
    train_says(ERROR_USAGE, "fp8.scaling=delayed fp8.recipe=tensor", "run=other " LLAMA "fp8.recipe=row fp8.scaling=delayed");
    train_says(ERROR_USAGE, "fp8.amax_history_len=7 fp8.scaling=delayed", "run=other " LLAMA "fp8.recipe=tensor fp8.amax_history_len=7");
}

static void casting_weights_once_a_step_changes_no_bit(void **state) {
    (void)state;
    static const char *const recipes[] = {"tensor", "row", "row_gw_hp", "block", "mxfp8", "tensor fp8.scaling=delayed"};
    for (int i = 0; i < 6; i++) {
        SCOPED_FREE char *kept = memory_format("kept-%d", i), *cast = memory_format("cast-%d", i);
        train_good("run=%s " LLAMA "fp8.min_size=0 steps=3 schedule.warmup=0 fp8.recipe=%s fp8.keep_weights=true", kept, recipes[i]);
        train_good("run=%s " LLAMA "fp8.min_size=0 steps=3 schedule.warmup=0 fp8.recipe=%s", cast, recipes[i]);
        assert_same_steps(kept, cast);
    }
    train_says(ERROR_NONE, "weights fp8", "run=kept-0 " LLAMA "fp8.min_size=0 fp8.recipe=tensor fp8.keep_weights=true plan=true");
    train_says(ERROR_USAGE, "fp8.keep_weights=true has no effect without fp8.recipe", "run=other " LLAMA "fp8.keep_weights=true");
}

/* Casts are made again by amax of the forward pass. */
static void recomputation_changes_no_bit(void **state) {
    (void)state;
    static const char *const policies[] = {"norm", "attention", "block"};
    static const char *const recipes[] = {"tensor", "row", "tensor fp8.scaling=delayed"};
    for (int i = 0; i < 3; i++) {
        SCOPED_FREE char *kept = memory_format("none-%d", i);
        train_good("run=%s " LLAMA "fp8.min_size=0 steps=3 schedule.warmup=0 recompute=none fp8.recipe=%s", kept, recipes[i]);
        for (int j = 0; j < 3; j++) {
            SCOPED_FREE char *again = memory_format("%s-%d", policies[j], i);
            train_good(
                "run=%s " LLAMA "fp8.min_size=0 steps=3 schedule.warmup=0 recompute=%s fp8.recipe=%s", again, policies[j], recipes[i]);
            assert_same_steps(kept, again);
        }
    }
}

/* Tiles of slots are found again, and a cast of slots is made again in them. */
static void experts_keep_their_bits_where_casts_are_made_again_or_kept(void **state) {
    (void)state;
    static const char *const recipes[] = {"tensor", "row", "block", "mxfp8", "tensor fp8.scaling=delayed"};
    for (int i = 0; i < 5; i++) {
        SCOPED_FREE char *none = memory_format("none-%d", i), *block = memory_format("block-%d", i), *kept = memory_format("kept-%d", i);
        static const char format[] = "run=%s " MIXTRAL "fp8.min_size=0 steps=3 schedule.warmup=0 fp8.recipe=%s %s";
        train_good(format, none, recipes[i], "recompute=none");
        train_good(format, block, recipes[i], "recompute=block");
        train_good(format, kept, recipes[i], "recompute=norm fp8.keep_weights=true");
        assert_same_steps(none, block);
        assert_same_steps(none, kept);
    }
}

static void updates_in_the_backward_pass_change_no_bit(void **state) {
    (void)state;
    static const char *const scalings[] = {"dynamic", "delayed"};
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *within = memory_format("within-%d", i), *after = memory_format("after-%d", i);
        static const char format[] = "run=%s " LLAMA "fp8.recipe=tensor fp8.min_size=0 steps=3 schedule.warmup=0 batch.sequences=8 "
                                     "optimizer.clip=0 fp8.scaling=%s optimizer.in_backward=%s";
        train_good(format, within, scalings[i], "true");
        train_good(format, after, scalings[i], "false");
        assert_same_steps(within, after);
    }
}

static void what_has_no_effect_is_named(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "fp8.recipe=tensor row_gw_hp mxfp8 fp8", "run=run precision=fp8");
    train_says(ERROR_USAGE, "fp8.min_size=3 fp8.recipe: fp8.min_size=400", "run=run fp8.min_size=3");
    train_says(ERROR_NONE, "fp8.recipe fp8", "run=run " LLAMA "fp8.recipe=row steps=1 schedule.warmup=0");
    train_good("run=plain " LLAMA "steps=1 schedule.warmup=0");
    smelt_says(ERROR_NONE, "fp8.recipe fp8", "train plain steps=2 fp8.recipe=row");
    smelt_says(ERROR_NONE, "fp8.recipe fp8", "eval run text fp8.recipe=tensor");
    smelt_says(ERROR_NONE, "fp8.recipe fp8", "generate run The tokens=1 fp8.recipe=tensor");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(evaluations_of_a_run_are_computed_by_its_recipe_and_eval_only_when_asked),
        TRAIN_TEST(a_head_in_fp8_is_that_of_evaluations_too),
        TRAIN_TEST(evaluations_are_in_fp8_where_training_is),
        TRAIN_TEST(the_plan_of_a_mixture_says_of_each_phase_what_is_in_fp8),
        TRAIN_TEST(generation_takes_a_recipe_with_and_without_the_cache),
        TRAIN_TEST(a_recipe_that_changes_is_printed_and_recorded),
        TRAIN_TEST(a_recipe_is_no_part_of_the_model_that_a_run_starts_from),
        TRAIN_TEST(delayed_scaling_resumes_bit_for_bit),
        TRAIN_TEST(a_history_of_another_length_keeps_its_newest_steps),
        TRAIN_TEST(a_run_without_a_history_is_taken_over),
        EACH_ISA(TRAIN_TEST(casting_weights_once_a_step_changes_no_bit)),
        EACH_ISA(TRAIN_TEST(recomputation_changes_no_bit)),
        EACH_ISA(TRAIN_TEST(experts_keep_their_bits_where_casts_are_made_again_or_kept)),
        EACH_ISA(TRAIN_TEST(updates_in_the_backward_pass_change_no_bit)),
        TRAIN_TEST(what_has_no_effect_is_named),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
