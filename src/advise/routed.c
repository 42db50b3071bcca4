/* Counts how often the routers of a trace chose each expert. Called by forecasts. */
#include "advise/routed.h"

#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/scope.h"

static void count_choices(RoutedExperts *routed, int64_t layer, const char *choices, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        int32_t expert;
        memcpy(&expert, choices + i * (int64_t)sizeof expert, sizeof expert);
        routed->choices[layer * (routed->experts + 1) + int_min(expert, routed->experts)]++;
    }
}

bool routed_read(RoutedExperts *routed, const char *path, const ModelConfig *model, Error *error) {
    SCOPED(routing_trace_close) RoutingTrace trace = {0};
    if (!routing_trace_open(&trace, path, model, error) || !routing_trace_covers(&trace, model, error)) return false;
    *routed = (RoutedExperts){.layers = model->layers + model->mtp, .experts = model->experts};
    routed->choices = memory_allocate((size_t)(routed->layers * (routed->experts + 1)) * sizeof *routed->choices);
    for (int64_t layer = 0; layer < routed->layers; layer++) {
        int64_t rows;
        const char *choices = routing_trace_layer(&trace, layer, &rows);
        if (choices) count_choices(routed, layer, choices, rows * model->experts_per_token);
    }
    return true;
}

void routed_free(RoutedExperts *routed) { free(routed->choices); }

double routed_load(const RoutedExperts *routed, int64_t layer, int ranks) {
    if (!routed || layer < 0 || layer >= routed->layers) return 1;
    const int64_t *choices = routed->choices + layer * (routed->experts + 1);
    int64_t own = routed->experts / ranks, all = choices[routed->experts], most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        int64_t rows = 0;
        for (int64_t i = 0; i < own; i++) rows += choices[rank * own + i];
        most = int_max(most, rows);
        all += rows;
    }
    return all ? (double)most * ranks / (double)all : 1;
}
