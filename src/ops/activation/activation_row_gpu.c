/* Activation functions of one row, fused into the kernel that computes their input, as in
 * generation. For a gated function a block multiplies by lines of the gate and by the matching
 * lines of the up projection. This saves one small kernel per function. The bits equal those of
 * the two separate kernels, because the GEMM's results are rounded in between. Called by gpu.c; no
 * scratch. */
#include "backend/gpu/formulas.h"
#include "backend/gpu/gemv.h"

/* y = the function of x B + bias: [n], or [n / 2] if it is gated. */
typedef struct ActivationRowArguments {
    Gemv gemv;
    const float GLOBAL *bias; /* NULL: none */
    bf16 GLOBAL *y;
    float alpha, limit; /* ActivationTerms */
} ActivationRowArguments;

#ifdef GPU_DEVICE

/* Computes this thread's element of the row, rounded as the GEMM rounds it; returns false if the
 * thread has none. */
INLINE bool make_element(const ActivationRowArguments *a, const int lines, float *x) {
    int32_t first = block_x() * lines, column = first + thread_id();
    float sums[GEMV_MOST_LINES];
    gemv_block(&a->gemv, first, lines, sums);
    float sum = add_threads(sums, lines);
    if (thread_id() >= lines || column >= a->gemv.n) return false;
    *x = to_float(to_bf16(a->bias ? sum + a->bias[column] : sum));
    return true;
}

#define ACTIVATION(name, hf, value, slope) \
    INLINE void name##_row(const ActivationRowArguments *a, const int lines) { \
        float x; \
        if (make_element(a, lines, &x)) a->y[block_x() * lines + thread_id()] = to_bf16(value); \
    } \
    ROW_KERNELS(name)
#define GATED(name, hf, value, d_gate, d_up) \
    INLINE void name##_row(const ActivationRowArguments *a, const int lines) { \
        int32_t width = a->gemv.n / 2, column = block_x() * (lines / 2) + thread_id(); \
        GemvPair pair = multiply_pairs(&a->gemv, width, lines); \
        const float alpha = a->alpha, limit = a->limit; \
        (void)alpha, (void)limit; \
        if (thread_id() >= lines / 2) return; \
        if (a->bias) pair.first += a->bias[column], pair.second += a->bias[width + column]; \
        float gate = to_float(to_bf16(pair.first)), up = to_float(to_bf16(pair.second)); \
        a->y[column] = to_bf16(value); \
    } \
    ROW_KERNELS(name)
/* Defines kernels NAME_4 and NAME_8 of NAME_row. */
#define ROW_KERNELS(name) \
    KERNEL(name##_4, ActivationRowArguments) { name##_row(&a, 4); } \
    KERNEL(name##_8, ActivationRowArguments) { name##_row(&a, 8); }
#include "config/activation_list.h"

#else

#include "ops/activation/activation.h"
#include "ops/activation/activation_row.h"
#include "ops/linear/linear.h"

static const GpuKernel kernels[ACTIVATION_COUNT][2] = {
#define ACTIVATION(name, ...) [ACTIVATION_##name] = {{GPU_MODULE, #name "_4"}, {GPU_MODULE, #name "_8"}},
#define GATED ACTIVATION
#include "config/activation_list.h"
};

int activation_absorbs_row(const Backend *backend, const Graph *graph, int index) {
    if (device_info(backend->device)->exact) return 0;
    const Node *node = &graph->nodes[index], *linear = node - 1;
    if (index == 0 || !linear_is_row(graph, linear) || linear->out[LINEAR_Y] != node->in[ACTIVATION_X]) return 0;
    TensorId w = linear->in[LINEAR_W];
    bool pairs = node->op != OP_gated_activation || graph_rows(graph, w) % 8 == 0;
    return pairs && gemv_reads(graph_columns(graph, w), graph_get(graph, w)->offset);
}

void activation_launch_row(const OpCall *call) {
    const OpCall *linear = call - 1;
    const int64_t *w_shape = linear->in_shape[LINEAR_W];
    const ActivationAttributes *attributes = call->attributes;
    bool lasts = ((const LinearAttributes *)linear->attributes)->lasts;
    ActivationRowArguments arguments = {.gemv = gemv_of(linear->in[LINEAR_X], linear->in[LINEAR_W], w_shape[0], w_shape[1], lasts),
        .bias = linear_has_bias(linear) ? linear->in[LINEAR_BIAS] : NULL,
        .y = call->out[ACTIVATION_Y],
        .alpha = (float)attributes->terms.alpha,
        .limit = (float)attributes->terms.limit};
    const GpuKernel *kernel = &kernels[attributes->function][gemv_is_shallow(w_shape[1])];
    gpu_launch(call->device, kernel, gemv_shape(&arguments.gemv), &arguments);
}

#endif
