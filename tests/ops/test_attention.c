/* Rotary embedding and attention: gradients, precisions and threads by check_op; what they compute, against plain
 * loops in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "support/check.h"
#include "backend/gpu/kernel_launch.h"
#include "backend/backend.h"
#include "ops/attention/attention.h"
#include "ops/heads.h"
#include "ops/mla/mla.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

typedef struct Shape {
    int64_t sequences;
    AttentionSpec spec;
    int64_t document; /* tokens of a document; 0: one document per sequence */
} Shape;

static int64_t shape_rows(const Shape *s) { return s->sequences * s->spec.length; }

/* Positions that start again with every sequence and document; of a bidirectional shape the sequence is the last `document`
 * rows. The caller frees. */
static int32_t *make_positions(const Shape *s) {
    int32_t *positions = memory_allocate(shape_rows(s) * sizeof *positions);
    for (int64_t r = 0; r < shape_rows(s); r++) {
        int64_t at = r % s->spec.length;
        if (s->spec.bidirectional && s->document) at = at > s->spec.length - s->document ? at - (s->spec.length - s->document) : 0;
        positions[r] = (int32_t)(s->document ? at % s->document : at);
    }
    return positions;
}

/* -- A graph run once in fp64, with its input filled --------------------------------------------------------------- */

typedef struct Run {
    Graph *graph;
    Program program;
} Run;

static Run run_begin(bool training) { return (Run){.graph = graph_create(PRECISION_FP64, training)}; }

static void run_plan(Run *run) { run->program = check_program((Model){.graph = run->graph}, device_cpu()); }

static void run_end(Run *run) { program_free(&run->program); }

static double random_value(int64_t index) { return rng_normal(11, 1, index); }

static TensorId input(Run *run, TypeClass type, int64_t rows, int64_t columns) {
    return graph_tensor(run->graph, ARENA_INPUT, type, 2, (int64_t[]){rows, columns}, "input");
}

/* -- Rotary embedding ---------------------------------------------------------------------------------------------- */

static const RopeSpec llama3 = {
    .theta = 500000, .dimensions = 64, .positions = 12, .factor = 32, .low_frequency = 1, .high_frequency = 4, .original_positions = 8192};

/* Frequencies of Llama 3.2 1B as transformers computes them ("rope_type": "llama3", fp32): pairs on both sides of
 * the cut-offs, and 15, 16 and 17 between them. */
static const struct {
    int pair;
    double frequency;
} llama3_frequencies[] = {
    {0, 1},
    {8, 0.0376060307},
    {14, 0.00321144611},
    {15, 0.00129054801},
    {16, 0.000429556705},
    {17, 9.70828623e-05},
    {20, 8.57025589e-06},
    {31, 9.41830649e-08},
};

static void llama3_scaling_gives_the_frequencies_of_transformers(void **state) {
    (void)state;
    Run run = run_begin(false);
    TensorId table = op_rope_table(run.graph, &llama3);
    run_plan(&run);
    const double *values = executor_tensor(run.program.executor, table);
    for (size_t i = 0; i < COUNT(llama3_frequencies); i++)
        for (int position = 0; position < 12; position++) {
            double angle = position * llama3_frequencies[i].frequency;
            const double *row = values + position * 64 + llama3_frequencies[i].pair;
            assert_true(fabs(row[0] - cos(angle)) < 1e-6); /* fp32 frequencies are off by 6e-8, angles reach 11 radians */
            assert_true(fabs(row[32] - sin(angle)) < 1e-6);
        }
    run_end(&run);
}

/* Frequencies of a Qwen2.5 of 7B as transformers 5.23 computes them in fp32: pairs on both sides of yarn's ramp, and on
 * it, with and without whole channels as its bounds; and dynamic scaling in a sequence of 100,000. Of a Phi-3 as 5.24
 * does: longrope in sequences of the original length and one token more. */
static void other_scalings_give_the_frequencies_of_transformers(void **state) {
    (void)state;
    enum { YARN, YARN_EXACT, DYNAMIC, LINEAR, LONGROPE, LONGROPE_SHORT };
    RopeSpec specs[] = {
        [YARN] = {.theta = 1e6,
            .dimensions = 128,
            .scaling = ROPE_YARN,
            .factor = 4,
            .original_positions = 32768,
            .beta_fast = 32,
            .beta_slow = 1,
            .truncate = true},
        [YARN_EXACT] = {.theta = 1e6,
            .dimensions = 128,
            .scaling = ROPE_YARN,
            .factor = 4,
            .original_positions = 32768,
            .beta_fast = 32,
            .beta_slow = 1},
        [DYNAMIC] = {.theta = 1e6, .dimensions = 128, .scaling = ROPE_DYNAMIC, .factor = 2, .original_positions = 32768, .length = 100000},
        [LINEAR] = {.theta = 1e6, .dimensions = 128, .scaling = ROPE_LINEAR, .factor = 8},
        [LONGROPE] = {.theta = 1e4, .dimensions = 96, .scaling = ROPE_LONGROPE, .factor = 32, .original_positions = 4096, .length = 4097},
        [LONGROPE_SHORT] = {0}, /* set below */
    };
    static const struct {
        int spec, pair;
        double frequency;
    } frequencies[] = {
        {YARN, 0, 1},
        {YARN, 16, 0.0316227786},
        {YARN, 23, 0.00697830599},
        {YARN, 24, 0.00537532149},
        {YARN, 30, 0.00106436096},
        {YARN, 36, 0.000179841154},
        {YARN, 40, 4.44569851e-05},
        {YARN, 63, 3.10234441e-07},
        {YARN_EXACT, 24, 0.00551727042},
        {YARN_EXACT, 30, 0.00107923767},
        {YARN_EXACT, 39, 6.18780759e-05},
        {DYNAMIC, 1, 0.785260916},
        {DYNAMIC, 40, 6.31770163e-05},
        {DYNAMIC, 63, 2.43153522e-07},
        {LINEAR, 1, 0.100730278},
        {LINEAR, 63, 1.5511722e-07},
        {LONGROPE, 0, 1},
        {LONGROPE, 1, 0.550269425},
        {LONGROPE, 17, 0.00403282838},
        {LONGROPE, 40, 2.21028076e-05},
        {LONGROPE, 47, 4.94501046e-06},
        {LONGROPE_SHORT, 0, 1},
        {LONGROPE_SHORT, 1, 0.817231834},
        {LONGROPE_SHORT, 17, 0.03274519},
        {LONGROPE_SHORT, 40, 0.000331542135},
        {LONGROPE_SHORT, 47, 8.24168383e-05},
    };
    for (int i = 0; i < 48; i++) specs[LONGROPE].short_factors.items[i] = 1 + 0.01 * i, specs[LONGROPE].long_factors.items[i] = 1 + 0.5 * i;
    specs[LONGROPE_SHORT] = specs[LONGROPE];
    specs[LONGROPE_SHORT].length = 4096;
    for (size_t i = 0; i < COUNT(frequencies); i++) {
        const RopeSpec *spec = &specs[frequencies[i].spec];
        double ours = rope_frequency(spec, frequencies[i].pair, spec->length);
        assert_true(fabs(ours / frequencies[i].frequency - 1) < 2e-6); /* a few roundings in fp32, one of them of a power */
    }
}

/* transformers keeps the keys of a text and rotates each new one for the length that the text then has. */
static void a_cache_under_dynamic_scaling_has_the_frequencies_of_growing_lengths(void **state) {
    (void)state;
    RopeSpec cache = {.theta = 100, .dimensions = 8, .positions = 40, .scaling = ROPE_DYNAMIC, .factor = 4, .original_positions = 10};
    for (int position = 0; position < 40; position += 3) {
        RopeSpec whole = cache;
        whole.length = position + 1;
        double own = rope_frequency(&cache, 1, cache.length), expected = position * rope_frequency(&whole, 1, whole.length);
        assert_true(fabs(rope_angle(&cache, 1, position, own) - expected) < 1e-12);
        assert_true(position < 10 ? expected == position * pow(100, -0.25) : expected < position * pow(100, -0.25));
    }
}

static void a_cache_under_longrope_has_the_long_factors_after_the_original_context(void **state) {
    (void)state;
    RopeSpec cache = {.theta = 100,
        .dimensions = 4,
        .positions = 40,
        .scaling = ROPE_LONGROPE,
        .factor = 4,
        .original_positions = 10,
        .short_factors = {2, {1, 2}},
        .long_factors = {2, {3, 8}}};
    double own = rope_frequency(&cache, 1, 0);
    assert_true(fabs(rope_angle(&cache, 1, 9, own) - 9 * 0.1 / 2) < 1e-12);
    assert_true(fabs(rope_angle(&cache, 1, 10, own) - 10 * 0.1 / 8) < 1e-12);
}

static void without_scaling_frequencies_are_powers_of_theta(void **state) {
    (void)state;
    RopeSpec spec = {.theta = 10000, .dimensions = 6, .positions = 5};
    Run run = run_begin(false);
    TensorId table = op_rope_table(run.graph, &spec);
    run_plan(&run);
    const double *values = executor_tensor(run.program.executor, table);
    for (int position = 0; position < 5; position++)
        for (int i = 0; i < 3; i++) {
            double angle = position * exp(-log(10000) * i / 3);
            assert_true(fabs(values[position * 6 + i] - cos(angle)) < 1e-12); /* a few roundings of double */
            assert_true(fabs(values[position * 6 + 3 + i] - sin(angle)) < 1e-12);
        }
    run_end(&run);
}

/* Channel i turns with channel i + 2 of the first four of six; the sixth part and the values stay. */
static void rope_turns_pairs_half_a_rotation_apart(void **state) {
    (void)state;
    Heads heads = {.heads = 2, .kv_heads = 1, .qk_dim = 6, .v_dim = 6};
    RopeSpec spec = {.theta = 100, .dimensions = 4, .positions = 9};
    Run run = run_begin(false);
    TensorId x = input(&run, TYPE_COMPUTE, 1, 24), positions = input(&run, TYPE_INT32, 1, 1);
    TensorId y = op_rope(run.graph, x, positions, op_rope_table(run.graph, &spec), &heads, ROPE_HALVES);
    run.graph->tensors[y].keep = true;
    run_plan(&run);
    double *from = executor_tensor(run.program.executor, x), *to = executor_tensor(run.program.executor, y);
    for (int i = 0; i < 24; i++) from[i] = random_value(i);
    *(int32_t *)executor_tensor(run.program.executor, positions) = 7;
    executor_run(run.program.executor);
    for (int i = 0; i < 24; i++) {
        int channel = i % 6, pair = channel % 2;
        double angle = 7 * pow(100, -pair / 2.0), expected = from[i];
        if (i < 18 && channel < 2) expected = from[i] * cos(angle) - from[i + 2] * sin(angle);
        else if (i < 18 && channel < 4) expected = from[i] * cos(angle) + from[i - 2] * sin(angle);
        assert_true(fabs(to[i] - expected) < 1e-12);
    }
    run_end(&run);
}

/* As FLUX turns image tokens: row 3, column 5 of a grid of 8, no third coordinate; the first channels stay. */
static void rope_over_a_grid_turns_neighbors_by_row_and_column(void **state) {
    (void)state;
    Heads heads = {.heads = 1, .kv_heads = 1, .qk_dim = 10, .v_dim = 10};
    RopeSpec spec = {.theta = 100, .dimensions = 10, .positions = 64, .axes = {2, 4, 4}, .grid = 8};
    Run run = run_begin(false);
    TensorId x = input(&run, TYPE_COMPUTE, 1, 30), positions = input(&run, TYPE_INT32, 1, 1);
    TensorId y = op_rope(run.graph, x, positions, op_rope_table(run.graph, &spec), &heads, ROPE_NEIGHBORS);
    run.graph->tensors[y].keep = true;
    run_plan(&run);
    double *from = executor_tensor(run.program.executor, x), *to = executor_tensor(run.program.executor, y);
    static const double angles[] = {0, 3, 3 * 0.1, 5, 5 * 0.1};
    for (int i = 0; i < 30; i++) from[i] = random_value(i);
    *(int32_t *)executor_tensor(run.program.executor, positions) = 3 * 8 + 5;
    executor_run(run.program.executor);
    for (int i = 0; i < 30; i += 2) {
        double angle = i < 20 ? angles[i % 10 / 2] : 0;
        assert_true(fabs(to[i] - (from[i] * cos(angle) - from[i + 1] * sin(angle))) < 1e-12);
        assert_true(fabs(to[i + 1] - (from[i + 1] * cos(angle) + from[i] * sin(angle))) < 1e-12);
    }
    run_end(&run);
}

typedef struct RopeShape {
    int64_t rows;
    Heads heads;
    int64_t dimensions;
    const int32_t *positions;
    RopePairs pairs;
} RopeShape;

static void build_rope(Check *check, const void *argument) {
    const RopeShape *s = argument;
    RopeSpec spec = {.theta = 10000, .dimensions = s->dimensions, .positions = 80};
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){s->rows, heads_columns(&s->heads)}, 0, 1);
    TensorId positions = check_integers(check, 1, &s->rows, s->positions);
    check_output(check, op_rope(check->graph, qkv, positions, op_rope_table(check->graph, &spec), &s->heads, s->pairs));
}

static void rope_gradients_match_central_differences(void **state) {
    (void)state;
    static const int32_t positions[] = {0, 1, 2, 79, 0, 1, 40};
    const RopeShape shapes[] = {
        {1, {1, 1, 2, 2}, 2, positions},
        {7, {2, 1, 8, 8}, 8, positions},
        {7, {4, 2, 34, 34}, 34, positions},
        {5, {3, 3, 20, 20}, 10, positions},
        {7, {2, 1, 8, 8}, 8, positions, ROPE_NEIGHBORS},
        {5, {3, 2, 34, 34}, 18, positions, ROPE_NEIGHBORS},
        {3, {2, 2, 24, 24}, 16, positions, ROPE_NEIGHBORS},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_rope, &shapes[i], (CheckBounds){0});
}

static void build_query_scale(Check *check, const void *argument) {
    const RopeShape *s = argument;
    Heads heads = s->heads;
    heads.heads = check_shape_rows(s->heads.heads), heads.kv_heads = check_shape_rows(s->heads.kv_heads);
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){s->rows, heads_columns(&heads)}, 0, 1);
    TensorId positions = check_integers(check, 1, &s->rows, s->positions);
    check_output(check, op_query_scale(check->graph, qkv, positions, &heads, &(QueryScale){.beta = 0.7, .period = s->dimensions}));
}

static void queries_are_scaled_by_their_positions(void **state) {
    (void)state;
    static const int32_t positions[] = {0, 1, 2, 79, 3, 4, 40};
    const RopeShape shapes[] = {{1, {1, 1, 2, 2}, 2, positions}, {7, {2, 1, 8, 8}, 4, positions}, {7, {3, 2, 5, 7}, 3, positions}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_query_scale, &shapes[i], (CheckBounds){0});
}

/* -- Packed projections of latents --------------------------------------------------------------------------------- */

typedef struct MlaShape { int64_t rows, heads, plain, rotated, value; } MlaShape;

static Heads mla_heads(const MlaShape *s) { return (Heads){s->heads, s->heads, s->plain + s->rotated, s->value}; }

/* The projections that op_mla_pack reads, as inputs. */
static const int64_t *mla_columns(const MlaShape *s, int64_t columns[3]) {
    columns[0] = s->heads * (s->plain + s->rotated), columns[1] = s->heads * (s->plain + s->value), columns[2] = s->rotated;
    return columns;
}

static void build_mla_pack(Check *check, const void *argument) {
    const MlaShape *s = argument;
    int64_t columns[3];
    TensorId parts[3];
    Heads heads = mla_heads(s);
    mla_columns(s, columns);
    for (int i = 0; i < 3; i++) parts[i] = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){check_shape_rows(s->rows), columns[i]}, 0, 1);
    check_output(check, op_mla_pack(check->graph, &(MlaProjections){parts[0], parts[1], parts[2]}, &heads));
}

static void projections_of_latents_are_packed_and_their_gradients_unpacked(void **state) {
    (void)state;
    static const MlaShape shapes[] = {{1, 1, 1, 2, 1}, {5, 3, 4, 2, 7}, {67, 2, 8, 16, 24}, {9, 5, 24, 8, 8}, {3, 16, 128, 64, 128}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_mla_pack, &shapes[i], (CheckBounds){0});
}

/* Every input has its own value, so that a mix-up of heads or channels shows. */
static void queries_and_keys_begin_with_the_rotated_channels(void **state) {
    (void)state;
    const MlaShape s = {2, 2, 3, 2, 4};
    Heads heads = mla_heads(&s);
    int64_t columns[3];
    TensorId parts[3];
    Run run = run_begin(false);
    mla_columns(&s, columns);
    for (int i = 0; i < 3; i++) parts[i] = input(&run, TYPE_COMPUTE, s.rows, columns[i]);
    TensorId y = op_mla_pack(run.graph, &(MlaProjections){parts[0], parts[1], parts[2]}, &heads);
    run.graph->tensors[y].keep = true;
    run_plan(&run);
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < s.rows * columns[i]; j++) ((double *)executor_tensor(run.program.executor, parts[i]))[j] = 1000 * i + j;
    executor_run(run.program.executor);
    static const double second[] = {13, 14, 10, 11, 12, 18, 19, 15, 16, 17, /* queries of row 1 */
        2002, 2003, 1014, 1015, 1016, 2002, 2003, 1021, 1022, 1023,         /* keys */
        1017, 1018, 1019, 1020, 1024, 1025, 1026, 1027};                    /* values */
    assert_int_equal(COUNT(second), heads_columns(&heads));
    assert_memory_equal((double *)executor_tensor(run.program.executor, y) + COUNT(second), second, sizeof second);
    run_end(&run);
}

/* -- Norms of queries and keys ------------------------------------------------------------------------------------- */

typedef struct QkShape {
    int64_t rows;
    Heads heads;
    int64_t query, key;
    NormKind kind;
    bool biased;
} QkShape;

static void build_qk_norm(Check *check, const void *argument) {
    const QkShape *s = argument;
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){s->rows, heads_columns(&s->heads)}, 0.2, 1);
    Norm query = check_norm(check, s->kind, s->biased, s->query), key = check_norm(check, s->kind, s->biased, s->key);
    check_output(check, op_qk_norm(check->graph, qkv, &query, &key, &s->heads));
}

/* Per head, over all heads, and over two heads of four. */
static void qk_norm_passes(void **state) {
    (void)state;
    static const QkShape shapes[] = {
        {1, {1, 1, 1, 1}, 1, 1, NORM_RMS, false},
        {3, {4, 2, 17, 17}, 17, 17, NORM_RMS, false},
        {70, {2, 1, 6, 6}, 6, 6, NORM_RMS, false},
        {3, {3, 1, 10, 10}, 30, 10, NORM_LAYER, false},
        {67, {2, 2, 8, 8}, 16, 16, NORM_LAYER, true},
        {5, {4, 2, 9, 9}, 18, 18, NORM_LAYER, true},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_qk_norm, &shapes[i], (CheckBounds){0});
}

/* With gains that differ by head and column, so that a mix-up of queries, keys, heads or values shows. */
static void qk_norm_divides_each_head_by_its_root_mean_square_and_leaves_values(void **state) {
    (void)state;
    Heads heads = {.heads = 2, .kv_heads = 1, .qk_dim = 3, .v_dim = 3};
    Run run = run_begin(false);
    TensorId x = input(&run, TYPE_COMPUTE, 1, 12);
    Norm query = {.epsilon = 0.5, .gain = graph_parameter(run.graph, "query", PARAMETER_NORM, 1, &heads.qk_dim, 1, 0, false)};
    Norm key = {.epsilon = 0.25, .gain = graph_parameter(run.graph, "key", PARAMETER_NORM, 1, &heads.qk_dim, 1, 0, false)};
    TensorId y = op_qk_norm(run.graph, x, &query, &key, &heads);
    run.graph->tensors[y].keep = true;
    run_plan(&run);
    double *from = executor_tensor(run.program.executor, x), *to = executor_tensor(run.program.executor, y);
    for (int i = 0; i < 12; i++) from[i] = random_value(i);
    for (int i = 0; i < 3; i++) {
        ((double *)executor_tensor(run.program.executor, query.gain))[i] = 1 + i;
        ((double *)executor_tensor(run.program.executor, key.gain))[i] = 5 - i;
    }
    executor_run(run.program.executor);
    for (int i = 0; i < 12; i++) {
        const double *head = from + i / 3 * 3;
        double square = (head[0] * head[0] + head[1] * head[1] + head[2] * head[2]) / 3;
        double expected = i < 6   ? from[i] / sqrt(square + 0.5) * (1 + i % 3)
                          : i < 9 ? from[i] / sqrt(square + 0.25) * (5 - i % 3)
                                  : from[i];
        assert_true(fabs(to[i] - expected) < 1e-13);
    }
    run_end(&run);
}

/* -- Attention ----------------------------------------------------------------------------------------------------- */

/* Small ones for central differences, which run each hundreds of times. */
static const Shape small_shapes[] = {
    {1, {{1, 1, 1, 1}, 1}, 0},
    {2, {{1, 1, 16, 16}, 1}, 0},
    {2, {{2, 1, 8, 8}, 5}, 0},
    {1, {{2, 1, 6, 6}, 70}, 0},
    {1, {{1, 1, 20, 20}, 67}, 1},
    {1, {{1, 1, 18, 18}, 66}, 33},
    {1, {{1, 1, 5, 5}, 80, {40}}, 0},
    {1, {{1, 1, 80, 80}, 18}, 0},
    {1, {{2, 1, 48, 48}, 37}, 7},
    {1, {{1, 1, 64, 64}, 65}, 0},
    {1, {{3, 1, 8, 8}, 70, {.alibi = 8}}, 0},
    {1, {{2, 2, 6, 6}, 66, {30, .scale = 0.2, .alibi = 3}}, 40},
    {2, {{2, 1, 6, 6}, 5, .bidirectional = true}, 0},
    {1, {{1, 1, 20, 20}, 70, .bidirectional = true}, 66},
    {1, {{2, 1, 6, 6}, 37, {.cap = 1.5}}, 0},
    {1, {{3, 1, 8, 8}, 70, {20, .scale = 0.9, .cap = 2, .alibi = 4}}, 0},
    {1, {{2, 2, 16, 16}, 66, {.sinks = 1}}, 40},
    {2, {{4, 2, 6, 10}, 33, {9, .cap = 3, .sinks = 1}}, 0},
    {1, {{1, 1, 8, 8}, 20, {.cap = 2}, .bidirectional = true}, 0},
};

/* With one and several parts per sequence, with parts of several blocks, with windows and documents across and
 * within blocks. */
static const Shape shapes[] = {
    {1, {{1, 1, 1, 1}, 1}, 0},
    {2, {{1, 1, 16, 16}, 1}, 0},
    {3, {{4, 2, 6, 6}, 70}, 0},
    {2, {{2, 2, 20, 20}, 67}, 1},
    {1, {{2, 1, 18, 18}, 130}, 33},
    {1, {{3, 1, 8, 8}, 130, {40}}, 0},
    {1, {{1, 1, 16, 16}, 200, {1}}, 0},
    {1, {{2, 1, 80, 80}, 64}, 20},
    {1, {{1, 1, 8, 8}, 260, {70}}, 150},
    {4, {{16, 16, 3, 3}, 140}, 0},
    {1, {{30, 30, 4, 4}, 330}, 0},
    {1, {{60, 30, 4, 4}, 330, {129}}, 190},
    {1, {{4, 4, 8, 8}, 200, {.alibi = 8}}, 0},
    {2, {{6, 2, 20, 20}, 130, {.alibi = 8}}, 33},
    {1, {{1, 1, 4, 4}, 70, {.alibi = 5}}, 0},
    {1, {{5, 5, 8, 8}, 150, {40, .scale = 0.7, .alibi = 2}}, 70},
    {1, {{2, 1, 16, 16}, 130, {.scale = 0.1}}, 0},
    {1, {{2, 1, 8, 8}, 70, {.alibi = 8}, .first_head = 4, .all_heads = 6}, 0}, /* slopes of the last two of six heads */
    {2, {{2, 1, 8, 8}, 200, .bidirectional = true}, 0},
    {1, {{60, 30, 4, 4}, 330, .bidirectional = true}, 190},
    {3, {{4, 4, 16, 16}, 64, {.scale = 0.2}, .bidirectional = true}, 7},
    {2, {{4, 2, 24, 16}, 130}, 33}, /* values narrower than keys, and wider */
    {1, {{2, 1, 5, 37}, 200, {70}}, 0},
    {1, {{60, 30, 20, 3}, 330, {129}}, 190},
    {2, {{4, 2, 8, 8}, 130, {.cap = 5}}, 33}, /* soft-caps that most scores reach, and that few do */
    {1, {{2, 1, 24, 16}, 200, {70, .scale = 0.1, .cap = 30}}, 0},
    {1, {{5, 5, 8, 8}, 150, {40, .cap = 4, .alibi = 2}}, 70},
    {1, {{60, 30, 4, 4}, 330, {129, .sinks = 1}}, 190},
    {3, {{4, 2, 6, 6}, 70, {.sinks = 1}}, 0},
    {2, {{6, 2, 20, 20}, 130, {16, .cap = 6, .alibi = 8, .sinks = 1}}, 33},
    {2, {{2, 1, 8, 8}, 200, {.cap = 5}, .bidirectional = true}, 0},
};

/* The slopes as MPT makes them: a geometric sequence, of which a number of heads that is no power of two takes every
 * second one first. */
static double reference_slope(const AttentionSpec *spec, int64_t head) {
    static const struct {
        int64_t heads;
        double sixteenths[6];
    } orders[] = {
        /* exponents in sixteenths of alibi, by head */
        {1, {16}},
        {2, {8, 16}},
        {3, {8, 16, 4}},
        {4, {4, 8, 12, 16}},
        {5, {4, 8, 12, 16, 2}},
        {6, {4, 8, 12, 16, 2, 6}},
    };
    return spec->scores.alibi > 0
               ? exp2(-spec->scores.alibi / 16 * orders[attention_all_heads(spec) - 1].sixteenths[spec->first_head + head])
               : 0;
}

/* The spec of a shape; `sinks` of shapes only says whether there are any. */
static AttentionSpec checked_spec(Check *check, const Shape *s) {
    AttentionSpec spec = s->spec;
    if (spec.scores.sinks) spec.scores.sinks = check_parameter(check, PARAMETER_BIAS, 1, &spec.heads.heads, 0, 1);
    return spec;
}

static void build_attention(Check *check, const void *argument) {
    const Shape *s = *(const Shape *const *)argument;
    const int32_t *positions = *((const int32_t *const *)argument + 1);
    int64_t rows = shape_rows(s);
    Shape shaped = *s;
    if (s->spec.scores.cap > 0) { /* kernels without a soft-cap have many shapes in any case */
        shaped.spec.heads.heads = check_shape_rows(s->spec.heads.heads);
        shaped.spec.heads.kv_heads = check_shape_rows(s->spec.heads.kv_heads);
    }
    AttentionSpec spec = checked_spec(check, &shaped);
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_columns(&spec.heads)}, 0, 1);
    check_output(check, op_attention(check->graph, qkv, check_integers(check, 1, &rows, positions), &spec));
}

static void attention_gradients_match_central_differences(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(small_shapes); i++) {
        int32_t *positions = make_positions(&small_shapes[i]);
        const void *argument[] = {&small_shapes[i], positions};
        check_op(build_attention, argument, (CheckBounds){0});
        free(positions);
    }
}

/* What GPU kernels cut differently: every width of their tiles, several tiles, masks across them, heads that share
 * keys. */
static void attention_agrees_in_all_precisions_over_tiles_of_every_width(void **state) {
    (void)state;
    static const Shape wide[] = {
        {2, {{3, 1, 32, 32}, 140}, 50},
        {1, {{2, 1, 64, 64}, 200, {70}}, 0},
        {1, {{2, 2, 64, 64}, 140, {.alibi = 8}}, 0},
        {1, {{2, 1, 64, 64}, 140, {.alibi = 8}, .first_head = 3, .all_heads = 6}, 0},
        {1, {{2, 1, 96, 96}, 140}, 0},
        {1, {{2, 1, 128, 128}, 200}, 90},
        {1, {{2, 1, 200, 200}, 70, {50, .scale = 0.05, .alibi = 2}}, 0},
        {1, {{1, 1, 256, 256}, 140}, 0},
        {2, {{2, 1, 64, 64}, 140, .bidirectional = true}, 0},
        {1, {{2, 2, 128, 128}, 140, .bidirectional = true}, 75},
    };
    for (size_t i = 0; i < COUNT(wide); i++) {
        int32_t *positions = make_positions(&wide[i]);
        const void *argument[] = {&wide[i], positions};
        check_op(build_attention, argument, (CheckBounds){0});
        free(positions);
    }
}

/* Lengths of many tiles, and of tiles that are not full; too long for central differences. */
static void attention_on_a_gpu_agrees_over_many_tiles(void **state) {
    (void)state;
    check_gpu();
    static const Shape longer[] = {
        {1, {{2, 1, 64, 64}, 128}, 0},
        {1, {{1, 1, 128, 128}, 128}, 0},
        {2, {{4, 1, 64, 64}, 300}, 0},
        {2, {{4, 1, 128, 128}, 300}, 0},
        {1, {{8, 2, 64, 64}, 1000}, 0},
        {1, {{8, 2, 128, 128}, 1000}, 0},
        {1, {{4, 4, 64, 64}, 777, {150}}, 0},
        {1, {{4, 4, 128, 128}, 777, {150}}, 0},
        {2, {{4, 1, 64, 64}, 640}, 210},
        {2, {{4, 1, 128, 128}, 640}, 33},
        {1, {{4, 2, 64, 64}, 513, {300}}, 400},
        {1, {{4, 2, 128, 128}, 513, {300, .alibi = 8}}, 0},
        {2, {{6, 2, 64, 64}, 200, {.scale = 0.3, .alibi = 8}}, 70},
        {3, {{2, 1, 64, 64}, 1}, 0},
        {3, {{2, 1, 128, 128}, 65, {7}}, 0},
        {2, {{24, 24, 64, 64}, 300}, 0},
        {4, {{12, 12, 128, 128}, 330}, 100}, /* more blocks of keys than processors */
        {2, {{4, 4, 64, 64}, 640, .bidirectional = true}, 0},
        {2, {{4, 4, 128, 128}, 777, .bidirectional = true}, 300},
        {4, {{12, 12, 128, 128}, 330, .bidirectional = true}, 0},
        {1, {{2, 1, 64, 64}, 400, {.scale = 1}}, 0}, /* maxima grow by far more than 2^8 from tile to tile */
        {1, {{2, 1, 128, 128}, 400, {.scale = 0.7}}, 0},
        {1, {{2, 1, 256, 256}, 300, {.scale = 0.5}}, 0},
        {2, {{4, 2, 32, 32}, 140, {.cap = 3, .sinks = 1}}, 50}, /* soft-caps and sinks, of every width */
        {1, {{4, 2, 64, 64}, 300, {100, .cap = 4}}, 0},
        {1, {{2, 1, 64, 64}, 200, {.cap = 4, .alibi = 8, .sinks = 1}}, 70},
        {1, {{4, 2, 128, 128}, 300, {.scale = 0.3, .cap = 5, .sinks = 1}}, 130},
        {1, {{2, 1, 128, 128}, 200, {60, .cap = 5, .alibi = 8}}, 0},
        {1, {{2, 1, 256, 256}, 200, {130, .cap = 50, .sinks = 1}}, 0},
        {1, {{2, 1, 200, 200}, 140, {.cap = 2}}, 0},
        {2, {{8, 2, 64, 64}, 300, {128, .sinks = 1}}, 0},
        {1, {{3, 1, 17, 17}, 90, {.cap = 2, .sinks = 1}}, 0},
        {1, {{2, 2, 64, 64}, 140, {.cap = 3}, .bidirectional = true}, 75},
        {1, {{4, 2, 192, 128}, 200}, 70}, /* values narrower than keys, and wider; rows that are not whole chunks */
        {1, {{2, 1, 192, 128}, 140, {60, .cap = 5, .sinks = 1}}, 0},
        {1, {{2, 2, 192, 128}, 100, .bidirectional = true}, 75},
        {2, {{4, 1, 64, 32}, 140, {.alibi = 8}}, 50},
        {1, {{8, 2, 96, 64}, 140}, 0},
        {1, {{2, 1, 40, 100}, 140}, 0},
        {1, {{2, 1, 72, 256}, 100}, 33},
        {1, {{3, 1, 20, 12}, 140, {.sinks = 1}}, 0},
        {1, {{4, 1, 24, 13}, 70}, 0},
        {1, {{2, 1, 130, 9}, 70}, 0},
    };
    for (size_t i = 0; i < COUNT(longer); i++) {
        int32_t *positions = make_positions(&longer[i]);
        const void *argument[] = {&longer[i], positions};
        check_op(build_attention, argument, (CheckBounds){0});
        free(positions);
    }
}

/* What attention reads and makes, in whole sequences; gradients and sinks may be NULL. */
typedef struct Values { double *qkv, *sinks, *out, *d_out, *d_qkv, *d_sinks; } Values;

static Values values_create(const Shape *s) {
    int64_t cells = shape_rows(s) * heads_columns(&s->spec.heads), outs = shape_rows(s) * heads_out_columns(&s->spec.heads);
    Values v = {.qkv = memory_allocate(cells * sizeof(double)),
        .d_qkv = memory_allocate(cells * sizeof(double)),
        .out = memory_allocate(outs * sizeof(double)),
        .d_out = memory_allocate(outs * sizeof(double))};
    if (s->spec.scores.sinks) {
        v.sinks = memory_allocate(s->spec.heads.heads * sizeof(double));
        v.d_sinks = memory_allocate(s->spec.heads.heads * sizeof(double));
    }
    for (int64_t i = 0; i < cells; i++) v.qkv[i] = 3 * random_value(i); /* some softmaxes are sharp */
    for (int64_t i = 0; i < outs; i++) v.d_out[i] = random_value(i + 1000000);
    for (int64_t i = 0; v.sinks && i < s->spec.heads.heads; i++) v.sinks[i] = 2 * random_value(i + 2000000);
    return v;
}
static void values_free(Values *v) { free(v->qkv), free(v->sinks), free(v->out), free(v->d_out), free(v->d_qkv), free(v->d_sinks); }

/* One row and head of attention by its definition, over `seen` keys from `low` on. Gradients are added to, where given. */
static void reference_row(const Values *v, const AttentionSpec *spec, int64_t row, int64_t low, int64_t seen, int64_t head, double *out) {
    const Heads *h = &spec->heads;
    int64_t columns = heads_columns(h), kv_head = head / (h->heads / h->kv_heads), query = row * columns + head * h->qk_dim;
    int64_t key = low * columns + heads_query_columns(h) + kv_head * h->qk_dim;
    int64_t value = low * columns + heads_query_columns(h) + heads_key_columns(h) + kv_head * h->v_dim;
    const double *qkv = v->qkv, *d_out = v->d_qkv ? v->d_out + (row * h->heads + head) * h->v_dim : NULL;
    double *weight = memory_allocate(seen * sizeof *weight), *tangent = memory_allocate(seen * sizeof *tangent), delta = 0;
    double scale = spec->scores.scale > 0 ? spec->scores.scale : 1 / sqrt((double)h->qk_dim), slope = reference_slope(spec, head);
    double cap = spec->scores.cap, sink = v->sinks ? exp(v->sinks[head]) : 0, total = sink;
    for (int64_t k = 0; k < seen; k++) {
        double score = 0;
        for (int64_t j = 0; j < h->qk_dim; j++) score += scale * qkv[query + j] * qkv[key + k * columns + j];
        tangent[k] = cap > 0 ? tanh(score / cap) : 0;
        total += weight[k] = exp((cap > 0 ? cap * tangent[k] : score) - slope * (row - low - k));
    }
    memset(out, 0, h->v_dim * sizeof *out);
    for (int64_t k = 0; k < seen; k++)
        for (int64_t j = 0; j < h->v_dim; j++) out[j] += weight[k] / total * qkv[value + k * columns + j];
    for (int64_t j = 0; v->d_qkv && j < h->v_dim; j++) delta += out[j] * d_out[j];
    for (int64_t k = 0; v->d_qkv && k < seen; k++) {
        double d_weight = 0;
        for (int64_t j = 0; j < h->v_dim; j++) d_weight += d_out[j] * qkv[value + k * columns + j];
        double d_score = weight[k] / total * (d_weight - delta) * (1 - tangent[k] * tangent[k]) * scale;
        for (int64_t j = 0; j < h->qk_dim; j++) {
            v->d_qkv[query + j] += d_score * qkv[key + k * columns + j];
            v->d_qkv[key + k * columns + j] += d_score * qkv[query + j];
        }
        for (int64_t j = 0; j < h->v_dim; j++) v->d_qkv[value + k * columns + j] += weight[k] / total * d_out[j];
    }
    if (v->d_sinks) v->d_sinks[head] -= sink / total * delta;
    free(tangent), free(weight);
}

static double largest_difference(const double *a, const double *b, int64_t count) {
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(a[i] - b[i]) <= largest)) largest = fabs(a[i] - b[i]);
    return largest;
}

/* Compares the output, and the gradients where given, with the reference. */
static void compare_with_reference(const Shape *s, const Values *v, const int32_t *positions) {
    const Heads *h = &s->spec.heads;
    int64_t cells = shape_rows(s) * heads_columns(h);
    double *expected = memory_allocate(h->v_dim * sizeof *expected);
    Values reference = {.qkv = v->qkv, .sinks = v->sinks, .d_out = v->d_out};
    if (v->d_qkv) reference.d_qkv = memory_allocate(cells * sizeof(double));
    if (v->d_sinks) reference.d_sinks = memory_allocate(h->heads * sizeof(double));
    for (int64_t r = 0; r < shape_rows(s); r++) {
        int64_t back = positions[r] < r % s->spec.length ? positions[r] : r % s->spec.length;
        if (s->spec.scores.window && back > s->spec.scores.window - 1) back = s->spec.scores.window - 1;
        int64_t after = s->spec.bidirectional ? s->spec.length - 1 - r % s->spec.length : 0;
        for (int64_t head = 0; head < h->heads; head++) {
            const double *out = v->out + (r * h->heads + head) * h->v_dim;
            reference_row(&reference, &s->spec, r, r - back, back + 1 + after, head, expected);
            assert_true(largest_difference(out, expected, h->v_dim) < 1e-12); /* sums of a few hundred terms of order one, in double */
        }
    }
    /* likewise, with values of up to a hundred */
    if (v->d_qkv) assert_true(largest_difference(v->d_qkv, reference.d_qkv, cells) < 1e-11);
    if (v->d_sinks) assert_true(largest_difference(v->d_sinks, reference.d_sinks, h->heads) < 1e-11);
    free(reference.d_sinks), free(reference.d_qkv), free(expected);
}

/* Of a run: with sinks where the shape has some, else TENSOR_NONE. */
static TensorId run_sinks(Run *run, const Shape *s) {
    return s->spec.scores.sinks ? graph_parameter(run->graph, "sinks", PARAMETER_BIAS, 1, &s->spec.heads.heads, 0, 1, false) : TENSOR_NONE;
}
/* Fills the sinks and clears their gradient. */
static void fill_sinks(const Run *run, TensorId sinks, const Values *v) {
    if (!sinks) return;
    int64_t bytes = graph_elements(run->graph, sinks) * (int64_t)sizeof(double);
    memcpy(executor_tensor(run->program.executor, sinks), v->sinks, bytes);
    TensorId gradient = graph_get(run->graph, sinks)->gradient;
    if (gradient) memset(executor_tensor(run->program.executor, gradient), 0, bytes);
}

/* Runs attention and its gradient in fp64. */
static void attend(const Shape *s, const int32_t *places, Values *v) {
    int64_t rows = shape_rows(s), columns = heads_columns(&s->spec.heads), out_columns = heads_out_columns(&s->spec.heads);
    Run run = run_begin(true);
    AttentionSpec spec = s->spec;
    TensorId sinks = spec.scores.sinks = run_sinks(&run, s);
    TensorId x = input(&run, TYPE_COMPUTE, rows, columns), positions = input(&run, TYPE_INT32, rows, 1);
    TensorId seed = input(&run, TYPE_COMPUTE, rows, out_columns), y = op_attention(run.graph, x, positions, &spec);
    graph_differentiate(run.graph, RECOMPUTE_NONE, &(Seed){y, seed}, 1);
    TensorId gradient = graph_get(run.graph, x)->gradient;
    run.graph->tensors[y].keep = run.graph->tensors[gradient].keep = true;
    run_plan(&run);
    Executor *executor = run.program.executor;
    memcpy(executor_tensor(executor, x), v->qkv, rows * columns * sizeof(double));
    memcpy(executor_tensor(executor, seed), v->d_out, rows * out_columns * sizeof(double));
    memcpy(executor_tensor(executor, positions), places, rows * sizeof *places);
    fill_sinks(&run, sinks, v);
    memset(executor_arena(executor, ARENA_ACTIVATION), 0xff, run.program.plan.bytes[ARENA_ACTIVATION]);
    executor_run(executor);
    memcpy(v->out, executor_tensor(executor, y), rows * out_columns * sizeof(double));
    memcpy(v->d_qkv, executor_tensor(executor, gradient), rows * columns * sizeof(double));
    if (sinks) memcpy(v->d_sinks, executor_tensor(executor, graph_get(run.graph, sinks)->gradient), spec.heads.heads * sizeof(double));
    run_end(&run);
}

static void expect_reference(const Shape *s, const int32_t *positions) {
    Values v = values_create(s);
    attend(s, positions, &v);
    compare_with_reference(s, &v, positions);
    values_free(&v);
}

/* PyTorch 2.15 in fp64: a softmax over scores with a soft-cap of 2.5, a window of 3, and a sink of each of two heads. */
static void soft_caps_and_sinks_are_those_of_pytorch(void **state) {
    (void)state;
    const Shape s = {1, {{2, 1, 3, 2}, 5, {3, .scale = 0.7, .cap = 2.5, .sinks = 1}}, 0};
    static const double out[20] = {0.044504814936418231, 0.12148795906069768, 0.28604343721904324, 0.7808331174974017, 0.68899816371026257,
        0.52568001430312572, 0.92747167989352952, 2.488861710579171, 0.82670540456127017, 2.2067639387068825, 1.7371756296490712,
        2.2535297077535614, 0.19182331872962083, 0.011147669653095132, 1.4026712809833866, -0.044897996917805286, -0.05095175015833589,
        -1.6686737338563515, -1.3291236056167743, -2.1801142748790556};
    static const double d_qkv[55] = {-0.00066031677592354198, -0.00059676926510783426, -0.00025255184413492326, 0.42195728171102892,
        0.38134899202189476, 0.1613863126424929, -0.29775261879911408, -0.002759573633022319, 0.29353134213220738, 0.079068053313894701,
        -0.35915483506685042, -0.047838153756182458, 0.043445163030561874, 0.11429554079463454, -0.00053864729262374387,
        0.00046584828472809293, 0.0012512481346920654, -0.25917293647674838, -0.32058731098055965, -0.23122446381529813,
        -0.41499457467526268, 0.15161808761533196, 0.026581321611882446, 0.02385991434091668, 0.0099168165339720473, 0.014321967326644543,
        -0.028946966720431917, -0.058601690010057328, 0.024157933517468772, -0.021333583356721267, -0.056791582631810007,
        0.13257170270591589, 0.23120604203658918, -0.24262965486182841, 0.14259456420185621, 0.46075433161987966, 0.04215750015300896,
        -0.023737499810586829, -0.078468382704597495, 0.03926116424394463, 0.07340986452110014, 0.073032758453207822, 0.31191620555712896,
        -0.21194647129863134, -0.058273896892242216, -0.064958182119631003, -0.041091619296563117, -0.070145862571006593,
        0.0052945097971132324, 0.07824479147865275, -0.00056493786224326306, 0.0005372664543200769, 0.0013867859623967599,
        0.0044091935880588105, 0.0053623497116423672};
    static const double sinks[2] = {0.5, -1.25}, d_sinks[2] = {0.22095128812669773, 0.60717576188347111};
    int32_t *positions = make_positions(&s);
    Values v = values_create(&s);
    for (int i = 0; i < 55; i++) v.qkv[i] = 3 * sin(0.7 * i + 0.3);
    for (int i = 0; i < 20; i++) v.d_out[i] = cos(1.1 * i);
    memcpy(v.sinks, sinks, sizeof sinks);
    attend(&s, positions, &v);
    assert_true(largest_difference(v.out, out, 20) < 1e-14); /* a few roundings of double */
    assert_true(largest_difference(v.d_qkv, d_qkv, 55) < 1e-14);
    assert_true(largest_difference(v.d_sinks, d_sinks, 2) < 1e-14);
    values_free(&v);
    free(positions);
}

static void attention_and_its_gradient_are_those_of_a_softmax_over_what_a_row_sees(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++) {
        int32_t *positions = make_positions(&shapes[i]);
        expect_reference(&shapes[i], positions);
        free(positions);
    }
}

static void a_document_that_began_in_an_earlier_sequence_is_cut_at_the_sequence(void **state) {
    (void)state;
    Shape s = {2, {{1, 1, 4, 4}, 70}, 0};
    int32_t *positions = make_positions(&s);
    for (int64_t r = 0; r < shape_rows(&s); r++) positions[r] += 500;
    expect_reference(&s, positions);
    free(positions);
}

/* Documents of lengths 1, 2, 3, ...: boundaries fall everywhere in blocks. */
static void documents_of_all_lengths_stay_apart(void **state) {
    (void)state;
    Shape s = {2, {{2, 1, 8, 8}, 300}, 0};
    int32_t *positions = make_positions(&s);
    for (int64_t r = 0, length = 1, at = 0; r < shape_rows(&s); r++) {
        if (r % s.spec.length == 0 || at == length) at = 0, length++;
        positions[r] = (int32_t)at++;
    }
    expect_reference(&s, positions);
    free(positions);
}

/* -- Rows that ranks share out ------------------------------------------------------------------------------------ */

/* A rank's rows of a tensor of whole sequences, [rows, columns] of doubles, to `part`, or added to it from there. */
typedef enum Direction { TAKE, PUT } Direction;
static void move_rows(const Shape *s, TokenRows rows, int64_t columns, double *whole, int64_t stride, double *part, Direction direction) {
    for (int64_t i = 0; i < s->sequences * rows.rows; i++) {
        int64_t row = i / rows.rows * s->spec.length + token_of_row(&rows, (int32_t)(i % rows.rows));
        double *at = whole + row * stride, *own = part + i * columns;
        memcpy(direction == TAKE ? own : at, direction == TAKE ? at : own, columns * sizeof *own);
    }
}

/* Attention of a rank's queries over all keys, to the rank's rows of the output and its gradients; what it has for keys,
 * values and sinks is added. */
static void rank_of_context(const Shape *s, int64_t rank, int64_t ranks, const int32_t *values, const Values *v) {
    const Heads *h = &s->spec.heads;
    int64_t columns = heads_columns(h), queries = heads_query_columns(h), outs = heads_out_columns(h), kv_columns = columns - queries,
            all = shape_rows(s), rows = all / ranks;
    AttentionSpec spec = s->spec;
    spec.queries.rank = rank, spec.queries.ranks = ranks;
    TokenRows own = token_rows(spec.length, ranks, rank), whole = token_rows(spec.length, 1, 0);
    Run run = run_begin(true);
    TensorId sinks = spec.scores.sinks = run_sinks(&run, s);
    TensorId q = input(&run, TYPE_COMPUTE, rows, queries), kv = input(&run, TYPE_COMPUTE, all, kv_columns);
    TensorId positions = input(&run, TYPE_INT32, rows, 1), seed = input(&run, TYPE_COMPUTE, rows, outs);
    TensorId y = op_attention_over(run.graph, q, positions, kv, &spec);
    graph_differentiate(run.graph, RECOMPUTE_NONE, &(Seed){y, seed}, 1);
    TensorId d_q = graph_get(run.graph, q)->gradient, d_kv = graph_get(run.graph, kv)->gradient;
    run.graph->tensors[y].keep = run.graph->tensors[d_q].keep = run.graph->tensors[d_kv].keep = true;
    run_plan(&run);
    move_rows(s, own, queries, v->qkv, columns, executor_tensor(run.program.executor, q), TAKE);
    move_rows(s, whole, kv_columns, v->qkv + queries, columns, executor_tensor(run.program.executor, kv), TAKE);
    move_rows(s, own, outs, v->d_out, outs, executor_tensor(run.program.executor, seed), TAKE);
    fill_sinks(&run, sinks, v);
    int32_t *taken = executor_tensor(run.program.executor, positions);
    for (int64_t i = 0; i < rows; i++) taken[i] = values[i / own.rows * spec.length + token_of_row(&own, (int32_t)(i % own.rows))];
    memset(executor_arena(run.program.executor, ARENA_ACTIVATION), 0xff, run.program.plan.bytes[ARENA_ACTIVATION]);
    executor_run(run.program.executor);
    move_rows(s, own, outs, v->out, outs, executor_tensor(run.program.executor, y), PUT);
    move_rows(s, own, queries, v->d_qkv, columns, executor_tensor(run.program.executor, d_q), PUT);
    const double *partial = executor_tensor(run.program.executor, d_kv);
    for (int64_t i = 0; i < all * kv_columns; i++) v->d_qkv[i / kv_columns * columns + queries + i % kv_columns] += partial[i];
    const double *d_sinks = sinks ? executor_tensor(run.program.executor, graph_get(run.graph, sinks)->gradient) : NULL;
    for (int64_t i = 0; d_sinks && i < h->heads; i++) v->d_sinks[i] += d_sinks[i];
    run_end(&run);
}

static void expect_reference_of_ranks(const Shape *s, int64_t ranks, const int32_t *positions) {
    Values v = values_create(s);
    for (int64_t rank = 0; rank < ranks; rank++) rank_of_context(s, rank, ranks, positions, &v);
    compare_with_reference(s, &v, positions);
    values_free(&v);
}

/* Chunks smaller and larger than tiles, that end within, at and after tiles and documents; windows shorter and longer
 * than a chunk; one and several parts of work for each sequence. */
static const struct {
    Shape shape;
    int64_t ranks;
} contexts[] = {
    {{1, {{1, 1, 4, 4}, 4}, 0}, 2},
    {{3, {{4, 2, 6, 6}, 72}, 0}, 2},
    {{2, {{2, 2, 20, 20}, 66}, 1}, 3},
    {{1, {{2, 1, 18, 18}, 132}, 33}, 2},
    {{2, {{2, 1, 8, 8}, 512}, 128}, 2},
    {{2, {{2, 1, 8, 8}, 512}, 127}, 2},
    {{1, {{3, 1, 8, 8}, 512, {40}}, 129}, 4},
    {{1, {{2, 1, 8, 8}, 520, {200}}, 0}, 2},
    {{1, {{1, 1, 16, 16}, 200, {1}}, 0}, 4},
    {{4, {{16, 16, 3, 3}, 140}, 0}, 7},
    {{1, {{60, 30, 4, 4}, 336, {129}}, 190}, 3},
    {{2, {{6, 2, 20, 20}, 132, {.alibi = 8}}, 33}, 2},
    {{1, {{5, 5, 8, 8}, 152, {40, .scale = 0.7, .alibi = 2}}, 70}, 2},
    {{2, {{4, 2, 24, 16}, 132}, 33}, 2},
    {{1, {{60, 30, 3, 20}, 336}, 0}, 3},
    {{1, {{3, 1, 8, 8}, 512, {40, .cap = 5, .sinks = 1}}, 129}, 4},
};

static void ranks_that_share_out_queries_make_the_attention_of_whole_sequences(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(contexts); i++) {
        int32_t *positions = make_positions(&contexts[i].shape);
        expect_reference_of_ranks(&contexts[i].shape, contexts[i].ranks, positions);
        free(positions);
    }
}

/* Queries of one rank over all keys, or those of one rank. */
typedef struct Over {
    Shape shape;
    int64_t ranks, queries, keys; /* keys -1: all */
} Over;

static void build_over(Check *check, const void *argument) {
    const Over *o = *(const Over *const *)argument;
    const int32_t *positions = *((const int32_t *const *)argument + 1);
    AttentionSpec spec = checked_spec(check, &o->shape);
    const Heads *h = &spec.heads;
    int64_t all = shape_rows(&o->shape), rows = all / o->ranks;
    spec.queries.rank = o->queries, spec.queries.ranks = o->ranks;
    if (o->keys >= 0) spec.keys.rank = o->keys, spec.keys.ranks = o->ranks;
    TensorId q = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_query_columns(h)}, 0, 1);
    TensorId kv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){o->keys < 0 ? all : rows, heads_kv_columns(h)}, 0, 1);
    check_output(check, op_attention_over(check->graph, q, check_integers(check, 1, &rows, positions), kv, &spec));
}

static void check_over(const Over *o) {
    const Shape *s = &o->shape;
    TokenRows own = token_rows(s->spec.length, o->ranks, o->queries);
    int32_t *whole = make_positions(s), *positions = memory_allocate(shape_rows(s) * sizeof *positions);
    for (int64_t i = 0; i < s->sequences * own.rows; i++)
        positions[i] = whole[i / own.rows * s->spec.length + token_of_row(&own, (int32_t)(i % own.rows))];
    check_op(build_over, (const void *[]){o, positions}, (CheckBounds){0});
    free(positions), free(whole);
}

static void a_rank_of_context_agrees_in_all_precisions(void **state) {
    (void)state;
    static const Over over[] = {
        {{1, {{2, 1, 6, 6}, 72}, 0}, 2, 0, -1},
        {{2, {{1, 1, 16, 16}, 72, {20}}, 17}, 2, 1, -1},
        {{1, {{2, 1, 6, 6}, 48}, 0}, 2, 0, 0}, /* own keys */
        {{1, {{2, 1, 6, 6}, 48}, 0}, 2, 0, 1}, /* half the queries see none of the keys */
        {{1, {{2, 1, 6, 6}, 48, {.alibi = 8}}, 0}, 2, 1, 0},
        {{2, {{1, 1, 8, 8}, 72, {10}}, 30}, 3, 1, 2},
        {{1, {{2, 2, 32, 32}, 132, {.alibi = 4}}, 0}, 2, 1, 1},
        {{1, {{2, 1, 64, 64}, 200}, 70}, 2, 1, -1},
        {{1, {{2, 1, 128, 128}, 160}, 0}, 2, 0, 1},
        {{1, {{1, 1, 200, 200}, 96}, 0}, 3, 2, 1},
    };
    for (size_t i = 0; i < COUNT(over); i++) check_over(&over[i]);
}

/* Chunks of many tiles, chunks within tiles, and blocks of keys that no query sees; too long for central differences. */
static void a_rank_of_context_agrees_on_a_gpu_over_many_tiles(void **state) {
    (void)state;
    check_gpu();
    static const Over longer[] = {
        {{2, {{2, 1, 64, 64}, 1024}, 0}, 2, 0, -1},
        {{1, {{2, 1, 128, 128}, 1024}, 0}, 2, 1, -1},
        {{1, {{2, 2, 64, 64}, 776, {300}}, 0}, 2, 1, -1},
        {{1, {{4, 2, 128, 128}, 648, {300, .alibi = 8}}, 0}, 2, 0, -1},
        {{2, {{2, 1, 64, 64}, 1200}, 410}, 4, 1, -1},
        {{2, {{2, 1, 128, 128}, 1200}, 33}, 4, 3, -1},
        {{2, {{2, 1, 64, 64}, 512}, 0}, 2, 0, 0},
        {{2, {{2, 1, 128, 128}, 512}, 0}, 2, 0, 1},
        {{2, {{4, 1, 64, 64}, 512}, 0}, 2, 1, 0},
        {{1, {{4, 2, 64, 64}, 600, {.alibi = 8}}, 0}, 2, 0, 1},
        {{1, {{4, 2, 128, 128}, 1200, {200, .alibi = 8}}, 0}, 4, 2, 1},
        {{1, {{4, 2, 96, 96}, 600, {200}}, 250}, 3, 2, 1},
        {{8, {{12, 12, 64, 64}, 512}, 100}, 2, 1, 1}, /* more blocks of keys than processors */
        {{1, {{4, 2, 64, 64}, 512, {.cap = 4, .sinks = 1}}, 100}, 2, 1, 0},
        {{1, {{2, 1, 128, 128}, 512, {.sinks = 1}}, 0}, 2, 0, 1}, /* half the queries see only a sink */
        {{1, {{4, 2, 192, 128}, 256}, 100}, 2, 1, -1},
    };
    for (size_t i = 0; i < COUNT(longer); i++) check_over(&longer[i]);
}

static void build_split(Check *check, const void *argument) {
    const Shape *s = argument;
    int64_t shape[] = {shape_rows(s), heads_columns(&s->spec.heads)};
    AttentionParts parts = op_attention_split(check->graph, check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), &s->spec.heads);
    check_output(check, parts.queries);
    check_output(check, parts.kv);
}

static void build_order(Check *check, const void *argument) {
    const Over *o = argument;
    int64_t shape[] = {shape_rows(&o->shape), heads_columns(&o->shape.spec.heads)};
    check_output(check, op_attention_order(check->graph, check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), o->shape.spec.length, o->ranks));
}

static void build_sum(Check *check, const void *argument) {
    const Over *o = argument; /* keys 0: the sum so far is none */
    const Heads *h = &o->shape.spec.heads;
    int64_t shape[] = {shape_rows(&o->shape), heads_out_columns(h)}, logs[] = {shape_rows(&o->shape), h->heads};
    TensorId part = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), part_log = check_input(check, TYPE_WIDE, 2, logs, 0, 3);
    TensorId sum = o->keys ? check_input(check, TYPE_WIDE, 2, shape, 0, 1) : TENSOR_NONE;
    TensorId log = o->keys ? check_input(check, TYPE_WIDE, 2, logs, 0, 3) : TENSOR_NONE;
    TypeClass type = o->queries ? TYPE_WIDE : TYPE_COMPUTE;
    TensorId next = graph_activation_like(check->graph, type, part, "sum"),
             next_log = graph_activation_like(check->graph, TYPE_WIDE, part_log, "log_sum_exp");
    Inputs in = {[ATTENTION_SUM_SUM] = sum, [ATTENTION_SUM_LOG] = log, [ATTENTION_SUM_PART] = part, [ATTENTION_SUM_PART_LOG] = part_log};
    Outputs out = {[ATTENTION_SUM_NEXT_LOG] = next_log};
    out[type == TYPE_WIDE ? ATTENTION_SUM_NEXT : ATTENTION_SUM_LAST] = next;
    graph_node(check->graph, OP_attention_sum, in, out, NULL, 0);
    check_output(check, next);
    check_output(check, next_log);
}

static void build_ring(Check *check, const void *argument) {
    const Shape *s = argument;
    const Heads *h = &s->spec.heads;
    AttentionSpec spec = checked_spec(check, s);
    int64_t rows = shape_rows(s);
    static const int32_t positions[100] = {[5] = 5, [6] = 6, [7] = 7, [30] = 20, [31] = 21};
    spec.queries.ranks = 1;
    TensorId q = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_query_columns(h)}, 0, 1);
    TensorId kv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_kv_columns(h)}, 0, 1);
    check_output(check, op_attention_ring(check->graph, q, check_integers(check, 1, &rows, positions), kv, &spec));
}

/* What more than one rank does is tested by ranks (test_attention_ranks.c). */
static void what_ranks_do_around_attention_agrees_in_all_precisions(void **state) {
    (void)state;
    static const Over moved[] = {
        {{2, {{3, 1, 7, 7}, 24}, 0}, 2, 0, 0},
        {{1, {{4, 2, 16, 16}, 36}, 0}, 3, 1, 1},
        {{3, {{2, 1, 8, 8}, 8}, 0}, 1, 1, 0},
        {{1, {{4, 2, 16, 16}, 36}, 0}, 3, 0, 1},
    };
    for (size_t i = 0; i < COUNT(moved); i++) {
        check_op(build_split, &moved[i].shape, (CheckBounds){0});
        check_op(build_order, &moved[i], (CheckBounds){0});
        check_op(build_sum, &moved[i], (CheckBounds){.forward_only = true});
        check_op(build_ring, &moved[i].shape, (CheckBounds){0});
    }
}

/* -- Attention with a cache ---------------------------------------------------------------------------------------- */

enum { CONTEXT = 200, MOST_RANKS = 5 };

static const Shape cached_shapes[] = {
    {1, {{4, 2, 8, 8}, CONTEXT}, 0},
    {1, {{3, 1, 20, 20}, CONTEXT, {30}}, 0},
    {1, {{2, 2, 6, 6}, CONTEXT, {1}}, 0},
    {1, {{70, 1, 4, 4}, CONTEXT}, 0},
    {1, {{6, 2, 8, 8}, CONTEXT, {.alibi = 8}}, 0},
    {1, {{5, 5, 12, 12}, CONTEXT, {30, .scale = 0.4, .alibi = 8}}, 0},
    {1, {{2, 1, 8, 8}, CONTEXT, {.alibi = 8}, .first_head = 4, .all_heads = 6}, 0},
    {1, {{4, 2, 24, 16}, CONTEXT}, 0},
    {1, {{3, 1, 6, 20}, CONTEXT, {30}}, 0},
    {1, {{4, 2, 8, 8}, CONTEXT, {.cap = 3, .sinks = 1}}, 0},
    {1, {{5, 5, 12, 12}, CONTEXT, {30, .scale = 0.4, .cap = 8, .alibi = 8, .sinks = 1}}, 0},
};

static Mesh sharing(int rank, int ranks) { return (Mesh){.size = {1, 1, 1, ranks, 1, 1, 1}, .at[AXIS_CP] = rank, .row_blocks = 1}; }

/* What a rank makes of `rows` new rows from position `first` on, over its cache, which lives outside: [rows, columns of
 * a part], or with one rank the output. Returns how many elements that is. */
static int64_t run_cached(const Shape *s, const Values *v, int64_t first, int64_t rows, const Mesh *mesh, double *cache, double *out) {
    int64_t columns = heads_columns(&s->spec.heads), cached = heads_kv_columns(&s->spec.heads);
    Run run = run_begin(false);
    AttentionSpec spec = s->spec;
    TensorId sinks = spec.scores.sinks = run_sinks(&run, s);
    run.graph->mesh = mesh;
    int64_t shape[] = {attention_cache_rows(run.graph, CONTEXT), cached}, cells = shape[0] * cached;
    TensorId x = input(&run, TYPE_COMPUTE, rows, columns), positions = input(&run, TYPE_INT32, rows, 1);
    TensorId memory = graph_tensor(run.graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "cache");
    bool whole = mesh_size(mesh, MESH(AXIS_CP)) == 1;
    spec.length = rows;
    TensorId y = whole ? op_attention_cached(run.graph, x, positions, memory, TENSOR_NONE, &spec)
                       : op_attention_part(run.graph, x, positions, memory, &spec);
    run.graph->tensors[y].keep = true;
    run_plan(&run);
    fill_sinks(&run, sinks, v);
    memset(executor_arena(run.program.executor, ARENA_ACTIVATION), 0xff, run.program.plan.bytes[ARENA_ACTIVATION]);
    memcpy(executor_tensor(run.program.executor, x), v->qkv + first * columns, rows * columns * sizeof *v->qkv);
    memcpy(executor_tensor(run.program.executor, memory), cache, cells * sizeof *cache);
    for (int64_t r = 0; r < rows; r++) ((int32_t *)executor_tensor(run.program.executor, positions))[r] = (int32_t)(first + r);
    executor_run(run.program.executor);
    memcpy(cache, executor_tensor(run.program.executor, memory), cells * sizeof *cache);
    int64_t count = graph_elements(run.graph, y);
    memcpy(out, executor_tensor(run.program.executor, y), count * sizeof *out);
    run_end(&run);
    return count;
}

static void combine_parts(const AttentionSpec *spec, int64_t rows, const Mesh *mesh, const double *parts, double *out) {
    int64_t columns = attention_part_columns(&spec->heads), ranks = mesh_size(mesh, MESH(AXIS_CP));
    Run run = run_begin(false);
    run.graph->mesh = mesh;
    TensorId x = input(&run, TYPE_WIDE, ranks * rows, columns), y = op_attention_combine(run.graph, x, spec);
    run.graph->tensors[y].keep = true;
    run_plan(&run);
    memcpy(executor_tensor(run.program.executor, x), parts, ranks * rows * columns * sizeof *parts);
    executor_run(run.program.executor);
    memcpy(out, executor_tensor(run.program.executor, y), graph_elements(run.graph, y) * sizeof *out);
    run_end(&run);
}

/* A prefix in chunks, over a cache that `ranks` ranks share, gives what a softmax over the whole gives. */
static void expect_cached(const Shape *s, int ranks) {
    static const int64_t chunks[] = {1, 1, 60, 5, 64, 2, 66, 1};
    const Heads *h = &s->spec.heads;
    int64_t columns = heads_columns(h), cells = CONTEXT * heads_kv_columns(h), out_columns = heads_out_columns(h);
    Values v = values_create(s);
    double *cache = memory_allocate(ranks * cells * sizeof *cache), *parts = memory_allocate(ranks * CONTEXT * 2 * columns * sizeof *parts);
    for (int64_t j = 0; j < ranks * cells; j++) cache[j] = NAN; /* rows not yet written must not be read */
    for (int64_t j = 0, at = 0; j < (int64_t)COUNT(chunks); at += chunks[j++]) {
        double *next = parts;
        for (int rank = 0; rank < ranks; rank++) {
            Mesh mesh = sharing(rank, ranks);
            next += run_cached(s, &v, at, chunks[j], &mesh, cache + rank * cells, ranks == 1 ? v.out + at * out_columns : next);
        }
        Mesh mesh = sharing(0, ranks);
        if (ranks > 1) combine_parts(&s->spec, chunks[j], &mesh, parts, v.out + at * out_columns);
    }
    int32_t *positions = make_positions(s);
    compare_with_reference(s, &(Values){.qkv = v.qkv, .sinks = v.sinks, .out = v.out}, positions);
    values_free(&v);
    free(positions), free(parts), free(cache);
}

static void a_prefix_in_chunks_gives_what_the_whole_gives(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(cached_shapes); i++) expect_cached(&cached_shapes[i], 1);
}

/* 200 positions are 4 blocks: of 5 ranks one never has a key. */
static void ranks_that_share_a_cache_give_what_the_whole_gives(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(cached_shapes); i++)
        for (int ranks = 2; ranks <= MOST_RANKS; ranks++) expect_cached(&cached_shapes[i], ranks);
}

static void every_position_has_one_rank_and_one_row(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++)
        for (int64_t position = 0; position < 3000; position++) {
            int owners = 0;
            for (int rank = 0; rank < ranks; rank++) {
                BlockCyclic cyclic = {rank, ranks};
                int64_t row = block_cyclic_rows(cyclic, position);
                owners += block_cyclic_has(cyclic, position);
                assert_int_equal(block_cyclic_rows(cyclic, position + 1), row + block_cyclic_has(cyclic, position));
                if (block_cyclic_has(cyclic, position)) assert_int_equal(block_cyclic_position(cyclic, row), position);
                assert_in_range(row, position / ranks > BLOCK_CYCLIC_ROWS ? position / ranks - BLOCK_CYCLIC_ROWS : 0,
                    position / ranks + BLOCK_CYCLIC_ROWS);
            }
            assert_int_equal(owners, 1);
        }
}

/* `document` is the rank of two that computes its part; positions begin in block 1, so that rank 1 too has a key for
 * each row. */
static void build_part(Check *check, const void *argument) {
    static const Mesh meshes[] = {
        {.size = {1, 1, 1, 2, 1, 1, 1}, .row_blocks = 1}, {.size = {1, 1, 1, 2, 1, 1, 1}, .at[AXIS_CP] = 1, .row_blocks = 1}};
    static int32_t positions[200];
    const Shape *s = argument;
    int64_t rows = s->spec.length, cached = heads_kv_columns(&s->spec.heads);
    check->graph->mesh = &meshes[s->document];
    for (int32_t i = 0; i < 200; i++) positions[i] = BLOCK_CYCLIC_ROWS + i;
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_columns(&s->spec.heads)}, 0, 1);
    int64_t shape[] = {attention_cache_rows(check->graph, 300), cached};
    TensorId cache = graph_tensor(check->graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "cache");
    check_output(check, op_attention_part(check->graph, qkv, check_integers(check, 1, &rows, positions), cache, &s->spec));
}

static void build_combine(Check *check, const void *argument) {
    static const Mesh mesh = {.size = {1, 1, 1, 3, 1, 1, 1}, .row_blocks = 1};
    const Shape *s = argument;
    check->graph->mesh = &mesh;
    int64_t shape[] = {3 * s->spec.length, attention_part_columns(&s->spec.heads)};
    check_output(check, op_attention_combine(check->graph, check_input(check, TYPE_WIDE, 2, shape, 0, 2), &s->spec));
}

static void parts_of_ranks_agree_in_all_precisions(void **state) {
    (void)state;
    static const Shape parts[] = {
        {1, {{8, 2, 17, 17}, 150}, 0},
        {1, {{8, 2, 17, 17}, 150}, 1},
        {1, {{6, 3, 64, 64}, 130, {.alibi = 8}}, 0},
        {1, {{6, 3, 64, 64}, 130, {.alibi = 8}}, 1},
        {1, {{4, 1, 128, 128}, 1}, 1},
        {1, {{3, 3, 32, 32}, 60, {20}}, 1},
    };
    for (size_t i = 0; i < COUNT(parts); i++) {
        check_op(build_part, &parts[i], (CheckBounds){.forward_only = true});
        check_op(build_combine, &parts[i], (CheckBounds){.forward_only = true});
    }
}

/* `document` is the number of rows of the cache beyond the new ones, which stay unwritten. */
static void build_cached(Check *check, const void *argument) {
    const Shape *s = argument;
    static const int32_t positions[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
    int64_t rows = s->spec.length, cached = heads_kv_columns(&s->spec.heads);
    TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_columns(&s->spec.heads)}, 0, 1);
    TensorId cache = graph_tensor(check->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){rows + s->document, cached}, "cache");
    check_output(check, op_attention_cached(check->graph, qkv, check_integers(check, 1, &rows, positions), cache, TENSOR_NONE, &s->spec));
}

static void cached_attention_agrees_in_all_precisions(void **state) {
    (void)state;
    static const Shape cached[] = {
        {1, {{1, 1, 1, 1}, 1}, 0},
        {1, {{8, 2, 17, 17}, 21}, 0},
        {1, {{3, 3, 64, 64}, 20, {6}}, 0},
        {1, {{6, 3, 9, 9}, 21, {.alibi = 8}}, 0},
        {1, {{2, 1, 9, 9}, 21, {.alibi = 8}, .first_head = 3, .all_heads = 6}, 0},
        {1, {{4, 1, 128, 128}, 1}, 700},
        {1, {{4, 2, 256, 256}, 21}, 300},
    };
    for (size_t i = 0; i < COUNT(cached); i++) check_op(build_cached, &cached[i], (CheckBounds){.forward_only = true});
}

/* New rows, `sequences` of them, after a prompt of spec.length rows that fills a cache; `document` is 0, or which rank of two
 * computes its part, from 1. The prompt's attention only sees its own row, for speed. */
static void build_decoded(Check *check, const void *argument) {
    static const Mesh meshes[] = {
        {.size = {1, 1, 1, 2, 1, 1, 1}, .row_blocks = 1}, {.size = {1, 1, 1, 2, 1, 1, 1}, .at[AXIS_CP] = 1, .row_blocks = 1}};
    static int32_t positions[1000];
    const Shape *s = argument;
    int64_t cached = heads_kv_columns(&s->spec.heads);
    if (s->document) check->graph->mesh = &meshes[s->document - 1];
    for (int32_t i = 0; i < (int32_t)COUNT(positions); i++) positions[i] = i;
    int64_t shape[] = {attention_cache_rows(check->graph, COUNT(positions)), cached};
    TensorId cache = graph_tensor(check->graph, ARENA_STATE, TYPE_COMPUTE, 2, shape, "cache");
    for (int64_t part = 0; part < 2; part++) {
        int64_t rows = part ? s->sequences : s->spec.length;
        AttentionSpec spec = part ? checked_spec(check, s) : s->spec;
        if (!part) spec.scores.sinks = TENSOR_NONE;
        spec.length = rows;
        if (!part) spec.scores.window = 1;
        TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_columns(&spec.heads)}, 0, 1);
        TensorId places = check_integers(check, 1, &rows, positions + part * s->spec.length);
        TensorId out = s->document ? op_attention_part(check->graph, qkv, places, cache, &spec)
                                   : op_attention_cached(check->graph, qkv, places, cache, TENSOR_NONE, &spec);
        if (part) check_output(check, out);
    }
}

/* With device_set_exact too, whose kernels an emulator does not have. */
static void check_cached(void (*build)(Check *check, const void *argument), const Shape *shape) {
    check_op(build, shape, (CheckBounds){.forward_only = true});
    if (!check_device() || device_info(check_device())->emulated) return;
    device_set_exact(check_device(), true);
    check_op(build, shape, (CheckBounds){.forward_only = true});
    device_set_exact(check_device(), false);
}

/* On a GPU the keys of few rows are shared out over chunks, the waves of a block and their tiles: of every width, of one tile
 * and of several to a wave, with all rows of a tile in use and with one. Those of many rows are cut into chunks alone. */
static void new_rows_agree_over_a_long_cache(void **state) {
    (void)state;
    static const Shape decoded[] = {
        {1, {{8, 2, 64, 64}, 900}, 0},
        {1, {{8, 2, 64, 64}, 63, {.scale = 0.5}}, 0},
        {4, {{4, 1, 128, 128}, 310, {.scale = 0.3}}, 0},
        {5, {{6, 2, 40, 40}, 400, {100}}, 0},
        {1, {{2, 1, 256, 256}, 500, {.scale = 0.2}}, 0},
        {3, {{4, 2, 200, 200}, 290, {130, .alibi = 8}}, 0},
        {1, {{3, 3, 9, 9}, 150, {.alibi = 8}}, 0},
        {1, {{150, 150, 8, 8}, 700}, 0},
        {2, {{8, 2, 64, 64}, 700, {.scale = 0.4}}, 1},
        {2, {{8, 2, 64, 64}, 700, {.alibi = 8}}, 2},
        {1, {{6, 3, 17, 17}, 500, {200}}, 2},
        {1, {{2, 2, 32, 32}, 30}, 1},
        {70, {{4, 1, 64, 64}, 500, {.scale = 0.4}}, 0},
        {40, {{4, 2, 64, 64}, 600, {.scale = 0.4}}, 2},
        {1, {{8, 2, 64, 64}, 300, {.cap = 3, .sinks = 1}}, 0},
        {1, {{8, 2, 64, 64}, 300, {.sinks = 1}}, 1},
        {2, {{4, 2, 32, 32}, 200, {.cap = 3, .sinks = 1}}, 2},
        {3, {{4, 1, 128, 128}, 200, {100, .cap = 4}}, 0},
        {1, {{2, 1, 256, 256}, 200, {.cap = 5, .sinks = 1}}, 0},
        {70, {{4, 1, 64, 64}, 300, {.cap = 4, .sinks = 1}}, 0},
        {150, {{8, 8, 16, 16}, 100, {.sinks = 1}}, 0}, /* so many rows that keys are not cut */
        {1, {{16, 16, 192, 128}, 200}, 0},
        {2, {{4, 1, 192, 128}, 200, {.sinks = 1}}, 2},
        {70, {{4, 4, 192, 128}, 150}, 0},
        {1, {{2, 1, 40, 100}, 200, {.scale = 0.4}}, 0},
        {3, {{4, 2, 24, 13}, 200}, 0},
    };
    for (size_t i = 0; i < COUNT(decoded); i++) check_cached(build_decoded, &decoded[i]);
}

/* New rows of several sequences in one cache: a prompt of spec.length rows each, whose attention only sees its own row, then
 * s->document rows each. The second sequence's rows come before the first one's. */
static void build_sequences(Check *check, const void *argument) {
    enum { SEQUENCES = 3, GAP = 7 };
    static int32_t positions[2][2000], first_rows[SEQUENCES];
    const Shape *s = argument;
    int64_t most = s->spec.length + s->document, sequences = SEQUENCES;
    assert_true(SEQUENCES * most <= 2000);
    for (int i = 0; i < SEQUENCES; i++) first_rows[i] = (int32_t)((i ^ (i < 2)) * (most + GAP));
    TensorId cache = graph_tensor(
        check->graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){SEQUENCES * (most + GAP), heads_kv_columns(&s->spec.heads)}, "cache");
    for (int part = 0; part < 2; part++) {
        AttentionSpec spec = part ? checked_spec(check, s) : s->spec;
        if (!part) spec.scores.sinks = TENSOR_NONE, spec.scores.window = 1;
        else spec.length = s->document;
        int64_t rows = SEQUENCES * spec.length;
        for (int64_t r = 0; r < rows; r++) positions[part][r] = (int32_t)(r % spec.length + part * s->spec.length);
        TensorId qkv = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){rows, heads_columns(&spec.heads)}, 0, 1);
        TensorId out = op_attention_cached(check->graph, qkv, check_integers(check, 1, &rows, positions[part]), cache,
            check_integers(check, 1, &sequences, first_rows), &spec);
        if (part) check_output(check, out);
    }
}

static void sequences_that_share_a_cache_agree(void **state) {
    (void)state;
    static const Shape shapes[] = {
        {1, {{8, 2, 64, 64}, 300, {.scale = 0.4}}, 1},
        {1, {{4, 1, 128, 128}, 140, {.scale = 0.3}}, 4},
        {1, {{8, 2, 64, 64}, 200, {.scale = 0.4}}, 40},
        {1, {{6, 2, 40, 40}, 250, {100}}, 5},
        {1, {{3, 3, 9, 9}, 150, {.alibi = 8}}, 1},
        {1, {{8, 2, 64, 64}, 100, {.cap = 3, .sinks = 1}}, 1},
        {1, {{16, 16, 192, 128}, 100}, 1},
        {1, {{4, 2, 24, 13}, 100}, 30},
    };
    for (size_t i = 0; i < COUNT(shapes); i++) check_cached(build_sequences, &shapes[i]);
}

/* A sequence has the bits that it has alone. */
static void a_sequence_beside_others_has_the_bits_it_has_alone(void **state) {
    (void)state;
    enum { SEQUENCES = 3 };
    const Shape *s = &cached_shapes[1];
    Values v = values_create(s);
    int64_t columns = heads_columns(&s->spec.heads), cached = heads_kv_columns(&s->spec.heads),
            out_columns = heads_out_columns(&s->spec.heads);
    SCOPED_FREE double *caches = memory_allocate(SEQUENCES * CONTEXT * cached * sizeof *caches);
    SCOPED_FREE double *alone = memory_allocate(SEQUENCES * out_columns * sizeof *alone);
    const Mesh whole = sharing(0, 1);
    Run run = run_begin(false);
    AttentionSpec spec = s->spec;
    spec.length = 1;
    TensorId x = input(&run, TYPE_COMPUTE, SEQUENCES, columns), positions = input(&run, TYPE_INT32, SEQUENCES, 1);
    TensorId first_rows = input(&run, TYPE_INT32, SEQUENCES, 1);
    TensorId memory = graph_tensor(run.graph, ARENA_STATE, TYPE_COMPUTE, 2, (int64_t[]){SEQUENCES * CONTEXT, cached}, "cache");
    TensorId y = op_attention_cached(run.graph, x, positions, memory, first_rows, &spec);
    run.graph->tensors[y].keep = true;
    run_plan(&run);
    for (int64_t i = 0; i < SEQUENCES; i++) {
        int64_t before = 20 + 60 * i;
        SCOPED_FREE double *prompt = memory_allocate(before * out_columns * sizeof *prompt);
        run_cached(s, &v, 0, before, &whole, caches + i * CONTEXT * cached, prompt);
        memcpy((double *)executor_tensor(run.program.executor, memory) + i * CONTEXT * cached, caches + i * CONTEXT * cached,
            CONTEXT * cached * sizeof *caches);
        run_cached(s, &v, before, 1, &whole, caches + i * CONTEXT * cached, alone + i * out_columns);
        memcpy((double *)executor_tensor(run.program.executor, x) + i * columns, v.qkv + before * columns, columns * sizeof *v.qkv);
        ((int32_t *)executor_tensor(run.program.executor, positions))[i] = (int32_t)before;
        ((int32_t *)executor_tensor(run.program.executor, first_rows))[i] = (int32_t)(i * CONTEXT);
    }
    executor_run(run.program.executor);
    assert_memory_equal(executor_tensor(run.program.executor, y), alone, SEQUENCES * out_columns * sizeof *alone);
    run_end(&run);
    values_free(&v);
}

static void heads_of_more_than_256_channels_are_refused_on_a_gpu(void **state) {
    (void)state;
    check_gpu();
    Error error = {0};
    Device *device = device_open(device_info(check_device())->kind, 0, &error); /* its own: a failure stays */
    assert_non_null(device);
    AttentionSpec spec = {{1, 1, 320, 128}, 8};
    Graph *graph = graph_create(PRECISION_BF16, false);
    TensorId qkv = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){8, heads_columns(&spec.heads)}, "qkv");
    op_attention(graph, qkv, graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &spec.length, "positions"), &spec);
    Program program = check_program((Model){.graph = graph}, device);
    executor_run(program.executor);
    assert_false(device_ok(device, &error));
    assert_non_null(strstr(error.message, "320 channels of queries and keys and 128 of values"));
    assert_non_null(strstr(error.message, "at most 256"));
    program_free(&program);
    device_close(device);
}

/* -- Speed --------------------------------------------------------------------------------------------------------- */

/* On the device; bf16 of random sign and about 0.5 to 1, since clocks depend on the data. */
static void *speed_values(int64_t count) {
    Error error = {0};
    uint16_t *values = memory_allocate((size_t)count * 2);
    void *memory = device_allocate(check_device(), count * 2, &error);
    if (!memory) fail_msg("%s", error.message);
    for (int64_t i = 0; i < count; i++)
        values[i] = (uint16_t)(0x3f00 | ((uint64_t)i * 0x9e3779b97f4a7c15u >> 40 & 0x807f)); /* sign and mantissa */
    device_upload(check_device(), memory, values, count * 2);
    free(values);
    return memory;
}

typedef struct Timed {
    OpId op;
    const OpCall *call;
} Timed;

static void run_kernel(const void *what) {
    const Timed *timed = what;
    gpu_kernels[timed->op]->run(timed->call);
}

/* FLOP as usual: two GEMMs over all seen pairs forward, five backward. */
static void speed_of_shape(const Shape *s) {
    const Heads *h = &s->spec.heads;
    Error error = {0};
    int64_t rows = shape_rows(s), columns = heads_columns(h), out_columns = heads_out_columns(h), workspace = 1 << 30;
    void *qkv = speed_values(rows * columns), *out = speed_values(rows * out_columns), *d_out = speed_values(rows * out_columns);
    void *d_qkv = speed_values(rows * columns), *log_sum = speed_values(2 * rows * h->heads), *positions = speed_values(2 * rows);
    void *scratch = device_allocate(check_device(), workspace, &error);
    if (!scratch) fail_msg("%s", error.message);
    int32_t *values = make_positions(s);
    device_upload(check_device(), positions, values, rows * 4);
    OpCall forward = {.device = check_device(),
        .attributes = &s->spec,
        .in = {qkv, positions},
        .in_shape = {{rows, columns, 1, 1}},
        .out = {out, log_sum},
        .workspace = scratch};
    OpCall backward = {.device = check_device(),
        .attributes = &s->spec,
        .in = {[ATTENTION_QKV] = qkv,
            [ATTENTION_POSITIONS] = positions,
            [ATTENTION_GRAD_D_OUT] = d_out,
            [ATTENTION_GRAD_OUT] = out,
            [ATTENTION_GRAD_LOG_SUM] = log_sum},
        .in_shape = {[ATTENTION_QKV] = {rows, columns, 1, 1}},
        .out = {d_qkv},
        .workspace = scratch};
    double pairs = (double)s->spec.length * (s->spec.length + 1) / 2 * s->sequences * h->heads,
           forward_flops = 2 * pairs * (h->qk_dim + h->v_dim), backward_flops = 2 * pairs * (3 * h->qk_dim + 2 * h->v_dim);
    double there = check_median_seconds(run_kernel, &(Timed){OP_attention, &forward});
    double back = check_median_seconds(run_kernel, &(Timed){OP_attention_grad, &backward});
    print_message(
        "%ld x %ld rows, %ld heads of %ld and %ld, %ld of keys: forward %8.1f us %6.1f TFLOP/s, backward %8.1f us %6.1f TFLOP/s\n",
        (long)s->sequences, (long)s->spec.length, (long)h->heads, (long)h->qk_dim, (long)h->v_dim, (long)h->kv_heads, there * 1e6,
        forward_flops / there / 1e12, back * 1e6, backward_flops / back / 1e12);
    void *memory[] = {qkv, out, d_out, d_qkv, log_sum, positions, scratch};
    int64_t bytes[] = {
        rows * columns * 2, rows * out_columns * 2, rows * out_columns * 2, rows * columns * 2, rows * h->heads * 4, rows * 4, workspace};
    for (size_t i = 0; i < COUNT(memory); i++) device_free(check_device(), memory[i], bytes[i]);
    free(values);
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
}

/* One new row at position `used` - 1 of a cache of spec.length rows; the bytes are those of the keys and values it sees. */
static void speed_of_decoding(const Shape *s, int32_t used) {
    const Heads *h = &s->spec.heads;
    Error error = {0};
    int64_t columns = heads_columns(h), cached = heads_kv_columns(h), workspace = 1 << 28;
    int64_t counts[] = {columns, heads_out_columns(h), s->spec.length * cached, 2};
    void *qkv = speed_values(counts[0]), *out = speed_values(counts[1]), *cache = speed_values(counts[2]),
         *position = speed_values(counts[3]);
    void *scratch = device_allocate(check_device(), workspace, &error);
    if (!scratch) fail_msg("%s", error.message);
    device_upload(check_device(), position, &(int32_t){used - 1}, sizeof used);
    AttentionSpec spec = s->spec;
    spec.length = 1;
    OpCall call = {.device = check_device(),
        .mesh = &mesh_alone,
        .attributes = &spec,
        .in = {[ATTENTION_QKV] = qkv, [ATTENTION_POSITIONS] = position},
        .in_shape = {[ATTENTION_QKV] = {1, columns, 1, 1}},
        .out = {[ATTENTION_CACHED_OUT] = out, [ATTENTION_CACHED_CACHE] = cache},
        .out_shape = {[ATTENTION_CACHED_CACHE] = {s->spec.length, cached, 1, 1}},
        .workspace = scratch};
    double seconds = check_median_seconds(run_kernel, &(Timed){OP_attention_cached, &call});
    print_message("1 row at %d of a cache of %ld, %ld heads of %ld and %ld, %ld of keys: %8.1f us, %6.1f GB/s\n", used,
        (long)s->spec.length, (long)h->heads, (long)h->qk_dim, (long)h->v_dim, (long)h->kv_heads, seconds * 1e6,
        2e-9 * (double)(cached * used) / seconds);
    void *memory[] = {qkv, out, cache, position};
    for (size_t i = 0; i < COUNT(memory); i++) device_free(check_device(), memory[i], 2 * counts[i]);
    device_free(check_device(), scratch, workspace);
    if (!device_ok(check_device(), &error)) fail_msg("%s", error.message);
}

static void speed(void **state) {
    (void)state;
    check_gpu();
    if (!getenv("SMELT_TEST_SPEED")) skip();
    static const Shape caches[] = {
        {1, {{32, 8, 128, 128}, 131072}, 0},
        {1, {{32, 32, 128, 128}, 32768}, 0},
        {1, {{32, 8, 64, 64}, 131072}, 0},
        {1, {{8, 2, 128, 128}, 131072}, 0},
        {1, {{16, 4, 256, 256}, 131072}, 0},
    };
    for (size_t i = 0; i < COUNT(caches); i++)
        for (int32_t used = 512; used <= caches[i].spec.length; used *= 4) speed_of_decoding(&caches[i], used);
    static const Shape timed[] = {
        {4, {{32, 8, 64, 64}, 4096}, 0},
        {2, {{32, 8, 128, 128}, 8192}, 0},
        {64, {{12, 12, 64, 64}, 1024}, 0},
        {4, {{16, 4, 128, 128}, 4096}, 0},
        {4, {{8, 4, 256, 256}, 4096}, 0},
        {4, {{32, 16, 128, 128}, 4096, {.cap = 50}}, 0},
        {4, {{8, 4, 256, 256}, 4096, {.cap = 50}}, 0},
        {4, {{16, 16, 192, 128}, 4096}, 0},
        {2, {{16, 4, 256, 256}, 8192}, 0},
        {2, {{32, 32, 192, 128}, 8192}, 0},
    };
    for (size_t i = 0; i < COUNT(timed); i++) speed_of_shape(&timed[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama3_scaling_gives_the_frequencies_of_transformers),
        cmocka_unit_test(other_scalings_give_the_frequencies_of_transformers),
        cmocka_unit_test(a_cache_under_dynamic_scaling_has_the_frequencies_of_growing_lengths),
        cmocka_unit_test(a_cache_under_longrope_has_the_long_factors_after_the_original_context),
        cmocka_unit_test(without_scaling_frequencies_are_powers_of_theta),
        cmocka_unit_test(rope_turns_pairs_half_a_rotation_apart),
        cmocka_unit_test(rope_over_a_grid_turns_neighbors_by_row_and_column),
        cmocka_unit_test(rope_gradients_match_central_differences),
        cmocka_unit_test(queries_are_scaled_by_their_positions),
        cmocka_unit_test(projections_of_latents_are_packed_and_their_gradients_unpacked),
        cmocka_unit_test(queries_and_keys_begin_with_the_rotated_channels),
        cmocka_unit_test(qk_norm_passes),
        cmocka_unit_test(qk_norm_divides_each_head_by_its_root_mean_square_and_leaves_values),
        cmocka_unit_test(attention_and_its_gradient_are_those_of_a_softmax_over_what_a_row_sees),
        cmocka_unit_test(soft_caps_and_sinks_are_those_of_pytorch),
        cmocka_unit_test(a_document_that_began_in_an_earlier_sequence_is_cut_at_the_sequence),
        cmocka_unit_test(documents_of_all_lengths_stay_apart),
        cmocka_unit_test(attention_gradients_match_central_differences),
        cmocka_unit_test(attention_agrees_in_all_precisions_over_tiles_of_every_width),
        cmocka_unit_test(attention_on_a_gpu_agrees_over_many_tiles),
        cmocka_unit_test(ranks_that_share_out_queries_make_the_attention_of_whole_sequences),
        cmocka_unit_test(a_rank_of_context_agrees_in_all_precisions),
        cmocka_unit_test(a_rank_of_context_agrees_on_a_gpu_over_many_tiles),
        cmocka_unit_test(what_ranks_do_around_attention_agrees_in_all_precisions),
        cmocka_unit_test(a_prefix_in_chunks_gives_what_the_whole_gives),
        cmocka_unit_test(cached_attention_agrees_in_all_precisions),
        cmocka_unit_test(new_rows_agree_over_a_long_cache),
        cmocka_unit_test(every_position_has_one_rank_and_one_row),
        cmocka_unit_test(ranks_that_share_a_cache_give_what_the_whole_gives),
        cmocka_unit_test(parts_of_ranks_agree_in_all_precisions),
        cmocka_unit_test(sequences_that_share_a_cache_agree),
        cmocka_unit_test(a_sequence_beside_others_has_the_bits_it_has_alone),
        cmocka_unit_test(heads_of_more_than_256_channels_are_refused_on_a_gpu),
        cmocka_unit_test(speed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
