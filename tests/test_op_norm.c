/* RMSNorm and the fused residual norm: gradients, precisions, threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "check.h"

typedef struct Shape { int64_t rows, columns; } Shape;
static const Shape shapes[] = {{1, 1}, {1, 16}, {3, 17}, {65, 40}, {130, 7}};

static void build_rmsnorm(Check *check, const void *argument) {
    const Shape *s = argument;
    TensorId x = check_input(check, TYPE_WIDE, 2, (int64_t[]){s->rows, s->columns}, 0.3, 1);
    TensorId gain = check_parameter(check, PARAMETER_NORM, 1, &s->columns, 1, 0.2);
    check_output(check, op_rmsnorm(check->graph, x, gain, 1e-5));
}

static void rmsnorm_gradients_match_central_differences(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_op(build_rmsnorm, &shapes[i], (CheckBounds){0});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_gradients_match_central_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
