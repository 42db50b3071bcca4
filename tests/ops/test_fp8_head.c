/* fp8_linear_cross_entropy: the quantized values of d_logits one by one, and what follows from them. Rows of x are unit vectors and weights are
 * numbers of e4m3, so that logits are exact, and each element of d_w is one code, from every row with that unit vector. On the GPU of
 * SMELT_TEST_DEVICE, else on the CPU in the formats of all GPUs. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/float8.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"
#include "ops/loss/loss.h"
#include "support/check.h"

enum { RUNS = 3 /* on a GPU the second is recorded, the third replayed */, WITHOUT_TARGET = 3 };

/* rows: a multiple of width. */
typedef struct Case { int64_t rows, width, vocabulary; } Case;

typedef struct Run {
    const Case *c;
    bool fnuz, narrow;
    Graph *graph;
    Program program;
    TensorId x, w, targets, scale, loss, d_x, d_w, logits;
    float *weights; /* [vocabulary, width] */
} Run;

static float loss_scale(const Case *c) { return 0.75f / (float)c->rows; }
/* Of all rows whose unit vector is `unit`. */
static int32_t target_of(const Case *c, int64_t unit) {
    return unit == WITHOUT_TARGET ? -1 : (int32_t)((c->vocabulary - 1) * unit / (c->width - 1));
}

/* Up to the largest number of the format times 2^-6, which the first has. */
static float *make_weights(const Case *c, Fp8Format format) {
    int64_t count = c->vocabulary * c->width;
    float *w = memory_allocate((size_t)count * sizeof *w);
    for (int64_t i = 0; i < count; i++) {
        uint32_t word = rng_bits(5, 1, (uint64_t)i).word[0], code = word % (format.largest + 1u);
        w[i] = ldexpf(fp8_to_float((uint8_t)(code ? code | (word >> 8 & 0x80) : 0), format), -6);
    }
    w[0] = ldexpf(fp8_to_float((uint8_t)format.largest, format), -6);
    return w;
}

static void put(const Run *run, TensorId tensor, const float *values) {
    int64_t count = graph_elements(run->graph, tensor);
    SCOPED_FREE uint16_t *narrow = memory_allocate((size_t)count * sizeof *narrow);
    if (run->narrow) bf16_from_floats(narrow, values, count);
    device_upload(executor_backend(run->program.executor)->device, executor_tensor(run->program.executor, tensor),
        run->narrow ? (void *)narrow : (void *)values, graph_bytes(run->graph, tensor));
}

static void run_create(Run *run, const Case *c, Device *device, Precision precision) {
    int64_t one = 1, two = 2, rows = c->rows;
    *run =
        (Run){.c = c, .fnuz = device_info(device)->fp8_fnuz, .narrow = precision == PRECISION_BF16, .graph = graph_create(precision, true)};
    run->x = graph_tensor(run->graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){c->rows, c->width}, "x");
    run->targets = graph_tensor(run->graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "targets");
    run->scale = graph_tensor(run->graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "scale");
    run->loss = graph_tensor(run->graph, ARENA_METRIC, TYPE_WIDE, 1, &two, "loss");
    run->w = graph_parameter(run->graph, "w", PARAMETER_EMBEDDING, 2, (int64_t[]){c->vocabulary, c->width}, 0, 1, false);
    op_fp8_linear_cross_entropy(
        run->graph, run->x, run->w, run->targets, run->scale, run->loss, c->vocabulary, &(Fp8Config){.recipe = FP8_ROW});
    const Node *head = &run->graph->nodes[run->graph->node_count - 1];
    run->d_x = head->out[LOSS_D_X], run->d_w = head->out[LOSS_D_W];
    run->graph->tensors[run->d_x].keep = true;
    run->logits = op_keep_logits(run->graph);
    run->program = check_program((Model){.graph = run->graph}, device);
    run->weights = make_weights(c, fp8_format(FP8_E4M3, run->fnuz));
}

static void run_free(Run *run) {
    program_free(&run->program);
    free(run->weights);
}

static void put_inputs(const Run *run) {
    const Case *c = run->c;
    SCOPED_FREE float *x = memory_allocate((size_t)(c->rows * c->width) * sizeof *x);
    memset(x, 0, (size_t)(c->rows * c->width) * sizeof *x);
    for (int64_t r = 0; r < c->rows; r++) {
        x[r * c->width + r % c->width] = 1;
        ((int32_t *)executor_tensor(run->program.executor, run->targets))[r] = target_of(c, r % c->width);
    }
    if (run->narrow) bf16_from_floats(executor_tensor(run->program.executor, run->x), x, c->rows * c->width);
    else memcpy(executor_tensor(run->program.executor, run->x), x, (size_t)(c->rows * c->width) * sizeof *x);
    put(run, run->w, run->weights);
    executor_set_scalar(run->program.executor, run->scale, loss_scale(c));
}

static void run_once(const Run *run) {
    Error error = {0};
    executor_zero(run->program.executor);
    device_fill(executor_backend(run->program.executor)->device, executor_arena(run->program.executor, ARENA_ACTIVATION), 0xff,
        run->program.plan.bytes[ARENA_ACTIVATION]);
    executor_run(run->program.executor);
    if (!executor_finish(run->program.executor, &error)) fail_msg("%s", error.message);
}

static float *read_tensor(const Run *run, TensorId tensor, bool narrow) {
    int64_t count = graph_elements(run->graph, tensor);
    float *values = memory_allocate((size_t)count * sizeof *values);
    SCOPED_FREE uint16_t *stored = narrow ? memory_allocate((size_t)count * sizeof *stored) : NULL;
    executor_read(run->program.executor, tensor, narrow ? (void *)stored : (void *)values);
    for (int64_t i = 0; i < count && narrow; i++) values[i] = bf16_to_float(stored[i]);
    return values;
}

/* log of the sum of e^logit over the row of a unit vector. */
static double log_sum(const Run *run, int64_t unit) {
    double sum = 0;
    for (int64_t v = 0; v < run->c->vocabulary; v++) sum += exp((double)run->weights[v * run->c->width + unit]);
    return log(sum);
}

/* Quantized values that grow with their numbers, negative ones too. */
static int order_of(uint8_t code) { return code & 0x80 ? -(code & 0x7f) : code; }

/* The numbers that elements of d_w stand for are those of quantized values, and these are of the softmax: but for some of those that lie between
 * two quantized values, as exponentials and bf16 round. */
static void check_codes(const Run *run, const float *d_w) {
    const Case *c = run->c;
    Fp8Format format = fp8_format(FP8_E5M2, run->fnuz);
    float m = fp8_multiplier(loss_scale(c), fp8_largest(FP8_E5M2, run->fnuz), false), repeats = (float)(c->rows / c->width);
    int64_t others = 0;
    for (int64_t unit = 0; unit < c->width; unit++) {
        double all = log_sum(run, unit);
        int32_t target = target_of(c, unit);
        for (int64_t v = 0; v < c->vocabulary; v++) {
            float number = d_w[v * c->width + unit] / repeats * m,
                  d = target < 0 ? 0
                                 : (float)((exp((double)run->weights[v * c->width + unit] - all) - (v == target)) * (double)loss_scale(c));
            if (run->narrow) d = bf16_to_float(bf16_from_float(d));
            uint8_t code = fp8_from_float(number, format), expected = fp8_from_float(d * m, format);
            if (fabsf(fp8_to_float(code, format) - number) > 1e-5f * fabsf(number) || abs(order_of(code) - order_of(expected)) > 1)
                fail_msg("%ld x %ld x %ld, row %ld, token %ld: %g of %g became %g", (long)c->rows, (long)c->width, (long)c->vocabulary,
                    (long)unit, (long)v, (double)number, (double)(d * m), (double)fp8_to_float(code, format));
            others += code != expected;
        }
    }
    if (others * 100 > c->width * c->vocabulary) fail_msg("%ld quantized values are not the nearest", (long)others);
}

/* d_x = d_logits w with the d_logits that d_w shows: quantized values by rows are those by columns. */
static void check_input_gradient(const Run *run, const float *d_w, const float *d_x) {
    const Case *c = run->c;
    double repeats = (double)(c->rows / c->width), difference = 0, squares = 0;
    for (int64_t unit = 0; unit < c->width; unit++)
        for (int64_t column = 0; column < c->width; column++) {
            double sum = 0;
            for (int64_t v = 0; v < c->vocabulary; v++)
                sum += (double)d_w[v * c->width + unit] / repeats * (double)run->weights[v * c->width + column];
            for (int64_t r = unit; r < c->rows; r += c->width) {
                double error = (double)d_x[r * c->width + column] - sum;
                difference += error * error, squares += sum * sum;
            }
        }
    if (!(sqrt(difference / squares) < 4e-3)) fail_msg("d_x differs by %g of its norm", sqrt(difference / squares));
}

/* Each row's logits are the weights of its unit vector, but for the rounding of a scale in fp32. */
static void check_kept_logits(const Run *run, const float *logits) {
    const Case *c = run->c;
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t v = 0; v < c->vocabulary; v++) {
            float kept = logits[r * c->vocabulary + v], expected = run->weights[v * c->width + r % c->width];
            if (!(fabsf(kept - expected) <= 1e-6f * fabsf(expected)))
                fail_msg("row %ld, token %ld: the kept logit is %.9g, should be %.9g", (long)r, (long)v, (double)kept, (double)expected);
        }
}

static void check_loss_of(const Run *run) {
    const Case *c = run->c;
    double expected = 0, loss = executor_get_metric(run->program.executor, run->loss, 0);
    for (int64_t unit = 0; unit < c->width; unit++)
        if (unit != WITHOUT_TARGET)
            expected += (log_sum(run, unit) - (double)run->weights[target_of(c, unit) * c->width + unit]) * (double)(c->rows / c->width);
    expected *= (double)loss_scale(c);
    if (!(fabs(loss - expected) < 1e-5 * expected)) fail_msg("the loss is %g, should be %g", loss, expected);
}

static void check_on(const Case *c, Device *device, Precision precision) {
    Run run;
    run_create(&run, c, device, precision);
    put_inputs(&run);
    for (int i = 0; i < (check_device() ? RUNS : 1); i++) {
        run_once(&run);
        SCOPED_FREE float *d_w = read_tensor(&run, run.d_w, false), *d_x = read_tensor(&run, run.d_x, run.narrow),
                          *logits = read_tensor(&run, run.logits, false);
        check_kept_logits(&run, logits);
        check_loss_of(&run);
        check_codes(&run, d_w);
        check_input_gradient(&run, d_w, d_x);
    }
    run_free(&run);
}

static void check_case(const Case *c) {
    Device *gpu = check_device();
    if (gpu) {
        if (device_info(gpu)->gemm_inputs >> GEMM_E4M3 & 1) check_on(c, gpu, PRECISION_BF16);
        return;
    }
    Device *cpu = device_cpu();
    for (int fnuz = 0; fnuz < 2; fnuz++) {
        cpu->info.fp8_fnuz = fnuz;
        check_on(c, cpu, PRECISION_FP32);
        check_on(c, cpu, PRECISION_BF16);
    }
    cpu->info.fp8_fnuz = false;
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static void codes_of_gradients_are_those_of_the_softmax(void **state) {
    (void)state;
    static const Case cases[] = {{16, 16, 64}, {32, 32, 304}, {48, 16, 8208}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int j = 0; check_has_shape(j); j++) {
            Case shaped = cases[i];
            shaped.rows = check_shape_rows(cases[i].rows);
            check_case(&shaped);
        }
}

/* More rows than a CPU's chunk of so large a vocabulary has. */
static void chunks_of_rows_add_up(void **state) {
    (void)state;
    if (check_device()) skip();
    check_case(&(Case){64, 16, 80000});
}

/* Rows that one, two, four and eight blocks of a Hopper's cluster hold, up to their last logits and 16 past these, and longer ones;
 * more rows than a chunk has. AMD has one form for all, and an emulator takes minutes. */
static void large_vocabularies_have_their_codes(void **state) {
    (void)state;
    static const Case cases[] = {{16, 16, 38016}, {16, 16, 38032}, {16, 16, 76032}, {16, 16, 152064}, {32, 16, 262272}, {16, 16, 304128},
        {16, 16, 304144}, {8192, 16, 128256}};
    if (device_info(check_gpu())->kind != DEVICE_CUDA) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_of_gradients_are_those_of_the_softmax),
        cmocka_unit_test(chunks_of_rows_add_up),
        cmocka_unit_test(large_vocabularies_have_their_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
