/* Norms of each layer's gradients and weights, for metrics.layers=N. A layer is the first number in a parameter's name; what has none, such as the
 * embedding, is one group. Called by the training loop. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/scope.h"
#include "train/loop_internal.h"

/* Returns `layers` for a parameter outside the layers. */
static int64_t layer_in_name(const char *name, int64_t layers) {
    for (const char *part = name; part; part = strchr(part, '.') ? strchr(part, '.') + 1 : NULL) {
        char *end;
        long long number = strtoll(part, &end, 10);
        if (end > part && *end == '.') return number >= 0 && number < layers ? number : layers;
    }
    return layers;
}

/* Adds the squares of this rank to squares[layers + 1]. */
static void add_layer_squares(Session *session, Arena arena, int64_t layers, double *squares) {
    const Graph *graph = session->training.model.graph;
    SCOPED_FREE double *of_parameters = memory_allocate((size_t)graph->parameter_count * sizeof *of_parameters);
    optimizer_parameter_squares(
        session->optimizer, executor_arena(session->training.executor, arena), arena == ARENA_GRADIENT, of_parameters);
    for (int i = 0; i < graph->parameter_count; i++) squares[layer_in_name(graph->parameters[i].name, layers)] += of_parameters[i];
}

void loop_report_layers(Loop *loop, int64_t step) {
    const int64_t layers = loop->config->model.layers, groups = layers + 1, every = loop->config->metrics.layers;
    if (!every || step % every) return;
    SCOPED_FREE double *norms = memory_allocate(2 * (size_t)groups * sizeof *norms);
    Error error = {0};
    add_layer_squares(&loop->session, ARENA_GRADIENT, layers, norms);
    add_layer_squares(&loop->session, ARENA_MASTER, layers, norms + groups);
    if (!comm_host_all_reduce(loop->comm, "layers", norms, 2 * groups, COMM_F64, COMM_SUM, &error) || !loop->metrics) return;
    for (int64_t i = 0; i < 2 * groups; i++) norms[i] = sqrt(norms[i]);
    loop_note_record(loop, metrics_layers(loop->metrics, step, layers, norms, norms + groups, &error), &error);
}
