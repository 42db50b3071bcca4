/* Low-rank adapters (LoRA, arXiv 2106.09685, as PEFT builds them): a linear layer W that is frozen gets y = W x + (alpha / rank) B (A x) with A [rank, in] and
 * B [out, rank], which alone are trained. A starts with normal values of the deviation of PEFT's, which draws them from kaiming_uniform_(a = sqrt(5)), that is
 * U(-1 / sqrt(in), 1 / sqrt(in)) (peft/tuners/lora/layer.py): 1 / sqrt(3 in). B starts at zero, so that the model starts as it was.
 *
 * The parameters of NAME.weight's adapter are NAME.lora_A.weight and NAME.lora_B.weight. Layers that are one product have one A after another, which are one
 * product too. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

/* The matrices that a linear layer's weight is a view of. */
typedef struct Layer {
    int parts;
    char *names[LORA_MAX_ADAPTERS];
    int64_t columns[LORA_MAX_ADAPTERS];
} Layer;

/* Without ".weight". */
static char *layer_name(const char *name) {
    size_t length = strlen(name), tail = strlen(".weight");
    assert(length > tail && !strcmp(name + length - tail, ".weight"));
    return memory_format("%.*s", (int)(length - tail), name);
}

static Layer layer_of(const Graph *graph, TensorId w) {
    Layer layer = {0};
    ByteSpan span = graph_state_span(graph, w);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->offset < span.begin || p->offset >= span.end) continue;
        assert(layer.parts < LORA_MAX_ADAPTERS);
        layer.columns[layer.parts] = p->shape[0];
        layer.names[layer.parts++] = layer_name(p->name);
    }
    return layer;
}

/* One matrix of each part, one after another: A, whose shapes are equal, or B. */
static TensorId declare(Graph *graph, const Layer *layer, const char *which, int64_t rows, int64_t columns, double std) {
    TensorId parts[LORA_MAX_ADAPTERS];
    for (int i = 0; i < layer->parts; i++) {
        char *name = memory_format("%s.%s.weight", layer->names[i], which);
        int64_t shape[] = {rows ? rows : layer->columns[i], columns};
        parts[i] = graph_parameter(graph, name, PARAMETER_MATRIX, 2, shape, 0, std, i > 0);
        free(name);
    }
    return graph_fuse(graph, parts, layer->parts);
}

TensorId builder_adaptable(Builder *b, TensorId x, TensorId w, TensorId bias, LoraTargets kind) {
    Graph *graph = b->graph;
    const LoraConfig *lora = b->lora;
    TensorId y = op_linear(graph, x, w, bias, false);
    if (!lora || !lora->rank || (lora->targets != (int)kind && lora->targets != LORA_ALL)) return y;
    Layer layer = layer_of(graph, w);
    int64_t in = graph_columns(graph, x);
    graph->frozen = false;
    TensorId down = declare(graph, &layer, "lora_A", lora->rank, in, 1 / sqrt(3.0 * (double)in));
    TensorId up = declare(graph, &layer, "lora_B", 0, lora->rank, 0);
    graph->frozen = true;
    for (int i = 0; i < layer.parts; i++) free(layer.names[i]);
    TensorId u = op_linear(graph, x, down, TENSOR_NONE, false);
    double factor = lora->alpha / (double)lora->rank;
    return op_lora(graph, y, factor == 1 ? u : op_scale(graph, u, factor), up, layer.columns, layer.parts);
}
