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
    assert_int_equal(system("rm -rf base one shared-*"), 0);
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

/* Frozen matrices are in shards, which ranks gather before they read them. */
static void adapters_of_a_sharded_base_learn_the_same(void **state) {
    (void)state;
    CHECK(LLAMA, "lora.targets=all", {2, "layout.zero=3"}, {4, "layout.zero=3 layout.bucket_mb=0.001 batch.sequences=2"},
        {4, "layout.zero=3 layout.tp=2"}, {4, "layout.zero=3 layout.pp=2"}, {4, "layout.zero=3 layout.shard=2 batch.sequences=2"},
        {2, "layout.zero=3 layout.cp=2"});
}

/* Quantized values and scales are gathered as the bytes that they are. */
static void adapters_of_a_sharded_quantized_base_learn_the_same(void **state) {
    (void)state;
    CHECK(LLAMA, "lora.targets=all lora.base=nf4", {2, "layout.zero=3"}, {4, "layout.zero=3 layout.bucket_mb=0.001 batch.sequences=2"},
        {4, "layout.zero=3 layout.pp=2"}, {2, "layout.zero=3 layout.cp=2"});
    CHECK(MIXTRAL, "lora.targets=all lora.base=fp8", {3, "layout.zero=3 layout.bucket_mb=0.001"}, {2, "layout.zero=3"});
}

static void adapters_of_sharded_experts_learn_the_same(void **state) {
    (void)state;
    CHECK(MIXTRAL, "lora.targets=all,router", {4, "layout.zero=3 layout.ep=2 batch.sequences=2"}, {2, "layout.zero=3 layout.ep=2"});
    CHECK(ZAYA, "lora.targets=all,router lora.base=nf4", {2, "layout.zero=3"});
}

/* With the same ranks, the stages of ZeRO differ in nothing but who holds what; so does the update within the backward pass. */
static void check_sharded_bits(const char *model, const char *adapters) {
    static const char settings[] = SAVED "optimizer.clip=0 batch.sequences=4 ";
    assert_int_equal(system("rm -rf base whole shared again within whole-adapter shared-adapter"), 0);
    train_good("run=base stop_at=10 model.heads=4 %s", model);
    train_ranks(2, "%s %s %s layout.zero=2 run=whole", settings, model, adapters);
    train_ranks(2, "%s %s %s layout.zero=3 run=shared", settings, model, adapters);
    train_ranks(2, "%s %s %s layout.zero=3 run=again stop_at=7", settings, model, adapters);
    train_ranks(2, "%s %s %s layout.zero=3 run=again", settings, model, adapters);
    train_ranks(2, "%s %s %s layout.zero=3 optimizer.in_backward=true run=within", settings, model, adapters);
    for (int i = 0; i < 3; i++) {
        const char *run = (const char *const[]){"shared", "again", "within"}[i];
        assert_same_steps(run, "whole");
        assert_same_tensors(run, "whole", 20, "", 0);
    }
    smelt_good("convert whole whole-adapter adapter=true");
    smelt_good("convert shared shared-adapter adapter=true");
    assert_true(same_bytes("whole-adapter/adapter_model.safetensors", "shared-adapter/adapter_model.safetensors"));
}

static void a_sharded_base_changes_no_bit(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    check_sharded_bits(LLAMA "model.tied=false", "lora.targets=all");
    check_sharded_bits(LLAMA, "lora.targets=all lora.base=nf4");
    check_sharded_bits(LLAMA, "lora.targets=q_proj,mlp lora.base=fp8 lora.tokens=32,97-140");
    check_sharded_bits(MIXTRAL, "lora.targets=all lora.base=nf4 recompute=block");
    check_sharded_bits(ZAYA, "lora.targets=all optimizer.name=muon");
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
        TRAIN_TEST(adapters_of_a_sharded_base_learn_the_same),
        TRAIN_TEST(adapters_of_a_sharded_quantized_base_learn_the_same),
        TRAIN_TEST(adapters_of_sharded_experts_learn_the_same),
        TRAIN_TEST(a_sharded_base_changes_no_bit),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
