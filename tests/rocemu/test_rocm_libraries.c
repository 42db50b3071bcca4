/* Training and generation with hipBLASLt and RCCL, those of the emulator (tools/rocemu): two processes with an emulated card each, over
 * TCP. Losses are those of one card, whichever layout the ranks have and whoever computes the GEMMs.
 *
 * Bound: bf16 GEMMs round once, sums differ in their order, so the losses of a few steps differ by some 2^-9 of a
 * rounding; a rank's gradient that is left out moves them by parts of ten. */
#include "support/ranks_run.h"

enum { STEPS = 3, SOME_STEPS = 6, LONG_STEPS = 60 };
static const double LOSS_BOUND = 1.0 / 512;

#define SETTINGS                                                                                                                              \
    "data.train=text model.family=llama model.width=64 model.layers=2 model.heads=2 model.ffn=64 data.length=32 batch.sequences=2 batch.tokens=128 " \
    "optimizer.lr=5e-3 schedule.warmup=2 threads=1 tensorboard=false data.valid_fraction=0 eval.every=0 layout.bucket_mb=0.05 device=hip"

static char *program; /* smelt */

static Process start_ranks(const char *settings) {
    char *words = memory_format("launch -n 2 -- train " SETTINGS " %s", settings);
    Process process = words_start(program, words);
    free(words);
    return process;
}

/* What it wrote; the caller frees. */
static ProcessResult ranks_good(const char *settings) {
    Process process = start_ranks(settings);
    ProcessResult result = process_finish(&process);
    expect_code(&result, 0, settings);
    return result;
}

static void skip_without_emulator(void) {
    if (getenv("ROCEMU_LIBRARY")) return;
    print_message("skipped: ROCEMU_LIBRARY is not set (make test-amd sets it)\n");
    skip();
}

static void one_card(const char *run) {
    char *words = memory_format("train " SETTINGS " steps=%d run=%s", STEPS, run);
    smelt_good(words);
    free(words);
}

static void assert_close(const char *run, const char *reference) {
    for (int i = 0; i < STEPS; i++) {
        double loss = recorded(run, "step", i, "loss"), expected = recorded(reference, "step", i, "loss");
        if (!(fabs(loss - expected) <= LOSS_BOUND)) fail_msg("%s, step %d: loss %.6f instead of %.6f", run, i + 1, loss, expected);
    }
}

static void two_cards_have_the_losses_of_one(void **state) {
    static const char *const layouts[] = {"zero=0", "zero=1", "zero=3", "tp=2", "pp=2"};
    (void)state;
    skip_without_emulator();
    one_card("one");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char *settings = memory_format("layout.%s steps=%d run=run%zu", layouts[i], STEPS, i);
        ProcessResult result = ranks_good(settings);
        assert_holds(result.output, "RCCL 2.22.3");
        process_free(&result);
        char *run = memory_format("run%zu", i);
        assert_close(run, "one");
        free(run);
        free(settings);
    }
    char *again = memory_format("layout.zero=3 steps=%d run=again", STEPS);
    ProcessResult result = ranks_good(again);
    process_free(&result);
    free(again);
    assert_same_steps("again", "run2");
    assert_same_tensors("again", "run2", STEPS, "", 0);
}

typedef struct TwoLayouts { const char *settings, *layout, *other; } TwoLayouts;

static void check_layouts(const TwoLayouts *cases, size_t count) {
    one_card("base");
    for (size_t i = 0; i < count; i++) {
        const char *const layouts[] = {cases[i].layout, cases[i].other};
        assert_int_equal(system("rm -rf cards-0 cards-1"), 0);
        for (int j = 0; j < 2; j++) {
            char *settings = memory_format("%s optimizer.clip=0 %s steps=%d run=cards-%d", cases[i].settings, layouts[j], SOME_STEPS, j);
            ProcessResult result = ranks_good(settings);
            process_free(&result);
            free(settings);
        }
        assert_same_steps("cards-1", "cards-0");
        if (!strstr(cases[i].settings, "pure_bf16")) assert_same_tensors("cards-1", "cards-0", SOME_STEPS, "", 0);
    }
}

static void two_cards_keep_their_bits_with_state_in_host_memory(void **state) {
    static const TwoLayouts cases[] = {{"optimizer.name=muon", "layout.zero=1", "layout.zero=1 offload=optimizer"},
        {"precision=pure_bf16 optimizer.name=adamw_8bit", "layout.zero=2", "layout.zero=2 offload=optimizer"},
        {"", "layout.zero=3", "layout.zero=3 optimizer.in_backward=true offload=optimizer"},
        {"init=base lora.rank=2 lora.base=nf4", "layout.zero=3", "layout.zero=3 offload=optimizer"}};
    (void)state;
    skip_without_emulator();
    check_layouts(cases, sizeof cases / sizeof *cases);
}

/* Programs are replayed from the third step on. With two ranks a sum has one order, so neither updates within the backward pass nor
 * shards of frozen matrices change a bit. */
static void two_cards_keep_their_bits_with_shards_and_updates_within(void **state) {
    static const TwoLayouts cases[] = {{"", "layout.zero=3", "layout.zero=3 optimizer.in_backward=true"},
        {"precision=pure_bf16 optimizer.name=adamw_8bit", "layout.zero=3", "layout.zero=3 optimizer.in_backward=true"},
        {"init=base lora.rank=2", "layout.zero=2", "layout.zero=3 optimizer.in_backward=true"},
        {"init=base lora.rank=2 lora.base=nf4", "layout.zero=2", "layout.zero=3"}};
    (void)state;
    skip_without_emulator();
    check_layouts(cases, sizeof cases / sizeof *cases);
}

/* Casts of fp8 that compute what makes their tensors, and so add to gradients of norms later than the program's order says, beside
 * collectives of these gradients. All ranks cast with the same scales. */
static void two_cards_have_the_losses_of_one_with_delayed_scaling(void **state) {
    static const char fp8[] = "fp8.recipe=tensor fp8.min_size=0 fp8.scaling=delayed";
    static const int stages[] = {0, 1, 3};
    (void)state;
    skip_without_emulator();
    char *alone = memory_format("train " SETTINGS " steps=%d run=one %s", STEPS, fp8);
    smelt_good(alone);
    for (size_t i = 0; i < sizeof stages / sizeof *stages; i++) {
        char *run = memory_format("run%zu", i), *settings = memory_format("layout.zero=%d steps=%d run=%s %s", stages[i], STEPS, run, fp8);
        ProcessResult result = ranks_good(settings);
        process_free(&result);
        assert_close(run, "one");
        free(run);
        free(settings);
    }
    free(alone);
}

/* Greedily, as bf16 rounds otherwise where ranks add up parts: cards that share the cache, or the heads, through each other's memory. */
static void two_cards_generate_the_text_of_one(void **state) {
    static const char *const layouts[] = {"cp", "tp"};
    (void)state;
    skip_without_emulator();
    one_card("spoken");
    ProcessResult alone = smelt("generate spoken the tokens=12 temperature=0 device=hip");
    expect_code(&alone, 0, "generate");
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char *words =
            memory_format("launch -n 2 self_test=false -- generate spoken the tokens=12 temperature=0 device=hip layout.%s=2", layouts[i]);
        Process process = words_start(program, words);
        ProcessResult shared = process_finish(&process);
        expect_code(&shared, 0, words);
        assert_string_equal(shared.output, alone.output);
        assert_null(strstr(shared.errors, "peer access"));
        process_free(&shared);
        free(words);
    }
    process_free(&alone);
}

/* Memory that RCCL lacks for its buffers is named as memory, and the supervisor, which restarts ranks after failed collectives,
 * does not repeat what must fail again. */
static void a_collective_without_memory_ends_the_run(void **state) {
    (void)state;
    skip_without_emulator();
    setenv("ROCEMU_RCCL_LACKS_MEMORY", "6", 1);
    Process process = start_ranks("layout.zero=0 steps=50 run=lacking");
    ProcessResult result = process_finish(&process);
    unsetenv("ROCEMU_RCCL_LACKS_MEMORY");
    expect_code(&result, ERROR_MEMORY, "a collective without memory");
    assert_holds(result.errors, "RCCL has no device memory for a collective: unhandled cuda error");
    assert_holds(result.errors, "rank 0 ran out of memory (exit code 4): a restart would not help");
    assert_null(strstr(result.errors, "restarting all ranks"));
    process_free(&result);
}

/* A library whose products are wrong is named and not used, algorithm by algorithm; without any, smelt's kernels serve. */
static void wrong_gemms_are_not_used(void **state) {
    (void)state;
    skip_without_emulator();
    one_card("right");
    setenv("ROCEMU_GEMM", "wrong", 1);
    ProcessResult wrong = smelt("train " SETTINGS " steps=3 run=wrong");
    setenv("ROCEMU_GEMM", "none", 1);
    one_card("none");
    unsetenv("ROCEMU_GEMM");
    expect_code(&wrong, 0, "ROCEMU_GEMM=wrong");
    assert_holds(wrong.errors, "not using algorithm 0000000000000002 for ");
    process_free(&wrong);
    assert_close("wrong", "right");
    assert_close("none", "right");
}

/* A rank that is killed ends the other within its collective, and the ranks that launch starts again end with the weights
 * of a run without misfortune. */
static void a_lost_rank_is_started_again(void **state) {
    (void)state;
    skip_without_emulator();
    char *settings = memory_format("layout.zero=1 checkpoint.every=5 steps=%d", LONG_STEPS), *calm = memory_format("%s run=calm", settings),
         *lost = memory_format("%s run=lost", settings);
    ProcessResult result = ranks_good(calm);
    process_free(&result);
    Process process = start_ranks(lost);
    process_await_text(&process, "checkpoint of step 5", 1);
    char *find = memory_format("pgrep -n -P %d", (int)process.id), line[32] = "";
    FILE *children = popen(find, "r");
    assert_non_null(fgets(line, sizeof line, children));
    pclose(children);
    assert_int_equal(kill((pid_t)atoi(line), SIGKILL), 0);
    result = process_finish(&process);
    expect_code(&result, 0, lost);
    assert_holds(result.output, "continuing lost after step");
    process_free(&result);
    assert_same_tensors("lost", "calm", LONG_STEPS, "", 0);
    free(find);
    free(lost);
    free(calm);
    free(settings);
}

int main(void) {
    process_offer_cards("2");
    program = process_smelt();
    setenv("SMELT", program, 1);
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(two_cards_have_the_losses_of_one),
        TRAIN_TEST(two_cards_keep_their_bits_with_state_in_host_memory),
        TRAIN_TEST(two_cards_keep_their_bits_with_shards_and_updates_within),
        TRAIN_TEST(two_cards_have_the_losses_of_one_with_delayed_scaling),
        TRAIN_TEST(a_collective_without_memory_ends_the_run),
        TRAIN_TEST(two_cards_generate_the_text_of_one),
        TRAIN_TEST(wrong_gemms_are_not_used),
        TRAIN_TEST(a_lost_rank_is_started_again),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(program);
    return failed;
}
