/* Activation functions of one row, fused into the kernel that computes their input, as in
 * generation. For a gated function a block multiplies by lines of the gate and by the matching
 * lines of the up projection. This saves one small kernel per function, and a second one if the
 * norm before the GEMM joins (gemv.h). Without the norm the bits equal those of the two separate
 * kernels, because the GEMM's results are rounded in between. Called by gpu.c; no scratch. */
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

/* Returns a column's sum with its bias, as the GEMM rounds it. */
INLINE float rounded_sum(const ActivationRowArguments *a, float sum, int32_t column) {
    return to_float(to_bf16(a->bias ? sum + a->bias[column] : sum));
}

#define ACTIVATION(name, hf, value, slope) \
    INLINE void name##_row(const ActivationRowArguments *a, GemvForm form) { \
        GemvStream stream = stream_begin(&a->gemv, 0, form); \
        FOR_GROUPS(group, &a->gemv) { \
            float sum = stream_next(&stream, &a->gemv, group, 0, form); \
            int32_t column = group * form.lines + thread_id(); \
            if (thread_id() >= form.lines || column >= a->gemv.n) continue; \
            float x = rounded_sum(a, sum, column); \
            a->y[column] = to_bf16(value); \
        } \
    } \
    ROW_KERNELS(name)
#define GATED(name, hf, value, d_gate, d_up) \
    INLINE void name##_row(const ActivationRowArguments *a, GemvForm form) { \
        const int32_t width = a->gemv.n / 2; \
        const float alpha = a->alpha, limit = a->limit; \
        (void)alpha, (void)limit; \
        GemvStream stream = stream_begin(&a->gemv, width, form); \
        FOR_GROUPS(group, &a->gemv) { \
            GemvPair pair = pair_of_sums(stream_next(&stream, &a->gemv, group, width, form), form.lines); \
            int32_t column = group * (form.lines / 2) + thread_id(); \
            if (thread_id() >= form.lines / 2) continue; \
            float gate = rounded_sum(a, pair.first, column), up = rounded_sum(a, pair.second, width + column); \
            a->y[column] = to_bf16(value); \
        } \
    } \
    ROW_KERNELS(name)
/* Defines the kernels of NAME_row. */
#define ROW_KERNEL(name, end, form) \
    KERNEL(name##_##end, ActivationRowArguments) { name##_row(&a, form); }
#define ROW_KERNELS(name) GEMV_FORMS(ROW_KERNEL, name) GEMV_NORMED_FORMS(ROW_KERNEL, name)
#include "config/activation_list.h"

#else

#include "ops/activation/activation.h"
#include "ops/activation/activation_row.h"
#include "ops/linear/linear.h"
#include "ops/norm/norm.h"

static const GpuKernel kernels[ACTIVATION_COUNT][5] = {
#define ACTIVATION(name, ...) \
    [ACTIVATION_##name] = {{GPU_MODULE, #name "_deep"}, {GPU_MODULE, #name "_4"}, {GPU_MODULE, #name "_8"}, \
        {GPU_MODULE, #name "_normed_4"}, {GPU_MODULE, #name "_normed_8"}},
#define GATED ACTIVATION
#include "config/activation_list.h"
};

int activation_absorbs_row(const Backend *backend, const Graph *graph, int index) {
    if (device_info(backend->device)->exact) return 0;
    const Node *node = &graph->nodes[index], *linear = node - 1;
    if (index == 0 || !linear_is_row(graph, linear) || linear->out[LINEAR_Y] != node->in[ACTIVATION_X]) return 0;
    TensorId w = linear->in[LINEAR_W];
    bool pairs = node->op != OP_gated_activation || graph_rows(graph, w) % 8 == 0;
    if (!pairs || !gemv_reads(graph_columns(graph, w), graph_get(graph, w)->offset)) return 0;
    return 1 + norm_leads_row(graph, index - 1, GEMV_HELD);
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
    if (call->absorbs > 1) norm_of_row(linear - 1, &arguments.gemv.norm);
    LaunchShape shape = gemv_shape(device_info(call->device)->processors, &arguments.gemv);
    gpu_launch(call->device, &kernels[attributes->function][gemv_kernel(&arguments.gemv)], shape, &arguments);
}

#endif
