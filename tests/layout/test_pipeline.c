/* Pipeline parallelism with real ranks under mpirun, compared with one process: every schedule, family and optimizer. */
#include "support/data_files.h"
#include "support/ranks_run.h"

/* Four layers and eight microbatches, for up to four stages. */
#define STAGES "model.layers=4 batch.sequences=2 batch.tokens=512 checkpoint.every=10 checkpoint.keep=100 "

typedef struct Family { const char *name, *settings; } Family;
static const Family zaya = {"zaya", "model.auxiliary_loss=0.01"};
static const Family llama = {"llama", "model.family=llama model.experts=0 model.tied=false"};
static const Family tied = {"tied", "model.family=llama model.experts=0 model.tied=true model.kv_heads=2"};
static const Family mixtral = {
    "mixtral", "model.family=llama model.experts_per_token=2 model.auxiliary_loss=0.01 model.auxiliary_scope=model"};
/* Layers 0 and 2 have experts: of four pieces the first two pass router loads on. */
static const Family qwen3_moe = {"qwen3_moe", "model.family=llama model.qk_norm=true model.experts_per_token=2 model.experts_period=2 "
                                              "model.auxiliary_loss=0.01 model.auxiliary_scope=model"};
static const Family mpt = {"mpt", "model.family=mpt model.experts=0"};
static const Family gpt2 = {"gpt2", "model.family=gpt2 model.experts=0 model.kv_heads=2"};

static const char *const optimizers[] = {"adamw", "muon"};

/* Trains one process and these ranks with more settings, which are the same. */
static void check(const Family *family, const char *optimizer, int ranks, const char *layout) {
    train_ranks(0, "%s optimizer.name=%s " STAGES "run=one-%s", family->settings, optimizer, optimizer);
    train_ranks(ranks, "%s optimizer.name=%s " STAGES "%s run=stages-%s", family->settings, optimizer, layout, optimizer);
    char one[32], stages[32];
    snprintf(one, sizeof one, "one-%s", optimizer);
    snprintf(stages, sizeof stages, "stages-%s", optimizer);
    assert_same_losses(stages, one);
    assert_same_momentum(stages, one);
}

static void check_both(const Family *family, int ranks, const char *adamw, const char *muon) {
    if (!has_mpi()) skip();
    check(family, optimizers[0], ranks, adamw);
    check(family, optimizers[1], ranks, muon);
}

static void zaya_learns_the_same_in_stages(void **state) {
    (void)state;
    check_both(&zaya, 2, "layout.pp=2", "layout.pp=2 layout.pp_schedule=interleaved");
}

static void llama_learns_the_same_in_stages(void **state) {
    (void)state;
    check_both(&llama, 4, "layout.pp=4", "layout.pp=4 layout.pp_schedule=zero-bubble");
}

static void a_tied_embedding_is_one_on_both_ends(void **state) {
    (void)state;
    check_both(&tied, 4, "layout.pp=2 layout.zero=1 layout.pp_schedule=zero-bubble", "layout.pp=4");
}

static void mixtral_learns_the_same_in_stages(void **state) {
    (void)state;
    check_both(&mixtral, 2, "layout.pp=2 layout.pp_schedule=interleaved", "layout.pp=2 layout.pp_schedule=zero-bubble");
}

static void qwen3_moe_learns_the_same_in_stages(void **state) {
    (void)state;
    check_both(&qwen3_moe, 2, "layout.pp=2 layout.pp_schedule=interleaved", "layout.pp=2");
}

static void mpt_learns_the_same_in_stages(void **state) {
    (void)state;
    check_both(&mpt, 2, "layout.pp=2 layout.pp_schedule=zero-bubble", "layout.pp=2 recompute=block");
}

static void gpt2_learns_the_same_in_stages(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    check(&gpt2, "adamw", 2, "layout.pp=2 layout.pp_schedule=zero-bubble recompute=block");
}

/* A token shard of one document whose tokens are spread over a vocabulary. */
static void write_spread_shard(const char *prefix, int32_t count, int32_t vocabulary) {
    SCOPED_FREE char *path = memory_format("%s.bin", prefix);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int64_t i = 0; i < count; i++) fwrite(&(int32_t){(int32_t)(i * i * 7919 % vocabulary)}, sizeof(int32_t), 1, file);
    assert_int_equal(fclose(file), 0);
    write_index(prefix, 4, count);
}

/* A vocabulary so large that its head takes longer than a layer, by the guesses that stages are cut by. */
static void the_head_may_be_a_stage_of_its_own(void **state) {
    (void)state;
    const char *large =
        "data.train=large model.auxiliary_loss=0.01 model.auxiliary_scope=model model.width=192 model.vocabulary=131072 data.length=256 "
        "batch.sequences=8 batch.tokens=2048 steps=2 schedule.warmup=0 eval.every=0 checkpoint.every=1 checkpoint.keep=100";
    if (!has_mpi()) skip();
    write_spread_shard("large", 1 << 13, 131072);
    smelt_says(0, " head ", "train %s %s layout.pp=2 plan=true", TINY, large);
    train_ranks(0, "%s run=one-large", large);
    train_ranks(2, "%s layout.pp=2 run=stages-large", large);
    compare_records("stages-large", "one-large", "step", "loss");
    compare_records("stages-large", "one-large", "step", "grad_norm");
    assert_same_gradients("stages-large", "one-large");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(zaya_learns_the_same_in_stages),
        TRAIN_TEST(llama_learns_the_same_in_stages),
        TRAIN_TEST(a_tied_embedding_is_one_on_both_ends),
        TRAIN_TEST(mixtral_learns_the_same_in_stages),
        TRAIN_TEST(qwen3_moe_learns_the_same_in_stages),
        TRAIN_TEST(mpt_learns_the_same_in_stages),
        TRAIN_TEST(gpt2_learns_the_same_in_stages),
        TRAIN_TEST(the_head_may_be_a_stage_of_its_own),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
