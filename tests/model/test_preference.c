/* Against TRL: its DPOTrainer trained the model of tests/golden/llama on four pairs of answers (tests/golden/preference.py). Losses
 * and rewards of ten steps with AdamW, and every gradient of the first, must be the same, whether the pairs are one microbatch or
 * several; and the reference that an evaluation computes is that of transformers. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/memory.h"
#include "optim/optim.h"
#include "support/golden_run.h"

enum { STEPS = 10, PAIRS = 4, LENGTH = 40 /* of a sequence, which holds one pair */ };

/* The model with pairs [first, first + count) of the golden set, a sequence for each. */
static void open_program(Golden *g, PreferenceLoss loss, ModelMode mode, int64_t count) {
    Error error = {0};
    *g = (Golden){.folder = memory_copy_string("tests/golden/llama")};
    assert_true(source_read_config(g->folder, &g->config, &g->strings, &error));
    assert_true(safetensors_open(&g->expected, "tests/golden/preference/expected.safetensors", &error));
    g->config.model.preference = (PreferenceConfig){loss, 0.1, 0};
    g->program = check_program(model_build(&g->config.model, PRECISION_FP32, mode, count, LENGTH, RECOMPUTE_NONE), device_cpu());
    if (!weights_load_program(g->folder, &g->config, g->program.executor, &error)) fail_msg("%s", error.message);
    executor_set_scalar(g->program.executor, g->program.model.scale, 1.0 / PAIRS);
    executor_set_scalar(g->program.executor, g->program.model.share, 1);
}

static int32_t integer_at(const Golden *g, const char *name, int64_t index) {
    int32_t value;
    memcpy(&value, (const char *)golden_expect(g, name)->data + index * (int64_t)sizeof value, sizeof value);
    return value;
}

/* Puts an answer into rows from `row` on; returns the row behind it. */
static int32_t put_answer(const Golden *g, int64_t answer, int32_t row) {
    int32_t *tokens = executor_tensor(g->program.executor, g->program.model.tokens),
            *targets = executor_tensor(g->program.executor, g->program.model.targets);
    int32_t *positions = executor_tensor(g->program.executor, g->program.model.positions);
    int64_t width = golden_expect(g, "answers")->shape[1], prompt = integer_at(g, "prompts", answer / 2);
    for (int64_t i = 0; i < width && integer_at(g, "answers", answer * width + i) >= 0; i++, row++) {
        int32_t next = i + 1 < width ? integer_at(g, "answers", answer * width + i + 1) : -1;
        tokens[row] = integer_at(g, "answers", answer * width + i);
        targets[row] = i + 1 >= prompt ? next : -1;
        positions[row] = (int32_t)i;
    }
    return row;
}

static void put_pairs(const Golden *g, int64_t first, int64_t count) {
    int32_t *pairs = executor_tensor(g->program.executor, g->program.model.preference.pairs);
    float *reference = executor_tensor(g->program.executor, g->program.model.preference.reference);
    int64_t rows = count * LENGTH;
    memset(executor_tensor(g->program.executor, g->program.model.tokens), 0, (size_t)rows * sizeof(int32_t));
    memset(executor_tensor(g->program.executor, g->program.model.targets), -1, (size_t)rows * sizeof(int32_t));
    memset(executor_tensor(g->program.executor, g->program.model.positions), 0, (size_t)rows * sizeof(int32_t));
    memset(pairs, 0, (size_t)(preference_most_pairs(rows) * PAIR_BOUNDS) * sizeof *pairs);
    for (int64_t p = 0; p < count; p++) {
        int32_t begin = (int32_t)(p * LENGTH), middle = put_answer(g, 2 * (first + p), begin),
                end = put_answer(g, 2 * (first + p) + 1, middle);
        assert_true(end <= begin + LENGTH);
        memcpy(pairs + p * PAIR_BOUNDS, (int32_t[]){begin, middle, end}, PAIR_BOUNDS * sizeof *pairs);
        for (int i = 0; i < 2; i++) reference[2 * p + i] = golden_value(golden_expect(g, "reference"), 2 * (first + p) + i);
    }
}

/* Of sums of up to eleven log-probabilities near 4 in fp32. */
static void the_reference_is_that_of_transformers(void **state) {
    (void)state;
    Golden g;
    open_program(&g, PREFERENCE_DPO, MODEL_EVALUATE, PAIRS);
    put_pairs(&g, 0, PAIRS);
    golden_run(&g);
    const float *answers = executor_tensor(g.program.executor, g.program.model.answers);
    for (int i = 0; i < 2 * PAIRS; i++) assert_float_equal(answers[i], golden_value(golden_expect(&g, "reference"), i), 1e-5);
    golden_stop(&g);
}

/* As in test_golden.c: sums in other orders differ by about 1e-6 of a tensor's norm. */
static void check_relative_error(const Golden *g, const char *name, const GoldenComparison *sums) {
    if (!(sums->difference <= 1e-5 * 1e-5 * sums->theirs))
        fail_msg(
            "%s: gradient of %s differs by %g of its norm %g", g->folder, name, sqrt(sums->difference / sums->theirs), sqrt(sums->theirs));
}

/* Loss, gradients and rewards of all pairs, in so many microbatches. */
static void run_step(const Golden *g, int64_t microbatches) {
    executor_zero(g->program.executor);
    for (int64_t i = 0; i < microbatches; i++) {
        put_pairs(g, i * PAIRS / microbatches, PAIRS / microbatches);
        executor_run(g->program.executor);
    }
}

static void compare(const Golden *g, const char *loss, const char *what, int step, double ours, double most) {
    char name[32];
    snprintf(name, sizeof name, "%s/%s", loss, what);
    double theirs = golden_value(golden_expect(g, name), step - 1);
    if (!(fabs(ours - theirs) <= most)) fail_msg("%s before step %d is %.7f, and TRL has %.7f", name, step, ours, theirs);
}

/* Rewards below 3 agree to 1e-5, as losses below 1 do; IPO's begin at 25, where fp32 keeps 2e-6. */
static void check_training(PreferenceLoss loss, const char *name, int64_t microbatches) {
    Golden g;
    Error error = {0};
    open_program(&g, loss, MODEL_TRAIN, PAIRS / microbatches);
    OptimizerConfig config = g.config.optimizer;
    config.name = OPTIMIZER_adamw;
    Optimizer *optimizer = optimizer_create(g.program.model.graph, &config, NULL, device_cpu(), &error);
    assert_non_null(optimizer);
    for (int step = 1; step <= STEPS; step++) {
        run_step(&g, microbatches);
        double found = executor_get_metric(g.program.executor, g.program.model.loss, 0);
        compare(&g, name, "losses", step, found, 1e-5 * fmax(1, found));
        compare(&g, name, "chosen", step, executor_get_metric(g.program.executor, g.program.model.rewards, REWARD_CHOSEN) / PAIRS, 1e-5);
        compare(
            &g, name, "rejected", step, executor_get_metric(g.program.executor, g.program.model.rewards, REWARD_REJECTED) / PAIRS, 1e-5);
        if (step > 1) /* where rewards are rounding errors before it */
            compare(&g, name, "accuracies", step, executor_get_metric(g.program.executor, g.program.model.rewards, REWARD_WINS) / PAIRS, 0);
        if (step == 1 && loss == PREFERENCE_DPO) golden_each_gradient(&g, "gradient/", check_relative_error);
        optimizer_step(
            optimizer, &(Update){executor_arena(g.program.executor, ARENA_MASTER), executor_arena(g.program.executor, ARENA_WEIGHT),
                           executor_arena(g.program.executor, ARENA_GRADIENT), step, 0.003, 1});
    }
    optimizer_free(optimizer);
    golden_stop(&g);
}

static void ten_steps_of_dpo_are_those_of_trl(void **state) {
    (void)state;
    check_training(PREFERENCE_DPO, "dpo", 1);
}

static void ten_steps_of_ipo_are_those_of_trl(void **state) {
    (void)state;
    check_training(PREFERENCE_IPO, "ipo", 1);
}

static void pairs_in_several_microbatches_are_one_batch(void **state) {
    (void)state;
    check_training(PREFERENCE_DPO, "dpo", 2);
    check_training(PREFERENCE_DPO, "dpo", 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_reference_is_that_of_transformers),
        cmocka_unit_test(ten_steps_of_dpo_are_those_of_trl),
        cmocka_unit_test(ten_steps_of_ipo_are_those_of_trl),
        cmocka_unit_test(pairs_in_several_microbatches_are_one_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
