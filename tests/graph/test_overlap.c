/* The order of a backward pass that communicates: a GEMM runs beside every collective of the layers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/scope.h"
#include "graph/op.h"
#include "model/model.h"

enum { LAYERS = 3, SETTINGS = 8, LENGTH = 8256 };
typedef const char *Settings[SETTINGS];

/* Shapes of models that are trained: of smaller ones latencies are all of the time. A program needs no memory. */
static const Settings llama = {"model.family=llama", "model.experts=0", "model.layers=3", "model.width=4096", "model.heads=32",
                          "model.kv_heads=8", "model.ffn=14336", "model.vocabulary=50257"},
                      zaya = {"model.family=zaya", "model.experts=12", "model.layers=3", "model.width=1536", "model.heads=12",
                          "model.kv_heads=6", "model.ffn=2048", "model.vocabulary=50257"};

/* What a tensor-parallel rank runs of two sequences. */
static Model build(const Settings settings, int rank, int ranks, OptionStrings *strings) {
    static Mesh meshes[LAYERS]; /* of each rank, outlives the model */
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, strings);
    for (size_t i = 0; i < SETTINGS; i++) assert_true(options_set(&config_table, &config, strings, settings[i], &error));
    assert_true(config_check(&config, &error));
    meshes[rank] = mesh_alone;
    meshes[rank].size[AXIS_TP] = ranks;
    meshes[rank].at[AXIS_TP] = rank;
    return model_build_adapted(&meshes[rank], &config.model, NULL, PRECISION_PURE_BF16, MODEL_TRAIN, 2, LENGTH, RECOMPUTE_NONE);
}

static bool reads(const Graph *graph, int reader, int node) {
    for (int i = 0; i < graph->nodes[reader].inputs; i++)
        for (int j = 0; j < graph->nodes[node].outputs; j++)
            if (graph->nodes[node].out[j] && graph->nodes[reader].in[i] == graph->nodes[node].out[j]) return true;
    return false;
}

static void collectives_of_layers_run_beside_other_nodes(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(model_free) Model model = build(llama, 0, 2, &strings);
    const Graph *graph = model.graph;
    int collectives = 0, waits = 0;
    for (int i = 0; i + 1 < graph->node_count; i++) {
        if (!graph->nodes[i].backward || !graph_communicates(graph, i)) continue;
        collectives++;
        waits += reads(graph, i + 1, i);
    }
    /* Of each attention and each MLP: gathers of the input's rows and of the output's gradient, a scatter of the input's
     * gradient. The first ones after the loss, and the last, have no gradient of weights to run beside. */
    assert_true(collectives >= 6 * LAYERS);
    assert_in_range(waits, 0, 4);
}

/* Every node of the program is there once, and after what it reads. */
static void nodes_follow_what_they_read(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(model_free) Model model = build(llama, 0, 2, &strings);
    const Graph *graph = model.graph;
    int weights = 0;
    for (int i = 0; i < graph->node_count; i++) {
        weights += graph->nodes[i].op == OP_linear_grad_weight;
        for (int j = 0; j < graph->nodes[i].inputs; j++) assert_true(graph_get(graph, graph->nodes[i].in[j])->producer < i);
    }
    assert_int_equal(weights, 4 * LAYERS);
}

/* The collectives before the node that adds to the gradient of each parameter, by the parameter's index; of those that no
 * rank shares out alone, where `whole`. */
static void count_collectives(const Graph *graph, bool whole, int *before) {
    int collectives = 0;
    for (int i = 0; i < graph->node_count; i++) {
        const Node *node = &graph->nodes[i];
        collectives += graph_communicates(graph, i);
        for (int j = 0; j < node->outputs; j++) {
            if (!node->out[j] || graph_get(graph, node->out[j])->arena != ARENA_GRADIENT) continue;
            ByteSpan span = graph_state_span(graph, node->out[j]);
            for (int p = 0; p < graph->parameter_count; p++) {
                const Parameter *parameter = &graph->parameters[p];
                bool shared = mesh_size(graph->mesh, parameter->cut.axes) > 1;
                if (parameter->offset >= span.begin && parameter->offset < span.end && shared != whole) before[p] = collectives;
            }
        }
    }
}

/* Ranks that reduce a gradient together do so at the same place among the collectives of the program: else each would wait
 * for the others. Of ZAYA1's values three ranks have one matrix, both, and the other. */
static void ranks_agree_when_gradients_are_complete(void **state) {
    (void)state;
    const Settings *const families[] = {&llama, &zaya};
    for (int f = 0; f < 2; f++) {
        SCOPED(options_free_strings) OptionStrings strings = {0};
        int ranks = f ? 3 : 2, counts[3][256] = {0}, parameters[3];
        for (int rank = 0; rank < ranks; rank++) {
            SCOPED(model_free) Model model = build(*families[f], rank, ranks, &strings);
            parameters[rank] = model.graph->parameter_count;
            assert_in_range(parameters[rank], LAYERS, 256);
            count_collectives(model.graph, true, counts[rank]);
        }
        for (int rank = 1; rank < ranks; rank++) {
            assert_int_equal(parameters[rank], parameters[0]);
            for (int p = 0; p < parameters[0]; p++)
                if (counts[rank][p] && counts[0][p]) assert_int_equal(counts[rank][p], counts[0][p]);
        }
    }
}

/* The longest GEMMs of a layer with experts are those of their weights' gradients: each runs while something travels. */
static void gradients_of_experts_run_beside_collectives(void **state) {
    (void)state;
    SCOPED(options_free_strings) OptionStrings strings = {0};
    SCOPED(model_free) Model model = build(zaya, 0, 2, &strings);
    const Graph *graph = model.graph;
    int beside = 0;
    for (int i = 0; i < graph->node_count; i++) {
        bool travels = false;
        if (graph->nodes[i].op != OP_grouped_linear_grad_weight) continue;
        for (int j = 0; j < i && !travels; j++) travels = graph_communicates(graph, j) && graph_await(graph, j) > i;
        beside += travels;
    }
    assert_in_range(beside, 2 * LAYERS - 1, 2 * LAYERS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_layers_run_beside_other_nodes),
        cmocka_unit_test(gradients_of_experts_run_beside_collectives),
        cmocka_unit_test(ranks_agree_when_gradients_are_complete),
        cmocka_unit_test(nodes_follow_what_they_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
