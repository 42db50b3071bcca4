/* Tests of runs on pairs of answers: the same losses and rewards however pairs are shared out, a reference that is computed once,
 * kept and guarded, and what is refused. The loss itself is proved by tests/model/test_preference.c. */
#include "support/ranks_run.h"

#include "run/reference.h"

enum { PAIRS = 24, SEED_PAIRS = 5 };

/* Random letters, of which chosen answers have early ones and rejected ones late ones. Together they have 31, so that pairs of 59
 * tokens are all of one size. */
static void write_answer(FILE *file, int pair, int which) {
    int chosen = 1 + (int)(rng_bits(SEED_PAIRS, 1, (uint64_t)pair).word[0] % 30), length = which ? 31 - chosen : chosen;
    for (int i = 0; i < length; i++)
        fputc((which ? 'n' : 'a') + (int)(rng_bits(SEED_PAIRS, 2, (uint64_t)(pair * 100 + which * 50 + i)).word[0] % 13), file);
}

static void write_pairs(const char *name, int first, int count) {
    char *path = memory_format("%s.jsonl", name), *words = memory_format("data pack %s.jsonl %s format=preference", name, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    for (int i = first; i < first + count; i++) {
        fprintf(file, "{\"prompt\": \"question %03d:\", \"chosen\": \"", i);
        write_answer(file, i, 0);
        fprintf(file, "\", \"rejected\": \"");
        write_answer(file, i, 1);
        fprintf(file, "\"}\n");
    }
    assert_int_equal(fclose(file), 0);
    smelt_good(words);
    free(path);
    free(words);
}

static int setup(void **state) {
    if (train_setup(state) != 0) return -1;
    write_pairs("pairs", 0, PAIRS);
    write_pairs("valid", PAIRS, 7);
    return 0;
}

/* The 12 sequences of a step hold all pairs, two in each. */
#define PREFER                                                                                                                             \
    "data.train=pairs data.valid=valid data.packing=best_fit data.length=128 batch.sequences=2 batch.tokens=1536 precision=fp64 steps=6 "  \
    "schedule.warmup=0 eval.every=3 preference.loss=dpo threads=1 "
#define LLAMA "model.family=llama model.experts=0 model.kv_heads=2 "

static void assert_same_training(const char *run, const char *other) {
    compare_records_within(run, other, "step", "loss", 1e-9); /* fp64 in other orders */
    compare_records_within(run, other, "evaluation", "loss", 1e-9);
    compare_records_within(run, other, "evaluation", "reward_margin", 1e-8);
    compare_records_within(run, other, "evaluation", "reward_accuracy", 0);
    compare_records_within(run, other, "step", "pairs", 0);
}

/* -- Shared out ---------------------------------------------------------------------------------------------------- */

static void ranks_learn_what_one_process_learns(void **state) {
    (void)state;
    static const struct {
        int ranks;
        const char *settings;
    } layouts[] = {{2, "layout.zero=0"}, {2, "layout.zero=1"}, {2, "layout.zero=2"}, {2, "layout.zero=3"}, {3, "layout.zero=3"},
        {2, "layout.tp=2"}, {4, "layout.pp=2"}, {2, "layout.pp=2 layout.pp_schedule=zero-bubble"}};
    if (!has_mpi()) skip();
    train_good(PREFER LLAMA "run=one");
    assert_true(fabs(recorded("one", "step", 0, "loss") - log(2)) < 1e-12); /* the model is its reference */
    assert_true(recorded("one", "step", 0, "reward_margin") == 0);
    assert_true(recorded("one", "step", -1, "reward_margin") > 0.1);
    assert_int_equal((int)recorded("one", "step", -1, "pairs"), PAIRS);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        char run[16];
        snprintf(run, sizeof run, "shared-%zu", i);
        train_ranks(layouts[i].ranks, PREFER LLAMA "%s run=%s", layouts[i].settings, run);
        assert_same_training(run, "one");
    }
    assert_true(same_bytes("one/data/reference-train", "shared-4/data/reference-train")); /* three ranks, each with parts of the weights */
    assert_true(same_bytes("one/data/reference-valid", "shared-0/data/reference-valid"));
}

/* The reference is the base, which ranks hold in shards. In fp32 quantized values are the same, and sums have another order. */
static void adapters_of_a_sharded_base_learn_what_one_process_learns(void **state) {
    (void)state;
    static const char *const kinds[] = {"", "precision=fp32 lora.base=nf4", "precision=fp32 lora.base=fp8 optimizer.name=lion"};
    if (!has_mpi()) skip();
    train_good("run=base stop_at=10 model.context=128 " LLAMA);
    for (int i = 0; i < 3; i++) {
        SCOPED_FREE char *settings = memory_format(PREFER LLAMA "init=base lora.rank=2 lora.targets=all %s", kinds[i]);
        assert_int_equal(system("rm -rf one shared"), 0);
        train_good("%s run=one", settings);
        train_ranks(3, "%s layout.zero=3 layout.bucket_mb=0.01 run=shared", settings);
        compare_records_within("shared", "one", "step", "loss", i ? 1e-5 : 1e-9);
        compare_records_within("shared", "one", "evaluation", "loss", i ? 1e-5 : 1e-9);
        compare_records_within("shared", "one", "evaluation", "reward_margin", i ? 1e-3 : 1e-6);
    }
}

static void experts_that_ranks_share_out_learn_the_same(void **state) {
    (void)state;
    if (!has_mpi()) skip();
    train_good(PREFER "run=one");
    train_ranks(2, PREFER "layout.ep=2 run=shared");
    assert_same_training("shared", "one");
}

/* The head is read twice before its first update. */
static void updates_within_the_backward_pass_give_the_same_bits(void **state) {
    (void)state;
    static const char one[] = PREFER LLAMA "model.tied=false precision=fp32 batch.sequences=12 optimizer.clip=0 layout.bucket_mb=0.01";
    train_good("%s run=after", one);
    train_good("%s run=within optimizer.in_backward=true", one);
    assert_same_steps("within", "after");
    assert_true(same_checkpoint("within", "after", 6));
}

static void a_step_is_the_mean_over_its_pairs(void **state) {
    (void)state;
    train_good(PREFER LLAMA "run=some");
    train_good(PREFER LLAMA "run=each batch.sequences=1");
    train_good(PREFER LLAMA "run=all batch.sequences=12");
    train_good(PREFER LLAMA "run=recomputed recompute=block");
    train_good(PREFER LLAMA "run=longer data.length=256 batch.sequences=1");
    assert_same_training("each", "some");
    assert_same_training("all", "some");
    assert_same_training("recomputed", "some");
    compare_records_within("longer", "some", "step", "loss", 1e-9);                   /* with four pairs in a sequence */
    assert_true(same_bytes("each/data/reference-valid", "all/data/reference-valid")); /* one batch that is not full */
}

static void ipo_and_smoothing_are_other_losses(void **state) {
    (void)state;
    train_good(PREFER LLAMA "run=dpo steps=2");
    train_good(PREFER LLAMA "run=smooth steps=2 preference.label_smoothing=0.2");
    train_good(PREFER LLAMA "run=ipo steps=2 preference.loss=ipo preference.beta=0.5");
    assert_true(fabs(recorded("ipo", "step", 0, "loss") - 1) < 1e-12); /* (0 - 1 / (2 beta))^2 */
    assert_true(fabs(recorded("smooth", "step", 0, "loss") - log(2)) < 1e-12);
    assert_true(recorded("smooth", "step", 1, "loss") > recorded("dpo", "step", 1, "loss") + 1e-4);
}

/* -- The reference ------------------------------------------------------------------------------------------------- */

static void a_run_goes_on_with_the_same_bits(void **state) {
    (void)state;
    train_good(PREFER LLAMA "precision=bf16 run=whole");
    train_good(PREFER LLAMA "precision=bf16 run=parts stop_at=4");
    train_good(PREFER LLAMA "precision=bf16 run=parts");
    assert_true(same_checkpoint("parts", "whole", 6));
    compare_records_within("parts", "whole", "step", "reward_chosen", 0);
}

static bool log_has(const char *run, const char *fragment) {
    size_t size;
    SCOPED_FREE char *path = memory_format("%s/log.txt", run);
    SCOPED_FREE char *log = (char *)read_bytes(path, &size);
    return strstr(log, fragment) != NULL;
}

/* Without its file a run goes on where that is allowed, and computes it from the weights that it began with. */
static void a_reference_that_changed_is_refused(void **state) {
    (void)state;
    train_good(PREFER LLAMA "run=whole");
    train_good(PREFER LLAMA "run=parts stop_at=4");
    flip_bit("parts/data/reference-train");
    train_says(ERROR_USAGE, "preference.reference: xxh3", PREFER LLAMA "run=parts");
    assert_int_equal(unlink("parts/data/reference-train"), 0);
    train_says(ERROR_USAGE, "resume.accept=preference.reference", PREFER LLAMA "run=parts");
    train_good(PREFER LLAMA "run=parts resume.accept=preference.reference");
    assert_true(same_checkpoint("parts", "whole", 6));
    assert_true(same_bytes("parts/data/reference-train", "whole/data/reference-train"));
    assert_false(log_has("parts", "preference.reference: ")); /* it is the one of before */
}

static void a_reference_of_weights_that_changed_is_named(void **state) {
    (void)state;
    train_good(LLAMA "run=base stop_at=1 data.length=128 batch.sequences=2");
    train_good(PREFER LLAMA "run=r init=base stop_at=2");
    train_good(LLAMA "run=base stop_at=3 data.length=128 batch.sequences=2");
    assert_int_equal(unlink("r/data/reference-train"), 0);
    train_good(PREFER LLAMA "run=r init=base stop_at=4 resume.accept=preference.reference");
    assert_true(log_has("r", "warning: the reference of r has changed: its pairs or the weights of init=base differ"));
    assert_false(log_has("r", " -> none"));
    train_good(PREFER LLAMA "run=r init=base");
}

static void another_loss_is_refused_where_a_run_goes_on(void **state) {
    (void)state;
    train_good(PREFER LLAMA "run=r stop_at=1");
    train_says(ERROR_USAGE, "\npreference.beta: 0.1 -> 0.3\n", PREFER LLAMA "run=r preference.beta=0.3");
    train_says(ERROR_USAGE, "\npreference.loss: dpo -> ipo\n", PREFER LLAMA "run=r preference.loss=ipo");
    train_says(ERROR_USAGE, "\npreference.label_smoothing: 0 -> 0.1\n", PREFER LLAMA "run=r preference.label_smoothing=0.1");
}

static void a_reference_of_other_weights_is_computed_again(void **state) {
    (void)state;
    train_good(PREFER LLAMA "run=one steps=1 seed=2");
    train_good(PREFER LLAMA "run=again steps=1 seed=1");
    assert_int_equal(system("rm -r again/checkpoints again/run.json"), 0); /* as if it had died before its first checkpoint */
    train_good(PREFER LLAMA "run=again steps=1 seed=2 resume.accept=checkpoints");
    assert_true(same_bytes("again/data/reference-train", "one/data/reference-train"));
    assert_true(fabs(recorded("again", "step", -1, "loss") - log(2)) < 1e-12);
}

static void new_validation_data_get_a_reference_of_the_first_weights(void **state) {
    (void)state;
    write_pairs("other", 100, 8);
    train_good(PREFER LLAMA "run=whole data.valid=other");
    train_good(PREFER LLAMA "run=parts stop_at=3");
    train_good(PREFER LLAMA "run=parts data.valid=other");
    assert_true(same_bytes("parts/data/reference-valid", "whole/data/reference-valid"));
    assert_true(recorded("parts", "evaluation", -1, "loss") == recorded("whole", "evaluation", -1, "loss"));
}

/* With rows of tokens that are trained too. */
static void the_reference_of_adapters_is_the_model_without_them(void **state) {
    (void)state;
    train_good(LLAMA "run=base stop_at=5 data.length=128 batch.sequences=2");
    train_good(PREFER LLAMA "precision=fp32 run=full init=base steps=1");
    train_good(PREFER LLAMA "precision=fp32 run=adapters init=base lora.rank=2 lora.tokens=48-57,97-122 steps=5 stop_at=2");
    train_good(PREFER LLAMA "precision=fp32 run=adapters init=base lora.rank=2 lora.tokens=48-57,97-122 steps=5");
    assert_true(fabs(recorded("adapters", "step", 0, "loss") - log(2)) < 1e-6);
    assert_true(recorded("adapters", "step", 4, "loss") < log(2) - 1e-4);
    size_t size, other;
    unsigned char *bytes = read_bytes("full/data/reference-train", &size), *others = read_bytes("adapters/data/reference-train", &other);
    assert_int_equal(size, other);
    assert_memory_equal(bytes, others, PAIRS * sizeof(ReferencePair));
    free(bytes);
    free(others);
    smelt_good("convert adapters adapter adapter=true");
    train_good(PREFER LLAMA
        "precision=fp32 run=on init=base lora.rank=2 lora.tokens=48-57,97-122 lora.start=adapter steps=1"); /* which are the reference now */
    assert_true(fabs(recorded("on", "step", 0, "loss") - log(2)) < 1e-6);
    assert_false(same_bytes("on/data/reference-train", "adapters/data/reference-train"));
    train_good(PREFER LLAMA "precision=fp32 run=continued init=adapters lora.rank=2 lora.tokens=48-57,97-122 steps=2 stop_at=1");
    train_good(PREFER LLAMA "precision=fp32 run=continued init=adapters lora.rank=2 lora.tokens=48-57,97-122 steps=2");
    bytes = read_bytes("continued/data/reference-train", &size), others = read_bytes("on/data/reference-train", &other);
    assert_int_equal(size, other);
    assert_memory_equal(bytes, others, PAIRS * sizeof(ReferencePair)); /* what follows names the adapters, a run's and a folder's */
    free(bytes);
    free(others);
    assert_true(recorded("continued", "step", 0, "grad_norm") == recorded("on", "step", 0, "grad_norm"));
    train_says(ERROR_USAGE, "set those of its config.yaml", PREFER LLAMA "precision=fp32 run=r init=adapters lora.rank=3 steps=1");
}

/* -- Refusals ------------------------------------------------------------------------------------------------------ */

static void what_pairs_cannot_be_is_refused(void **state) {
    (void)state;
    train_says(ERROR_USAGE, "data.packing=best_fit", PREFER LLAMA "run=r data.packing=cut");
    train_says(ERROR_USAGE, "layout.cp=1", PREFER LLAMA "run=r layout.cp=2");
    train_says(ERROR_USAGE, "fp8.recipe", PREFER LLAMA "run=r precision=bf16 fp8.recipe=row");
    train_says(ERROR_USAGE, "preference.loss=dpo", PREFER LLAMA "run=r preference.loss=none");
    train_says(ERROR_USAGE, "preference.beta=0.5 preference.loss", PREFER LLAMA "run=r preference.loss=none preference.beta=0.5");
    train_says(ERROR_USAGE, "preference.loss=dpo", PREFER LLAMA "run=r preference.loss=ipo preference.label_smoothing=0.1");
    train_says(ERROR_USAGE, "data.train=text has none", PREFER LLAMA "run=r data.train=text");
    train_says(ERROR_USAGE, "data.valid=text has none", PREFER LLAMA "run=r data.valid=text");
    train_says(ERROR_DATA, "data.length=16", PREFER LLAMA "run=r data.length=16 batch.tokens=1536");
    write_text("mixed.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"a long answer\"}\n"
                              "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    smelt_good("data pack mixed.jsonl mixed format=preference");
    train_says(
        ERROR_NONE, "1 2 data.length=16", PREFER LLAMA "run=r data.train=mixed data.valid=mixed data.length=16 batch.tokens=32 steps=1");
    smelt_says(ERROR_DATA, "valid preference.loss=dpo", "eval r valid");
    smelt_says(ERROR_DATA, "error: mixed.jsonl holds preference.loss=dpo", "eval r mixed.jsonl");
    write_text("mix.yaml", "sources: [{name: words, path: text}, {name: two, path: pairs}]\nphases: [{weights: {words: 1, two: 1}}]\n");
    train_says(
        ERROR_USAGE, "source two of data.train=mix.yaml", PREFER LLAMA "run=m data.packing=cut preference.loss=none data.train=mix.yaml");
    smelt_good("eval r text");
}

#define PREFERENCE_TEST(test) cmocka_unit_test_setup_teardown(test, setup, leave_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        PREFERENCE_TEST(ranks_learn_what_one_process_learns),
        PREFERENCE_TEST(adapters_of_a_sharded_base_learn_what_one_process_learns),
        PREFERENCE_TEST(experts_that_ranks_share_out_learn_the_same),
        EACH_ISA(PREFERENCE_TEST(updates_within_the_backward_pass_give_the_same_bits)),
        PREFERENCE_TEST(a_step_is_the_mean_over_its_pairs),
        PREFERENCE_TEST(ipo_and_smoothing_are_other_losses),
        PREFERENCE_TEST(a_run_goes_on_with_the_same_bits),
        PREFERENCE_TEST(a_reference_that_changed_is_refused),
        PREFERENCE_TEST(a_reference_of_weights_that_changed_is_named),
        PREFERENCE_TEST(another_loss_is_refused_where_a_run_goes_on),
        PREFERENCE_TEST(a_reference_of_other_weights_is_computed_again),
        PREFERENCE_TEST(new_validation_data_get_a_reference_of_the_first_weights),
        EACH_ISA(PREFERENCE_TEST(the_reference_of_adapters_is_the_model_without_them)),
        PREFERENCE_TEST(what_pairs_cannot_be_is_refused),
    };
    train_main();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
