/* Tests of the losses of reinforcement learning: gradients against finite differences, every precision and instruction set or
 * the GPU against fp64; the loss of one token and the sums against their definitions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "ops/linear/linear.h"
#include "ops/policy/policy.h"
#include "support/check.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct Case {
    int64_t rows, columns, vocabulary;
    PolicyConfig config;
    const int32_t *sequences; /* [policy_most_sequences(rows), SEQUENCE_BOUNDS] */
} Case;

/* Sequences of two rows and of many, and rows of none between and behind them. */
static const int32_t few[6 * SEQUENCE_BOUNDS] = {0, 4, 4, 7, 8, 10};
static const int32_t many[320 * SEQUENCE_BOUNDS] = {0, 300, 300, 620, 620, 622, 625, 637};
enum { MOST_ROWS = 640 };

static int32_t *make_targets(const Case *c) {
    static int32_t targets[MOST_ROWS];
    for (int64_t r = 0; r < c->rows; r++) targets[r] = r % 3 == 1 || r + 1 == c->rows ? -1 : (int32_t)(r * 7 % c->vocabulary);
    return targets;
}

static void build_policy(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t sequences = policy_most_sequences(c->rows), sums = POLICY_SUMS;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->vocabulary, c->columns}, 0, 0.2);
    PolicyTensors tensors = {.targets = check_integers(check, 1, &c->rows, make_targets(c)),
        .sequences = check_integers(check, 2, (int64_t[]){sequences, SEQUENCE_BOUNDS}, c->sequences),
        .terms = check_fixed(check, TYPE_WIDE, 2, (int64_t[]){c->rows, POLICY_TERMS}, -1.5, 0.7),
        .loss = check_loss(check, 2),
        .sums = graph_tensor(check->graph, ARENA_METRIC, TYPE_WIDE, 1, &sums, "sums")};
    if (c->config.values) {
        TensorId head = check_parameter(check, PARAMETER_VALUE_HEAD, 2, (int64_t[]){1, c->columns}, 0, 0.2);
        tensors.values = op_linear(check->graph, x, head, TENSOR_NONE, true);
    }
    op_policy(check->graph, x, w, &tensors, &c->config, c->vocabulary);
}

static PolicyConfig policy(const char *name) {
    for (int i = 0; i < POLICY_LOSSES; i++)
        if (!strcmp(policy_rules[i].name, name)) return (PolicyConfig){.loss = i + 1, .low = -1, .high = -1};
    fail_msg("no loss %s", name);
    return (PolicyConfig){0};
}

/* Bounds are wide, so that values at a bound are unlikely in any precision. */
static void policy_passes(void **state) {
    (void)state;
    for (int i = 0; i < POLICY_LOSSES; i++) {
        PolicyConfig config = policy(policy_rules[i].name);
        config.low = 0.5, config.high = 1.5;
        if (i % 2) config.kl = 0.3;
        if (i % 3 == 1) config.entropy = 0.1;
        if (i == 2) config.dual = 4;
        config.penalty = 0.05;
        config.values = policy_has_values(&config), config.value_clip = 0.4, config.value_coefficient = 0.8;
        const Case cases[] = {{13, 18, 5, config, few}, {13, 64, 37, config, few}, {MOST_ROWS, 4, 7, config, many}};
        /* The gradient of the entropy, and of a capped ratio, is by design not that of the loss's value. */
        bool forward_only = config.entropy > 0 || policy_rules[i].objective == POLICY_CAP;
        size_t count = policy_rules[i].ratio == RATIO_OF_SUM || i == 0 ? COUNT(cases) : COUNT(cases) - 1; /* the last one takes seconds */
        for (size_t c = 0; c < count; c++) check_op(build_policy, &cases[c], (CheckBounds){.forward_only = forward_only});
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policy_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
