/* Tests of runs of reinforcement learning: models that learn from rewards alone, the same bits after a stop, a kill and over
 * ranks, every loss and option, what is written, and what is refused. The losses themselves are proved by
 * tests/ops/test_policy.c and tests/golden/policy.py. */
#include "policy_toys.h"

#define REVERSE POLICY WORDS_FILES "rl.loss=grpo "

/* -- Learning ------------------------------------------------------------------------------------------------------ */

static void a_model_learns_to_reverse_words(void **state) {
    (void)state;
    for (int seed = 1; seed <= 3; seed++) {
        char run[16], words[512];
        snprintf(run, sizeof run, "reverse-%d", seed);
        snprintf(words, sizeof words, REVERSE "run=%s seed=%d steps=60 optimizer.lr=5e-4 eval.every=60", run, seed);
        smelt_good(words);
        assert_true(reward_of(run, "step", 0) < 0.5);
        assert_true(reward_of(run, "evaluation", -1) > 0.8);
        assert_no_mismatch(run);
    }
}

static void a_model_learns_sums(void **state) {
    (void)state;
    setup_sums();
    for (int seed = 1; seed <= 3; seed++) {
        char run[16], words[512];
        snprintf(run, sizeof run, "sums-%d", seed);
        snprintf(words, sizeof words, POLICY SUMS_FILES "rl.loss=grpo run=%s seed=%d steps=60 optimizer.lr=5e-4 eval.every=60", run, seed);
        smelt_good(words);
        assert_true(reward_of(run, "step", 0) < 0.5);
        assert_true(reward_of(run, "evaluation", -1) > 0.8);
        assert_no_mismatch(run);
    }
}

/* -- The same bits ------------------------------------------------------------------------------------------------- */

#define SHORT REVERSE "rl.prompts=4 rl.samples=4 steps=8 checkpoint.every=2 rl.updates=2 rl.refill=1 rl.kl_coef=0.05 optimizer.lr=1e-3 "

static void a_run_continues_with_the_same_bits(void **state) {
    (void)state;
    smelt_good(SHORT "run=whole");
    smelt_good(SHORT "run=parts stop_at=4");
    smelt_good(SHORT "run=parts");
    assert_true(same_checkpoint("parts", "whole", 8));
    assert_true(same_bytes("parts/rollouts/7.jsonl", "whole/rollouts/7.jsonl"));
    smelt_good("train whole fork=forked from=6");
    assert_true(same_checkpoint("forked", "whole", 8));
}

static void updates_within_the_backward_pass_have_the_same_bits(void **state) {
    (void)state;
    static const char settings[] = SHORT "optimizer.clip=0 run=%s optimizer.in_backward=%s batch.sequences=%d";
    char words[768];
    snprintf(words, sizeof words, settings, "after", "false", 16);
    smelt_good(words);
    snprintf(words, sizeof words, settings, "within", "true", 16);
    smelt_good(words);
    assert_true(same_checkpoint("within", "after", 8));
    snprintf(words, sizeof words, settings, "small", "true", 2);
    smelt_says(ERROR_USAGE, "set batch.sequences=8", words);
}

static void a_killed_run_continues_with_the_same_bits(void **state) {
    (void)state;
    smelt_good(SHORT "run=unkilled steps=24");
    static const char *const marks[] = {
        "killed/checkpoints/step-00000004/manifest.json", "killed/rollouts/13.jsonl", "killed/checkpoints/step-00000020/manifest.json"};
    for (int kill_at = 0; kill_at < 3; kill_at++) smelt_kill_at(SHORT "run=killed steps=24", marks[kill_at]);
    smelt_good(SHORT "run=killed steps=24");
    assert_true(same_checkpoint("killed", "unkilled", 24));
}

static void check_evaluation(const char *run) { compare_records_within(run, "one", "evaluation", "reward", 0); }

static void ranks_learn_what_one_process_learns(void **state) {
    (void)state;
    compare_policy_layouts(SHORT, check_evaluation);
}

/* -- Options ------------------------------------------------------------------------------------------------------- */

static void every_loss_trains(void **state) {
    (void)state;
    static const char *const losses[] = {"grpo", "dr_grpo", "dapo", "gspo", "cispo", "rloo", "reinforce_pp", "maxrl", "dppo"};
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        char words[512];
        snprintf(words, sizeof words,
            SHORT "rl.loss=%s run=loss-%s steps=2 rl.temperature=0.9 rl.overlong=4 rl.mask_truncated=true rl.entropy=0.01 rl.kl=reward",
            losses[i], losses[i]);
        smelt_good(words);
        char *run = memory_format("loss-%s", losses[i]);
        assert_true(recorded(run, "step", -1, "grad_norm") > 0);
        assert_true(fabs(recorded(run, "step", 0, "kl")) < 1e-6); /* the model is its reference */
        free(run);
    }
}

/* The first step's samples have the reference's weights, so the divergence is 0 there. With adapters the base is the reference. */
static void the_reference_has_the_first_weights(void **state) {
    (void)state;
    smelt_good(SHORT "run=full");
    smelt_good(SHORT "run=adapters lora.rank=4 rl.updates=1 exact=true");
    assert_true(recorded("full", "step", 0, "kl") == 0);
    assert_true(recorded("full", "step", -1, "kl") > 0);
    assert_true(recorded("adapters", "step", 0, "kl") == 0);
    assert_true(recorded("adapters", "step", -1, "kl") > 0);
    assert_no_mismatch("adapters");
}

static void a_teacher_is_imitated(void **state) {
    (void)state;
    smelt_good(REVERSE "run=teacher steps=40 optimizer.lr=1e-3");
    smelt_good(REVERSE "run=pupil rl.loss=distill rl.reference=teacher steps=40 optimizer.lr=1e-3 eval.every=40");
    assert_true(reward_of("pupil", "evaluation", -1) > 0.6);
}

static void few_prompts_are_enough(void **state) {
    (void)state;
    write_words("few.jsonl", 1, 4, false);
    smelt_good(SHORT "run=few data.train=few.jsonl steps=2");
    assert_true(recorded("few", "step", -1, "reward") >= 0);
}

static void samples_are_written(void **state) {
    (void)state;
    assert_int_equal(system("sed 's/^/\\n/' prompts.jsonl >blank.jsonl"), 0);
    smelt_good(SHORT "run=written steps=2 rl.refill=0 data.train=blank.jsonl");
    smelt_says(0, "16 completions, reward ", "reward written/rollouts/1.jsonl rl.reward=exact,length:4");
    size_t size, lines = 0;
    SCOPED_FREE char *text = (char *)read_bytes("written/rollouts/1.jsonl", &size);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        json_auto_t *sample = json_loads(line, 0, NULL);
        assert_non_null(json_string_value(json_object_get(sample, "completion")));
        const json_t *asked = json_object_get(json_object_get(sample, "record"), "prompt");
        assert_string_equal(json_string_value(asked), json_string_value(json_object_get(sample, "prompt_text")));
        assert_int_equal(json_integer_value(json_object_get(sample, "prompt")) % 2, 0);
        assert_int_equal(json_array_size(json_object_get(sample, "ids")), json_array_size(json_object_get(sample, "logprobs")));
        assert_int_equal(json_array_size(json_object_get(sample, "ids")), json_array_size(json_object_get(sample, "reference_logprobs")));
        double reward = json_real_value(json_object_get(sample, "reward"));
        assert_true(reward == json_real_value(json_object_get(json_object_get(sample, "rewards"), "exact")));
    }
    assert_int_equal(lines, 4 * 4);
}

/* -- What is said -------------------------------------------------------------------------------------------------- */

static void what_cannot_work_is_refused(void **state) {
    (void)state;
    smelt_says(ERROR_USAGE, "rl.updates=3 does not divide rl.prompts=16", REVERSE "run=x rl.updates=3");
    smelt_says(ERROR_USAGE, "checkpoint.every=3", REVERSE "run=x rl.updates=2 checkpoint.every=3");
    smelt_says(ERROR_USAGE, "rl.clip_dual=1.25 is not above 1 + rl.clip_high = 1.28", REVERSE "run=x rl.loss=dapo rl.clip_dual=1.25");
    smelt_says(ERROR_USAGE, "rl.tokens=64 leaves no room", REVERSE "run=x rl.tokens=64");
    smelt_says(ERROR_USAGE, "rl.overlong=9 exceeds rl.tokens=8", REVERSE "run=x rl.overlong=9");
    smelt_says(ERROR_USAGE, "rl.refill", POLICY "run=x init=words data.train=prompts.jsonl rl.loss=distill rl.reference=words rl.refill=2");
    smelt_says(ERROR_USAGE, "set rl.reward", REVERSE "run=x rl.reward=");
    smelt_says(ERROR_USAGE, "set rl.reference", REVERSE "run=x rl.loss=distill");
    smelt_says(ERROR_USAGE, "rl.prompts", "train run=x init=words data.train=words.jsonl rl.prompts=4");
    smelt_says(ERROR_USAGE, "batch.tokens", REVERSE "run=x batch.tokens=2048");
    smelt_says(ERROR_USAGE, "set init=MODEL", POLICY "run=x data.train=prompts.jsonl rl.loss=grpo rl.reward=exact");
    smelt_says(ERROR_DATA, "answer", REVERSE "run=x data.train=words.jsonl");
    smelt_says(ERROR_USAGE, "does not work with layout.pp=2", REVERSE "run=x layout.pp=2");
    smelt_says(ERROR_USAGE, "does not work with layout.cp=2", REVERSE "run=x layout.cp=2");
    smelt_says(ERROR_USAGE, "does not work with layout.ep=2", REVERSE "run=x layout.ep=2");
    smelt_says(ERROR_USAGE, "does not work with layout.zero=3", REVERSE "run=x layout.zero=3");
    smelt_says(ERROR_USAGE, "exact=true", REVERSE "run=x exact=true layout.tp=2");
    write_text("twice.jsonl", "{\"prompt\": \"abc=\", \"answer\": \"cba\", \"answer\": \"abc\"}\n");
    smelt_says(ERROR_DATA, "twice.jsonl, line 1", REVERSE "run=x data.train=twice.jsonl");
    smelt_says(ERROR_USAGE, "exact=true with lora.rank=4", "generate adapters a exact=true");
}

static void write_reward(const char *name, const char *body) {
    SCOPED_FREE char *text = memory_format("import os, time\ndef reward(completion, **fields):\n    %s\n", body);
    write_text(name, text);
}

static void a_validation_without_rewards_is_not_the_best(void **state) {
    (void)state;
    static const char settings[] = REVERSE "run=blind steps=4 eval.every=2 checkpoint.every=2 checkpoint.keep_best=true rl.prompts=2 "
                                           "rl.samples=2 eval.sequences=4 rl.reward=python:unsure.py rl.reward_errors=skip ";
    write_reward("unsure.py", "return -len(completion) / 1e3 if os.path.exists('sure') else None");
    write_text("sure", "");
    char words[1024];
    snprintf(words, sizeof words, "%sstop_at=2", settings);
    smelt_good(words);
    assert_int_equal(remove("sure"), 0);
    smelt_says(0, "validation at step 4: 4 of 4 prompts have no reward", settings);
    assert_true(reward_of("blind", "evaluation", -1) < 0);
    assert_int_equal(recorded("blind", "evaluation", -1, "step"), 2);
}

/* Nothing but the penalty of length tells the samples apart, so their groups teach and are kept. */
static void groups_are_compared_after_the_penalty_of_length(void **state) {
    (void)state;
    write_reward("same.py", "return 1");
    smelt_good(SHORT "run=penalized rl.reward=python:same.py rl.overlong=8 rl.refill=2 rl.temperature=2 steps=2");
    smelt_good(SHORT "run=alike rl.reward=python:same.py rl.refill=2 rl.temperature=2 steps=2");
    assert_true(recorded("penalized", "step", 0, "equal_groups") < 1);
    assert_true(recorded("alike", "step", 0, "equal_groups") == 1);
    json_auto_t *steps = records("penalized", "step"), *others = records("alike", "step");
    double samples = number(json_array_get(steps, 0), "samples"), all = number(json_array_get(others, 0), "samples");
    assert_true(samples < all);
}

/* One process and two ranks report the same. */
static void means_of_rewards_and_of_metrics_are_recorded(void **state) {
    (void)state;
    write_reward("notes.py", "return {'reward': len(completion), 'metrics': {'twice': 2 * len(completion)}, 'note': 'seen ' + completion}");
    smelt_good(SHORT "run=means rl.reward=0.5*exact,python:notes.py rl.refill=0 steps=2 precision=fp64");
    smelt_good(
        "launch -n 2 -- " SHORT "run=means-2 rl.reward=0.5*exact,python:notes.py rl.refill=0 steps=2 precision=fp64 batch.sequences=1");
    const char *const runs[] = {"means", "means-2"};
    for (int i = 0; i < 2; i++) {
        json_auto_t *steps = records(runs[i], "step");
        const json_t *step = json_array_get(steps, 0), *rewards = json_object_get(step, "rewards");
        double exact = number(rewards, "exact"), length = number(rewards, "python");
        assert_true(fabs(0.5 * exact + length - number(step, "reward")) < 1e-12);
        assert_true(number(rewards, "python.twice") == 2 * length && length > 0);
        SCOPED_FREE char *path = memory_format("%s/rollouts/1.jsonl", runs[i]), *first = read_text(path);
        json_auto_t *sample = json_loads(first, JSON_DISABLE_EOF_CHECK, NULL);
        const char *completion = json_string_value(json_object_get(sample, "completion"));
        SCOPED_FREE char *note = memory_format("seen %s", completion);
        assert_string_equal(note, json_string_value(json_object_get(sample, "note")));
        assert_int_equal(json_array_size(json_object_get(sample, "completion_ids")), strlen(completion));
    }
    assert_true(same_bytes("means/rollouts/1.jsonl", "means-2/rollouts/1.jsonl"));
}

/* Returns the bytes of a row "  generation   4.11 MiB" of a plan; 0: there is none. */
static double planned_generation(const char *words) {
    ProcessResult result = smelt(words);
    const char *row = strstr(result.output, "\n  generation ");
    double size = 0;
    char unit[8] = "";
    if (result.code) fail_msg("%s", result.errors);
    if (row) assert_int_equal(sscanf(row, "\n  generation %lf %7s", &size, unit), 2);
    double bytes = size * (!strcmp(unit, "MiB") ? 1 << 20 : !strcmp(unit, "KiB") ? 1 << 10 : 1);
    process_free(&result);
    return bytes;
}

static void a_plan_counts_the_memory_of_generation(void **state) {
    (void)state;
    double some = planned_generation(REVERSE "run=x plan=true"),
           longer = planned_generation(REVERSE "run=x plan=true data.length=512 model.context=512");
    assert_true(some > 0 && longer > some);
    assert_true(
        planned_generation("train run=x data.train=words.jsonl model.layers=2 model.width=64 data.length=64 steps=5 plan=true") == 0);
    smelt_says(0, "generation at least", REVERSE "run=counted steps=1");
}

/* The model has lost its weights, so loading them would be another error. */
static void a_missing_reward_is_refused_before_the_model_is_loaded(void **state) {
    (void)state;
    assert_int_equal(system("cp -r words hollow && rm -r hollow/checkpoints"), 0);
    smelt_says(ERROR_CHECKPOINT, "hollow", REVERSE "run=y init=hollow");
    smelt_says(ERROR_USAGE, "cannot read none.py", REVERSE "run=y init=hollow rl.reward=python:none.py");
    smelt_says(ERROR_USAGE, "cannot read none.py", REVERSE "run=y init=hollow rl.environment=python:none.py");
    smelt_says(ERROR_DATA, "answer", REVERSE "run=y init=hollow data.train=words.jsonl");
}

static void a_stop_does_not_wait_for_rewards(void **state) {
    (void)state;
    write_reward("slow.py", "open('asked', 'w').close(); time.sleep(300)");
    Process process = smelt_start(REVERSE "run=slow steps=2 rl.prompts=2 rl.samples=2 rl.reward=python:slow.py rl.reward_seconds=600");
    WAIT_UNTIL(file_exists("asked"), "no reward was asked for%s", "");
    kill(process.id, SIGTERM);
    double start = log_seconds();
    ProcessResult result = process_finish(&process);
    assert_true(log_seconds() - start < 120);
    process_free(&result);
}

static void rewards_that_never_vary_are_named(void **state) {
    (void)state;
    smelt_says(
        0, "all samples of each prompt had the same reward", REVERSE "run=flat steps=4 rl.reward=regex:^zzz$ rl.prompts=2 rl.samples=2");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_learns_to_reverse_words),
        cmocka_unit_test(a_model_learns_sums),
        cmocka_unit_test(a_run_continues_with_the_same_bits),
        cmocka_unit_test(updates_within_the_backward_pass_have_the_same_bits),
        cmocka_unit_test(a_killed_run_continues_with_the_same_bits),
        cmocka_unit_test(ranks_learn_what_one_process_learns),
        cmocka_unit_test(every_loss_trains),
        cmocka_unit_test(the_reference_has_the_first_weights),
        cmocka_unit_test(a_teacher_is_imitated),
        cmocka_unit_test(few_prompts_are_enough),
        cmocka_unit_test(samples_are_written),
        cmocka_unit_test(what_cannot_work_is_refused),
        cmocka_unit_test(a_validation_without_rewards_is_not_the_best),
        cmocka_unit_test(groups_are_compared_after_the_penalty_of_length),
        cmocka_unit_test(means_of_rewards_and_of_metrics_are_recorded),
        cmocka_unit_test(a_plan_counts_the_memory_of_generation),
        cmocka_unit_test(a_missing_reward_is_refused_before_the_model_is_loaded),
        cmocka_unit_test(a_stop_does_not_wait_for_rewards),
        cmocka_unit_test(rewards_that_never_vary_are_named),
    };
    train_main();
    return cmocka_run_group_tests(tests, setup_words, leave_folder);
}
