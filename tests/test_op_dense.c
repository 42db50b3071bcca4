/* The operations that every family shares: embedding, norms, linear, sums, activations, head with cross-entropy. Gradients, precisions and
 * threads by check_op; the forward meaning by direct formulas where gradients alone would not notice. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "check.h"

typedef struct Case { int64_t rows, columns, other; bool flag, flag2; } Case;
#define CHECK_ALL(build, cases) \
    for (size_t i = 0; i < sizeof(cases) / sizeof *(cases); i++) check_op(build, &(cases)[i], (CheckBounds){0})

static void build_rmsnorm(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_WIDE, 2, (int64_t[]){c->rows, c->columns}, 0.3, 1);
    TensorId gain = check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.2);
    check_output(check, op_rmsnorm(check->graph, x, gain, 1e-5));
}

static void rmsnorm_passes(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1}, {1, 16}, {3, 17}, {65, 40}, {130, 7}};
    CHECK_ALL(build_rmsnorm, cases);
}

static void build_residual_norm(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t shape[] = {c->rows, c->columns};
    TensorId block = check_input(check, TYPE_COMPUTE, 2, shape, 0, 1), stream = check_input(check, TYPE_WIDE, 2, shape, 0.2, 1), affine[4];
    TensorId gain = check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.2);
    for (int i = 0; i < 4; i++) affine[i] = check_parameter(check, PARAMETER_NORM, 1, &c->columns, i % 2 ? 0 : 1, 0.3);
    ResidualNorm out = op_residual_norm(check->graph, block, stream, c->flag ? affine : NULL, gain, 1e-5);
    if (!c->flag2) check_output(check, out.stream);
    check_output(check, out.normed);
}

static void residual_norm_passes_with_and_without_scales_and_a_dead_stream(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 0, true, false}, {1, 16, 0, false, false}, {3, 17, 0, true, true}, {70, 24, 0, true, false}, {130, 7, 0, false, true}};
    CHECK_ALL(build_residual_norm, cases);
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

static void build_two_readers(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId y = op_gelu(check->graph, x);
    check_output(check, op_add(check->graph, y, op_gelu(check->graph, y)));
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

static void build_activation(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 2);
    check_output(check, c->flag ? op_swiglu(check->graph, x) : op_gelu(check->graph, x));
}

static void gelu_and_swiglu_pass(void **state) {
    (void)state;
    static const Case cases[] = {{1, 2, 0, false, false}, {1, 2, 0, true, false}, {9, 34, 0, false, false}, {9, 34, 0, true, false}};
    CHECK_ALL(build_activation, cases);
}

static const int32_t tokens[] = {4, 0, 4, 4, 2, 6, 0, 4, 1, 5, 6, 6, 3};

static void build_embed(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId ids = check_integers(check, 1, &c->rows, tokens);
    TensorId table = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){7, c->columns}, 0, 1), bias = TENSOR_NONE, scale = TENSOR_NONE;
    if (c->flag) {
        bias = check_parameter(check, PARAMETER_BIAS, 1, &c->columns, 0, 1);
        scale = check_parameter(check, PARAMETER_NORM, 1, &c->columns, 1, 0.5);
    }
    check_output(check, op_embed(check->graph, ids, table, bias, scale));
}

static void embed_passes_with_repeated_tokens(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 0, true, false}, {13, 70, 0, true, false}, {13, 33, 0, false, false}};
    CHECK_ALL(build_embed, cases);
}

static const int32_t targets[] = {1, 0, -1, 3, 2, 0, 0, 4, 1, -1, 2, 2, 3};

static void build_cross_entropy(Check *check, const void *argument) {
    const Case *c = argument;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->columns}, 0, 1);
    TensorId w = check_parameter(check, PARAMETER_EMBEDDING, 2, (int64_t[]){c->other, c->columns}, 0, 0.5);
    op_linear_cross_entropy(check->graph, x, w, check_integers(check, 1, &c->rows, targets), check_scalar(check, 0.25), check_loss(check, 1));
}

static void cross_entropy_passes_with_targets_to_ignore(void **state) {
    (void)state;
    static const Case cases[] = {{1, 1, 5}, {13, 18, 5}, {13, 64, 37}};
    CHECK_ALL(build_cross_entropy, cases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_passes),
        cmocka_unit_test(residual_norm_passes_with_and_without_scales_and_a_dead_stream),
        cmocka_unit_test(linear_passes_with_and_without_bias_and_wide),
        cmocka_unit_test(a_tensor_with_two_readers_gets_the_sum_of_their_gradients),
        cmocka_unit_test(scale_add_passes),
        cmocka_unit_test(gelu_and_swiglu_pass),
        cmocka_unit_test(embed_passes_with_repeated_tokens),
        cmocka_unit_test(cross_entropy_passes_with_targets_to_ignore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
