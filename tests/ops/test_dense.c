/* The operations that every family shares: embedding, norms, linear, sums, activations, head with cross-entropy.
 * Gradients, precisions and threads by check_op; the forward meaning by direct formulas where gradients alone would
 * not notice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/check.h"
#include "backend/backend.h"
#include "base/rng.h"
#include "ops/activation/activation.h"
#include "ops/add/add.h"
#include "ops/embed/embed.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"
#include "ops/loss/loss.h"
#include "ops/narrow/narrow.h"
#include "ops/norm/norm.h"

typedef struct Case {
    int64_t rows, columns, other;
    bool flag, flag2, flag3;
} Case;
#define CHECK_ALL(build, cases) \
    for (size_t i = 0; i < sizeof(cases) / sizeof *(cases); i++) check_op(build, &(cases)[i], (CheckBounds){0})

/* A graph without parameters' gradients, run once in fp64. */
typedef struct Run {
    Graph *graph;
    Program program;
} Run;

static void run_plan(Run *run) { run->program = check_program((Model){.graph = run->graph}, device_cpu()); }

static void run_end(Run *run) { program_free(&run->program); }

/* flag: LayerNorm; flag2: with a bias. */
static void build_norm(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_WIDE, 2, (int64_t[]){c->rows, c->columns}, 0.3, 1);
    Norm norm = check_norm(check, c->flag ? NORM_LAYER : NORM_RMS, c->flag2, c->columns);
    check_output(check, op_norm(check->graph, x, &norm));
}

static void rmsnorm_passes(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1}, {1, 16}, {3, 17}, {65, 40}, {130, 7}};
    CHECK_ALL(build_norm, cases);
}

/* Not one column: its result is always the bias, and the gradient of x is what rounding left. */
static void layernorm_passes_with_and_without_bias(void **state) {
    (void)state;
    static const Case cases[] = {
        {1, 5, 0, true, true}, {1, 16, 0, true, false}, {3, 17, 0, true, true}, {65, 40, 0, true, false}, {130, 7, 0, true, true}};
    CHECK_ALL(build_norm, cases);
}

static void norms_are_those_of_their_definitions(void **state) {
    (void)state;
    const int64_t columns = 5;
    static const double x[] = {3, -1, 4, 1, -5}; /* mean 0.4, mean square 10.4, variance 10.24 = 3.2^2 */
    for (NormKind kind = NORM_RMS; kind <= NORM_LAYER; kind++) {
        Run run = {.graph = graph_create(PRECISION_FP64, false)};
        TensorId input = graph_tensor(run.graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){1, columns}, "x");
        Norm norm = {.kind = kind, .epsilon = 0.01, .gain = graph_parameter(run.graph, "gain", PARAMETER_NORM, 1, &columns, 1, 0, false)};
        if (kind == NORM_LAYER) norm.bias = graph_parameter(run.graph, "bias", PARAMETER_BIAS, 1, &columns, 0, 0, false);
        TensorId y = op_norm(run.graph, input, &norm);
        run.graph->tensors[y].keep = true;
        run_plan(&run);
        for (int j = 0; j < columns; j++) {
            ((double *)executor_tensor(run.program.executor, input))[j] = x[j];
            ((double *)executor_tensor(run.program.executor, norm.gain))[j] = 2 + j;
            if (norm.bias) ((double *)executor_tensor(run.program.executor, norm.bias))[j] = 10 * j;
        }
        executor_run(run.program.executor);
        for (int j = 0; j < columns; j++) {
            double expected = kind == NORM_RMS ? x[j] / sqrt(10.41) * (2 + j) : (x[j] - 0.4) / sqrt(10.25) * (2 + j) + 10 * j;
            assert_true(
                fabs(((double *)executor_tensor(run.program.executor, y))[j] - expected) < 1e-13); /* a few roundings of values up to 40 */
        }
        run_end(&run);
    }
}

/* other: 0 RMSNorm, 1 LayerNorm, 2 with a bias. */
static void build_residual_norm(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t shape[] = {c->rows, c->columns};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), stream = check_input(check, TYPE_WIDE, 2, shape, 0.2, 1), affine[4];
    Norm norm = check_norm(check, c->other ? NORM_LAYER : NORM_RMS, c->other == 2, c->columns);
    for (int i = 0; i < 4; i++) affine[i] = check_parameter(check, PARAMETER_NORM, 1, &c->columns, i % 2 ? 0 : 1, 0.3);
    ResidualNorm out = op_residual_norm(
        check->graph, block, stream, c->flag ? &(AffineResidual){{affine[0], affine[1], affine[2], affine[3]}} : NULL, &norm);
    if (!c->flag2) check_output(check, out.stream);
    check_output(check, out.normed);
}

static void residual_norm_passes_with_and_without_scales_and_a_dead_stream(void **state) {
    (void)state;
    static const Case cases[] = {
        {1, 1, 0, true, false}, {1, 16, 0, false, false}, {3, 17, 0, true, true}, {70, 24, 0, true, false}, {130, 7, 0, false, true}};
    CHECK_ALL(build_residual_norm, cases);
}

static void residual_layernorm_passes_likewise(void **state) {
    (void)state;
    static const Case cases[] = {
        {1, 5, 1, true, false}, {1, 16, 2, false, false}, {3, 17, 2, true, true}, {70, 24, 1, false, false}, {130, 7, 2, false, true}};
    CHECK_ALL(build_residual_norm, cases);
}

/* flag: without a gradient of the sum; flag2: without one of the rounded sum. */
static void build_post_norm(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t shape[] = {c->rows, c->columns};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0.2, 1), stream = check_input(check, TYPE_WIDE, 2, shape, 0.2, 1);
    Norm norm = check_norm(check, NORM_RMS, false, c->columns);
    ResidualNorm out = op_post_norm(check->graph, block, stream, &norm);
    if (!c->flag) check_output(check, out.stream);
    if (!c->flag2) check_output(check, out.normed);
}

static void post_norm_passes_with_one_reader_or_two(void **state) {
    (void)state;
    static const Case cases[] = {{1, 4}, {3, 12, 0, true}, {70, 24, 0, false, true}, {130, 8}};
    CHECK_ALL(build_post_norm, cases);
}

static void post_norm_is_that_of_its_definition(void **state) {
    (void)state;
    const int64_t columns = 4;
    static const double x[] = {3, -1, 4, 1}; /* mean square 6.75 */
    Run run = {.graph = graph_create(PRECISION_FP64, false)};
    TensorId block = graph_tensor(run.graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){1, columns}, "block");
    TensorId stream = graph_tensor(run.graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){1, columns}, "stream");
    Norm norm = {.kind = NORM_RMS, .epsilon = 0.01, .gain = graph_parameter(run.graph, "gain", PARAMETER_NORM, 1, &columns, 1, 0, false)};
    ResidualNorm out = op_post_norm(run.graph, block, stream, &norm);
    run.graph->tensors[out.stream].keep = run.graph->tensors[out.normed].keep = true;
    run_plan(&run);
    for (int j = 0; j < columns; j++) {
        ((double *)executor_tensor(run.program.executor, block))[j] = x[j];
        ((double *)executor_tensor(run.program.executor, stream))[j] = 10 * j;
        ((double *)executor_tensor(run.program.executor, norm.gain))[j] = 2 + j;
    }
    executor_run(run.program.executor);
    for (int j = 0; j < columns; j++) {
        double expected = 10 * j + x[j] / sqrt(6.76) * (2 + j);
        assert_true(fabs(((double *)executor_tensor(run.program.executor, out.stream))[j] - expected) <
                    1e-13); /* a few roundings of values up to 40 */
        assert_true(fabs(((double *)executor_tensor(run.program.executor, out.normed))[j] - expected) < 1e-13);
    }
    run_end(&run);
}

static void build_narrow(Check *check, const void *argument) {
    const Case *c = argument;
    check_output(check, op_narrow(check->graph, check_input(check, TYPE_WIDE, 2, (int64_t[]){c->rows, c->columns}, 0, 1)));
}

static void build_widen(Check *check, const void *argument) {
    const Case *c = argument;
    check_output(check, op_widen(check->graph, check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1)));
}

static void narrow_passes(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1}, {5, 7}, {64, 32}};
    CHECK_ALL(build_narrow, cases);
    CHECK_ALL(build_widen, cases);
}

static void build_linear(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){c->other, c->columns}, 0, 0.5);
    TensorId bias = c->flag ? check_parameter(check, PARAMETER_BIAS, 1, &c->other, 0, 1) : TENSOR_NONE;
    check_output(check, op_linear(check->graph, x, w, bias, c->flag2));
}

static void linear_passes_with_and_without_bias_and_wide(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 1, true, false}, {1, 33, 5, false, true}, {67, 17, 9, true, true}, {40, 64, 32, false, false}};
    CHECK_ALL(build_linear, cases);
}

/* Adapters of a product of two or three parts, or of some of its columns (flag3), whose other reader keeps y where it is (flag). */
static void build_lora(Check *check, const void *argument) {
    const Case *c = argument;
    const int64_t rank = c->other, n = c->columns;
    const LoraColumns all[] = {{0, n}, {n, 2 * n}, {3 * n, 3}}, some[] = {{1, n}, {2 * n + 1, n}};
    int parts = c->flag2 ? 3 : 2;
    const LoraColumns *columns = c->flag3 ? some : all;
    int64_t out = 3 * n + (parts == 3 || c->flag3 ? 3 : 0), adapted_out = c->flag3 ? 2 * n : out;
    TensorId y = op_scale(check->graph, check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, out}, 0, 1), 0.5);
    TensorId u = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, parts * rank}, 0, 1);
    TensorId b = check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){adapted_out, rank}, 0, 0.5);
    TensorId adapted = op_lora(check->graph, y, op_scale(check->graph, u, 1.75), b, columns, parts);
    check_output(check, c->flag ? op_add(check->graph, adapted, y) : adapted);
}

static void lora_and_scale_pass(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 1, false, false}, {67, 5, 3, true, true}, {40, 32, 8, false, true}, {33, 16, 16, true, false},
        {33, 5, 3, true, false, true}};
    CHECK_ALL(build_lora, cases);
}

enum { GROUPS = 3 };

static LoraColumns group_columns(const Case *c, int i) {
    const int64_t n = c->columns;
    const LoraColumns all[] = {{0, n}, {n, 2 * n}, {3 * n, 3}}, some[] = {{1, n}, {2 * n + 1, n}};
    return c->flag3 ? some[i] : all[i];
}

/* Rows of three groups, the second of which is empty; unless flag is set, some rows have no group. */
static void put_group_offsets(const Case *c, int32_t offset[GROUPS + 1]) {
    offset[0] = 0;
    offset[1] = offset[2] = (int32_t)(c->rows / 3);
    offset[3] = (int32_t)(c->flag ? c->rows : c->rows - c->rows / 4);
}

/* Adapters of all columns or of some (flag3). */
static void build_lora_groups(Check *check, const void *argument) {
    const Case *c = argument;
    static int32_t offset[GROUPS + 1];
    const int64_t rank = c->other, out = 3 * c->columns + 3, adapted_out = c->flag3 ? 2 * c->columns : out;
    const int adapters = c->flag3 ? 2 : 3;
    put_group_offsets(c, offset);
    TensorId y = op_scale(check->graph, check_fixed(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, out}, 0, 1), 0.5);
    TensorId u = check_fixed(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, adapters * rank}, 0, 1);
    TensorId b = check_fixed(check, TYPE_COMPUTE, 2, (int64_t[]){GROUPS * adapted_out, rank}, 0, 0.5);
    LoraGroups groups = {.u = u, .b = b, .offset = check_integers(check, 1, (int64_t[]){GROUPS + 1}, offset), .adapters = adapters};
    for (int i = 0; i < adapters; i++) groups.columns[i] = group_columns(c, i);
    TensorId adapted = op_lora_groups(check->graph, y, &groups);
    check_output(check, c->flag2 ? op_add(check->graph, adapted, y) : adapted);
}

static void groups_of_rows_have_their_own_adapters(void **state) {
    (void)state;
    static const Case cases[] = {
        {1, 1, 1, true}, {67, 5, 3, false, true}, {40, 32, 8, true}, {33, 16, 16, false, true, true}, {130, 72, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_op(build_lora_groups, &cases[i], (CheckBounds){.forward_only = true});
}

/* y + [u_1 b_1[g]^T | ... | u_3 b_3[g]^T] for the rows of group g, and y for rows of none. Small integers are exact in bf16. */
static void each_row_gets_the_adapters_of_its_group(void **state) {
    (void)state;
    enum { ROWS = 13, COLUMNS = 4, OUT = 3 * COLUMNS + 3, RANK = 3, ADAPTERS = 3 };
    const Case c = {ROWS, COLUMNS, RANK, false, false, false};
    const LoraColumns columns[] = {group_columns(&c, 0), group_columns(&c, 1), group_columns(&c, 2)};
    Graph *graph = graph_create(PRECISION_BF16, false);
    TensorId y = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){ROWS, OUT}, "y");
    TensorId u = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){ROWS, ADAPTERS * RANK}, "u");
    TensorId b = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){GROUPS * OUT, RANK}, "b");
    TensorId offset = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, (int64_t[]){GROUPS + 1}, "offset");
    LoraGroups groups = {.u = u, .b = b, .offset = offset, .adapters = ADAPTERS};
    memcpy(groups.columns, columns, sizeof columns);
    TensorId adapted = op_lora_groups(graph, y, &groups);
    graph->tensors[adapted].keep = true;
    Program program = check_program((Model){.graph = graph}, check_device() ? check_device() : device_cpu());
    Executor *executor = program.executor;
    uint16_t *y_in = executor_tensor(executor, y), *u_in = executor_tensor(executor, u), *b_in = executor_tensor(executor, b);
    int32_t *offsets = executor_tensor(executor, offset);
    for (int i = 0; i < ROWS * OUT; i++) y_in[i] = bf16_from_float((float)(i % 11 - 5));
    for (int i = 0; i < ROWS * ADAPTERS * RANK; i++) u_in[i] = bf16_from_float((float)(i % 7 - 3));
    for (int i = 0; i < GROUPS * OUT * RANK; i++) b_in[i] = bf16_from_float((float)(i % 5 - 2));
    put_group_offsets(&c, offsets);
    executor_zero(executor);
    executor_run(executor);
    uint16_t got[ROWS * OUT];
    executor_read(executor, adapted, got);
    for (int r = 0; r < ROWS; r++) {
        int group = 0, before = 0;
        while (group < GROUPS && r >= offsets[group + 1]) group++;
        for (int i = 0; i < ADAPTERS; before += GROUPS * (int)columns[i++].count)
            for (int64_t k = 0; k < columns[i].count; k++) {
                int64_t column = columns[i].first + k, line = before + group * columns[i].count + k;
                float sum = bf16_to_float(y_in[r * OUT + column]);
                for (int j = 0; j < RANK && group < GROUPS; j++)
                    sum += bf16_to_float(u_in[(r * ADAPTERS + i) * RANK + j]) * bf16_to_float(b_in[line * RANK + j]);
                assert_true(bf16_to_float(got[r * OUT + column]) == sum);
            }
    }
    program_free(&program);
}

/* Adapters of groups of rows, with few rows, so that one node computes both products. The cases have columns for two blocks of a
 * kernel, a rank of more chunks than are loaded early, and a depth of more than one load per thread. */
typedef struct GroupCase {
    int64_t rows, in, columns, rank;
    int32_t offset[GROUPS + 1];
} GroupCase;

static TensorId append_groups(const GroupCase *c, Graph *graph, TensorId y, TensorId x, TensorId a, TensorId b, TensorId offset) {
    LoraGroups groups = {.b = b, .offset = offset, .adapters = 2, .columns = {{1, c->columns}, {c->columns + 2, 5}}};
    groups.u = op_grouped_linear(graph, x, a, &(Dispatch){.offset = offset, .rows = c->rows});
    return op_lora_groups(graph, y, &groups);
}

static void build_few_rows(Check *check, const void *argument) {
    const GroupCase *c = argument;
    TensorId y = check_fixed(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns + 7}, 0, 1);
    TensorId x = check_fixed(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, 0, 1);
    TensorId a = check_fixed(check, TYPE_COMPUTE, 3, (int64_t[]){GROUPS, 2 * c->rank, c->in}, 0, 0.1);
    TensorId b = check_fixed(check, TYPE_COMPUTE, 2, (int64_t[]){GROUPS * (c->columns + 5), c->rank}, 0, 0.5);
    TensorId offset = check_integers(check, 1, (int64_t[]){GROUPS + 1}, c->offset);
    check_output(check, append_groups(c, check->graph, op_scale(check->graph, y, 0.5), x, a, b, offset));
}

static const GroupCase few_rows[] = {{1, 64, 8, 8, {0, 0, 1, 1}}, {1, 64, 8, 8, {0, 0, 0, 0}}, {7, 136, 40, 24, {0, 2, 3, 7}},
    {30, 72, 300, 16, {0, 17, 17, 22}}, {5, 2112, 8, 16, {0, 1, 3, 5}}, {2, 8200, 8, 8, {0, 1, 1, 2}}};

static void few_rows_get_the_adapters_of_their_group(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof few_rows / sizeof *few_rows; i++)
        check_op(build_few_rows, &few_rows[i], (CheckBounds){.forward_only = true});
}

/* The bits of a program's rows: row i has the values of row i + `from`, and the groups' bounds are given. */
static void run_few_rows(const GroupCase *c, int from, uint16_t *got) {
    Graph *graph = graph_create(PRECISION_BF16, false);
    const int64_t out = c->columns + 7, lines = GROUPS * (c->columns + 5);
    TensorId y = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){c->rows, out}, "y");
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->in}, "x");
    TensorId a = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 3, (int64_t[]){GROUPS, 2 * c->rank, c->in}, "a");
    TensorId b = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){lines, c->rank}, "b");
    TensorId offset = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, (int64_t[]){GROUPS + 1}, "offset");
    TensorId adapted = append_groups(c, graph, y, x, a, b, offset);
    graph->tensors[adapted].keep = true;
    Program program = check_program((Model){.graph = graph}, check_device() ? check_device() : device_cpu());
    const struct {
        TensorId tensor;
        int64_t first, count;
    } inputs[] = {
        {y, from * out, c->rows * out}, {x, from * c->in, c->rows * c->in}, {a, 0, GROUPS * 2 * c->rank * c->in}, {b, 0, lines * c->rank}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
        for (int64_t j = 0; j < inputs[i].count; j++)
            ((uint16_t *)executor_tensor(program.executor, inputs[i].tensor))[j] =
                bf16_from_float((float)rng_normal(3, i, (uint64_t)(inputs[i].first + j)));
    memcpy(executor_tensor(program.executor, offset), c->offset, sizeof c->offset);
    executor_zero(program.executor);
    executor_run(program.executor);
    executor_read(program.executor, adapted, got);
    program_free(&program);
}

/* A row is computed alone, as one of a few, and between neighbors of its group. */
static void a_row_has_the_same_bits_beside_any_others(void **state) {
    (void)state;
    enum { ROWS = 21, IN = 2112, COLUMNS = 40, RANK = 24, OUT = COLUMNS + 7 };
    const GroupCase all = {ROWS, IN, COLUMNS, RANK, {0, 0, ROWS, ROWS}}, one = {1, IN, COLUMNS, RANK, {0, 0, 1, 1}};
    uint16_t among[ROWS * OUT], few[ROWS * OUT];
    run_few_rows(&all, 0, among);
    for (int i = 0; i < ROWS; i += 5) {
        run_few_rows(&one, i, few);
        assert_memory_equal(few, among + i * OUT, OUT * sizeof *few);
    }
    for (int rows = 2; rows <= 6; rows++) {
        const GroupCase some = {rows + 2, IN, COLUMNS, RANK, {0, 1, 1 + rows, 2 + rows}};
        run_few_rows(&some, 3, few);
        assert_memory_equal(few + OUT, among + 4 * OUT, (size_t)rows * OUT * sizeof *few);
        assert_memory_not_equal(few, among + 3 * OUT, OUT * sizeof *few);
    }
}

/* Two runs of adapters that have as many columns and follow each other, as those of queries, keys and values do: the first three, and
 * the last. */
static void build_equal_adapters(Check *check, const void *argument) {
    const Case *c = argument;
    const int64_t rank = c->other, n = c->columns, out = 5 * n;
    const LoraColumns columns[] = {{0, n}, {n, n}, {2 * n, n}, {3 * n, 2 * n}};
    TensorId y = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, out}, 0, 1);
    TensorId u = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, 4 * rank}, 0, 1);
    TensorId b = check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){out, rank}, 0, 0.5);
    check_output(check, op_lora(check->graph, y, u, b, columns, 4));
}

static void equal_adapters_pass(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 1}, {67, 5, 3}, {40, 32, 8}, {130, 72, 16}};
    CHECK_ALL(build_equal_adapters, cases);
}

/* A frozen layer of x, and adapters of all its columns (three, flag2) or of some (flag3), with a bias or none (flag). */
static void build_adapted_linear(Check *check, const void *argument) {
    const Case *c = argument;
    const int64_t rank = c->other, n = c->columns, out = 3 * n + 3, in = 2 * n + 1;
    const LoraColumns all[] = {{0, n}, {n, 2 * n}, {3 * n, 3}}, some[] = {{1, n}, {2 * n + 1, n}};
    AdaptedLinear layer = {.factor = 1.75, .adapters = c->flag3 ? 2 : 3};
    memcpy(layer.columns, c->flag3 ? some : all, layer.adapters * sizeof *all);
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, in}, 0, 1);
    layer.a = check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){layer.adapters * rank, in}, 0, 0.5);
    layer.b = check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){c->flag3 ? 2 * n : out, rank}, 0, 0.5);
    check->graph->frozen = true;
    layer.w = check_parameter(check, PARAMETER_MATRIX, 2, (int64_t[]){out, in}, 0, 0.5);
    if (c->flag) layer.bias = check_parameter(check, PARAMETER_BIAS, 1, &out, 0, 1);
    check->graph->frozen = false;
    layer.u = op_scale(check->graph, op_linear(check->graph, x, layer.a, TENSOR_NONE, false), layer.factor);
    check_output(check, op_adapted_linear(check->graph, x, &layer));
}

static void a_frozen_layer_with_adapters_passes(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 1, true, false}, {67, 5, 3, false, true}, {40, 32, 8, true, true}, {33, 5, 3, true, false, true}};
    CHECK_ALL(build_adapted_linear, cases);
}

static void build_two_readers(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId y = op_activation(check->graph, x, ACTIVATION_gelu);
    check_output(check, op_add(check->graph, y, op_activation(check->graph, y, ACTIVATION_gelu)));
}

static void a_tensor_with_two_readers_gets_the_sum_of_their_gradients(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1}, {5, 19}};
    CHECK_ALL(build_two_readers, cases);
}

static void build_scale_add(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t shape[] = {c->rows, c->columns};
    TensorId x = check_input(check, TYPE_WIDE, 2, shape, 0, 1), previous = check_input(check, TYPE_WIDE, 2, shape, 0, 1);
    check_output(check, op_scale_add(check->graph, x, previous, check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.5)));
}

static void scale_add_passes(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1}, {66, 18}};
    CHECK_ALL(build_scale_add, cases);
}

static void build_join_gelu(Check *check, const void *argument) {
    const int64_t *c = argument; /* rows, columns of a and x */
    TensorId a = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c[0], c[1]}, 0, 1),
             x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c[0], c[2]}, 0, 1);
    check_output(check, op_join_gelu(check->graph, a, x));
}

static void gelu_beside_other_columns_passes(void **state) {
    (void)state;
    static const int64_t cases[][3] = {{1, 8, 8}, {3, 16, 40}, {5, 3, 8}, {33, 8, 264}, {2, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_op(build_join_gelu, cases[i], (CheckBounds){0});
}

static void build_clamp(Check *check, const void *argument) {
    const Case *c = argument;
    check_output(check, op_clamp(check->graph, check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0.1, 1), 0.8001));
}

static void clamp_passes(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1}, {3, 17}, {65, 40}};
    CHECK_ALL(build_clamp, cases);
}

static const int32_t tokens[] = {4, 0, 4, 4, 2, 6, 0, 4, 1, 5, 6, 6, 3};

/* `other`: the first of three tokens that the table has; 0: it has all. */

static void build_embed(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId ids = check_integers(check, 1, &c->rows, tokens);
    TensorId table = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->other ? 3 : 7, c->columns}, 0, 1), bias = TENSOR_NONE,
             scale = TENSOR_NONE;
    if (c->flag) {
        bias = check_parameter(check, PARAMETER_BIAS, 1, &c->columns, 0, 1);
        scale = check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.5);
    }
    check_output(check, op_embed(check->graph, ids, table, bias, scale, TENSOR_NONE,
                            &(EmbedSpec){.padding = -1, .first = c->other, .factor = bias ? 0 : 2.5}));
}

/* A frozen table of which three rows are trained; flag: with bias and scale. */
static void build_rows(Check *check, const void *argument) {
    const Case *c = argument;
    Graph *graph = check->graph;
    const TokenRuns runs = {.count = 2, .items = {{1, 1, 0}, {4, 2, 1}}};
    TensorId bias = TENSOR_NONE, scale = TENSOR_NONE,
             rows = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){3, c->columns}, 0, 1);
    graph->frozen = true;
    TensorId table = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){7, c->columns}, 0, 1);
    if (c->flag) {
        bias = check_parameter(check, PARAMETER_BIAS, 1, &c->columns, 0, 1);
        scale = check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.5);
    }
    graph->frozen = false;
    op_put_rows(graph, rows, table, &runs);
    if (graph->training) graph_parameter_gradient(graph, rows); /* of all rows, to be compared: each run has a view of its part */
    EmbedSpec spec = {.padding = -1, .runs = runs, .factor = c->flag ? 0 : 0.75};
    TensorId ids = check_integers(check, 1, &c->rows, tokens);
    check_output(check, op_embed(graph, ids, table, bias, scale, rows, &spec));
}

static void rows_of_a_frozen_table_get_the_gradients_of_their_tokens(void **state) {
    (void)state;
    static const Case cases[] = {{13, 70, 0, true, false}, {13, 33, 0, false, false}};
    CHECK_ALL(build_rows, cases);
}

static void embed_passes_with_repeated_tokens(void **state) {
    (void)state;
    static const Case cases[] = {
        {1, 1, 0, true, false}, {13, 70, 0, true, false}, {13, 33, 0, false, false}, {13, 70, 2, true, false}, {13, 33, 4, false, false}};
    CHECK_ALL(build_embed, cases);
}

static const int32_t targets[] = {1, 0, -1, 3, 2, 0, 0, 4, 1, -1, 2, 2, 3};

static void build_cross_entropy(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->other, c->columns}, 0, 0.5);
    op_linear_cross_entropy(
        check->graph, x, w, check_integers(check, 1, &c->rows, targets), check_scalar(check, 0.25), check_loss(check, 1), c->other);
    if (c->flag) op_cap_losses(check->graph, 1.5);
}

/* The head and its loss, of which three rows are trained beside frozen ones. */
static void build_head_rows(Check *check, const void *argument) {
    const Case *c = argument;
    const TokenRuns runs = {.count = 2, .items = {{1, 1, 0}, {3, 2, 1}}};
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId rows = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){3, c->columns}, 0, 0.5);
    check->graph->frozen = true;
    TensorId w = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->other, c->columns}, 0, 0.5);
    check->graph->frozen = false;
    op_put_rows(check->graph, rows, w, &runs);
    op_linear_cross_entropy(
        check->graph, x, w, check_integers(check, 1, &c->rows, targets), check_scalar(check, 0.25), check_loss(check, 1), c->other);
    op_train_head_rows(check->graph, rows, &runs);
}

static void rows_of_a_frozen_head_get_the_gradients_of_the_loss(void **state) {
    (void)state;
    static const Case cases[] = {{13, 18, 5}, {13, 64, 37}};
    CHECK_ALL(build_head_rows, cases);
}

static void cross_entropy_passes_with_targets_to_ignore(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 5}, {13, 18, 5}, {13, 64, 37}, {13, 18, 5, true}, {13, 64, 37, true}};
    CHECK_ALL(build_cross_entropy, cases);
}

/* x w^T, on the GPU of SMELT_TEST_DEVICE too. Small integers are exact in bf16. */
static void the_head_keeps_its_logits_where_it_is_told(void **state) {
    (void)state;
    enum { ROWS = 13, WIDTH = 16, VOCABULARY = 37 };
    const int64_t rows = ROWS, one = 1;
    Device *device = check_device() ? check_device() : device_cpu();
    Graph *graph = graph_create(PRECISION_BF16, true);
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){ROWS, WIDTH}, "x");
    TensorId w = graph_parameter(graph, "w", PARAMETER_EMBEDDING, 2, (int64_t[]){VOCABULARY, WIDTH}, 0, 1, false);
    TensorId wanted = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "targets");
    TensorId scale = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "scale");
    TensorId loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &one, "loss");
    op_linear_cross_entropy(graph, x, w, wanted, scale, loss, VOCABULARY);
    TensorId logits = op_keep_logits(graph);
    Program program = check_program((Model){.graph = graph}, device);
    Executor *executor = program.executor;
    uint16_t *in = executor_tensor(executor, x), weights[VOCABULARY * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++) in[i] = bf16_from_float((float)(i % 7 - 3));
    for (int i = 0; i < VOCABULARY * WIDTH; i++) weights[i] = bf16_from_float((float)(i % 5 - 2) / 4);
    memcpy(executor_tensor(executor, wanted), targets, sizeof targets);
    executor_set_scalar(executor, scale, 0.25);
    device_upload(device, executor_tensor(executor, w), weights, sizeof weights);
    executor_zero(executor);
    executor_run(executor);
    float kept[ROWS * VOCABULARY];
    executor_read(executor, logits, kept);
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VOCABULARY; v++) {
            float sum = 0;
            for (int c = 0; c < WIDTH; c++) sum += bf16_to_float(in[r * WIDTH + c]) * bf16_to_float(weights[v * WIDTH + c]);
            assert_true(kept[r * VOCABULARY + v] == sum);
        }
    program_free(&program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_passes),
        cmocka_unit_test(layernorm_passes_with_and_without_bias),
        cmocka_unit_test(norms_are_those_of_their_definitions),
        cmocka_unit_test(residual_layernorm_passes_likewise),
        cmocka_unit_test(residual_norm_passes_with_and_without_scales_and_a_dead_stream),
        cmocka_unit_test(post_norm_passes_with_one_reader_or_two),
        cmocka_unit_test(post_norm_is_that_of_its_definition),
        cmocka_unit_test(narrow_passes),
        cmocka_unit_test(linear_passes_with_and_without_bias_and_wide),
        cmocka_unit_test(lora_and_scale_pass),
        cmocka_unit_test(groups_of_rows_have_their_own_adapters),
        cmocka_unit_test(each_row_gets_the_adapters_of_its_group),
        cmocka_unit_test(few_rows_get_the_adapters_of_their_group),
        cmocka_unit_test(a_row_has_the_same_bits_beside_any_others),
        cmocka_unit_test(equal_adapters_pass),
        cmocka_unit_test(a_frozen_layer_with_adapters_passes),
        cmocka_unit_test(a_tensor_with_two_readers_gets_the_sum_of_their_gradients),
        cmocka_unit_test(scale_add_passes),
        cmocka_unit_test(gelu_beside_other_columns_passes),
        cmocka_unit_test(clamp_passes),
        cmocka_unit_test(embed_passes_with_repeated_tokens),
        cmocka_unit_test(rows_of_a_frozen_table_get_the_gradients_of_their_tokens),
        cmocka_unit_test(cross_entropy_passes_with_targets_to_ignore),
        cmocka_unit_test(rows_of_a_frozen_head_get_the_gradients_of_the_loss),
        cmocka_unit_test(the_head_keeps_its_logits_where_it_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
