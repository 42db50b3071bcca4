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

enum { LAYERS = 3 };

/* What one of two tensor-parallel ranks runs. */
static Model build(OptionStrings *strings) {
    static Mesh mesh;
    static const char *const settings[] = {"model.family=llama", "model.experts=0", "model.layers=3", "model.width=32", "model.heads=4",
        "model.kv_heads=2", "model.ffn=64", "model.vocabulary=64"};
    Config config;
    Error error = {0};
    options_defaults(&config_table, &config, strings);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        assert_true(options_set(&config_table, &config, strings, settings[i], &error));
    assert_true(config_check(&config, &error));
    mesh = mesh_alone;
    mesh.size[AXIS_TP] = 2;
    return model_build_adapted(&mesh, &config.model, NULL, PRECISION_FP32, MODEL_TRAIN, 2, 16, RECOMPUTE_NONE);
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
    SCOPED(model_free) Model model = build(&strings);
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
    SCOPED(model_free) Model model = build(&strings);
    const Graph *graph = model.graph;
    int weights = 0;
    for (int i = 0; i < graph->node_count; i++) {
        weights += graph->nodes[i].op == OP_linear_grad_weight;
        for (int j = 0; j < graph->nodes[i].inputs; j++) assert_true(graph_get(graph, graph->nodes[i].in[j])->producer < i);
    }
    assert_int_equal(weights, 4 * LAYERS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_of_layers_run_beside_other_nodes),
        cmocka_unit_test(nodes_follow_what_they_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
