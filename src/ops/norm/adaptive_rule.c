/* Adaptive LayerNorm: shift, scale and gate come from the sample's conditions (time, text) instead
 * of parameters. norm.h has the formulas. In the backward pass, with n = (residual - mean) * rstd, g
 * = d_normed * (1 + scale) and sums over the rows of a sample:
 *     ds = d_residual + rstd * (g - mean(g) - n * mean(g * n)),   d_stream = ds,   d_block = ds * gate
 *     d_gate = sum(ds * block),   d_scale = sum(d_normed * n),   d_shift = sum(d_normed) */
#include "ops/norm/norm.h"

static void assert_vectors(const Graph *graph, TensorId stream, const TensorId *vectors, int count, bool there) {
    for (int i = 0; i < count; i++) {
        assert((vectors[i] != TENSOR_NONE) == there);
        if (!there) continue;
        assert(graph_get(graph, vectors[i])->type == TYPE_WIDE && graph_columns(graph, vectors[i]) == graph_columns(graph, stream));
        assert(graph_rows(graph, stream) % graph_rows(graph, vectors[i]) == 0);
    }
}

ResidualNorm op_adaptive_norm(Graph *graph, TensorId block, TensorId gate, TensorId stream, Modulation modulation, double epsilon) {
    bool adds = block != TENSOR_NONE, norms = modulation.scale != TENSOR_NONE;
    int64_t columns = graph_columns(graph, stream);
    assert(graph_get(graph, stream)->type == TYPE_WIDE && columns % 4 == 0 && columns <= FUSED_NORM_MOST_COLUMNS && (adds || norms));
    assert_vectors(graph, stream, &gate, 1, adds);
    assert_vectors(graph, stream, (TensorId[]){modulation.shift, modulation.scale}, 2, norms);
    assert(!adds || !norms || graph_rows(graph, gate) == graph_rows(graph, modulation.scale));
    Inputs in = {[ADAPTIVE_NORM_BLOCK] = block, [ADAPTIVE_NORM_GATE] = gate, [ADAPTIVE_NORM_STREAM] = stream};
    in[ADAPTIVE_NORM_SHIFT] = modulation.shift, in[ADAPTIVE_NORM_SCALE] = modulation.scale;
    Outputs out = {0};
    if (adds) out[ADAPTIVE_NORM_RESIDUAL] = graph_activation_like(graph, TYPE_WIDE, stream, "stream");
    if (norms) {
        out[ADAPTIVE_NORM_NORMED] = graph_activation_like(graph, TYPE_COMPUTE, stream, "normed");
        out[ADAPTIVE_NORM_STATISTICS] =
            graph_activation(graph, TYPE_WIDE, graph_rows(graph, stream), norm_statistics(NORM_LAYER), "statistics");
    }
    NormAttributes attributes = {NORM_LAYER, epsilon};
    graph_node(graph, OP_adaptive_norm, in, out, &attributes, sizeof attributes);
    return (ResidualNorm){.stream = adds ? out[ADAPTIVE_NORM_RESIDUAL] : stream, .normed = out[ADAPTIVE_NORM_NORMED]};
}

/* Returns a tensor for the gradient of a gate, shift or scale if it depends on a trained
 * parameter. */
static TensorId vector_gradient(Graph *graph, TensorId vector, const char *name) {
    return graph_get(graph, vector)->trains ? graph_activation_like(graph, TYPE_WIDE, vector, name) : TENSOR_NONE;
}

static void adaptive_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const TensorId *x = node->in, *y = node->out, stream = x[ADAPTIVE_NORM_STREAM];
    bool adds = x[ADAPTIVE_NORM_BLOCK] != TENSOR_NONE, norms = d_out[ADAPTIVE_NORM_NORMED] != TENSOR_NONE;
    Inputs in = {[ADAPTIVE_NORM_GRAD_D_RESIDUAL] = d_out[ADAPTIVE_NORM_RESIDUAL]};
    Outputs out = {0};
    d_in[ADAPTIVE_NORM_STREAM] = d_out[ADAPTIVE_NORM_RESIDUAL];
    if (adds) {
        in[ADAPTIVE_NORM_GRAD_BLOCK] = x[ADAPTIVE_NORM_BLOCK], in[ADAPTIVE_NORM_GRAD_GATE] = x[ADAPTIVE_NORM_GATE];
        d_in[ADAPTIVE_NORM_BLOCK] = graph_activation_like(graph, TYPE_COMPUTE, stream, "d_block");
        d_in[ADAPTIVE_NORM_GATE] = vector_gradient(graph, x[ADAPTIVE_NORM_GATE], "d_gate");
        out[ADAPTIVE_NORM_GRAD_D_BLOCK] = d_in[ADAPTIVE_NORM_BLOCK], out[ADAPTIVE_NORM_GRAD_D_GATE] = d_in[ADAPTIVE_NORM_GATE];
    }
    if (norms) {
        in[ADAPTIVE_NORM_GRAD_D_NORMED] = d_out[ADAPTIVE_NORM_NORMED];
        in[ADAPTIVE_NORM_GRAD_RESIDUAL] = adds ? y[ADAPTIVE_NORM_RESIDUAL] : stream;
        in[ADAPTIVE_NORM_GRAD_SCALE] = x[ADAPTIVE_NORM_SCALE];
        in[ADAPTIVE_NORM_GRAD_STATISTICS] = y[ADAPTIVE_NORM_STATISTICS];
        d_in[ADAPTIVE_NORM_STREAM] = graph_activation_like(graph, TYPE_WIDE, stream, "d_stream");
        d_in[ADAPTIVE_NORM_SHIFT] = vector_gradient(graph, x[ADAPTIVE_NORM_SHIFT], "d_shift");
        d_in[ADAPTIVE_NORM_SCALE] = vector_gradient(graph, x[ADAPTIVE_NORM_SCALE], "d_scale");
        out[ADAPTIVE_NORM_GRAD_D_STREAM] = d_in[ADAPTIVE_NORM_STREAM];
        out[ADAPTIVE_NORM_GRAD_D_SHIFT] = d_in[ADAPTIVE_NORM_SHIFT], out[ADAPTIVE_NORM_GRAD_D_SCALE] = d_in[ADAPTIVE_NORM_SCALE];
    }
    if (adds || norms) graph_node(graph, OP_adaptive_norm_grad, in, out, node->attributes, 0);
}

/* Recomputes only the norm, from the stream, which is kept. */
static TensorId recompute_adaptive(Graph *graph, const Node *node, int index) {
    const NormAttributes *attributes = node->attributes;
    bool adds = node->in[ADAPTIVE_NORM_BLOCK] != TENSOR_NONE;
    if (index != ADAPTIVE_NORM_NORMED) return TENSOR_NONE;
    TensorId residual = adds ? node->out[ADAPTIVE_NORM_RESIDUAL] : node->in[ADAPTIVE_NORM_STREAM];
    Modulation modulation = {node->in[ADAPTIVE_NORM_SHIFT], node->in[ADAPTIVE_NORM_SCALE]};
    return op_adaptive_norm(graph, TENSOR_NONE, TENSOR_NONE, residual, modulation, attributes->epsilon).normed;
}

/* Per element: the residual add takes two flops, its gradient four; the norm takes one more than a
 * LayerNorm with parameters. */
static double adaptive_flops(const Graph *graph, const Node *node) {
    double norm = node->in[ADAPTIVE_NORM_SCALE] ? 1 + norm_flops(node->attributes) : 0, add = node->in[ADAPTIVE_NORM_BLOCK] ? 2 : 0;
    return (norm + add) * graph_elements(graph, node->in[ADAPTIVE_NORM_STREAM]);
}
static double adaptive_grad_flops(const Graph *graph, const Node *node) {
    bool norms = node->in[ADAPTIVE_NORM_GRAD_SCALE] != TENSOR_NONE;
    double norm = norms ? 1 + 2 * norm_flops(node->attributes) : 0, add = node->in[ADAPTIVE_NORM_GRAD_BLOCK] ? 4 : 0;
    return (norm + add) * graph_elements(graph, node->in[norms ? ADAPTIVE_NORM_GRAD_RESIDUAL : ADAPTIVE_NORM_GRAD_BLOCK]);
}

const Op op_rule_adaptive_norm = {.name = "adaptive_norm",
    .class = OP_CLASS_NORM,
    .gradient = adaptive_gradient,
    .recompute = recompute_adaptive,
    .flops = adaptive_flops};
const Op op_rule_adaptive_norm_grad = {.name = "adaptive_norm_grad", .flops = adaptive_grad_flops};
