/* dequantize converts frozen matrices from quantized values and scales (base/quantize.h); if one
 * GEMM reads several matrices, they are stored one after another. No gradient flows: quantized
 * values are never trained. The forward and the backward pass each dequantize a matrix again,
 * because the purpose of quantizing is to keep no dequantized model in memory. */
#include "ops/dequantize/dequantize.h"

TensorId op_dequantize(Graph *graph, TensorId weight) {
    DequantizeAttributes attributes = {0};
    Inputs in = {0};
    ByteSpan span = graph_state_span(graph, weight);
    for (int i = 0; i < graph->parameter_count; i++) {
        const Parameter *p = &graph->parameters[i];
        if (p->offset < span.begin || p->offset >= span.end) continue;
        if (!p->quantization) return weight;
        assert(attributes.parts < DEQUANTIZE_PARTS && (!attributes.parts || attributes.quantization == p->quantization));
        in[DEQUANTIZE_QUANTIZED + attributes.parts] = p->quantized;
        in[DEQUANTIZE_SCALES + attributes.parts] = p->scales;
        attributes.quantization = p->quantization;
        attributes.count[attributes.parts++] = p->count;
    }
    if (!attributes.parts) return weight; /* a range of rows: tensor-parallel ranks read it only from unquantized matrices */
    const Tensor *w = graph_get(graph, weight);
    TensorId made = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, w->rank, w->shape, "dequantized");
    graph->tensors[made].frozen = true;
    graph_node(graph, OP_dequantize, in, (Outputs){[DEQUANTIZE_WEIGHT] = made}, &attributes, sizeof attributes);
    return made;
}

const Op op_rule_dequantize = {.name = "dequantize", .class = OP_CLASS_GATHER};
