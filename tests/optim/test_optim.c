/* Optimizers against PyTorch's results (golden/optim.h), against plain loops in double, and their promises: bits
 * independent of threads, what is decayed, clipped and left alone; schedules at their edges. With
 * SMELT_TEST_DEVICE=hip or cuda also a GPU's against the CPU's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "golden/optim.h"
#include "optim/optim_internal.h"
#include "support/check.h"
#include "support/each_isa.h"

static const OptimizerConfig adamw = {
    .name = OPTIMIZER_adamw, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .momentum = 0.95, .newton_schulz_steps = 5};

static OptimizerConfig lion_config(void) {
    OptimizerConfig config = adamw;
    config.name = OPTIMIZER_lion;
    return config;
}

static OptimizerConfig muon_config(void) {
    OptimizerConfig config = adamw;
    config.name = OPTIMIZER_muon;
    return config;
}

/* ---- A set of parameters with its arenas, values held in the types of a precision ---- */

/* On a GPU the arenas here are images of its own, in `device_arenas` in the same order. */
typedef struct Fixture {
    Graph *graph;
    Optimizer *optimizer;
    Device *device;
    void *master, *weights, *gradients;
    void *device_arenas[3];
    size_t wide;
} Fixture;

typedef struct Shape {
    ParameterKind kind;
    int rank;
    int64_t shape[3];
    bool fused;
    int64_t projections[2]; /* rows of both, of a matrix that holds two */
} Shape;

static void put(void *arena, size_t wide, int64_t i, double value) {
    if (wide == sizeof(double)) ((double *)arena)[i] = value;
    else ((float *)arena)[i] = (float)value;
}
static double get(const void *arena, size_t wide, int64_t i) {
    return wide == sizeof(double) ? ((const double *)arena)[i] : ((const float *)arena)[i];
}

/* The formula of golden/optim.py: exact in every type. Step 0 gives parameters, later steps gradients. */
static double value_at(int64_t step, int64_t i) {
    int64_t x = i + 40 * step;
    return (double)((x * x * 17 + x * 29 + 11) % 1009 - 504) / 256;
}

static void *allocate_on(Device *device, size_t bytes) {
    Error error;
    void *memory = device_allocate(device, (int64_t)bytes, &error);
    assert_non_null(memory);
    return memory;
}

/* Of all parameters with the gaps between them; and of the first of a parameter. */
static int64_t elements_of(const Graph *graph) { return graph->parameter_bytes / precision_state_bytes(graph->precision, TYPE_COMPUTE); }
static int64_t first_element(const Graph *graph, int parameter) {
    return graph->parameters[parameter].offset / graph->parameters[parameter].element_bytes;
}

static Fixture make_on(Device *device, Precision precision, const OptimizerConfig *config, const Shape *shapes, int count) {
    Fixture f = {.graph = graph_create(precision, true), .device = device, .wide = precision_bytes(precision, TYPE_WIDE)};
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        TensorId p = graph_parameter(f.graph, name, shapes[i].kind, shapes[i].rank, shapes[i].shape, 0, 1, shapes[i].fused);
        if (shapes[i].projections[0]) graph_set_projections(f.graph, p, shapes[i].projections, 2);
    }
    Error error;
    f.optimizer = optimizer_create(f.graph, config, NULL, device, &error);
    assert_non_null(f.optimizer);
    size_t extent = (size_t)elements_of(f.graph);
    f.master = calloc(extent, f.wide);
    f.gradients = calloc(extent, f.wide);
    f.weights = precision == PRECISION_BF16 ? calloc(extent, 2) : f.master;
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < f.graph->parameters[i].count; k++) put(f.master, f.wide, first_element(f.graph, i) + k, value_at(0, k));
    if (!device_info(device)->host_memory)
        for (int i = 0; i < 3; i++) f.device_arenas[i] = allocate_on(device, extent * f.wide);
    return f;
}

static Fixture make(Precision precision, const OptimizerConfig *config, const Shape *shapes, int count) {
    return make_on(device_cpu(), precision, config, shapes, count);
}

static void drop(Fixture *f) {
    optimizer_free(f->optimizer);
    for (int i = 0; i < 3; i++) device_free(f->device, f->device_arenas[i], elements_of(f->graph) * (int64_t)f->wide);
    if (f->weights != f->master) free(f->weights);
    free(f->master);
    free(f->gradients);
    graph_free(f->graph);
}

static void update(Fixture *f, int64_t step, double lr, double scale) {
    if (device_info(f->device)->host_memory) {
        optimizer_step(f->optimizer, &(Update){f->master, f->weights, f->gradients, step, lr, scale});
        return;
    }
    Error error;
    int64_t extent = elements_of(f->graph);
    device_upload(f->device, f->device_arenas[0], f->master, extent * 4);
    device_upload(f->device, f->device_arenas[1], f->weights, extent * 2);
    device_upload(f->device, f->device_arenas[2], f->gradients, extent * 4);
    optimizer_step(f->optimizer, &(Update){f->device_arenas[0], f->device_arenas[1], f->device_arenas[2], step, lr, scale});
    device_download(f->device, f->master, f->device_arenas[0], extent * 4);
    device_download(f->device, f->weights, f->device_arenas[1], extent * 2);
    if (!device_ok(f->device, &error)) fail_msg("%s", error.message);
}

static double gradient_norm(Fixture *f) {
    if (device_info(f->device)->host_memory) return sqrt(precise_value(optimizer_gradient_squares(f->optimizer, f->gradients)));
    device_upload(f->device, f->device_arenas[2], f->gradients, elements_of(f->graph) * 4);
    return sqrt(precise_value(optimizer_gradient_squares(f->optimizer, f->device_arenas[2])));
}

static void set_gradients(Fixture *f, int64_t step) {
    for (int i = 0; i < f->graph->parameter_count; i++)
        for (int64_t k = 0; k < f->graph->parameters[i].count; k++)
            put(f->gradients, f->wide, first_element(f->graph, i) + k, value_at(step, k));
}

static void run_steps(Fixture *f, int64_t steps, double lr, double scale) {
    for (int64_t step = 1; step <= steps; step++) {
        set_gradients(f, step);
        update(f, step, lr, scale);
    }
}

static double parameter(const Fixture *f, int index, int64_t i) { return get(f->master, f->wide, first_element(f->graph, index) + i); }

static void assert_close(double value, double expected, double tolerance) {
    if (!(fabs(value - expected) <= tolerance)) fail_msg("%.17g is not within %g of %.17g", value, tolerance, expected);
}

/* ---- Against PyTorch ---- */

static void check_golden(Precision precision, const OptimizerConfig *config, const double *tall, const double *wide, double tolerance) {
    const Shape shapes[] = {{PARAMETER_MATRIX, 2, {8, 5}}, {PARAMETER_MATRIX, 2, {5, 8}}};
    Fixture f = make(precision, config, shapes, 2);
    run_steps(&f, 10, 0.02, 1);
    double worst = 0;
    for (int64_t i = 0; i < 40; i++) {
        worst = fmax(worst, fabs(parameter(&f, 0, i) - tall[i]));
        worst = fmax(worst, fabs(parameter(&f, 1, i) - wide[i]));
    }
    print_message("largest difference from PyTorch after 10 steps: %.3g\n", worst);
    assert_close(worst, 0, tolerance);
    drop(&f);
}

/* The printed numbers have 15 digits. */
static void adamw_in_fp64_gives_what_pytorch_gives(void **state) {
    (void)state;
    check_golden(PRECISION_FP64, &adamw, golden_adamw, golden_adamw, 1e-13);
}

/* Values below 2 are rounded to 2^-24 relative in each of ten steps, and so are updates of 0.02. */
static void adamw_in_fp32_gives_what_pytorch_gives(void **state) {
    (void)state;
    check_golden(PRECISION_FP32, &adamw, golden_adamw, golden_adamw, 2e-6);
}

static void lion_gives_what_lion_pytorch_gives(void **state) {
    (void)state;
    OptimizerConfig config = lion_config();
    check_golden(PRECISION_FP64, &config, golden_lion, golden_lion, 1e-13);
    check_golden(PRECISION_FP32, &config, golden_lion, golden_lion, 2e-6);
}

/* We add 1e-7 to the norm (around 10) where PyTorch takes a maximum: 1e-8 of ten updates that are each below 0.02. */
static void muon_in_fp64_gives_what_pytorch_gives(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    check_golden(PRECISION_FP64, &config, golden_muon_fp64_8x5, golden_muon_fp64_5x8, 1e-8);
}

/* A product's rounding, 2^-24, grows by at most 3.4445^5 = 485 while small singular values do, over updates of
 * 0.011. */
static void muon_in_fp32_gives_what_pytorch_gives(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    check_golden(PRECISION_FP32, &config, golden_muon_fp64_8x5, golden_muon_fp64_5x8, 1e-5);
}

/* An element of a direction is off by up to some 2^-8 of it, in ten updates of 0.011 with signs that differ. */
static void muon_in_bf16_gives_what_pytorch_gives(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    check_golden(PRECISION_BF16, &config, golden_muon_bf16_8x5, golden_muon_bf16_5x8, 2e-3);
}

/* ---- AdamW against a plain loop ---- */

static void reference_adamw(
    double *p, int64_t count, int64_t steps, double lr, double decay, double scale, double beta1, double beta2, double epsilon) {
    for (int64_t i = 0; i < count; i++) {
        double m = 0, v = 0;
        p[i] = value_at(0, i);
        for (int64_t step = 1; step <= steps; step++) {
            double g = value_at(step, i) * scale;
            p[i] *= 1 - lr * decay;
            m = beta1 * m + (1 - beta1) * g;
            v = beta2 * v + (1 - beta2) * g * g;
            p[i] -= lr / (1 - pow(beta1, (double)step)) * m / (sqrt(v) / sqrt(1 - pow(beta2, (double)step)) + epsilon);
        }
    }
}

enum { STEPS = 5 };
static const double rate = 0.02, clip = 0.25;

static void compare_parameter(const Fixture *f, int index, double lr, double decay, double scale, double beta2) {
    int64_t count = f->graph->parameters[index].count;
    double *expected = malloc((size_t)count * sizeof *expected);
    reference_adamw(expected, count, STEPS, lr, decay, scale, 0.9, beta2, 1e-8);
    /* fp32 rounds values below 2 and updates five times each */
    for (int64_t i = 0; i < count; i++) assert_close(parameter(f, index, i), expected[i], f->wide == sizeof(double) ? 1e-14 : 1e-6);
    free(expected);
}

static const Shape all_kinds[] = {
    {PARAMETER_MATRIX, 2, {150, 150}},
    {PARAMETER_EMBEDDING, 2, {33, 7}},
    {PARAMETER_CONVOLUTION, 3, {5, 3, 2}},
    {PARAMETER_NORM, 1, {17}},
    {PARAMETER_BIAS, 1, {1}},
    {PARAMETER_BALANCE_BIAS, 1, {9}},
};

static void check_all_kinds(Precision precision, bool decay_vectors, double balance_lr) {
    OptimizerConfig config = adamw;
    config.decay_vectors = decay_vectors;
    config.balance_lr = balance_lr;
    Fixture f = make(precision, &config, all_kinds, 6);
    run_steps(&f, STEPS, rate, clip);
    for (int i = 0; i < 3; i++) compare_parameter(&f, i, rate, 0.1, clip, 0.95);
    for (int i = 3; i < 5; i++) compare_parameter(&f, i, rate, decay_vectors ? 0.1 : 0, clip, 0.95);
    compare_parameter(&f, 5, balance_lr, 0, 1, 0.999);
    drop(&f);
}

static void adamw_agrees_with_a_plain_loop_for_every_kind_of_parameter(void **state) {
    (void)state;
    check_all_kinds(PRECISION_BF16, false, 1e-3);
    check_all_kinds(PRECISION_FP32, false, 1e-3);
    check_all_kinds(PRECISION_FP64, false, 1e-3);
}

/* NAN where the sum whose sign decides is so near 0 that rounding decides. */
static void reference_lion(double *p, int64_t count, double decay) {
    for (int64_t i = 0; i < count; i++) {
        double m = 0, nearest = 1;
        p[i] = value_at(0, i);
        for (int64_t step = 1; step <= STEPS; step++) {
            double g = value_at(step, i) * clip, c = 0.9 * m + 0.1 * g;
            p[i] = p[i] * (1 - rate * decay) - rate * ((c > 0) - (c < 0));
            m = 0.95 * m + 0.05 * g;
            nearest = fmin(nearest, fabs(c));
        }
        if (nearest < 1e-6) p[i] = NAN;
    }
}

/* Biases that balance loads are AdamW's under any optimizer. */
static void lion_agrees_with_a_plain_loop_for_every_kind_of_parameter(void **state) {
    (void)state;
    for (Precision precision = PRECISION_BF16; precision <= PRECISION_FP64; precision++) {
        OptimizerConfig config = lion_config();
        config.balance_lr = 1e-3;
        Fixture f = make(precision, &config, all_kinds, 6);
        run_steps(&f, STEPS, rate, clip);
        for (int p = 0; p < 5; p++) {
            int64_t count = f.graph->parameters[p].count;
            double *expected = malloc((size_t)count * sizeof *expected);
            reference_lion(expected, count, p < 3 ? 0.1 : 0);
            for (int64_t i = 0; i < count; i++)
                if (!isnan(expected[i])) assert_close(parameter(&f, p, i), expected[i], f.wide == sizeof(double) ? 1e-14 : 1e-6);
            free(expected);
        }
        compare_parameter(&f, 5, 1e-3, 0, 1, 0.999);
        assert_int_equal(optimizer_states(f.optimizer, NULL, 0), 7); /* six momenta, and the variance of the biases */
        drop(&f);
    }
}

static void vectors_decay_when_asked(void **state) {
    (void)state;
    check_all_kinds(PRECISION_FP32, true, 1e-3);
}

static void balance_biases_stay_where_their_rate_is_zero(void **state) {
    (void)state;
    OptimizerConfig config = adamw;
    Fixture f = make(PRECISION_FP32, &config, all_kinds, 6);
    run_steps(&f, STEPS, rate, clip);
    for (int64_t i = 0; i < 9; i++) assert_true(parameter(&f, 5, i) == value_at(0, i));
    drop(&f);
}

/* Every instruction set that this machine has, on counts around vector and block sizes; fp32 arithmetic may be fused
 * or not. */
static void every_instruction_set_computes_the_same_adamw(void **state) {
    (void)state;
    const ElementRates rates = {
        .scale = 0.5, .beta1 = 0.9, .beta2 = 0.95, .step_size = 0.01, .inverse_root_bias2 = 1.5, .epsilon = 1e-8, .keep = 0.99};
    const int64_t counts[] = {1, 3, 16, 31, 1024, 1041, 3000};
    for (int k = 0; k < 2 * CPU_ISA_COUNT; k++) {
        Precision precision = k % 2 ? PRECISION_BF16 : PRECISION_FP32;
        const OptimKernels *kernels = optim_kernels(precision, k / 2);
        if (!kernels || !cpu_has(k / 2)) continue;
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            static float p[3001], g[3001], m[3001], v[3001];
            static uint16_t w[3001];
            for (int64_t i = 0; i <= counts[n]; i++)
                p[i] = (float)value_at(0, i), g[i] = (float)value_at(1, i), m[i] = (float)value_at(2, i),
                v[i] = fabsf((float)value_at(3, i)), w[i] = 7;
            kernels->pass[PASS_UPDATE + OPTIMIZER_adamw](
                &(PassRates){.elements = &rates}, &(PassMemory){.count = counts[n],
                                                      .master = p,
                                                      .weights = precision == PRECISION_BF16 ? (void *)w : p,
                                                      .gradient = g,
                                                      .momentum = m,
                                                      .variance = v});
            for (int64_t i = 0; i < counts[n]; i++) {
                double gradient = 0.5 * value_at(1, i), moment = 0.9 * value_at(2, i) + 0.1 * gradient;
                double variance = 0.95 * fabs(value_at(3, i)) + 0.05 * gradient * gradient;
                assert_close(m[i], moment, 4e-7);
                assert_close(v[i], variance, 4e-7);
                assert_close(p[i], 0.99 * value_at(0, i) - 0.01 * moment / (sqrt(variance) * 1.5 + 1e-8), 4e-7);
            }
            assert_true(p[counts[n]] == (float)value_at(0, counts[n]) && w[counts[n]] == 7);
        }
    }
}

static void every_instruction_set_computes_the_same_lion(void **state) {
    (void)state;
    const ElementRates rates = {.scale = 0.5, .beta1 = 0.9, .beta2 = 0.95, .step_size = 0.01, .keep = 0.99};
    enum { COUNT = 1041 };
    for (CpuIsa isa = 0; isa < CPU_ISA_COUNT; isa++) {
        const OptimKernels *kernels = optim_kernels(PRECISION_FP32, isa);
        if (!kernels || !cpu_has(isa)) continue;
        static float p[COUNT + 1], g[COUNT], m[COUNT];
        for (int64_t i = 0; i < COUNT; i++) p[i] = (float)value_at(0, i), g[i] = (float)value_at(1, i), m[i] = (float)value_at(2, i);
        p[COUNT] = 7;
        g[5] = NAN;
        kernels->pass[PASS_UPDATE + OPTIMIZER_lion](
            &(PassRates){.elements = &rates}, &(PassMemory){.count = COUNT, .master = p, .weights = p, .gradient = g, .momentum = m});
        assert_true(isnan(p[5]) && isnan(m[5]) && p[COUNT] == 7);
        for (int64_t i = 0; i < COUNT; i++) {
            double gradient = 0.5 * value_at(1, i), c = 0.9 * value_at(2, i) + 0.1 * gradient;
            if (i == 5 || fabs(c) < 1e-6) continue;
            assert_close(m[i], 0.95 * value_at(2, i) + 0.05 * gradient, 4e-7);
            assert_close(p[i], 0.99 * value_at(0, i) - 0.01 * ((c > 0) - (c < 0)), 4e-7);
        }
    }
}

/* ---- Muon ---- */

/* Gate and up of two experts in one parameter, and of one layer: each is orthogonalised, and scaled by its size, by itself. */
static void check_projections(Precision precision, const double *golden, double tolerance) {
    OptimizerConfig config = muon_config();
    const Shape shapes[] = {
        {PARAMETER_MATRIX, 3, {2, 12, 5}, .projections = {8, 4}}, {PARAMETER_MATRIX, 2, {12, 5}, .projections = {8, 4}}};
    Fixture f = make(precision, &config, shapes, 2);
    run_steps(&f, 10, 0.02, 1);
    for (int64_t i = 0; i < 120; i++) assert_close(parameter(&f, 0, i), golden[i], tolerance);
    for (int64_t i = 0; i < 60; i++) assert_close(parameter(&f, 1, i), golden[i], tolerance);
    drop(&f);
}

static void muon_takes_each_projection_by_itself_as_pytorch_does(void **state) {
    (void)state;
    check_projections(PRECISION_FP64, golden_muon_fp64_projections, 1e-8);
    check_projections(PRECISION_FP32, golden_muon_fp64_projections, 1e-5);
    check_projections(PRECISION_BF16, golden_muon_bf16_projections, 2e-3);
}

/* Each of `stack` matrices moved, without decay, by rate * 0.2 * sqrt(max(rows, columns)) times a matrix whose Gram
 * matrix is near I: the quintic leaves singular values between 0.68 and 1.14 (0.02 more for bf16), so the mean of
 * their squares, trace / order, lies between 0.45 and 1.35. */
static void check_orthogonal(Precision precision, int64_t stack, int64_t rows, int64_t columns) {
    OptimizerConfig config = muon_config();
    config.weight_decay = 0;
    const Shape shape = {PARAMETER_MATRIX, 3, {stack, rows, columns}};
    Fixture f = make(precision, &config, &shape, 1);
    int64_t size = rows * columns, order = rows < columns ? rows : columns, other = size / order;
    srand(7);
    for (int64_t i = 0; i < stack * size; i++) {
        put(f.gradients, f.wide, i, (double)rand() / RAND_MAX - 0.5);
        put(f.master, f.wide, i, 0);
    }
    update(&f, 1, 1.0, 1);
    double unit = 0.2 * sqrt((double)(rows > columns ? rows : columns));
    for (int64_t k = 0; k < stack; k++) {
        double trace = 0, off = 0;
        for (int64_t a = 0; a < order; a++)
            for (int64_t b = 0; b < order; b++) {
                double dot = 0;
                for (int64_t t = 0; t < other; t++) {
                    int64_t ia = rows <= columns ? a * columns + t : t * columns + a,
                            ib = rows <= columns ? b * columns + t : t * columns + b;
                    dot += parameter(&f, 0, k * size + ia) * parameter(&f, 0, k * size + ib) / (unit * unit);
                }
                if (a == b) trace += dot;
                else off = fmax(off, fabs(dot));
            }
        assert_in_range((uintmax_t)(1000 * trace / (double)order), 450, 1350);
        assert_true(off < 0.5); /* eigenvalues of the Gram matrix span less than 1 */
    }
    drop(&f);
}

static void muon_makes_every_matrix_of_a_stack_nearly_orthogonal(void **state) {
    (void)state;
    const Precision precisions[] = {PRECISION_BF16, PRECISION_FP32, PRECISION_FP64};
    for (int i = 0; i < 3; i++) {
        check_orthogonal(precisions[i], 3, 20, 47);
        check_orthogonal(precisions[i], 2, 47, 20);
        check_orthogonal(precisions[i], 1, 1, 33);
        check_orthogonal(precisions[i], 1, 33, 1);
        check_orthogonal(precisions[i], 1, 150, 290);
    }
    check_orthogonal(PRECISION_BF16, 1, 290, 290);
}

/* One large matrix whose symmetric products take several tiles, against the formula in double; fp64 differs by
 * rounding alone. */
static void muon_agrees_with_the_plain_formula_across_tiles(void **state) {
    (void)state;
    enum { N = 150, M = 170 };
    static double x[N][M], a[N][N], b[N][N], y[N][M];
    OptimizerConfig config = muon_config();
    const Shape shape = {PARAMETER_MATRIX, 2, {M, N}}; /* tall: the formula below works on its transpose */
    Fixture f = make(PRECISION_FP64, &config, &shape, 1);
    set_gradients(&f, 1);
    update(&f, 1, rate, clip);
    double norm = 0;
    for (int i = 0; i < N; i++)
        for (int t = 0; t < M; t++) x[i][t] = 1.95 * clip * value_at(1, t * N + i), norm += x[i][t] * x[i][t];
    for (int i = 0; i < N; i++)
        for (int t = 0; t < M; t++) x[i][t] /= sqrt(norm) + 1e-7;
    for (int step = 0; step < 5; step++) {
        memset(a, 0, sizeof a);
        memset(y, 0, sizeof y);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                for (int t = 0; t < M; t++) a[i][j] += x[i][t] * x[j][t];
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                b[i][j] = -4.7750 * a[i][j];
                for (int t = 0; t < N; t++) b[i][j] += 2.0315 * a[i][t] * a[t][j];
            }
        for (int i = 0; i < N; i++)
            for (int t = 0; t < M; t++) y[i][t] = 3.4445 * x[i][t];
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++)
                for (int t = 0; t < M; t++) y[i][t] += b[i][j] * x[j][t];
        memcpy(x, y, sizeof x);
    }
    for (int i = 0; i < N; i++)
        for (int t = 0; t < M; t++)
            assert_close(parameter(&f, 0, t * N + i), (1 - rate * 0.1) * value_at(0, t * N + i) - rate * 0.2 * sqrt(M) * x[i][t], 1e-12);
    drop(&f);
}

static void muon_leaves_all_but_matrices_to_adamw(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    config.balance_lr = 1e-3;
    Fixture f = make(PRECISION_FP32, &config, all_kinds, 6);
    run_steps(&f, STEPS, rate, clip);
    for (int i = 1; i < 3; i++) compare_parameter(&f, i, rate, 0.1, clip, 0.95);
    for (int i = 3; i < 5; i++) compare_parameter(&f, i, rate, 0, clip, 0.95);
    compare_parameter(&f, 5, 1e-3, 0, 1, 0.999);
    drop(&f);
}

static void a_zero_gradient_moves_nothing_but_by_decay(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    Fixture f = make(PRECISION_FP32, &config, all_kinds, 6);
    update(&f, 1, rate, 1);
    for (int64_t i = 0; i < 100; i++)
        assert_close(parameter(&f, 0, i), value_at(0, i) * (1 - rate * 0.1), 4e-7); /* fp32 rounding below 2 */
    for (int64_t i = 0; i < 17; i++) assert_true(parameter(&f, 3, i) == value_at(0, i));
    drop(&f);
}

static void matrices_beyond_the_scratch_budget_are_taken_in_groups(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    config.newton_schulz_steps = 1;
    const Shape shapes[] = {{PARAMETER_MATRIX, 2, {16, 270000}}, {PARAMETER_MATRIX, 2, {4, 6}}}; /* the first takes 66 MiB */
    Fixture f = make(PRECISION_FP64, &config, shapes, 2), alone = make(PRECISION_FP64, &config, shapes + 1, 1);
    assert_int_equal(f.optimizer->matrices[0].group + 1, f.optimizer->matrices[1].group);
    run_steps(&f, 1, rate, 1);
    run_steps(&alone, 1, rate, 1);
    for (int64_t i = 0; i < 24; i++) assert_true(parameter(&f, 1, i) == parameter(&alone, 0, i));
    drop(&alone);
    drop(&f);
}

/* ---- Promises ---- */

static const Shape many[] = {
    {PARAMETER_MATRIX, 3, {3, 130, 210}},
    {PARAMETER_NORM, 1, {130}},
    {PARAMETER_EMBEDDING, 2, {700, 130}},
    {PARAMETER_MATRIX, 2, {210, 40}},
    {PARAMETER_BALANCE_BIAS, 1, {8}},
    {PARAMETER_MATRIX, 2, {300, 300}},
};

static Fixture run_with_threads(Precision precision, int threads, double *norm) {
    OptimizerConfig config = muon_config();
    config.balance_lr = 1e-3;
    int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    Fixture f = make(precision, &config, many, 6);
    run_steps(&f, 3, rate, clip);
    *norm = gradient_norm(&f);
    omp_set_num_threads(before);
    return f;
}

static void threads_change_no_bits(void **state) {
    (void)state;
    for (Precision precision = PRECISION_BF16; precision <= PRECISION_FP64; precision++) {
        double norm_one, norm_five;
        Fixture one = run_with_threads(precision, 1, &norm_one), five = run_with_threads(precision, 5, &norm_five);
        size_t extent = (size_t)elements_of(one.graph);
        assert_memory_equal(one.master, five.master, extent * one.wide);
        assert_memory_equal(one.weights, five.weights, extent * precision_bytes(precision, TYPE_COMPUTE));
        assert_memory_equal(one.optimizer->momentum, five.optimizer->momentum, (size_t)one.optimizer->momentum_bytes);
        assert_memory_equal(one.optimizer->variance, five.optimizer->variance, (size_t)one.optimizer->variance_bytes);
        assert_memory_equal(&norm_one, &norm_five, sizeof norm_one);
        drop(&one);
        drop(&five);
    }
}

static uint16_t rounded_to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t low = bits & 0xffff, up = low > 0x8000 || (low == 0x8000 && (bits >> 16 & 1));
    return (uint16_t)((bits >> 16) + up);
}

static void bf16_weights_are_the_master_rounded_to_nearest_even(void **state) {
    (void)state;
    double norm;
    Fixture f = run_with_threads(PRECISION_BF16, 2, &norm);
    for (int p = 0; p < f.graph->parameter_count; p++)
        for (int64_t i = 0; i < f.graph->parameters[p].count; i++) {
            int64_t at = first_element(f.graph, p) + i;
            assert_int_equal(((uint16_t *)f.weights)[at], rounded_to_bf16(((float *)f.master)[at]));
        }
    drop(&f);
}

static void nothing_is_written_between_parameters(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    Fixture f = make(PRECISION_BF16, &config, many, 6);
    int64_t gap = first_element(f.graph, 1) + 130;
    assert_true(gap < first_element(f.graph, 2));
    ((float *)f.master)[gap] = 3;
    ((uint16_t *)f.weights)[gap] = 5;
    run_steps(&f, 1, rate, 1);
    assert_true(((float *)f.master)[gap] == 3 && ((uint16_t *)f.weights)[gap] == 5);
    drop(&f);
}

static void compare_norm(Fixture f) {
    set_gradients(&f, 1);
    double sum = 0;
    for (int p = 0; p < 5; p++)
        for (int64_t i = 0; i < f.graph->parameters[p].count; i++) sum += value_at(1, i) * value_at(1, i);
    assert_close(gradient_norm(&f), sqrt(sum), 1e-12 * sqrt(sum)); /* summed in double */
    drop(&f);
}

static void the_norm_is_that_of_all_gradients_but_balance_biases(void **state) {
    (void)state;
    for (Precision precision = PRECISION_BF16; precision <= PRECISION_FP64; precision++)
        compare_norm(make(precision, &adamw, all_kinds, 6));
}

static void check_norm_of_extremes(Fixture f) {
    float *gradients = f.gradients;
    for (int p = 0; p < 5; p++) {
        int64_t last = first_element(f.graph, p) + f.graph->parameters[p].count - 1;
        gradients[last] = NAN;
        assert_true(isnan(gradient_norm(&f)));
        gradients[last] = -INFINITY;
        assert_true(isinf(gradient_norm(&f)));
        gradients[last] = FLT_MAX;
        assert_true(isfinite(gradient_norm(&f)));
        gradients[last] = 0;
    }
    gradients[first_element(f.graph, 5)] = NAN;
    assert_true(gradient_norm(&f) == 0);
    drop(&f);
}

static void the_norm_shows_nan_and_infinity_anywhere_and_no_false_one(void **state) {
    (void)state;
    check_norm_of_extremes(make(PRECISION_FP32, &adamw, all_kinds, 6));
}

/* A scale of 1/4 is exact, so clipping must give the same bits as gradients that are a quarter. */
static void clipping_scales_gradients(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    Fixture scaled = make(PRECISION_FP32, &config, many, 6), divided = make(PRECISION_FP32, &config, many, 6);
    set_gradients(&scaled, 1);
    for (int64_t i = 0; i < elements_of(scaled.graph); i++) ((float *)divided.gradients)[i] = ((float *)scaled.gradients)[i] / 4;
    update(&scaled, 1, rate, 0.25);
    update(&divided, 1, rate, 1);
    assert_memory_equal(scaled.master, divided.master, (size_t)elements_of(scaled.graph) * 4);
    assert_memory_equal(scaled.optimizer->momentum, divided.optimizer->momentum, (size_t)scaled.optimizer->momentum_bytes);
    drop(&scaled);
    drop(&divided);
}

static void states_name_momentum_of_all_and_variance_of_what_adamw_updates(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    Fixture f = make(PRECISION_FP32, &config, all_kinds, 6);
    OptimizerState states[16];
    assert_int_equal(optimizer_states(f.optimizer, NULL, 0), 11);
    assert_int_equal(optimizer_states(f.optimizer, states, 16), 11);
    assert_string_equal(states[0].kind, "momentum");
    assert_string_equal(states[1].kind, "momentum");
    assert_string_equal(states[2].kind, "variance");
    assert_int_equal(states[2].elements.parameter, 1);
    drop(&f);
}

/* What a checkpoint relies on: parameters and named states are all there is. */
static void restored_states_continue_with_the_same_bits(void **state) {
    (void)state;
    OptimizerConfig config = muon_config();
    config.balance_lr = 1e-3;
    Fixture from = make(PRECISION_FP32, &config, many, 6), to = make(PRECISION_FP32, &config, many, 6);
    run_steps(&from, 2, rate, 1);
    OptimizerState a[12], b[12];
    size_t count = optimizer_states(from.optimizer, a, 12);
    optimizer_states(to.optimizer, b, 12);
    for (size_t i = 0; i < count; i++) memcpy(b[i].data, a[i].data, (size_t)from.graph->parameters[a[i].elements.parameter].count * 4);
    memcpy(to.master, from.master, (size_t)elements_of(from.graph) * 4);
    set_gradients(&from, 3);
    set_gradients(&to, 3);
    update(&from, 3, rate, 1);
    update(&to, 3, rate, 1);
    assert_memory_equal(from.master, to.master, (size_t)elements_of(from.graph) * 4);
    drop(&from);
    drop(&to);
}

static void announced_bytes_are_those_taken(void **state) {
    (void)state;
    const OptimizerConfig configs[] = {adamw, muon_config()};
    for (int i = 0; i < 2; i++) {
        Fixture f = make(PRECISION_BF16, &configs[i], many, 6);
        assert_int_equal(optimizer_state_bytes(f.graph, &configs[i], NULL), f.optimizer->momentum_bytes + f.optimizer->variance_bytes);
        assert_int_equal(optimizer_workspace_bytes(f.graph, &configs[i], NULL, f.optimizer->device), f.optimizer->scratch_bytes);
        drop(&f);
    }
}

/* ---- On a GPU ---- */

/* Odd sizes, several chunks, one element; offsets that no 16 bytes divide; shapes that several matrices have. */
static const Shape uneven[] = {
    {PARAMETER_MATRIX, 2, {3, 5}},
    {PARAMETER_MATRIX, 2, {7, 11}, .fused = true},
    {PARAMETER_MATRIX, 3, {2, 33, 70}, .fused = true},
    {PARAMETER_BALANCE_BIAS, 1, {13}},
    {PARAMETER_EMBEDDING, 2, {251, 131}},
    {PARAMETER_BIAS, 1, {1}},
    {PARAMETER_NORM, 1, {1027}},
    {PARAMETER_MATRIX, 2, {130, 140}},
    {PARAMETER_MATRIX, 2, {70, 33}},
    {PARAMETER_CONVOLUTION, 3, {5, 3, 2}},
    {PARAMETER_MATRIX, 2, {33, 70}},
    {PARAMETER_MATRIX, 2, {1, 9}},
};
enum { UNEVEN = sizeof uneven / sizeof *uneven };

static OptimizerConfig uneven_config(OptimizerName name) {
    OptimizerConfig config = adamw;
    config.name = name;
    config.balance_lr = 1e-3;
    return config;
}

/* `shapes` with each dimension of 2 and more changed to anything between 1 and it. */
static void shrink_randomly(Shape *shapes, int count) {
    for (int i = 0; i < count; i++)
        for (int d = 0; d < shapes[i].rank; d++) shapes[i].shape[d] = 1 + rand() % shapes[i].shape[d];
}

/* Random sizes with a seed. With `vendor`, products of single matrices may go to the vendor's library whatever their
 * size (muon_gpu.c). */
static Fixture run_uneven(Device *device, Precision precision, OptimizerName name, unsigned seed, bool vendor) {
    enum { UNEVEN_STEPS = 3 };
    OptimizerConfig config = uneven_config(name);
    Shape shapes[UNEVEN];
    memcpy(shapes, uneven, sizeof uneven);
    srand(seed);
    if (seed) shrink_randomly(shapes, UNEVEN);
    Fixture f = make_on(device, precision, &config, shapes, UNEVEN);
    if (vendor) f.optimizer->busy = 0;
    run_steps(&f, UNEVEN_STEPS, rate, clip);
    return f;
}

static float *downloaded(const Fixture *f, const void *memory, int64_t bytes) {
    float *copy = malloc((size_t)bytes + 1);
    device_download(f->device, copy, memory, bytes);
    return copy;
}

/* Three steps in fp32 whose operations are fused differently: values below 2 that are rounded some six times. */
static void check_near(const Fixture *f, const void *ours, const void *theirs, int64_t bytes) {
    float *a = downloaded(f, ours, bytes);
    const float *b = theirs;
    for (int64_t i = 0; i < bytes / 4; i++) assert_close(a[i], b[i], 1e-6 * (fabs(b[i]) + 1));
    free(a);
}

static void compare_on_gpu(OptimizerName name) {
    Device *gpu = check_gpu();
    for (unsigned seed = 0; seed < 4; seed++) {
        Fixture ours = run_uneven(gpu, PRECISION_BF16, name, seed, false),
                theirs = run_uneven(device_cpu(), PRECISION_BF16, name, seed, false);
        for (int64_t i = 0; i < elements_of(ours.graph); i++) {
            double expected = get(theirs.master, 4, i);
            assert_close(get(ours.master, 4, i), expected, 1e-6 * (fabs(expected) + rate));
        }
        check_near(&ours, ours.optimizer->momentum, theirs.optimizer->momentum, theirs.optimizer->momentum_bytes);
        check_near(&ours, ours.optimizer->variance, theirs.optimizer->variance, theirs.optimizer->variance_bytes);
        drop(&ours);
        drop(&theirs);
    }
}

static void adamw_on_a_gpu_gives_what_the_cpu_gives(void **state) {
    (void)state;
    compare_on_gpu(OPTIMIZER_adamw);
}

static void lion_on_a_gpu_gives_what_the_cpu_gives(void **state) {
    (void)state;
    compare_on_gpu(OPTIMIZER_lion);
}

/* Root of the mean square of the differences over one parameter. */
static double distance(const Fixture *a, const Fixture *b, int index) {
    double sum = 0;
    int64_t count = a->graph->parameters[index].count;
    for (int64_t i = 0; i < count; i++) sum += pow(parameter(a, index, i) - parameter(b, index, i), 2);
    return sqrt(sum / (double)count);
}

/* With exact products both round the same things to bf16 and differ in the order of sums, so neither knows the
 * result in fp32 better than the other. What AdamW updates is off by fp32's rounding: values below 2, three times. */
static void check_muon(unsigned seed, bool vendor) {
    gemm_exact(true);
    Fixture ours = run_uneven(check_gpu(), PRECISION_BF16, OPTIMIZER_muon, seed, vendor),
            theirs = run_uneven(device_cpu(), PRECISION_BF16, OPTIMIZER_muon, seed, vendor),
            wide = run_uneven(device_cpu(), PRECISION_FP32, OPTIMIZER_muon, seed, vendor);
    for (int i = 0; i < UNEVEN; i++) {
        double near = distance(&ours, &wide, i), allowed = 1.25 * distance(&theirs, &wide, i) + 1e-6;
        if (!(near < allowed)) fail_msg("parameter %d is %g from fp32, and %g are allowed", i, near, allowed);
    }
    check_near(&ours, ours.optimizer->momentum, theirs.optimizer->momentum, theirs.optimizer->momentum_bytes);
    drop(&ours);
    drop(&theirs);
    drop(&wide);
}

static void muon_on_a_gpu_is_as_near_to_fp32_as_the_cpu_in_bf16(void **state) {
    (void)state;
    for (unsigned seed = 0; seed < 3; seed++) check_muon(seed, false);
}

static void muon_is_as_near_when_the_vendor_multiplies(void **state) {
    (void)state;
    check_muon(0, true);
}

static void a_gpu_gives_the_same_bits_twice(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    Fixture one = run_uneven(gpu, PRECISION_BF16, OPTIMIZER_muon, 0, false),
            two = run_uneven(gpu, PRECISION_BF16, OPTIMIZER_muon, 0, false);
    double norm_one = gradient_norm(&one), norm_two = gradient_norm(&two);
    assert_memory_equal(one.master, two.master, (size_t)elements_of(one.graph) * 4);
    assert_memory_equal(one.weights, two.weights, (size_t)elements_of(one.graph) * 2);
    assert_memory_equal(&norm_one, &norm_two, sizeof norm_one);
    drop(&one);
    drop(&two);
}

static void a_gpu_rounds_weights_to_nearest_even_and_leaves_gaps_alone(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    OptimizerConfig config = uneven_config(OPTIMIZER_muon);
    Fixture f = make_on(gpu, PRECISION_BF16, &config, uneven, UNEVEN);
    int64_t extent = elements_of(f.graph);
    bool *used = calloc((size_t)extent, sizeof *used);
    for (int p = 0; p < UNEVEN; p++) memset(used + first_element(f.graph, p), true, (size_t)f.graph->parameters[p].count);
    for (int64_t i = 0; i < extent; i++)
        if (!used[i]) ((float *)f.master)[i] = 3, ((uint16_t *)f.weights)[i] = 5;
    run_steps(&f, 2, rate, clip);
    for (int64_t i = 0; i < extent; i++) {
        if (used[i]) assert_int_equal(((uint16_t *)f.weights)[i], rounded_to_bf16(((float *)f.master)[i]));
        else assert_true(((float *)f.master)[i] == 3 && ((uint16_t *)f.weights)[i] == 5);
    }
    free(used);
    drop(&f);
}

static void a_gpu_finds_the_norm_that_the_cpu_finds(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    compare_norm(make_on(gpu, PRECISION_BF16, &adamw, all_kinds, 6));
    check_norm_of_extremes(make_on(gpu, PRECISION_BF16, &adamw, all_kinds, 6));
}

static void a_gpu_leaves_what_has_no_gradient_but_for_decay(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    OptimizerConfig config = muon_config();
    Fixture f = make_on(gpu, PRECISION_BF16, &config, all_kinds, 6);
    update(&f, 1, rate, 1);
    for (int64_t i = 0; i < 100; i++)
        assert_close(parameter(&f, 0, i), value_at(0, i) * (1 - rate * 0.1), 4e-7); /* fp32 rounding below 2 */
    for (int64_t i = 0; i < 17; i++) assert_true(parameter(&f, 3, i) == value_at(0, i));
    for (int64_t i = 0; i < 9; i++) assert_true(parameter(&f, 5, i) == value_at(0, i)); /* the balance biases' rate is 0 */
    drop(&f);
}

static void a_gpu_is_announced_the_bytes_that_it_gives(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    OptimizerConfig config = muon_config();
    Fixture f = make_on(gpu, PRECISION_BF16, &config, many, 6);
    assert_int_equal(optimizer_workspace_bytes(f.graph, &config, NULL, gpu), f.optimizer->scratch_bytes);
    drop(&f);
}

/* ---- Schedules ---- */

static void warmup_rises_linearly_to_the_peak(void **state) {
    (void)state;
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_CONSTANT; kind++) {
        ScheduleConfig schedule = {kind, .warmup = 10, .decay = 20, .minimum = 0.1};
        assert_close(schedule_lr(&schedule, 2, 1, 100), 0.2, 1e-15);
        assert_close(schedule_lr(&schedule, 2, 5, 100), 1, 1e-15);
        assert_close(schedule_lr(&schedule, 2, 10, 100), 2, 1e-15);
    }
}

static void schedules_end_at_the_minimum(void **state) {
    (void)state;
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_LINEAR; kind++)
        for (int64_t warmup = 0; warmup <= 10; warmup += 10) {
            ScheduleConfig schedule = {kind, .warmup = warmup, .decay = 20, .minimum = 0.25};
            assert_close(schedule_lr(&schedule, 2, 100, 100), 0.5, 1e-15);
            assert_close(schedule_lr(&schedule, 2, 1000, 100), 0.5, 1e-15); /* later steps stay there */
        }
}

static void schedules_pass_through_their_middle(void **state) {
    (void)state;
    ScheduleConfig cosine = {SCHEDULE_COSINE, 20, 0, 0.2}, linear = {SCHEDULE_LINEAR, 20, 0, 0.2},
                   constant = {SCHEDULE_CONSTANT, 20, 0, 0.2};
    assert_close(schedule_lr(&cosine, 1, 60, 100), 0.6, 1e-15);
    assert_close(schedule_lr(&cosine, 1, 40, 100), 0.2 + 0.4 * (1 + sqrt(0.5)), 1e-15);
    assert_close(schedule_lr(&linear, 1, 60, 100), 0.6, 1e-15);
    assert_close(schedule_lr(&linear, 1, 40, 100), 0.8, 1e-15);
    assert_close(schedule_lr(&constant, 1, 100, 100), 1, 0);
}

static void wsd_is_stable_until_its_decay(void **state) {
    (void)state;
    ScheduleConfig schedule = {SCHEDULE_WSD, .warmup = 10, .decay = 20, .minimum = 0};
    assert_close(schedule_lr(&schedule, 1, 11, 100), 1, 0);
    assert_close(schedule_lr(&schedule, 1, 80, 100), 1, 0);
    assert_close(schedule_lr(&schedule, 1, 81, 100), 0.95, 1e-15);
    assert_close(schedule_lr(&schedule, 1, 100, 100), 0, 1e-15);
    schedule.decay = 0;
    assert_close(schedule_lr(&schedule, 1, 100, 100), 1, 0);
}

static void a_run_may_be_one_step_or_all_warmup(void **state) {
    (void)state;
    ScheduleConfig none = {SCHEDULE_COSINE, 0, 0, 0.1}, all = {SCHEDULE_COSINE, 5, 0, 0.1};
    assert_close(schedule_lr(&none, 1, 1, 1), 0.1, 1e-15);
    assert_true(schedule_lr(&none, 1, 1, 1000) > 0.99999); /* a thousandth of the way down a cosine */
    assert_close(schedule_lr(&all, 1, 5, 5), 1, 0);
}

static void the_batch_ramp_grows_in_microbatches_to_the_full_batch(void **state) {
    (void)state;
    BatchConfig batch = {.tokens = 6400, .sequences = 4, .ramp_tokens = 800, .ramp_steps = 13};
    int64_t microbatch = 4 * 100, before = 0;
    assert_int_equal(schedule_batch_tokens(&batch, microbatch, 1), 800);
    for (int64_t step = 1; step <= 20; step++) {
        int64_t tokens = schedule_batch_tokens(&batch, microbatch, step);
        assert_int_equal(tokens % microbatch, 0);
        assert_true(tokens >= before);
        assert_true(step > 13 ? tokens == 6400 : tokens < 6400);
        assert_close((double)tokens, 800 + 5600 * fmin(1, (double)(step - 1) / 13), (double)microbatch);
        before = tokens;
    }
}

static void without_a_ramp_every_batch_is_full(void **state) {
    (void)state;
    BatchConfig plain = {.tokens = 6400, .sequences = 4}, no_steps = {.tokens = 6400, .sequences = 4, .ramp_tokens = 800};
    assert_int_equal(schedule_batch_tokens(&plain, 400, 1), 6400);
    assert_int_equal(schedule_batch_tokens(&no_steps, 400, 1), 6400);
    assert_int_equal(schedule_samples_before(&plain, 100, 1), 0);
    assert_int_equal(schedule_samples_before(&plain, 100, 1000001), 64 * INT64_C(1000000));
}

static void samples_before_a_step_are_the_sum_of_the_batches_before_it(void **state) {
    (void)state;
    for (int64_t ramp_steps = 0; ramp_steps < 40; ramp_steps++)
        for (int64_t growth = 0; growth < 30; growth += 3) {
            BatchConfig batch = {.tokens = (2 + growth) * 400, .sequences = 4, .ramp_tokens = 800, .ramp_steps = ramp_steps};
            int64_t samples = 0;
            for (int64_t step = 1; step < 60; step++) {
                assert_int_equal(schedule_samples_before(&batch, 100, step), samples);
                samples += schedule_batch_tokens(&batch, 400, step) / 100;
            }
        }
}

static void long_ramps_are_summed_exactly(void **state) {
    (void)state;
    BatchConfig batch = {.tokens = INT64_C(4000001) * 8, .sequences = 1, .ramp_tokens = 8, .ramp_steps = INT64_C(2000000)};
    /* microbatches 1, 3, 5, ...: the first n sum to n^2 */
    assert_int_equal(schedule_samples_before(&batch, 8, 1000001), INT64_C(1000000000000));
    assert_int_equal(schedule_samples_before(&batch, 8, 2000002), INT64_C(4000000000000) + 4000001);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_in_fp64_gives_what_pytorch_gives),
        cmocka_unit_test(adamw_in_fp32_gives_what_pytorch_gives),
        cmocka_unit_test(lion_gives_what_lion_pytorch_gives),
        cmocka_unit_test(muon_in_fp64_gives_what_pytorch_gives),
        cmocka_unit_test(muon_in_fp32_gives_what_pytorch_gives),
        cmocka_unit_test(muon_in_bf16_gives_what_pytorch_gives),
        cmocka_unit_test(adamw_agrees_with_a_plain_loop_for_every_kind_of_parameter),
        cmocka_unit_test(lion_agrees_with_a_plain_loop_for_every_kind_of_parameter),
        cmocka_unit_test(vectors_decay_when_asked),
        cmocka_unit_test(balance_biases_stay_where_their_rate_is_zero),
        cmocka_unit_test(every_instruction_set_computes_the_same_adamw),
        cmocka_unit_test(every_instruction_set_computes_the_same_lion),
        cmocka_unit_test(muon_takes_each_projection_by_itself_as_pytorch_does),
        cmocka_unit_test(muon_makes_every_matrix_of_a_stack_nearly_orthogonal),
        cmocka_unit_test(muon_agrees_with_the_plain_formula_across_tiles),
        cmocka_unit_test(muon_leaves_all_but_matrices_to_adamw),
        cmocka_unit_test(a_zero_gradient_moves_nothing_but_by_decay),
        cmocka_unit_test(matrices_beyond_the_scratch_budget_are_taken_in_groups),
        EACH_ISA(cmocka_unit_test(threads_change_no_bits)),
        cmocka_unit_test(bf16_weights_are_the_master_rounded_to_nearest_even),
        cmocka_unit_test(nothing_is_written_between_parameters),
        cmocka_unit_test(the_norm_is_that_of_all_gradients_but_balance_biases),
        cmocka_unit_test(the_norm_shows_nan_and_infinity_anywhere_and_no_false_one),
        cmocka_unit_test(clipping_scales_gradients),
        cmocka_unit_test(states_name_momentum_of_all_and_variance_of_what_adamw_updates),
        cmocka_unit_test(restored_states_continue_with_the_same_bits),
        cmocka_unit_test(announced_bytes_are_those_taken),
        cmocka_unit_test(adamw_on_a_gpu_gives_what_the_cpu_gives),
        cmocka_unit_test(lion_on_a_gpu_gives_what_the_cpu_gives),
        cmocka_unit_test(muon_on_a_gpu_is_as_near_to_fp32_as_the_cpu_in_bf16),
        cmocka_unit_test(muon_is_as_near_when_the_vendor_multiplies),
        cmocka_unit_test(a_gpu_gives_the_same_bits_twice),
        cmocka_unit_test(a_gpu_rounds_weights_to_nearest_even_and_leaves_gaps_alone),
        cmocka_unit_test(a_gpu_finds_the_norm_that_the_cpu_finds),
        cmocka_unit_test(a_gpu_leaves_what_has_no_gradient_but_for_decay),
        cmocka_unit_test(a_gpu_is_announced_the_bytes_that_it_gives),
        cmocka_unit_test(warmup_rises_linearly_to_the_peak),
        cmocka_unit_test(schedules_end_at_the_minimum),
        cmocka_unit_test(schedules_pass_through_their_middle),
        cmocka_unit_test(wsd_is_stable_until_its_decay),
        cmocka_unit_test(a_run_may_be_one_step_or_all_warmup),
        cmocka_unit_test(the_batch_ramp_grows_in_microbatches_to_the_full_batch),
        cmocka_unit_test(without_a_ramp_every_batch_is_full),
        cmocka_unit_test(samples_before_a_step_are_the_sum_of_the_batches_before_it),
        cmocka_unit_test(long_ramps_are_summed_exactly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
