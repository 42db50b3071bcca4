/* Saved activations in host memory: the copies, on a device whose copies are late, change no bit; they save the memory of
 * all layers but two; and the planner accounts for the two spans in which a tensor is in device memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/rng.h"
#include "config/config.h"
#include "graph/op.h"
#include "program/program.h"
#include "support/late_device.h"

enum { SEQUENCES = 2, LENGTH = 64, ROWS = SEQUENCES * LENGTH, LAYERS = 6 };

static const char *const models[][14] = {
    {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=48", "model.vocabulary=40"},
    {"model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=8", "model.width=32", "model.ffn=16",
        "model.router_width=16", "model.vocabulary=40"},
    {"model.family=gpt2", "model.heads=4", "model.kv_heads=4", "model.width=32", "model.ffn=128", "model.vocabulary=40",
        "model.context=64"},
    {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=16", "model.vocabulary=40", "model.experts=4",
        "model.experts_per_token=2", "model.renormalise=true", "model.auxiliary_loss=0.01", "model.auxiliary_scope=model"},
};
enum { MODELS = sizeof models / sizeof *models };

static ModelConfig model_of(const char *const *settings, int layers) {
    Config config;
    OptionStrings strings = {0};
    Error error = {0};
    char count[32];
    snprintf(count, sizeof count, "model.layers=%d", layers);
    options_defaults(&config_table, &config, &strings);
    assert_true(options_set(&config_table, &config, &strings, "data.length=64", &error) &&
                options_set(&config_table, &config, &strings, "batch.tokens=128", &error) &&
                options_set(&config_table, &config, &strings, "batch.sequences=2", &error) &&
                options_set(&config_table, &config, &strings, count, &error));
    for (int i = 0; settings[i]; i++)
        if (!options_set(&config_table, &config, &strings, settings[i], &error)) fail_msg("%s", error.message);
    if (!config_check(&config, &error)) fail_msg("%s", error.message);
    options_free_strings(&strings);
    return config.model;
}

static Program open_saved(const ModelConfig *config, Precision precision, bool hosts, Device *device) {
    Program program = {.model = model_build(config, precision, MODEL_TRAIN, SEQUENCES, LENGTH, RECOMPUTE_BLOCK), .hosts_saved = hosts};
    Error error = {0};
    if (!program_plan(&program, device, &error) || !program_start(&program, NULL, &error) ||
        !model_initialize(program.model.graph, config, 5, device, executor_arena(program.executor, ARENA_MASTER),
            executor_arena(program.executor, ARENA_WEIGHT), &error))
        fail_msg("%s", error.message);
    return program;
}

static void run_microbatch(const Program *program, const ModelConfig *config, int microbatch) {
    Executor *executor = program->executor;
    int32_t *tokens = executor_tensor(executor, program->model.tokens), *targets = executor_tensor(executor, program->model.targets),
            *positions = executor_tensor(executor, program->model.positions);
    for (int i = 0; i < ROWS; i++) {
        tokens[i] = (int32_t)(rng_uniform(microbatch, 2, i) * (double)config->vocabulary);
        targets[i] = (int32_t)(rng_uniform(microbatch, 3, i) * (double)config->vocabulary);
        positions[i] = i % LENGTH;
    }
    executor_set_scalar(executor, program->model.scale, 1.0 / ROWS);
    executor_set_scalar(executor, program->model.share, 1);
    memset(executor_arena(executor, ARENA_ACTIVATION), 0xff, (size_t)program->plan.bytes[ARENA_ACTIVATION]);
    executor_run(executor);
}

/* `eager`: which of the two streams copies at once; the other one copies as late as it may. */
static void check_copies(const ModelConfig *config, Precision precision, int eager) {
    Program plain = open_saved(config, precision, false, device_cpu());
    Device *late = late_device();
    late_streams = eager;
    Program hosted = open_saved(config, precision, true, late);
    Program *both[] = {&plain, &hosted};
    for (int i = 0; i < 2; i++) {
        Error error = {0};
        executor_zero(both[i]->executor);
        for (int microbatch = 1; microbatch <= 3; microbatch++) run_microbatch(both[i], config, microbatch);
        assert_true(executor_finish(both[i]->executor, &error));
    }
    assert_memory_equal(executor_arena(hosted.executor, ARENA_GRADIENT), executor_arena(plain.executor, ARENA_GRADIENT),
        (size_t)plain.plan.bytes[ARENA_GRADIENT]);
    assert_memory_equal(executor_tensor(hosted.executor, hosted.model.loss), executor_tensor(plain.executor, plain.model.loss),
        2 * precision_bytes(precision, TYPE_WIDE));
    assert_true(hosted.model.graph->hosted_count >= LAYERS - 2);
    assert_true(hosted.plan.bytes[ARENA_ACTIVATION] < plain.plan.bytes[ARENA_ACTIVATION]);
    program_free(&plain);
    program_free(&hosted);
}

static void late_copies_change_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        ModelConfig config = model_of(models[i], LAYERS);
        for (int eager = 0; eager < 2; eager++) {
            check_copies(&config, PRECISION_FP32, eager);
            check_copies(&config, PRECISION_BF16, eager);
        }
    }
}

/* Every further layer adds its inputs to host memory. To device memory it adds only tensors that are too small to be
 * worth a copy, as a router's choices. */
static void activations_do_not_grow_with_the_layers(void **state) {
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        int64_t activations[2], saved[2], plain[2];
        for (int j = 0; j < 2; j++) {
            ModelConfig config = model_of(models[i], LAYERS + 4 * j);
            Program hosted = open_saved(&config, PRECISION_FP32, true, late_device()),
                    kept = open_saved(&config, PRECISION_FP32, false, device_cpu());
            activations[j] = hosted.plan.activation_floor;
            saved[j] = hosted.plan.bytes[ARENA_SAVED];
            plain[j] = kept.plan.activation_floor;
            program_free(&hosted);
            program_free(&kept);
        }
        int64_t stream = (int64_t)ROWS * 32 * (int64_t)sizeof(float);
        assert_true(saved[1] - saved[0] >= 4 * stream && plain[1] - plain[0] >= 4 * stream);
        if (activations[1] - activations[0] >= 4 * stream / 16)
            fail_msg("%s: %lld bytes more", models[i][0], (long long)(activations[1] - activations[0]));
    }
}

/* No activation is in device memory in two places, and none that is there is overwritten: graph_check, which runs after
 * planning, asserts both. Here the points of the copies are in order, and no reader is between them. */
static void nothing_reads_what_is_in_host_memory(void **state) {
    (void)state;
    for (int m = 0; m < MODELS; m++) {
        ModelConfig config = model_of(models[m], LAYERS);
        Program program = open_saved(&config, PRECISION_FP32, true, late_device());
        const Graph *graph = program.model.graph;
        for (int i = 0; i < graph->hosted_count; i++) {
            const HostedTensor *hosted = &graph->hosted[i];
            assert_true(graph_get(graph, hosted->tensor)->producer < hosted->stow && hosted->stow < hosted->stowed &&
                        hosted->stowed < hosted->fetch && hosted->fetch < hosted->fetched && hosted->fetched <= hosted->last);
            for (int n = 0; n < graph->node_count; n++)
                for (int j = 0; j < graph->nodes[n].inputs; j++)
                    if (graph->nodes[n].in[j] == hosted->tensor) assert_true(n <= hosted->forward_end || n >= hosted->fetched);
        }
        program_free(&program);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_copies_change_no_bit),
        cmocka_unit_test(activations_do_not_grow_with_the_layers),
        cmocka_unit_test(nothing_reads_what_is_in_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
