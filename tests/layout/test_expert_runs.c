/* Training with experts that ranks share out, compared with one process. */
#include "support/ranks_run.h"

#define SIX_MICROBATCHES "batch.sequences=2 batch.tokens=384"

/* One expert for a row, or none. */
#define ZAYA "model.family=zaya model.auxiliary_loss=0.01 " SIX_MICROBATCHES
/* Two experts for a row. */
#define MIXTRAL "model.family=llama model.experts=8 model.experts_per_token=2 model.renormalise=true model.auxiliary_loss=0.01 " SIX_MICROBATCHES

#define ONE_STEP " steps=1 schedule.warmup=0 eval.every=0 checkpoint.every=1"

typedef struct Layout {
    int ranks;
    const char *settings;
} Layout;

/* The loss alone: a row whose second choice is nearly a tie may choose otherwise after a sum in another order, which the
 * norm of a step shows and the loss does not. */
static void assert_same_loss(const char *run, const char *other) {
    compare_records(run, other, "step", "loss");
    compare_records(run, other, "evaluation", "loss");
}

/* Balancing biases follow counts of choices, which have the same bits in any layout as long as choices are the same. */
static void assert_same_first_step(const char *run, const char *other) {
    json_t *shapes = checkpoint_shapes(other, 1), *shape;
    const char *name;
    int found = 0;
    assert_same_gradients(run, other);
    json_object_foreach(shapes, name, shape) {
        if (!strstr(name, "balancing_biases")) continue;
        assert_same_tensors(run, other, 1, name, 0);
        found++;
    }
    assert_true(found > 0);
    json_decref(shapes);
}

static void check_layouts(const char *settings, const Layout *layouts, int count, void (*compare)(const char *run, const char *other)) {
    if (!has_mpi()) skip();
    static int all;
    char one[32];
    snprintf(one, sizeof one, "one-%d", all++);
    train_ranks(0, "%s run=%s", settings, one);
    for (int i = 0; i < count; i++) {
        char run[32];
        snprintf(run, sizeof run, "shared-%d", all++);
        train_ranks(layouts[i].ranks, "%s %s run=%s", settings, layouts[i].settings, run);
        compare(run, one);
    }
}
#define CHECK_LAYOUTS(compare, settings, ...)                                                                                              \
    do {                                                                                                                                   \
        static const Layout layouts[] = {__VA_ARGS__};                                                                                     \
        check_layouts(settings, layouts, (int)(sizeof layouts / sizeof *layouts), compare);                                                \
    } while (0)

static void zaya_learns_the_same_with_experts_on_several_ranks(void **state) {
    (void)state;
    CHECK_LAYOUTS(assert_same_loss, ZAYA, {2, "layout.ep=2"}, {4, "layout.ep=4"}, {4, "layout.ep=2 layout.zero=3"});
}

static void zaya_with_muon_learns_the_same_with_experts_on_several_ranks(void **state) {
    (void)state;
    CHECK_LAYOUTS(assert_same_loss, ZAYA " optimizer.name=muon", {2, "layout.ep=2 layout.zero=3"}, {4, "layout.ep=2"});
}

static void mixtral_learns_the_same_with_experts_on_several_ranks(void **state) {
    (void)state;
    CHECK_LAYOUTS(
        assert_same_loss, MIXTRAL, {2, "layout.ep=2 recompute=block"}, {4, "layout.ep=2 layout.zero=2"}, {4, "layout.ep=4 layout.zero=3"});
}

static void mixtral_with_muon_learns_the_same_with_experts_on_several_ranks(void **state) {
    (void)state;
    CHECK_LAYOUTS(assert_same_loss, MIXTRAL " optimizer.name=muon", {2, "layout.ep=2 layout.zero=2"},
        {4, "layout.ep=4 layout.zero=0 recompute=norm"});
}

#define QWEN3_MOE MIXTRAL " model.qk_norm=true model.renormalise=false model.experts_first=1"

static void every_gradient_is_that_of_one_rank(void **state) {
    (void)state;
    CHECK_LAYOUTS(
        assert_same_first_step, ZAYA ONE_STEP, {2, "layout.ep=2"}, {4, "layout.ep=4 recompute=block"}, {4, "layout.ep=2 layout.zero=3"});
    CHECK_LAYOUTS(
        assert_same_first_step, MIXTRAL ONE_STEP " optimizer.name=muon seed=4", {2, "layout.ep=2"}, {4, "layout.ep=4 layout.zero=2"});
}

#define ALL_AXES {4, "layout.ep=2 layout.tp=2"}, {4, "layout.ep=2 layout.cp=2"}, {4, "layout.ep=2 layout.pp=2"}
#define HEADS " model.heads=4 model.kv_heads=2"

/* Ranks of tp and cp have rows of one microbatch: their routers' loads are summed. */
static void ranks_of_other_axes_learn_the_same(void **state) {
    (void)state;
    CHECK_LAYOUTS(assert_same_loss, ZAYA HEADS, ALL_AXES);
    CHECK_LAYOUTS(assert_same_first_step, ZAYA HEADS ONE_STEP, ALL_AXES);
    CHECK_LAYOUTS(assert_same_first_step, MIXTRAL HEADS ONE_STEP " optimizer.name=muon", ALL_AXES);
    CHECK_LAYOUTS(assert_same_loss, QWEN3_MOE HEADS, ALL_AXES);
}

static void gradients_that_travel_in_bf16_teach_nearly_the_same(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_ranks(0, ZAYA " run=one");
    train_ranks(2, ZAYA " layout.ep=2 layout.reduce=bf16 run=two");
    double off = 0;
    for (int i = 0; i < 20; i++) off = fmax(off, fabs(recorded("two", "step", i, "loss") - recorded("one", "step", i, "loss")));
    assert_true(off > 0 && off < 5e-3);
}

static void the_same_layout_gives_the_same_bits(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    for (int i = 0; i < 2; i++) train_ranks(4, MIXTRAL " precision=bf16 layout.ep=2 layout.zero=1 run=again-%d", i);
    assert_same_steps("again-0", "again-1");
}

static void a_run_goes_on_with_its_experts_on_other_ranks(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    static const struct {
        int ranks, stop;
        const char *layout;
    } parts[] = {
        {4, 6, "layout.ep=4"}, {0, 10, ""}, {2, 14, "layout.ep=2 layout.zero=3"}, {3, 17, "layout.zero=2"}, {4, 20, "layout.ep=2"}};
    train_ranks(0, ZAYA " optimizer.name=muon run=one");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        train_ranks(parts[i].ranks, ZAYA " optimizer.name=muon %s stop_at=%d run=many", parts[i].layout, parts[i].stop);
    compare_records("many", "one", "step", "loss");
}

static void ranks_draw_one_text_together(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_ranks(0, ZAYA " eval.sample_tokens=20 run=one");
    train_ranks(2, ZAYA " eval.sample_tokens=20 layout.ep=2 run=two");
    json_t *one = records("one", "sample"), *two = records("two", "sample");
    assert_true(json_array_size(one) > 0);
    assert_string_equal(json_string_value(json_object_get(json_array_get(one, 0), "text")),
        json_string_value(json_object_get(json_array_get(two, 0), "text")));
    json_decref(one);
    json_decref(two);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(zaya_learns_the_same_with_experts_on_several_ranks),
        TRAIN_TEST(zaya_with_muon_learns_the_same_with_experts_on_several_ranks),
        TRAIN_TEST(mixtral_learns_the_same_with_experts_on_several_ranks),
        TRAIN_TEST(mixtral_with_muon_learns_the_same_with_experts_on_several_ranks),
        TRAIN_TEST(every_gradient_is_that_of_one_rank),
        TRAIN_TEST(ranks_of_other_axes_learn_the_same),
        TRAIN_TEST(gradients_that_travel_in_bf16_teach_nearly_the_same),
        TRAIN_TEST(the_same_layout_gives_the_same_bits),
        TRAIN_TEST(a_run_goes_on_with_its_experts_on_other_ranks),
        TRAIN_TEST(ranks_draw_one_text_together),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
