/* See check.h. A Check holds one graph; each run builds it anew for one precision, fills inputs and parameters with
 * the same values, and returns every compared tensor as doubles. */
#include "check.h"

#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "backend/backend.h"
#include "launches.h"

/* Test programs keep to SMELT_CPU_ISA as smelt does. */
__attribute__((constructor)) static void use_environment(void) {
    Error error;
    if (cpu_isa_use_environment(&error)) return;
    fprintf(stderr, "%s\n", error.message);
    exit(error.code);
}

CpuIsa check_isa_from(CpuIsa isa, CpuIsa before) {
    while (isa < CPU_ISA_COUNT && !cpu_has(isa)) isa++;
    cpu_isa_use(isa < CPU_ISA_COUNT ? isa : before);
    return isa;
}

enum { MAX_RESULTS = 96, MAX_PROBES = 300 };
static const double STEP = 1e-5; /* of the central differences: truncation ~ 1e-10, cancellation ~ 1e-16 * |f| / 1e-5 ~ 1e-9 */

typedef struct Source {
    TensorId tensor;
    uint64_t stream;
    double shift, scale;
    bool fixed; /* has no gradient */
} Source;

/* What a run needs beyond the Check that tests see. */
typedef struct Run {
    Check check; /* first, so that builders may cast back */
    Source sources[64];
    int source_count;
    TensorId scalars[8];
    double scalar_values[8];
    int scalar_count;
    TensorId losses[4];
    int loss_count;
    Seed seeds[16];
    int seed_count;
    Program program;
} Run;

typedef struct Result {
    char name[128];
    int64_t count;
    double *values;
} Result;
typedef struct Results {
    Result items[MAX_RESULTS];
    int count;
} Results;

static double round_bf16(double value) {
    union {
        float f;
        uint32_t bits;
    } u = {.f = (float)value};
    u.bits = (u.bits + 0x7fff + (u.bits >> 16 & 1)) & 0xffff0000;
    return u.f;
}

static TensorId add_source(Run *run, TensorId tensor, double shift, double scale) {
    assert_true(run->source_count < 64);
    run->sources[run->source_count] = (Source){tensor, 1000 + run->source_count, shift, scale, false};
    run->source_count++;
    return tensor;
}

TensorId check_input(Check *check, TypeClass type, int rank, const int64_t *shape, double shift, double scale) {
    char name[32];
    snprintf(name, sizeof name, "input%d", check->input_count);
    TensorId tensor = graph_tensor(check->graph, ARENA_INPUT, type, rank, shape, name);
    check->inputs[check->input_count++] = tensor;
    return add_source((Run *)check, tensor, shift, scale);
}

TensorId check_fixed(Check *check, TypeClass type, int rank, const int64_t *shape, double shift, double scale) {
    Run *run = (Run *)check;
    TensorId tensor = add_source(run, graph_tensor(check->graph, ARENA_INPUT, type, rank, shape, "fixed"), shift, scale);
    run->sources[run->source_count - 1].fixed = true;
    return tensor;
}

TensorId check_integers(Check *check, int rank, const int64_t *shape, const int32_t *values) {
    TensorId tensor = graph_tensor(check->graph, ARENA_INPUT, TYPE_INT32, rank, shape, "integers");
    check->integer_values[check->integer_count] = values;
    return check->integers[check->integer_count++] = tensor;
}

TensorId check_parameter(Check *check, ParameterKind kind, int rank, const int64_t *shape, double shift, double scale) {
    char name[32];
    snprintf(name, sizeof name, "parameter%d", check->graph->parameter_count);
    return add_source((Run *)check, graph_parameter(check->graph, name, kind, rank, shape, 0, 1, false), shift, scale);
}

Norm check_norm(Check *check, NormKind kind, bool biased, int64_t columns) {
    Norm norm = {.kind = kind, .epsilon = 1e-5, .gain = check_parameter(check, PARAMETER_NORM, 1, &columns, 1, 0.2)};
    if (biased) norm.bias = check_parameter(check, PARAMETER_BIAS, 1, &columns, 0, 0.5);
    return norm;
}

TensorId check_scalar(Check *check, double value) {
    Run *run = (Run *)check;
    TensorId tensor = graph_tensor(check->graph, ARENA_INPUT, TYPE_WIDE, 1, (int64_t[]){1}, "scalar");
    run->scalar_values[run->scalar_count] = value;
    return run->scalars[run->scalar_count++] = tensor;
}

void check_output(Check *check, TensorId tensor) {
    check->graph->tensors[tensor].keep = true;
    check->outputs[check->output_count++] = tensor;
}

TensorId check_loss(Check *check, int64_t elements) {
    Run *run = (Run *)check;
    return run->losses[run->loss_count++] = graph_tensor(check->graph, ARENA_METRIC, TYPE_WIDE, 1, &elements, "loss");
}

/* -- Memory in any precision as doubles ---------------------------------------------------------------------------- */

static double get(const void *data, size_t unit, TypeClass type, int64_t index) {
    if (type == TYPE_INT32) return ((const int32_t *)data)[index];
    switch (unit) {
    case 8: return ((const double *)data)[index];
    case 4: return ((const float *)data)[index];
    default: {
        union {
            uint32_t bits;
            float f;
        } u = {.bits = (uint32_t)((const uint16_t *)data)[index] << 16};
        return u.f;
    }
    }
}

static void put(void *data, size_t unit, int64_t index, double value) {
    switch (unit) {
    case 8: ((double *)data)[index] = value; break;
    case 4: ((float *)data)[index] = (float)value; break;
    default: {
        union {
            float f;
            uint32_t bits;
        } u = {.f = (float)value};
        ((uint16_t *)data)[index] = (uint16_t)(u.bits >> 16); /* exact: values were rounded to bf16 */
    }
    }
}

static size_t unit_of(const Run *run, TensorId tensor) {
    return precision_bytes(run->check.graph->precision, graph_get(run->check.graph, tensor)->type);
}

/* Of tensors in memory that the host sees. */
static double load(const Run *run, TensorId tensor, int64_t index) {
    return get(executor_tensor(run->program.executor, tensor), unit_of(run, tensor), graph_get(run->check.graph, tensor)->type, index);
}

static double normal(const Run *run, uint64_t stream, int64_t index, double shift, double scale) {
    return round_bf16(shift + scale * rng_normal(run->check.seed, stream, index));
}

/* Fills a tensor, wherever it is. */
static void fill_normal(const Run *run, TensorId tensor, uint64_t stream, double shift, double scale) {
    int64_t count = graph_elements(run->check.graph, tensor);
    size_t unit = unit_of(run, tensor);
    void *values = memory_allocate(count * unit + 1), *data = executor_tensor(run->program.executor, tensor);
    for (int64_t i = 0; i < count; i++) put(values, unit, i, normal(run, stream, i, shift, scale));
    if (graph_get(run->check.graph, tensor)->arena == ARENA_INPUT) memcpy(data, values, count * unit);
    else device_upload(executor_backend(run->program.executor)->device, data, values, count * unit);
    free(values);
}

/* -- Runs ---------------------------------------------------------------------------------------------------------- */

static void fill_integers(Run *run) {
    for (int i = 0; i < run->scalar_count; i++) executor_set_scalar(run->program.executor, run->scalars[i], run->scalar_values[i]);
    for (int i = 0; i < run->check.integer_count; i++)
        memcpy(executor_tensor(run->program.executor, run->check.integers[i]), run->check.integer_values[i],
            graph_elements(run->check.graph, run->check.integers[i]) * sizeof(int32_t));
}

static void fill(Run *run) {
    for (int i = 0; i < run->source_count; i++)
        fill_normal(run, run->sources[i].tensor, run->sources[i].stream, run->sources[i].shift, run->sources[i].scale);
    for (int i = 0; i < run->seed_count; i++) fill_normal(run, run->seeds[i].gradient, 5000 + i, 0, 1);
    fill_integers(run);
}

static Run *run_open(CheckBuild build, const void *argument, Device *device, Precision precision, bool gradients) {
    Run *run = memory_allocate(sizeof *run);
    Graph *graph = run->check.graph = graph_create(precision, true);
    run->check.seed = 7;
    build(&run->check, argument);
    for (int i = 0; i < run->check.output_count; i++) {
        Tensor output = *graph_get(graph, run->check.outputs[i]);
        if (output.type == TYPE_INT32) continue;
        TensorId seed = graph_tensor(graph, ARENA_INPUT, output.type, output.rank, output.shape, "seed");
        run->seeds[run->seed_count++] = (Seed){run->check.outputs[i], seed};
    }
    if (gradients) graph_differentiate(graph, RECOMPUTE_NONE, run->seeds, run->seed_count);
    for (int i = 0; gradients && i < run->check.input_count; i++) {
        TensorId gradient = graph->tensors[run->check.inputs[i]].gradient;
        if (gradient) graph->tensors[gradient].keep = true;
    }
    run->program = check_program((Model){.graph = graph}, device);
    return run;
}

static Run *run_create(CheckBuild build, const void *argument, Device *device, Precision precision, bool gradients) {
    Run *run = run_open(build, argument, device, precision, gradients);
    fill(run);
    return run;
}

static void run_free(Run *run) {
    program_free(&run->program);
    free(run);
}

/* Poison first, so that whatever a kernel leaves unwritten or reads too early turns into NaN. */
static void run_once(Run *run) {
    Device *device = executor_backend(run->program.executor)->device;
    Error error = {0};
    device_fill(device, executor_arena(run->program.executor, ARENA_ACTIVATION), 0xff, run->program.plan.bytes[ARENA_ACTIVATION]);
    device_fill(device, executor_arena(run->program.executor, ARENA_STATE), 0, run->program.plan.bytes[ARENA_STATE]);
    executor_zero(run->program.executor);
    executor_run(run->program.executor);
    if (!executor_finish(run->program.executor, &error)) fail_msg("%s", error.message);
}

static void collect(const Run *run, Results *results, TensorId tensor, const char *name) {
    assert_true(results->count < MAX_RESULTS);
    Result *result = &results->items[results->count++];
    snprintf(result->name, sizeof result->name, "%s", name);
    result->count = graph_elements(run->check.graph, tensor);
    result->values = memory_allocate((result->count + 1) * sizeof(double));
    size_t unit = unit_of(run, tensor);
    void *data = memory_allocate(result->count * unit + 1);
    executor_read(run->program.executor, tensor, data);
    for (int64_t i = 0; i < result->count; i++) result->values[i] = get(data, unit, graph_get(run->check.graph, tensor)->type, i);
    free(data);
}

static Results run_results(Run *run) {
    Results results = {0};
    Graph *graph = run->check.graph;
    char name[128];
    run_once(run);
    for (int i = 0; i < run->check.output_count; i++)
        collect(run, &results, run->check.outputs[i], graph->tensors[run->check.outputs[i]].name);
    for (int i = 0; i < run->loss_count; i++) collect(run, &results, run->losses[i], "loss");
    for (int i = 0; i < run->source_count; i++) {
        TensorId gradient = graph->tensors[run->sources[i].tensor].gradient;
        snprintf(name, sizeof name, "gradient of %s", graph->tensors[run->sources[i].tensor].name);
        if (gradient) collect(run, &results, gradient, name);
    }
    return results;
}

static void results_free(Results *results) {
    for (int i = 0; i < results->count; i++) free(results->items[i].values);
}

/* ||a - b|| / (||b|| + 0.01 sqrt(n)). The floor: inputs are of order one, so a result that cancels to less than a
 * hundredth still carries their rounding. */
static double relative_error(const Result *a, const Result *b) {
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < b->count; i++) {
        double d = a->values[i] - b->values[i];
        difference += d * d;
        norm += b->values[i] * b->values[i];
    }
    return sqrt(difference) / (sqrt(norm) + 0.01 * sqrt((double)b->count));
}

static void compare(const Results *results, const Results *reference, double bound, const char *what) {
    assert_int_equal(results->count, reference->count);
    for (int i = 0; i < results->count; i++) {
        double error = relative_error(&results->items[i], &reference->items[i]);
        if (!(error <= bound)) fail_msg("%s: %s is off by %.3g (bound %.3g)", what, results->items[i].name, error, bound);
    }
}

static void compare_bits(const Results *results, const Results *reference, const char *what) {
    for (int i = 0; i < results->count; i++)
        if (memcmp(results->items[i].values, reference->items[i].values, results->items[i].count * sizeof(double)))
            fail_msg("%s: %s differs from run to run", what, results->items[i].name);
}

/* -- Central differences ------------------------------------------------------------------------------------------- */

static double objective(Run *run) {
    run_once(run);
    double sum = 0;
    for (int i = 0; i < run->seed_count; i++)
        for (int64_t j = 0; j < graph_elements(run->check.graph, run->seeds[i].tensor); j++)
            sum += load(run, run->seeds[i].tensor, j) * load(run, run->seeds[i].gradient, j);
    for (int i = 0; i < run->loss_count; i++)
        for (int64_t j = 0; j < graph_elements(run->check.graph, run->losses[i]); j++) sum += load(run, run->losses[i], j);
    return sum;
}

static void check_differences(Run *forward, const Graph *graph, int source, const Result *analytic, double bound) {
    TensorId tensor = forward->sources[source].tensor;
    int64_t count = graph_elements(forward->check.graph, tensor), probes = count < MAX_PROBES ? count : MAX_PROBES;
    double difference = 0, norm = 0;
    for (int64_t probe = 0; probe < probes; probe++) {
        int64_t index = count <= MAX_PROBES ? probe : (int64_t)rng_permute(3, source, probe, count);
        double value = load(forward, tensor, index);
        double *cell = (double *)executor_tensor(forward->program.executor, tensor) + index;
        *cell = value + STEP;
        double above = objective(forward);
        *cell = value - STEP;
        double slope = (above - objective(forward)) / (2 * STEP);
        *cell = value;
        double got = analytic ? analytic->values[index] : 0;
        difference += (got - slope) * (got - slope);
        norm += slope * slope;
    }
    double error = sqrt(difference) / (sqrt(norm) + 1e-3 * sqrt((double)probes));
    if (!(error <= bound))
        fail_msg("gradient of %s differs from central differences by %.3g (bound %.3g)", graph->tensors[tensor].name, error, bound);
}

static void check_all_differences(CheckBuild build, const void *argument, const Results *reference, double bound) {
    Run *forward = run_create(build, argument, device_cpu(), PRECISION_FP64, false);
    for (int i = 0; i < forward->source_count; i++) {
        char name[128];
        const Result *analytic = NULL;
        snprintf(name, sizeof name, "gradient of %s", forward->check.graph->tensors[forward->sources[i].tensor].name);
        for (int j = 0; j < reference->count; j++)
            if (!strcmp(reference->items[j].name, name)) analytic = &reference->items[j];
        bool frozen = graph_get(forward->check.graph, forward->sources[i].tensor)->frozen;
        if (!forward->sources[i].fixed && !frozen) check_differences(forward, forward->check.graph, i, analytic, bound);
    }
    run_free(forward);
}

/* -- On a GPU ------------------------------------------------------------------------------------------------------ */

Device *check_device(void) {
    static Device *device;
    const char *name = getenv("SMELT_TEST_DEVICE");
    Error error = {0};
    if (!name || device) return device;
    device = device_open(strcmp(name, "hip") ? DEVICE_CUDA : DEVICE_HIP, 0, &error);
    if (!device) fail_msg("SMELT_TEST_DEVICE=%s: %s", name, error.message);
    launches_count(device);
    return device;
}

Device *check_gpu(void) {
    if (check_device()) return check_device();
    print_message("skipped: SMELT_TEST_DEVICE names no GPU (hip, cuda)\n");
    skip();
    return NULL;
}

static struct {
    int number; /* of the present shape */
    bool asked; /* for its rows */
} present_shape;

int64_t check_shape_rows(int64_t rows) {
    present_shape.asked = true;
    return (present_shape.number + 1) * rows;
}

bool check_has_shape(int number) {
    const char *shapes = getenv("SMELT_TEST_SHAPES");
    bool has = number == 0 || (present_shape.asked && shapes && number < atoi(shapes));
    present_shape.number = number;
    present_shape.asked = false;
    return has;
}

static int by_value(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

double check_median_seconds(void (*run)(const void *what), const void *what) {
    enum { RUNS = 10 };
    double seconds[RUNS];
    run(what);
    for (int i = 0; i < RUNS; i++) {
        device_timer_start(check_device());
        run(what);
        seconds[i] = device_timer_stop(check_device());
    }
    qsort(seconds, RUNS, sizeof *seconds, by_value);
    return (seconds[RUNS / 2 - 1] + seconds[RUNS / 2]) / 2;
}

Program check_program(Model model, Device *device) {
    Error error = {0};
    Program program = {.model = model};
    launches_begin_problem(model.graph);
    if (!program_plan(&program, device, &error) || !program_start(&program, NULL, &error)) fail_msg("%s", error.message);
    return program;
}

/* Three runs: the plain one, the one that is recorded, and a replay. */
static void check_on_device(
    CheckBuild build, const void *argument, Precision precision, const Results *reference, double bound, bool gradients) {
    Run *run = run_create(build, argument, check_device(), precision, gradients);
    Results first = run_results(run);
    compare(&first, reference, bound, device_info(check_device())->name);
    for (int i = 0; i < 2; i++) {
        Results again = run_results(run);
        compare_bits(&again, &first, device_info(check_device())->name);
        results_free(&again);
    }
    results_free(&first);
    run_free(run);
}

/* Fills a tensor of any size with a short sequence of normal numbers, repeated: for time, not for results. */
static void fill_for_time(const Run *run, TensorId tensor, double shift, double scale) {
    enum { SEQUENCE = 65521 }; /* a prime number, so that rows differ */
    int64_t count = graph_elements(run->check.graph, tensor);
    size_t unit = unit_of(run, tensor);
    char *values = memory_allocate(count * unit + 1);
    for (int64_t i = 0; i < count && i < SEQUENCE; i++) put(values, unit, i, normal(run, 1, i, shift, scale));
    for (int64_t i = SEQUENCE; i < count; i += SEQUENCE)
        memcpy(values + i * unit, values, (count - i < SEQUENCE ? count - i : SEQUENCE) * unit);
    void *data = executor_tensor(run->program.executor, tensor);
    if (graph_get(run->check.graph, tensor)->arena == ARENA_INPUT) memcpy(data, values, count * unit);
    else device_upload(check_device(), data, values, count * unit);
    free(values);
}

static void launch_program(void *context) {
    const Run *run = context;
    Error error = {0};
    executor_run(run->program.executor);
    if (!executor_finish(run->program.executor, &error)) fail_msg("%s", error.message);
}

void check_launch(CheckBuild build, const void *argument, bool gradients) {
    Run *run = run_open(build, argument, check_device(), PRECISION_BF16, gradients);
    fill_integers(run);
    bool measures = launches_are_timed() && !device_info(check_device())->emulated;
    for (int i = 0; measures && i < run->source_count; i++)
        fill_for_time(run, run->sources[i].tensor, run->sources[i].shift, run->sources[i].scale);
    for (int i = 0; measures && i < run->seed_count; i++) fill_for_time(run, run->seeds[i].gradient, 0, 1);
    launches_repeat(launch_program, run);
    run_free(run);
}

/* Whether pure bf16 is another problem than bf16. */
static bool has_bf16_gradients(const Graph *graph) {
    for (int i = 0; i < graph->parameter_count; i++)
        if (graph_get(graph, graph->parameters[i].tensor)->type == TYPE_COMPUTE && graph_get(graph, graph->parameters[i].tensor)->gradient)
            return true;
    return false;
}

/* Step 2 and 3 of the proof (check.h), with the instruction set that is chosen. */
static void check_variant(
    CheckBuild build, const void *argument, Precision precision, const Results *reference, const CheckBounds *bounds) {
    int threads = omp_get_max_threads();
    double bf16_bound = bounds->bf16 ? bounds->bf16 : 0.02, fp32_bound = bounds->fp32 ? bounds->fp32 : 1e-5;
    char what[64];
    snprintf(what, sizeof what, "%s kernels in %s", cpu_isa_name(cpu_isa()), precision_name(precision));
    omp_set_num_threads(2); /* before planning, which sizes the scratch of the threads */
    Run *run = run_create(build, argument, device_cpu(), precision, !bounds->forward_only);
    Results results = run_results(run);
    omp_set_num_threads(1);
    Results alone = run_results(run);
    omp_set_num_threads(threads);
    compare(&results, reference, precision_is_bf16(precision) ? bf16_bound : fp32_bound, what);
    compare_bits(&alone, &results, what);
    results_free(&results);
    results_free(&alone);
    run_free(run);
}

/* Compares one shape on check_device, or on the CPU. */
static void check_shape(CheckBuild build, const void *argument, CheckBounds bounds) {
    bool gradients = !bounds.forward_only;
    Run *run = run_create(build, argument, device_cpu(), PRECISION_FP64, gradients);
    Results reference = run_results(run);
    bool pure = has_bf16_gradients(run->check.graph);
    run_free(run);
    if (check_device()) {
        double bf16_bound = bounds.bf16 ? bounds.bf16 : 0.02;
        check_on_device(build, argument, PRECISION_BF16, &reference, bf16_bound, gradients);
        if (pure) check_on_device(build, argument, PRECISION_PURE_BF16, &reference, bf16_bound, gradients);
        results_free(&reference);
        return;
    }
    if (gradients) check_all_differences(build, argument, &reference, bounds.difference ? bounds.difference : 1e-6);
    FOR_EACH_ISA (isa) {
        check_variant(build, argument, PRECISION_BF16, &reference, &bounds);
        check_variant(build, argument, PRECISION_FP32, &reference, &bounds);
        if (pure) check_variant(build, argument, PRECISION_PURE_BF16, &reference, &bounds);
    }
    results_free(&reference);
}

void check_op(CheckBuild build, const void *argument, CheckBounds bounds) {
    for (int i = 0; check_has_shape(i); i++) check_shape(build, argument, bounds);
    present_shape.number = 0;
}
