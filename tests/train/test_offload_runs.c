/* End to end on the GPU of SMELT_TEST_DEVICE (hip or cuda; without it only what needs none): runs with offload=optimizer have the
 * losses, norms and checkpoints of runs without, for every optimizer and precision; they resume and survive a kill with either. */
#include "base/scope.h"
#include "support/check.h"
#include "support/mentions.h"
#include "support/train_run.h"

/* Follow TINY. Buckets of 10 KiB, so that the tiny models have several. */
#define FEW "steps=3 schedule.warmup=0 batch.tokens=128 layout.bucket_mb=0.01 eval.sample_tokens=0 data.valid_fraction=0 threads=1 device=%s "
#define LLAMA "model.family=llama model.experts=0 model.width=64 model.heads=4 model.kv_heads=2 model.ffn=96 "
#define WITHIN "optimizer.in_backward=true optimizer.clip=0 "
enum { STEPS = 3 };

static const char *gpu(void) {
    if (!getenv("SMELT_TEST_DEVICE")) skip();
    return getenv("SMELT_TEST_DEVICE");
}

static void check_bits(const char *settings) {
    assert_int_equal(system("rm -rf plain offloaded"), 0);
    train_good(FEW "run=plain %s", gpu(), settings);
    train_good(FEW "run=offloaded offload=optimizer %s", gpu(), settings);
    assert_same_steps("offloaded", "plain");
    if (!same_checkpoint("offloaded", "plain", STEPS)) fail_msg("%s: other weights or moments", settings);
}

static void every_optimizer_has_the_same_bits(void **state) {
    (void)state;
    static const char *const names[] = {"adamw", "adamw_8bit", "lion", "muon"}, *const precisions[] = {"bf16", "pure_bf16"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t j = 0; j < sizeof precisions / sizeof *precisions; j++) {
            SCOPED_FREE char *settings = memory_format("%s optimizer.name=%s precision=%s", i % 2 ? LLAMA : "", names[i], precisions[j]);
            check_bits(settings);
        }
}

static void updates_within_the_backward_pass_have_the_same_bits(void **state) {
    (void)state;
    check_bits(LLAMA WITHIN "precision=bf16");
    check_bits(LLAMA WITHIN "precision=pure_bf16 optimizer.name=adamw_8bit recompute=block");
}

static void check_saved(const char *offload, const char *settings) {
    assert_int_equal(system("rm -rf plain offloaded"), 0);
    train_good(FEW "run=plain recompute=block model.layers=5 %s", gpu(), settings);
    train_good(FEW "run=offloaded offload=%s model.layers=5 %s", gpu(), offload, settings);
    assert_same_steps("offloaded", "plain");
    if (!same_checkpoint("offloaded", "plain", STEPS)) fail_msg("offload=%s %s: other weights or moments", offload, settings);
}

/* Several microbatches per step, experts, updates within the backward pass, and recorded programs (from the third run on). */
static void activations_in_host_memory_have_the_same_bits(void **state) {
    (void)state;
    check_saved("activations", "precision=bf16");
    check_saved("activations", LLAMA "precision=pure_bf16 batch.tokens=512");
    check_saved("both", LLAMA "precision=bf16 batch.tokens=256");
    check_saved("both", LLAMA WITHIN "precision=pure_bf16 optimizer.name=adamw_8bit");
}

static void adapters_have_the_same_bits(void **state) {
    (void)state;
    train_good(FEW "run=base precision=bf16 " LLAMA, gpu());
    check_bits(LLAMA "precision=bf16 init=base lora.rank=4");
}

/* The setting may change from start to start, as nothing that is stored depends on it. */
static void a_run_resumes_with_and_without_offload(void **state) {
    (void)state;
    static const char *const ways[] = {"none", "optimizer", "activations", "both"};
    train_good(FEW "run=whole precision=bf16 checkpoint.every=1", gpu());
    for (int i = 0; i < 4; i++) {
        SCOPED_FREE char *run = memory_format("cut-%d", i);
        train_good(FEW "run=%s precision=bf16 checkpoint.every=1 stop_at=1 offload=%s", gpu(), run, ways[i]);
        train_good(FEW "run=%s precision=bf16 checkpoint.every=1 checkpoint.async=false stop_at=2 offload=%s", gpu(), run, ways[3 - i]);
        train_good(FEW "run=%s precision=bf16 checkpoint.every=1 offload=optimizer", gpu(), run);
        assert_same_steps(run, "whole");
        assert_true(same_checkpoint(run, "whole", STEPS));
    }
}

static void a_killed_run_goes_on_bit_for_bit(void **state) {
    (void)state;
    enum { LONGER = 8 };
    SCOPED_FREE char *settings = memory_format(FEW "steps=%d checkpoint.every=2 precision=pure_bf16 " LLAMA, gpu(), LONGER);
    SCOPED_FREE char *killed = memory_format("%s run=killed offload=both model.layers=4", settings);
    train_good("%s run=whole model.layers=4", settings);
    Process process = train_start(killed);
    process_await_text(&process, "checkpoint", 1);
    kill(process.id, SIGKILL);
    ProcessResult result = process_finish(&process);
    assert_int_equal(result.signal, SIGKILL);
    process_free(&result);
    train_good("%s", killed);
    assert_same_steps("killed", "whole");
    assert_true(same_checkpoint("killed", "whole", LONGER));
}

static void the_plan_counts_what_is_in_host_memory(void **state) {
    (void)state;
    SCOPED_FREE char *words = memory_format("train " TINY " device=%s run=r plan=true offload=both model.layers=4", gpu());
    ProcessResult result = smelt(words);
    expect_code(&result, ERROR_NONE, words);
    assert_mentions(result.output, "memory of the host: pinned for the optimizer state of offload");
    assert_mentions(result.output, "memory of the host: pinned for the activations of offload");
    process_free(&result);
}

static void a_cpu_says_that_it_has_no_effect(void **state) {
    (void)state;
    ProcessResult result = smelt("train " TINY " steps=1 schedule.warmup=0 run=cpu offload=both");
    assert_int_equal(result.code, 0);
    assert_mentions(result.errors, "offload no effect device with memory of its own, not a CPU");
    process_free(&result);
}

static void a_dump_is_refused(void **state) {
    (void)state;
    smelt_says(ERROR_USAGE, "dump offload=none", "train " TINY " run=r dump=d offload=optimizer");
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(every_optimizer_has_the_same_bits),
        TRAIN_TEST(updates_within_the_backward_pass_have_the_same_bits),
        TRAIN_TEST(activations_in_host_memory_have_the_same_bits),
        TRAIN_TEST(adapters_have_the_same_bits),
        TRAIN_TEST(a_run_resumes_with_and_without_offload),
        TRAIN_TEST(a_killed_run_goes_on_bit_for_bit),
        TRAIN_TEST(the_plan_counts_what_is_in_host_memory),
        TRAIN_TEST(a_cpu_says_that_it_has_no_effect),
        TRAIN_TEST(a_dump_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
