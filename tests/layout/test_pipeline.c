/* Pipeline parallelism with real ranks under mpirun, compared with one process: every schedule, family and optimizer. */
#include "support/ranks_run.h"

/* Four layers and eight microbatches, for up to four stages. */
#define STAGES "model.layers=4 batch.sequences=2 batch.tokens=512 checkpoint.every=1 checkpoint.keep=100 "

typedef struct Family { const char *name, *settings; } Family;
static const Family zaya = {"zaya", "model.auxiliary_loss=0.01"};
static const Family llama = {"llama", "model.family=llama model.experts=0 model.tied=false"};
static const Family tied = {"tied", "model.family=llama model.experts=0 model.tied=true model.kv_heads=2"};
static const Family mixtral = {
    "mixtral", "model.family=llama model.experts_per_token=2 model.auxiliary_loss=0.01 model.auxiliary_scope=model"};
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
    assert_same_gradients(stages, one);
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

static void mpt_learns_the_same_in_stages(void **state) {
    (void)state;
    check_both(&mpt, 2, "layout.pp=2 layout.pp_schedule=zero-bubble", "layout.pp=2 recompute=block");
}

static void gpt2_learns_the_same_in_stages(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    check(&gpt2, "adamw", 2, "layout.pp=2 layout.pp_schedule=zero-bubble recompute=block");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(zaya_learns_the_same_in_stages),
        TRAIN_TEST(llama_learns_the_same_in_stages),
        TRAIN_TEST(a_tied_embedding_is_one_on_both_ends),
        TRAIN_TEST(mixtral_learns_the_same_in_stages),
        TRAIN_TEST(mpt_learns_the_same_in_stages),
        TRAIN_TEST(gpt2_learns_the_same_in_stages),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
