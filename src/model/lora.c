/* Low-rank adapters (LoRA, arXiv 2106.09685, as PEFT builds them): a linear layer W that is frozen gets y = W x +
 * (alpha / rank) B (A x) with A [rank, in] and B [out, rank], which alone are trained. A starts with normal values
 * of the deviation of PEFT's, which draws them from kaiming_uniform_(a = sqrt(5)), that is U(-1 / sqrt(in), 1 /
 * sqrt(in)) (peft/tuners/lora/layer.py): 1 / sqrt(3 in). B starts at zero, so that the model starts as it was.
 * Called by the families; owns nothing.
 *
 * The parameters of NAME.weight's adapter are NAME.lora_A.weight and NAME.lora_B.weight. Layers that are one GEMM
 * have their A one after another, which are one GEMM too. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/model_internal.h"
#include "ops/activation/activation.h"
#include "ops/linear/linear.h"
#include "ops/lora/lora.h"

/* The parameters that `weight` is a view of, NAME.weight [out, in], in order; returns their number and the rows of
 * each. Copies: the graph's own move when it grows. */
static int find_layers(const Graph *graph, TensorId weight, char *names[LORA_MAX_ADAPTERS], int64_t rows[LORA_MAX_ADAPTERS]) {
    ByteSpan span = graph_state_span(graph, weight);
    int count = 0;
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->offset < span.begin || p->offset >= span.end) continue;
        assert(count < LORA_MAX_ADAPTERS && strstr(p->name, ".weight"));
        rows[count] = p->shape[0];
        names[count++] = memory_format("%.*s", (int)(strlen(p->name) - strlen(".weight")), p->name);
    }
    return count;
}

/* Declares NAME.WHICH.weight [rows, columns] for each layer, one after another, and views them as one matrix. */
static TensorId declare(Graph *graph, char *const *names, int count, const char *which, const int64_t *rows, int64_t columns, double std) {
    TensorId matrices[LORA_MAX_ADAPTERS];
    for (int i = 0; i < count; i++) {
        char *name = memory_format("%s.%s.weight", names[i], which);
        matrices[i] = graph_parameter(graph, name, PARAMETER_MATRIX, 2, (int64_t[]){rows[i], columns}, 0, std, i > 0);
        free(name);
    }
    return graph_fuse(graph, matrices, count);
}

TensorId builder_linear(Builder *b, TensorId x, TensorId weight, TensorId bias, LoraTargets kind) {
    Graph *graph = b->graph;
    const LoraConfig *lora = b->lora;
    TensorId y = op_linear(graph, x, weight, bias, false);
    if (!lora || !lora->rank || (lora->targets != (int)kind && lora->targets != LORA_ALL)) return y;
    char *names[LORA_MAX_ADAPTERS];
    int64_t outs[LORA_MAX_ADAPTERS], ranks[LORA_MAX_ADAPTERS], in = graph_columns(graph, x);
    int count = find_layers(graph, weight, names, outs);
    for (int i = 0; i < count; i++) ranks[i] = lora->rank;
    graph->frozen = false;
    /* [count * rank, in] and [sum of out, rank] */
    TensorId down = declare(graph, names, count, "lora_A", ranks, in, 1 / sqrt(3.0 * (double)in));
    TensorId up = declare(graph, names, count, "lora_B", outs, lora->rank, 0);
    graph->frozen = true;
    for (int i = 0; i < count; i++) free(names[i]);
    TensorId u = op_linear(graph, x, down, TENSOR_NONE, false);
    double factor = lora->alpha / (double)lora->rank;
    return op_lora(graph, y, factor == 1 ? u : op_scale(graph, u, factor), up, outs, count);
}
