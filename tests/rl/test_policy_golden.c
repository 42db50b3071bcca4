/* Against PyTorch: what losses of reinforcement learning written from their papers (tests/golden/policy.py) make of fixed samples of
 * a small Llama, in fp64: advantages, ten updates by AdamW with their losses and metrics, the first gradient and the last weights;
 * and the gradient of logits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/element.h"
#include "optim/optim.h"
#include "rl/rollout_advantages_internal.h"
#include "rl/samples.h"
#include "support/golden_run.h"

enum { STEPS = 10, SAMPLES = 12, GROUP = 4, LIMIT = 9, LENGTH = 16 };

typedef struct Case {
    PolicyConfig config; /* without the loss */
    const char *loss;
    bool leaves_out_cut;
    double divergence; /* that rewards lose per token, as with rl.kl=reward */
} Case;

/* CASES of policy.py. */
static const Case cases[] = {
    {{.low = 0.2, .high = 0.2, .kl = 0.1}, "grpo", false},
    {{.low = 0.2, .high = 0.2, .entropy = 0.02}, "dr_grpo", false},
    {{.low = -1, .high = -1, .dual = 1.4}, "dapo", true},
    {{.low = 0.02, .high = 0.03, .kl = 0.05}, "gspo", false},
    {{.low = -1, .high = 1.2}, "cispo", true},
    {{.low = -1, .high = -1, .entropy = 0.01}, "rloo", false},
    {{.low = 0.1, .high = 0.3, .kl = 0.2}, "reinforce_pp", false},
    {{.low = -1, .high = -1}, "maxrl", false},
    {{.low = 0.02, .high = 0.03, .penalty = 0.05}, "dppo", false},
    {{.low = -1, .high = -1}, "distill", false},
    {{.low = 0.1, .high = 0.2, .values = true, .value_clip = 0.1, .value_coefficient = 0.3}, "ppo", true, 0.05},
};

static PolicyConfig policy_of(const Case *c) {
    PolicyConfig config = c->config;
    for (int i = 0; i < POLICY_LOSSES; i++)
        if (!strcmp(policy_rules[i].name, c->loss)) config.loss = i + 1;
    assert_true(config.loss > 0);
    return config;
}

/* -- Expected numbers ---------------------------------------------------------------------------------------------- */

static double number_at(const StoredTensor *tensor, int64_t index) {
    size_t bytes = tensor->type == STORED_F64 ? sizeof(double) : sizeof(float);
    double value = 0;
    memcpy(&value, (const char *)tensor->data + index * (int64_t)bytes, bytes);
    return element_get(bytes, &value, 0);
}

static int32_t integer_at(const StoredTensor *tensor, int64_t index) {
    int32_t value;
    memcpy(&value, (const char *)tensor->data + index * (int64_t)sizeof value, sizeof value);
    return value;
}

static const StoredTensor *expect_of(const Golden *g, const Case *c, const char *what) {
    char name[64];
    snprintf(name, sizeof name, "%s/%s", c->loss, what);
    return golden_expect(g, name);
}

static void compare(const Golden *g, const Case *c, const char *what, int64_t index, double ours, double most) {
    double theirs = number_at(expect_of(g, c, what), index);
    if (!(fabs(ours - theirs) <= most)) fail_msg("%s/%s[%d] is %.15g, and PyTorch has %.15g", c->loss, what, (int)index, ours, theirs);
}

/* All parameters in an arena, against numbers that are stored in fp32. */
static void compare_parameters(const Golden *g, const Case *c, const char *what, Arena arena) {
    const Graph *graph = g->program.model.graph;
    const StoredTensor *expected = expect_of(g, c, what);
    int64_t all = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        SCOPED_FREE double *ours = memory_allocate((size_t)p->count * sizeof *ours);
        SCOPED_FREE char *name = memory_format("offset/%s", p->name);
        int64_t offset = integer_at(golden_expect(g, name), 0);
        hf_reorder(p, parameter_in(p, executor_arena(g->program.executor, arena)), (char *)ours, sizeof *ours);
        for (int64_t e = 0; e < p->count; e++) {
            double theirs = number_at(expected, offset + e);
            if (!(fabs(ours[e] - theirs) <= 1e-7 * fmax(fabs(theirs), 0.01)))
                fail_msg("%s/%s: %s[%d] is %.9g, and PyTorch has %.9g", c->loss, what, p->name, (int)e, ours[e], theirs);
        }
        all += p->count;
    }
    assert_int_equal(all, expected->shape[0]);
}

/* -- Samples ------------------------------------------------------------------------------------------------------- */

static double *copy_row(const Golden *g, const char *name, int64_t row, int64_t count) {
    double *values = memory_allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = number_at(golden_expect(g, name), row * LIMIT + i);
    return values;
}

/* Reads samples and their prompts, one for each sample. */
static void read_samples(const Golden *g, Prompt *prompts, RolloutSample *samples) {
    const StoredTensor *tokens = golden_expect(g, "tokens"), *spans = golden_expect(g, "spans");
    assert_int_equal(tokens->shape[0], SAMPLES);
    for (int64_t i = 0; i < SAMPLES; i++) {
        int32_t before = integer_at(spans, 2 * i), count = integer_at(spans, 2 * i + 1);
        prompts[i] = (Prompt){0};
        samples[i] = (RolloutSample){.prompt = i,
            .old = copy_row(g, "old", i, count),
            .reference = copy_row(g, "reference", i, count),
            .reward = number_at(golden_expect(g, "rewards"), i),
            .cut = integer_at(golden_expect(g, "cut"), i) != 0};
        for (int32_t t = 0; t < before + count; t++)
            token_ids_append(t < before ? &prompts[i].tokens : &samples[i].ids, integer_at(tokens, i * LENGTH + t));
    }
}

/* The advantages of samples, or of tokens and their returns. `compares`: with those of PyTorch; equal rewards have an advantage of
 * exactly 0, because the optimizer would enlarge what rounding leaves. */
static void set_advantages(const Golden *g, const Case *c, RolloutSample *samples, bool compares) {
    Error error = {0};
    Config config = g->config;
    config.model.policy = policy_of(c);
    config.model.policy.kl = fmax(c->config.kl, c->divergence);
    config.rl = (RlConfig){.samples = GROUP,
        .tokens = LIMIT,
        .kl = c->divergence > 0 ? RL_KL_REWARD : RL_KL_LOSS,
        .gamma = 0.97,
        .lambda = 0.9,
        .whiten = true,
        .mask_truncated = c->leaves_out_cut};
    Rollout rollout = {.samples = samples, .count = SAMPLES, .groups = SAMPLES / GROUP};
    if (!rollout_set_advantages(&(RolloutOptions){.config = &config}, &rollout, &error)) fail_msg("%s", error.message);
    for (int i = 0; i < SAMPLES && compares; i++) {
        if (!samples[i].returns) compare(g, c, "advantages", i, samples[i].advantage, 1e-14 * fabs(samples[i].advantage));
        for (size_t t = 0; samples[i].returns && t < samples[i].ids.count; t++) {
            compare(g, c, "advantages", i * LIMIT + (int64_t)t, samples[i].advantages[t], 1e-14);
            compare(g, c, "returns", i * LIMIT + (int64_t)t, samples[i].returns[t], 1e-14);
        }
    }
}

/* -- Training ------------------------------------------------------------------------------------------------------ */

/* The folder has no value head. */
static void load_weights(const Golden *g) {
    Error error = {0};
    Executor *executor = g->program.executor;
    SCOPED(model_free) Model plain = model_describe(&g->config.model, NULL, PRECISION_FP64);
    SCOPED_FREE char *master = memory_allocate((size_t)plain.graph->parameter_bytes);
    if (!weights_load(g->folder, &g->config, plain.graph, master, NULL, &error)) fail_msg("%s", error.message);
    memcpy(executor_arena(executor, ARENA_MASTER), master, (size_t)plain.graph->parameter_bytes);
    int head = graph_find_parameter(g->program.model.graph, "value_head.weight");
    assert_int_equal(head >= 0, g->config.model.policy.values);
    for (int64_t i = 0; head >= 0 && i < g->config.model.width; i++)
        ((double *)parameter_in(&g->program.model.graph->parameters[head], executor_arena(executor, ARENA_MASTER)))[i] =
            number_at(golden_expect(g, "ppo/value_head"), i);
}

static void open_program(Golden *g, const Case *c, int64_t sequences) {
    Error error = {0};
    *g = (Golden){.folder = memory_copy_string("tests/golden/policy")};
    assert_true(source_read_config(g->folder, &g->config, &g->strings, &error));
    assert_true(safetensors_open(&g->expected, "tests/golden/policy/expected.safetensors", &error));
    g->config.model.policy = policy_of(c);
    g->program = check_program(model_build(&g->config.model, PRECISION_FP64, MODEL_TRAIN, sequences, LENGTH, RECOMPUTE_NONE), device_cpu());
    load_weights(g);
}

/* `turns`: an environment has appended tokens, in the places of policy.py. */
static void make_batch(const Golden *g, const Case *c, bool turns, SampleBatch *batch) {
    Prompt prompts[SAMPLES];
    RolloutSample samples[SAMPLES];
    const PolicyRule *rule = policy_rule(&g->config.model.policy);
    const SampleTerms terms = {.mean = rule->mean, .limit = LIMIT, .leave_out_cut = c->leaves_out_cut};
    read_samples(g, prompts, samples);
    for (int64_t i = 0; i < SAMPLES && g->config.model.policy.values; i++)
        samples[i].estimates = copy_row(g, "ppo/old_values", i, (int64_t)samples[i].ids.count);
    for (int i = 0; i < SAMPLES && turns; i++)
        for (size_t t = 1; t + 1 < samples[i].ids.count; t += 3) samples[i].old[t] = NAN, samples[i].reference[t] = 0;
    set_advantages(g, c, samples, !turns);
    sample_batch_make(batch, &g->program, &(PromptSet){.items = prompts, .count = SAMPLES}, samples, SAMPLES, &terms);
    for (int i = 0; i < SAMPLES; i++) {
        token_ids_free(&prompts[i].tokens);
        rollout_sample_free(&samples[i]);
    }
}

static void run_batch(const Golden *g, const SampleBatch *batch) {
    executor_zero(g->program.executor);
    for (int64_t m = 0; m < batch->microbatches; m++) {
        sample_batch_load(batch, g->program.executor, m);
        executor_run(g->program.executor);
    }
}

/* Losses below 1 and metrics below 200, in fp64 and another order: the largest differences are 4e-16 and 6e-14. */
static void check_training(const Case *c, int64_t sequences) {
    Golden g;
    Error error = {0};
    SCOPED(sample_batch_free) SampleBatch batch = {0};
    open_program(&g, c, sequences);
    make_batch(&g, c, false, &batch);
    OptimizerConfig config = g.config.optimizer;
    config.name = OPTIMIZER_adamw;
    config.lr = 0.003, config.value_lr = 0.01;
    Optimizer *optimizer = optimizer_create(g.program.model.graph, &config, NULL, device_cpu(), &error);
    assert_non_null(optimizer);
    Executor *executor = g.program.executor;
    for (int step = 1; step <= STEPS; step++) {
        run_batch(&g, &batch);
        compare(&g, c, "losses", step - 1, executor_get_metric(executor, g.program.model.loss, 0), 1e-13);
        for (int i = 0; i < POLICY_SUMS; i++)
            compare(&g, c, "metrics", (step - 1) * POLICY_SUMS + i, executor_get_metric(executor, g.program.model.policy.sums, i), 1e-11);
        if (step == 1) compare_parameters(&g, c, "gradient", ARENA_GRADIENT);
        optimizer_step(optimizer, &(Update){executor_arena(executor, ARENA_MASTER), executor_arena(executor, ARENA_WEIGHT),
                                      executor_arena(executor, ARENA_GRADIENT), step, config.lr, 1});
    }
    compare_parameters(&g, c, "weights", ARENA_MASTER);
    optimizer_free(optimizer);
    golden_stop(&g);
}

static double squares_of_gradient(const Golden *g) {
    const Graph *graph = g->program.model.graph;
    double sum = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const double *values = parameter_in(&graph->parameters[i], executor_arena(g->program.executor, ARENA_GRADIENT));
        for (int64_t e = 0; e < graph->parameters[i].count; e++) sum += values[e] * values[e];
    }
    return sum;
}

static void appended_tokens_are_not_trained(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Golden g;
        SCOPED(sample_batch_free) SampleBatch batch = {0};
        open_program(&g, &cases[i], 2);
        make_batch(&g, &cases[i], true, &batch);
        run_batch(&g, &batch);
        const Executor *executor = g.program.executor;
        compare(&g, &cases[i], "turns/loss", 0, executor_get_metric(executor, g.program.model.loss, 0), 1e-13);
        for (int s = 0; s < POLICY_SUMS; s++)
            compare(&g, &cases[i], "turns/metrics", s, executor_get_metric(executor, g.program.model.policy.sums, s), 1e-11);
        compare(&g, &cases[i], "turns/gradient", 0, squares_of_gradient(&g), 1e-11);
        assert_true((double)batch.trained == number_at(expect_of(&g, &cases[i], "turns/metrics"), POLICY_TOKENS));
        golden_stop(&g);
    }
}

/* In one microbatch, and in several that each hold another part of the samples. */
static void ten_updates_are_those_of_pytorch(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        check_training(&cases[i], SAMPLES);
        check_training(&cases[i], 2);
    }
}

/* -- Logits -------------------------------------------------------------------------------------------------------- */

/* The head of a unit matrix [rows, rows] has its weights, transposed, as logits. */
static void check_logits(const Golden *g, const Case *c) {
    PolicyConfig config = policy_of(c);
    config.dual = 1.5, config.kl = 0.3, config.entropy = 0.1, config.penalty = 0.2;
    const StoredTensor *logits = golden_expect(g, "logits/logits"), *bounds = golden_expect(g, "logits/bounds");
    int64_t rows = logits->shape[0], words = logits->shape[1], sums = POLICY_SUMS, one = 1, most = policy_most_sequences(rows);
    Graph *graph = graph_create(PRECISION_FP64, true);
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){rows, rows}, "x");
    TensorId w = graph_parameter(graph, "w", PARAMETER_EMBEDDING, 2, (int64_t[]){words, rows}, 0, 1, false);
    PolicyTensors tensors = {.targets = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "targets"),
        .sequences = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 2, (int64_t[]){most, SEQUENCE_BOUNDS}, "sequences"),
        .terms = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){rows, POLICY_TERMS}, "terms"),
        .loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &one, "loss"),
        .sums = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &sums, "sums")};
    if (config.values) tensors.values = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){rows, 1}, "values");
    op_policy(graph, x, w, &tensors, &config, words);
    graph_differentiate(graph, RECOMPUTE_NONE, NULL, 0);
    TensorId d_values = tensors.values ? graph->tensors[tensors.values].gradient : TENSOR_NONE;
    graph->tensors[d_values].keep = d_values != TENSOR_NONE;
    Program program = check_program((Model){.graph = graph}, device_cpu());
    Executor *executor = program.executor;
    double *x_values = executor_tensor(executor, x), *w_values = executor_tensor(executor, w);
    for (int64_t i = 0; i < rows * rows; i++) x_values[i] = i / rows == i % rows;
    for (int64_t i = 0; i < rows * words; i++) w_values[i % words * rows + i / words] = number_at(logits, i);
    memcpy(executor_tensor(executor, tensors.targets), golden_expect(g, "logits/targets")->data, (size_t)rows * sizeof(int32_t));
    memcpy(
        executor_tensor(executor, tensors.terms), golden_expect(g, "logits/terms")->data, (size_t)(rows * POLICY_TERMS) * sizeof(double));
    if (d_values) memcpy(executor_tensor(executor, tensors.values), golden_expect(g, "logits/values")->data, (size_t)rows * sizeof(double));
    int32_t *sequences = memset(executor_tensor(executor, tensors.sequences), 0, (size_t)(most * SEQUENCE_BOUNDS) * sizeof *sequences);
    memcpy(sequences, bounds->data, (size_t)(bounds->shape[0] * SEQUENCE_BOUNDS) * sizeof *sequences);
    executor_zero(executor);
    executor_run(executor);
    const double *gradient = parameter_in(&graph->parameters[0], executor_arena(executor, ARENA_GRADIENT));
    compare(g, c, "logits/loss", 0, executor_get_metric(executor, tensors.loss, 0), 1e-13);
    for (int i = 0; i < POLICY_SUMS; i++) compare(g, c, "logits/metrics", i, executor_get_metric(executor, tensors.sums, i), 1e-13);
    for (int64_t i = 0; i < rows * words; i++) compare(g, c, "logits/gradient", i, gradient[i % words * rows + i / words], 1e-13);
    const double *of_values = d_values ? executor_tensor(executor, d_values) : NULL;
    for (int64_t r = 0; r < rows && of_values; r++) compare(g, c, "logits/values_gradient", r, of_values[r], 1e-13);
    program_free(&program);
}

static void gradients_of_logits_are_those_of_pytorch(void **state) {
    (void)state;
    Golden g;
    open_program(&g, &cases[0], 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_logits(&g, &cases[i]);
    golden_stop(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ten_updates_are_those_of_pytorch),
        cmocka_unit_test(appended_tokens_are_not_trained),
        cmocka_unit_test(gradients_of_logits_are_those_of_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
