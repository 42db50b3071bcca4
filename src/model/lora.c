/* Low-rank adapters (LoRA, arXiv 2106.09685, as PEFT builds them): a linear layer W that is frozen gets y = W x +
 * (alpha / rank) B (A x) with A [rank, in] and B [out, rank], which alone are trained. A starts with normal values
 * of the deviation of PEFT's, which draws them from kaiming_uniform_(a = sqrt(5)), that is U(-1 / sqrt(in), 1 /
 * sqrt(in)) (peft/tuners/lora/layer.py): 1 / sqrt(3 in). B starts at zero, so that the model starts as it was.
 * Called by the families; owns nothing.
 *
 * The parameters of NAME.weight's adapter are NAME.lora_A.weight and NAME.lora_B.weight. Layers that are one GEMM
 * have their A one after another, which are one GEMM too.
 *
 * Of a layer whose output ranks share out, each has all of A and its rows of B; of one whose input they share out, its
 * columns of A and all of B. What each adds is then a part of the layer's own result, and so are the gradients. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/fp8/fp8.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

/* The parameters that `weight` is a view of, NAME.weight [out, in], in order; returns their number. Copies: the graph's own
 * move when it grows. */
static int find_layers(const Graph *graph, TensorId weight, Parameter layers[LORA_MAX_ADAPTERS]) {
    ByteSpan span = graph_state_span(graph, weight);
    int count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->offset < span.begin || p->offset >= span.end) continue;
        assert(count < LORA_MAX_ADAPTERS && strstr(p->name, ".weight"));
        layers[count++] = *p;
    }
    assert(count > 0);
    return count;
}

/* Declares NAME.lora_A.weight [rank, in] or NAME.lora_B.weight [out, rank] for each layer, one after another, and views them
 * as one matrix. Ranks share it out as they do the layer, along the dimension that both have. */
static TensorId declare(Graph *graph, const Parameter *layers, int count, bool down, int64_t rank, double std) {
    TensorId matrices[LORA_MAX_ADAPTERS];
    for (int i = 0; i < count; i++) {
        const Parameter *layer = &layers[i];
        int stem = (int)(strlen(layer->name) - strlen(".weight"));
        int64_t shape[] = {down ? rank : layer->whole[0], down ? layer->whole[1] : rank};
        Cut cut = layer->cut.dimension == down ? layer->cut : (Cut){0};
        char *name = memory_format("%.*s.%s.weight", stem, layer->name, down ? "lora_A" : "lora_B");
        matrices[i] = graph_cut_parameter(graph, name, PARAMETER_MATRIX, 2, shape, &cut, 0, std, i > 0);
        free(name);
    }
    return graph_fuse(graph, matrices, count);
}

/* y with what its adapters add to it. */
static TensorId adapt(Builder *b, TensorId x, TensorId weight, TensorId y) {
    Graph *graph = b->graph;
    const LoraConfig *lora = b->lora;
    Parameter layers[LORA_MAX_ADAPTERS];
    int64_t outs[LORA_MAX_ADAPTERS];
    int count = find_layers(graph, weight, layers);
    for (int i = 0; i < count; i++) outs[i] = layers[i].shape[0];
    graph->frozen = false;
    /* [count * rank, in] and [sum of out, rank] */
    TensorId down = declare(graph, layers, count, true, lora->rank, 1 / sqrt(3.0 * (double)layers[0].whole[1]));
    TensorId up = declare(graph, layers, count, false, lora->rank, 0);
    graph->frozen = true;
    TensorId u = op_linear(graph, x, down, TENSOR_NONE, false);
    double factor = lora->alpha / (double)lora->rank;
    return op_lora(graph, y, factor == 1 ? u : op_scale(graph, u, factor), up, outs, count);
}

static TensorId multiply(Builder *b, TensorId x, const Linear *linear) {
    const LinearPart *part = &linear->parts[0];
    MeshAxes sum = linear->split == SPLIT_INPUT ? AXES_TENSOR : 0;
    bool fp8 = builder_is_fp8(b, graph_rows(b->graph, x), 0, graph_rows(b->graph, part->w), graph_columns(b->graph, part->w));
    if (!fp8 || linear->parts[1].w) return op_linear_parts(b->graph, x, linear->parts, sum);
    return op_fp8_linear(b->graph, x, part->w, part->bias, sum, (Fp8Recipe)b->config->fp8.recipe);
}

TensorId builder_linear(Builder *b, TensorId x, const Linear *linear, LoraTargets kind) {
    const LoraConfig *lora = b->lora;
    bool adapted = lora && lora->rank && (lora->targets == (int)kind || lora->targets == LORA_ALL);
    if (linear->split == SPLIT_OUTPUT) x = builder_gather(b, x);
    TensorId y = multiply(b, x, linear);
    assert(!adapted || !linear->parts[1].w);
    if (adapted) y = adapt(b, x, linear->parts[0].w, y);
    return linear->split == SPLIT_INPUT ? builder_scatter(b, y) : y;
}
