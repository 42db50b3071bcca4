/* Frozen matrices that are held as quantized values, on the CPU and on the GPU of SMELT_TEST_DEVICE: their elements are those that quantized values and
 * scales mean, and linear layers that read them have the gradients of such elements. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/backend.h"
#include "backend/cpu/cpu_device.h"
#include "base/bf16.h"
#include "base/float8.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "model/quantized.h"
#include "ops/dequantize/dequantize.h"
#include "ops/linear/linear.h"
#include "support/check.h"

/* Matrices [rows, columns] side by side; the last one is of `extra` more rows. */
typedef struct Case {
    Quantization quantization;
    int parts;
    int64_t rows, extra, columns;
} Case;

static const Case cases[] = {
    {QUANTIZE_NF4, 1, 32, 0, 64},
    {QUANTIZE_NF4, 3, 40, 8, 96},
    {QUANTIZE_NF4, 2, 3, 0, 7}, /* the second one begins at an odd element */
    {QUANTIZE_NF4, 1, 300, 0, 130},
    {QUANTIZE_FP8, 1, 32, 0, 64},
    {QUANTIZE_FP8, 3, 40, 8, 96},
    {QUANTIZE_FP8, 2, 5, 1, 9},
};

typedef struct Run {
    Graph *graph;
    Program program;
    TensorId weight, x, y, d_y;
} Run;

static void run_create(Run *run, const Case *c, Device *device, Precision precision) {
    TensorId matrices[DEQUANTIZE_PARTS];
    *run = (Run){.graph = graph_create(precision, true)};
    run->graph->frozen = true;
    run->graph->quantization = c->quantization;
    for (int i = 0; i < c->parts; i++)
        matrices[i] = graph_parameter(
            run->graph, "w", PARAMETER_MATRIX, 2, (int64_t[]){c->rows + (i + 1 == c->parts ? c->extra : 0), c->columns}, 0, 1, i > 0);
    TensorId view = graph_fuse(run->graph, matrices, c->parts);
    run->weight = op_dequantize(run->graph, view);
    run->graph->tensors[run->weight].keep = true;
    run->x = graph_tensor(run->graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){4, c->columns}, "x");
    run->y = op_linear(run->graph, run->x, run->weight, TENSOR_NONE, false);
    run->d_y = graph_tensor(run->graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){4, graph_rows(run->graph, run->weight)}, "d_y");
    graph_differentiate(run->graph, RECOMPUTE_BLOCK, &(Seed){run->y, run->d_y}, 1);
    run->program = check_program((Model){.graph = run->graph}, device);
}

/* Element `i` of a matrix by its quantized values. */
static float element(Quantization kind, const uint8_t *quantized, const void *scales, int64_t count, int64_t columns, int64_t i) {
    const Nf4Head *head = scales;
    if (kind == QUANTIZE_FP8) return fp8_to_float(quantized[i], fp8_format(FP8_E4M3, false)) * ((const float *)scales)[i / columns];
    return head->values[i % 2 ? quantized[i / 2] & 15 : quantized[i / 2] >> 4] * nf4_scale(head, count, i / NF4_BLOCK);
}

/* The last bit may differ where one of two products and sums is not rounded in between. */
static void check_case(const Case *c, Device *device, Precision precision) {
    Run run;
    Error error = {0};
    run_create(&run, c, device, precision);
    int64_t count = graph_elements(run.graph, run.weight), at = 0;
    bool half = precision_is_bf16(precision);
    SCOPED_FREE float *values = memory_allocate((size_t)count * sizeof *values),
                      *expected = memory_allocate((size_t)count * sizeof *values);
    SCOPED_FREE char *made = memory_allocate((size_t)graph_bytes(run.graph, run.weight));
    for (int64_t i = 0; i < count; i++) values[i] = (float)rng_normal(9, 0, (uint64_t)i) * 0.1f;
    for (int k = 0; k < c->parts; at += run.graph->parameters[k++].count) {
        const Parameter *p = &run.graph->parameters[k];
        SCOPED_FREE uint8_t *quantized = memory_allocate((size_t)graph_bytes(run.graph, p->quantized));
        SCOPED_FREE void *scales = memory_allocate((size_t)graph_bytes(run.graph, p->scales));
        assert_true(quantize(c->quantization, values + at, p->count, c->columns, quantized, scales));
        for (int64_t i = 0; i < p->count; i++) expected[at + i] = element(c->quantization, quantized, scales, p->count, c->columns, i);
        const QuantizedPlace place = quantized_whole(run.program.executor, p);
        if (!quantized_put(run.program.executor, p, &place, values + at, &error)) fail_msg("%s", error.message);
    }
    device_fill(device, executor_arena(run.program.executor, ARENA_ACTIVATION), 0xff, run.program.plan.bytes[ARENA_ACTIVATION]);
    executor_zero(run.program.executor);
    executor_run(run.program.executor);
    if (!executor_finish(run.program.executor, &error)) fail_msg("%s", error.message);
    executor_read(run.program.executor, run.weight, made);
    for (int64_t i = 0; i < count; i++) {
        float x = half ? bf16_to_float(((const uint16_t *)made)[i]) : ((const float *)made)[i];
        float bound = (half ? 0x1p-8f : 1e-6f) * (expected[i] < 0 ? -expected[i] : expected[i]);
        if (!(x - expected[i] <= bound && expected[i] - x <= bound))
            fail_msg("element %lld of %lld is %g and not %g", (long long)i, (long long)count, (double)x, (double)expected[i]);
    }
    program_free(&run.program);
}

static void elements_are_those_that_the_codes_mean(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (check_device()) check_case(&cases[i], check_device(), PRECISION_BF16);
        if (check_device()) continue;
        check_case(&cases[i], device_cpu(), PRECISION_BF16);
        check_case(&cases[i], device_cpu(), PRECISION_FP32);
    }
}

/* Forward and backward passes each make the elements, no matter what is recomputed, and no gradient of quantized values is made. */
static void each_pass_makes_its_own_elements(void **state) {
    (void)state;
    for (RecomputePolicy policy = RECOMPUTE_NONE; policy <= RECOMPUTE_BLOCK; policy++) {
        Graph *graph = graph_create(PRECISION_FP32, true);
        graph->frozen = true;
        graph->quantization = QUANTIZE_NF4;
        TensorId w = graph_parameter(graph, "w", PARAMETER_MATRIX, 2, (int64_t[]){8, 64}, 0, 1, false);
        TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){4, 64}, "x");
        TensorId y = op_linear(graph, x, op_dequantize(graph, w), TENSOR_NONE, false);
        TensorId d_y = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){4, 8}, "d_y");
        graph_differentiate(graph, policy, &(Seed){y, d_y}, 1);
        int made = 0;
        for (int i = 0; i < graph->node_count; i++) made += graph->nodes[i].op == OP_dequantize;
        assert_int_equal(made, 2);
        for (int i = 1; i < graph->tensor_count; i++) assert_true(graph->tensors[i].arena != ARENA_GRADIENT);
        graph_free(graph);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_those_that_the_codes_mean),
        cmocka_unit_test(each_pass_makes_its_own_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
