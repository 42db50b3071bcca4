/* Activation functions over COMPUTE rows: GELU (arXiv 1606.08415), exact or by its tanh approximation, SwiGLU (arXiv 2002.05202; the gate half first,
 * then the up half), the clamp that MPT puts on queries, keys and values, and the scale
 * of adapters. Threads share out whole rows: were they to cut a row, an element could
 * move between the vector and the scalar form of a loop, whose bits differ. For the same reason loops are marked as free of dependencies between elements,
 * not left to be found so at run time: the output may lie in an input's memory. Cheap to compute and dear to keep, so the recompute policies count
 * them with the norms. */
#include "op/activation.h"
#include "op/kernel.h"

#ifdef KERNEL_VARIANT

static const W inverse_sqrt_2 = (W)0.70710678118654752440, inverse_sqrt_2_pi = (W)0.39894228040143267794;

/* 0.5 (1 + tanh(u)) = 1 / (1 + e^(-2u)): the tanh form is x times a sigmoid of 2u = x (a + b x^2). */
static const W tanh_a = (W)1.59576912160573071176, tanh_b = (W)(1.59576912160573071176 * 0.044715);

static void gelu_tanh(T *y, const T *x, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        W v = widen(x[i]);
        y[i] = narrow(v / (1 + wide_exp(-v * (tanh_a + tanh_b * v * v))));
    }
}

static void gelu_tanh_grad(T *d_x, const T *d_y, const T *x, int64_t count) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        W v = widen(x[i]), s = 1 / (1 + wide_exp(-v * (tanh_a + tanh_b * v * v)));
        d_x[i] = narrow(widen(d_y[i]) * (s + v * s * (1 - s) * (tanh_a + 3 * tanh_b * v * v)));
    }
}

void KERNEL(gelu)(const OpCall *call) {
    const GeluAttributes *attributes = call->attributes;
    const T *x = call->in[0];
    T *y = call->out[0];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
    if (attributes->kind == GELU_TANH) {
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; r++) gelu_tanh(y + r * columns, x + r * columns, columns);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
            W v = widen(x[i]);
            y[i] = narrow((W)0.5 * v * (1 + wide_erf(v * inverse_sqrt_2)));
        }
}

void KERNEL(gelu_grad)(const OpCall *call) {
    const GeluAttributes *attributes = call->attributes;
    const T *d_y = call->in[0], *x = call->in[1];
    T *d_x = call->out[0];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
    if (attributes->kind == GELU_TANH) {
#pragma omp parallel for schedule(static)
        for (int64_t r = 0; r < rows; r++) gelu_tanh_grad(d_x + r * columns, d_y + r * columns, x + r * columns, columns);
        return;
    }
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
#pragma omp simd
        for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
            W v = widen(x[i]);
            W cumulative = (W)0.5 * (1 + wide_erf(v * inverse_sqrt_2)), density = inverse_sqrt_2_pi * wide_exp((W)-0.5 * v * v);
            d_x[i] = narrow(widen(d_y[i]) * (cumulative + v * density));
        }
}

void KERNEL(swiglu)(const OpCall *call) {
    const T *x = call->in[0];
    T *y = call->out[0];
    int64_t rows = call->out_shape[0][0], width = call->out_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *restrict gate = x + 2 * r * width, *restrict up = gate + width;
        T *restrict out = y + r * width;
        kernel_prefetch(gate + 2 * width, 2 * width);
        for (int64_t j = 0; j < width; j++) {
            W g = widen(gate[j]);
            out[j] = narrow(g / (1 + wide_exp(-g)) * widen(up[j]));
        }
    }
}

/* With s = sigmoid(g): d_gate = dy * up * s * (1 + g * (1 - s)), d_up = dy * g * s. */
void KERNEL(swiglu_grad)(const OpCall *call) {
    const T *d_y = call->in[0], *x = call->in[1];
    T *d_x = call->out[0];
    int64_t rows = call->in_shape[0][0], width = call->in_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++) {
        const T *gate = x + 2 * r * width, *up = gate + width, *d_out = d_y + r * width;
        T *d_gate = d_x + 2 * r * width, *d_up = d_gate + width;
        kernel_prefetch(gate + 2 * width, 2 * width);
        kernel_prefetch(d_out + width, width);
#pragma omp simd
        for (int64_t j = 0; j < width; j++) {
            W g = widen(gate[j]), d = widen(d_out[j]), s = 1 / (1 + wide_exp(-g));
            d_gate[j] = narrow(d * widen(up[j]) * s * (1 + g * (1 - s)));
            d_up[j] = narrow(d * g * s);
        }
    }
}

void KERNEL(clamp)(const OpCall *call) {
    const ClampAttributes *attributes = call->attributes;
    const T *x = call->in[0];
    T *y = call->out[0];
    int64_t elements = call->in_shape[0][0] * call->in_shape[0][1];
    W limit = (W)attributes->limit;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) {
        W v = widen(x[i]);
        v = v > limit ? limit : v;
        y[i] = narrow(v < -limit ? -limit : v);
    }
}

void KERNEL(clamp_grad)(const OpCall *call) {
    const ClampAttributes *attributes = call->attributes;
    const T *d_y = call->in[0], *x = call->in[1];
    T *d_x = call->out[0];
    int64_t elements = call->in_shape[0][0] * call->in_shape[0][1];
    W limit = (W)attributes->limit;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) {
        W v = widen(x[i]);
        d_x[i] = v > limit || v < -limit ? 0 : d_y[i];
    }
}

void KERNEL(scale)(const OpCall *call) {
    const ScaleAttributes *attributes = call->attributes;
    const T *x = call->in[0];
    T *y = call->out[0];
    int64_t elements = call->in_shape[0][0] * call->in_shape[0][1];
    W factor = (W)attributes->factor;
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < elements; i++) y[i] = narrow(factor * widen(x[i]));
}

#else

static TensorId append(Graph *graph, int op, TensorId x, int64_t columns, const char *name, const void *attributes, size_t bytes) {
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, (int64_t[]){graph_rows(graph, x), columns}, name);
    assert(graph_get(graph, x)->type == TYPE_COMPUTE);
    graph_node(graph, op, &x, 1, &y, 1, attributes, bytes);
    return y;
}

TensorId op_gelu(Graph *graph, TensorId x, GeluKind kind) {
    return append(graph, OP_gelu, x, graph_columns(graph, x), "gelu", &(GeluAttributes){kind}, sizeof(GeluAttributes));
}

TensorId op_swiglu(Graph *graph, TensorId x) {
    assert(graph_columns(graph, x) % 2 == 0);
    return append(graph, OP_swiglu, x, graph_columns(graph, x) / 2, "swiglu", NULL, 0);
}

TensorId op_clamp(Graph *graph, TensorId x, double limit) {
    assert(limit > 0);
    return append(graph, OP_clamp, x, graph_columns(graph, x), "clamped", &(ClampAttributes){limit}, sizeof(ClampAttributes));
}

TensorId op_scale(Graph *graph, TensorId x, double factor) {
    return append(graph, OP_scale, x, graph_columns(graph, x), "scaled", &(ScaleAttributes){factor}, sizeof(ScaleAttributes));
}

static void append_gradient(Graph *graph, int op, const Node *node, TensorId d_y, TensorId *d_x, size_t attribute_bytes) {
    int64_t shape[] = {graph_rows(graph, node->in[0]), graph_columns(graph, node->in[0])};
    *d_x = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, "d_x");
    graph_node(graph, op, (TensorId[]){d_y, node->in[0]}, 2, d_x, 1, node->attributes, attribute_bytes);
}

static void gelu_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    append_gradient(graph, OP_gelu_grad, node, d_out[0], d_in, sizeof(GeluAttributes));
}

static void swiglu_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    append_gradient(graph, OP_swiglu_grad, node, d_out[0], d_in, 0);
}

static void clamp_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    append_gradient(graph, OP_clamp_grad, node, d_out[0], d_in, sizeof(ClampAttributes));
}

static void scale_gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    const ScaleAttributes *attributes = node->attributes;
    d_in[0] = op_scale(graph, d_out[0], attributes->factor);
}

/* Counting an exponential, a division or an error function as ten operations. */
static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 25.0 * graph_elements(graph, node->out[0]), .bytes = op_tensor_bytes(graph, node)};
}

static Cost clamp_cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 2.0 * graph_elements(graph, node->out[0]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_gelu = {.name = "gelu", .class = OP_CLASS_NORM, .in_place = 1, .gradient = gelu_gradient, .cost = cost};
const Op op_rule_gelu_grad = {.name = "gelu_grad", .in_place = 1, .cost = cost};
const Op op_rule_swiglu = {.name = "swiglu", .class = OP_CLASS_NORM, .gradient = swiglu_gradient, .cost = cost};
const Op op_rule_swiglu_grad = {.name = "swiglu_grad", .in_place = 2, .cost = cost};
const Op op_rule_clamp = {.name = "clamp", .class = OP_CLASS_NORM, .in_place = 1, .gradient = clamp_gradient, .cost = clamp_cost};
const Op op_rule_clamp_grad = {.name = "clamp_grad", .in_place = 1, .cost = clamp_cost};
const Op op_rule_scale = {.name = "scale", .in_place = 1, .gradient = scale_gradient};

#endif
