/* The routing of `smelt bench train`: the choices that it makes, the trace that a training run records, and that the experts use
 * the given choices. */
#include "backend/backend.h"
#include "bench/routing_internal.h"
#include "program/program.h"
#include "support/ranks_run.h"

#define EXPERTS_MODEL \
    "model: {family: llama, width: 16, layers: 3, heads: 2, kv_heads: 1, vocabulary: 32, experts: 6, experts_per_token: 2, " \
    "renormalise: true, ffn: 16}\nprecision: fp32\ndata: {length: 32}\nbatch: {sequences: 2, tokens: 64}\noptimizer: {balance_lr: 0}\n"

static const ModelConfig *experts_model(Config *config) {
    OptionStrings strings = {0};
    Error error = {0};
    FILE *file = fopen("experts.yaml", "w");
    fputs(EXPERTS_MODEL, file);
    fclose(file);
    options_defaults(&config_table, config, &strings);
    assert_true(options_read_yaml(&config_table, config, &strings, "experts.yaml", &error) && config_check(config, &error));
    options_free_strings(&strings);
    return &config->model;
}

/* A started training program of 64 rows whose routing is given. */
static void start(Program *program, Config *config) {
    Error error = {0};
    experts_model(config);
    config->model.given_routing = true;
    program->model = model_build(&config->model, PRECISION_FP32, MODEL_TRAIN, 2, 32, RECOMPUTE_BLOCK);
    Device *device = device_open(DEVICE_CPU, 0, &error);
    assert_true(device && program_plan(program, device, &error) && program_start(program, NULL, &error));
}

static int32_t *choices_of(const Program *program, int layer) { return executor_tensor(program->executor, program->model.routing[layer]); }

/* 64 rows choose 2 of 6 experts in each of 3 layers. Fills the routing, checks that the choices of a row differ and that layers
 * differ, and returns the counts of the experts. */
typedef struct ExpertCounts { int of[3][6]; } ExpertCounts;
static ExpertCounts fill_and_count(BenchRouting routing) {
    Config config;
    Program program = {0};
    ExpertCounts counts = {0};
    start(&program, &config);
    bench_fill_routing(&program.model, &config.model, program.executor, routing, NULL);
    for (int layer = 0; layer < 3; layer++)
        for (int r = 0; r < 64; r++) {
            const int32_t *row = choices_of(&program, layer) + 2 * r;
            assert_int_not_equal(row[0], row[1]);
            counts.of[layer][row[0]]++, counts.of[layer][row[1]]++;
        }
    assert_memory_not_equal(choices_of(&program, 0), choices_of(&program, 1), 128 * sizeof(int32_t));
    program_free(&program);
    return counts;
}

/* 128 choices of 6 experts: 21 or 22 of each. */
static void balanced_choices_are_as_even_as_can_be(void **state) {
    (void)state;
    const ExpertCounts counts = fill_and_count(BENCH_ROUTING_BALANCED);
    for (int layer = 0; layer < 3; layer++)
        for (int e = 0; e < 6; e++) assert_in_range(counts.of[layer][e], 21, 22);
}

/* The counts of the seed are fixed: 64 expected over the layers, deviation 6.5. */
static void random_choices_differ_within_a_row_and_between_layers(void **state) {
    (void)state;
    const ExpertCounts counts = fill_and_count(BENCH_ROUTING_RANDOM);
    int even = 0;
    for (int e = 0; e < 6; e++) {
        int sum = counts.of[0][e] + counts.of[1][e] + counts.of[2][e];
        assert_in_range(sum, 40, 88);
        even += sum == 64;
    }
    assert_true(even < 6);
}

/* Only experts that rows are given to get gradients. */
static void experts_follow_the_given_routing(void **state) {
    (void)state;
    Config config;
    Program program = {0};
    start(&program, &config);
    Executor *executor = program.executor;
    Error error = {0};
    const Graph *graph = program.model.graph;
    assert_true(model_initialize(graph, &config.model, 1, executor_backend(executor)->device, executor_arena(executor, ARENA_MASTER),
        executor_arena(executor, ARENA_WEIGHT), &error));
    int32_t *tokens = executor_tensor(executor, program.model.tokens), *targets = executor_tensor(executor, program.model.targets),
            *positions = executor_tensor(executor, program.model.positions);
    for (int r = 0; r < 64; r++) tokens[r] = targets[(r + 63) % 64] = r * 7 % 32, positions[r] = r % 32;
    for (int i = 0; i < 3 * 128; i++) choices_of(&program, i / 128)[i % 128] = i % 2 ? 4 : 1;
    executor_set_scalar(executor, program.model.scale, 1.0 / 64);
    executor_set_scalar(executor, program.model.share, 1);
    executor_zero(executor);
    executor_run(executor);
    assert_true(executor_finish(executor, &error));
    int found = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (!strstr(p->name, "experts.down_proj")) continue;
        const float *gradient = parameter_in(p, executor_arena(executor, ARENA_GRADIENT));
        for (int e = 0; e < 6; e++) {
            double sum = 0;
            for (int64_t j = 0; j < p->count / 6; j++) sum += fabs((double)gradient[e * (p->count / 6) + j]);
            if ((sum > 0) != (e == 1 || e == 4)) fail_msg("%s, expert %d: %g", p->name, e, sum);
        }
        found++;
    }
    assert_int_equal(found, 3);
    program_free(&program);
}

/* Each class of the trace that a training of zaya wrote, which may skip its experts, comes back. */
static void a_training_records_what_a_benchmark_reads(void **state) {
    (void)state;
    Config config;
    RoutingTrace trace = {0};
    Error error = {0};
    train_good("precision=fp32 run=a stop_at=3");
    train_good("precision=fp32 run=b stop_at=3 routing_trace=t.safetensors");
    compare_records_within("b", "a", "step", "loss", 0);
    train_says(ERROR_NONE, "routing_trace=u.safetensors is not written", "precision=fp32 run=b stop_at=3 routing_trace=u.safetensors");
    assert_int_not_equal(access("u.safetensors", F_OK), 0);
    experts_model(&config);
    config.model.family = 0;
    while (strcmp(family_of(&config.model)->name, "zaya")) config.model.family++;
    config.model.experts = 4;
    config.model.experts_per_token = 1;
    if (!routing_trace_open(&trace, "t.safetensors", &config.model, &error)) fail_msg("%s", error.message);
    int64_t rows;
    assert_non_null(routing_trace_layer(&trace, 0, &rows));
    assert_int_equal(rows, 4 * 32);
    assert_non_null(routing_trace_layer(&trace, 1, &rows));
    assert_null(routing_trace_layer(&trace, 2, &rows));
    routing_trace_close(&trace);
    smelt_says(ERROR_NONE, "trace",
        "bench train b/config.yaml device=cpu microbatch=4 accumulation=1 measured_steps=1 bench.routing=trace "
        "bench.trace=t.safetensors seconds=0.01 repeats=1");
    smelt_says(ERROR_USAGE, "model.experts=4 8",
        "bench train b/config.yaml device=cpu model.experts=8 bench.routing=trace bench.trace=t.safetensors");
    smelt_says(ERROR_USAGE, "layer 2", "bench train b/config.yaml device=cpu model.layers=3 bench.routing=trace bench.trace=t.safetensors");
    smelt_says(ERROR_USAGE, "bench.trace=FILE", "bench train b/config.yaml device=cpu bench.routing=trace");
    smelt_says(ERROR_USAGE, "bench.trace=t", "bench train b/config.yaml device=cpu bench.routing=random bench.trace=t");
}

static void the_routing_is_named_and_reaches_no_training(void **state) {
    (void)state;
    Config config;
    experts_model(&config);
    static const char *const routings[] = {"untrained", "balanced", "random"};
    for (int i = 0; i < 3; i++)
        smelt_says(ERROR_NONE, routings[i],
            "bench train experts.yaml device=cpu microbatch=2 accumulation=1 measured_steps=1 seconds=0.01 repeats=1 bench.routing=%s "
            "json=%d.json",
            routings[i], i);
    for (int i = 0; i < 3; i++) {
        SCOPED_FREE char *command = memory_format("grep -q '\"routing\": \"%s\"' %d.json", routings[i], i);
        assert_int_equal(system(command), 0);
    }
    smelt_says(ERROR_USAGE, "no experts",
        "bench train experts.yaml device=cpu model.experts=0 model.experts_per_token=1 model.renormalise=false "
        "bench.routing=balanced");
    smelt_says(ERROR_USAGE, "bench.routing", "train experts.yaml data.train=text bench.routing=balanced");
    smelt_says(
        ERROR_USAGE, "routing_trace model.experts", "train %s run=r routing_trace=t model.family=llama model.experts=0", "data.train=text");
    train_says(ERROR_USAGE, "both watch", "precision=fp32 run=r routing_trace=t profile=1");
}

int main(void) {
    train_main();
    const struct CMUnitTest tests[] = {
        TRAIN_TEST(balanced_choices_are_as_even_as_can_be),
        TRAIN_TEST(random_choices_differ_within_a_row_and_between_layers),
        TRAIN_TEST(experts_follow_the_given_routing),
        TRAIN_TEST(a_training_records_what_a_benchmark_reads),
        TRAIN_TEST(the_routing_is_named_and_reaches_no_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
