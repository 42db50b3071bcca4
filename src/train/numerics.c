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
    Device *device = session->backend.device;
    Error ignored = {0};
    int64_t bytes = session->plan.bytes[ARENA_MASTER];
    void *arena = executor_arena(session->executor, ARENA_MASTER);
    const char *master = device_view(device, arena, bytes, VIEW_READ, &ignored), *bad = NULL;
    for (int i = 0; i < graph->parameter_count && master && !bad; i++) {
        const Parameter *p = &graph->parameters[i];
        if (first_bad(graph, master + p->offset * precision_bytes(graph->precision, TYPE_WIDE), TYPE_WIDE, p->count) >= 0) bad = p->name;
    }
    device_view_close(device, (void *)master, arena, bytes, VIEW_READ);
    return bad;
}

typedef struct Search { const Session *session; TensorId tensor; int64_t index; } Search;

static bool inspect(void *context, const Graph *graph, int node, double seconds) {
    Search *search = context;
    (void)seconds;
    for (int i = 0; i < graph->nodes[node].outputs; i++) {
        TensorId tensor = graph->nodes[node].out[i];
        const Tensor *t = graph_get(graph, tensor);
        if (tensor == TENSOR_NONE) continue;
        void *values = memory_allocate(graph_elements(graph, tensor) * precision_bytes(graph->precision, t->type));
        executor_read(search->session->executor, tensor, values);
        search->index = first_bad(graph, values, t->type, graph_elements(graph, tensor));
        search->tensor = tensor;
        free(values);
        if (search->index >= 0) return false;
    }
    return true;
}

void numerics_find(const Session *session, char *text, size_t size) {
    const char *parameter = numerics_bad_parameter(session);
    if (parameter) {
        snprintf(text, size, "parameter %s", parameter);
        return;
    }
    Search search = {.session = session};
    executor_zero(session->executor);
    int node = executor_run_hooked(session->executor, inspect, &search);
    if (node < 0) {
        snprintf(text, size, "no tensor when run again: the sum over microbatches overflowed");
        return;
    }
    const Graph *graph = session->model.graph;
    snprintf(text, size, "tensor %s[%lld], made by %s%s", graph_get(graph, search.tensor)->name, (long long)search.index,
             graph->nodes[node].backward ? "the backward pass of " : "", graph->nodes[node].name);
}
