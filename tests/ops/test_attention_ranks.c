/* Attention of ranks that share sequences out, gathered and in a ring, with real ranks: each compares what it gets, and the
 * gradient of its rows, with attention over whole sequences by itself. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "base/rng.h"
#include "comm/mesh.h"
#include "ops/attention/attention.h"
#include "ops/linear/linear.h"
#include "support/check.h"
#include "support/own_ranks.h"

typedef struct Case {
    int64_t sequences;
    AttentionSpec spec;
    int64_t document; /* tokens of a document; 0: one document per sequence */
} Case;

/* Lengths are multiples of the chunks of 2 and 3 ranks; documents end at, before and after the ends of chunks. */
static const Case cases[] = {
    {1, {{1, 1, 4, 4}, 12}, 0},
    {3, {{4, 2, 6, 6}, 84}, 0},
    {2, {{2, 1, 8, 8}, 240}, 60},
    {2, {{2, 1, 8, 8}, 240}, 41},
    {1, {{2, 2, 16, 16}, 240, {30}}, 79},
    {1, {{2, 1, 8, 8}, 492, {300}}, 0},
    {2, {{6, 2, 20, 20}, 132, {.alibi = 8}}, 33},
    {2, {{6, 2, 24, 16}, 132}, 33},
    {1, {{3, 3, 8, 8}, 156, {50, .scale = 0.7, .alibi = 2}}, 0},
    {2, {{6, 2, 8, 8}, 132, {.cap = 4, .sinks = 1}}, 33}, /* sinks says whether there are any */
    {1, {{4, 2, 24, 16}, 240, {30, .cap = 20, .sinks = 1}}, 0},
};

/* One run, in fp64, of attention over the rows of the mesh's rank; all arrays are [rows, columns], and the caller's. */
typedef struct Rows { double *qkv, *d_out, *out, *d_qkv, *d_sinks; } Rows;

static int64_t columns_of(const Case *c) { return heads_columns(&c->spec.heads); }
static int64_t out_columns(const Case *c) { return heads_out_columns(&c->spec.heads); }

static Rows rows_create(const Case *c, int64_t rows) {
    return (Rows){.qkv = memory_allocate(rows * columns_of(c) * sizeof(double)),
        .d_out = memory_allocate(rows * out_columns(c) * sizeof(double)),
        .out = memory_allocate(rows * out_columns(c) * sizeof(double)),
        .d_qkv = memory_allocate(rows * columns_of(c) * sizeof(double)),
        .d_sinks = memory_allocate(c->spec.heads.heads * sizeof(double))};
}
static void rows_free(Rows *r) { free(r->qkv), free(r->d_out), free(r->out), free(r->d_qkv), free(r->d_sinks); }

static void run(const Case *c, const Mesh *mesh, RecomputePolicy policy, const Rows *r, const int32_t *values, int64_t rows) {
    Graph *graph = graph_create(PRECISION_FP64, true);
    graph->mesh = mesh;
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){rows, columns_of(c)}, "qkv");
    TensorId positions = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "positions");
    TensorId seed = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){rows, out_columns(c)}, "seed");
    AttentionSpec spec = c->spec;
    TensorId sinks = spec.scores.sinks ? graph_parameter(graph, "sinks", PARAMETER_BIAS, 1, &spec.heads.heads, 0, 1, false) : TENSOR_NONE;
    spec.scores.sinks = sinks;
    TensorId y = op_attention(graph, x, positions, &spec);
    graph->tensors[y].keep = true;
    graph_differentiate(graph, policy, &(Seed){y, seed}, 1);
    TensorId gradient = graph_get(graph, x)->gradient;
    graph->tensors[gradient].keep = true;
    Program program = check_program((Model){.graph = graph}, device_cpu());
    Executor *executor = program.executor;
    memcpy(executor_tensor(executor, x), r->qkv, rows * columns_of(c) * sizeof(double));
    memcpy(executor_tensor(executor, seed), r->d_out, rows * out_columns(c) * sizeof(double));
    memcpy(executor_tensor(executor, positions), values, rows * sizeof *values);
    memset(executor_arena(executor, ARENA_ACTIVATION), 0xff, program.plan.bytes[ARENA_ACTIVATION]);
    double *d_sinks = sinks ? executor_tensor(executor, graph_get(graph, sinks)->gradient) : NULL;
    for (int64_t i = 0; sinks && i < spec.heads.heads; i++) {
        ((double *)executor_tensor(executor, sinks))[i] = 2 * rng_normal(11, 3, i);
        d_sinks[i] = 0;
    }
    executor_run(executor);
    if (sinks) memcpy(r->d_sinks, d_sinks, spec.heads.heads * sizeof *d_sinks);
    memcpy(r->out, executor_tensor(executor, y), rows * out_columns(c) * sizeof(double));
    memcpy(r->d_qkv, executor_tensor(executor, gradient), rows * columns_of(c) * sizeof(double));
    program_free(&program);
}

/* Largest difference of this rank's rows from theirs in the whole. */
static double difference(const double *own, const double *whole, const TokenRows *tokens, int64_t rows, int64_t length, int64_t columns) {
    double largest = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = i / tokens->rows * length + token_of_row(tokens, (int32_t)(i % tokens->rows));
        for (int64_t j = 0; j < columns; j++) {
            double off = fabs(own[i * columns + j] - whole[row * columns + j]);
            if (!(off <= largest)) largest = off;
        }
    }
    return largest;
}

static bool compare(const Case *c, const Mesh *mesh, RecomputePolicy policy) {
    int64_t ranks = mesh->size[AXIS_CP], length = c->spec.length, all = c->sequences * length, rows = all / ranks;
    TokenRows tokens = token_rows(length, ranks, mesh->at[AXIS_CP]);
    Rows whole = rows_create(c, all), own = rows_create(c, rows);
    int32_t *positions = memory_allocate(all * sizeof *positions), *own_positions = memory_allocate(rows * sizeof *positions);
    for (int64_t i = 0; i < all * columns_of(c); i++) whole.qkv[i] = 2 * rng_normal(11, 1, i);
    for (int64_t i = 0; i < all * out_columns(c); i++) whole.d_out[i] = rng_normal(11, 2, i);
    for (int64_t i = 0; i < all; i++) positions[i] = (int32_t)(c->document ? i % length % c->document : i % length);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = i / tokens.rows * length + token_of_row(&tokens, (int32_t)(i % tokens.rows));
        memcpy(own.qkv + i * columns_of(c), whole.qkv + row * columns_of(c), columns_of(c) * sizeof(double));
        memcpy(own.d_out + i * out_columns(c), whole.d_out + row * out_columns(c), out_columns(c) * sizeof(double));
        own_positions[i] = positions[row];
    }
    run(c, &mesh_alone, RECOMPUTE_NONE, &whole, positions, all);
    run(c, mesh, policy, &own, own_positions, rows);
    double out = difference(own.out, whole.out, &tokens, rows, length, out_columns(c));
    double d_qkv = difference(own.d_qkv, whole.d_qkv, &tokens, rows, length, columns_of(c));
    /* This rank's part of the gradient of sinks is what its rows of d_out alone make. */
    memset(whole.d_out, 0, all * out_columns(c) * sizeof(double));
    for (int64_t i = 0; i < rows; i++)
        memcpy(whole.d_out + (i / tokens.rows * length + token_of_row(&tokens, (int32_t)(i % tokens.rows))) * out_columns(c),
            own.d_out + i * out_columns(c), out_columns(c) * sizeof(double));
    run(c, &mesh_alone, RECOMPUTE_NONE, &whole, positions, all);
    double d_sinks = 0;
    for (int64_t i = 0; i < c->spec.heads.heads; i++) d_sinks = fmax(d_sinks, fabs(own.d_sinks[i] - whole.d_sinks[i]));
    bool same = out < 1e-13 && d_qkv < 1e-12 && d_sinks < 1e-12; /* sums of a few hundred terms of order one, in double */
    if (!same)
        fprintf(stderr, "case %d of rank %d: out is off by %g, d_qkv by %g, d_sinks by %g\n", (int)(c - cases), mesh->at[AXIS_CP], out,
            d_qkv, d_sinks);
    rows_free(&whole), rows_free(&own), free(positions), free(own_positions);
    return same;
}

static int run_rank(bool ring) {
    Error error = {0};
    Comm *comm = comm_open(NULL, &error);
    Mesh mesh = mesh_alone;
    bool good = comm != NULL;
    if (good) {
        mesh.ring = ring;
        mesh.size[AXIS_CP] = comm_size(comm);
        mesh_place(&mesh, comm_rank(comm));
        MeshAxes axes = MESH(AXIS_CP);
        good = mesh_open(&mesh, comm, &axes, 1, &error);
    }
    for (size_t i = 0; good && i < sizeof cases / sizeof *cases; i++)
        good = compare(&cases[i], &mesh, i % 2 ? RECOMPUTE_ATTENTION : RECOMPUTE_NONE) && comm_ok(comm, &error);
    if (!good) fprintf(stderr, "%s\n", error.message);
    mesh_close(&mesh);
    comm_close(comm);
    return good ? 0 : 1;
}

static void ranks_gather_keys(void **state) {
    (void)state;
    run_over_tcp(2, "gather");
    run_over_tcp(3, "gather");
}

/* GEMMs between the node and the first one that needs its result. */
static int gemms_beside(const Graph *graph, int node) {
    int gemms = 0;
    for (int i = node + 1; i < graph_await(graph, node); i++) gemms += strstr(op_table[graph->nodes[i].op]->name, "linear") != NULL;
    return gemms;
}

/* Of the two GEMMs of the gradient of the linear layer that follows attention, at sizes where either is longer than a collective. */
static void a_gemm_runs_beside_each_collective_of_the_gradient(void **state) {
    (void)state;
    Case large = cases[1], *c = &large;
    large.sequences = 1;
    large.spec.length = 16384;
    large.spec.heads = (Heads){.heads = 32, .kv_heads = 8, .qk_dim = 128, .v_dim = 128};
    int64_t rows = c->sequences * c->spec.length / 2, one = out_columns(c);
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_CP] = 2;
    Graph *graph = graph_create(PRECISION_FP32, true);
    graph->mesh = &mesh;
    TensorId x = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){rows, columns_of(c)}, "qkv");
    TensorId positions = graph_tensor(graph, ARENA_INPUT, TYPE_INT32, 1, &rows, "positions");
    TensorId weight = graph_parameter(graph, "weight", PARAMETER_MATRIX, 2, (int64_t[]){one, one}, 0, 1, false);
    TensorId y = op_linear(graph, op_attention(graph, x, positions, &c->spec), weight, TENSOR_NONE, false);
    TensorId seed = graph_tensor(graph, ARENA_INPUT, TYPE_COMPUTE, 2, (int64_t[]){rows, one}, "seed");
    graph_differentiate(graph, RECOMPUTE_NONE, &(Seed){y, seed}, 1);
    int collectives = 0;
    for (int i = 0; i < graph->node_count; i++) {
        if (!graph->nodes[i].backward || !op_table[graph->nodes[i].op]->communicates) continue;
        assert_int_equal(gemms_beside(graph, i), 1);
        collectives++;
    }
    assert_int_equal(collectives, 2); /* keys come again, their gradients go */
    graph_free(graph);
}

static void keys_go_round_ranks(void **state) {
    (void)state;
    run_over_tcp(2, "ring");
    run_over_tcp(3, "ring");
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "rank") == 0) return run_rank(strcmp(argv[2], "ring") == 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_gather_keys),
        cmocka_unit_test(keys_go_round_ranks),
        cmocka_unit_test(a_gemm_runs_beside_each_collective_of_the_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
