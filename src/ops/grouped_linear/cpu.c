/* grouped_linear on a CPU: the GEMMs of all experts form one batch, which gemm_batch divides among
 * all threads. They are listed in the workspace. */
#include "backend/cpu/kernel.h"
#include "ops/grouped_linear/grouped_linear.h"

static int64_t grouped_linear_cpu_workspace(const Graph *graph, const Node *node) {
    return graph_get(graph, grouped_linear_node_weight(node))->shape[0] * (int64_t)sizeof(Gemm);
}

/* Runs the GEMMs of all experts. `first` has all slots and the operands of expert 0. An expert's
 * GEMM has its number of slots as m, or as k in the weight gradient, whose A is transposed. Its
 * operands with slots begin at its first slot, and it has its own weight or gradient. */
static void run_experts(const OpCall *call, Gemm first, const int32_t *offset, int64_t experts) {
    Gemm *gemms = call->workspace;
    bool slots_are_depth = first.transpose_a;
    size_t output_bytes = first.output == KERNEL_GEMM_COMPUTE ? sizeof(T) : sizeof(W);
    for (int64_t e = 0; e < experts; e++) {
        Gemm *g = &gemms[e];
        int64_t begin = offset[e], slots = offset[e + 1] - begin;
        *g = first;
        g->a = (const T *)first.a + begin * first.lda;
        g->b = (const T *)first.b + (slots_are_depth ? begin * first.ldb : e * first.n * first.k);
        g->c = (char *)first.c + (slots_are_depth ? e * first.m * first.n : begin * first.ldc) * (int64_t)output_bytes;
        *(slots_are_depth ? &g->k : &g->m) = slots;
    }
    gemm_batch(gemms, experts);
}

CPU_OP(grouped_linear, grouped_linear_cpu_workspace) {
    const T *x = call->in[GROUPED_LINEAR_X], *w = call->in[GROUPED_LINEAR_W];
    const int32_t *offset = call->in[GROUPED_LINEAR_OFFSET];
    const int64_t *w_shape = call->in_shape[GROUPED_LINEAR_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_X][0], .out = w_shape[1], .in = w_shape[2]};
    const T *sum = call->in[GROUPED_LINEAR_SUM];
    T *y = call->out[GROUPED_LINEAR_Y];
    Gemm first = linear_gemm(shape, KERNEL_GEMM_COMPUTE, x, w, y);
    first.accumulate = sum != NULL;
    if (sum && sum != y) memcpy(y, sum, shape.rows * shape.out * sizeof *y);
    run_experts(call, first, offset, w_shape[0]);
    kernel_zero_unused(y, offset, w_shape[0], shape.rows, shape.out);
}

CPU_OP(grouped_linear_grad_input, grouped_linear_cpu_workspace) {
    const T *d_y = call->in[GROUPED_LINEAR_GRAD_INPUT_D_Y], *w = call->in[GROUPED_LINEAR_GRAD_INPUT_W];
    const int32_t *offset = call->in[GROUPED_LINEAR_GRAD_INPUT_OFFSET];
    const int64_t *w_shape = call->in_shape[GROUPED_LINEAR_GRAD_INPUT_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_GRAD_INPUT_D_Y][0], .out = w_shape[1], .in = w_shape[2]};
    T *d_x = call->out[GROUPED_LINEAR_GRAD_INPUT_D_X];
    run_experts(call, linear_grad_input_gemm(shape, KERNEL_GEMM_COMPUTE, d_y, w, d_x), offset, w_shape[0]);
    kernel_zero_unused(d_x, offset, w_shape[0], shape.rows, shape.in);
}

CPU_OP(grouped_linear_grad_weight, grouped_linear_cpu_workspace) {
    const T *d_y = call->in[GROUPED_LINEAR_GRAD_WEIGHT_D_Y], *x = call->in[GROUPED_LINEAR_GRAD_WEIGHT_X];
    const int64_t *w_shape = call->out_shape[GROUPED_LINEAR_GRAD_WEIGHT_D_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_GRAD_WEIGHT_X][0], .out = w_shape[1], .in = w_shape[2]};
    void *d_w = call->out[GROUPED_LINEAR_GRAD_WEIGHT_D_W];
    Gemm first = linear_grad_weight_gemm(shape, KERNEL_GEMM_COMPUTE, d_y, x, d_w, call->overwrite);
    first.output = kernel_gradient_type(call);
    run_experts(call, first, call->in[GROUPED_LINEAR_GRAD_WEIGHT_OFFSET], w_shape[0]);
}
