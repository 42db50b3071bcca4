/* Linear layers in fp8 whose weights are shards (layout.zero=3): quantized values travel in place of bf16, and no bit of a run changes. */
#include "support/mentions.h"
#include "support/ranks_run.h"

#define SHAPE                                                                                                                              \
    "model.width=64 model.heads=4 model.kv_heads=2 model.ffn=96 model.layers=4 data.length=32 batch.sequences=2 batch.tokens=256 steps=6 "   \
    "fp8.min_size=1"
#define LLAMA "model.family=llama model.experts=0 "
#define MIXTRAL "model.family=llama model.experts=4 model.experts_per_token=2 "

/* In stage 2 every rank casts whole weights. An amax that ranks disagree about, a piece of a shard left out or cast by
 * another matrix's scale, or quantized values by columns of another order change every loss after the first. */
static void check_codes(const char *scaling) {
    static const struct {
        int ranks;
        const char *settings;
    } cases[] = {
        {2, LLAMA "optimizer.name=adamw fp8.head=true"},
        {3, LLAMA "batch.tokens=384 precision=fp32 optimizer.name=adamw"},
        {4, LLAMA "layout.tp=2 optimizer.name=muon precision=pure_bf16"},
        {4, MIXTRAL "layout.ep=2 layout.bucket_mb=0.01"},
        {4, "model.family=zaya layout.pp=2 batch.tokens=512 recompute=block fp8.head=true"},
    };
    if (!has_mpi()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char format[] = SHAPE " %s fp8.recipe=tensor fp8.scaling=%s layout.zero=%d run=%s";
        SCOPED_FREE char *whole = memory_format("whole-%zu", i), *quantized = memory_format("quantized-%zu", i);
        train_ranks(cases[i].ranks, format, cases[i].settings, scaling, 2, whole);
        train_ranks(cases[i].ranks, format, cases[i].settings, scaling, 3, quantized);
        assert_same_steps(whole, quantized);
    }
}

static void codes_are_gathered_bit_for_bit(void **state) {
    (void)state;
    check_codes("dynamic");
}

static void codes_by_delayed_scales_are_gathered_bit_for_bit(void **state) {
    (void)state;
    check_codes("delayed");
}

/* Ranks that share the vocabulary out cast their own parts of the head by scales of their own: losses differ by the casts, here by
 * 2e-4 at most. A scale or part of another rank changes them by parts of ten. */
static void ranks_share_a_head_in_fp8_out(void **state) {
    (void)state;
    static const char format[] = SHAPE " " LLAMA "fp8.recipe=row fp8.head=true layout.tp=%d run=%s";
    if (!has_mpi()) skip();
    train_ranks(0, format, 1, "one");
    train_ranks(2, format, 2, "two");
    compare_records_within("two", "one", "step", "loss", 1e-3);
}

/* Of each of 2 microbatches: 30,720 weights of a layer 7 times, of which a rank sends its half (the last of 4 layers stays from
 * pass to pass), and the embedding, 320 x 64 in bf16, twice. Recipes whose quantized values by columns are others than those by rows
 * gather bf16. */
static void the_plan_counts_half_of_the_bytes(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *gathers;
    } cases[] = {{"row", "18 of  27.78 KiB, 500.00 KiB in all"}, {"tensor", "18 of  16.11 KiB, 290.00 KiB in all"}};
    if (!has_mpi()) skip();
    for (int i = 0; i < 2; i++) {
        char *settings = memory_format(
            SHAPE " " LLAMA "precision=bf16 layout.bucket_mb=64 fp8.recipe=%s layout.zero=3 plan=true run=run", cases[i].recipe);
        ProcessResult result = run_ranks(2, settings);
        expect_code(&result, 0, settings);
        if (!mentions(result.output, cases[i].gathers))
            fail_msg("%s: not \"%s\" in\n%s", cases[i].recipe, cases[i].gathers, strstr(result.output, "collectives"));
        process_free(&result);
        free(settings);
    }
}

/* Rank 0, which speaks, has the first stage, and the head is on the last. */
static void what_is_in_fp8_on_other_stages_is_said(void **state) {
    (void)state;
    static const struct {
        const char *settings, *says, *says_not;
    } cases[] = {{"fp8.min_size=53", "linear layers in fp8 by recipe tensor", "no linear layer is computed in fp8"},
        {"model.vocabulary=330", "fp8.head: the head (its rows divided by layout.tp)", "no linear layer"}};
    if (!has_mpi()) skip();
    for (int i = 0; i < 2; i++) {
        SCOPED_FREE char *path = memory_format("stages-%d/log.txt", i);
        train_ranks(
            2, SHAPE " " LLAMA "layout.pp=2 batch.tokens=512 fp8.recipe=tensor fp8.head=true %s run=stages-%d", cases[i].settings, i);
        SCOPED_FREE char *log = read_text(path);
        if (!strstr(log, cases[i].says) || strstr(log, cases[i].says_not))
            fail_msg("not \"%s\", or \"%s\" in\n%s", cases[i].says, cases[i].says_not, log);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        EACH_ISA(TRAIN_TEST(codes_are_gathered_bit_for_bit)),
        TRAIN_TEST(codes_by_delayed_scales_are_gathered_bit_for_bit),
        TRAIN_TEST(ranks_share_a_head_in_fp8_out),
        TRAIN_TEST(what_is_in_fp8_on_other_stages_is_said),
        TRAIN_TEST(the_plan_counts_half_of_the_bytes),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
