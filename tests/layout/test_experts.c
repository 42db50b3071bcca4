/* Experts that ranks share out: this program starts itself as the ranks, each with rows of its own and a part of the
 * experts, and each rank compares its results with those of one rank that has all rows and all experts. */
#include <math.h>

#include "support/own_ranks.h"

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/rng.h"
#include "ops/grouped_linear/grouped_linear.h"
#include "ops/moe/moe.h"
#include "support/check.h"

/* -- One block of experts ------------------------------------------------------------------------------------------ */

typedef enum Choices { CHOOSE_SPREAD, CHOOSE_ONE, CHOOSE_NONE, CHOOSE_BY_RANK } Choices;

typedef struct Case {
    int64_t rows, experts, k; /* rows of each rank */
    Choices choices;
    RecomputePolicy recompute;
} Case;

enum { COLUMNS = 24 };

typedef struct Block {
    Graph *graph;
    Program program;
    TensorId index, gate, x, d_y, w, y;
} Block;

/* Row `r` of all rows chooses distinct experts, or in place of some the class that skips them. */
static int32_t choice_of(const Case *c, int64_t r, int64_t j) {
    int64_t spread = (int64_t)((rng_bits(3, 0, (uint64_t)r).word[0] + (uint64_t)j) % (uint64_t)(c->experts + 1));
    switch (c->choices) {
    case CHOOSE_SPREAD: return (int32_t)spread;
    case CHOOSE_ONE: return (int32_t)(j == 0 ? c->experts - 1 : c->experts);
    case CHOOSE_NONE: return (int32_t)c->experts;
    case CHOOSE_BY_RANK: return (int32_t)((r / c->rows + j) % c->experts); /* all rows of a rank the same */
    }
    return 0;
}

static double real_of(uint64_t stream, int64_t i) { return rng_normal(11, stream, (uint64_t)i); }

static void put_real(const Block *b, TensorId tensor, void *to, int64_t at, double value) {
    size_t bytes = precision_bytes(b->graph->precision, graph_get(b->graph, tensor)->type);
    if (bytes == 8) ((double *)to)[at] = value;
    else if (bytes == 4) ((float *)to)[at] = (float)value;
    else ((uint16_t *)to)[at] = bf16_from_float((float)value);
}

static double get_real(const Block *b, TensorId tensor, const void *from, int64_t at) {
    size_t bytes = precision_bytes(b->graph->precision, graph_get(b->graph, tensor)->type);
    return bytes == 8 ? ((const double *)from)[at] : bytes == 4 ? ((const float *)from)[at] : bf16_to_float(((const uint16_t *)from)[at]);
}

/* Elements from `first` on of the values that all ranks agree on. */
static void fill_input(const Block *b, TensorId tensor, uint64_t stream, int64_t first) {
    for (int64_t i = 0; i < graph_elements(b->graph, tensor); i++)
        put_real(b, tensor, executor_tensor(b->program.executor, tensor), i, real_of(stream, first + i));
}

static void fill_weight(const Block *b, int64_t first) {
    int64_t count = graph_elements(b->graph, b->w), bytes = graph_bytes(b->graph, b->w);
    char *values = memory_allocate((size_t)bytes);
    for (int64_t i = 0; i < count; i++) put_real(b, b->w, values, i, real_of(9, first + i));
    device_upload(executor_backend(b->program.executor)->device, executor_tensor(b->program.executor, b->w), values, bytes);
    free(values);
}

/* The rows of `mesh`'s rank on AXES_EXPERTS, and its experts; all of both for a mesh of one rank. */
static Block block_build(const Case *c, const Mesh *mesh, int64_t rows, Precision precision) {
    Block b = {.graph = graph_create(precision, true)};
    int64_t chosen[] = {rows, c->k}, shape[] = {rows, COLUMNS}, weight_shape[] = {c->experts, COLUMNS, COLUMNS};
    Cut cut = {.axes = AXES_EXPERTS, .blocks = 1, .rows = {c->experts}};
    b.graph->mesh = mesh;
    b.index = graph_tensor(b.graph, ARENA_INPUT, TYPE_INT32, 2, chosen, "index");
    b.gate = graph_tensor(b.graph, ARENA_INPUT, TYPE_WIDE, 2, chosen, "gate");
    b.x = graph_tensor(b.graph, ARENA_INPUT, TYPE_COMPUTE, 2, shape, "x");
    b.d_y = graph_tensor(b.graph, ARENA_INPUT, TYPE_COMPUTE, 2, shape, "d_y");
    b.w = graph_cut_parameter(b.graph, "w", PARAMETER_MATRIX, 3, weight_shape, &cut, 0, 1, false);
    graph_scope(b.graph, 0, "layer.");
    Dispatch dispatch = op_moe_sort(b.graph, b.index, c->experts);
    TensorId slots = op_moe_permute(b.graph, b.x, &dispatch);
    ExpertExchange exchange = op_moe_exchange(b.graph, &dispatch);
    TensorId done = op_grouped_linear(b.graph, op_moe_dispatch(b.graph, slots, &exchange), b.w, &exchange.local);
    b.y = op_moe_combine(b.graph, op_moe_return(b.graph, done, &exchange, &dispatch), b.gate, &dispatch);
    graph_differentiate(b.graph, c->recompute, &(Seed){b.y, b.d_y}, 1);
    for (int i = 1; i < b.graph->tensor_count; i++) b.graph->tensors[i].keep = b.graph->tensors[i].arena == ARENA_ACTIVATION;
    return b;
}

static Block block_start(const Case *c, const Mesh *mesh, int64_t rows, Device *device) {
    Precision precision = device_info(device)->host_memory ? PRECISION_FP64 : PRECISION_BF16;
    Block b = block_build(c, mesh, rows, precision);
    int64_t index = mesh_index(mesh, AXES_EXPERTS), own = c->experts / mesh_size(mesh, AXES_EXPERTS);
    b.program = check_program((Model){.graph = b.graph}, device);
    for (int64_t i = 0; i < rows * c->k; i++)
        ((int32_t *)executor_tensor(b.program.executor, b.index))[i] = choice_of(c, index * rows + i / c->k, i % c->k);
    fill_input(&b, b.gate, 1, index * rows * c->k);
    fill_input(&b, b.x, 2, index * rows * COLUMNS);
    fill_input(&b, b.d_y, 3, index * rows * COLUMNS);
    fill_weight(&b, index * own * COLUMNS * COLUMNS);
    return b;
}

static void block_run(const Block *b) {
    Device *device = executor_backend(b->program.executor)->device;
    Error error = {0};
    device_fill(device, executor_arena(b->program.executor, ARENA_ACTIVATION), 0xff, b->program.plan.bytes[ARENA_ACTIVATION]); /* NaN */
    executor_zero(b->program.executor);
    executor_run(b->program.executor);
    if (!executor_finish(b->program.executor, &error)) fail_msg("%s", error.message);
}

static void block_free(Block *b) { program_free(&b->program); }

/* What it computed; to be freed. */
static void *block_read(const Block *b, TensorId tensor) {
    void *values = memory_allocate((size_t)graph_bytes(b->graph, tensor));
    executor_read(b->program.executor, tensor, values);
    return values;
}

/* -- On every rank ------------------------------------------------------------------------------------------------- */

/* Relative. On a CPU 0: an expert has the same rows in the same order on either. On a GPU tiles of a GEMM begin at other
 * rows. */
static double exactness;

/* `part` is elements `first` ... of `whole`. */
static void compare(const Block *part, TensorId a, const Block *whole, TensorId b, int64_t first, const char *what) {
    void *mine = block_read(part, a), *all = block_read(whole, b);
    int64_t count = graph_elements(part->graph, a);
    double squares = 0, difference = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = get_real(part, a, mine, i), expected = get_real(whole, b, all, first + i);
        squares += expected * expected;
        difference += (value - expected) * (value - expected);
    }
    if (!(sqrt(difference) <= exactness * (sqrt(squares) + 1e-2)))
        fail_msg("%s differs by %.3g of %.3g", what, sqrt(difference), sqrt(squares));
    free(mine);
    free(all);
}

static void check_case(const Case *c, const Mesh *mesh, Device *device) {
    int64_t ranks = mesh_size(mesh, AXES_EXPERTS), index = mesh_index(mesh, AXES_EXPERTS), own = c->experts / ranks;
    Block part = block_start(c, mesh, c->rows, device), whole = block_start(c, &mesh_alone, c->rows * ranks, device);
    const Graph *graph = part.graph, *all = whole.graph;
    block_run(&whole);
    block_run(&part);
    compare(&part, part.y, &whole, whole.y, index * c->rows * COLUMNS, "y");
    compare(&part, graph->tensors[part.x].gradient, &whole, all->tensors[whole.x].gradient, index * c->rows * COLUMNS, "d_x");
    compare(&part, graph->tensors[part.gate].gradient, &whole, all->tensors[whole.gate].gradient, index * c->rows * c->k, "d_gate");
    compare(&part, graph->tensors[part.w].gradient, &whole, all->tensors[whole.w].gradient, index * own * COLUMNS * COLUMNS, "d_w");
    TensorId results[] = {part.y, graph->tensors[part.x].gradient, graph->tensors[part.gate].gradient, graph->tensors[part.w].gradient};
    void *first[4];
    for (int i = 0; i < 4; i++) first[i] = block_read(&part, results[i]);
    for (int run = 0; run < 3; run++) { /* on a GPU one is recorded, and one replays */
        block_run(&part);
        for (int i = 0; i < 4; i++) {
            void *again = block_read(&part, results[i]);
            assert_memory_equal(again, first[i], (size_t)graph_bytes(graph, results[i]));
            free(again);
        }
    }
    for (int i = 0; i < 4; i++) free(first[i]);
    block_free(&part);
    block_free(&whole);
}

static void rank_compares(void **state) {
    static const Case cases[] = {
        {.rows = 50, .experts = 4, .k = 1},
        {.rows = 50, .experts = 8, .k = 2},
        {.rows = 50, .experts = 8, .k = 2, .recompute = RECOMPUTE_BLOCK},
        {.rows = 7, .experts = 12, .k = 4},
        {.rows = 40, .experts = 8, .k = 1, .choices = CHOOSE_ONE},
        {.rows = 40, .experts = 4, .k = 2, .choices = CHOOSE_ONE},
        {.rows = 40, .experts = 4, .k = 2, .choices = CHOOSE_BY_RANK},
        {.rows = 10, .experts = 4, .k = 1, .choices = CHOOSE_NONE},
        {.rows = 1, .experts = 4, .k = 1},
    };
    (void)state;
    Error error = {0};
    const char *name = getenv("SMELT_TEST_DEVICE");
    Comm *comm = comm_open(NULL, &error);
    if (!comm) fail_msg("%s", error.message);
    DeviceKind kind = !name ? DEVICE_CPU : !strcmp(name, "hip") ? DEVICE_HIP : DEVICE_CUDA;
    Device *device = device_open(kind, comm_local_rank(comm), &error);
    if (!device || !comm_use_device(comm, device, &error)) fail_msg("%s", error.message);
    exactness = device_info(device)->host_memory ? 0 : 0.01;
    /* ep alone, and with tp beside it: both share out the experts */
    for (int tp = 1; tp <= 2; tp++) {
        Mesh mesh = mesh_alone;
        mesh.size[AXIS_EP] = comm_size(comm) / tp;
        mesh.size[AXIS_TP] = tp;
        mesh_place(&mesh, comm_rank(comm));
        if (!mesh_open(&mesh, comm, (MeshAxes[]){AXES_EXPERTS}, 1, &error)) fail_msg("%s", error.message);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i], &mesh, device);
        mesh_close(&mesh);
    }
    if (!comm_ok(comm, &error)) fail_msg("%s", error.message);
    comm_close(comm);
    device_close(device);
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static void experts_on_two_ranks_compute_what_they_do_on_one(void **state) {
    (void)state;
    run_over_tcp(2, "compare");
}

static void experts_on_four_ranks_compute_what_they_do_on_one(void **state) {
    (void)state;
    run_over_tcp(4, "compare");
}

/* A plan needs no ranks. */
static void gradients_of_weights_are_made_while_rows_travel_back(void **state) {
    (void)state;
    static const Case c = {.rows = 8, .experts = 4, .k = 1};
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_EP] = 2;
    Block b = block_build(&c, &mesh, c.rows, PRECISION_FP64);
    int sends = 0;
    for (int i = 0; i + 1 < b.graph->node_count; i++) {
        const Node *node = &b.graph->nodes[i];
        if (!node->backward || node->op != OP_moe_send_back) continue;
        assert_int_equal(b.graph->nodes[i + 1].op, OP_grouped_linear_grad_weight);
        sends++;
    }
    assert_int_equal(sends, 1);
    graph_free(b.graph);
}

/* By hand, where there are GPUs: SMELT_TEST_DEVICE=cuda test_experts gpus 2 */
static int run_on_gpus(int size) {
    run_over_tcp(size, "compare");
    printf("experts on %d GPUs compute what they do on one\n", size);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest rank[] = {cmocka_unit_test(rank_compares)};
    if (argc == 3 && !strcmp(argv[1], "gpus")) return run_on_gpus(atoi(argv[2]));
    if (argc > 1) return cmocka_run_group_tests(rank, NULL, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_on_two_ranks_compute_what_they_do_on_one),
        cmocka_unit_test(experts_on_four_ranks_compute_what_they_do_on_one),
        cmocka_unit_test(gradients_of_weights_are_made_while_rows_travel_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
