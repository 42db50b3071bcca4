/* Operations that take the memory of what they are the last to read (Op.in_place): when the planner lets them, when
 * it does not, and that whole models give the same bits as with every tensor in memory of its own; on the CPU, or on
 * the GPU of SMELT_TEST_DEVICE. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "support/check.h"
#include "support/each_isa.h"
#include "config/config.h"
#include "model/model.h"
#include "backend/backend.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/heads.h"
#include "ops/linear/linear.h"
#include "ops/rope/rope.h"

/* -- The planner's choice ------------------------------------------------------------------------------------------ */

enum { ROWS = 64, WIDTH = 16, NARROW = 8 };
static const Heads HEADS = {.heads = 2, .kv_heads = 1, .qk_dim = 4, .v_dim = 4};
enum { COLUMNS = 16 /* of packed heads */ };

/* x -> qkv -> rotated -> out, by linear layers and a rotation. */
typedef struct Chain {
    Graph *graph;
    TensorId x, table, positions, qkv, rotated, out;
} Chain;

static TensorId linear(Graph *graph, TensorId x, int64_t columns) {
    char name[32];
    snprintf(name, sizeof name, "w%d", graph->parameter_count);
    return op_linear(graph, x,
        graph_parameter(graph, name, PARAMETER_MATRIX, 2, (int64_t[]){columns, graph_columns(graph, x)}, 0, 1, false), TENSOR_NONE, false);
}

static Chain chain(void) {
    Chain c = {.graph = graph_create(PRECISION_BF16, false)};
    c.x = graph_tensor(c.graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){ROWS, WIDTH}, "x");
    c.positions = graph_tensor(c.graph, ARENA_INPUT, TYPE_INT32, 1, (int64_t[]){ROWS}, "positions");
    c.table = op_rope_table(c.graph, &(RopeSpec){.theta = 1e4, .dimensions = 4, .positions = ROWS});
    c.qkv = linear(c.graph, c.x, COLUMNS);
    c.rotated = op_rope(c.graph, c.qkv, c.positions, c.table, &HEADS, ROPE_HALVES);
    return c;
}

static int64_t plan_bytes(Graph *graph) {
    Backend backend = op_cpu_backend(PRECISION_BF16);
    return graph_plan(graph, &backend).bytes[ARENA_ACTIVATION];
}

static bool same_memory(const Graph *graph, TensorId a, TensorId b) { return graph_get(graph, a)->offset == graph_get(graph, b)->offset; }

static void the_last_reader_takes_the_memory_and_the_plan_shrinks_by_it(void **state) {
    (void)state;
    Chain c = chain();
    c.out = linear(c.graph, c.rotated, NARROW);
    /* qkv and its rotation are one block; beside it there is only what is made of them. */
    assert_int_equal(plan_bytes(c.graph), ROWS * (COLUMNS + NARROW) * 2);
    assert_true(same_memory(c.graph, c.qkv, c.rotated));
    assert_false(same_memory(c.graph, c.rotated, c.out));
    assert_true(op_in_place(c.graph, &c.graph->nodes[graph_get(c.graph, c.rotated)->producer]));
    graph_free(c.graph);
}

static void memory_that_is_read_again_is_left_alone(void **state) {
    (void)state;
    Chain c = chain();
    op_add(c.graph, c.rotated, c.qkv);
    plan_bytes(c.graph);
    assert_false(same_memory(c.graph, c.qkv, c.rotated));
    assert_false(op_in_place(c.graph, &c.graph->nodes[graph_get(c.graph, c.rotated)->producer]));
    graph_free(c.graph);
}

static void memory_that_is_kept_is_left_alone(void **state) {
    (void)state;
    Chain c = chain();
    c.graph->tensors[c.qkv].keep = true;
    plan_bytes(c.graph);
    assert_false(same_memory(c.graph, c.qkv, c.rotated));
    graph_free(c.graph);
}

static void inputs_of_the_program_are_left_alone(void **state) {
    (void)state;
    Chain c = chain();
    TensorId clamped = op_clamp(c.graph, c.x, 1);
    plan_bytes(c.graph);
    assert_false(op_in_place(c.graph, &c.graph->nodes[graph_get(c.graph, clamped)->producer]));
    graph_free(c.graph);
}

static void what_is_not_as_large_gets_its_own_memory(void **state) {
    (void)state;
    Chain c = chain();
    TensorId gated = op_activation(c.graph, c.rotated, ACTIVATION_swiglu); /* half as wide */
    plan_bytes(c.graph);
    assert_false(same_memory(c.graph, c.rotated, gated));
    graph_free(c.graph);
}

/* rotated, turned again, clamped and added to: one block, alive until the last of them was read, which nothing else
 * may overlap. */
static void a_chain_of_them_stays_in_one_place(void **state) {
    (void)state;
    Chain c = chain();
    TensorId again = op_rope(c.graph, c.rotated, c.positions, c.table, &HEADS, ROPE_HALVES), clamped = op_clamp(c.graph, again, 3);
    TensorId other = linear(c.graph, c.x, COLUMNS), sum = op_add(c.graph, clamped, other), out = linear(c.graph, sum, NARROW);
    assert_int_equal(plan_bytes(c.graph), ROWS * 2 * COLUMNS * 2);
    assert_true(same_memory(c.graph, c.qkv, c.rotated) && same_memory(c.graph, c.qkv, again) && same_memory(c.graph, c.qkv, clamped));
    assert_true(same_memory(c.graph, c.qkv, sum));
    assert_true(!same_memory(c.graph, other, sum) && !same_memory(c.graph, out, sum));
    graph_free(c.graph);
}

/* -- Whole models -------------------------------------------------------------------------------------------------- */

enum { SEQUENCES = 2, LENGTH = 19, TOKENS = SEQUENCES * LENGTH, SETTINGS = 16 };

typedef struct Variety {
    const char *name, *settings[SETTINGS];
    int places; /* operations that are done in place at least */
} Variety;

/* Rotations, forward and back; SwiGLU's gradients; sums of gradients; clamps; GELU's gradients; the router's
 * averages over depth. */
static const Variety varieties[] = {
    {"llama", {"model.family=llama", "model.heads=4", "model.kv_heads=2", "model.width=32", "model.ffn=24", "model.vocabulary=40"}, 6},
    {"partial rotation",
        {"model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=24", "model.ffn=20", "model.vocabulary=40",
            "model.head_dim=16", "model.rope_fraction=0.5"},
        6},
    {"mixture",
        {"model.family=llama", "model.heads=3", "model.kv_heads=1", "model.width=24", "model.ffn=10", "model.vocabulary=40",
            "model.experts=4", "model.experts_per_token=2"},
        6},
    {"zaya",
        {"model.family=zaya", "model.experts=4", "model.heads=4", "model.kv_heads=2", "model.head_dim=8", "model.width=24", "model.ffn=12",
            "model.router_width=10", "model.rope_fraction=0.5", "model.layers=3", "model.vocabulary=40"},
        6},
    {"mpt",
        {"model.family=mpt", "model.heads=3", "model.kv_heads=3", "model.width=24", "model.ffn=20", "model.vocabulary=40",
            "model.clip_qkv=1.6"},
        4},
    {"gpt2", {"model.family=gpt2", "model.heads=3", "model.kv_heads=3", "model.width=21", "model.ffn=20", "model.vocabulary=40"}, 2},
};
enum { VARIETIES = sizeof varieties / sizeof *varieties };

typedef struct Run {
    Config config;
    OptionStrings strings;
    Program program;
} Run;

static void configure(Run *run, const Variety *variety) {
    static const char *const common[] = {"data.length=19", "batch.sequences=2", "batch.tokens=38", "model.init_std=0.15", "model.layers=2"};
    Error error = {0};
    bool good = true;
    options_defaults(&config_table, &run->config, &run->strings);
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        good = good && options_set(&config_table, &run->config, &run->strings, common[i], &error);
    for (int i = 0; i < SETTINGS && variety->settings[i]; i++)
        good = good && options_set(&config_table, &run->config, &run->strings, variety->settings[i], &error);
    if (!good || !config_check(&run->config, &error)) fail_msg("%s: %s", variety->name, error.message);
}

static void fill_inputs(const Run *run) {
    int32_t *tokens = executor_tensor(run->program.executor, run->program.model.tokens),
            *targets = executor_tensor(run->program.executor, run->program.model.targets);
    int32_t *positions = executor_tensor(run->program.executor, run->program.model.positions);
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)(rng_uniform(1, 2, i) * run->config.model.vocabulary);
        targets[i] = (int32_t)(rng_uniform(1, 3, i) * run->config.model.vocabulary);
        positions[i] = i % LENGTH;
    }
    executor_set_scalar(run->program.executor, run->program.model.scale, 1.0 / TOKENS);
    executor_set_scalar(run->program.executor, run->program.model.share, 1);
}

/* Forward and backward. `apart`: all tensors are kept, so that each has memory of its own. */
static Run run_model(const Variety *variety, RecomputePolicy policy, bool apart) {
    Run run = {0};
    Error error = {0};
    Device *device = check_device() ? check_device() : device_cpu();
    configure(&run, variety);
    run.program.model = model_build(&run.config.model, PRECISION_BF16, MODEL_TRAIN, SEQUENCES, LENGTH, policy);
    for (int i = 1; i < run.program.model.graph->tensor_count && apart; i++) run.program.model.graph->tensors[i].keep = true;
    run.program = check_program(run.program.model, device);
    void *master = executor_arena(run.program.executor, ARENA_MASTER), *weights = executor_arena(run.program.executor, ARENA_WEIGHT);
    if (!model_initialize(run.program.model.graph, &run.config.model, 5, device, master, weights, &error)) fail_msg("%s", error.message);
    fill_inputs(&run);
    device_fill(device, executor_arena(run.program.executor, ARENA_ACTIVATION), 0xff, run.program.plan.bytes[ARENA_ACTIVATION]);
    executor_zero(run.program.executor);
    executor_run(run.program.executor);
    if (!executor_finish(run.program.executor, &error)) fail_msg("%s", error.message);
    return run;
}

static void release(Run *run) {
    program_free(&run->program);
    options_free_strings(&run->strings);
}

static void *gradients(const Run *run) {
    void *values = memory_allocate((size_t)run->program.plan.bytes[ARENA_GRADIENT]);
    device_download(executor_backend(run->program.executor)->device, values, executor_arena(run->program.executor, ARENA_GRADIENT),
        run->program.plan.bytes[ARENA_GRADIENT]);
    return values;
}

static int count_places(const Graph *graph) {
    int count = 0;
    for (int i = 0; i < graph->node_count; i++) count += op_in_place(graph, &graph->nodes[i]);
    return count;
}

static void models_have_the_same_bits_as_with_memory_of_its_own_for_every_tensor(void **state) {
    (void)state;
    int step = check_device() ? RECOMPUTE_BLOCK + 1 : 1; /* an emulated GPU takes its time */
    for (int i = 0; i < VARIETIES; i++)
        for (RecomputePolicy policy = RECOMPUTE_NONE; policy <= RECOMPUTE_BLOCK; policy += step) {
            Run shared = run_model(&varieties[i], policy, false), apart = run_model(&varieties[i], policy, true);
            void *a = gradients(&shared), *b = gradients(&apart);
            assert_int_equal(count_places(apart.program.model.graph), 0);
            if (count_places(shared.program.model.graph) < varieties[i].places)
                fail_msg("%s: %d operations are done in place", varieties[i].name, count_places(shared.program.model.graph));
            if (memcmp(executor_tensor(shared.program.executor, shared.program.model.loss),
                    executor_tensor(apart.program.executor, apart.program.model.loss), 2 * sizeof(float)))
                fail_msg("%s: another loss", varieties[i].name);
            if (memcmp(a, b, (size_t)shared.program.plan.bytes[ARENA_GRADIENT])) fail_msg("%s: other gradients", varieties[i].name);
            free(a);
            free(b);
            release(&shared);
            release(&apart);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_reader_takes_the_memory_and_the_plan_shrinks_by_it),
        cmocka_unit_test(memory_that_is_read_again_is_left_alone),
        cmocka_unit_test(memory_that_is_kept_is_left_alone),
        cmocka_unit_test(inputs_of_the_program_are_left_alone),
        cmocka_unit_test(what_is_not_as_large_gets_its_own_memory),
        cmocka_unit_test(a_chain_of_them_stays_in_one_place),
        EACH_ISA(cmocka_unit_test(models_have_the_same_bits_as_with_memory_of_its_own_for_every_tensor)),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
