/* Tests of runs of rl.loss=ppo: models that learn from rewards and values, the value head in checkpoints, exports and
 * beside adapters, the same bits after a stop, a kill and over ranks, and what is refused. The loss and the advantages are proved by
 * tests/rl/test_policy_golden.c. */
#include "policy_toys.h"
#include "rl/advantage_internal.h"

#define PPO POLICY "rl.loss=ppo rl.value_lr=1e-2 rl.vf_coef=0.5 "
#define WORDS PPO WORDS_FILES
#define SHORT WORDS "rl.prompts=4 rl.samples=4 steps=8 checkpoint.every=2 rl.updates=2 rl.kl_coef=0.05 rl.kl=reward optimizer.lr=1e-3 "

/* Returns the value head of a checkpoint of one rank. */
static float *value_head(const char *run, int64_t step, int64_t *count) {
    json_auto_t *shapes = checkpoint_shapes(run, step);
    const json_t *shape = json_object_get(shapes, "value_head.weight");
    assert_non_null(shape);
    return checkpoint_tensor(run, step, "value_head.weight", shape, count);
}

/* -- Learning ------------------------------------------------------------------------------------------------------ */

static void check_learning(const char *run) {
    assert_true(reward_of(run, "step", 0) < 0.5);
    assert_true(reward_of(run, "evaluation", -1) > 0.8);
    assert_true(fabs(recorded(run, "step", -1, "value") - reward_of(run, "step", -1)) < 0.25);
    assert_no_mismatch(run);
}

static void models_learn_by_values(void **state) {
    (void)state;
    setup_sums();
    for (int seed = 1; seed <= 3; seed++) {
        char run[16], words[512];
        snprintf(run, sizeof run, "words-%d", seed);
        snprintf(words, sizeof words, WORDS "run=%s seed=%d steps=80 optimizer.lr=5e-4 eval.every=80", run, seed);
        smelt_good(words);
        check_learning(run);
        snprintf(run, sizeof run, "sums-%d", seed);
        snprintf(words, sizeof words, PPO SUMS_FILES "run=%s seed=%d steps=80 optimizer.lr=5e-4 eval.every=80", run, seed);
        smelt_good(words);
        check_learning(run);
    }
}

/* Values are the expectation of the reward, and no other samples of the prompt are needed. */
static void a_prompt_needs_one_sample(void **state) {
    (void)state;
    smelt_good(WORDS "run=single rl.prompts=128 rl.samples=1 steps=40 optimizer.lr=5e-4");
    assert_true(recorded("single", "step", -1, "reward") > recorded("single", "step", 0, "reward") + 0.2);
}

/* -- The value head ------------------------------------------------------------------------------------------------ */

static void the_value_head_stays_in_checkpoints(void **state) {
    (void)state;
    int64_t count = 0;
    smelt_good(SHORT "run=head");
    SCOPED_FREE float *first = value_head("head", 6, &count), *last = value_head("head", 8, &count);
    assert_int_equal(count, 64);
    assert_true(memcmp(first, last, (size_t)count * sizeof *first) != 0);
    smelt_good("convert head head-folder");
    assert_int_equal(system("! grep -q value_head.weight head-folder/model.safetensors"), 0);
    smelt_good("generate head abc tokens=4");
    smelt_good(SHORT "init=head run=second steps=2");
    smelt_good(SHORT "init=head-folder run=third steps=2");
    assert_true(recorded("second", "step", 0, "value") == 0);
    assert_true(recorded("third", "step", 0, "value") == 0);
}

/* The base is the reference: the divergence is 0 before the first update, and values come from the adapted model. */
static void the_value_head_is_trained_beside_adapters(void **state) {
    (void)state;
    int64_t count = 0;
    smelt_good(SHORT "rl.kl=loss run=adapters lora.rank=4");
    SCOPED_FREE float *head = value_head("adapters", 8, &count);
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += (double)head[i] * head[i];
    assert_true(squares > 0);
    assert_true(recorded("adapters", "step", 0, "kl") == 0);
    assert_true(recorded("adapters", "step", -1, "kl") > 0);
    assert_true(recorded("adapters", "step", 2, "value_clipped_share") == 0);
    smelt_good("convert adapters adapters-folder");
    assert_int_equal(system("! grep -rq value_head.weight adapters-folder"), 0);
    smelt_good(SHORT "run=adapters lora.rank=4 rl.kl=loss steps=10");
}

/* At the first update of a rollout no value has moved from its estimate, so that no small range bounds it. */
static void estimates_are_the_values_that_are_trained(void **state) {
    (void)state;
    smelt_good(SHORT "run=range rl.cliprange_value=1e-12 precision=fp64");
    double later = 0;
    for (int step = 0; step < 8; step += 2) {
        assert_true(recorded("range", "step", step, "value_clipped_share") == 0);
        later += recorded("range", "step", step + 1, "value_clipped_share");
    }
    assert_true(later > 0);
}

static void settings_have_an_effect(void **state) {
    (void)state;
    static const char *const settings[] = {"rl.vf_coef=0.2", "rl.cliprange_value=0.001", "rl.gamma=0.9", "rl.lam=0.5", "rl.whiten=false",
        "rl.value_lr=1e-3", "rl.kl_coef=0.2", "rl.mask_truncated=true rl.tokens=4"};
    smelt_good(SHORT "run=plain");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char words[1024], run[16];
        snprintf(run, sizeof run, "other-%zu", i);
        snprintf(words, sizeof words, SHORT "run=%s %s", run, settings[i]);
        smelt_good(words);
        SCOPED_FREE char *shard = shard_path(run, 8), *plain = shard_path("plain", 8);
        if (same_bytes(shard, plain)) fail_msg("%s has no effect", settings[i]);
    }
}

/* -- The same bits ------------------------------------------------------------------------------------------------- */

static void a_run_continues_with_the_same_bits(void **state) {
    (void)state;
    static const char *const marks[] = {"killed/checkpoints/step-00000004/manifest.json", "killed/rollouts/7.jsonl"};
    smelt_good(SHORT "run=whole");
    smelt_good(SHORT "run=parts stop_at=4");
    smelt_good(SHORT "run=parts");
    assert_true(same_checkpoint("parts", "whole", 8));
    assert_true(same_bytes("parts/rollouts/7.jsonl", "whole/rollouts/7.jsonl"));
    smelt_good("train whole fork=forked from=6");
    assert_true(same_checkpoint("forked", "whole", 8));
    for (int kill_at = 0; kill_at < 2; kill_at++) smelt_kill_at(SHORT "run=killed", marks[kill_at]);
    smelt_good(SHORT "run=killed");
    assert_true(same_checkpoint("killed", "whole", 8));
    smelt_good(SHORT "run=after optimizer.clip=0");
    smelt_good(SHORT "run=within optimizer.clip=0 optimizer.in_backward=true");
    assert_true(same_checkpoint("within", "after", 8));
}

static void check_values(const char *run) {
    compare_records_within(run, "one", "step", "value_loss", 1e-8);
    compare_records_within(run, "one", "step", "value", 1e-8);
}

static void ranks_learn_what_one_process_learns(void **state) {
    (void)state;
    compare_policy_layouts(SHORT, check_values);
}

/* A second epoch trains the same samples: ratios have moved away from 1, and no new rollout is made. */
static void epochs_train_the_samples_again(void **state) {
    (void)state;
    smelt_good(SHORT "run=epochs rl.epochs=2 checkpoint.every=4");
    smelt_good(SHORT "run=epoch");
    const char *const again[] = {"epochs/rollouts/1.jsonl", "epochs/rollouts/5.jsonl", "epoch/rollouts/3.jsonl"};
    for (int i = 0; i < 3; i++) assert_true(file_exists(again[i]));
    assert_false(file_exists("epochs/rollouts/3.jsonl"));
    for (int step = 0; step < 2; step++)
        assert_true(recorded("epochs", "step", step, "grad_norm") == recorded("epoch", "step", step, "grad_norm"));
    assert_true(recorded("epochs", "step", 2, "tokens") == recorded("epochs", "step", 0, "tokens"));
    assert_true(recorded("epochs", "step", 2, "policy_kl") > recorded("epochs", "step", 1, "policy_kl"));
    smelt_kill_at(SHORT "run=broken rl.epochs=2 checkpoint.every=4", "broken/rollouts/5.jsonl");
    smelt_good(SHORT "run=broken rl.epochs=2 checkpoint.every=4");
    assert_true(same_checkpoint("broken", "epochs", 8));
    smelt_says(ERROR_USAGE, "multiples of rl.updates x rl.epochs = 4", SHORT "run=x rl.epochs=2");
    smelt_says(ERROR_USAGE, "rl.updates x rl.epochs = 6 does not divide step 8", SHORT "run=epoch steps=24 rl.epochs=3 checkpoint.every=6");
}

/* -- What is said -------------------------------------------------------------------------------------------------- */

static void what_cannot_work_is_refused(void **state) {
    (void)state;
    smelt_says(ERROR_USAGE, "rl.vf_coef", POLICY WORDS_FILES "run=x rl.loss=grpo rl.vf_coef=0.2");
    smelt_says(ERROR_USAGE, "rl.refill", WORDS "run=x rl.refill=1");
    smelt_says(ERROR_USAGE, "rl.loss", SHORT "run=head rl.loss=dapo rl.vf_coef=0.1 rl.value_lr=0");
    smelt_says(ERROR_USAGE, "rl.gamma", WORDS "run=x rl.gamma=1.5");
}

/* -- Advantages ---------------------------------------------------------------------------------------------------- */

/* Of three steps with gamma 0.5 and lambda 0.5, by hand; with lambda 1 an advantage is the return minus the value. */
static void estimates_are_those_of_the_definition(void **state) {
    (void)state;
    const double rewards[] = {0, 1, 2}, values[] = {1, 2, 4};
    double advantages[3], whitened[] = {3, 3, 3}, spread[] = {1, 2, 3};
    policy_estimate((Discounts){0.5, 0.5}, rewards, values, 3, advantages);
    assert_true(advantages[2] == -2 && advantages[1] == 1 - 0.5 && advantages[0] == 0 + 0.25 * 0.5);
    policy_estimate((Discounts){1, 1}, rewards, values, 3, advantages);
    assert_true(advantages[2] == -2 && advantages[1] == 1 && advantages[0] == 2);
    policy_estimate((Discounts){1, 0}, rewards, values, 3, advantages);
    assert_true(advantages[2] == -2 && advantages[1] == 3 && advantages[0] == 1);
    policy_whiten(whitened, 3);
    policy_whiten(spread, 3);
    for (int i = 0; i < 3; i++) assert_true(whitened[i] == 0 && fabs(spread[i] - (i - 1)) < 1e-7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_learn_by_values),
        cmocka_unit_test(a_prompt_needs_one_sample),
        cmocka_unit_test(the_value_head_stays_in_checkpoints),
        cmocka_unit_test(the_value_head_is_trained_beside_adapters),
        cmocka_unit_test(estimates_are_the_values_that_are_trained),
        cmocka_unit_test(settings_have_an_effect),
        cmocka_unit_test(a_run_continues_with_the_same_bits),
        cmocka_unit_test(ranks_learn_what_one_process_learns),
        cmocka_unit_test(epochs_train_the_samples_again),
        cmocka_unit_test(what_cannot_work_is_refused),
        cmocka_unit_test(estimates_are_those_of_the_definition),
    };
    train_main();
    return cmocka_run_group_tests(tests, setup_words, leave_folder);
}
