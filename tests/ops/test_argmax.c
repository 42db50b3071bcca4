/* The largest elements of rows by parts, on the CPU and on the GPU of SMELT_TEST_DEVICE, against a loop: ties, limits within a part
 * and within a row, rows shorter than the number of parts, and elements that are not finite, in and beyond the limit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_device.h"
#include "ops/argmax/argmax.h"
#include "support/check.h"

enum { ROWS = 2, VALUES = ARGMAX_PARTS * ARGMAX_VALUES };

typedef struct Case {
    int64_t columns;
    int32_t limit;
    int64_t broken; /* column with an infinity in the second row; -1: none */
} Case;

/* Few different values, so that every part has ties. */
static float value_of(int64_t i) { return (float)(i * 7919 % 61 - 40); }

static void expect_part(const Case *c, const float *row, int part, bool is_broken, const float *y) {
    int64_t width = (c->columns + ARGMAX_PARTS - 1) / ARGMAX_PARTS, best = -1;
    bool has_broken = false;
    for (int64_t j = part * width; j < (part + 1) * width && j < c->columns && j < c->limit; j++) {
        has_broken |= is_broken && j == c->broken;
        if (best < 0 || row[j] > row[best]) best = j;
    }
    if (has_broken) assert_true(isnan(y[ARGMAX_ELEMENT]));
    else if (best < 0) assert_true(isinf(y[ARGMAX_ELEMENT]) && y[ARGMAX_ELEMENT] < 0);
    else assert_true(y[ARGMAX_ELEMENT] == row[best] && y[ARGMAX_COLUMN] == (float)best);
}

static void check_case(const Case *c, Device *device, Precision precision) {
    Graph *graph = graph_create(precision, false);
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){ROWS, c->columns}, "x"),
             limit = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, (int64_t[]){1}, "limit"),
             y = op_argmax(graph, x, limit, c->columns, AXES_TENSOR);
    graph->tensors[y].keep = true;
    Program program = check_program((Model){.graph = graph}, device);
    Executor *executor = program.executor;
    float *rows = executor_tensor(executor, x), parts[ROWS * VALUES];
    for (int64_t i = 0; i < ROWS * c->columns; i++) rows[i] = value_of(i);
    if (c->broken >= 0) rows[c->columns + c->broken] = c->broken % 2 ? INFINITY : NAN;
    *(int32_t *)executor_tensor(executor, limit) = c->limit;
    executor_run(executor);
    executor_read(executor, y, parts);
    for (int r = 0; r < ROWS; r++)
        for (int p = 0; p < ARGMAX_PARTS; p++) expect_part(c, rows + r * c->columns, p, r == 1, parts + r * VALUES + p * ARGMAX_VALUES);
    program_free(&program);
}

static void largest_of_parts_are_those_of_a_loop(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, -1}, {5, 5, -1}, {5, 3, 4}, {257, 257, -1}, {1000, 999, 17}, {20000, 12345, 12344},
        {20000, 12345, 12346}, {50257, 50257, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (check_device()) check_case(&cases[i], check_device(), PRECISION_BF16);
        else check_case(&cases[i], device_cpu(), PRECISION_FP32);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(largest_of_parts_are_those_of_a_loop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
