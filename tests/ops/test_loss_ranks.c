/* The head and cross-entropy of ranks that share the vocabulary out, with real ranks over TCP: losses and gradients against
 * plain loops in double. On the CPU, and on the emulated GPU, whose memory TCP reaches. Run with `rank loss`, the program
 * is one of the ranks. */
#include <math.h>

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/memory.h"
#include "base/scope.h"
#include "ops/loss/loss.h"
#include "support/check.h"
#include "support/own_ranks.h"

enum { SKIPPED = 5, MOST_ROWS = 48, MOST_COLUMNS = 32, MOST_TOKENS = 288 };
/* Shares of 259 tokens are uneven. Those in fp8 are multiples of 16. */
typedef struct Shape {
    int64_t rows, columns, vocabulary;
    bool fp8;
    double cap; /* of logits; 0: none */
} Shape;
static const Shape plain[] = {{37, 24, 259, false, 0}, {37, 24, 259, false, 2}},
                   in_fp8[] = {{MOST_ROWS, MOST_COLUMNS, MOST_TOKENS, true, 0}, {MOST_ROWS, MOST_COLUMNS, MOST_TOKENS, true, 4}};
static const double scale = 1.0 / 16;

static double x_at(int64_t i) { return (double)((i * 37 + 11) % 64 - 32) / 32; }         /* exact in bf16 */
static double w_at(int64_t i) { return (double)((i * i * 13 + i * 5) % 128 - 64) / 64; } /* likewise */
static int32_t target_at(const Shape *s, int64_t row) { return row == SKIPPED ? -1 : (int32_t)(row * 71 % s->vocabulary); }

/* What the ranks together make. */
typedef struct Expected { double loss, d_x[MOST_ROWS * MOST_COLUMNS], d_w[MOST_TOKENS * MOST_COLUMNS]; } Expected;

static void add_row(Expected *e, const Shape *s, int64_t row) {
    double logits[MOST_TOKENS] = {0}, sum = 0;
    int32_t target = target_at(s, row);
    for (int64_t t = 0; t < s->vocabulary; t++) {
        for (int64_t j = 0; j < s->columns; j++) logits[t] += x_at(row * s->columns + j) * w_at(t * s->columns + j);
        if (s->cap > 0) logits[t] = s->cap * tanh(logits[t] / s->cap);
        sum += exp(logits[t]);
    }
    e->loss += scale * (log(sum) - logits[target]);
    for (int64_t t = 0; t < s->vocabulary; t++) {
        double d = scale * (exp(logits[t]) / sum - (t == target));
        if (s->cap > 0) d *= 1 - logits[t] / s->cap * (logits[t] / s->cap);
        for (int64_t j = 0; j < s->columns; j++) {
            e->d_x[row * s->columns + j] += d * w_at(t * s->columns + j);
            e->d_w[t * s->columns + j] += d * x_at(row * s->columns + j);
        }
    }
}

/* Values as a tensor of the precision stores them, for the caller to free. */
static void *stored(Precision precision, double (*at)(int64_t i), int64_t first, int64_t count) {
    float *wide = memory_allocate((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++) wide[i] = (float)at(first + i);
    if (precision == PRECISION_FP32) return wide;
    uint16_t *narrow = memory_allocate((size_t)count * sizeof *narrow);
    for (int64_t i = 0; i < count; i++) narrow[i] = bf16_from_float(wide[i]);
    free(wide);
    return narrow;
}

static void compare(const char *what, const double *values, const double *expected, int64_t count, double tolerance) {
    double most = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, fabs(expected[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabs(values[i] - expected[i]) <= tolerance * most))
            fail_msg("%s[%lld] is %.9g instead of %.9g", what, (long long)i, values[i], expected[i]);
}

/* A tensor in double, for the caller to free. */
static double *read_tensor(const Executor *executor, TensorId tensor, bool narrow) {
    int64_t count = graph_elements(executor_graph(executor), tensor);
    SCOPED_FREE void *bytes = memory_allocate((size_t)count * sizeof(float));
    double *values = memory_allocate((size_t)count * sizeof *values);
    executor_read(executor, tensor, bytes);
    for (int64_t i = 0; i < count; i++) values[i] = narrow ? bf16_to_float(((uint16_t *)bytes)[i]) : ((float *)bytes)[i];
    return values;
}

static void check_rank(const Shape *s, const Mesh *mesh, Device *device, Precision precision, double tolerance) {
    static Expected e;
    Error error = {0};
    int64_t rows = s->rows, one = 1, two = 2;
    CutShare own = cut_share(s->vocabulary, mesh_index(mesh, AXES_TENSOR), mesh_size(mesh, AXES_TENSOR));
    Cut cut = {.axes = AXES_TENSOR, .blocks = 1, .rows = {s->vocabulary}};
    Graph *graph = graph_create(precision, true);
    graph->mesh = mesh;
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){s->rows, s->columns}, "x");
    TensorId targets = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "targets");
    TensorId factor = graph_tensor(graph, ARENA_INPUT, TYPE_WIDE, 1, &one, "scale");
    TensorId loss = graph_tensor(graph, ARENA_METRIC, TYPE_WIDE, 1, &two, "loss");
    TensorId w = graph_cut_parameter(graph, "w", PARAMETER_EMBEDDING, 2, (int64_t[]){s->vocabulary, s->columns}, &cut, 0, 1, false);
    if (s->fp8) op_fp8_linear_cross_entropy(graph, x, w, targets, factor, loss, s->vocabulary, &(Fp8Config){.recipe = FP8_TENSOR});
    else op_linear_cross_entropy(graph, x, w, targets, factor, loss, s->vocabulary);
    if (s->cap > 0) op_cap_losses(graph, s->cap);
    const Node *head = &graph->nodes[graph->node_count - 1];
    TensorId d_x = head->out[LOSS_D_X], d_w = head->out[LOSS_D_W];
    graph->tensors[d_x].keep = true;
    Program program = check_program((Model){.graph = graph}, device);
    Executor *executor = program.executor;

    SCOPED_FREE void *x_values = stored(precision, x_at, 0, s->rows * s->columns);
    SCOPED_FREE void *w_values = stored(precision, w_at, own.first * s->columns, own.count * s->columns);
    memcpy(executor_tensor(executor, x), x_values, (size_t)graph_bytes(graph, x));
    device_upload(device, executor_tensor(executor, w), w_values, graph_bytes(graph, w));
    for (int64_t r = 0; r < s->rows; r++) ((int32_t *)executor_tensor(executor, targets))[r] = target_at(s, r);
    executor_set_scalar(executor, factor, scale);
    executor_zero(executor);
    executor_run(executor);
    if (!executor_finish(executor, &error)) fail_msg("%s", error.message);

    e = (Expected){0};
    for (int64_t r = 0; r < s->rows; r++)
        if (target_at(s, r) >= 0) add_row(&e, s, r);
    double sum = executor_get_metric(executor, loss, 0);
    SCOPED_FREE double *parts = read_tensor(executor, d_x, precision == PRECISION_BF16), *own_d_w = read_tensor(executor, d_w, false);
    assert_true(comm_host_all_reduce(mesh->all, "loss", &sum, 1, COMM_F64, COMM_SUM, &error));
    assert_true(comm_host_all_reduce(mesh->all, "d_x", parts, s->rows * s->columns, COMM_F64, COMM_SUM, &error));
    compare("loss", &sum, &e.loss, 1, tolerance);
    compare("d_x", parts, e.d_x, s->rows * s->columns, tolerance);
    compare("d_w", own_d_w, e.d_w + own.first * s->columns, own.count * s->columns, tolerance);
    program_free(&program);
}

static int be_rank(void) {
    static const MeshAxes axes = AXES_TENSOR;
    Error error = {0};
    Comm *comm = comm_open(NULL, &error);
    Mesh mesh = mesh_alone;
    Device *gpu = ranks_gpu();
    if (!comm) fail_msg("%s", error.message);
    mesh.size[AXIS_TP] = comm_size(comm);
    mesh_place(&mesh, comm_rank(comm));
    if (!mesh_open(&mesh, comm, &axes, 1, &error)) fail_msg("%s", error.message);
    bool multiplies_fp8 = !gpu || device_info(gpu)->gemm_inputs >> GEMM_E4M3 & 1;
    for (int capped = 0; capped < 2; capped++) {
        if (gpu) check_rank(&plain[capped], &mesh, gpu, PRECISION_BF16, 2e-2);
        else check_rank(&plain[capped], &mesh, device_cpu(), PRECISION_FP32, 1e-5);
        /* e4m3 is off by up to 1/16 of an element, e5m2 by twice that. */
        if (multiplies_fp8) check_rank(&in_fp8[capped], &mesh, gpu ? gpu : device_cpu(), gpu ? PRECISION_BF16 : PRECISION_FP32, 0.1);
    }
    mesh_close(&mesh);
    comm_close(comm);
    return 0;
}

static void ranks_that_share_the_vocabulary_make_the_loss_and_its_gradients(void **state) {
    (void)state;
    run_over_tcp(1, "loss"); /* in kernels of their own */
    run_over_tcp(2, "loss");
    run_over_tcp(3, "loss");
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "rank") == 0) return be_rank();
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_that_share_the_vocabulary_make_the_loss_and_its_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
