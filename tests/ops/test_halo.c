/* What comes back for the rows that a rank has sent: it is added to the last rows of each chunk, and to no other. That halos
 * are those of the chunk before is tested with ranks (tests/layout/test_context.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ops/halo/halo.h"
#include "support/check.h"

typedef struct Case { int64_t sequences, chunk, rows, columns; } Case; /* rows of a chunk, of its halo */
static const Case cases[] = {{1, 2, 2, 5}, {1, 1, 1, 1}, {3, 7, 2, 24}, {2, 33, 5, 40}};

static TensorId append(Graph *graph, const Case *c, TensorId x, TensorId ends) {
    HaloAttributes attributes = {.spec = {.sequences = c->sequences, .rows = c->rows}};
    TensorId sum = graph_activation_like(graph, TYPE_COMPUTE, x, "sum");
    Inputs in = {[HALO_ADD_X] = x, [HALO_ADD_ENDS] = ends};
    graph_node(graph, OP_halo_add, in, (Outputs){[HALO_ADD_SUM] = sum}, &attributes, sizeof attributes);
    return sum;
}

static void build(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){2 * c->sequences * c->chunk, c->columns}, 0, 1);
    TensorId ends = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){2 * c->sequences * c->rows, c->columns}, 0, 1);
    check_output(check, append(check->graph, c, x, ends));
}

static void every_back_end_adds_the_same(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_op(build, &cases[i], (CheckBounds){.forward_only = true});
}

static void ends_are_added_to_the_last_rows_of_chunks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const Case *c = &cases[i];
        int64_t rows = 2 * c->sequences * c->chunk, all = 2 * c->sequences * c->rows;
        Graph *graph = graph_create(PRECISION_FP64, true);
        TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){rows, c->columns}, "x");
        TensorId ends = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){all, c->columns}, "ends");
        TensorId sum = append(graph, c, x, ends);
        graph->tensors[sum].keep = true;
        Program program = check_program((Model){.graph = graph}, device_cpu());
        Executor *executor = program.executor;
        double *to = executor_tensor(executor, x), *from = executor_tensor(executor, ends);
        for (int64_t j = 0; j < rows * c->columns; j++) to[j] = (double)j;
        for (int64_t j = 0; j < all * c->columns; j++) from[j] = (double)(1000 * (j + 1));
        executor_run(executor);
        const double *got = executor_tensor(executor, sum);
        for (int64_t j = 0; j < rows * c->columns; j++) {
            int64_t row = j / c->columns, place = row % c->chunk - (c->chunk - c->rows), end = row / c->chunk * c->rows + place;
            double expected = (double)j + (place < 0 ? 0 : (double)(1000 * (end * c->columns + j % c->columns + 1)));
            if (got[j] != expected) fail_msg("case %zu, element %d: %g, expected %g", i, (int)j, got[j], expected);
        }
        program_free(&program);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ends_are_added_to_the_last_rows_of_chunks),
        cmocka_unit_test(every_back_end_adds_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
