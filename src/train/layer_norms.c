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

/* Returns the sum of squares of this rank's part of each parameter. The caller frees. */
static double *parameter_squares(Session *session, Arena arena) {
    const Graph *graph = session->training.model.graph;
    double *squares = memory_allocate((size_t)graph->parameter_count * sizeof *squares);
    optimizer_parameter_squares(session->optimizer, executor_arena(session->training.executor, arena), arena == ARENA_GRADIENT, squares);
    return squares;
}

/* Fills in norms[layers + 1], and the histogram of tensors. A pipeline has none, because its ranks have
 * different parameters. Collective. */
static bool measure(Loop *loop, Arena arena, int64_t layers, double *norms, NormHistogram *histogram, Error *error) {
    Session *session = &loop->session;
    const Graph *graph = session->training.model.graph;
    SCOPED_FREE double *squares = parameter_squares(session, arena);
    bool shared = session->mesh->size[AXIS_PP] == 1;
    if (shared && !comm_host_all_reduce(loop->comm, "tensors", squares, graph->parameter_count, COMM_F64, COMM_SUM, error)) return false;
    for (int64_t i = 0; i <= layers; i++) norms[i] = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        norms[layer_in_name(graph->parameters[i].name, layers)] += squares[i];
        if (shared) norm_histogram_add(histogram, sqrt(squares[i]));
    }
    if (!shared && !comm_host_all_reduce(loop->comm, "layers", norms, layers + 1, COMM_F64, COMM_SUM, error)) return false;
    for (int64_t i = 0; i <= layers; i++) norms[i] = sqrt(norms[i]);
    return true;
}

void loop_report_layers(Loop *loop, int64_t step) {
    const int64_t layers = loop->config->model.layers, groups = layers + 1, every = loop->config->metrics.layers;
    if (!every || step % every) return;
    SCOPED_FREE double *norms = memory_allocate(2 * (size_t)groups * sizeof *norms);
    NormHistogram histograms[2] = {0};
    Error error = {0};
    if (!measure(loop, ARENA_GRADIENT, layers, norms, &histograms[0], &error) ||
        !measure(loop, ARENA_MASTER, layers, norms + groups, &histograms[1], &error) || !loop->metrics)
        return;
    bool known = loop->session.mesh->size[AXIS_PP] == 1;
    const LayerNorms gradients = {norms, known ? &histograms[0] : NULL}, weights = {norms + groups, known ? &histograms[1] : NULL};
    loop_note_record(loop, metrics_layers(loop->metrics, step, layers, gradients, weights, &error), &error);
}
