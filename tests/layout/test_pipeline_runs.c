/* Stages of a pipeline beside the rest: ZeRO, text samples, NaN, checkpoints that go from one layout to another. */
#include "support/mentions.h"
#include "support/ranks_run.h"

/* Four layers and eight microbatches, for up to four stages. */
#define STAGES "model.layers=4 batch.sequences=2 batch.tokens=512 checkpoint.every=10 checkpoint.keep=100 "

typedef struct Family { const char *name, *settings; } Family;
static const Family zaya = {"zaya", "model.auxiliary_loss=0.01"};
static const Family llama = {"llama", "model.family=llama model.experts=0 model.tied=false"};
static const Family tied = {"tied", "model.family=llama model.experts=0 model.tied=true model.kv_heads=2"};
static const Family mixtral = {
    "mixtral", "model.family=llama model.experts_per_token=2 model.auxiliary_loss=0.01 model.auxiliary_scope=model"};

static void stages_and_zero_compose(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const struct {
        const Family *family;
        const char *layout;
    } cases[] = {{&zaya, "layout.zero=1"}, {&tied, "layout.zero=3 layout.pp_schedule=zero-bubble"},
        {&mixtral, "layout.zero=3 layout.pp_schedule=interleaved"}, {&llama, "layout.zero=2 layout.shard=1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char one[32], stages[32];
        snprintf(one, sizeof one, "one-%zu", i);
        snprintf(stages, sizeof stages, "stages-%zu", i);
        train_ranks(0, "%s optimizer.name=muon " STAGES "run=%s", cases[i].family->settings, one);
        train_ranks(4, "%s optimizer.name=muon layout.pp=2 %s " STAGES "run=%s", cases[i].family->settings, cases[i].layout, stages);
        assert_same_losses(stages, one);
        assert_same_momentum(stages, one);
    }
}

static void the_same_stages_give_the_same_bits(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const char layout[] = "layout.pp=2 layout.zero=3 layout.pp_schedule=zero-bubble precision=bf16 optimizer.name=muon";
    for (int i = 0; i < 2; i++) train_ranks(4, "%s %s " STAGES "run=%s", tied.settings, layout, i ? "two" : "one");
    assert_same_steps("one", "two");
    assert_same_tensors("one", "two", 20, "", 0);
}

/* Three of eight microbatches are left for the second replica's pipeline, and the last step of a growing batch has more. */
static void fewer_microbatches_than_stages_are_the_same(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const char few[] = "model.layers=4 batch.sequences=2 batch.tokens=192 batch.ramp_tokens=64 batch.ramp_steps=12";
    train_ranks(0, "%s %s run=one", zaya.settings, few);
    train_ranks(4, "%s %s layout.pp=4 layout.pp_schedule=zero-bubble run=four", zaya.settings, few);
    train_ranks(4, "%s %s layout.pp=2 layout.pp_schedule=interleaved run=two", zaya.settings, few);
    assert_same_losses("four", "one");
    assert_same_losses("two", "one");
}

static void a_run_goes_on_in_other_stages(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const struct {
        int ranks, stop;
        const char *layout;
    } parts[] = {{4, 5, "layout.pp=2 layout.zero=3"}, {0, 10, ""}, {4, 15, "layout.pp=4 layout.pp_schedule=zero-bubble"}, {2, 20, ""}};
    train_ranks(0, "%s optimizer.name=muon " STAGES "run=one", tied.settings);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        train_ranks(
            parts[i].ranks, "%s optimizer.name=muon " STAGES "stop_at=%d %s run=many", tied.settings, parts[i].stop, parts[i].layout);
    assert_same_losses("many", "one");
}

static void the_last_stage_writes_samples_of_text(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_ranks(0, "%s " STAGES "eval.sample_tokens=24 run=one", llama.settings);
    train_ranks(2, "%s " STAGES "eval.sample_tokens=24 layout.pp=2 run=two", llama.settings);
    json_t *one = records("one", "sample"), *two = records("two", "sample");
    assert_true(json_array_size(one) > 0);
    for (size_t i = 0; i < json_array_size(one); i++)
        assert_string_equal(json_string_value(json_object_get(json_array_get(one, i), "text")),
            json_string_value(json_object_get(json_array_get(two, i), "text")));
    json_decref(one);
    json_decref(two);
}

static void a_nan_is_named_by_all_stages(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    ProcessResult result = run_ranks(2,
        STAGES "schedule.kind=constant schedule.warmup=0 optimizer.lr=100 optimizer.weight_decay=100 steps=200 checkpoint.every=0 "
               "layout.pp=2 run=r");
    assert_int_equal(result.code, ERROR_NUMERICS);
    assert_mentions(result.errors, "infinity");
    process_free(&result);
}

static void a_pipeline_that_does_not_fit_the_layers_is_refused(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "layout.pp=8 model.layers=4", STAGES "layout.pp=8 run=r");
    train_says(ERROR_USAGE, "layout.pp pp_chunks = 6 model.layers=4",
        STAGES "layout.pp=2 layout.pp_schedule=interleaved layout.pp_chunks=3 run=r");
    train_says(ERROR_USAGE, "layout.pp_chunks=2 layout.pp_schedule=interleaved layout.pp=2", STAGES "layout.pp=2 layout.pp_chunks=2 run=r");
    train_says(ERROR_USAGE, "layout.pp_schedule=zero-bubble layout.pp=2", STAGES "layout.pp_schedule=zero-bubble run=r");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(stages_and_zero_compose),
        TRAIN_TEST(the_same_stages_give_the_same_bits),
        TRAIN_TEST(fewer_microbatches_than_stages_are_the_same),
        TRAIN_TEST(a_run_goes_on_in_other_stages),
        TRAIN_TEST(the_last_stage_writes_samples_of_text),
        TRAIN_TEST(a_nan_is_named_by_all_stages),
        TRAIN_TEST(a_pipeline_that_does_not_fit_the_layers_is_refused),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
