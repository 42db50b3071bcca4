/* Training with ranks that share out heads, columns of MLPs, rows of the residual stream and the vocabulary, compared with
 * one process: losses of 20 steps, and every gradient of the first one. */
#include "support/ranks_run.h"

#define SAVED "checkpoint.every=10 checkpoint.keep=100 "
#define LLAMA SAVED "model.family=llama model.experts=0 model.heads=4 model.kv_heads=2 "

typedef struct Layout {
    int ranks;
    const char *settings;
} Layout;

/* Ranks in excess of 2 have copies of the two key heads. */
static const Layout both[] = {{2, "layout.tp=2"}, {4, "layout.tp=4"}};
static const Layout two[] = {{2, "layout.tp=2"}};

static void check_layouts(const char *settings, const Layout *layouts, int count) {
    if (!has_mpi()) skip();
    train_ranks(0, "%s run=one", settings);
    for (int i = 0; i < count; i++) {
        char run[32];
        snprintf(run, sizeof run, "shared-%d", i);
        train_ranks(layouts[i].ranks, "%s %s run=%s", settings, layouts[i].settings, run);
        assert_same_losses(run, "one");
        assert_same_momentum(run, "one");
    }
}
#define CHECK_LAYOUTS(settings, layouts) check_layouts(settings, layouts, (int)(sizeof(layouts) / sizeof *(layouts)))

static void llama_learns_the_same(void **state) {
    (void)state;
    CHECK_LAYOUTS(LLAMA, both);
}

/* Shares of 129 and 130, and of 64 and 65 rows of the vocabulary. */
static void llama_with_a_head_and_an_odd_vocabulary_learns_the_same(void **state) {
    (void)state;
    CHECK_LAYOUTS(LLAMA "model.tied=false model.vocabulary=259", both);
}

static void biases_and_norms_of_heads_learn_the_same(void **state) {
    (void)state;
    CHECK_LAYOUTS(LLAMA "model.qkv_bias=true model.qk_norm=true", both);
}

static void recomputed_layers_learn_the_same(void **state) {
    (void)state;
    CHECK_LAYOUTS(LLAMA "recompute=block", two);
}

static void groups_that_share_out_data_learn_the_same(void **state) {
    (void)state;
    static const Layout layouts[] = {{4, "layout.tp=2 layout.zero=1"}, {4, "layout.tp=2 layout.zero=3"}};
    CHECK_LAYOUTS(LLAMA, layouts);
}

static void muon_learns_the_same(void **state) {
    (void)state;
    static const Layout layouts[] = {{2, "layout.tp=2"}, {4, "layout.tp=4 layout.zero=1"}};
    CHECK_LAYOUTS(LLAMA "optimizer.name=muon", layouts);
}

static void the_same_layout_gives_the_same_bits(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    for (int i = 0; i < 2; i++) train_ranks(4, LLAMA "precision=bf16 layout.tp=2 run=again-%d", i);
    assert_same_steps("again-0", "again-1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(llama_learns_the_same),
        TRAIN_TEST(llama_with_a_head_and_an_odd_vocabulary_learns_the_same),
        TRAIN_TEST(biases_and_norms_of_heads_learn_the_same),
        TRAIN_TEST(recomputed_layers_learn_the_same),
        TRAIN_TEST(groups_that_share_out_data_learn_the_same),
        TRAIN_TEST(muon_learns_the_same),
        TRAIN_TEST(the_same_layout_gives_the_same_bits),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
