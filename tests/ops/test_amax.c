/* Largest magnitudes that are found by what makes a tensor (Op.amax): those of a pass over it, fp8_amax, and of a plain loop, in
 * every operation that finds one, at all widths that have kernels of their own and wherever the largest element is; NaN where
 * one is NaN. The tensors themselves are those of nodes that find none. On the GPU of SMELT_TEST_DEVICE, else on the CPU. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "base/rng.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/fp8/fp8.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "support/check.h"

enum { RUNS = 3 /* on a GPU the second is recorded, later ones are replayed */, MOST_INPUTS = 16 };

/* What is built: `op` is the one whose amax is looked at, of the forward or of the backward pass. */
typedef struct Case {
    int op;
    int64_t rows, columns; /* of its input; SwiGLU makes half as many */
    NormKind kind;
    bool affine;
    Activation function;
    Heads heads; /* of attention, rope and qk_norm, whose columns are theirs */
    int64_t rotated;
    RopePairs pairs;
    int64_t group; /* columns of a norm of qk_norm */
    int64_t k;     /* of copies to experts */
} Case;
enum { LENGTH = 67 /* of a sequence, at most: no multiple of a tile */, EXPERTS = 3 };

/* Where inputs have a number that is larger than all others, or NaN: at `at` elements before their end. */
typedef struct Content {
    float outlier;
    int64_t at;
} Content;

typedef struct Run {
    const Case *c;
    Graph *graph;
    Program program;
    TensorId inputs[MOST_INPUTS], gains[8], positions, index;
    int input_count, gain_count;
    TensorId made, found, passed; /* the tensor, its amax by the node that makes it and by a pass */
} Run;

/* -- Programs ------------------------------------------------------------------------------------------------------ */

static TensorId input(Run *run, TypeClass type, int64_t columns) {
    return run->inputs[run->input_count++] = graph_tensor(run->graph, ARENA_INPUT, type, 2, (int64_t[]){run->c->rows, columns}, "input");
}

static TensorId vector_of(Run *run, const char *name, int64_t count) {
    return run->gains[run->gain_count++] = graph_parameter(run->graph, name, PARAMETER_NORM, 1, &count, 1, 0, false);
}
static TensorId vector(Run *run, const char *name) { return vector_of(run, name, run->c->columns); }

static TensorId build_heads(Run *run) {
    const Case *c = run->c;
    TensorId x = op_scale(run->graph, input(run, TYPE_COMPUTE, c->columns), 1); /* as below */
    run->positions = graph_tensor(run->graph, ARENA_INPUT, TYPE_INT32, 1, &c->rows, "positions");
    AttentionSpec spec = {.heads = c->heads, .length = c->rows % LENGTH ? c->rows : LENGTH};
    if (c->op == OP_attention) return op_attention(run->graph, x, run->positions, &spec);
    TensorId table = op_rope_table(run->graph, &(RopeSpec){.dimensions = c->rotated, .positions = LENGTH, .theta = 100});
    return op_rope(run->graph, x, run->positions, table, &c->heads, c->pairs);
}

static TensorId build_qk_norm(Run *run) {
    const Case *c = run->c;
    bool layer = c->kind == NORM_LAYER;
    Norm norms[QK_PARTS];
    for (int i = 0; i < QK_PARTS; i++)
        norms[i] = (Norm){c->kind, vector_of(run, i ? "key_gain" : "gain", c->group),
            layer ? vector_of(run, i ? "key_bias" : "bias", c->group) : TENSOR_NONE, 1e-5};
    return op_qk_norm(run->graph, input(run, TYPE_COMPUTE, c->columns), &norms[QK_QUERIES], &norms[QK_KEYS], &c->heads);
}

/* Copies to the slots of experts; the gradient is that of their weighted sum. */
static TensorId build_experts(Run *run) {
    const Case *c = run->c;
    run->index = graph_tensor(run->graph, ARENA_INPUT, TYPE_INT32, 2, (int64_t[]){c->rows, c->k}, "index");
    Dispatch dispatch = op_moe_sort(run->graph, run->index, EXPERTS);
    TensorId x_slots = op_moe_permute(run->graph, input(run, TYPE_COMPUTE, c->columns), &dispatch);
    if (c->op == OP_moe_permute) return x_slots;
    return op_moe_combine(run->graph, op_add(run->graph, x_slots, x_slots), input(run, TYPE_WIDE, c->k), &dispatch);
}

static TensorId build_forward(Run *run) {
    const Case *c = run->c;
    if (c->op == OP_qk_norm_grad) return build_qk_norm(run);
    if (c->op == OP_moe_permute || c->op == OP_moe_combine_grad) return build_experts(run);
    if (c->op == OP_attention || c->op == OP_rope) return build_heads(run);
    if (c->function) { /* the memory of its input may be taken in place */
        return op_activation(run->graph, op_scale(run->graph, input(run, TYPE_COMPUTE, c->columns), 1), c->function);
    }
    Norm norm = {c->kind, vector(run, "gain"), c->kind == NORM_LAYER ? vector(run, "bias") : TENSOR_NONE, 1e-5};
    if (c->op == OP_norm) return op_norm(run->graph, input(run, TYPE_WIDE, c->columns), &norm);
    TensorId block = input(run, TYPE_COMPUTE, c->columns), stream = input(run, TYPE_WIDE, c->columns);
    AffineResidual residual_add = {{0}};
    for (int i = 0; c->affine && i < AFFINE_VECTORS; i++) residual_add.vectors[i] = vector(run, (const char *[]){"a", "b", "c", "d"}[i]);
    return op_residual_norm(run->graph, block, stream, c->affine ? &residual_add : NULL, &norm).normed;
}

static Node *node_of(Graph *graph, int op) {
    for (int i = 0; i < graph->node_count; i++)
        if (graph->nodes[i].op == op) return &graph->nodes[i];
    fail_msg("no node %s", op_table[op]->name);
    return NULL;
}

static bool is_gradient(const Case *c) {
    static const int gradients[] = {
        OP_gated_activation_grad, OP_activation_grad, OP_residual_norm_grad, OP_qk_norm_grad, OP_moe_combine_grad};
    for (size_t i = 0; i < sizeof gradients / sizeof *gradients; i++)
        if (c->op == gradients[i]) return true;
    return false;
}

static void run_create(Run *run, const Case *c, bool finds, Device *device, Precision precision) {
    *run = (Run){.c = c, .graph = graph_create(precision, true)};
    TensorId y = build_forward(run);
    if (is_gradient(c)) {
        Seed seed = {y, input(run, TYPE_COMPUTE, graph_columns(run->graph, y))};
        graph_differentiate(run->graph, RECOMPUTE_NONE, &seed, 1);
    }
    run->made = node_of(run->graph, c->op)->out[__builtin_ctz(op_table[c->op]->measured)];
    run->passed = graph_tensor(run->graph, ARENA_ACTIVATION, TYPE_WIDE, 1, &(int64_t){1}, "passed");
    graph_node(run->graph, OP_fp8_amax, (Inputs){[FP8_AMAX_X] = run->made}, (Outputs){[FP8_AMAX_Y] = run->passed}, NULL, 0);
    if (finds) run->found = op_find_amax(run->graph, run->made);
    assert_true(!finds || (run->found && run->found == op_find_amax(run->graph, run->made)));
    run->graph->tensors[run->made].keep = run->graph->tensors[run->found].keep = run->graph->tensors[run->passed].keep = true;
    run->program = check_program((Model){.graph = run->graph}, device);
}

/* -- Runs ---------------------------------------------------------------------------------------------------------- */

static void fill(Run *run, const Content *content) {
    for (int i = 0; i < run->input_count; i++) {
        int64_t count = graph_elements(run->graph, run->inputs[i]);
        float *values = memory_allocate((size_t)count * sizeof *values);
        rng_normals(7, 10 + i, 0, count, values);
        values[count - 1 - content->at % count] = content->outlier;
        executor_set_values(run->program.executor, run->inputs[i], 0, values, count);
        free(values);
    }
    for (int64_t i = 0; run->positions && i < run->c->rows; i++)
        ((int32_t *)executor_tensor(run->program.executor, run->positions))[i] = (int32_t)(i % LENGTH);
    for (int64_t i = 0; run->index && i < run->c->rows * run->c->k; i++) /* some choose none */
        ((int32_t *)executor_tensor(run->program.executor, run->index))[i] = (int32_t)(i * 5 / 3 % (EXPERTS + 1));
    for (int i = 0; i < run->gain_count; i++) {
        int64_t count = graph_elements(run->graph, run->gains[i]), bytes = graph_bytes(run->graph, run->gains[i]);
        double *values = memory_allocate((size_t)count * sizeof *values);
        for (int64_t j = 0; j < count; j++)
            if (bytes / count == sizeof(float)) ((float *)values)[j] = 1 + (float)(j % 5) / 8;
            else values[j] = 1 + (double)(j % 5) / 8;
        device_upload(
            executor_backend(run->program.executor)->device, executor_device_tensor(run->program.executor, run->gains[i]), values, bytes);
        free(values);
    }
}

/* What nothing writes is NaN. */
static void run_once(Run *run) {
    Error error = {0};
    device_fill(executor_backend(run->program.executor)->device, executor_arena(run->program.executor, ARENA_ACTIVATION), 0xff,
        run->program.plan.bytes[ARENA_ACTIVATION]);
    executor_zero(run->program.executor);
    executor_run(run->program.executor);
    if (!executor_finish(run->program.executor, &error)) fail_msg("%s", error.message);
}

static float *read_floats(const Run *run, TensorId tensor) {
    int64_t count = graph_elements(run->graph, tensor);
    float *values = memory_allocate((size_t)count * sizeof *values);
    uint16_t *bits = memory_allocate((size_t)graph_bytes(run->graph, tensor));
    executor_read(run->program.executor, tensor, bits);
    if (graph_bytes(run->graph, tensor) == count * (int64_t)sizeof *values) memcpy(values, bits, (size_t)count * sizeof *values);
    else bf16_to_floats(values, bits, count);
    free(bits);
    return values;
}

static float read_float(const Run *run, TensorId tensor) {
    float *values = read_floats(run, tensor), value = *values;
    free(values);
    return value;
}

static bool same(float a, float b) { return float_to_bits(a) == float_to_bits(b) || (isnan(a) && isnan(b)); }

/* By a plain loop. */
static float largest_magnitude(const float *values, int64_t count) {
    float most = 0;
    for (int64_t i = 0; i < count; i++)
        if (fabsf(values[i]) > most || isnan(values[i])) most = fabsf(values[i]);
    return most;
}

static void check_amax(const Run *run) {
    float *made = read_floats(run, run->made), expected = largest_magnitude(made, graph_elements(run->graph, run->made));
    float found = read_float(run, run->found), passed = read_float(run, run->passed);
    if (!same(found, expected) || !same(passed, expected))
        fail_msg("%s [%ld, %ld]: %a, by a pass %a, by a loop %a", op_table[run->c->op]->name, (long)run->c->rows, (long)run->c->columns,
            found, passed, expected);
    free(made);
}

static void check_same(const Run *a, const Run *b) {
    float *x = read_floats(a, a->made), *y = read_floats(b, b->made);
    for (int64_t i = 0; i < graph_elements(a->graph, a->made); i++)
        if (!same(x[i], y[i]))
            fail_msg("%s: element %ld is %a where it is measured, else %a", op_table[a->c->op]->name, (long)i, x[i], y[i]);
    free(x), free(y);
}

/* The largest element in the last and first column, and in the middle of a row. */
static void check_on(const Case *c, Device *device, Precision precision) {
    const Content contents[] = {{40, 0}, {-50, c->rows * c->columns - 1}, {60, c->columns / 2 + 1}, {NAN, c->columns / 3}};
    Run run, plain;
    run_create(&run, c, true, device, precision), run_create(&plain, c, false, device, precision);
    for (size_t i = 0; i < sizeof contents / sizeof *contents; i++) {
        fill(&run, &contents[i]), fill(&plain, &contents[i]);
        for (int j = 0; j < (check_device() && i == 0 ? RUNS - 1 : 1); j++) run_once(&run), run_once(&plain), check_amax(&run);
        check_same(&run, &plain);
    }
    executor_free(run.program.executor), executor_free(plain.program.executor);
    graph_free(run.graph), graph_free(plain.graph);
}

/* CPU kernels are the same for all widths. */
static void check_case(const Case *c) {
    if (!check_device() && c->columns > 1040) return;
    if (check_device()) {
        Case shaped = *c;
        for (int i = 0; check_has_shape(i); i++) {
            shaped.rows = check_shape_rows(c->rows);
            check_on(&shaped, check_device(), PRECISION_BF16);
        }
        return;
    }
    check_on(c, device_cpu(), PRECISION_BF16);
    check_on(c, device_cpu(), PRECISION_FP32);
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

/* Checks each function and its gradient. */
static void each_activation(void (*check)(const Case *c), int64_t rows, int64_t columns) {
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++) {
        bool gated = activation_rules[f].gated;
        check(&(Case){.op = gated ? OP_gated_activation : OP_activation, .rows = rows, .columns = columns, .function = f});
        check(&(Case){.op = gated ? OP_gated_activation_grad : OP_activation_grad, .rows = rows, .columns = columns, .function = f});
    }
}

static void activations_find_what_a_pass_finds(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 64}, {3, 192}, {67, 96}, {9, 4128}, {131, 448}, {64, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) each_activation(check_case, shapes[i][0], shapes[i][1]);
}

/* Of narrow and odd columns too, where kernels take one at a time; the pass takes multiples of 8 elements. */
static void activations_find_it_one_column_at_a_time(void **state) {
    (void)state;
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++) {
        if (!activation_rules[f].gated) continue;
        check_case(&(Case){.op = OP_gated_activation, .rows = 24, .columns = 2 * 33, .function = f});
        check_case(&(Case){.op = OP_gated_activation_grad, .rows = 24, .columns = 2 * 33, .function = f});
    }
}

static void norms_and_residual_adds_of_every_width_find_what_a_pass_finds(void **state) {
    (void)state;
    static const int ops[] = {OP_norm, OP_residual_norm, OP_residual_norm_grad};
    static const int64_t columns[] = {64, 512, 528, 1024, 1040, 2048, 4080, 4096, 8192, 8208};
    for (int i = 0; i < 3; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++)
                check_case(&(Case){.op = ops[i], .rows = columns[j] > 1024 ? 3 : 37, .columns = columns[j], .kind = (NormKind)kind});
}

static void affine_residual_adds_of_every_width_find_what_a_pass_finds(void **state) {
    (void)state;
    static const int64_t columns[] = {256, 1024, 2048, 4096, 8192, 8208};
    for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
        for (int i = 0; i < 2; i++)
            check_case(&(Case){i ? OP_residual_norm_grad : OP_residual_norm, columns[j] > 1024 ? 3 : 35, columns[j], NORM_RMS, true});
    check_case(&(Case){OP_residual_norm, 5, 512, NORM_LAYER, true});
    check_case(&(Case){OP_residual_norm_grad, 5, 512, NORM_LAYER, true});
}

/* By every width of heads that has kernels of its own, and by those of others; rows of the last tile that are outside of a sequence. */
static void attention_finds_what_a_pass_finds(void **state) {
    (void)state;
    static const int64_t widths[] = {16, 32, 36, 64, 80, 128, 160, 256};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        for (int group = 1; group <= 2; group++) {
            Heads heads = {.heads = 2 * group, .kv_heads = 2, .qk_dim = widths[i], .v_dim = widths[i]};
            check_case(&(Case){.op = OP_attention, .rows = 2 * LENGTH, .columns = heads_columns(&heads), .heads = heads});
        }
}

/* Cases of rope: pairs by eight, by four and one by one; the ends of heads that are not rotated; rows of no whole tile. */
static Case rope_case(int i, int64_t rows) {
    static const struct { int64_t dim, rotated; } shapes[] = {{64, 64}, {64, 32}, {32, 24}, {24, 20}, {128, 128}};
    Heads heads = {.heads = 4, .kv_heads = 2, .qk_dim = shapes[i % 5].dim, .v_dim = shapes[i % 5].dim};
    return (Case){.op = OP_rope,
        .rows = rows,
        .columns = heads_columns(&heads),
        .heads = heads,
        .rotated = shapes[i % 5].rotated,
        .pairs = i < 5 ? ROPE_HALVES : ROPE_NEIGHBORS};
}
enum { ROPE_CASES = 10 };

/* The largest of what is not rotated too, which the rotation in place does not write. */
static void rotations_find_what_a_pass_finds(void **state) {
    (void)state;
    for (int i = 0; i < ROPE_CASES; i++) {
        Case c = rope_case(i, 37);
        check_case(&c);
    }
}

/* Of heads, of all heads together, and of columns that no kernel of a width is for; values are copied. */
static void gradients_of_norms_of_queries_and_keys_find_what_a_pass_finds(void **state) {
    (void)state;
    static const struct {
        int64_t dim, group, rows;
    } shapes[] = {{128, 128, 37}, {64, 64, 5}, {32, 64, 19}, {256, 512, 9}, {512, 1024, 3}, {1024, 2048, 3}, {20, 10, 8}, {6, 6, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++) {
            Heads heads = {.heads = 2, .kv_heads = 2, .qk_dim = shapes[i].dim, .v_dim = shapes[i].dim};
            check_case(&(Case){.op = OP_qk_norm_grad,
                .rows = shapes[i].rows,
                .columns = heads_columns(&heads),
                .kind = (NormKind)kind,
                .heads = heads,
                .group = shapes[i].group});
        }
}

/* Of slots that a row fills: what skipped rows have does not count. */
static void copies_to_experts_and_gradients_of_their_sums_find_what_a_pass_finds(void **state) {
    (void)state;
    static const int64_t columns[] = {16, 64, 1040, 4128};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        for (int64_t k = 1; k <= 2; k++) {
            check_case(&(Case){.op = OP_moe_permute, .rows = 37, .columns = columns[i], .k = k});
            check_case(&(Case){.op = OP_moe_combine_grad, .rows = 37, .columns = columns[i], .k = k});
        }
}

/* A sum of gradients is made by op_add, an input by nobody. */
static void other_tensors_are_left_to_a_pass(void **state) {
    (void)state;
    Graph *graph = graph_create(PRECISION_BF16, true);
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){16, 32}, "x");
    assert_int_equal(op_find_amax(graph, x), TENSOR_NONE);
    assert_int_equal(op_find_amax(graph, op_add(graph, x, x)), TENSOR_NONE);
    assert_int_equal(op_find_amax(graph, op_clamp(graph, x, 1)), TENSOR_NONE);
    graph_free(graph);
}

/* -- Quantized values beside or in the place of the tensor -------------------------------------------------------------------- */

/* How a cast by a given amax follows the node that makes a tensor: with a node between, so that each has its own kernel; absorbing
 * it; and absorbing it where the tensor itself is read too. */
typedef enum Form { APART, TOGETHER, TOGETHER_READ } Form;
typedef struct Cast {
    Run run;
    TensorId amax, seen;
    Outputs out, made; /* of the cast, and of the node before */
} Cast;

/* The gradient of an activation, which may take the memory of its x. */
static TensorId build_activation_grad(Run *run) {
    const Case *c = run->c;
    TensorId d_y = input(run, TYPE_COMPUTE, c->op == OP_gated_activation_grad ? c->columns / 2 : c->columns);
    TensorId x = op_scale(run->graph, input(run, TYPE_COMPUTE, c->columns), 1);
    TensorId d_x = graph_activation_like(run->graph, TYPE_COMPUTE, x, "d_x");
    ActivationAttributes attributes = {.function = c->function};
    graph_node(run->graph, c->op, (Inputs){[ACTIVATION_GRAD_D_Y] = d_y, [ACTIVATION_GRAD_X] = x}, (Outputs){[ACTIVATION_GRAD_D_X] = d_x},
        &attributes, sizeof attributes);
    return d_x;
}

/* The node of the case, right before the cast. */
static TensorId build_last(Run *run) {
    const Case *c = run->c;
    if (c->op == OP_gated_activation_grad || c->op == OP_activation_grad) return build_activation_grad(run);
    TensorId y = build_forward(run);
    if (c->op != OP_residual_norm_grad) return y;
    TensorId residual = node_of(run->graph, OP_residual_norm)->out[RESIDUAL_NORM_RESIDUAL];
    Seed seeds[] = {{y, input(run, TYPE_COMPUTE, c->columns)}, {residual, input(run, TYPE_WIDE, c->columns)}};
    graph_differentiate(run->graph, RECOMPUTE_NONE, seeds, 2);
    return op_measured(&run->graph->nodes[run->graph->node_count - 1]);
}

static TensorId kept(Graph *graph, TypeClass type, int rank, const int64_t *shape) {
    TensorId tensor = graph_tensor(graph, ARENA_ACTIVATION, type, rank, shape, "kept");
    graph->tensors[tensor].keep = true;
    return tensor;
}

/* What is cast of a rotation is a gradient. */
static Fp8Kind kind_of(const Case *c) { return is_gradient(c) || c->op == OP_rope ? FP8_E5M2 : FP8_E4M3; }

static int append_cast(Cast *cast, TensorId x, bool columns, bool sees) {
    Graph *graph = cast->run.graph;
    int64_t rows = graph_rows(graph, x), width = graph_columns(graph, x), one = 1;
    Fp8CastAttributes attributes = {kind_of(cast->run.c), GEMM_SCALE_TENSOR, columns ? GEMM_SCALE_TENSOR : GEMM_SCALE_ONE, false};
    cast->amax = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "amax");
    if (sees) cast->seen = cast->out[FP8_CAST_SEEN] = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &one, "seen");
    cast->out[FP8_CAST_ROWS] = kept(graph, TYPE_FP8, 2, (int64_t[]){rows, width});
    cast->out[FP8_CAST_ROW_SCALES] = kept(graph, TYPE_WIDE, 1, &one);
    if (columns) cast->out[FP8_CAST_COLUMNS] = kept(graph, TYPE_FP8, 2, (int64_t[]){width, rows});
    if (columns) cast->out[FP8_CAST_COLUMN_SCALES] = kept(graph, TYPE_WIDE, 1, &one);
    Inputs in = {[FP8_CAST_X] = x, [FP8_CAST_AMAX] = cast->amax};
    return graph_node(graph, OP_fp8_cast, in, cast->out, &attributes, sizeof attributes);
}

static void cast_create(Cast *cast, const Case *c, Form form, bool columns, bool sees) {
    *cast = (Cast){.run = {.c = c, .graph = graph_create(PRECISION_BF16, true)}};
    Graph *graph = cast->run.graph;
    TensorId x = cast->run.made = build_last(&cast->run);
    int maker = graph->node_count - 1;
    memcpy(cast->made, graph->nodes[maker].out, sizeof cast->made);
    for (int i = 0; i < graph->nodes[maker].outputs; i++) graph->tensors[cast->made[i]].keep = cast->made[i] != x || form != TOGETHER;
    if (form == APART) op_scale(graph, input(&cast->run, TYPE_COMPUTE, 64), 1);
    int node = append_cast(cast, x, columns, sees);
    cast->run.program = check_program((Model){.graph = graph}, check_device());
    assert_int_equal(graph->nodes[node].absorbs, form != APART);
    assert_int_equal(graph_get(graph, x)->elided, form == TOGETHER);
    if (c->op == OP_gated_activation_grad || c->op == OP_activation || c->op == OP_rope)
        assert_int_equal(op_in_place(graph, &graph->nodes[maker]), form != TOGETHER);
}

static void cast_free(Cast *cast) { program_free(&cast->run.program); }

static void cast_once(Cast *cast, const Content *content, float amax) {
    fill(&cast->run, content);
    executor_set_scalar(cast->run.program.executor, cast->amax, amax);
    run_once(&cast->run);
}

/* The numbers that quantized values are. */
static float *read_codes(const Cast *cast, TensorId quantized) {
    int64_t count = graph_elements(cast->run.graph, quantized);
    Fp8Format format = fp8_format(kind_of(cast->run.c), device_info(check_device())->fp8_fnuz);
    uint8_t *bytes = memory_allocate((size_t)count);
    float *values = memory_allocate((size_t)count * sizeof *values);
    executor_read(cast->run.program.executor, quantized, bytes);
    for (int64_t i = 0; i < count; i++) values[i] = fp8_to_float(bytes[i], format);
    free(bytes);
    return values;
}

static float *read_any(const Cast *cast, TensorId tensor) {
    return graph_get(cast->run.graph, tensor)->type == TYPE_FP8 ? read_codes(cast, tensor) : read_floats(&cast->run, tensor);
}

/* Bit for bit, but for the sign of NaN, which no two kernels need to agree on. */
static void check_same_tensors(const Cast *a, const Cast *b, TensorId of_a, TensorId of_b) {
    const Case *c = a->run.c;
    if (!of_a || graph_get(a->run.graph, of_a)->elided) return;
    float *x = read_any(a, of_a), *y = read_any(b, of_b);
    for (int64_t i = 0; i < graph_elements(a->run.graph, of_a); i++)
        if (!same(x[i], y[i]))
            fail_msg("%s [%ld, %ld]: %s[%ld] is %a, apart %a", op_table[c->op]->name, (long)c->rows, (long)c->columns,
                graph_get(a->run.graph, of_a)->name, (long)i, x[i], y[i]);
    free(x), free(y);
}

static void check_same_casts(const Cast *together, const Cast *apart) {
    for (int i = FP8_CAST_ROWS; i <= FP8_CAST_COLUMN_SCALES; i++) check_same_tensors(together, apart, together->out[i], apart->out[i]);
    for (int i = 0; i < NODE_MAX_OUTPUTS; i++) check_same_tensors(together, apart, together->made[i], apart->made[i]);
    if (!together->seen) return;
    float *made = read_floats(&apart->run, apart->run.made);
    float expected = largest_magnitude(made, graph_elements(apart->run.graph, apart->run.made));
    assert_true(same(*(const float *)executor_tensor(together->run.program.executor, together->seen), expected));
    free(made);
}

static void check_codes_at(const Case *c, Form form, bool columns, bool sees) {
    const Content contents[] = {{40, 0}, {-50, c->rows * c->columns - 1}, {INFINITY, 5}, {NAN, c->columns / 3}};
    static const float magnitudes[] = {0.75f, 96.3f, 1e-20f, 3};
    Cast together, apart;
    cast_create(&together, c, form, columns, sees), cast_create(&apart, c, APART, columns, sees);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < (i ? 1 : RUNS - 1); j++) {
            cast_once(&together, &contents[i], magnitudes[i]), cast_once(&apart, &contents[i], magnitudes[i]);
            check_same_casts(&together, &apart);
        }
    cast_free(&together), cast_free(&apart);
}

static void check_codes(const Case *c, Form form, bool columns, bool sees) {
    Case shaped = *c;
    for (int i = 0; check_has_shape(i); i++) {
        shaped.rows = check_shape_rows(c->rows);
        check_codes_at(&shaped, form, columns, sees);
    }
}

/* By rows and columns; by rows alone; without a metric, as casts that are computed again; where others read the tensor. */
static void check_all_codes(const Case *c) {
    check_codes(c, TOGETHER, true, true);
    check_codes(c, TOGETHER, false, true);
    check_codes(c, TOGETHER, true, false);
    check_codes(c, TOGETHER_READ, true, true);
    check_codes(c, TOGETHER_READ, false, false);
}

/* On a GPU: as its cast absorbs it (OpKernel.quantizes). */
static void activations_write_the_codes_of_their_casts(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{16, 32}, {48, 160}, {144, 544}, {32, 4128}};
    check_gpu();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) each_activation(check_all_codes, shapes[i][0], shapes[i][1]);
}

/* Of every width that has kernels of its own, and of odd numbers of rows where nothing is transposed. */
static void norms_and_residual_adds_write_the_codes_of_their_casts(void **state) {
    (void)state;
    static const int ops[] = {OP_norm, OP_residual_norm, OP_residual_norm_grad};
    static const int64_t columns[] = {64, 512, 528, 1040, 2048, 4080, 8192, 8208};
    check_gpu();
    for (int i = 0; i < 3; i++)
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
            for (int kind = NORM_RMS; kind <= NORM_LAYER; kind++) {
                check_all_codes(&(Case){.op = ops[i], .rows = columns[j] > 1040 ? 16 : 48, .columns = columns[j], .kind = (NormKind)kind});
                check_codes(&(Case){.op = ops[i], .rows = columns[j] > 1040 ? 5 : 37, .columns = columns[j], .kind = (NormKind)kind},
                    TOGETHER, false, true);
            }
}

static void affine_residual_adds_write_the_codes_of_their_casts(void **state) {
    (void)state;
    static const int64_t columns[] = {256, 1024, 2048, 4096, 8192, 8208};
    check_gpu();
    for (size_t j = 0; j < sizeof columns / sizeof *columns; j++)
        for (int i = 0; i < 2; i++) {
            Case c = {i ? OP_residual_norm_grad : OP_residual_norm, columns[j] > 1024 ? 16 : 48, columns[j], NORM_RMS, true};
            check_all_codes(&c);
        }
    check_all_codes(&(Case){OP_residual_norm, 16, 512, NORM_LAYER, true});
    check_all_codes(&(Case){OP_residual_norm_grad, 16, 512, NORM_LAYER, true});
}

static void rotations_write_the_codes_of_their_casts(void **state) {
    (void)state;
    check_gpu();
    for (int i = 0; i < ROPE_CASES; i++) {
        Case c = rope_case(i, 48), odd = rope_case(i, 37);
        check_all_codes(&c);
        check_codes(&odd, TOGETHER, false, true);
    }
}

/* Only the first of two casts of a tensor comes right behind what makes it; the second reads bf16. */
static void the_second_cast_of_a_tensor_reads_it(void **state) {
    (void)state;
    const Case c = {.op = OP_norm, .rows = 32, .columns = 512};
    Cast first = {.run = {.c = &c, .graph = graph_create(PRECISION_BF16, true)}}, second;
    check_gpu();
    first.run.made = build_last(&first.run);
    int node = append_cast(&first, first.run.made, true, true);
    second = first;
    append_cast(&second, first.run.made, true, true);
    first.run.program = second.run.program = check_program((Model){.graph = first.run.graph}, check_device());
    assert_true(first.run.graph->nodes[node].absorbs && !first.run.graph->nodes[node + 1].absorbs);
    executor_set_scalar(first.run.program.executor, second.amax, 2.5);
    for (int j = 0; j < RUNS; j++) {
        cast_once(&first, &(Content){40, 3}, 2.5f);
        for (int i = FP8_CAST_ROWS; i <= FP8_CAST_COLUMN_SCALES; i++) check_same_tensors(&first, &second, first.out[i], second.out[i]);
    }
    cast_free(&first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_find_what_a_pass_finds),
        cmocka_unit_test(activations_find_it_one_column_at_a_time),
        cmocka_unit_test(norms_and_residual_adds_of_every_width_find_what_a_pass_finds),
        cmocka_unit_test(affine_residual_adds_of_every_width_find_what_a_pass_finds),
        cmocka_unit_test(attention_finds_what_a_pass_finds),
        cmocka_unit_test(rotations_find_what_a_pass_finds),
        cmocka_unit_test(gradients_of_norms_of_queries_and_keys_find_what_a_pass_finds),
        cmocka_unit_test(copies_to_experts_and_gradients_of_their_sums_find_what_a_pass_finds),
        cmocka_unit_test(other_tensors_are_left_to_a_pass),
        cmocka_unit_test(activations_write_the_codes_of_their_casts),
        cmocka_unit_test(norms_and_residual_adds_write_the_codes_of_their_casts),
        cmocka_unit_test(affine_residual_adds_write_the_codes_of_their_casts),
        cmocka_unit_test(rotations_write_the_codes_of_their_casts),
        cmocka_unit_test(the_second_cast_of_a_tensor_reads_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
