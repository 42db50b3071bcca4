/* SwiGLU of one row by the kernel that makes its gate and up, as in generation: a block multiplies by lines of the gate and by
 * those of what it opens. One small kernel less a layer; the bits are those of both kernels one after the other, as gate
 * and up are rounded between. Called by gpu.c; no scratch. */
#include "backend/gpu/gemv.h"
#include "ops/activation/swiglu_row.h"

/* y [n / 2] = SwiGLU of x B + bias */
typedef struct SwigluRowArguments {
    Gemv gemv;
    const float GLOBAL *bias; /* NULL: none */
    bf16 GLOBAL *y;
} SwigluRowArguments;

#ifdef GPU_DEVICE

INLINE void swiglu_row(const SwigluRowArguments *a, const int lines) {
    int32_t width = a->gemv.n / 2, column = block_x() * (lines / 2) + thread_id();
    GemvPair pair = multiply_pairs(&a->gemv, width, lines);
    if (thread_id() >= lines / 2) return;
    if (a->bias) pair.first += a->bias[column], pair.second += a->bias[width + column];
    float gate = to_float(to_bf16(pair.first)), up = to_float(to_bf16(pair.second));
    a->y[column] = to_bf16(gate * sigmoid(gate) * up);
}

KERNEL(swiglu_row_4, SwigluRowArguments) { swiglu_row(&a, 4); }
KERNEL(swiglu_row_8, SwigluRowArguments) { swiglu_row(&a, 8); }

#else

#include "ops/activation/activation.h"
#include "ops/linear/linear.h"

LAUNCHERS(swiglu_row, SwigluRowArguments, swiglu_row_4, swiglu_row_8)

int swiglu_absorbs_row(const Graph *graph, int index) {
    const Node *node = &graph->nodes[index], *linear = node - 1;
    if (index == 0 || !linear_is_row(graph, linear) || linear->out[LINEAR_Y] != node->in[ACTIVATION_X]) return 0;
    TensorId w = linear->in[LINEAR_W];
    return graph_rows(graph, w) % 8 == 0 && gemv_reads(graph_columns(graph, w), graph_get(graph, w)->offset);
}

void swiglu_launch_row(const OpCall *call) {
    const OpCall *linear = call - 1;
    const int64_t *w_shape = linear->in_shape[LINEAR_W];
    bool lasts = ((const LinearAttributes *)linear->attributes)->lasts;
    SwigluRowArguments arguments = {.gemv = gemv_of(linear->in[LINEAR_X], linear->in[LINEAR_W], w_shape[0], w_shape[1], lasts),
        .bias = linear_has_bias(linear) ? linear->in[LINEAR_BIAS] : NULL,
        .y = call->out[ACTIVATION_Y]};
    launch_swiglu_row(call->device, gemv_is_shallow(w_shape[1]), gemv_shape(&arguments.gemv), &arguments);
}

#endif
