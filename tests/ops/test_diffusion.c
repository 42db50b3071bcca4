/* The operations of diffusion transformers: adaptive LayerNorm with gates, joining and splitting, SiLU, the squared error.
 * Gradients, precisions and threads by check_op; the forward meaning by direct formulas where gradients alone would not
 * notice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "support/check.h"
#include "ops/activation/activation.h"
#include "ops/join/join.h"
#include "ops/loss/loss.h"
#include "ops/norm/norm.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static TensorId input(Graph *graph, TypeClass type, int64_t rows, int64_t columns) {
    return graph_tensor(graph, ARENA_INPUT, type, 2, (int64_t[]){rows, columns}, "input");
}

static double value_of(int64_t i) { return sin(1.7 * (double)i + 0.3); }

static double *fill(Executor *executor, TensorId tensor) {
    double *to = executor_tensor(executor, tensor);
    for (int64_t i = 0; i < graph_elements(executor_graph(executor), tensor); i++) to[i] = value_of(i + 100 * tensor);
    return to;
}

/* -- Adaptive LayerNorm -------------------------------------------------------------------------------------------- */

typedef struct AdaptiveCase {
    int64_t samples, rows, columns;
    bool residual_adds, norms, dead_stream;
} AdaptiveCase;

static void build_adaptive(Check *check, const void *argument) {
    const AdaptiveCase *c = argument;
    int64_t shape[] = {c->samples * c->rows, c->columns}, vector[] = {c->samples, c->columns};
    TensorId stream = check_input(check, TYPE_WIDE, 2, shape, 0.2, 1), block = TENSOR_NONE, gate = TENSOR_NONE;
    Modulation modulation = {0};
    if (c->residual_adds) block = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), gate = check_input(check, TYPE_WIDE, 2, vector, 0.5, 1);
    if (c->norms) modulation.shift = check_input(check, TYPE_WIDE, 2, vector, 0, 1);
    if (c->norms) modulation.scale = check_input(check, TYPE_WIDE, 2, vector, 0, 0.5);
    ResidualNorm out = op_adaptive_norm(check->graph, block, gate, stream, modulation, 1e-6);
    if (c->residual_adds && !c->dead_stream) check_output(check, out.stream);
    if (c->norms) check_output(check, out.normed);
}

static void adaptive_norm_passes_with_and_without_residual_add_and_norm(void **state) {
    (void)state;
    static const AdaptiveCase cases[] = {
        {1, 1, 8, true, true, false},
        {1, 3, 12, false, true, false},
        {2, 3, 8, true, false, false},
        {3, 5, 20, true, true, true},
        {2, 70, 12, true, true, false},
        {2, 33, 516, false, true, false},
        {2, 34, 1028, true, true, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) check_op(build_adaptive, &cases[i], (CheckBounds){0});
}

static void adaptive_norm_is_that_of_its_definition(void **state) {
    (void)state;
    enum { SAMPLES = 2, ROWS = 3, COLUMNS = 4 };
    Graph *graph = graph_create(PRECISION_FP64, false);
    TensorId block = input(graph, TYPE_COMPUTE, SAMPLES * ROWS, COLUMNS), stream = input(graph, TYPE_WIDE, SAMPLES * ROWS, COLUMNS);
    TensorId gate = input(graph, TYPE_WIDE, SAMPLES, COLUMNS);
    Modulation modulation = {input(graph, TYPE_WIDE, SAMPLES, COLUMNS), input(graph, TYPE_WIDE, SAMPLES, COLUMNS)};
    ResidualNorm out = op_adaptive_norm(graph, block, gate, stream, modulation, 0.01);
    graph->tensors[out.stream].keep = graph->tensors[out.normed].keep = true;
    Program program = check_program((Model){.graph = graph}, device_cpu());
    Executor *executor = program.executor;
    const double *blocks = fill(executor, block), *streams = fill(executor, stream), *gates = fill(executor, gate);
    const double *shifts = fill(executor, modulation.shift), *scales = fill(executor, modulation.scale);
    executor_run(executor);
    const double *residual = executor_tensor(executor, out.stream), *normed = executor_tensor(executor, out.normed);
    for (int r = 0; r < SAMPLES * ROWS; r++) {
        double mean = 0, variance = 0, expected[COLUMNS];
        for (int j = 0; j < COLUMNS; j++) {
            expected[j] = streams[r * COLUMNS + j] + gates[r / ROWS * COLUMNS + j] * blocks[r * COLUMNS + j];
            mean += expected[j] / COLUMNS;
            assert_true(fabs(residual[r * COLUMNS + j] - expected[j]) < 1e-13); /* a few roundings of values of order one */
        }
        for (int j = 0; j < COLUMNS; j++) variance += (expected[j] - mean) * (expected[j] - mean) / COLUMNS;
        for (int j = 0; j < COLUMNS; j++) {
            int at = r / ROWS * COLUMNS + j;
            double y = (expected[j] - mean) / sqrt(variance + 0.01) * (1 + scales[at]) + shifts[at];
            assert_true(fabs(normed[r * COLUMNS + j] - y) < 1e-13);
        }
    }
    program_free(&program);
}

/* -- Join and split ------------------------------------------------------------------------------------------------ */

typedef struct JoinCase {
    int64_t samples, rows[3], columns;
    int count;
    TypeClass type;
} JoinCase;

/* Rows joined, one part of them lost on the way back: its gradient is zero. */
static void build_rows(Check *check, const void *argument) {
    const JoinCase *c = argument;
    TensorId parts[3], again[3];
    for (int i = 0; i < c->count; i++) parts[i] = check_input(check, c->type, 2, (int64_t[]){c->samples * c->rows[i], c->columns}, 0, 1);
    TensorId whole = op_join_rows(check->graph, parts, c->count, c->samples);
    op_split_rows(check->graph, whole, c->rows, again, c->count, c->samples);
    for (int i = 1; i < c->count; i++) check_output(check, again[i]);
}

/* Parts of equal width, and wider ones after the first. */
static void build_columns(Check *check, const void *argument) {
    const JoinCase *c = argument;
    int64_t columns[] = {c->columns, c->columns * c->rows[1], c->columns * c->rows[2]}, all = 0;
    for (int i = 0; i < c->count; i++) all += columns[i];
    TensorId parts[3], whole = check_input(check, c->type, 2, (int64_t[]){c->samples, all}, 0, 1);
    op_split_columns(check->graph, whole, columns, parts, c->count);
    for (int i = 1; i < c->count; i++) check_output(check, parts[i]);
}

static const JoinCase joins[] = {
    {1, {1, 1, 0}, 1, 2, TYPE_COMPUTE},
    {2, {3, 5, 0}, 8, 2, TYPE_COMPUTE},
    {3, {2, 1, 4}, 12, 3, TYPE_WIDE},
    {2, {3, 2, 2}, 7, 3, TYPE_COMPUTE},
    {2, {3, 2, 0}, 5, 2, TYPE_WIDE},
};

static void join_and_split_pass(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(joins); i++) {
        check_op(build_rows, &joins[i], (CheckBounds){0});
        check_op(build_columns, &joins[i], (CheckBounds){0});
    }
}

/* Two samples, of two rows of text and one of image each. */
static void joined_rows_are_the_sample_s_own(void **state) {
    (void)state;
    Graph *graph = graph_create(PRECISION_FP64, false);
    TensorId parts[] = {input(graph, TYPE_WIDE, 4, 2), input(graph, TYPE_WIDE, 2, 2)};
    TensorId whole = op_join_rows(graph, parts, 2, 2);
    graph->tensors[whole].keep = true;
    Program program = check_program((Model){.graph = graph}, device_cpu());
    Executor *executor = program.executor;
    const double *text = fill(executor, parts[0]), *image = fill(executor, parts[1]);
    executor_run(executor);
    const double *rows = executor_tensor(executor, whole);
    const double *const expected[] = {text, text + 2, image, text + 4, text + 6, image + 2};
    for (int r = 0; r < 6; r++)
        for (int j = 0; j < 2; j++) assert_true(rows[2 * r + j] == expected[r][j]);
    program_free(&program);
}

/* -- SiLU and the squared error ------------------------------------------------------------------------------------ */

static void build_silu(Check *check, const void *argument) {
    const int64_t *shape = argument;
    check_output(check, op_activation(check->graph, check_input(check, TYPE_COMPUTE, 2, shape, 0, 2), ACTIVATION_silu));
}

static void silu_passes(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {3, 17}, {64, 32}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_silu, shapes[i], (CheckBounds){0});
}

static void build_error(Check *check, const void *argument) {
    const int64_t *shape = argument;
    TensorId x = check_input(check, TYPE_WIDE, 2, shape, 0, 1), target = check_fixed(check, TYPE_WIDE, 2, shape, 0, 1);
    TensorId weights = check_fixed(check, TYPE_WIDE, 1, shape, 1, 0.5);
    op_squared_error(check->graph, x, target, weights, check_scalar(check, 0.25), check_loss(check, 2));
}

static void squared_error_passes(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{1, 1}, {3, 17}, {300, 64}};
    for (size_t i = 0; i < COUNT(shapes); i++) check_op(build_error, shapes[i], (CheckBounds){0});
}

/* Rows of errors 1, 2 and 3, of which the first counts for nothing. */
static void squared_error_is_that_of_its_definition(void **state) {
    (void)state;
    Graph *graph = graph_create(PRECISION_FP64, true);
    TensorId x = input(graph, TYPE_WIDE, 3, 2), target = input(graph, TYPE_WIDE, 3, 2), weights = input(graph, TYPE_WIDE, 3, 1);
    TensorId scale = input(graph, TYPE_WIDE, 1, 1), loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, (int64_t[]){2}, "loss");
    op_squared_error(graph, x, target, weights, scale, loss);
    graph_differentiate(graph, RECOMPUTE_NONE, NULL, 0);
    graph->tensors[graph_get(graph, x)->gradient].keep = true;
    Program program = check_program((Model){.graph = graph}, device_cpu());
    Executor *executor = program.executor;
    const double *targets = fill(executor, target);
    for (int i = 0; i < 6; i++) ((double *)executor_tensor(executor, x))[i] = targets[i] + (i / 2 + 1) * (i % 2 ? 1 : -1);
    for (int r = 0; r < 3; r++) ((double *)executor_tensor(executor, weights))[r] = 0.5 * r;
    executor_set_scalar(executor, scale, 10);
    executor_zero(executor);
    executor_run(executor);
    const double *gradient = executor_tensor(executor, graph_get(graph, x)->gradient);
    assert_true(fabs(executor_get_metric(executor, loss, 0) - 10 * (0.5 * 4 + 1 * 9)) < 1e-12);
    for (int i = 0; i < 6; i++) assert_true(fabs(gradient[i] - 10 * 0.5 * (i / 2) * (i / 2 + 1) * (i % 2 ? 1 : -1)) < 1e-12);
    program_free(&program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adaptive_norm_passes_with_and_without_residual_add_and_norm),
        cmocka_unit_test(adaptive_norm_is_that_of_its_definition),
        cmocka_unit_test(join_and_split_pass),
        cmocka_unit_test(joined_rows_are_the_sample_s_own),
        cmocka_unit_test(silu_passes),
        cmocka_unit_test(squared_error_passes),
        cmocka_unit_test(squared_error_is_that_of_its_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
