/* Muon on matrices that real ranks share out along rows and columns, over TCP: every rank compares its slices with what one
 * process makes of the whole matrices. On the CPU, and on the emulated GPU, whose memory TCP reaches. Run with `rank muon`,
 * the program is one of the ranks. */
#include <math.h>

#include "comm/comm.h"
#include "base/memory.h"
#include "backend/backend.h"
#include "optim/optim.h"
#include "support/check.h"
#include "support/own_ranks.h"

enum { STEPS = 4 };

typedef struct Shape {
    int rank;
    int64_t whole[3];
    Cut cut;
    int64_t gate; /* rows of the first of two projections that whole experts stack; 0: they are one */
} Shape;

/* Cut by rows, in blocks and unevenly; by columns; stacks of both; experts, which are whole where they are; and whole. */
static const Shape shapes[] = {
    {2, {48, 32}, {MESH(AXIS_TP), 0, 1, {48}}},
    {2, {32, 48}, {MESH(AXIS_TP), 1, 1, {48}}},
    {2, {48, 32}, {MESH(AXIS_TP), 1, 1, {32}}},
    {2, {64, 20}, {MESH(AXIS_TP), 0, 3, {32, 16, 16}}},
    {2, {13, 40}, {MESH(AXIS_TP), 0, 1, {13}}},
    {2, {40, 11}, {MESH(AXIS_TP), 1, 1, {11}}},
    {2, {32, 48}, {MESH(AXIS_TP), 1, 1, {48}}},
    {3, {3, 24, 16}, {MESH(AXIS_TP), 1, 2, {12, 12}}},
    {3, {3, 16, 12}, {MESH(AXIS_TP), 2, 1, {12}}},
    {3, {4, 24, 16}, {MESH(AXIS_TP), 0, 1, {4}}},
    {3, {4, 24, 16}, {MESH(AXIS_TP), 0, 1, {4}}, .gate = 12},
    {2, {24, 16}, {MESH(AXIS_TP), 1, 1, {16}}, .gate = 16},
    {2, {24, 40}, {0}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const OptimizerConfig config = {
    .name = OPTIMIZER_muon, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1, .momentum = 0.95, .newton_schulz_steps = 5};

typedef struct Matrices {
    Graph *graph;
    Optimizer *optimizer;
    Device *device;
    char *master, *gradients; /* of the host */
    void *device_master, *device_gradients;
    int64_t bytes;
    size_t wide;
} Matrices;

static Matrices make(const Mesh *mesh, Device *device, Precision precision) {
    Matrices m = {.graph = graph_create(precision, true), .device = device, .wide = precision_bytes(precision, TYPE_WIDE)};
    Error error = {0};
    m.graph->mesh = mesh;
    for (int i = 0; i < SHAPES; i++) {
        char name[16];
        snprintf(name, sizeof name, "p%d", i);
        const Shape *shape = &shapes[i];
        TensorId p = graph_cut_parameter(m.graph, name, PARAMETER_MATRIX, shape->rank, shape->whole, &shape->cut, 0, 1, false);
        int64_t up = shape->whole[shape->rank - 2] - shape->gate;
        if (shape->gate) graph_set_projections(m.graph, p, (int64_t[]){shape->gate, up}, 2);
    }
    m.optimizer = optimizer_create(m.graph, &config, NULL, device, &error);
    if (!m.optimizer) fail_msg("%s", error.message);
    m.bytes = m.graph->parameter_bytes;
    m.master = memory_allocate((size_t)m.bytes);
    m.gradients = memory_allocate((size_t)m.bytes);
    m.device_master = device_allocate(device, m.bytes, &error);
    m.device_gradients = device_allocate(device, m.bytes, &error);
    return m;
}

static void drop(Matrices *m) {
    optimizer_free(m->optimizer);
    device_free(m->device, m->device_master, m->bytes);
    device_free(m->device, m->device_gradients, m->bytes);
    graph_free(m->graph);
    free(m->master);
    free(m->gradients);
}

/* Element `i` of a whole parameter at first, or of its gradient in a step. */
static double value_at(int parameter, int64_t step, int64_t i) {
    int64_t x = i + 40 * step + 1000 * parameter;
    return (double)((x * x * 17 + x * 29 + 11) % 1009 - 504) / 256;
}

static double get(const Matrices *m, const void *values, int64_t i) {
    return m->wide == sizeof(double) ? ((const double *)values)[i] : (double)((const float *)values)[i];
}

static void put(const Matrices *m, void *values, int64_t i, double value) {
    if (m->wide == sizeof(double)) ((double *)values)[i] = value;
    else ((float *)values)[i] = (float)value;
}

/* Fills what the rank has with the whole parameters' values of a step. */
static void fill(const Matrices *m, char *arena, int64_t step) {
    for (int p = 0; p < SHAPES; p++) {
        char *values = parameter_in(&m->graph->parameters[p], arena);
        for (ParameterInterval rest = {p, 0, m->graph->parameters[p].count}; rest.count > 0;) {
            int64_t at = rest.first;
            Slice slice = graph_take_slice(m->graph, &rest);
            for (int64_t k = 0; k < slice.count; k++) put(m, values, at + k, value_at(p, step, slice_at(&slice, k)));
        }
    }
}

static void train(Matrices *m) {
    fill(m, m->master, 0);
    device_upload(m->device, m->device_master, m->master, m->bytes);
    for (int64_t step = 1; step <= STEPS; step++) {
        fill(m, m->gradients, step);
        device_upload(m->device, m->device_gradients, m->gradients, m->bytes);
        optimizer_step(m->optimizer, &(Update){m->device_master, m->device_master, m->device_gradients, step, 0.02, 0.5});
    }
    device_download(m->device, m->master, m->device_master, m->bytes);
}

/* A rank's slices of master weights against the whole ones; where slices are exchanged sums have another order. */
static void compare(const Matrices *m, const Matrices *whole, double tolerance) {
    double moved = 0;
    for (int p = 0; p < SHAPES; p++) {
        const char *values = parameter_in(&m->graph->parameters[p], m->master),
                   *expected = parameter_in(&whole->graph->parameters[p], whole->master);
        for (ParameterInterval rest = {p, 0, m->graph->parameters[p].count}; rest.count > 0;) {
            int64_t at = rest.first;
            Slice slice = graph_take_slice(m->graph, &rest);
            for (int64_t k = 0; k < slice.count; k++) {
                double mine = get(m, values, at + k), theirs = get(whole, expected, slice_at(&slice, k));
                moved = fmax(moved, fabs(theirs - value_at(p, 0, slice_at(&slice, k))));
                if (!(fabs(mine - theirs) <= tolerance))
                    fail_msg("rank %d: element %lld of p%d is %.9g instead of %.9g", mesh_rank(m->graph->mesh), (long long)(at + k), p,
                        mine, theirs);
            }
        }
    }
    assert_true(moved > 1e-2);
}

static void train_and_compare(const Mesh *mesh, Device *device, Precision precision, double tolerance) {
    Matrices m = make(mesh, device, precision), again = make(mesh, device, precision), whole = make(&mesh_alone, device, precision);
    train(&m);
    train(&again);
    train(&whole);
    compare(&m, &whole, tolerance);
    assert_memory_equal(m.master, again.master, (size_t)m.graph->parameter_bytes);
    drop(&m);
    drop(&again);
    drop(&whole);
}

static int be_rank(void) {
    static const MeshAxes axes = MESH(AXIS_TP);
    Error error = {0};
    Comm *comm = comm_open(NULL, &error);
    Mesh mesh = mesh_alone;
    if (!comm) fail_msg("%s", error.message);
    mesh.size[AXIS_TP] = comm_size(comm) / 2;
    mesh.size[AXIS_DP] = 2; /* each model is on its own half of the ranks */
    mesh_place(&mesh, comm_rank(comm));
    if (!mesh_open(&mesh, comm, &axes, 1, &error)) fail_msg("%s", error.message);
    Device *gpu = ranks_gpu();
    if (gpu) train_and_compare(&mesh, gpu, PRECISION_BF16, 1e-3);
    else {
        train_and_compare(&mesh, device_cpu(), PRECISION_FP64, 1e-12);
        train_and_compare(&mesh, device_cpu(), PRECISION_FP32, 1e-5);
    }
    if (!comm_ok(comm, &error)) fail_msg("%s", error.message);
    mesh_close(&mesh);
    comm_close(comm);
    return 0;
}

static void slices_move_as_in_one_process(void **state) {
    (void)state;
    run_over_tcp(4, "muon"); /* tp 2 */
    if (ranks_gpu()) return;
    run_over_tcp(6, "muon"); /* tp 3: uneven slices, fewer matrices than ranks in a stack */
    run_over_tcp(8, "muon");
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "rank") == 0) return be_rank();
    const struct CMUnitTest tests[] = {cmocka_unit_test(slices_move_as_in_one_process)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
