/* Tests of parameters that ranks share out: every element of the whole one is on one rank of the cut's axes, whatever
 * part of a rank's elements is asked for, and has its initial value there. Owns nothing beyond a test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/memory.h"
#include "backend/backend.h"
#include "model/model.h"

typedef struct Case {
    int rank;
    int64_t whole[TENSOR_MAX_RANK];
    Cut cut;
} Case;

static const Case cases[] = {
    {1, {12}, {MESH(AXIS_TP), 0, 1, {12}}},
    {2, {12, 5}, {MESH(AXIS_TP), 0, 1, {12}}},
    {2, {5, 12}, {MESH(AXIS_TP), 1, 1, {12}}},
    {2, {7, 13}, {MESH(AXIS_TP), 1, 1, {13}}},
    {2, {3, 2}, {MESH(AXIS_TP), 1, 1, {2}}},        /* fewer columns than ranks */
    {2, {24, 5}, {AXES_TENSOR, 0, 3, {12, 6, 6}}},  /* q, k, v */
    {3, {4, 6, 5}, {AXES_EXPERTS, 0, 1, {4}}},      /* experts */
    {3, {3, 16, 5}, {MESH(AXIS_TP), 1, 2, {8, 8}}}, /* gate and up of experts */
    {3, {3, 5, 8}, {MESH(AXIS_TP), 2, 1, {8}}},     /* the other matrix of experts */
    {4, {2, 3, 8, 2}, {MESH(AXIS_EP) | MESH(AXIS_TP), 2, 1, {8}}},
    {2, {12, 5}, {0}},
};

static Mesh mesh_of(int rank) {
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_EP] = mesh.size[AXIS_COPY] = 2;
    mesh.size[AXIS_TP] = 3;
    mesh_place(&mesh, rank);
    return mesh;
}

/* A graph with the parameter as one rank has it. */
static Graph *graph_of(const Case *c, const Mesh *mesh) {
    Graph *graph = graph_create(PRECISION_FP32, false);
    graph->mesh = mesh;
    graph_cut_parameter(graph, "p.weight", PARAMETER_MATRIX, c->rank, c->whole, &c->cut, 0.5, 2, false);
    return graph;
}

static int64_t count_of(const Case *c) {
    int64_t count = 1;
    for (int i = 0; i < c->rank; i++) count *= c->whole[i];
    return count;
}

/* Counts in `held` the elements that the rank has, taken in intervals of `length` elements. */
static void count_held(const Graph *graph, int64_t length, int64_t whole, int *held) {
    int64_t all = graph->parameters[0].count, taken = 0, last = -1;
    for (int64_t first = 0; first < all; first += length) {
        ParameterInterval rest = {0, first, first + length < all ? length : all - first};
        while (rest.count > 0) {
            assert_int_equal(rest.first, taken);
            Slice slice = graph_take_slice(graph, &rest);
            assert_true(slice.count > 0 && slice_is_valid(&slice, whole));
            taken += slice.count;
            for (int64_t k = 0; k < slice.count; k++) {
                int64_t element = slice_at(&slice, k);
                assert_true(element > last); /* a rank has them in the order of the whole */
                held[last = element]++;
            }
        }
    }
    assert_int_equal(taken, all);
}

static void every_element_is_on_one_rank_of_the_axes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int64_t length = 1; length < 40; length += 4) {
            int64_t whole = count_of(&cases[i]);
            Mesh mesh = mesh_of(0);
            int *held = memory_allocate((size_t)whole * sizeof *held), ranks = mesh_size(&mesh, AXES_ALL);
            int copies = ranks / mesh_size(&mesh, cases[i].cut.axes);
            for (int rank = 0; rank < ranks; rank++) {
                mesh = mesh_of(rank);
                Graph *graph = graph_of(&cases[i], &mesh);
                count_held(graph, length, whole, held);
                graph_free(graph);
            }
            for (int64_t k = 0; k < whole; k++)
                if (held[k] != copies) fail_msg("case %zu: element %lld is on %d ranks of %d", i, (long long)k, held[k], copies);
            free(held);
        }
}

static void initial_values_are_those_of_the_whole_parameter(void **state) {
    (void)state;
    const ModelConfig config = {.family = FAMILY_llama};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t whole = count_of(&cases[i]);
        float *values = memory_allocate((size_t)whole * sizeof *values), *mine = memory_allocate((size_t)whole * sizeof *mine);
        Mesh alone = mesh_alone, mesh = mesh_of(0);
        Graph *graph = graph_of(&cases[i], &alone);
        model_initialize_interval(graph, &config, 7, &(ParameterInterval){0, 0, whole}, device_cpu(), values);
        graph_free(graph);
        for (int rank = 0; rank < mesh_size(&mesh, AXES_ALL); rank++) {
            Mesh own = mesh_of(rank);
            graph = graph_of(&cases[i], &own);
            int64_t all = graph->parameters[0].count, first = all / 3;
            ParameterInterval rest = {0, first, all - first};
            model_initialize_interval(graph, &config, 7, &rest, device_cpu(), mine);
            for (const float *at = mine; rest.count > 0;) {
                Slice slice = graph_take_slice(graph, &rest);
                for (int64_t k = 0; k < slice.count; k++) assert_true(*at++ == values[slice_at(&slice, k)]);
            }
            graph_free(graph);
        }
        free(values);
        free(mine);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_element_is_on_one_rank_of_the_axes),
        cmocka_unit_test(initial_values_are_those_of_the_whole_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
