/* Gradients of experts' weights in fp8: of each recipe, against sums in double precision over the slots of each expert, as many as it
 * has, of the numbers that x and d_y become by the definition of the recipe. Nothing here knows of tiles or of the zeros in them. On
 * the GPU of SMELT_TEST_DEVICE, else on the CPU.
 *
 * What must not be read is NaN: slots of no expert, but where one scale is that of all slots, and what nothing has written. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <omp.h>

#include "backend/backend.h"
#include "base/element.h"
#include "base/float8.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "ops/activation/activation.h"
#include "ops/fp8/fp8.h"
#include "support/check.h"
#include "support/each_isa.h"

enum { MOST_EXPERTS = 40, RUNS = 3 /* on a GPU the second is recorded, the third replayed */ };

/* Slots of each expert, and behind them those of none. */
typedef struct Load {
    int experts, unused;
    int32_t slots[MOST_EXPERTS];
} Load;

/* `swiglu`: makes x, and on a GPU its quantized values where scaling is delayed. */
typedef struct Case {
    const Load *load;
    Precision precision;
    int64_t out, in;
    Fp8Config fp8;
    bool swiglu;
} Case;

typedef struct Run {
    const Case *c;
    Graph *graph;
    Program program;
    TensorId from, x, w, y, d_y, offset; /* `from`: what x is made from */
    int64_t slots;                       /* all */
    int32_t begin[MOST_EXPERTS + 1];
} Run;

static int64_t used(const Run *run) { return run->begin[run->c->load->experts]; }

/* -- Runs ---------------------------------------------------------------------------------------------------------- */

static TensorId input(Run *run, int64_t columns, const char *name) {
    return graph_tensor(run->graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){run->slots, columns}, name);
}

/* `apart`: another node lies between SwiGLU and the cast, which absorbs what comes right before it alone. */
static void build(Run *run, const Case *c, bool apart) {
    int64_t experts = c->load->experts, shape[] = {experts, c->out, c->in};
    *run = (Run){.c = c, .graph = graph_create(c->precision, true)};
    for (int e = 0; e < experts; e++) run->begin[e + 1] = run->begin[e] + c->load->slots[e];
    run->slots = used(run) + c->load->unused;
    run->w = graph_parameter(run->graph, "w", PARAMETER_MATRIX, 3, shape, 0, 1, false);
    run->offset = graph_tensor(run->graph, ARENA_INPUT, TYPE_INT32, 1, (int64_t[]){experts + 1}, "offset");
    run->from = run->x = input(run, c->swiglu ? 2 * c->in : c->in, "x");
    Dispatch dispatch = {.offset = run->offset, .rows = run->slots};
    if (!apart) fp8_tiles(run->graph, &dispatch, run->slots); /* else the layer makes them */
    if (c->swiglu) run->x = op_activation(run->graph, op_scale(run->graph, run->from, 1), ACTIVATION_swiglu);
    run->d_y = input(run, c->out, "d_y");
    run->y = op_fp8_grouped_linear(run->graph, run->x, run->w, &dispatch, &c->fp8);
    graph_differentiate(run->graph, RECOMPUTE_NONE, &(Seed){run->y, run->d_y}, 1);
    run->graph->tensors[run->y].keep = true;
}

static void open_run(Run *run, const Case *c, bool apart) {
    build(run, c, apart);
    run->program = check_program((Model){.graph = run->graph}, check_device() ? check_device() : device_cpu());
}

static void close_run(Run *run) { program_free(&run->program); }

/* As the tensor's precision stores it. */
static double rounded(const Run *run, double x) {
    return precision_is_bf16(run->c->precision) ? bf16_to_float(bf16_from_float((float)x)) : (float)x;
}

/* Normal numbers of different sizes by row and column, and beyond the slots of experts NaN or, where all slots have one scale, 0. */
static double *fill(const Run *run, TensorId tensor, int64_t rows, int64_t columns, uint64_t stream) {
    int64_t count = rows * columns;
    const size_t bytes = precision_is_bf16(run->c->precision) ? sizeof(uint16_t) : sizeof(float);
    bool whole = run->c->fp8.recipe == FP8_TENSOR && run->c->fp8.scaling == FP8_DYNAMIC;
    double *values = memory_allocate(count * sizeof *values);
    char *stored = memory_allocate(count * bytes);
    for (int64_t i = 0; i < count; i++) {
        double size = ldexp(1, (int)(i / columns * 5 % 7 - 3 + i % columns * 3 % 5 - 2));
        bool there = tensor == run->w || i / columns < used(run);
        values[i] = there ? rounded(run, size * rng_normal(5, stream, (uint64_t)i)) : whole ? 0 : NAN;
        element_set(bytes, stored, i, values[i]);
    }
    if (tensor == run->w)
        device_upload(
            executor_backend(run->program.executor)->device, executor_device_tensor(run->program.executor, tensor), stored, count * bytes);
    else memcpy(executor_tensor(run->program.executor, tensor), stored, count * bytes);
    free(stored);
    return values;
}

/* The amax that delayed scaling gives for an operand: what exceeds it saturates. */
static const float given[FP8_ROLES] = {[FP8_ROLE_X] = 9, [FP8_ROLE_W] = 11, [FP8_ROLE_D_Y] = 13};

static void give_magnitudes(const Run *run) {
    Fp8Operand operands[FP8_ROLES];
    int count = fp8_operands(run->graph, NULL);
    assert_true(count <= FP8_ROLES);
    fp8_operands(run->graph, operands);
    for (int i = 0; i < count; i++) {
        float *amax = executor_tensor(run->program.executor, operands[i].amax);
        for (int64_t j = 0; j < graph_elements(run->graph, operands[i].amax); j++) amax[j] = given[operands[i].role];
    }
}

/* What nothing writes is NaN, and as a code 0xff. */
static void run_once(const Run *run, bool first) {
    Error error = {0};
    Device *device = executor_backend(run->program.executor)->device;
    device_fill(device, executor_arena(run->program.executor, ARENA_ACTIVATION), 0xff, run->program.plan.bytes[ARENA_ACTIVATION]);
    if (first) device_fill(device, executor_arena(run->program.executor, ARENA_GRADIENT), 0xff, run->program.plan.bytes[ARENA_GRADIENT]);
    if (first) executor_zero(run->program.executor);
    executor_run(run->program.executor);
    if (!executor_finish(run->program.executor, &error)) fail_msg("%s", error.message);
}

static int64_t weights(const Run *run) { return graph_elements(run->graph, run->w); }
static size_t gradient_bytes(const Run *run) { return run->c->precision == PRECISION_PURE_BF16 ? sizeof(uint16_t) : sizeof(float); }

static void *read_gradient(const Run *run) {
    void *gradient = memory_allocate(weights(run) * gradient_bytes(run));
    executor_read(run->program.executor, graph_parameter_gradient(run->graph, run->w), gradient);
    return gradient;
}

/* -- By definition ------------------------------------------------------------------------------------------------- */

/* How the columns of x or d_y are cast: elements of a column that share a scale, 0 all of all columns, -1 all of the column. */
typedef struct Definition {
    Fp8Kind kind;
    int64_t size;
} Definition;

static Definition definition(Fp8Recipe recipe, Fp8Role role) {
    static const int64_t sizes[] = {
        [FP8_TENSOR] = 0, [FP8_ROW] = -1, [FP8_BLOCK] = GEMM_SCALE_GROUP_SIZE, [FP8_MXFP8] = GEMM_SCALE_MX_SIZE};
    return (Definition){recipe == FP8_TENSOR && role == FP8_ROLE_D_Y ? FP8_E5M2 : FP8_E4M3, sizes[recipe]};
}

/* Slots [first, end) and columns [column, column + width) that share a scale. */
typedef struct Part { int64_t first, end, column, width; } Part;

static double largest_of(const double *x, int64_t columns, Part p) {
    double most = 0;
    for (int64_t s = p.first; s < p.end; s++)
        for (int64_t i = p.column; i < p.column + p.width; i++) most = fmax(most, fabs(x[s * columns + i]));
    return most;
}

/* By its largest magnitude, or by the `amax` that is given. */
static void cast_part(const Run *run, double *x, Definition d, int64_t columns, Part p, double amax) {
    bool fnuz = device_info(executor_backend(run->program.executor)->device)->fp8_fnuz;
    Fp8Format format = fp8_format(d.kind, fnuz);
    float m = fp8_multiplier((float)(amax > 0 ? amax : largest_of(x, columns, p)), fp8_largest(d.kind, fnuz), d.size != 0);
    for (int64_t s = p.first; s < p.end; s++)
        for (int64_t i = p.column; i < p.column + p.width; i++) {
            float product = (float)x[s * columns + i] * m;
            x[s * columns + i] = (double)fp8_to_float(fp8_from_float(product, format), format) / (double)m;
        }
}

/* Makes of x [slots, columns] what the recipe makes of it for sums over the slots of each expert. */
static void cast_by_definition(const Run *run, double *x, int64_t columns, Fp8Role role) {
    const Case *c = run->c;
    if (c->fp8.recipe == FP8_ROW_GW_HP) return;
    Definition d = definition((Fp8Recipe)c->fp8.recipe, role);
    if (d.size == 0) cast_part(run, x, d, columns, (Part){0, used(run), 0, columns}, c->fp8.scaling == FP8_DELAYED ? given[role] : 0);
    for (int64_t i = 0; i < columns && d.size < 0; i++) cast_part(run, x, d, columns, (Part){0, used(run), i, 1}, 0);
    for (int e = 0; e < c->load->experts && d.size > 0; e++)
        for (int64_t first = run->begin[e]; first < run->begin[e + 1]; first += d.size)
            for (int64_t i = 0; i < columns; i++)
                cast_part(run, x, d, columns, (Part){first, int_min(first + d.size, run->begin[e + 1]), i, 1}, 0);
}

/* Gate and up side by side. */
static double *swiglu_of(const Run *run, const double *from) {
    int64_t in = run->c->in;
    double *x = memory_allocate(run->slots * in * sizeof *x);
    for (int64_t i = 0; i < run->slots * in; i++) {
        double gate = from[i / in * 2 * in + i % in], up = from[i / in * 2 * in + in + i % in];
        x[i] = rounded(run, gate / (1 + exp(-gate)) * up);
    }
    return x;
}

/* -- Comparisons --------------------------------------------------------------------------------------------------- */

/* Of one element: its sum, and the largest and the sum of the magnitudes that are added. */
typedef struct Sum { double sum, magnitudes, most; } Sum;

static Sum sum_over(const Run *run, int expert, int64_t element, const double *x, const double *d_y) {
    int64_t out = run->c->out, in = run->c->in;
    Sum total = {0};
    for (int64_t s = run->begin[expert]; s < run->begin[expert + 1]; s++) {
        double product = d_y[s * out + element / in] * x[s * in + element % in];
        total.sum += product, total.magnitudes += fabs(product), total.most = fmax(total.most, fabs(product));
    }
    return total;
}

/* Hopper keeps 14 bits of the sums of fp8, truncated at every step: 2^-10 of the products' magnitudes; a wrong sign or a lost slot is
 * more. bf16 is rounded to 8 bits, in each run. SwiGLU in another order of roundings is another number of bf16 now and then, and then
 * another code: 1/16 of an element of e4m3, 1/8 of e5m2, of one of the magnitudes that are added. */
static double bound_of(const Run *run, const Sum *s, int runs) {
    double bound = runs * (0x1p-10 * s->magnitudes + (run->c->swiglu ? s->most / 8 : 0) + 0x1p-22 * fabs(s->sum));
    return bound + (gradient_bytes(run) == sizeof(uint16_t) ? runs * runs * 1.01 / 256 * fabs(s->sum) : 0);
}

/* gradients[i]: after i + 1 runs, of which the later one adds. */
static void expect_sums(const Run *run, void *const gradients[2], const double *x, const double *d_y) {
    int64_t size = run->c->out * run->c->in;
    for (int e = 0; e < run->c->load->experts; e++)
        for (int64_t i = 0; i < size; i++) {
            Sum s = sum_over(run, e, i, x, d_y);
            for (int runs = 1; runs <= 2; runs++) {
                double made = element_get(gradient_bytes(run), gradients[runs - 1], e * size + i), bound = bound_of(run, &s, runs);
                if (!(fabs(made - runs * s.sum) <= bound))
                    fail_msg("recipe %d, expert %d of %d, %d slots, element %d: %g after %d runs, should be %g +- %g", run->c->fp8.recipe,
                        e, run->c->load->experts, run->c->load->slots[e], (int)i, made, runs, runs * s.sum, bound);
            }
        }
}

static bool is_possible(const Case *c) {
    Device *device = check_device();
    if (!device) return true;
    return precision_is_bf16(c->precision) && device_info(device)->gemm_inputs >> GEMM_E4M3 & 1 &&
           (c->fp8.recipe != FP8_MXFP8 || device_info(device)->fp8_mx);
}

/* What x and d_y were filled with. */
typedef struct Given { double *x, *d_y; } Given;

static Given fill_all(const Run *run) {
    const Case *c = run->c;
    Given g = {fill(run, run->from, run->slots, c->swiglu ? 2 * c->in : c->in, 1), fill(run, run->d_y, run->slots, c->out, 2)};
    free(fill(run, run->w, c->load->experts * c->out, c->in, 3));
    memcpy(executor_tensor(run->program.executor, run->offset), run->begin, (c->load->experts + 1) * sizeof *run->begin);
    give_magnitudes(run);
    if (!c->swiglu) return g;
    double *made = swiglu_of(run, g.x);
    free(g.x);
    return (Given){made, g.d_y};
}

static void *gradient_of_run(const Run *run, bool first) {
    run_once(run, first);
    return read_gradient(run);
}

/* With one thread and with two. */
static void check_bits(const Run *run, const void *gradient) {
    int threads = omp_get_max_threads();
    for (int i = 0; i < (check_device() ? RUNS : 2); i++) {
        omp_set_num_threads(i % 2 + 1);
        void *again = gradient_of_run(run, true);
        assert_memory_equal(again, gradient, weights(run) * gradient_bytes(run));
        free(again);
    }
    omp_set_num_threads(threads);
}

static void check_case(const Case *c) {
    Run run;
    if (!is_possible(c)) return;
    open_run(&run, c, false);
    Given g = fill_all(&run);
    void *once = gradient_of_run(&run, true), *twice = gradient_of_run(&run, false);
    cast_by_definition(&run, g.x, c->in, FP8_ROLE_X), cast_by_definition(&run, g.d_y, c->out, FP8_ROLE_D_Y);
    expect_sums(&run, (void *[]){once, twice}, g.x, g.d_y);
    check_bits(&run, once);
    free(g.x), free(g.d_y), free(once), free(twice);
    close_run(&run);
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

/* None, one, around a tile of 128 and two of them; all in one expert, the last; none at all; more experts than tiles could be full. */
static const Load around = {9, 7, {0, 1, 127, 128, 129, 0, 256, 31, 0}}, all = {3, 0, {0, 0, 200}}, none = {2, 20, {0, 0}},
                  many = {MOST_EXPERTS, 1, {0, 3, 0, 0, 1, 2, 17, 0, 0, 4, 32, 33, 1}}, large = {5, 100, {1000, 1300, 0, 64, 3536}};

static void check_load(const Load *load, Precision precision) {
    for (Fp8Recipe recipe = FP8_TENSOR; recipe <= FP8_MXFP8; recipe++)
        check_case(&(Case){load, precision, 80, 48, {.recipe = recipe}, false});
    check_case(&(Case){load, precision, 80, 48, {.recipe = FP8_TENSOR, .scaling = FP8_DELAYED}, false});
}

static void gradients_sum_over_the_slots_of_each_expert(void **state) {
    (void)state;
    check_load(&around, PRECISION_BF16);
    check_load(&all, PRECISION_BF16);
    check_load(&none, PRECISION_BF16);
    check_load(&many, PRECISION_BF16);
}

static void gradients_are_fp32_or_bf16_as_the_precision_says(void **state) {
    (void)state;
    check_load(&around, PRECISION_PURE_BF16);
    check_load(&many, PRECISION_PURE_BF16);
    if (!check_device()) check_load(&around, PRECISION_FP32);
}

/* Tiles of C of every size, some of them not full. */
static void layers_are_wider_than_tiles_of_gemms(void **state) {
    (void)state;
    for (Fp8Recipe recipe = FP8_TENSOR; recipe <= FP8_MXFP8; recipe++) {
        check_case(&(Case){&all, PRECISION_BF16, 272, 304, {.recipe = recipe}, false});
        if (check_device() && device_info(check_device())->kind == DEVICE_CUDA)
            check_case(&(Case){&large, PRECISION_PURE_BF16, 272, 528, {.recipe = recipe}, false});
    }
}

static void activations_that_write_codes_change_no_bit(void **state) {
    (void)state;
    Case c = {&around, PRECISION_BF16, 144, 96, {.recipe = FP8_TENSOR, .scaling = FP8_DELAYED}, true};
    void *gradients[2];
    Run run;
    if (!is_possible(&c)) return;
    check_case(&c);
    for (int apart = 0; apart < 2; apart++) {
        open_run(&run, &c, apart);
        int cast = graph_get(run.graph, run.x)->producer + 1 + apart;
        assert_int_equal(run.graph->nodes[cast].op, OP_fp8_cast);
        assert_int_equal(run.graph->nodes[cast].absorbs, check_device() && !apart);
        Given g = fill_all(&run);
        gradients[apart] = gradient_of_run(&run, true);
        if (apart) assert_memory_equal(gradients[0], gradients[1], weights(&run) * gradient_bytes(&run));
        free(g.x), free(g.d_y);
        close_run(&run);
    }
    free(gradients[0]), free(gradients[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_sum_over_the_slots_of_each_expert),
        cmocka_unit_test(gradients_are_fp32_or_bf16_as_the_precision_says),
        cmocka_unit_test(layers_are_wider_than_tiles_of_gemms),
        EACH_ISA(cmocka_unit_test(activations_that_write_codes_change_no_bit)),
    };
    gemm_exact(true); /* row_gw_hp computes these gradients in bf16 */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
