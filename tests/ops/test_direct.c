/* Collectives that are kernels of the device's stream (Op.direct), between real ranks with a GPU each: this program starts
 * itself as the ranks. Sums and gathered words are those of a loop over the ranks' inputs in their order, to the bit, run
 * after run, at once, recorded and replayed; norms that exchange the sum before them give the bits of a sum and a norm; and a rank that is lost ends the others' kernels. On the emulated cards; on
 * real ones by hand: SMELT_TEST_DEVICE=cuda test_direct gpus 2 */
#include <unistd.h>

#include "support/own_ranks.h"

#include "backend/backend.h"
#include "base/bf16.h"
#include "base/rng.h"
#include "ops/collective/collective.h"
#include "ops/norm/norm.h"
#include "support/check.h"

/* Sizes: below a block of the kernels, of several blocks, and whose shares differ. ROUNDS use each slot some times. */
enum { ROUNDS = 7, ROWS = 3, COLUMNS = 520, FLOATS = 701, WORDS = 37, VOCABULARY = 1001 };

typedef struct Exchanges {
    Graph *graph;
    Program program;
    TensorId halves, floats, share, words;           /* inputs */
    TensorId half_sum, float_sum, columns, gathered; /* results */
} Exchanges;

static TensorId input(Graph *graph, TypeClass type, int64_t rows, int64_t columns, const char *name) {
    return graph_tensor(graph, ARENA_INPUT, type, 2, (int64_t[]){rows, columns}, name);
}

static Exchanges exchanges_open(const Mesh *mesh, Device *device) {
    Exchanges e = {.graph = graph_create(PRECISION_BF16, false)};
    e.graph->mesh = mesh;
    e.halves = input(e.graph, TYPE_COMPUTE, ROWS, COLUMNS, "halves");
    e.floats = input(e.graph, TYPE_WIDE, 1, FLOATS, "floats");
    e.share =
        input(e.graph, TYPE_WIDE, 1, cut_share(VOCABULARY, mesh_index(mesh, AXES_TENSOR), mesh_size(mesh, AXES_TENSOR)).count, "share");
    e.words = input(e.graph, TYPE_WIDE, 2, WORDS, "words");
    e.half_sum = op_all_reduce(e.graph, e.halves, AXES_TENSOR);
    e.float_sum = op_all_reduce(e.graph, e.floats, AXES_TENSOR);
    e.columns = op_gather_columns(e.graph, e.share, VOCABULARY, AXES_TENSOR);
    e.gathered = op_all_gather(e.graph, e.words, AXES_TENSOR);
    for (int i = 1; i < e.graph->tensor_count; i++) e.graph->tensors[i].keep = e.graph->tensors[i].arena == ARENA_ACTIVATION;
    for (int i = 0; i < e.graph->node_count; i++) assert_int_equal(graph_communicates(e.graph, i), !mesh->direct);
    e.program = check_program((Model){.graph = e.graph}, device);
    return e;
}

static void exchanges_close(Exchanges *e) { program_free(&e->program); }

/* Element i of a rank's input in a round. */
static float value_of(TensorId input, int rank, int round, int64_t i) {
    return (float)rng_normal((uint64_t)input, (uint64_t)(100 * rank + round), (uint64_t)i);
}
static float half_of(TensorId input, int rank, int round, int64_t i) {
    return bf16_to_float(bf16_from_float(value_of(input, rank, round, i)));
}

static void fill_floats(const Exchanges *e, TensorId input, int rank, int round, int64_t first) {
    float *data = executor_tensor(e->program.executor, input);
    for (int64_t i = 0; i < graph_elements(e->graph, input); i++) data[i] = value_of(input, rank, round, first + i);
}

static void exchanges_run(const Exchanges *e, const Mesh *mesh, int round) {
    int rank = mesh_index(mesh, AXES_TENSOR);
    uint16_t *halves = executor_tensor(e->program.executor, e->halves);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) halves[i] = bf16_from_float(value_of(e->halves, rank, round, i));
    fill_floats(e, e->floats, rank, round, 0);
    fill_floats(e, e->share, 0, round, cut_share(VOCABULARY, rank, mesh_size(mesh, AXES_TENSOR)).first);
    fill_floats(e, e->words, 0, round, 2 * WORDS * rank);
    executor_run(e->program.executor);
}

/* -- What is right ------------------------------------------------------------------------------------------------- */

static void check_halves(const Exchanges *e, int ranks, int round) {
    uint16_t sum[ROWS * COLUMNS];
    executor_read(e->program.executor, e->half_sum, sum);
    for (int64_t i = 0; i < ROWS * COLUMNS; i++) {
        float expected = 0;
        for (int r = 0; r < ranks; r++) expected += half_of(e->halves, r, round, i);
        assert_int_equal(sum[i], bf16_from_float(expected));
    }
}

static void check_floats(const Exchanges *e, int ranks, int round) {
    float sum[FLOATS];
    executor_read(e->program.executor, e->float_sum, sum);
    for (int64_t i = 0; i < FLOATS; i++) {
        float expected = 0;
        for (int r = 0; r < ranks; r++) expected += value_of(e->floats, r, round, i);
        assert_true(sum[i] == expected);
    }
}

static void check_gathered(const Exchanges *e, TensorId input, TensorId result, int round) {
    int64_t count = graph_elements(e->graph, result);
    float *all = memory_allocate((size_t)count * sizeof *all);
    executor_read(e->program.executor, result, all);
    for (int64_t i = 0; i < count; i++) assert_true(all[i] == value_of(input, 0, round, i));
    free(all);
}

/* -- Sums that the norm behind them exchanges ---------------------------------------------------------------------- */

enum { WIDTHS = 6, KINDS = 3 };

/* Two norms of each width and kind, by one kernel with the sum before it and by kernels of their own. */
typedef struct SumNorms {
    Graph *graph;
    Program program;
    ResidualNorm apart[WIDTHS * KINDS], together[WIDTHS * KINDS];
} SumNorms;

static ResidualNorm sum_norm(Graph *graph, TensorId term, TensorId stream, const AffineResidual *affine, const Norm *norm, bool keeps) {
    TensorId sum = op_all_reduce(graph, term, AXES_TENSOR);
    graph->tensors[sum].keep = keeps;
    ResidualNorm residual = op_residual_norm(graph, sum, stream, affine, norm);
    assert_int_equal(graph->nodes[graph->node_count - 2].op, OP_all_reduce);
    graph->tensors[residual.stream].keep = graph->tensors[residual.normed].keep = true;
    return residual;
}

static SumNorms sum_norms_open(const Mesh *mesh, Device *device) {
    static const int64_t widths[WIDTHS] = {40, 1000, 1028, 2048, 4096, 8192};
    SumNorms s = {.graph = graph_create(PRECISION_BF16, false)};
    s.graph->mesh = mesh;
    for (int i = 0; i < WIDTHS * KINDS; i++) {
        int64_t width = widths[i / KINDS];
        TensorId term = input(s.graph, TYPE_COMPUTE, 1, width, "term"), stream = input(s.graph, TYPE_WIDE, 1, width, "stream");
        TensorId vectors[2 + AFFINE_VECTORS];
        for (int j = 0; j < 2 + AFFINE_VECTORS; j++) vectors[j] = graph_tensor(s.graph, ARENA_INPUT, TYPE_WIDE, 1, &width, "vector");
        Norm norm = {.kind = i % KINDS == 1 ? NORM_LAYER : NORM_RMS, .gain = vectors[0], .epsilon = 1e-5};
        if (norm.kind == NORM_LAYER) norm.bias = vectors[1];
        AffineResidual affine;
        memcpy(affine.vectors, vectors + 2, sizeof affine.vectors);
        s.apart[i] = sum_norm(s.graph, term, stream, i % KINDS == 2 ? &affine : NULL, &norm, true);
        s.together[i] = sum_norm(s.graph, term, stream, i % KINDS == 2 ? &affine : NULL, &norm, false);
    }
    s.program = check_program((Model){.graph = s.graph}, device);
    for (int i = 0; i < s.graph->node_count; i++)
        if (s.graph->nodes[i].op == OP_residual_norm) assert_int_equal(s.graph->nodes[i].absorbs, i % 4 == 3);
    return s;
}

/* Terms are the rank's, all else is the same on all ranks. */
static void sum_norms_fill(const SumNorms *s, int rank, int round) {
    for (TensorId t = 1; t < s->graph->tensor_count; t++) {
        const Tensor *tensor = graph_get(s->graph, t);
        if (tensor->arena != ARENA_INPUT) continue;
        bool halves = tensor->type == TYPE_COMPUTE;
        for (int64_t i = 0; i < graph_elements(s->graph, t); i++) {
            float value = value_of(t, halves ? rank : 0, round, i);
            if (halves) ((uint16_t *)executor_tensor(s->program.executor, t))[i] = bf16_from_float(value);
            else ((float *)executor_tensor(s->program.executor, t))[i] = value;
        }
    }
}

static void expect_same(const SumNorms *s, TensorId a, TensorId b) {
    int64_t bytes = graph_bytes(s->graph, a);
    char *x = memory_allocate(2 * (size_t)bytes);
    executor_read(s->program.executor, a, x);
    executor_read(s->program.executor, b, x + bytes);
    assert_memory_equal(x, x + bytes, bytes);
    free(x);
}

/* -- On every rank ------------------------------------------------------------------------------------------------- */

typedef struct Rank {
    Comm *comm;
    Device *device;
    Mesh mesh;
} Rank;

static Rank rank_open(void) {
    Rank rank = {.mesh = mesh_alone};
    Error error = {0};
    rank.comm = comm_open(NULL, &error);
    if (!rank.comm) fail_msg("%s", error.message);
    rank.device =
        device_open_local(strcmp(getenv("SMELT_TEST_DEVICE"), "hip") ? DEVICE_CUDA : DEVICE_HIP, comm_local_rank(rank.comm), &error);
    if (!rank.device || !comm_use_device(rank.comm, rank.device, &error)) fail_msg("%s", error.message);
    rank.mesh.size[AXIS_TP] = comm_size(rank.comm);
    mesh_place(&rank.mesh, comm_rank(rank.comm));
    if (!mesh_open(&rank.mesh, rank.comm, (MeshAxes[]){AXES_TENSOR}, 1, &error) ||
        !comm_open_windows(rank.comm, collective_window_bytes(comm_size(rank.comm)), &error))
        fail_msg("%s", error.message);
    assert_non_null(comm_windows(rank.comm));
    rank.mesh.direct = true;
    return rank;
}

static void rank_close(Rank *rank) {
    mesh_close(&rank->mesh);
    comm_close(rank->comm);
    device_close(rank->device);
}

static void rank_exchanges(void **state) {
    (void)state;
    Rank rank = rank_open();
    Error error = {0};
    Exchanges e = exchanges_open(&rank.mesh, rank.device);
    for (int round = 0; round < ROUNDS; round++) {
        exchanges_run(&e, &rank.mesh, round);
        check_halves(&e, comm_size(rank.comm), round);
        check_floats(&e, comm_size(rank.comm), round);
        check_gathered(&e, e.share, e.columns, round);
        check_gathered(&e, e.words, e.gathered, round);
    }
    if (!comm_ok(rank.comm, &error) || !device_ok(rank.device, &error)) fail_msg("%s", error.message);
    exchanges_close(&e);
    rank_close(&rank);
}

static void rank_norms_sums(void **state) {
    (void)state;
    Rank rank = rank_open();
    Error error = {0};
    SumNorms s = sum_norms_open(&rank.mesh, rank.device);
    for (int round = 0; round < ROUNDS; round++) {
        sum_norms_fill(&s, comm_rank(rank.comm), round);
        executor_run(s.program.executor);
        for (int i = 0; i < WIDTHS * KINDS; i++) {
            expect_same(&s, s.apart[i].stream, s.together[i].stream);
            expect_same(&s, s.apart[i].normed, s.together[i].normed);
        }
    }
    if (!comm_ok(rank.comm, &error) || !device_ok(rank.device, &error)) fail_msg("%s", error.message);
    program_free(&s.program);
    rank_close(&rank);
}

/* Rank 1 is lost after a round; the others' kernels of the next one wait for it until its connection is seen to end. */
static void rank_loses_another(void **state) {
    (void)state;
    Rank rank = rank_open();
    Error error = {0};
    Exchanges e = exchanges_open(&rank.mesh, rank.device);
    exchanges_run(&e, &rank.mesh, 0);
    device_synchronize(rank.device);
    if (comm_rank(rank.comm) == 1) _exit(0);
    exchanges_run(&e, &rank.mesh, 1);
    device_synchronize(rank.device);
    assert_false(comm_ok(rank.comm, &error));
    assert_int_equal(error.code, ERROR_COMMUNICATION);
    exchanges_close(&e);
    rank_close(&rank);
}

/* -- Tests --------------------------------------------------------------------------------------------------------- */

static void skip_without_cards(void) {
    if (getenv("ROCEMU_LIBRARY")) return;
    print_message("skipped: ROCEMU_LIBRARY is not set (make test-amd sets it)\n");
    skip();
}

static void ranks_exchange_directly(void **state) {
    (void)state;
    skip_without_cards();
    run_over_tcp(2, "exchange");
    run_over_tcp(3, "exchange");
}

static void a_norm_exchanges_the_sum_before_it(void **state) {
    (void)state;
    skip_without_cards();
    run_over_tcp(2, "norm");
    run_over_tcp(3, "norm");
}

static void a_lost_rank_ends_the_kernels_that_wait(void **state) {
    (void)state;
    skip_without_cards();
    run_over_tcp(3, "lose");
}

static int run_on_gpus(int size) {
    run_over_tcp(size, "exchange");
    run_over_tcp(size, "norm");
    run_over_tcp(size, "lose");
    printf("%d GPUs exchange words\n", size);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest exchange[] = {cmocka_unit_test(rank_exchanges)}, norm[] = {cmocka_unit_test(rank_norms_sums)},
                            lose[] = {cmocka_unit_test(rank_loses_another)};
    if (argc == 3 && !strcmp(argv[1], "gpus")) return run_on_gpus(atoi(argv[2]));
    if (argc > 2 && !strcmp(argv[2], "norm")) return cmocka_run_group_tests(norm, NULL, NULL);
    if (argc > 2) return !strcmp(argv[2], "lose") ? cmocka_run_group_tests(lose, NULL, NULL) : cmocka_run_group_tests(exchange, NULL, NULL);
    process_offer_cards("3");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_exchange_directly),
        cmocka_unit_test(a_norm_exchanges_the_sum_before_it),
        cmocka_unit_test(a_lost_rank_ends_the_kernels_that_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
