/* End to end: updates within the backward pass give the bits of updates after it, in every family, policy of recomputation,
 * optimizer and layout that may have them; what may not is refused; and no step that is broken is saved. Buckets of 10 KiB, so
 * that the tiny models have several. */
#include "base/scope.h"
#include "support/mentions.h"
#include "support/poison.h"
#include "support/ranks_run.h"

/* Behind TINY. */
#define ONE "batch.tokens=128 optimizer.clip=0 layout.bucket_mb=0.01 model.layers=3 eval.sample_tokens=0 "
#define WITHIN "optimizer.in_backward=true "
#define ZAYA ""
#define LLAMA "model.family=llama model.experts=0 model.router_width=64 "
#define MIXTRAL "model.family=llama model.experts=4 model.experts_per_token=2 model.auxiliary_loss=0.01 model.router_width=64 "
#define WIDE "model.width=128 model.ffn=128 model.head_dim=64 "
enum { STEPS = 6 };

/* The shares of tokens that experts got, which are read from gradients of balancing biases. */
static void assert_same_loads(const char *run, const char *other) {
    json_auto_t *loads = records(run, "load"), *expected = records(other, "load");
    assert_int_equal(json_array_size(loads), json_array_size(expected));
    for (size_t i = 0; i < json_array_size(loads); i++)
        assert_true(json_equal(json_object_get(json_array_get(loads, i), "load"), json_object_get(json_array_get(expected, i), "load")));
}

/* Every loss, gradient norm and load, and the checkpoint with weights and moments. */
static void check_bits(const char *settings) {
    assert_int_equal(system("rm -rf after within"), 0);
    train_good(ONE "steps=%d run=after %s", STEPS, settings);
    train_good(ONE "steps=%d run=within " WITHIN "%s", STEPS, settings);
    assert_same_steps("within", "after");
    assert_same_loads("within", "after");
    if (!same_checkpoint("within", "after", STEPS)) fail_msg("%s: other weights or moments", settings);
}

/* Of every family with every value of a setting. */
static void check_bits_of_each(
    const char *const *families, size_t count, const char *setting, const char *const *values, size_t value_count) {
    for (size_t i = 0; i < count; i++)
        for (size_t v = 0; v < value_count; v++) {
            SCOPED_FREE char *settings = memory_format("%s %s=%s", families[i], setting, values[v]);
            check_bits(settings);
        }
}

static void every_family_ends_with_the_same_bits(void **state) {
    (void)state;
    static const char *const families[] = {ZAYA, LLAMA, LLAMA "model.tied=false", MIXTRAL,
        "model.family=gpt2 model.experts=0 model.router_width=64 model.kv_heads=2",
        "model.family=mpt model.experts=0 model.router_width=64 model.tied=false"};
    static const char *const precisions[] = {"fp32", "bf16", "pure_bf16"};
    check_bits_of_each(families, sizeof families / sizeof *families, "precision", precisions, sizeof precisions / sizeof *precisions);
}

/* The nodes that run again read weights too. */
static void recomputation_reads_weights_before_they_change(void **state) {
    (void)state;
    static const char *const families[] = {ZAYA, LLAMA "model.tied=false ", MIXTRAL}, *const policies[] = {"norm", "attention", "block"};
    check_bits_of_each(
        families, sizeof families / sizeof *families, "precision=pure_bf16 recompute", policies, sizeof policies / sizeof *policies);
}

static void muon_updates_matrices_bucket_by_bucket(void **state) {
    (void)state;
    check_bits(ZAYA "optimizer.name=muon precision=pure_bf16");
    check_bits(LLAMA "optimizer.name=muon precision=fp32 recompute=block");
    check_bits(MIXTRAL "optimizer.name=muon precision=bf16");
}

static void fp8_reads_its_codes_before_weights_change(void **state) {
    (void)state;
    check_bits(LLAMA "model.width=64 model.ffn=96 fp8.recipe=tensor fp8.scaling=delayed fp8.min_size=0");
    check_bits(LLAMA "model.width=64 model.ffn=96 fp8.recipe=row fp8.head=true fp8.min_size=0 precision=pure_bf16");
    check_bits(MIXTRAL "model.width=64 model.ffn=96 fp8.recipe=tensor fp8.min_size=0 precision=pure_bf16");
}

static void adapters_are_updated_within_too(void **state) {
    (void)state;
    train_good(ONE "run=base steps=%d", STEPS);
    check_bits("init=base lora.rank=2 precision=bf16");
}

/* No token has a position beyond data.length. */
static void rows_without_a_gradient_decay(void **state) {
    (void)state;
    check_bits("model.family=gpt2 model.experts=0 model.router_width=64 model.kv_heads=2 model.context=64 optimizer.weight_decay=0.5");
}

/* -- Ranks --------------------------------------------------------------------------------------------------------- */

/* Each rank's shard of the checkpoint. */
static void check_ranks(int ranks, const char *settings) {
    assert_int_equal(system("rm -rf after within"), 0);
    train_ranks(ranks, ONE "steps=%d run=after %s", STEPS, settings);
    train_ranks(ranks, ONE "steps=%d run=within " WITHIN "%s", STEPS, settings);
    assert_same_steps("within", "after");
    for (int rank = 0; rank < ranks; rank++) {
        char name[64];
        snprintf(name, sizeof name, "shard-%05d-of-%05d.safetensors", rank, ranks);
        SCOPED_FREE char *path = checkpoint_file("within", STEPS, name), *other = checkpoint_file("after", STEPS, name);
        if (!same_bytes(path, other)) fail_msg("%d ranks, %s: other weights or moments on rank %d", ranks, settings, rank);
    }
}

static void ranks_reduce_a_bucket_before_they_update_it(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    check_ranks(2, ZAYA "batch.tokens=256 layout.zero=0");
    check_ranks(2, ZAYA "batch.tokens=256 layout.zero=1 optimizer.name=muon precision=pure_bf16");
    check_ranks(2, LLAMA "batch.tokens=256 layout.zero=1 layout.reduce=bf16 precision=bf16 model.tied=false recompute=block");
    check_ranks(4, LLAMA "batch.tokens=512 layout.zero=1 layout.shard=2");
    check_ranks(2, LLAMA "layout.tp=2 model.kv_heads=2 optimizer.name=muon");
    check_ranks(2, LLAMA "layout.cp=2");
    check_ranks(2, ZAYA "batch.tokens=256 layout.ep=2");
}

/* A shard is updated from the slot in which its bucket was reduced: the bits are those of sums that every rank holds. */
static void ranks_that_shard_gradients_update_their_shards_from_the_slots(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    check_ranks(2, ZAYA "batch.tokens=256 layout.zero=2");
    check_ranks(2, LLAMA "batch.tokens=256 layout.zero=2 layout.reduce=bf16 precision=bf16 optimizer.name=lion");
    check_ranks(2, ZAYA "batch.tokens=256 layout.zero=3 optimizer.name=muon precision=pure_bf16");
    check_ranks(3, LLAMA "batch.tokens=384 layout.zero=3 model.tied=false recompute=block optimizer.name=lion");
    check_ranks(2, LLAMA WIDE "batch.tokens=256 layout.zero=3 precision=pure_bf16 optimizer.name=adamw_8bit");
    check_ranks(2, LLAMA WIDE "batch.tokens=256 layout.zero=3 precision=bf16 fp8.recipe=tensor fp8.min_size=0");
    check_ranks(4, LLAMA "batch.tokens=512 layout.zero=3 layout.shard=2 layout.reduce=bf16 precision=bf16");
    check_ranks(4, LLAMA "batch.tokens=256 layout.zero=3 layout.tp=2 model.kv_heads=2 optimizer.name=muon");
    check_ranks(4, MIXTRAL "batch.tokens=512 layout.zero=3 layout.ep=2 precision=pure_bf16");
}

#define SHARES "optimizer.clip=0 batch.tokens=512 steps=12 eval.every=6 "

/* Four ranks with a microbatch each learn the same as one process that sums four microbatches. */
static void ranks_that_shard_gradients_learn_what_one_process_learns(void **state) {
    (void)state;
    static const struct {
        const char *model, *layout;
    } cases[] = {{ZAYA, "layout.zero=3"}, {ZAYA "optimizer.name=muon ", "layout.zero=2"},
        {ZAYA "batch.sequences=8 ", "layout.zero=3 layout.ep=2 batch.sequences=4"},
        {LLAMA "model.tied=true model.kv_heads=2 ", "layout.zero=3 layout.tp=2 batch.sequences=8"},
        {LLAMA WIDE "model.tied=false optimizer.name=adamw_8bit ", "layout.zero=3"},
        {MIXTRAL "optimizer.name=lion optimizer.lr=1e-3 ", "layout.zero=3"}};
    if (!has_mpi()) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(system("rm -rf one within"), 0);
        train_ranks(0, SHARES "%s run=one", cases[i].model);
        train_ranks(4, SHARES WITHIN "%s%s run=within", cases[i].model, cases[i].layout);
        assert_same_losses("within", "one");
    }
}

static void a_sharded_run_resumes_bit_for_bit_and_in_other_layouts(void **state) {
    (void)state;
    static const char settings[] = SHARES LLAMA "model.kv_heads=2 optimizer.name=muon checkpoint.every=3 checkpoint.keep=100 ";
    static const struct {
        int ranks, stop;
        const char *layout;
    } parts[] = {{4, 3, WITHIN "layout.zero=3"}, {0, 6, "layout.zero=0"}, {4, 9, WITHIN "layout.zero=3 layout.tp=2 batch.sequences=8"},
        {2, 12, WITHIN "layout.zero=2 batch.sequences=8"}};
    if (!has_mpi()) skip();
    train_ranks(0, "%s run=one", settings);
    for (int i = 0; i < 2; i++) train_ranks(4, "%s" WITHIN "layout.zero=3 run=whole-%d", settings, i);
    for (int i = 1; i <= 2; i++) train_ranks(4, "%s" WITHIN "layout.zero=3 run=again stop_at=%d", settings, 6 * i);
    assert_same_steps("whole-1", "whole-0");
    assert_same_steps("again", "whole-0");
    assert_same_tensors("whole-1", "whole-0", 12, "", 0);
    assert_same_tensors("again", "whole-0", 12, "", 0);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        train_ranks(parts[i].ranks, "%s run=moved stop_at=%d %s", settings, parts[i].stop, parts[i].layout);
    compare_records("moved", "one", "step", "loss");
}

/* -- Going on ------------------------------------------------------------------------------------------------------ */

static void a_killed_run_goes_on_bit_for_bit_with_or_without(void **state) {
    (void)state;
    static const char settings[] = ONE "precision=pure_bf16 steps=400 checkpoint.every=3 run=";
    train_good("%swhole", settings);
    for (int within = 0; within < 2; within++) {
        SCOPED_FREE char *killed = memory_format("%skilled-%d " WITHIN, settings, within);
        Process process = train_start(killed);
        process_await_text(&process, "checkpoint", 1);
        kill(process.id, SIGKILL);
        ProcessResult result = process_finish(&process);
        assert_int_equal(result.signal, SIGKILL);
        process_free(&result);
        train_good("%skilled-%d optimizer.in_backward=%s", settings, within, within ? "true" : "false");
        char run[16];
        snprintf(run, sizeof run, "killed-%d", within);
        assert_same_steps(run, "whole");
        assert_true(same_checkpoint(run, "whole", 400));
    }
}

/* -- Numbers that break -------------------------------------------------------------------------------------------- */

/* A run that one process has begun, and whose loss is not finite from the third step on where its text has '@'. */
static void train_broken(int ranks, const char *run, const char *settings) {
    SCOPED_FREE char *begun =
        memory_format(ONE LLAMA "model.tied=false precision=fp32 on_nan=skip batch.tokens=%d run=%s", 128 * ranks, run);
    SCOPED_FREE char *words = memory_format("%s %s", begun, settings);
    train_ranks(0, "%s stop_at=2", begun);
    poison(run, 2, "model.embed_tokens.weight", '@' * 32, INFINITY);
    ProcessResult result = run_ranks(ranks, words);
    assert_int_equal(result.code, ERROR_NUMERICS); /* the weight was infinite, and so it is after the last update */
    assert_mentions(result.errors, "model.embed_tokens.weight");
    process_free(&result);
}

static void assert_same_skips(const char *run, const char *other) {
    json_auto_t *steps = records(run, "step"), *expected = records(other, "step");
    size_t skipped = 0, count = json_array_size(steps);
    assert_int_equal(count, json_array_size(expected));
    for (size_t i = 0; i < count; i++) {
        json_t *step = json_array_get(steps, i), *other_step = json_array_get(expected, i);
        skipped += json_is_true(json_object_get(step, "skipped"));
        assert_true(json_equal(json_object_get(step, "skipped"), json_object_get(other_step, "skipped")));
        assert_true(json_equal(json_object_get(step, "loss"), json_object_get(other_step, "loss")));
    }
    assert_true(skipped > 0 && skipped < count);
}

/* The loss is known before the first update, and that of another rank too. */
static void a_step_without_a_finite_loss_is_left_out(void **state) {
    (void)state;
    size_t length;
    unsigned char *text = read_bytes("text", &length);
    for (size_t i = 700; i < length; i += 500) text[i] = '@';
    write_bytes("text", text, length);
    free(text);
    if (!has_mpi()) skip();
    for (int ranks = 1; ranks <= 2; ranks++) {
        assert_int_equal(system("rm -rf after within"), 0);
        train_broken(ranks, "after", "");
        train_broken(ranks, "within", WITHIN);
        assert_same_skips("within", "after");
    }
}

/* Gradients of weights that grow 10,000-fold with each step overflow before the loss does. */
static void a_step_whose_gradients_break_ends_the_run_unsaved(void **state) {
    (void)state;
    static const char exploding[] = ONE WITHIN "precision=fp32 schedule.kind=constant schedule.warmup=0 optimizer.lr=100 "
                                               "optimizer.weight_decay=100 run=run";
    train_good("%s stop_at=1", exploding);
    for (int skips = 0; skips < 2; skips++)
        train_says(ERROR_NUMERICS, "the same command continues checkpoint of step 1", "%s on_nan=%s", exploding, skips ? "skip" : "stop");
    train_says(ERROR_NUMERICS, ": a gradient has NaN or infinity and made ", "%s", exploding);
    train_says(ERROR_NUMERICS, "command", "%s-2", exploding);
    assert_true(has_checkpoint("run", 1) && !has_checkpoint("run", 3));
}

/* -- What may not -------------------------------------------------------------------------------------------------- */

static void what_needs_all_gradients_at_once_is_refused_with_its_cure(void **state) {
    (void)state;
    static const struct {
        const char *setting, *message;
    } cases[] = {
        {"optimizer.clip=0.5", "optimizer.clip=0.5 optimizer.clip=0, optimizer.in_backward=false"},
        {"batch.tokens=384", "batch.tokens=128, optimizer.in_backward=false"},
        {"batch.tokens=256 batch.ramp_tokens=128 batch.ramp_steps=4", "batch.tokens=128, optimizer.in_backward=false"},
        {"dump=folder", "dump=folder optimizer.in_backward=false"},
        {"layout.pp=2", "layout.pp=1, optimizer.in_backward=false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int ranks = strstr(cases[i].setting, "layout.pp") ? 2 : 1;
        if (ranks > 1 && !has_mpi()) continue;
        SCOPED_FREE char *settings = memory_format(ONE WITHIN "run=run %s", cases[i].setting);
        ProcessResult result = run_ranks(ranks, settings);
        if (result.code != ERROR_USAGE || !mentions(result.errors, cases[i].message))
            fail_msg("%s: exit code %d, %s", settings, result.code, result.errors);
        process_free(&result);
    }
    assert_int_not_equal(access("run", F_OK), 0);
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        EACH_ISA(TRAIN_TEST(every_family_ends_with_the_same_bits)),
        EACH_ISA(TRAIN_TEST(recomputation_reads_weights_before_they_change)),
        EACH_ISA(TRAIN_TEST(muon_updates_matrices_bucket_by_bucket)),
        EACH_ISA(TRAIN_TEST(fp8_reads_its_codes_before_weights_change)),
        EACH_ISA(TRAIN_TEST(adapters_are_updated_within_too)),
        EACH_ISA(TRAIN_TEST(rows_without_a_gradient_decay)),
        TRAIN_TEST(ranks_reduce_a_bucket_before_they_update_it),
        TRAIN_TEST(ranks_that_shard_gradients_update_their_shards_from_the_slots),
        TRAIN_TEST(ranks_that_shard_gradients_learn_what_one_process_learns),
        TRAIN_TEST(a_sharded_run_resumes_bit_for_bit_and_in_other_layouts),
        TRAIN_TEST(a_killed_run_goes_on_bit_for_bit_with_or_without),
        TRAIN_TEST(a_step_without_a_finite_loss_is_left_out),
        TRAIN_TEST(a_step_whose_gradients_break_ends_the_run_unsaved),
        TRAIN_TEST(what_needs_all_gradients_at_once_is_refused_with_its_cure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
