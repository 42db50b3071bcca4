/* grouped_linear on a CPU: the GEMMs of all experts as one batch, which gemm_batch shares out over all threads. They
 * are listed in the workspace. */
#include "backend/cpu/kernel.h"
#include "ops/grouped_linear/grouped_linear.h"

static int64_t workspace(const Graph *graph, const Node *node) {
    return graph_get(graph, grouped_linear_node_weight(node))->shape[0] * (int64_t)sizeof(Gemm);
}

/* How the GEMM of an expert differs from that of expert 0: in its number of slots, which is m, or k in the gradient
 * of the weight, and in its operands, which start at its first slot or are its weight. */
typedef struct Grouped {
    Gemm first;                           /* of expert 0; its number of slots is ignored */
    int64_t a_slot, b_slot, c_slot;       /* bytes from slot to slot, 0 where the operand is a weight */
    int64_t a_expert, b_expert, c_expert; /* bytes from expert to expert, 0 where the operand has slots */
    bool slots_are_depth;                 /* k is the number of slots */
} Grouped;

static void run_grouped(const OpCall *call, const Grouped *grouped, const int32_t *offset, int64_t experts) {
    Gemm *gemms = call->workspace;
    for (int64_t e = 0; e < experts; e++) {
        Gemm *g = &gemms[e];
        *g = grouped->first;
        g->a = (const char *)g->a + offset[e] * grouped->a_slot + e * grouped->a_expert;
        g->b = (const char *)g->b + offset[e] * grouped->b_slot + e * grouped->b_expert;
        g->c = (char *)g->c + offset[e] * grouped->c_slot + e * grouped->c_expert;
        *(grouped->slots_are_depth ? &g->k : &g->m) = offset[e + 1] - offset[e];
    }
    gemm_batch(gemms, experts);
}

CPU_OP(grouped_linear, workspace) {
    const T *x = call->in[GROUPED_LINEAR_X], *w = call->in[GROUPED_LINEAR_W];
    const int32_t *offset = call->in[GROUPED_LINEAR_OFFSET];
    const int64_t *w_shape = call->in_shape[GROUPED_LINEAR_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_X][0], .out = w_shape[1], .in = w_shape[2]};
    T *y = call->out[GROUPED_LINEAR_Y];
    Grouped grouped = {
        .first = linear_gemm(shape, KERNEL_GEMM_COMPUTE, x, w, y),
        .a_slot = shape.in * (int64_t)sizeof(T),
        .b_expert = shape.out * shape.in * (int64_t)sizeof(T),
        .c_slot = shape.out * (int64_t)sizeof(T),
    };
    run_grouped(call, &grouped, offset, w_shape[0]);
    kernel_zero_unused(y, offset, w_shape[0], shape.rows, shape.out);
}

CPU_OP(grouped_linear_grad_input, workspace) {
    const T *d_y = call->in[GROUPED_LINEAR_GRAD_INPUT_D_Y], *w = call->in[GROUPED_LINEAR_GRAD_INPUT_W];
    const int32_t *offset = call->in[GROUPED_LINEAR_GRAD_INPUT_OFFSET];
    const int64_t *w_shape = call->in_shape[GROUPED_LINEAR_GRAD_INPUT_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_GRAD_INPUT_D_Y][0], .out = w_shape[1], .in = w_shape[2]};
    T *d_x = call->out[GROUPED_LINEAR_GRAD_INPUT_D_X];
    Grouped grouped = {
        .first = linear_grad_input_gemm(shape, KERNEL_GEMM_COMPUTE, d_y, w, d_x),
        .a_slot = shape.out * (int64_t)sizeof(T),
        .b_expert = shape.out * shape.in * (int64_t)sizeof(T),
        .c_slot = shape.in * (int64_t)sizeof(T),
    };
    run_grouped(call, &grouped, offset, w_shape[0]);
    kernel_zero_unused(d_x, offset, w_shape[0], shape.rows, shape.in);
}

CPU_OP(grouped_linear_grad_weight, workspace) {
    const T *d_y = call->in[GROUPED_LINEAR_GRAD_WEIGHT_D_Y], *x = call->in[GROUPED_LINEAR_GRAD_WEIGHT_X];
    const int64_t *w_shape = call->out_shape[GROUPED_LINEAR_GRAD_WEIGHT_D_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_GRAD_WEIGHT_X][0], .out = w_shape[1], .in = w_shape[2]};
    void *d_w = call->out[GROUPED_LINEAR_GRAD_WEIGHT_D_W];
    Grouped grouped = {
        .first = linear_grad_weight_gemm(shape, KERNEL_GEMM_COMPUTE, d_y, x, d_w, call->overwrite),
        .a_slot = shape.out * (int64_t)sizeof(T),
        .b_slot = shape.in * (int64_t)sizeof(T),
        .c_expert = shape.out * shape.in * (int64_t)(call->compute_gradients ? sizeof(T) : sizeof(W)),
        .slots_are_depth = true,
    };
    grouped.first.output = kernel_gradient_type(call);
    run_grouped(call, &grouped, call->in[GROUPED_LINEAR_GRAD_WEIGHT_OFFSET], w_shape[0]);
}
