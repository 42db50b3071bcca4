/* Programs that are cut into halves of rows: what travels beside what, what is not cut, and what that costs in memory. That
 * they learn the same is tested with ranks (tests/layout/test_tensor.c, whose microbatches have four sequences). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"
#include "base/scope.h"
#include "graph/op.h"
#include "model/model.h"
#include "support/check.h"

enum { LAYERS = 3, SETTINGS = 8, LENGTH = 4096 };
typedef const char *Settings[SETTINGS];

/* Shapes of models that are trained: a program needs no memory. */
static const Settings llama = {"model.family=llama", "model.experts=0", "model.layers=3", "model.width=2048", "model.heads=16",
                          "model.kv_heads=8", "model.ffn=8192", "model.vocabulary=50257"},
                      zaya = {"model.family=zaya", "model.experts=16", "model.layers=3", "model.width=2048", "model.heads=8",
                          "model.kv_heads=2", "model.ffn=2048", "model.vocabulary=50257"};

static Mesh mesh_of(int blocks) {
    Mesh mesh = mesh_alone;
    mesh.size[AXIS_TP] = 2;
    mesh.row_blocks = blocks;
    return mesh;
}

static Model build(const Settings settings, const Mesh *mesh, int sequences, int length, RecomputePolicy policy, OptionStrings *strings) {
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, strings);
    for (size_t i = 0; i < SETTINGS; i++) assert_true(options_set(&config_table, &config, strings, settings[i], &error));
    assert_true(config_check(&config, &error));
    return model_build_adapted(mesh, &config.model, NULL, PRECISION_PURE_BF16, MODEL_TRAIN, sequences, length, policy);
}

/* Collectives of the forward pass that the very next node waits for. */
static int count_waits(const Graph *graph, int *collectives) {
    int waits = *collectives = 0;
    for (int i = 0; i < graph->node_count; i++) {
        if (graph->nodes[i].backward || !graph_communicates(graph, i)) continue;
        (*collectives)++;
        waits += graph_await(graph, i) == i + 1;
    }
    return waits;
}

static void rows_of_one_half_travel_while_the_others_are_computed(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Mesh whole = mesh_of(1), halved = mesh_of(2);
    SCOPED(model_free) Model uncut = build(llama, &whole, 2, LENGTH, RECOMPUTE_NONE, &strings);
    SCOPED(model_free) Model cut = build(llama, &halved, 2, LENGTH, RECOMPUTE_NONE, &strings);
    int collectives, halves, waits = count_waits(uncut.graph, &collectives);
    assert_in_range(waits, collectives - 1, collectives);                             /* the loss is a collective too */
    assert_int_equal(count_waits(cut.graph, &halves), 1 + waits - (collectives - 1)); /* the head waits for the rows of both */
    assert_int_equal(halves, 2 * (collectives - 1) + 1);
}

/* Experts sort the rows of a whole microbatch: attention alone is cut. */
static void attention_beside_experts_is_cut(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Mesh mesh = mesh_of(2);
    SCOPED(model_free) Model model = build(zaya, &mesh, 4, LENGTH, RECOMPUTE_NONE, &strings);
    const Graph *graph = model.graph;
    int attention = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        if (node->op == OP_cca || node->op == OP_attention) {
            assert_true(node->half);
            assert_int_equal(graph_rows(graph, node->in[MAIN_OUTPUT]), 2 * LENGTH);
            attention++;
        }
        if (node->op == OP_router || node->op == OP_moe_combine || node->op == OP_grouped_linear) assert_false(node->half);
    }
    assert_int_equal(attention, 2 * 2 * LAYERS);
}

/* Of GEMMs of other sizes the bits may differ: what is computed again is cut as it was at first. */
static void nodes_are_computed_again_as_at_first(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Mesh mesh = mesh_of(2);
    SCOPED(model_free) Model model = build(zaya, &mesh, 4, LENGTH, RECOMPUTE_BLOCK, &strings);
    const Graph *graph = model.graph;
    int again = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        if (node->clone_of < 0 || node->op != OP_linear) continue;
        assert_int_equal(node->op, graph->nodes[node->clone_of].op);
        assert_int_equal(node->half, graph->nodes[node->clone_of].half);
        again += node->half;
    }
    assert_in_range(again, 2 * LAYERS, 4 * LAYERS);
}

/* Of one sequence attention needs all rows, the MLP does not. */
static void an_odd_number_of_sequences_leaves_attention_whole(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Mesh mesh = mesh_of(2);
    mesh.cuts_sequences = true;
    SCOPED(model_free) Model model = build(llama, &mesh, 1, LENGTH, RECOMPUTE_NONE, &strings);
    int activations = 0;
    for (int i = 0; i < model.graph->node_count; i++) {
        const Node *node = &model.graph->nodes[i];
        if (node->op == OP_attention) assert_false(node->half);
        if (node->op == OP_swiglu) activations += node->half;
    }
    assert_int_equal(activations, 2 * LAYERS);
}

/* 2 ranks and 2 halves do not divide 6 rows. */
static void rows_that_have_no_halves_are_not_cut(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    Mesh mesh = mesh_of(2);
    SCOPED(model_free) Model model = build(llama, &mesh, 2, 3, RECOMPUTE_NONE, &strings);
    for (int i = 0; i < model.graph->node_count; i++) assert_false(model.graph->nodes[i].half);
}

static void halves_need_no_more_memory(void **state) {
    (void)state;
    Backend backend = op_cpu_backend(PRECISION_PURE_BF16);
    for (int policy = RECOMPUTE_NONE; policy <= RECOMPUTE_BLOCK; policy++)
        for (int f = 0; f < 2; f++) {
            SCOPED(options_free_strings) OptionStrings strings = {0};
            int64_t bytes[2];
            for (int halved = 0; halved < 2; halved++) {
                Mesh mesh = mesh_of(halved + 1);
                SCOPED(model_free) Model model = build(f ? zaya : llama, &mesh, 4, LENGTH, policy, &strings);
                bytes[halved] = graph_plan(model.graph, &backend).bytes[ARENA_ACTIVATION];
            }
            assert_true(bytes[1] <= bytes[0]);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_one_half_travel_while_the_others_are_computed),
        cmocka_unit_test(attention_beside_experts_is_cut),
        cmocka_unit_test(nodes_are_computed_again_as_at_first),
        cmocka_unit_test(an_odd_number_of_sequences_leaves_attention_whole),
        cmocka_unit_test(rows_that_have_no_halves_are_not_cut),
        cmocka_unit_test(halves_need_no_more_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
