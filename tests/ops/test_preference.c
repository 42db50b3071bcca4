/* Tests of the losses over pairs of answers: gradients against finite differences, every precision and instruction set or the
 * GPU against fp64, and loss, rewards and log-probabilities against their definitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "ops/preference/preference.h"
#include "support/check.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct Case {
    int64_t rows, columns, vocabulary;
    PreferenceConfig config;
    const int32_t *pairs; /* [preference_most_pairs(rows), PAIR_BOUNDS] */
} Case;

/* Answers that are alone, of one trained token and of many, and rows of none between and behind them. */
static const int32_t few[3 * PAIR_BOUNDS] = {0, 4, 7, 8, 10, 12};
static const int32_t many[160 * PAIR_BOUNDS] = {0, 300, 620, 620, 622, 625, 625, 631, 637};
enum { MOST_ROWS = 640 };

/* The first token of an answer and some behind it are of a prompt, which is no target; the last row of all has none. */
static int32_t *make_targets(const Case *c) {
    static int32_t targets[MOST_ROWS];
    for (int64_t r = 0; r < c->rows; r++) targets[r] = r % 3 == 1 || r + 1 == c->rows ? -1 : (int32_t)(r * 7 % c->vocabulary);
    return targets;
}

static void build_preference(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t pairs = preference_most_pairs(c->rows), sums = REWARD_COUNT;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->vocabulary, c->columns}, 0, 0.5);
    PreferenceInputs inputs = {.targets = check_integers(check, 1, &c->rows, make_targets(c)),
        .pairs = check_integers(check, 2, (int64_t[]){pairs, PAIR_BOUNDS}, c->pairs),
        .reference = check_fixed(check, TYPE_WIDE, 2, (int64_t[]){pairs, 2}, -10, 5),
        .scale = check_scalar(check, 0.5)};
    TensorId rewards = graph_tensor(check->graph, ARENA_METRIC, TYPE_WIDE, 1, &sums, "rewards");
    op_preference(check->graph, x, w, &inputs, &c->config, check_loss(check, 2), rewards, c->vocabulary);
}

/* Log-probabilities of hundreds of tokens make the margin of the largest case, whose loss is nearly linear there; a factor of
 * every gradient depends on it, so bf16 is off by more than in one row. */
static void preference_passes(void **state) {
    (void)state;
    static const Case cases[] = {{13, 18, 5, {PREFERENCE_DPO, 0.1, 0}, few}, {13, 64, 37, {PREFERENCE_DPO, 0.5, 0.2}, few},
        {13, 18, 37, {PREFERENCE_IPO, 0.2, 0}, few}, {MOST_ROWS, 16, 40, {PREFERENCE_DPO, 0.01, 0.1}, many},
        {MOST_ROWS, 16, 40, {PREFERENCE_IPO, 1, 0}, many}};
    for (size_t i = 0; i < COUNT(cases); i++) check_op(build_preference, &cases[i], (CheckBounds){0});
}

/* -- By definition ------------------------------------------------------------------------------------------------- */

enum { ROWS = 13, COLUMNS = 6, VOCABULARY = 5, MOST = 3 };

static double value_at(int64_t i) { return sin(1.7 * (double)i + 0.3); }

/* The sum over an answer's tokens, and how many there are. */
static double log_probability(const int32_t *targets, int first, int end, int *tokens) {
    double sum = 0;
    *tokens = 0;
    for (int r = first; r < end; r++) {
        double logits[VOCABULARY] = {0}, all = 0;
        if (targets[r] < 0) continue;
        for (int v = 0; v < VOCABULARY; v++)
            for (int i = 0; i < COLUMNS; i++) logits[v] += value_at(r * COLUMNS + i) * value_at(1000 + v * COLUMNS + i);
        for (int v = 0; v < VOCABULARY; v++) all += exp(logits[v]);
        sum += logits[targets[r]] - log(all);
        ++*tokens;
    }
    return sum;
}

static void check_definition(PreferenceConfig config) {
    Graph *graph = graph_create(PRECISION_FP64, false);
    const Case c = {ROWS, COLUMNS, VOCABULARY, config, few};
    int64_t rows = ROWS, sums = REWARD_COUNT, one = 1;
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){ROWS, COLUMNS}, "x");
    TensorId w = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){VOCABULARY, COLUMNS}, "w");
    PreferenceInputs inputs = {.targets = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "targets"),
        .pairs = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 2, (int64_t[]){MOST, PAIR_BOUNDS}, "pairs"),
        .reference = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){MOST, 2}, "reference"),
        .scale = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "scale")};
    TensorId loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &one, "loss");
    TensorId rewards = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &sums, "rewards");
    TensorId answers = op_preference(graph, x, w, &inputs, &config, loss, rewards, VOCABULARY);
    Program program = check_program((Model){.graph = graph}, device_cpu());
    Executor *executor = program.executor;
    double *x_values = executor_tensor(executor, x), *w_values = executor_tensor(executor, w);
    double *reference = executor_tensor(executor, inputs.reference);
    for (int i = 0; i < ROWS * COLUMNS; i++) x_values[i] = value_at(i);
    for (int i = 0; i < VOCABULARY * COLUMNS; i++) w_values[i] = value_at(1000 + i);
    for (int i = 0; i < 2 * MOST; i++) reference[i] = -2 - i;
    const int32_t *targets = memcpy(executor_tensor(executor, inputs.targets), make_targets(&c), ROWS * sizeof(int32_t));
    memcpy(executor_tensor(executor, inputs.pairs), few, sizeof few);
    executor_set_scalar(executor, inputs.scale, 10);
    executor_zero(executor);
    executor_run(executor);
    double expected = 0, chosen_sum = 0, rejected_sum = 0, wins = 0;
    for (int p = 0; p < 2; p++) {
        const int32_t *pair = few + p * PAIR_BOUNDS;
        int chosen_tokens, rejected_tokens;
        double chosen = log_probability(targets, pair[0], pair[1], &chosen_tokens);
        double rejected = log_probability(targets, pair[1], pair[2], &rejected_tokens);
        double gain = chosen - reference[2 * p], other = rejected - reference[2 * p + 1], margin = config.beta * (gain - other);
        double distance = gain / chosen_tokens - other / rejected_tokens - 1 / (2 * config.beta);
        expected += config.loss == PREFERENCE_IPO
                        ? distance * distance
                        : (1 - config.label_smoothing) * log(1 + exp(-margin)) + config.label_smoothing * log(1 + exp(margin));
        chosen_sum += config.beta * gain;
        rejected_sum += config.beta * other;
        wins += gain > other;
        const double *found = (const double *)executor_tensor(executor, answers) + 2 * p;
        assert_true(fabs(found[0] - chosen) < 1e-12 && fabs(found[1] - rejected) < 1e-12); /* fp64 in another order */
    }
    assert_true(fabs(executor_get_metric(executor, loss, 0) - 10 * expected) < 1e-10);
    assert_true(fabs(executor_get_metric(executor, rewards, REWARD_CHOSEN) - chosen_sum) < 1e-12);
    assert_true(fabs(executor_get_metric(executor, rewards, REWARD_REJECTED) - rejected_sum) < 1e-12);
    assert_true(executor_get_metric(executor, rewards, REWARD_WINS) == wins);
    program_free(&program);
}

static void losses_are_those_of_their_definitions(void **state) {
    (void)state;
    if (check_device()) skip();
    check_definition((PreferenceConfig){PREFERENCE_DPO, 0.3, 0});
    check_definition((PreferenceConfig){PREFERENCE_DPO, 0.3, 0.25});
    check_definition((PreferenceConfig){PREFERENCE_IPO, 0.3, 0});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preference_passes),
        cmocka_unit_test(losses_are_those_of_their_definitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
