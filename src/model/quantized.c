/* Quantizes matrices on the host with all threads and uploads the quantized values to the device,
 * one parameter at a time, so that a whole model is never in memory. Called when the base of
 * adapters is loaded. */
#include "model/quantized.h"

#include <stdlib.h>
#include <string.h>

#include "base/math.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/scope.h"

static void upload_held(Device *device, const HeldBytes *held, const void *bytes) {
    if (held->count) device_upload(device, held->to, (const char *)bytes + held->first, held->count);
}

static void upload_quantized(const Executor *executor, const QuantizedPlace *place, const void *quantized, const void *scales) {
    upload_held(executor_backend(executor)->device, &place->values, quantized);
    upload_held(executor_backend(executor)->device, &place->scales, scales);
}

QuantizedPlace quantized_whole(const Executor *executor, const Parameter *p) {
    const Graph *graph = executor_graph(executor);
    return (QuantizedPlace){{0, graph_bytes(graph, p->quantized), executor_tensor(executor, p->quantized)},
        {0, graph_bytes(graph, p->scales), executor_tensor(executor, p->scales)}};
}

bool quantized_put(const Executor *executor, const Parameter *p, const QuantizedPlace *place, const float *values, Error *error) {
    const Graph *graph = executor_graph(executor);
    SCOPED_FREE uint8_t *quantized = memory_allocate((size_t)graph_bytes(graph, p->quantized));
    SCOPED_FREE void *scales = memory_allocate((size_t)graph_bytes(graph, p->scales));
    if (!quantize(p->quantization, values, p->count, p->shape[p->rank - 1], quantized, scales))
        return error_set(error, ERROR_NUMERICS, "tensor %s has NaN or infinite values: the model is broken", p->name);
    upload_quantized(executor, place, quantized, scales);
    return true;
}

/* Repeats the first `size` bytes of `to` until `bytes` bytes are filled. */
static void repeat_bytes(void *to, int64_t size, int64_t bytes) {
    for (int64_t filled = size; filled < bytes; filled *= 2)
        memcpy((char *)to + filled, to, (size_t)(filled < bytes - filled ? filled : bytes - filled));
}

/* Repeats the quantized values and scales of NORMALS values over the parameter. The values form one
 * row, and fill one scale of scales. */
enum { NORMALS = NF4_BLOCK * NF4_OUTER };
static void repeat_quantized(const Parameter *p, const uint8_t *quantized, const void *scales, uint8_t *all_quantized, char *all_scales) {
    int64_t bytes = quantized_code_bytes(p->quantization, p->count), chunk = quantized_code_bytes(p->quantization, NORMALS);
    memcpy(all_quantized, quantized, (size_t)int_min(chunk, bytes));
    repeat_bytes(all_quantized, chunk, bytes);
    if (p->quantization == QUANTIZE_FP8) {
        memcpy(all_scales, scales, sizeof(float));
        repeat_bytes(all_scales, sizeof(float), quantized_scale_bytes(p->quantization, p->count, p->shape[p->rank - 1]));
        return;
    }
    const Nf4Head *head = scales;
    const float *outer = (const float *)(head + 1);
    char *to = all_scales + sizeof *head;
    int64_t outer_bytes = nf4_outers(p->count) * (int64_t)sizeof(float), blocks = nf4_blocks(p->count);
    memcpy(all_scales, head, sizeof *head);
    memcpy(to, outer, sizeof(float));
    repeat_bytes(to, sizeof(float), outer_bytes);
    memcpy(to + outer_bytes, outer + 1, (size_t)int_min(NF4_OUTER, blocks));
    repeat_bytes(to + outer_bytes, NF4_OUTER, blocks);
}

void quantized_fill(const Executor *executor, QuantizedPlace (*place_of)(const void *context, int parameter), const void *context) {
    const Graph *graph = executor_graph(executor);
    SCOPED_FREE float *values = memory_allocate(NORMALS * sizeof *values);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (!p->quantization) continue;
        SCOPED_FREE uint8_t *quantized = memory_allocate(NORMALS),
                            *all_quantized = memory_allocate((size_t)graph_bytes(graph, p->quantized));
        SCOPED_FREE char *scales = memory_allocate((size_t)quantized_scale_bytes(p->quantization, NORMALS, NORMALS)),
                         *all_scales = memory_allocate((size_t)graph_bytes(graph, p->scales));
        for (int j = 0; j < NORMALS; j++) values[j] = (float)(p->init_std * rng_normal(1, 0, (uint64_t)j));
        quantize(p->quantization, values, NORMALS, NORMALS, quantized, scales);
        repeat_quantized(p, quantized, scales, all_quantized, all_scales);
        const QuantizedPlace place = place_of(context, i);
        upload_quantized(executor, &place, all_quantized, all_scales);
    }
}
