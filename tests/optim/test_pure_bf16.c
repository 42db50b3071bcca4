/* Optimizers over parameters that are kept in bf16 (precision pure_bf16), against the same update in fp32: a value
 * is rounded to one of its two neighbors, by chance, without drift; nothing but the element, its parameter and the
 * step decides; a GPU (SMELT_TEST_DEVICE) rounds as the CPU does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/rng.h"
#include "optim/optim_internal.h"
#include "support/check.h"
#include "support/each_isa.h"

enum { ROWS = 96, COLUMNS = 77, COUNT = ROWS * COLUMNS, VECTOR = 33 };

static OptimizerConfig config_of(int name) {
    return (OptimizerConfig){
        .name = name, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .momentum = 0.95, .newton_schulz_steps = 5};
}

/* A matrix and a vector in the arenas of a precision, on a device. */
typedef struct Fixture {
    Graph *graph;
    Optimizer *optimizer;
    Device *device;
    char *arenas[2], *weights; /* master, gradients; bf16 copies of the matrix where masters are fp32 */
    int64_t bytes;
} Fixture;

static void set(const Fixture *f, int arena, int parameter, const float *values) {
    const Parameter *p = &f->graph->parameters[parameter];
    int64_t element = p->element_bytes;
    char *kept = malloc((size_t)(p->count * element));
    for (int64_t i = 0; i < p->count; i++) {
        if (element == 2) ((uint16_t *)kept)[i] = bf16_from_float(values[i]);
        else ((float *)kept)[i] = values[i];
    }
    device_upload(f->device, parameter_in(p, f->arenas[arena]), kept, p->count * element);
    free(kept);
}

/* The parameter's values, for the caller to free. */
static float *values_of(const Fixture *f, int parameter) {
    const Parameter *p = &f->graph->parameters[parameter];
    int64_t element = p->element_bytes;
    char *kept = malloc((size_t)(p->count * element));
    float *values = malloc((size_t)p->count * sizeof *values);
    device_download(f->device, kept, parameter_in(p, f->arenas[0]), p->count * element);
    for (int64_t i = 0; i < p->count; i++) values[i] = element == 2 ? bf16_to_float(((uint16_t *)kept)[i]) : ((float *)kept)[i];
    free(kept);
    return values;
}

/* Values that bf16 has. */
static void fill(const Fixture *f, int arena, uint64_t stream, double scale) {
    float values[COUNT];
    for (int parameter = 0; parameter < 2; parameter++) {
        for (int i = 0; i < COUNT; i++)
            values[i] = bf16_to_float(bf16_from_float((float)(scale * rng_normal(3, stream + (uint64_t)parameter, (uint64_t)i))));
        set(f, arena, parameter, values);
    }
}

static Fixture make(Device *device, Precision precision, const OptimizerConfig *config) {
    Fixture f = {.graph = graph_create(precision, true), .device = device};
    Error error = {0};
    graph_parameter(f.graph, "vector", PARAMETER_NORM, 1, (int64_t[]){VECTOR}, 0, 1, false);
    graph_parameter(f.graph, "matrix", PARAMETER_MATRIX, 2, (int64_t[]){ROWS, COLUMNS}, 0, 1, false);
    f.optimizer = optimizer_create(f.graph, config, NULL, device, &error);
    assert_non_null(f.optimizer);
    f.bytes = f.graph->parameter_bytes;
    for (int i = 0; i < 2; i++) assert_non_null(f.arenas[i] = device_allocate(device, f.bytes, &error));
    f.weights = f.arenas[0];
    if (precision == PRECISION_BF16) assert_non_null(f.weights = device_allocate(device, f.bytes, &error));
    fill(&f, 0, 10, 1);
    fill(&f, 1, 20, 0.1);
    return f;
}

static void drop(Fixture *f) {
    if (f->weights != f->arenas[0]) device_free(f->device, f->weights, f->bytes);
    for (int i = 0; i < 2; i++) device_free(f->device, f->arenas[i], f->bytes);
    optimizer_free(f->optimizer);
    graph_free(f->graph);
}

static void update(const Fixture *f, int64_t step, double lr) {
    optimizer_step(f->optimizer, &(Update){f->arenas[0], f->weights, f->arenas[1], step, lr, 1});
}

/* The distance of two neighbors of bf16 around x, or a little more: x has 8 bits. */
static float spacing(float x) { return ldexpf(1, ilogbf(fabsf(x) + 1e-30f) - 7); }

/* -- On the CPU ---------------------------------------------------------------------------------------------------- */

static void check_neighbors(int name) {
    OptimizerConfig config = config_of(name);
    Fixture pure_bf16 = make(device_cpu(), PRECISION_PURE_BF16, &config), wide = make(device_cpu(), PRECISION_BF16, &config);
    update(&pure_bf16, 1, 0.01);
    update(&wide, 1, 0.01);
    float *a = values_of(&pure_bf16, 1), *b = values_of(&wide, 1), *vector = values_of(&pure_bf16, 0), *same = values_of(&wide, 0);
    int up = 0;
    for (int i = 0; i < COUNT; i++) {
        if (!(fabsf(a[i] - b[i]) < spacing(b[i]))) fail_msg("element %d is %.8g, no neighbor of %.8g", i, a[i], b[i]);
        up += a[i] > b[i];
    }
    assert_true(up > COUNT * 0.45 && up < COUNT * 0.55); /* eight deviations of a fair coin */
    assert_memory_equal(vector, same, VECTOR * sizeof *vector);
    free(a), free(b), free(vector), free(same);
    drop(&pure_bf16);
    drop(&wide);
}

static void an_update_is_rounded_to_a_neighbor(void **state) {
    (void)state;
    check_neighbors(OPTIMIZER_adamw);
    check_neighbors(OPTIMIZER_muon);
    check_neighbors(OPTIMIZER_lion);
}

/* Steps of a fiftieth of a unit in the last place would be lost by rounding to nearest. */
static void small_updates_add_up(void **state) {
    (void)state;
    enum { STEPS = 200 };
    OptimizerConfig config = config_of(OPTIMIZER_adamw);
    config.weight_decay = 0;
    Fixture pure_bf16 = make(device_cpu(), PRECISION_PURE_BF16, &config), wide = make(device_cpu(), PRECISION_BF16, &config);
    float *before = values_of(&pure_bf16, 1), ones[COUNT];
    for (int i = 0; i < COUNT; i++) ones[i] = 1;
    set(&pure_bf16, 1, 1, ones);
    set(&wide, 1, 1, ones);
    for (int step = 1; step <= STEPS; step++) update(&pure_bf16, step, 1e-4), update(&wide, step, 1e-4);
    float *a = values_of(&pure_bf16, 1), *b = values_of(&wide, 1);
    double moved = 0, expected = 0;
    for (int i = 0; i < COUNT; i++) moved += before[i] - a[i], expected += before[i] - b[i];
    assert_true(fabs(expected / COUNT - STEPS * 1e-4) < 1e-5);
    /* A step's rounding deviates by half of 2^-7, 200 steps of 7,392 elements by sqrt(200 / 7392) of that for the
     * mean: 6e-4; and all of it were lost. */
    assert_true(fabs(moved - expected) < 0.1 * expected);
    free(before), free(a), free(b);
    drop(&pure_bf16);
    drop(&wide);
}

static void infinity_and_nan_stay_what_they_are(void **state) {
    (void)state;
    const uint32_t infinity = 0x7f800000, nan = 0x7f800001;
    for (uint32_t noise = 0; noise < 0x10000; noise += 0xff) {
        assert_int_equal(optim_round(infinity, noise), 0x7f80);
        assert_int_equal(optim_round(infinity | 0x80000000u, noise), 0xff80);
        assert_true(isnan(bf16_to_float((uint16_t)optim_round(nan, noise))));
        assert_int_equal(optim_round(0x3f800000, noise), 0x3f80); /* 1 is a bf16 */
    }
}

static void what_is_not_finite_is_seen_anywhere(void **state) {
    (void)state;
    for (int precision = 0; precision < 2; precision++) {
        OptimizerConfig config = config_of(OPTIMIZER_adamw);
        Fixture f = make(device_cpu(), precision ? PRECISION_PURE_BF16 : PRECISION_BF16, &config);
        float *values = values_of(&f, 1);
        assert_true(optimizer_is_finite(f.optimizer, f.arenas[0]));
        values[COUNT - 1] = NAN;
        set(&f, 0, 1, values);
        assert_false(optimizer_is_finite(f.optimizer, f.arenas[0]));
        values[COUNT - 1] = 3e38f; /* its square is none in fp32 */
        set(&f, 0, 1, values);
        assert_true(optimizer_is_finite(f.optimizer, f.arenas[0]));
        free(values);
        drop(&f);
    }
}

static void threads_change_no_bits(void **state) {
    (void)state;
    int threads = omp_get_max_threads();
    for (int name = 0; name < 2; name++) {
        OptimizerConfig config = config_of(name);
        Fixture one = make(device_cpu(), PRECISION_PURE_BF16, &config), two = make(device_cpu(), PRECISION_PURE_BF16, &config);
        omp_set_num_threads(1);
        for (int step = 1; step <= 3; step++) update(&one, step, 0.01);
        omp_set_num_threads(2);
        for (int step = 1; step <= 3; step++) update(&two, step, 0.01);
        omp_set_num_threads(threads);
        assert_memory_equal(one.arenas[0], two.arenas[0], (size_t)one.bytes);
        drop(&one);
        drop(&two);
    }
}

static void the_step_decides_the_rounding(void **state) {
    (void)state;
    OptimizerConfig config = config_of(OPTIMIZER_muon);
    Fixture one = make(device_cpu(), PRECISION_PURE_BF16, &config), two = make(device_cpu(), PRECISION_PURE_BF16, &config);
    update(&one, 1, 0.01);
    update(&two, 2, 0.01); /* Muon has no other use for the number */
    assert_memory_not_equal(one.arenas[0], two.arenas[0], (size_t)one.bytes);
    drop(&one);
    drop(&two);
}

static void state_and_gradients_take_two_bytes_an_element(void **state) {
    (void)state;
    OptimizerConfig config = config_of(OPTIMIZER_adamw);
    Fixture f = make(device_cpu(), PRECISION_PURE_BF16, &config);
    int64_t matrix = COUNT * 2, vector = VECTOR * 4, gaps = 4 * 64 * 2;
    assert_true(optimizer_state_bytes(f.graph, &config, NULL) <= 2 * (matrix + vector) + gaps);
    assert_true(f.bytes <= matrix + vector + gaps);
    drop(&f);
}

/* -- On a GPU ------------------------------------------------------------------------------------------------------ */

/* The same noise meets values that differ in the last bits of fp32 (Muon's: of bf16 products), which now and then
 * decides. */
static void compare_with_cpu(int name, double most_different) {
    gemm_exact(true);
    OptimizerConfig config = config_of(name);
    Fixture ours = make(check_gpu(), PRECISION_PURE_BF16, &config), again = make(check_gpu(), PRECISION_PURE_BF16, &config),
            cpu = make(device_cpu(), PRECISION_PURE_BF16, &config);
    for (int step = 1; step <= 2; step++) update(&ours, step, 0.01), update(&again, step, 0.01), update(&cpu, step, 0.01);
    double norm = sqrt(precise_value(optimizer_gradient_squares(ours.optimizer, ours.arenas[1]))),
           expected = sqrt(precise_value(optimizer_gradient_squares(cpu.optimizer, cpu.arenas[1])));
    assert_true(fabs(norm - expected) < 1e-9 * expected);
    for (int parameter = 0; parameter < 2; parameter++) {
        float *a = values_of(&ours, parameter), *b = values_of(&cpu, parameter), *c = values_of(&again, parameter);
        int64_t count = parameter ? COUNT : VECTOR, different = 0;
        for (int64_t i = 0; i < count; i++) {
            if (!(fabsf(a[i] - b[i]) <= 2 * spacing(b[i]))) fail_msg("element %d is %.8g, on the CPU %.8g", (int)i, a[i], b[i]);
            different += fabsf(a[i] - b[i]) > 1e-6f;
        }
        if ((double)different > most_different * (double)count)
            fail_msg("%d of %d elements differ from the CPU's", (int)different, (int)count);
        assert_memory_equal(a, c, (size_t)count * sizeof *a);
        free(a), free(b), free(c);
    }
    drop(&ours);
    drop(&again);
    drop(&cpu);
}

static void a_gpu_rounds_as_the_cpu_does(void **state) {
    (void)state;
    compare_with_cpu(OPTIMIZER_adamw, 0.002);
    compare_with_cpu(OPTIMIZER_muon, 0.1);
    compare_with_cpu(OPTIMIZER_lion, 0.002);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_update_is_rounded_to_a_neighbor),
        cmocka_unit_test(small_updates_add_up),
        cmocka_unit_test(infinity_and_nan_stay_what_they_are),
        cmocka_unit_test(what_is_not_finite_is_seen_anywhere),
        EACH_ISA(cmocka_unit_test(threads_change_no_bits)),
        cmocka_unit_test(the_step_decides_the_rounding),
        cmocka_unit_test(state_and_gradients_take_two_bytes_an_element),
        cmocka_unit_test(a_gpu_rounds_as_the_cpu_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
