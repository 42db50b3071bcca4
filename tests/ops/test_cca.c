/* Compressed convolutional attention's prologue: gradients, precisions and threads by check_op; its meaning against
 * a loop in double written from the formulas, one channel at a time; generation in chunks, and chunks with a halo,
 * against the whole sequence. */
#include <math.h>
#include <omp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "support/check.h"
#include "support/each_isa.h"
#include "backend/backend.h"
#include "ops/cca/cca.h"
#include "ops/heads.h"
#include "ops/rope/rope.h"

enum { MAX_ROWS = 1290 };
static const double THETA = 100;

/* Documents end where `lengths` says, over and over. */
typedef struct Case {
    CcaSpec spec;
    int64_t rotated, rows;
    int lengths[6];
} Case;

static const Case cases[] = {
    {{{1, 1, 2, 2}, 1}, 2, 1, {1}},
    {{{2, 1, 6, 6}, 3}, 4, 1, {1}},
    {{{4, 2, 16, 16}, 16}, 8, 21, {1, 2, 3, 4, 11}},
    {{{3, 1, 10, 10}, 5}, 10, 33, {1, 1, 2, 1, 3, 5}},
    {{{2, 2, 18, 18}, 18}, 2, 65, {65}},
    /* Heads of a larger model, of whose values none, all or an odd part is delayed. */
    {{{2, 1, 8, 8}, 0}, 8, 21, {1, 2, 3, 4, 11}},
    {{{2, 1, 8, 8}, 8}, 8, 21, {1, 2, 3, 4, 11}},
    {{{2, 2, 6, 6}, 3}, 4, 9, {2, 7}},
};
/* Heads that fill the tiles of GPU kernels, of which four and five share keys. */
static const Case full_cases[] = {{{{4, 1, 64, 64}, 32}, 32, 21, {1, 2, 18}}, {{{5, 1, 128, 128}, 64}, 64, 35, {3, 32}}};
/* Documents that lie across blocks of 256 rows (products) and of 1024 (sums of parameter gradients): rows 256, 512
 * and 768 are a first, a second and a later token. */
static const Case long_case = {{{2, 1, 4, 4}, 2}, 2, 1290, {256, 1, 254, 779}};

enum { LONG = sizeof cases / sizeof *cases, GENERATED, FULL };
static int32_t positions[FULL + 2][MAX_ROWS];

static const int32_t *positions_of(const Case *c, int index) {
    int32_t *p = positions[index];
    for (int64_t r = 0, document = 0, token = 0; r < c->rows; r++) {
        p[r] = (int32_t)token++;
        if (token == c->lengths[document]) document = document < 5 && c->lengths[document + 1] ? document + 1 : 0, token = 0;
    }
    return p;
}

/* -- Gradients ----------------------------------------------------------------------------------------------------- */

typedef struct Argument {
    const Case *c;
    const int32_t *positions;
    int64_t chunks; /* of the rows, each with a halo; 0: none */
} Argument;

static void build(Check *check, const void *argument) {
    const Argument *a = argument;
    const Heads *h = &a->c->spec.heads;
    int64_t convolved = heads_query_columns(h) + heads_key_columns(h), columns = convolved + heads_value_columns(h);
    TensorId u = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){a->c->rows, columns}, 0.1, 1);
    TensorId p = check_integers(check, 1, &a->c->rows, a->positions);
    RopeSpec rope = {.theta = THETA, .dimensions = a->c->rotated, .positions = MAX_ROWS, .factor = 1};
    TensorId table = op_rope_table(check->graph, &rope), halo = TENSOR_NONE;
    if (a->chunks) halo = check_input(check, TYPE_COMPUTE, 2, (int64_t[]){a->chunks * CCA_HALO_ROWS, columns}, 0.1, 1);
    CcaParameters parameters = {
        .depthwise_weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){convolved, 1, 2}, 0.2, 0.7),
        .depthwise_bias = check_parameter(check, PARAMETER_BIAS, 1, &convolved, 0.3, 0.5),
        .grouped_weight = check_parameter(check, PARAMETER_CONVOLUTION, 3, (int64_t[]){convolved, h->qk_dim, 2}, 0, 1 / sqrt(h->qk_dim)),
        .grouped_bias = check_parameter(check, PARAMETER_BIAS, 1, &convolved, 0.3, 0.5),
        .temperature = check_parameter(check, PARAMETER_NORM, 1, &h->kv_heads, 1.5, 0.3),
    };
    check_output(check, op_cca(check->graph, u, p, table, &parameters, halo, &a->c->spec));
}

/* The temperature's gradient is one number, a sum over all rows that may nearly cancel while their bf16 errors do
 * not: hence the wider bounds. */
static void gradients_match_central_differences(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++)
        check_op(build, &(Argument){&cases[i], positions_of(&cases[i], i), 0}, (CheckBounds){.bf16 = 0.03});
    /* One number from thousands of terms of both signs: up to 0.11 and 1.4e-5 on the CPU. */
    for (int i = 0; i < 2; i++)
        check_op(build, &(Argument){&full_cases[i], positions_of(&full_cases[i], FULL + i), 0}, (CheckBounds){.fp32 = 3e-5, .bf16 = 0.15});
}

/* Documents that begin at, one and two rows after, and before the first row of a chunk of 7 rows, and a chunk that ends
 * with the first row of one; chunks of one row, so that a halo reaches over the row before; and blocks of 256 rows. */
static void gradients_flow_to_the_halo(void **state) {
    (void)state;
    static const int32_t starts[] = {0, 1, 2, 3, 4, 5, 6, 1, 0, 1, 2, 3, 4, 5, 9, 0, 1, 0, 1, 2, 3, 3, 4, 0, 1, 0, 1, 0};
    static const int32_t singles[] = {0, 1, 1, 9};
    static const Case of_seven = {{{4, 2, 16, 16}, 16}, 8, 28, {0}}, of_one = {{{2, 1, 6, 6}, 2}, 4, 4, {0}};
    check_op(build, &(Argument){&of_seven, starts, 4}, (CheckBounds){.bf16 = 0.03});
    check_op(build, &(Argument){&of_one, singles, 4}, (CheckBounds){.bf16 = 0.03});
    static int32_t many[600];
    for (int r = 0; r < 600; r++) many[r] = 5 + r % 300;
    static const Case of_300 = {{{2, 1, 4, 4}, 2}, 2, 600, {0}};
    check_op(build, &(Argument){&of_300, many, 2}, (CheckBounds){.bf16 = 0.05});
    /* Heads of 128 channels, whose kernels on NVIDIA have blocks of 300 rows: the second begins within a chunk. */
    static const Case wide = {{{1, 1, 128, 128}, 64}, 64, 324, {0}};
    check_op(build, &(Argument){&wide, many, 2}, (CheckBounds){.fp32 = 3e-5, .bf16 = 0.15});
}

static void gradients_are_right_across_blocks_of_rows(void **state) {
    (void)state;
    check_op(build, &(Argument){&long_case, positions_of(&long_case, LONG), 0}, (CheckBounds){.bf16 = 0.05});
}

/* -- Meaning ------------------------------------------------------------------------------------------------------- */

/* Inputs and parameters of a case as doubles; u, table rows and outputs are row-major. */
typedef struct Problem {
    const Case *c;
    const int32_t *positions;
    int64_t convolved, columns;
    double *u, *table, *depthwise, *depthwise_bias, *grouped, *grouped_bias, *temperature;
} Problem;

static double *normal(int64_t count, uint64_t stream, double shift, double scale) {
    double *values = memory_allocate(count * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = (float)(shift + scale * rng_normal(11, stream, i));
    return values;
}

static Problem problem_create(const Case *c, const int32_t *p) {
    const Heads *h = &c->spec.heads;
    Problem problem = {.c = c, .positions = p, .convolved = heads_query_columns(h) + heads_key_columns(h)};
    problem.columns = problem.convolved + heads_value_columns(h);
    problem.u = normal(c->rows * problem.columns, 1, 0, 1);
    problem.depthwise = normal(problem.convolved * 2, 2, 0.2, 0.7);
    problem.depthwise_bias = normal(problem.convolved, 3, 0.3, 0.5);
    problem.grouped = normal(problem.convolved * h->qk_dim * 2, 4, 0, 1 / sqrt(h->qk_dim));
    problem.grouped_bias = normal(problem.convolved, 5, 0.3, 0.5);
    problem.temperature = normal(h->kv_heads, 6, 1.5, 0.3);
    problem.table = memory_allocate(c->rows * c->rotated * sizeof(double));
    for (int64_t t = 0; t < c->rows; t++)
        for (int64_t i = 0; i < c->rotated / 2; i++) {
            double angle = t * pow(THETA, -2.0 * i / c->rotated);
            problem.table[t * c->rotated + i] = cos(angle);
            problem.table[t * c->rotated + c->rotated / 2 + i] = sin(angle);
        }
    return problem;
}

static void problem_free(Problem *p) {
    free(p->u), free(p->table), free(p->depthwise), free(p->depthwise_bias), free(p->grouped), free(p->grouped_bias), free(p->temperature);
}

/* u of the token `back` tokens before row r; zeros precede a document. */
static double raw(const Problem *p, int64_t r, int back, int64_t column) {
    return p->positions[r] < back ? 0 : p->u[(r - back) * p->columns + column];
}

static double depthwise(const Problem *p, int64_t r, int back, int64_t channel) {
    return p->depthwise_bias[channel] + p->depthwise[2 * channel] * raw(p, r, back + 1, channel) +
           p->depthwise[2 * channel + 1] * raw(p, r, back, channel);
}

static double grouped(const Problem *p, int64_t r, int64_t channel) {
    int64_t dim = p->c->spec.heads.qk_dim, head = channel / dim;
    double sum = p->grouped_bias[channel];
    for (int64_t i = 0; i < dim; i++) {
        const double *w = p->grouped + (channel * dim + i) * 2;
        sum += w[0] * depthwise(p, r, 1, head * dim + i) + w[1] * depthwise(p, r, 0, head * dim + i);
    }
    return sum;
}

static double qk_mean(const Problem *p, int64_t r, int64_t channel) {
    const Heads *h = &p->c->spec.heads;
    int64_t dim = h->qk_dim, head = channel / dim, i = channel % dim, group = h->heads / h->kv_heads;
    if (head < h->heads) return (raw(p, r, 0, channel) + raw(p, r, 0, (h->heads + head / group) * dim + i)) / 2;
    double sum = 0;
    for (int64_t j = 0; j < group; j++) sum += raw(p, r, 0, ((head - h->heads) * group + j) * dim + i);
    return raw(p, r, 0, channel) / 2 + sum / group / 2;
}

static void reference_row(const Problem *p, int64_t r, double *out) {
    const Heads *h = &p->c->spec.heads;
    int64_t dim = h->qk_dim, half = p->c->rotated / 2, values = h->kv_heads * dim;
    for (int64_t head = 0; head < h->heads + h->kv_heads; head++) {
        double x[128], sum = 0;
        for (int64_t i = 0; i < dim; i++) {
            x[i] = grouped(p, r, head * dim + i) + qk_mean(p, r, head * dim + i);
            sum += x[i] * x[i];
        }
        double factor = sqrt(dim) / fmax(sqrt(sum), 0x1p-52);
        if (head >= h->heads) factor *= p->temperature[head - h->heads];
        for (int64_t i = 0; i < dim; i++) {
            double angle = p->positions[r] * pow(THETA, -2.0 * (i % half) / p->c->rotated), turned = x[i];
            if (i < half) turned = x[i] * cos(angle) - x[i + half] * sin(angle);
            else if (i < 2 * half) turned = x[i] * cos(angle) + x[i - half] * sin(angle);
            out[head * dim + i] = factor * turned;
        }
    }
    for (int64_t i = 0; i < values; i++) out[p->convolved + i] = raw(p, r, i >= values - p->c->spec.delayed, p->convolved + i);
}

static void fill(const Executor *executor, const Graph *graph, TensorId tensor, const double *values) {
    void *memory = executor_tensor(executor, tensor);
    for (int64_t i = 0; i < graph_elements(graph, tensor); i++) {
        if (graph->precision == PRECISION_FP64) ((double *)memory)[i] = values[i];
        else ((float *)memory)[i] = (float)values[i];
    }
}

/* Which rows of the problem a run takes: `chunks` of `count` rows, chunk i from row first + i * stride on. More than one
 * have a halo. */
typedef struct Rows { int64_t first, count, chunks, stride; } Rows;

static void fill_chunks(const Executor *executor, const Problem *p, Rows rows, TensorId u, TensorId positions, TensorId halo) {
    double *all = memory_allocate(rows.chunks * rows.count * p->columns * sizeof *all),
           *before = memory_allocate(rows.chunks * 2 * p->columns * sizeof *before);
    for (int64_t i = 0, first = rows.first; i < rows.chunks; i++, first += rows.stride) {
        memcpy(all + i * rows.count * p->columns, p->u + first * p->columns, rows.count * p->columns * sizeof *all);
        memcpy((int32_t *)executor_tensor(executor, positions) + i * rows.count, p->positions + first, rows.count * sizeof *p->positions);
        for (int64_t j = first < 2 ? 2 * p->columns : 0; j < 2 * p->columns; j++)
            before[i * 2 * p->columns + j] = p->u[(first - 2) * p->columns + j];
    }
    fill(executor, executor_graph(executor), u, all);
    if (halo) fill(executor, executor_graph(executor), halo, before);
    free(all), free(before);
}

/* Runs the rows; `state` [2, columns] (may be NULL) and `out`, which gets qkv, are in the graph's type. */
static void run_rows(const Problem *p, Rows rows, Precision precision, bool training, void *state, void *out) {
    int64_t count = rows.chunks * rows.count;
    Graph *graph = graph_create(precision, training);
    const Heads *h = &p->c->spec.heads;
    TensorId u = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){count, p->columns}, "u");
    TensorId at = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &count, "positions");
    TensorId table = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 2, (int64_t[]){p->c->rows, p->c->rotated}, "table");
    TensorId halo = state || rows.chunks > 1 ? graph_tensor(graph, state ? ARENA_STATE : ARENA_INPUT, TYPE_COMPUTE, 2,
                                                   (int64_t[]){rows.chunks * 2, p->columns}, "halo")
                                             : TENSOR_NONE;
    CcaParameters parameters = {
        .depthwise_weight = graph_parameter(graph, "dw", PARAMETER_CONVOLUTION, 3, (int64_t[]){p->convolved, 1, 2}, 0, 1, false),
        .depthwise_bias = graph_parameter(graph, "db", PARAMETER_BIAS, 1, &p->convolved, 0, 1, false),
        .grouped_weight = graph_parameter(graph, "gw", PARAMETER_CONVOLUTION, 3, (int64_t[]){p->convolved, h->qk_dim, 2}, 0, 1, false),
        .grouped_bias = graph_parameter(graph, "gb", PARAMETER_BIAS, 1, &p->convolved, 0, 1, false),
        .temperature = graph_parameter(graph, "temp", PARAMETER_NORM, 1, &h->kv_heads, 1, 0, false),
    };
    TensorId qkv = op_cca(graph, u, at, table, &parameters, halo, &p->c->spec);
    graph->tensors[qkv].keep = true;
    Backend backend = op_cpu_backend(precision);
    Plan plan = graph_plan(graph, &backend);
    Error error = {0};
    void *shared[ARENA_COUNT] = {[ARENA_STATE] = state};
    Executor *executor = executor_create(graph, &plan, &backend, shared, &error);
    assert_non_null(executor);
    fill_chunks(executor, p, rows, u, at, rows.chunks > 1 ? halo : TENSOR_NONE);
    fill(executor, graph, table, p->table);
    fill(executor, graph, parameters.depthwise_weight, p->depthwise);
    fill(executor, graph, parameters.depthwise_bias, p->depthwise_bias);
    fill(executor, graph, parameters.grouped_weight, p->grouped);
    fill(executor, graph, parameters.grouped_bias, p->grouped_bias);
    fill(executor, graph, parameters.temperature, p->temperature);
    memset(executor_arena(executor, ARENA_ACTIVATION), 0xff, plan.bytes[ARENA_ACTIVATION]);
    executor_run(executor);
    memcpy(out, executor_tensor(executor, qkv), count * p->columns * precision_bytes(precision, TYPE_COMPUTE));
    executor_free(executor);
    graph_free(graph);
}

static void expect_reference(const Case *c, const int32_t *p, bool training) {
    Problem problem = problem_create(c, p);
    double *out = memory_allocate(c->rows * problem.columns * sizeof *out), *expected = memory_allocate(problem.columns * sizeof *expected);
    run_rows(&problem, (Rows){0, c->rows, 1, 0}, PRECISION_FP64, training, NULL, out);
    for (int64_t r = 0; r < c->rows; r++) {
        const double *got = out + r * problem.columns;
        reference_row(&problem, r, expected);
        for (int64_t j = 0; j < problem.columns; j++)
            /* Both are sums of tens of terms of order one in double, then a quotient: 1e-16 grows to 1e-12 where a
             * norm is small. */
            if (!(fabs(got[j] - expected[j]) < 1e-11)) fail_msg("row %d column %d: %g, expected %g", (int)r, (int)j, got[j], expected[j]);
    }
    free(out), free(expected);
    problem_free(&problem);
}

static void output_is_what_the_formulas_say(void **state) {
    (void)state;
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) expect_reference(&cases[i], positions_of(&cases[i], i), i % 2);
    for (int i = 0; i < 2; i++) expect_reference(&full_cases[i], positions_of(&full_cases[i], FULL + i), true);
    expect_reference(&long_case, positions_of(&long_case, LONG), true);
}

/* -- Generation ---------------------------------------------------------------------------------------------------- */

enum { SEQUENCE = 42 };

static void expect_chunks_equal_whole(const Problem *p, const float *whole, const int *chunks, int count) {
    float *state = memory_allocate(2 * p->columns * sizeof *state), *out = memory_allocate(SEQUENCE * p->columns * sizeof *out);
    for (int64_t first = 0, i = 0; first < SEQUENCE; first += chunks[i % count], i++) {
        int64_t rows = chunks[i % count] < SEQUENCE - first ? chunks[i % count] : SEQUENCE - first;
        run_rows(p, (Rows){first, rows, 1, 0}, PRECISION_FP32, false, state, out + first * p->columns);
    }
    assert_memory_equal(out, whole, SEQUENCE * p->columns * sizeof *out);
    for (int64_t j = 0; j < 2 * p->columns; j++) assert_true(state[j] == (float)p->u[(SEQUENCE - 2) * p->columns + j]);
    free(state), free(out);
}

/* The same bits: an element's sums do not depend on the number of rows. Documents begin at rows 0, 1, 3, 6, 31. */
static void a_sequence_in_chunks_equals_the_whole(void **state) {
    (void)state;
    static const Case c = {{{4, 2, 16, 16}, 16}, 8, SEQUENCE, {1, 2, 3, 25, 11}};
    Problem problem = problem_create(&c, positions_of(&c, GENERATED));
    float *whole = memory_allocate(SEQUENCE * problem.columns * sizeof *whole);
    run_rows(&problem, (Rows){0, SEQUENCE, 1, 0}, PRECISION_FP32, true, NULL, whole);
    for (int size = 1; size <= 7; size += size == 3 ? 4 : 1) expect_chunks_equal_whole(&problem, whole, &size, 1);
    expect_chunks_equal_whole(&problem, whole, (int[]){7, 1, 2, 1, 3}, 5);
    free(whole);
    problem_free(&problem);
}

/* Pairs of chunks, as the ranks of context parallelism have them, of 1 to 7 rows. Documents begin at rows 0, 1, 3, 6,
 * 31: at, before and after the first rows of chunks. */
static void chunks_with_their_halo_equal_the_whole(void **state) {
    (void)state;
    static const Case c = {{{4, 2, 16, 16}, 16}, 8, SEQUENCE, {1, 2, 3, 25, 11}};
    Problem problem = problem_create(&c, positions_of(&c, GENERATED));
    float *whole = memory_allocate(SEQUENCE * problem.columns * sizeof *whole),
          *out = memory_allocate(SEQUENCE * problem.columns * sizeof *out);
    run_rows(&problem, (Rows){0, SEQUENCE, 1, 0}, PRECISION_FP32, true, NULL, whole);
    for (int64_t count = 1; count <= 7; count++)
        for (int64_t chunk = 0, chunks = SEQUENCE / count; 2 * chunk + 1 < chunks; chunk++) {
            Rows rows = {chunk * count, count, 2, (chunks - 1 - 2 * chunk) * count};
            run_rows(&problem, rows, PRECISION_FP32, chunk % 2, NULL, out);
            for (int i = 0; i < 2; i++)
                assert_memory_equal(out + i * count * problem.columns, whole + (rows.first + i * rows.stride) * problem.columns,
                    count * problem.columns * sizeof *out);
        }
    free(whole), free(out);
    problem_free(&problem);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_is_what_the_formulas_say),
        EACH_ISA(cmocka_unit_test(a_sequence_in_chunks_equals_the_whole)),
        EACH_ISA(cmocka_unit_test(chunks_with_their_halo_equal_the_whole)),
        cmocka_unit_test(gradients_match_central_differences),
        cmocka_unit_test(gradients_flow_to_the_halo),
        cmocka_unit_test(gradients_are_right_across_blocks_of_rows),
    };
    omp_set_num_threads(1); /* central differences are thousands of tiny runs; check_op itself compares one thread with two */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
