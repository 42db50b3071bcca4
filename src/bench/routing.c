/* Makes the choices of experts for benchmarks of training. Owns nothing. Called by bench_train.c. */
#include "bench/routing_internal.h"

#include <string.h>

#include "base/rng.h"

/* The experts of a row are E / k apart, so that they differ and are spread over ranks. Rows are shuffled:
 * `place` is the row's place in the shuffled order. */
static void choose_balanced(int32_t *chosen, int64_t experts, int64_t k, int64_t place) {
    for (int64_t j = 0; j < k; j++) chosen[j] = (int32_t)((place + j * (experts / k)) % experts);
}

/* Draws k different experts by Floyd's algorithm. `draw` numbers the rows of all layers. */
static void choose_random(int32_t *chosen, int64_t experts, int64_t k, uint64_t draw) {
    for (int64_t j = 0; j < k; j++) {
        int64_t most = experts - k + j;
        int32_t expert = (int32_t)(rng_uniform(1, RNG_STREAM_BENCH_ROUTING, draw * (uint64_t)k + (uint64_t)j) * (double)(most + 1));
        for (int64_t i = 0; i < j; i++)
            if (chosen[i] == expert) {
                expert = (int32_t)most;
                break;
            }
        chosen[j] = expert;
    }
}

void bench_fill_routing(
    const Model *model, const ModelConfig *config, Executor *executor, BenchRouting routing, const RoutingTrace *trace) {
    const int64_t experts = config->experts, k = config->experts_per_token;
    for (int64_t layer = 0; model->routing && layer < config->layers + config->mtp; layer++) {
        if (!model->routing[layer]) continue; /* a layer without experts, or of another stage */
        int32_t *choices = executor_tensor(executor, model->routing[layer]);
        int64_t rows = graph_rows(model->graph, model->routing[layer]), recorded;
        int64_t first = rows * mesh_index(model->graph->mesh, AXES_DATA | AXES_ROWS);
        const char *from = routing == BENCH_ROUTING_TRACE ? routing_trace_layer(trace, layer, &recorded) : NULL;
        for (int64_t r = 0; r < rows; r++) {
            int32_t *chosen = choices + r * k;
            uint64_t place = rng_permute(1, RNG_STREAM_BENCH_ROUTING + ((uint64_t)layer << 32), (uint64_t)r, (uint64_t)rows);
            if (from) memcpy(chosen, from + (first + r) % recorded * k * (int64_t)sizeof *chosen, (size_t)k * sizeof *chosen);
            else if (routing == BENCH_ROUTING_BALANCED) choose_balanced(chosen, experts, k, (int64_t)place);
            else choose_random(chosen, experts, k, (uint64_t)layer << 40 | (uint64_t)(first + r));
        }
    }
}

const char *bench_routing_name(BenchRouting routing, const ModelConfig *config) {
    static const char *const names[] = {"untrained", "balanced", "random", "trace"};
    return config->experts ? names[routing] : "-";
}
