/* Which bits a layout decides, and which not (docs/bits.md). */
#include "support/ranks_run.h"

static void the_same_layout_gives_the_same_bits(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    for (int stage = 1; stage <= 3; stage += 2) {
        char one[32], two[32];
        snprintf(one, sizeof one, "one-%d", stage);
        snprintf(two, sizeof two, "two-%d", stage);
        train_ranks(3, "precision=bf16 optimizer.name=muon layout.zero=%d run=%s", stage, one);
        train_ranks(3, "precision=bf16 optimizer.name=muon layout.zero=%d run=%s", stage, two);
        assert_same_steps(one, two);
    }
}

/* Stages 2 and 3 add the gradients of a microbatch over the ranks, the others those of a step. Otherwise stages differ in
 * who holds what alone. Muon has whole matrices on every rank that updates them. */
static void stages_that_add_alike_give_the_same_bits(void **state) {
    (void)state;
    static const char *const optimizers[] = {"adamw", "muon", "lion", "adamw_8bit"};
    if (!has_mpi()) skip();
    for (size_t i = 0; i < sizeof optimizers / sizeof *optimizers; i++) {
        for (int stage = 0; stage <= 3; stage++)
            train_ranks(3, "steps=8 batch.tokens=768 model.width=64 model.ffn=64 optimizer.name=%s layout.zero=%d run=%s-%d", optimizers[i],
                stage, optimizers[i], stage);
        for (int stage = 0; stage <= 2; stage += 2) {
            SCOPED_FREE char *one = memory_format("%s-%d", optimizers[i], stage), *two = memory_format("%s-%d", optimizers[i], stage + 1);
            assert_same_steps(one, two);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(the_same_layout_gives_the_same_bits),
        EACH_ISA(TRAIN_TEST(stages_that_add_alike_give_the_same_bits)),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
