/* Whole models in fp8 against PyTorch (tests/golden/fp8.py): loss and every gradient of each recipe. The emulation of both
 * rounds the same numbers, so they agree as in fp32, but for an element here and there that sums in another order put on the
 * other side of a rounding. And fp8 against fp32: gradients point the same way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden_run.h"

static const char *const families[] = {"fp8/llama", "fp8/qwen2", "fp8/zaya"};
static const char *const recipes[] = {[FP8_TENSOR] = "tensor", [FP8_ROW] = "row", [FP8_ROW_GW_HP] = "row_gw_hp", [FP8_BLOCK] = "block"};
enum { FAMILIES = sizeof families / sizeof *families, RECIPES = sizeof recipes / sizeof *recipes };

/* One code of 4 significant bits of the 1,536 of a row more or less, 1/16 of an element: less than 1/16 / sqrt(1536) of a
 * tensor. A wrong scale, format or operand is off by 1e-2 and more. */
static void check_gradient(const Golden *g, const char *name, const GoldenComparison *sums) {
    double error = sqrt(sums->difference / sums->theirs);
    if (getenv("SMELT_TEST_PRINT")) printf("%s %s %g\n", g->folder, name, error);
    if (!(error <= 2e-3)) fail_msg("%s: gradient of %s differs by %g of its norm", g->folder, name, error);
}

static void loss_and_gradients_are_those_of_pytorch(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++)
        for (int recipe = FP8_TENSOR; recipe < RECIPES; recipe++) {
            Golden g;
            golden_start(&g, families[f], PRECISION_FP32, MODEL_TRAIN, &(Fp8Config){.recipe = recipe});
            char *loss = memory_format("%s/loss", recipes[recipe]), *prefix = memory_format("%s/gradient/", recipes[recipe]);
            assert_float_equal(golden_run(&g), golden_value(golden_expect(&g, loss), 0), 1e-5);
            golden_each_gradient(&g, prefix, check_gradient);
            free(loss);
            free(prefix);
            golden_stop(&g);
        }
}

typedef struct Products { double dot, squares, others; } Products;

static void add_products(Products *sums, const Parameter *p, const float *rounded, const float *exact) {
    for (int64_t i = 0; i < p->count; i++) {
        sums->dot += (double)rounded[i] * exact[i];
        sums->squares += (double)rounded[i] * rounded[i];
        sums->others += (double)exact[i] * exact[i];
    }
}

static double cosine_of(const Products *sums) { return sums->dot / sqrt(sums->squares * sums->others); }

/* Rounding to e4m3 is off by up to 1/16 of an element, 2.6% in the root mean square where all sizes are as likely, and e5m2 by
 * twice that; so a GEMM of two rounded operands is off by 3.7 to 6% of its norm. A gradient has some 14 of them behind it
 * here, whose errors are independent: 14 to 24%, cosines of 0.99 to 0.97. Gradients of queries, keys and routers are small
 * differences of what a softmax sends back, and lose more: noise as large as the gradient itself leaves a cosine of 0.7. */
static void check_directions(const Golden *rounded, const Golden *exact, int recipe) {
    const Graph *graph = exact->model.graph;
    Products all = {0};
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        const float *ours = parameter_in(p, executor_arena(rounded->executor, ARENA_GRADIENT)),
                    *theirs = parameter_in(p, executor_arena(exact->executor, ARENA_GRADIENT));
        Products one = {0};
        if (p->kind == PARAMETER_BALANCE_BIAS) continue;
        add_products(&one, p, ours, theirs);
        add_products(&all, p, ours, theirs);
        if (!(cosine_of(&one) >= 0.8))
            fail_msg("%s, %s: gradient of %s has cosine %.4f", exact->folder, recipes[recipe], p->name, cosine_of(&one));
    }
    if (getenv("SMELT_TEST_PRINT")) printf("%s %s cosine %.4f\n", exact->folder, recipes[recipe], cosine_of(&all));
    if (!(cosine_of(&all) >= 0.965)) fail_msg("%s, %s: the gradient has cosine %.4f", exact->folder, recipes[recipe], cosine_of(&all));
}

static void gradients_point_as_those_of_fp32(void **state) {
    (void)state;
    for (int f = 0; f < FAMILIES; f++)
        for (int recipe = FP8_TENSOR; recipe < RECIPES; recipe++) {
            Golden exact, rounded;
            golden_start(&exact, families[f], PRECISION_FP32, MODEL_TRAIN, NULL);
            golden_start(&rounded, families[f], PRECISION_FP32, MODEL_TRAIN, &(Fp8Config){.recipe = recipe});
            golden_run(&exact);
            golden_run(&rounded);
            check_directions(&rounded, &exact, recipe);
            golden_stop(&rounded);
            golden_stop(&exact);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients_are_those_of_pytorch),
        cmocka_unit_test(gradients_point_as_those_of_fp32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
