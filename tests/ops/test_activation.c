/* The functions of config/activation_list.h against their definitions in fp64, and their gradients, precisions and
 * threads by check_op. A new function is a row of `definitions`. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "support/check.h"
#include "ops/activation/activation.h"

static double gelu(double x) { return 0.5 * x * (1 + erf(x / sqrt(2))); }
static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * pow(x, 3)))); }
static double silu(double x) { return x / (1 + exp(-x)); }
static double relu2(double x) { return pow(fmax(x, 0), 2); }

/* No number of eight bits is the bound, where the function has no slope. */
static const ActivationTerms terms = {.alpha = 1.7, .limit = 1.2345};
static double clamped_silu(double x) { return fmin(x, terms.limit) / (1 + exp(-terms.alpha * fmin(x, terms.limit))); }
static double same(double x) { return x; }
static double clamped_and_one(double x) { return fmax(fmin(x, terms.limit), -terms.limit) + 1; }

/* y = plain(x), or plain(gate) times a function of up if the function is gated. */
static double (*const definitions[ACTIVATION_COUNT])(double) = {
    [ACTIVATION_gelu] = gelu,
    [ACTIVATION_gelu_tanh] = gelu_tanh,
    [ACTIVATION_silu] = silu,
    [ACTIVATION_relu2] = relu2,
    [ACTIVATION_swiglu] = silu,
    [ACTIVATION_geglu_tanh] = gelu_tanh,
    [ACTIVATION_swiglu_clamped] = clamped_silu,
};
static double (*up_of(Activation f))(double) { return f == ACTIVATION_swiglu_clamped ? clamped_and_one : same; }

static void functions_are_those_of_their_definitions(void **state) {
    (void)state;
    static const double x[] = {-300, -12, -3, -0.5, 0, 0.1, 1, 4, 12, 300};
    enum { COUNT = sizeof x / sizeof *x };
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++) {
        bool gated = activation_rules[f].gated;
        double input[2 * COUNT];
        Graph *graph = graph_create(PRECISION_FP64, false);
        TensorId from = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){1, gated ? 2 * COUNT : COUNT}, "x");
        TensorId to = op_activation_with(graph, from, f, terms);
        graph->tensors[to].keep = true;
        Program program = check_program((Model){.graph = graph}, device_cpu());
        Executor *executor = program.executor;
        for (int i = 0; i < COUNT; i++) input[i] = x[i], input[COUNT + i] = 1.5 - i;
        memcpy(executor_tensor(executor, from), input, (gated ? 2 * COUNT : COUNT) * sizeof *input);
        executor_run(executor);
        for (int i = 0; i < COUNT; i++) {
            double expected = definitions[f](x[i]) * (gated ? up_of(f)(input[COUNT + i]) : 1),
                   y = ((double *)executor_tensor(executor, to))[i];
            if (!(fabs(y - expected) <= 1e-13 * fmax(1, fabs(expected)))) /* a few roundings */
                fail_msg("%s of %g: %.17g, not %.17g", activation_rules[f].name, x[i], y, expected);
        }
        program_free(&program);
    }
}

typedef struct Case {
    Activation function;
    int64_t rows, columns;
} Case;

static void build(Check *check, const void *argument) {
    const Case *c = argument;
    int64_t columns = activation_rules[c->function].gated ? 2 * c->columns : c->columns;
    TensorId x = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){c->rows, columns}, 0, 2);
    check_output(check, op_activation_with(check->graph, x, c->function, terms));
}

static void functions_pass(void **state) {
    (void)state;
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++) {
        check_op(build, &(Case){f, 1, 1}, (CheckBounds){0});
        check_op(build, &(Case){f, 9, 35}, (CheckBounds){0});
        check_op(build, &(Case){f, 3, 40}, (CheckBounds){0});
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_those_of_their_definitions),
        cmocka_unit_test(functions_pass),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
