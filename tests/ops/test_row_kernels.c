/* Kernels of one row that compute several nodes (OpKernel.absorbs), as in generation. Their results have the bits of the nodes'
 * own kernels, which run in programs that keep the intermediate results. Two kernels agree only to rounding: that of experts, whose
 * GEMMs add in another order, and that of a norm with its GEMM, which rounds before it divides. Other tests compare the nodes' own
 * kernels with the CPU. Each program runs directly, recorded and replayed. Skipped without SMELT_TEST_DEVICE; sums over ranks are in test_direct.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "base/rng.h"
#include "ops/activation/activation.h"
#include "ops/attention/attention.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/linear/linear.h"
#include "ops/moe/moe.h"
#include "ops/norm/norm.h"
#include "ops/rope/rope.h"
#include "support/check.h"

enum { RUNS = 3, POSITIONS = 70, POSITION = 66, EXPERTS = 5 };

static const ActivationTerms terms = {.alpha = 1.7, .limit = 0.5}; /* a bound that some values reach */

/* A program of one row or a few, and what it makes. */
typedef struct Row {
    Graph *graph;
    Program program;
    TensorId x, stream, positions, first_rows, index, gate, result, cache, residual;
} Row;

typedef struct Layer {
    int64_t in;
    bool normed;        /* x is the RMSNorm of a residual add */
    bool biased, keeps; /* keeps what nodes hand on: each node has its own kernel */
    Heads heads;
    int64_t ffn, k;
    Activation function;
    int32_t chosen[3];     /* experts; EXPERTS: skipped */
    int32_t first_row;     /* of the sequence in its cache; 0: the cache is the sequence's */
    int64_t rows, rotated; /* of the sequence; channels of a head that are rotated. 0: one row; all channels */
} Layer;

static int64_t rows_of(const Layer *layer) { return layer->rows ? layer->rows : 1; }

static TensorId parameter(Graph *graph, ParameterKind kind, int64_t rows, int64_t columns) {
    int64_t shape[] = {rows, columns};
    return graph_cut_parameter(graph, columns ? "w" : "bias", kind, columns ? 2 : 1, shape, &(Cut){0}, 0, 1, false);
}

static TensorId keep(const Layer *layer, Graph *graph, TensorId tensor) {
    graph->tensors[tensor].keep = layer->keeps;
    return tensor;
}

/* Returns the RMSNorm of x and another input, and keeps their sum. */
static TensorId normed(Row *p, const Layer *layer) {
    p->stream = graph_tensor(p->graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){1, layer->in}, "stream");
    Norm norm = {NORM_RMS, parameter(p->graph, PARAMETER_NORM, layer->in, 0), TENSOR_NONE, 1e-5};
    ResidualNorm sum = op_residual_norm(p->graph, p->x, p->stream, NULL, &norm);
    p->graph->tensors[p->residual = sum.stream].keep = true;
    return keep(layer, p->graph, sum.normed);
}

static TensorId linear(Row *p, const Layer *layer, int64_t out) {
    TensorId w = parameter(p->graph, PARAMETER_MATRIX, out, layer->in),
             bias = layer->biased ? parameter(p->graph, PARAMETER_BIAS, out, 0) : TENSOR_NONE;
    TensorId x = layer->normed ? normed(p, layer) : p->x;
    return keep(layer, p->graph, op_linear(p->graph, x, w, bias, false));
}

static Row row_begin(const Layer *layer) {
    Row p = {.graph = graph_create(PRECISION_BF16, false)};
    p.x = graph_tensor(p.graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){rows_of(layer), layer->in}, "x");
    return p;
}

static Row build_mlp(const Layer *layer) {
    Row p = row_begin(layer);
    int64_t width = activation_rules[layer->function].gated ? 2 * layer->ffn : layer->ffn;
    p.result = op_activation_with(p.graph, linear(&p, layer, width), layer->function, terms);
    return p;
}

static Row build_attention(const Layer *layer) {
    Row p = row_begin(layer);
    const Heads *h = &layer->heads;
    int64_t one = 1, rows = rows_of(layer), rotated = layer->rotated ? layer->rotated : h->qk_dim;
    int64_t cached[] = {layer->first_row + POSITIONS, heads_kv_columns(h)};
    p.positions = graph_tensor(p.graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "positions");
    if (layer->first_row) p.first_rows = graph_tensor(p.graph, ARENA_INPUT, TYPE_INT32, 1, &one, "first_rows");
    p.cache = graph_tensor(p.graph, ARENA_STATE, TYPE_COMPUTE, 2, cached, "cache");
    TensorId table = op_rope_table(p.graph, &(RopeSpec){.theta = 1e4, .dimensions = rotated, .positions = POSITIONS, .factor = 1});
    TensorId qkv = linear(&p, layer, heads_columns(h));
    qkv = keep(layer, p.graph, op_rope(p.graph, qkv, p.positions, table, h, ROPE_HALVES));
    p.result = op_attention_cached(p.graph, qkv, p.positions, p.cache, p.first_rows, &(AttentionSpec){.heads = *h, .length = rows});
    return p;
}

static TensorId experts(Graph *graph, int64_t out, int64_t in) {
    return graph_cut_parameter(graph, "experts", PARAMETER_MATRIX, 3, (int64_t[]){EXPERTS, out, in}, &(Cut){0}, 0, 1, false);
}

static TensorId add_biases(const Layer *layer, Graph *graph, TensorId x, const Dispatch *dispatch) {
    int64_t shape[] = {EXPERTS, graph_columns(graph, x)};
    if (!layer->biased) return x;
    TensorId bias = graph_cut_parameter(graph, "bias", PARAMETER_BIAS, 2, shape, &(Cut){0}, 0, 1, false);
    return op_grouped_bias(graph, x, bias, dispatch, 0);
}

static Row build_experts(const Layer *layer) {
    Row p = row_begin(layer);
    p.index = graph_tensor(p.graph, ARENA_INPUT, TYPE_INT32, 2, (int64_t[]){1, layer->k}, "index");
    p.gate = graph_tensor(p.graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){1, layer->k}, "gate");
    TensorId gate_up = experts(p.graph, 2 * layer->ffn, layer->in), down = experts(p.graph, layer->in, layer->ffn);
    Dispatch dispatch = op_moe_sort(p.graph, p.index, EXPERTS);
    TensorId slots = keep(layer, p.graph, op_moe_permute(p.graph, p.x, &dispatch));
    TensorId both = add_biases(layer, p.graph, op_grouped_linear(p.graph, slots, gate_up, &dispatch), &dispatch);
    TensorId hidden = op_activation_with(p.graph, both, layer->function, terms);
    TensorId done = add_biases(layer, p.graph, op_grouped_linear(p.graph, hidden, down, &dispatch), &dispatch);
    p.result = op_moe_combine(p.graph, done, p.gate, &dispatch);
    return p;
}

/* Random halves, times `share`; the same for tensors of the same number. */
static void fill(Device *device, void *to, TensorId tensor, int64_t count, float share) {
    uint16_t *values = memory_allocate((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = bf16_from_float(share * (float)rng_normal((uint64_t)tensor, 5, (uint64_t)i));
    device_upload(device, to, values, count * (int64_t)sizeof *values);
    free(values);
}

static void fill_arena(const Row *p, Arena arena, float share) {
    int64_t count = p->program.plan.bytes[arena] / (int64_t)sizeof(uint16_t);
    fill(check_gpu(), executor_arena(p->program.executor, arena), (TensorId)arena, count, share);
}

static void run(Row *p, const Layer *layer, int absorbed) {
    p->graph->tensors[p->result].keep = true;
    p->program = check_program((Model){.graph = p->graph}, check_gpu());
    assert_int_equal(p->graph->nodes[p->graph->node_count - 1].absorbs, absorbed);
    fill_arena(p, ARENA_WEIGHT, 1);
    fill_arena(p, ARENA_MASTER, 1.0f / 32); /* pairs of halves are numbers of fp32, too; small gains keep scores small */
    if (p->cache) fill_arena(p, ARENA_STATE, 1);
    uint16_t *x = executor_tensor(p->program.executor, p->x);
    for (int64_t i = 0; i < graph_elements(p->graph, p->x); i++) x[i] = bf16_from_float((float)rng_normal(7, 0, (uint64_t)i) / 32);
    for (int64_t i = 0; p->stream && i < layer->in; i++)
        ((float *)executor_tensor(p->program.executor, p->stream))[i] = (float)rng_normal(8, 0, (uint64_t)i) / 8;
    for (int64_t i = 0; p->positions && i < rows_of(layer); i++)
        ((int32_t *)executor_tensor(p->program.executor, p->positions))[i] = (int32_t)(POSITION + 1 - rows_of(layer) + i);
    if (p->first_rows) *(int32_t *)executor_tensor(p->program.executor, p->first_rows) = layer->first_row;
    for (int64_t j = 0; j < layer->k; j++) {
        ((int32_t *)executor_tensor(p->program.executor, p->index))[j] = layer->chosen[j];
        ((float *)executor_tensor(p->program.executor, p->gate))[j] = 0.75f / (float)(j + 1);
    }
    for (int i = 0; i < RUNS; i++) executor_run(p->program.executor);
}

static double number(uint16_t half) { return bf16_to_float(half); }

/* The same bits, or where there is a tolerance an error of so much of the whole. */
static void compare(const Row *a, TensorId in_a, const Row *b, TensorId in_b, double tolerance) {
    int64_t count = graph_elements(a->graph, in_a);
    double error = 0, whole = 0;
    uint16_t *x = memory_allocate(2 * (size_t)count * sizeof *x), *y = x + count;
    executor_read(a->program.executor, in_a, x);
    executor_read(b->program.executor, in_b, y);
    for (int64_t i = 0; i < count; i++) {
        double difference = number(y[i]) - number(x[i]);
        error += difference * difference, whole += number(x[i]) * number(x[i]);
        if (tolerance == 0 && x[i] != y[i]) fail_msg("element %lld is %g, not %g", (long long)i, number(y[i]), number(x[i]));
    }
    assert_true(whole > 0);
    if (!(error <= tolerance * tolerance * whole)) fail_msg("the error is %g of the whole", sqrt(error / whole));
    free(x);
}

static void compare_residuals(const Row *a, const Row *b) {
    int64_t count = graph_elements(a->graph, a->residual);
    float *x = memory_allocate(2 * (size_t)count * sizeof *x), *y = x + count;
    executor_read(a->program.executor, a->residual, x);
    executor_read(b->program.executor, b->residual, y);
    assert_true(x[0] != 0);
    assert_memory_equal(x, y, (size_t)count * sizeof *x);
    free(x);
}

static void end(Row *p) { program_free(&p->program); }

static void expect_close_at(Row (*build)(const Layer *), Layer layer, int absorbed, double tolerance) {
    layer.keeps = true;
    Row apart = build(&layer);
    layer.keeps = false;
    Row together = build(&layer);
    run(&apart, &layer, 0);
    run(&together, &layer, absorbed);
    compare(&apart, apart.result, &together, together.result, tolerance);
    if (apart.cache) compare(&apart, apart.cache, &together, together.cache, tolerance);
    if (apart.residual) compare_residuals(&apart, &together);
    end(&apart);
    end(&together);
}

enum { LARGE = 300 }; /* features of layers that have no other shapes, because they take seconds */

/* Other shapes have more features, or more heads. */
static void expect_close(Row (*build)(const Layer *), Layer layer, int absorbed, double tolerance) {
    check_gpu();
    Layer shaped = layer;
    if (layer.ffn > LARGE) {
        expect_close_at(build, layer, absorbed, tolerance);
        return;
    }
    for (int i = 0; check_has_shape(i); i++) {
        shaped.ffn = check_shape_rows(layer.ffn);
        shaped.heads.heads = check_shape_rows(layer.heads.heads);
        shaped.heads.kv_heads = check_shape_rows(layer.heads.kv_heads);
        expect_close_at(build, shaped, absorbed, tolerance);
    }
}

static void expect_same(Row (*build)(const Layer *), Layer layer, int absorbed) { expect_close(build, layer, absorbed, 0); }

/* Groups of eight lines and of four, with x held and, in the last case, not. Groups that are not full, too, but for
 * gated functions. */
static void a_function_is_of_what_its_kernel_makes(void **state) {
    (void)state;
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++) {
        bool gated = activation_rules[f].gated;
        expect_same(build_mlp, (Layer){.in = 64, .ffn = gated ? 12 : 13, .biased = !gated, .function = f}, 1);
        expect_same(build_mlp, (Layer){.in = 520, .ffn = gated ? 300 : 40, .biased = gated, .function = f}, 1);
        expect_same(build_mlp, (Layer){.in = 2056, .ffn = gated ? 36 : 11, .function = f}, 1);
        expect_same(build_mlp, (Layer){.in = 4104, .ffn = gated ? 36 : 11, .function = f}, 1);
    }
}

static void keys_and_values_go_from_their_projection_to_the_cache(void **state) {
    (void)state;
    expect_same(build_attention, (Layer){.in = 64, .heads = {4, 2, 8, 8}}, 2);
    expect_same(build_attention, (Layer){.in = 520, .heads = {6, 2, 24, 24}, .biased = true}, 2);
    expect_same(build_attention, (Layer){.in = 2056, .heads = {4, 2, 16, 16}}, 2);
    expect_same(build_attention, (Layer){.in = 4104, .heads = {4, 1, 64, 64}}, 2);
    expect_same(build_attention, (Layer){.in = 64, .heads = {4, 2, 16, 16}, .first_row = 30}, 2);
}

static void rope_of_several_rows_is_in_the_kernel_that_writes_the_cache(void **state) {
    (void)state;
    expect_same(build_attention, (Layer){.in = 64, .heads = {4, 2, 16, 16}, .rows = 3}, 1);
    expect_same(build_attention, (Layer){.in = 64, .heads = {4, 2, 64, 64}, .biased = true, .first_row = 30, .rows = 40}, 1);
    expect_same(build_attention, (Layer){.in = 64, .heads = {40, 8, 32, 32}, .rows = 2, .rotated = 16}, 1);
    expect_same(build_attention, (Layer){.in = 64, .heads = {4, 4, 32, 16}, .rows = 5}, 1);
    expect_same(build_attention, (Layer){.in = 64, .heads = {4, 2, 24, 24}, .rows = 5}, 0);
}

/* Gate, up and each expert's row are rounded to bf16, 2^-9 of each, from sums that differ in their last bits: a part of the
 * elements is one unit off, 2^-8. One choice is skipped in the last cases. */
static void experts_of_a_row_are_two_kernels(void **state) {
    (void)state;
    const double tolerance = 0.004;
    expect_close(build_experts, (Layer){.in = 520, .ffn = 4104, .k = 2, .chosen = {4, 1}, .function = ACTIVATION_swiglu}, 5, tolerance);
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++) {
        if (!activation_rules[f].gated) continue;
        expect_close(build_experts, (Layer){.in = 64, .ffn = 24, .k = 1, .chosen = {3}, .function = f}, 5, tolerance);
        expect_close(build_experts, (Layer){.in = 4104, .ffn = 48, .k = 3, .chosen = {2, EXPERTS, 0}, .function = f}, 5, tolerance);
        expect_close(build_experts, (Layer){.in = 72, .ffn = 40, .k = 2, .chosen = {0, 4}, .function = f, .biased = true}, 7, tolerance);
    }
}

/* Sums of numbers that are rounded before or after they are divided may be rounded to neighbors, which differ by up to
 * 2^-7; a square doubles that, and is rounded again. A wrong norm or residual is off by much more. The cases
 * include more groups than the blocks that a GPU has room for, and a row too long for a block to hold, whose norm has its own
 * kernel. */
static void a_norm_joins_the_gemm_that_reads_it(void **state) {
    (void)state;
    const double tolerance = 0.02;
    for (Activation f = ACTIVATION_AUTO + 1; f < ACTIVATION_COUNT; f++) {
        bool gated = activation_rules[f].gated;
        expect_close(build_mlp, (Layer){.in = 520, .ffn = gated ? 300 : 40, .normed = true, .biased = true, .function = f}, 2, tolerance);
        expect_close(build_mlp, (Layer){.in = 4096, .ffn = gated ? 36 : 11, .normed = true, .function = f}, 2, tolerance);
    }
    expect_close(build_mlp, (Layer){.in = 64, .ffn = 12000, .normed = true, .function = ACTIVATION_swiglu}, 2, tolerance);
    expect_same(build_mlp, (Layer){.in = 4104, .ffn = 36, .normed = true, .function = ACTIVATION_swiglu}, 1);
    expect_close(build_attention, (Layer){.in = 520, .heads = {6, 2, 24, 24}, .normed = true, .biased = true}, 3, tolerance);
    expect_close(build_attention, (Layer){.in = 2056, .heads = {4, 2, 16, 16}, .normed = true, .first_row = 30}, 3, tolerance);
}

static void expect_apart(Row (*build)(const Layer *), Layer layer) {
    check_gpu();
    expect_close_at(build, layer, 0, 0);
}

/* Lines that whole loads do not read, and widths that blocks of pairs do not divide. */
static void what_a_kernel_does_not_serve_stays_apart(void **state) {
    (void)state;
    expect_apart(build_mlp, (Layer){.in = 20, .ffn = 12, .function = ACTIVATION_swiglu});
    expect_apart(build_mlp, (Layer){.in = 64, .ffn = 10, .function = ACTIVATION_swiglu});
    expect_apart(build_attention, (Layer){.in = 64, .heads = {4, 2, 6, 6}});
    expect_apart(build_experts, (Layer){.in = 64, .ffn = 12, .k = 1, .function = ACTIVATION_swiglu});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_function_is_of_what_its_kernel_makes),
        cmocka_unit_test(keys_and_values_go_from_their_projection_to_the_cache),
        cmocka_unit_test(rope_of_several_rows_is_in_the_kernel_that_writes_the_cache),
        cmocka_unit_test(experts_of_a_row_are_two_kernels),
        cmocka_unit_test(a_norm_joins_the_gemm_that_reads_it),
        cmocka_unit_test(what_a_kernel_does_not_serve_stays_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
