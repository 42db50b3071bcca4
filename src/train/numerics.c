/* The NaN search: where did the first NaN come from? Parameters are looked at first, then the microbatch is run
 * again, node by node. */
#include <math.h>
#include <stdio.h>

#include "base/element.h"
#include "base/memory.h"
#include "base/scope.h"
#include "train/train.h"

/* The index of the first NaN or infinity, or -1. */
static int64_t first_bad(const Graph *graph, const void *data, TypeClass type, int64_t count) {
    size_t bytes = precision_bytes(graph->precision, type);
    for (int64_t i = 0; i < count && type != TYPE_INT32; i++)
        if (!isfinite(element_get(bytes, data, i))) return i;
    return -1;
}

/* Whether master weights of this rank are finite, read block by block into host memory. */
static bool interval_is_finite(const Session *session, const ShardInterval *interval, void *block, int64_t block_bytes) {
    const Graph *graph = session->model.graph;
    const Parameter *p = &graph->parameters[interval->elements.parameter];
    int64_t element = p->element_bytes, most = block_bytes / element, total = interval->elements.count;
    const char *values = (const char *)executor_arena(session->executor, ARENA_MASTER) + interval->offset;
    for (int64_t at = 0; at < total; at += most) {
        int64_t count = total - at < most ? total - at : most;
        device_download(session->backend.device, block, values + at * element, count * element);
        if (first_bad(graph, block, graph_state_type(graph, p), count) >= 0) return false;
    }
    return true;
}

const char *numerics_bad_parameter(const Session *session) {
    const int64_t block_bytes = 64 << 20;
    if (optimizer_is_finite(session->optimizer, executor_arena(session->executor, ARENA_MASTER))) return NULL;
    SCOPED_FREE void *block = memory_allocate((size_t)block_bytes);
    for (int i = 0; i < session->layout->shard.interval_count; i++) {
        const ShardInterval *interval = &session->layout->shard.intervals[i];
        if (!interval_is_finite(session, interval, block, block_bytes))
            return session->model.graph->parameters[interval->elements.parameter].name;
    }
    return NULL;
}

typedef struct Search {
    const Session *session;
    int node;
    TensorId tensor;
    int64_t index;
} Search; /* node -1: none yet */

/* Stops at the first NaN, unless there are other ranks: the program's remaining collectives need this one. */
static bool inspect(void *context, const Graph *graph, int node, double seconds) {
    Search *search = context;
    bool alone = layout_all_ranks(search->session->layout) == 1;
    (void)seconds;
    for (int i = 0; i < graph->nodes[node].outputs && search->node < 0; i++) {
        TensorId tensor = graph->nodes[node].out[i];
        const Tensor *t = graph_get(graph, tensor);
        if (tensor == TENSOR_NONE) continue;
        SCOPED_FREE void *values = memory_allocate(graph_bytes(graph, tensor));
        executor_read(search->session->executor, tensor, values);
        search->index = first_bad(graph, values, t->type, graph_elements(graph, tensor));
        search->tensor = tensor;
        if (search->index >= 0) search->node = node;
    }
    return search->node < 0 || !alone;
}

/* "tensor NAME[3], made by NODE" */
static void describe_found(const Search *search, char *text, size_t size) {
    const Graph *graph = search->session->model.graph;
    if (search->node < 0 || text[0]) return;
    snprintf(text, size, "tensor %s[%lld], made by %s%s", graph_get(graph, search->tensor)->name, (long long)search->index,
        graph->nodes[search->node].backward ? "the backward pass of " : "", graph->nodes[search->node].name);
}

void numerics_find_in_stage(const Session *session, int64_t microbatches, const PipelineWork *work, char *text, size_t size) {
    const char *parameter = numerics_bad_parameter(session);
    Search search = {.session = session, .node = -1};
    PipelineWork inspected = {work->load, work->context, inspect, &search};
    if (parameter) snprintf(text, size, "parameter %s", parameter);
    executor_zero(session->executor);
    pipeline_run_step(session->run, microbatches, &inspected);
    exchange_finish_gradients(session->exchange);
    describe_found(&search, text, size);
}

void numerics_find(const Session *session, char *text, size_t size) {
    const char *parameter = numerics_bad_parameter(session);
    Search search = {.session = session, .node = -1};
    if (parameter && !text[0]) snprintf(text, size, "parameter %s", parameter);
    if (text[0] && layout_all_ranks(session->layout) == 1) return;
    executor_zero(session->executor);
    executor_run_hooked(session->executor, inspect, &search);
    describe_found(&search, text, size);
}
