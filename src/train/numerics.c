/* Where did the first NaN come from? Parameters are looked at first, then the microbatch is run again, node by node. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "train/train.h"

static bool finite_element(const Graph *graph, const void *data, TypeClass type, int64_t index) {
    if (type == TYPE_INT32) return true;
    switch (precision_bytes(graph->precision, type)) {
    case 8: return isfinite(((const double *)data)[index]);
    case 4: return isfinite(((const float *)data)[index]);
    default: return (((const uint16_t *)data)[index] & 0x7f80) != 0x7f80;
    }
}

/* At the speed of memory, since every checkpoint is looked at before it is written. */
static bool all_finite(const float *values, int64_t count) {
    const uint32_t exponent = 0x7f800000;
    uint32_t bad = 0;
#pragma omp parallel for simd reduction(| : bad)
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        bad |= (bits & exponent) == exponent;
    }
    return !bad;
}

static int64_t first_bad(const Graph *graph, const void *data, TypeClass type, int64_t count) {
    if (type != TYPE_INT32 && precision_bytes(graph->precision, type) == sizeof(float) && all_finite(data, count)) return -1;
    for (int64_t i = 0; i < count; i++)
        if (!finite_element(graph, data, type, i)) return i;
    return -1;
}

const char *numerics_bad_parameter(const Session *session) {
    const Graph *graph = session->model.graph;
    const Layout *layout = session->layout;
    Device *device = session->backend.device;
    Error ignored = {0};
    int64_t bytes = session->plan.bytes[ARENA_MASTER];
    void *arena = executor_arena(session->executor, ARENA_MASTER);
    const char *master = device_view(device, arena, bytes, VIEW_READ, &ignored), *bad = NULL;
    for (int i = 0; i < layout->piece_count && master && !bad; i++) {
        const OptimizerPiece *piece = &layout->pieces[i];
        const char *values = master + piece->local * (int64_t)precision_bytes(graph->precision, TYPE_WIDE);
        if (first_bad(graph, values, TYPE_WIDE, piece->count) >= 0) bad = graph->parameters[piece->parameter].name;
    }
    device_view_close(device, (void *)master, arena, bytes, VIEW_READ);
    return bad;
}

typedef struct Search { const Session *session; int node; TensorId tensor; int64_t index; } Search; /* node -1: none yet */

/* Stops at the first, unless there are other ranks, which this one has to meet in what is left of the program. */
static bool inspect(void *context, const Graph *graph, int node, double seconds) {
    Search *search = context;
    bool alone = layout_all_ranks(search->session->layout) == 1;
    (void)seconds;
    for (int i = 0; i < graph->nodes[node].outputs && search->node < 0; i++) {
        TensorId tensor = graph->nodes[node].out[i];
        const Tensor *t = graph_get(graph, tensor);
        if (tensor == TENSOR_NONE) continue;
        void *values = memory_allocate(graph_elements(graph, tensor) * precision_bytes(graph->precision, t->type));
        executor_read(search->session->executor, tensor, values);
        search->index = first_bad(graph, values, t->type, graph_elements(graph, tensor));
        search->tensor = tensor;
        free(values);
        if (search->index >= 0) search->node = node;
    }
    return search->node < 0 || !alone;
}

void numerics_find(const Session *session, char *text, size_t size) {
    const char *parameter = numerics_bad_parameter(session);
    Search search = {.session = session, .node = -1};
    if (parameter && !text[0]) snprintf(text, size, "parameter %s", parameter);
    if (text[0] && layout_all_ranks(session->layout) == 1) return;
    executor_zero(session->executor);
    executor_run_hooked(session->executor, inspect, &search);
    if (search.node < 0 || text[0]) return;
    const Graph *graph = session->model.graph;
    snprintf(text, size, "tensor %s[%lld], made by %s%s", graph_get(graph, search.tensor)->name, (long long)search.index,
             graph->nodes[search.node].backward ? "the backward pass of " : "", graph->nodes[search.node].name);
}
