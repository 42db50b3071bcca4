/* AdamW with moments in 8 bits: quantized values against their formula in fp64, updates of every instruction set against AdamW in
 * fp64 on the decoded moments, which parameters have quantized values, and the memory that they take. With SMELT_TEST_DEVICE=hip or
 * cuda also a GPU's updates against the CPU's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/rng.h"
#include "optim/quantized_moments_internal.h"
#include "optim/optim_internal.h"
#include "support/check.h"

/* -- Quantized values --------------------------------------------------------------------------------------------------------- */

static double top_of(int bits) { return 0.1 + 0.9 * (1 - 0.5 / (1 << (bits - 1))); }

static double formula(int code, int bits) {
    if (code == 0) return 0;
    int i = ilogb(code);
    return pow(10, i + 1 - bits) * (0.1 + 0.9 * (code - (1 << i) + 0.5) / (1 << i)) / top_of(bits);
}

/* The code whose interval contains x: the decade, then its part. */
static int code_of(double x, int bits) {
    int i = bits - 1;
    for (x *= top_of(bits); i >= 0 && x < 0.1; i--) x *= 10;
    int part = (int)((x - 0.1) / 0.9 * (1 << i));
    return i < 0 ? 0 : (1 << i) + part;
}

/* Where an interval ends, rounding in fp32 chooses: 2^-24 of x, some times. */
static bool is_code_of(double x, int code, int bits) {
    return code >= code_of(x * (1 - 1e-6), bits) && code <= code_of(x * (1 + 1e-6), bits);
}

static void values_are_those_of_the_formula(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        double m = formula(code & 0x7f, MOMENTUM_BITS) * (code & 0x80 ? -1 : 1), v = formula(code, VARIANCE_BITS);
        assert_true(fabs(momentum_value(code, 3) - 3 * m) <= 2e-6 * fabs(3 * m)); /* fp32, and a difference of 9 and 8 times a value */
        assert_true(fabs(variance_value(code, 3) - 3 * v) <= 2e-6 * 3 * v);
    }
    assert_true(fabs(formula(0x7f, MOMENTUM_BITS) - 1) < 1e-15 && fabs(formula(0xff, VARIANCE_BITS) - 1) < 1e-15);
}

static void codes_are_those_of_the_intervals(void **state) {
    (void)state;
    for (int k = 0; k <= 40000; k++) {
        float x = (float)pow(10, -9 + 9 * k / 40000.);
        int m = momentum_code(x, 1), minus = momentum_code(-x, 1), v = variance_code(x, 1);
        assert_true(is_code_of(x, m, MOMENTUM_BITS));
        assert_int_equal(minus, m | 0x80);
        assert_true(is_code_of(x, v, VARIANCE_BITS) || (v == 1 && code_of(x, VARIANCE_BITS) == 0)); /* never zero */
    }
    assert_int_equal(momentum_code(0, 1) | variance_code(0, 1), 0);
    assert_int_equal(momentum_code(1, 1), 0x7f);
    assert_int_equal(variance_code(1, 1), 0xff);
    assert_true(moment_inverse(0x1p-130f) == 0 && moment_inverse(0) == 0 && moment_inverse(0x1p-126f) == 0x1p126f);
}

static void a_value_has_its_own_code(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        if (code != 0x80) assert_int_equal(momentum_code(momentum_value(code, 1), 1), code); /* -0 */
        assert_int_equal(variance_code(variance_value(code, 1), 1), code);
    }
}

/* -- Updates ------------------------------------------------------------------------------------------------------- */

enum { BLOCKS = 40, COUNT = BLOCKS * MOMENT_BLOCK };

typedef struct Moments {
    uint8_t m[COUNT], v[COUNT];
    float m_scale[BLOCKS], v_scale[BLOCKS];
} Moments;

static double random_at(int stream, int64_t i) { return rng_normal(11, (uint64_t)stream, (uint64_t)i); }

/* A moment is a sum that may cancel: 1e-6 of the scale. */
static bool is_near(double x, int code, int bits) {
    return code >= code_of(fmax(x - 1e-6, 0), bits) && code <= code_of(fmin(x + 1e-6, 1), bits) + (x < 1e-6);
}

/* An update of random numbers with a spread of magnitudes by an instruction set's kernel. */
static void check_update(const OptimKernels *kernels) {
    static Moments before, after;
    static float p[COUNT], g[COUNT], start[COUNT];
    const ElementRates rates = {
        .scale = 0.5, .beta1 = 0.9, .beta2 = 0.95, .step_size = 0.01, .inverse_root_bias2 = 1.5, .epsilon = 1e-8, .keep = 0.99};
    for (int i = 0; i < COUNT; i++) {
        start[i] = p[i] = (float)random_at(0, i), g[i] = (float)(random_at(1, i) * pow(10, random_at(2, i)));
        before.m[i] = (uint8_t)rng_bits(5, 1, (uint64_t)i).word[0], before.v[i] = (uint8_t)rng_bits(5, 2, (uint64_t)i).word[0];
        before.m_scale[i / MOMENT_BLOCK] = before.v_scale[i / MOMENT_BLOCK] = (float)pow(10, i / MOMENT_BLOCK % 9 - 6);
    }
    after = before;
    kernels->pass[PASS_UPDATE + OPTIMIZER_adamw_8bit](&(PassRates){.elements = &rates}, &(PassMemory){.count = COUNT,
                                                                                            .master = p,
                                                                                            .weights = p,
                                                                                            .gradient = g,
                                                                                            .momentum = after.m,
                                                                                            .variance = after.v,
                                                                                            .momentum_scales = after.m_scale,
                                                                                            .variance_scales = after.v_scale});
    for (int block = 0; block < BLOCKS; block++) {
        double m_most = 0, v_most = 0, m_scale = after.m_scale[block], v_scale = after.v_scale[block];
        for (int i = block * MOMENT_BLOCK; i < (block + 1) * MOMENT_BLOCK; i++) {
            double m = 0.9 * momentum_value(before.m[i], before.m_scale[block]) + 0.1 * 0.5 * g[i];
            double v = 0.95 * variance_value(before.v[i], before.v_scale[block]) + 0.05 * pow(0.5 * g[i], 2);
            double expected = 0.99 * start[i] - 0.01 * m / (sqrt(v) * 1.5 + 1e-8);
            if (!(fabs(p[i] - expected) <= 2e-6 * (fabs(start[i]) + fabs(expected)))) fail_msg("%d: %.9g, not %.9g", i, p[i], expected);
            assert_true(is_near(fabs(m) / m_scale, after.m[i] & 0x7f, MOMENTUM_BITS));
            assert_true((after.m[i] & 0x7f) == 0 || (m < 0) == (after.m[i] >> 7));
            assert_true(v == 0 || after.v[i] > 0);
            assert_true(is_near(v / v_scale, after.v[i], VARIANCE_BITS));
            m_most = fmax(m_most, fabs(m)), v_most = fmax(v_most, v);
        }
        assert_true(fabs(m_scale - m_most) <= 1e-6 * m_most && fabs(v_scale - v_most) <= 1e-6 * v_most);
    }
}

static void every_instruction_set_updates_as_the_formulas_say(void **state) {
    (void)state;
    FOR_EACH_ISA (isa)
        if (optim_kernels(PRECISION_FP32, isa)) check_update(optim_kernels(PRECISION_FP32, isa));
}

/* -- Optimizers ---------------------------------------------------------------------------------------------------- */

typedef struct Fixture {
    Graph *graph;
    Optimizer *optimizer;
    Device *device;
    char *master, *weights, *gradients; /* weights: bf16 copies of fp32 masters, else the masters */
} Fixture;

static const struct Shape {
    ParameterKind kind;
    int rank;
    int64_t shape[3];
    bool coded;
} shapes[] = {
    {PARAMETER_NORM, 1, {128}, false},
    {PARAMETER_MATRIX, 2, {96, 128}, true},
    {PARAMETER_EMBEDDING, 2, {96, 128}, false},
    {PARAMETER_MATRIX, 2, {96, 96}, false}, /* rows are not whole blocks */
    {PARAMETER_MATRIX, 3, {3, 40, 192}, true},
    {PARAMETER_MATRIX, 2, {8, 128}, false}, /* small */
    {PARAMETER_BALANCE_BIAS, 1, {8}, false},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static OptimizerConfig config_of(OptimizerName name) {
    return (OptimizerConfig){.name = name, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .balance_lr = 1e-3};
}

static void fill(const Fixture *f, void *arena, int stream, double factor) {
    char *values = calloc(1, (size_t)f->graph->parameter_bytes);
    for (int i = 0; i < f->graph->parameter_count; i++) {
        const Parameter *p = &f->graph->parameters[i];
        for (int64_t k = 0; k < p->count; k++) {
            float value = (float)(factor * random_at(stream, 1000003 * i + k));
            if (p->element_bytes == 2) ((uint16_t *)(values + p->offset))[k] = bf16_from_float(value);
            else ((float *)(values + p->offset))[k] = value;
        }
    }
    device_upload(f->device, arena, values, f->graph->parameter_bytes);
    free(values);
}

static void *allocate(Device *device, int64_t bytes) {
    Error error = {0};
    void *memory = device_allocate(device, bytes, &error);
    if (!memory) fail_msg("%s", error.message);
    return memory;
}

static Fixture make(Device *device, Precision precision, OptimizerName name) {
    Fixture f = {.graph = graph_create(precision, true), .device = device};
    Error error = {0};
    OptimizerConfig config = config_of(name);
    for (int i = 0; i < SHAPES; i++)
        graph_parameter(f.graph, (char[]){'p', (char)('0' + i), '\0'}, shapes[i].kind, shapes[i].rank, shapes[i].shape, 0, 1, false);
    f.optimizer = optimizer_create(f.graph, &config, NULL, device, &error);
    if (!f.optimizer) fail_msg("%s", error.message);
    f.master = allocate(device, f.graph->parameter_bytes);
    f.gradients = allocate(device, f.graph->parameter_bytes);
    f.weights = precision == PRECISION_BF16 ? allocate(device, f.graph->parameter_bytes) : f.master;
    fill(&f, f.master, 100, 1);
    return f;
}

static void drop(Fixture *f) {
    optimizer_free(f->optimizer);
    if (f->weights != f->master) device_free(f->device, f->weights, f->graph->parameter_bytes);
    device_free(f->device, f->master, f->graph->parameter_bytes);
    device_free(f->device, f->gradients, f->graph->parameter_bytes);
    graph_free(f->graph);
}

static void run_steps(Fixture *f, int steps) {
    for (int step = 1; step <= steps; step++) {
        fill(f, f->gradients, 100 + step, 1e-3);
        optimizer_step(f->optimizer, &(Update){f->master, f->weights, f->gradients, step, 0.01, 1});
    }
}

/* The parameter's values, for the caller to free. */
static float *values_of(const Fixture *f, int index) {
    const Parameter *p = &f->graph->parameters[index];
    float *values = malloc((size_t)p->count * sizeof *values);
    char *held = malloc((size_t)(p->count * p->element_bytes));
    device_download(f->device, held, f->master + p->offset, p->count * p->element_bytes);
    for (int64_t k = 0; k < p->count; k++) values[k] = p->element_bytes == 2 ? bf16_to_float(((uint16_t *)held)[k]) : ((float *)held)[k];
    free(held);
    return values;
}

/* The root of the mean square of the differences of a parameter. */
static double distance(const Fixture *a, const Fixture *b, int index) {
    float *x = values_of(a, index), *y = values_of(b, index);
    int64_t count = a->graph->parameters[index].count;
    double sum = 0;
    for (int64_t k = 0; k < count; k++) sum += pow((double)x[k] - y[k], 2);
    free(x), free(y);
    return sqrt(sum / (double)count);
}

/* Ten steps of 0.01 move an element by 0.05 in the root of the mean square. Quantized values err by 0.7% of the largest moment of a
 * block, and moments have a third of it. */
static void coded_moments_stay_near_adamw_and_others_equal_it(void **state) {
    (void)state;
    Fixture ours = make(device_cpu(), PRECISION_FP32, OPTIMIZER_adamw_8bit), theirs = make(device_cpu(), PRECISION_FP32, OPTIMIZER_adamw);
    run_steps(&ours, 10);
    run_steps(&theirs, 10);
    for (int i = 0; i < SHAPES; i++) {
        double off = distance(&ours, &theirs, i);
        if (shapes[i].coded ? !(off > 1e-6 && off < 1e-3) : off != 0) fail_msg("p%d is off by %g", i, off);
    }
    drop(&ours);
    drop(&theirs);
}

static void states_are_codes_and_scales_of_large_matrices(void **state) {
    (void)state;
    Fixture f = make(device_cpu(), PRECISION_FP32, OPTIMIZER_adamw_8bit);
    OptimizerState states[32];
    size_t count = optimizer_states(f.optimizer, states, 32);
    assert_int_equal(count, 2 * 4 + 5 * 2);
    for (size_t i = 0; i < count; i++) {
        bool coded = shapes[states[i].elements.parameter].coded;
        assert_int_equal(states[i].form != STATE_WIDE, coded);
        assert_int_equal(states[i].each, states[i].form == STATE_SCALES ? MOMENT_BLOCK : 1);
    }
    drop(&f);
}

static void coded_elements_take_two_bytes_and_an_eighth(void **state) {
    (void)state;
    for (int pure = 0; pure < 2; pure++) {
        Fixture f = make(device_cpu(), pure ? PRECISION_PURE_BF16 : PRECISION_FP32, OPTIMIZER_adamw_8bit);
        OptimizerConfig config = config_of(OPTIMIZER_adamw_8bit);
        double bytes = 0;
        for (int i = 0; i < SHAPES; i++) {
            const Parameter *p = &f.graph->parameters[i];
            double each = optimizer_element_bytes(&config, p);
            assert_true(each == (shapes[i].coded ? 2.125 : 2 * (double)p->element_bytes));
            bytes += each * (double)p->count;
        }
        int64_t gaps = 2 * SHAPES * 64 * 4;
        assert_true(fabs((double)optimizer_state_bytes(f.graph, &config, NULL) - bytes) <= (double)gaps);
        drop(&f);
    }
}

/* A step of 0.01 in bf16 near 1 is rounded by 2^-8 at most. */
static void bf16_parameters_have_codes_too(void **state) {
    (void)state;
    Fixture ours = make(device_cpu(), PRECISION_PURE_BF16, OPTIMIZER_adamw_8bit),
            theirs = make(device_cpu(), PRECISION_FP32, OPTIMIZER_adamw_8bit);
    run_steps(&ours, 10);
    run_steps(&theirs, 10);
    for (int i = 0; i < SHAPES; i++) assert_true(distance(&ours, &theirs, i) < 0.02);
    drop(&ours);
    drop(&theirs);
}

/* Quantized values halfway between two values may differ by one, in one element of some thousands. */
static void a_gpu_updates_as_the_cpu_does(void **state) {
    (void)state;
    Device *gpu = check_gpu();
    for (int pure = 0; pure < 2; pure++) {
        Precision precision = pure ? PRECISION_PURE_BF16 : PRECISION_BF16;
        Fixture ours = make(gpu, precision, OPTIMIZER_adamw_8bit), theirs = make(device_cpu(), precision, OPTIMIZER_adamw_8bit);
        run_steps(&ours, 3);
        run_steps(&theirs, 3);
        for (int i = 0; i < SHAPES; i++) {
            double off = distance(&ours, &theirs, i);
            if (!(off <= (pure ? 1e-3 : 1e-5))) fail_msg("p%d is off by %g", i, off);
        }
        drop(&ours);
        drop(&theirs);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_formula),
        cmocka_unit_test(codes_are_those_of_the_intervals),
        cmocka_unit_test(a_value_has_its_own_code),
        cmocka_unit_test(every_instruction_set_updates_as_the_formulas_say),
        cmocka_unit_test(coded_moments_stay_near_adamw_and_others_equal_it),
        cmocka_unit_test(states_are_codes_and_scales_of_large_matrices),
        cmocka_unit_test(coded_elements_take_two_bytes_and_an_eighth),
        cmocka_unit_test(bf16_parameters_have_codes_too),
        cmocka_unit_test(a_gpu_updates_as_the_cpu_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
