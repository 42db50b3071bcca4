/* Activation functions over COMPUTE rows: exact GELU (arXiv 1606.08415) and SwiGLU (arXiv 2002.05202; the gate half first, then the up
 * half). Threads share out whole rows: were they to cut a row, an element could move between the vector and the scalar form of a loop,
 * whose bits differ. Cheap to compute and dear to keep, so the recompute policies count them with the norms. */
#include "op/kernel.h"

#ifdef KERNEL_VARIANT

static const W inverse_sqrt_2 = (W)0.70710678118654752440, inverse_sqrt_2_pi = (W)0.39894228040143267794;

void KERNEL(gelu)(const OpCall *call) {
    const T *x = call->in[0];
    T *y = call->out[0];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = r * columns; i < (r + 1) * columns; i++) {
            W v = widen(x[i]);
            y[i] = narrow((W)0.5 * v * (1 + wide_erf(v * inverse_sqrt_2)));
        }
}

void KERNEL(gelu_grad)(const OpCall *call) {
    const T *d_y = call->in[0], *x = call->in[1];
    T *d_x = call->out[0];
    int64_t rows = call->in_shape[0][0], columns = call->in_shape[0][1];
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
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
        const T *restrict gate = x + 2 * r * width, *restrict up = gate + width, *restrict d_out = d_y + r * width;
        T *restrict d_gate = d_x + 2 * r * width, *restrict d_up = d_gate + width;
        for (int64_t j = 0; j < width; j++) {
            W g = widen(gate[j]), d = widen(d_out[j]), s = 1 / (1 + wide_exp(-g));
            d_gate[j] = narrow(d * widen(up[j]) * s * (1 + g * (1 - s)));
            d_up[j] = narrow(d * g * s);
        }
    }
}

#else

static TensorId append(Graph *graph, int op, TensorId x, TensorId d_y, int64_t columns, const char *name) {
    int64_t shape[] = {graph_rows(graph, x), columns};
    TensorId y = graph_tensor(graph, ARENA_ACTIVATION, TYPE_COMPUTE, 2, shape, name);
    TensorId in[] = {d_y ? d_y : x, x};
    graph_node(graph, op, in, d_y ? 2 : 1, &y, 1, NULL, 0);
    return y;
}

TensorId op_gelu(Graph *graph, TensorId x) { return append(graph, OP_gelu, x, TENSOR_NONE, graph_columns(graph, x), "gelu"); }

TensorId op_swiglu(Graph *graph, TensorId x) {
    assert(graph_columns(graph, x) % 2 == 0);
    return append(graph, OP_swiglu, x, TENSOR_NONE, graph_columns(graph, x) / 2, "swiglu");
}

static void gradient(Graph *graph, const Node *node, const TensorId *d_out, TensorId *d_in) {
    int op = node->op == OP_gelu ? OP_gelu_grad : OP_swiglu_grad;
    d_in[0] = append(graph, op, node->in[0], d_out[0], graph_columns(graph, node->in[0]), "d_x");
}

/* Counting an exponential, a division or an error function as ten operations. */
static Cost cost(const Graph *graph, const Node *node) {
    return (Cost){.flops = 25.0 * graph_elements(graph, node->out[0]), .bytes = op_tensor_bytes(graph, node)};
}

const Op op_rule_gelu = {.name = "gelu", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};
const Op op_rule_gelu_grad = {.name = "gelu_grad", .cost = cost};
const Op op_rule_swiglu = {.name = "swiglu", .class = OP_CLASS_NORM, .gradient = gradient, .cost = cost};
const Op op_rule_swiglu_grad = {.name = "swiglu_grad", .cost = cost};

#endif
