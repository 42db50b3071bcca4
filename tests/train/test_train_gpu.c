/* `smelt train` on the GPU of SMELT_TEST_DEVICE (hip or cuda; skipped without it) against the CPU: tiny models of
 * two families, ten steps in bf16 from the same weights and data. On AMD's emulator (tools/rocemu) this runs the
 * real code objects from the first token to the checkpoint. */
#include "base/scope.h"
#include "support/check.h"
#include "support/train_run.h"

/* Both machines round to bf16 in the same places and differ in the order of sums, so logits of order one may be off
 * by a rounding, 2^-9. A loss is the mean over hundreds of tokens and comes closer than that; a step that is wrong
 * moves it by a tenth. */
static const double LOSS_BOUND = 1.0 / 512;
/* A norm is a sum over all weights' gradients, each off by a few roundings. */
static const double NORM_BOUND = 0.02;
enum { STEPS = 10 };

static void train_on(const char *device, const char *run, const char *settings) {
    train_good("%s threads=1 exact_gemm=true steps=%d data.valid_fraction=0 device=%s run=%s", settings, STEPS, device, run);
}

static void assert_close_steps(const char *run, const char *reference) {
    for (int i = 0; i < STEPS; i++) {
        double loss = recorded(run, "step", i, "loss"), expected = recorded(reference, "step", i, "loss");
        double norm = recorded(run, "step", i, "grad_norm"), expected_norm = recorded(reference, "step", i, "grad_norm");
        if (!(fabs(loss - expected) <= LOSS_BOUND))
            fail_msg("step %d: loss %.6f, on the CPU %.6f, bound %.4f", i + 1, loss, expected, LOSS_BOUND);
        if (!(fabs(norm - expected_norm) <= NORM_BOUND * expected_norm))
            fail_msg("step %d: gradient norm %.5f, on the CPU %.5f", i + 1, norm, expected_norm);
    }
}

/* Ten steps, again, and on the CPU. */
static void check_steps(const char *settings) {
    const char *device = getenv("SMELT_TEST_DEVICE");
    if (!device) skip();
    train_on(device, "first", settings);
    train_on(device, "second", settings);
    train_on("cpu", "reference", settings);
    assert_close_steps("first", "reference");
    assert_same_steps("first", "second");
    assert_true(same_checkpoint("first", "second", STEPS));
}

static void check_training(const char *settings) {
    check_steps(settings);
    double first = recorded("first", "step", 0, "loss"), last = recorded("first", "step", STEPS - 1, "loss");
    if (!(last < first - 0.3)) fail_msg("nothing was learned: loss %.3f after %.3f", last, first);
}

static void assert_same_text(const char *words) {
    ProcessResult first = smelt(words), second = smelt(words);
    expect_code(&first, ERROR_NONE, words);
    expect_code(&second, ERROR_NONE, words);
    assert_true(strlen(first.output) > 0);
    assert_string_equal(first.output, second.output);
    process_free(&first);
    process_free(&second);
}

static void a_tiny_zaya_trains_with_muon_as_on_the_cpu_and_generates(void **state) {
    (void)state;
    check_training("model.family=zaya optimizer.name=muon precision=bf16");
    char *words = memory_format("generate first 65 tokens=4 text=false threads=1 device=%s", getenv("SMELT_TEST_DEVICE"));
    assert_same_text(words);
    free(words);
}

static void a_tiny_llama_trains_with_adamw_as_on_the_cpu(void **state) {
    (void)state;
    check_training("model.family=llama optimizer.name=adamw precision=bf16");
}

static void tiny_models_without_masters_train_as_on_the_cpu(void **state) {
    (void)state;
    check_training("model.family=zaya optimizer.name=muon precision=pure_bf16");
}

/* Of a frozen zaya: convolutions, norms, router and experts pass gradients on and make none. Beside an embedding
 * that ten steps have hardly changed from a random one there is little to learn. */
static void adapters_train_as_on_the_cpu(void **state) {
    (void)state;
    if (!getenv("SMELT_TEST_DEVICE")) skip();
    train_on("cpu", "base", "model.family=zaya precision=bf16");
    check_steps("model.family=zaya precision=bf16 init=base lora.rank=4 optimizer.lr=5e-3");
}

/* The third step replays what the second one recorded between two updates. */
static void updates_within_the_backward_pass_give_the_same_bits(void **state) {
    (void)state;
    enum { FEW = 4 };
    static const char settings[] = "precision=pure_bf16 recompute=block batch.tokens=128 optimizer.clip=0 layout.bucket_mb=0.01 threads=1";
    const char *device = getenv("SMELT_TEST_DEVICE");
    if (!device) skip();
    train_good("%s steps=%d device=%s run=after", settings, FEW, device);
    train_good("%s steps=%d device=%s run=within optimizer.in_backward=true", settings, FEW, device);
    assert_same_steps("within", "after");
    assert_true(same_checkpoint("within", "after", FEW));
}

/* A cast to fp8 by a scale that is known computes what makes its tensor too, and so adds to gradients of norms later than the order
 * of the program says: also where what it casts is computed again, and where weights are updated in between. */
static void delayed_scaling_gives_the_same_bits_however_it_is_computed(void **state) {
    (void)state;
    enum { FEW = 4 };
    static const char *const ways[] = {"", "recompute=norm", "recompute=block", "optimizer.in_backward=true"};
    static const char settings[] = "model.family=llama model.experts=0 model.width=64 model.heads=4 model.kv_heads=2 model.ffn=96 "
                                   "fp8.recipe=tensor fp8.min_size=0 fp8.scaling=delayed batch.tokens=128 optimizer.clip=0 "
                                   "layout.bucket_mb=0.01 threads=1";
    const char *device = getenv("SMELT_TEST_DEVICE");
    if (!device || !(device_info(check_device())->gemm_inputs >> GEMM_E4M3 & 1)) skip();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        SCOPED_FREE char *run = memory_format("way-%zu", i);
        train_good("%s steps=%d device=%s run=%s %s", settings, FEW, device, run, ways[i]);
        assert_same_steps(run, "way-0");
        assert_true(same_checkpoint(run, "way-0", FEW));
    }
}

static void a_recipe_that_the_gpu_has_no_kernel_for_is_refused(void **state) {
    (void)state;
    const char *name = getenv("SMELT_TEST_DEVICE");
    if (!name || device_info(check_device())->fp8_mx) skip();
    SCOPED_FREE char *settings = memory_format("run=refused device=%s fp8.recipe=mxfp8 steps=1 schedule.warmup=0", name);
    train_says(ERROR_USAGE, "GEMMs 32 gfx950 CPU", "%s", settings);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(a_tiny_zaya_trains_with_muon_as_on_the_cpu_and_generates),
        TRAIN_TEST(a_tiny_llama_trains_with_adamw_as_on_the_cpu),
        TRAIN_TEST(tiny_models_without_masters_train_as_on_the_cpu),
        TRAIN_TEST(adapters_train_as_on_the_cpu),
        TRAIN_TEST(updates_within_the_backward_pass_give_the_same_bits),
        TRAIN_TEST(delayed_scaling_gives_the_same_bits_however_it_is_computed),
        TRAIN_TEST(a_recipe_that_the_gpu_has_no_kernel_for_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
