/* Adapters (lora.rank) in every kind of layout: ranks that share out heads, columns, experts, sequences, layers and rows
 * train the adapters that one process trains. */
#include "support/ranks_run.h"

#define SAVED "checkpoint.every=1 checkpoint.keep=100 model.heads=4 init=base lora.rank=2 "
#define LLAMA "model.family=llama model.experts=0 model.kv_heads=2 "
#define MIXTRAL "model.family=llama model.kv_heads=2 model.experts_per_token=2 "
#define ZAYA "model.family=zaya model.kv_heads=4 "

typedef struct Ranks {
    int count;
    const char *layout;
} Ranks;

/* At first the gradients are sums of products that nearly cancel: hence the wide bound. */
static void check(const char *model, const char *adapters, const Ranks *ranks, int count) {
    if (!has_mpi()) skip();
    train_good("run=base stop_at=10 model.heads=4 %s", model);
    train_ranks(0, SAVED "%s %s run=one", model, adapters);
    for (int i = 0; i < count; i++) {
        char run[32];
        snprintf(run, sizeof run, "shared-%d", i);
        train_ranks(ranks[i].count, SAVED "%s %s %s run=%s", model, adapters, ranks[i].layout, run);
        compare_records(run, "one", "step", "loss");
        compare_records(run, "one", "evaluation", "loss");
        assert_same_tensors(run, "one", 1, "optimizer/momentum/", 1e-4);
    }
}
#define CHECK(model, adapters, ...) \
    check(model, adapters, (const Ranks[]){__VA_ARGS__}, (int)(sizeof((const Ranks[]){__VA_ARGS__}) / sizeof(Ranks)))

/* With four ranks each key head, and its adapters' rows, is on two. */
static void adapters_of_llama_learn_the_same(void **state) {
    (void)state;
    CHECK(LLAMA, "lora.targets=all", {2, "layout.tp=2"}, {4, "layout.tp=4"}, {2, "layout.cp=2"}, {4, "layout.pp=2 layout.zero=2"});
}

static void adapters_of_some_modules_learn_the_same(void **state) {
    (void)state;
    CHECK(LLAMA, "lora.targets=v_proj,mlp lora.rslora=true", {2, "layout.tp=2"}, {4, "layout.tp=4"});
}

/* With two tensor-parallel ranks each has one of the two matrices that values come from, and the adapters of both. */
static void adapters_of_zaya_learn_the_same(void **state) {
    (void)state;
    CHECK(ZAYA, "lora.targets=all,router", {2, "layout.tp=2"}, {4, "layout.tp=4"}, {2, "layout.ep=2"}, {2, "layout.pp=2"});
}

static void adapters_of_experts_learn_the_same(void **state) {
    (void)state;
    CHECK(MIXTRAL, "lora.targets=all,router", {4, "layout.ep=4"}, {4, "layout.ep=2 layout.tp=2"});
}

static void an_adapter_that_experts_share_learns_the_same(void **state) {
    (void)state;
    CHECK(MIXTRAL, "lora.targets=experts lora.experts=shared", {2, "layout.tp=2"}, {2, "layout.ep=2"}, {4, "layout.ep=4"});
}

/* The stages with the embedding and with the head both have the table of a tied model. */
static void tables_beside_adapters_learn_the_same(void **state) {
    (void)state;
    CHECK(LLAMA, "lora.targets=q_proj lora.modules_to_save=embed_tokens", {2, "layout.tp=2"}, {2, "layout.zero=2"},
        {4, "layout.pp=2 layout.tp=2"});
}

/* Each tensor-parallel rank has a part of the table, the second one alone that of the last rows. */
static void rows_beside_adapters_learn_the_same(void **state) {
    (void)state;
    CHECK(LLAMA, "lora.targets=q_proj lora.tokens=32,97-140,250-255", {2, "layout.tp=2"}, {2, "layout.zero=2"},
        {4, "layout.pp=2 layout.tp=2"});
}

static void the_table_of_zaya_learns_the_same(void **state) {
    (void)state;
    CHECK(ZAYA, "lora.targets=q_proj lora.modules_to_save=lm_head", {2, "layout.tp=2"});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(adapters_of_llama_learn_the_same),
        TRAIN_TEST(adapters_of_some_modules_learn_the_same),
        TRAIN_TEST(adapters_of_zaya_learn_the_same),
        TRAIN_TEST(adapters_of_experts_learn_the_same),
        TRAIN_TEST(an_adapter_that_experts_share_learns_the_same),
        TRAIN_TEST(tables_beside_adapters_learn_the_same),
        TRAIN_TEST(rows_beside_adapters_learn_the_same),
        TRAIN_TEST(the_table_of_zaya_learns_the_same),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
