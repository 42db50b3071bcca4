/* The CPU kernels of grouped_linear. */
#include "backend/cpu/kernel.h"
#include "ops/moe/moe.h"

static int64_t experts_of(const Graph *graph, const Node *node) { return graph_elements(graph, node->in[2]) - 1; }

static int64_t workspace(const Graph *graph, const Node *node) { return experts_of(graph, node) * (int64_t)sizeof(Gemm); }

/* The products of the experts differ in their number of slots, which is m, or k in the gradient of the weight, and in
 * their operands, which move on by slots or by experts. */
typedef struct Grouped {
    Gemm product;                         /* that of expert 0, without its number of slots */
    int64_t a_row, b_row, c_row;          /* bytes from slot to slot, 0 where the operand is a weight */
    int64_t a_expert, b_expert, c_expert; /* bytes from expert to expert, 0 where the operand has slots */
    bool slots_are_depth;
} Grouped;

static void grouped_run(const Grouped *grouped, const OpCall *call, const int32_t *offset, int64_t experts) {
    Gemm *products = call->workspace;
    for (int64_t e = 0; e < experts; e++) {
        Gemm *product = &products[e];
        *product = grouped->product;
        product->a = (const char *)product->a + offset[e] * grouped->a_row + e * grouped->a_expert;
        product->b = (const char *)product->b + offset[e] * grouped->b_row + e * grouped->b_expert;
        product->c = (char *)product->c + offset[e] * grouped->c_row + e * grouped->c_expert;
        *(grouped->slots_are_depth ? &product->k : &product->m) = offset[e + 1] - offset[e];
    }
    gemm_batch(products, experts);
}

CPU_OP(grouped_linear, workspace) {
    int64_t experts = call->in_shape[1][0], out = call->in_shape[1][1], in = call->in_shape[1][2];
    Grouped grouped = {.product = {.transpose_b = true,
                           .input = KERNEL_GEMM_COMPUTE,
                           .output = KERNEL_GEMM_COMPUTE,
                           .n = out,
                           .k = in,
                           .a = call->in[0],
                           .lda = in,
                           .b = call->in[1],
                           .ldb = in,
                           .c = call->out[0],
                           .ldc = out},
        .a_row = in * (int64_t)sizeof(T),
        .b_expert = out * in * (int64_t)sizeof(T),
        .c_row = out * (int64_t)sizeof(T)};
    grouped_run(&grouped, call, call->in[2], experts);
    kernel_zero_unused(call->out[0], call->in[2], experts, call->in_shape[0][0], out);
}

CPU_OP(grouped_linear_grad_input, workspace) {
    int64_t experts = call->in_shape[1][0], out = call->in_shape[1][1], in = call->in_shape[1][2];
    Grouped grouped = {.product = {.input = KERNEL_GEMM_COMPUTE,
                           .output = KERNEL_GEMM_COMPUTE,
                           .n = in,
                           .k = out,
                           .a = call->in[0],
                           .lda = out,
                           .b = call->in[1],
                           .ldb = in,
                           .c = call->out[0],
                           .ldc = in},
        .a_row = out * (int64_t)sizeof(T),
        .b_expert = out * in * (int64_t)sizeof(T),
        .c_row = in * (int64_t)sizeof(T)};
    grouped_run(&grouped, call, call->in[2], experts);
    kernel_zero_unused(call->out[0], call->in[2], experts, call->in_shape[0][0], in);
}

CPU_OP(grouped_linear_grad_weight, workspace) {
    int64_t experts = call->out_shape[0][0], out = call->out_shape[0][1], in = call->out_shape[0][2];
    Grouped grouped = {.product = {.transpose_a = true,
                           .accumulate = !call->overwrite,
                           .input = KERNEL_GEMM_COMPUTE,
                           .output = kernel_gradient_type(call),
                           .m = out,
                           .n = in,
                           .a = call->in[0],
                           .lda = out,
                           .b = call->in[1],
                           .ldb = in,
                           .c = call->out[0],
                           .ldc = in},
        .a_row = out * (int64_t)sizeof(T),
        .b_row = in * (int64_t)sizeof(T),
        .c_expert = out * in * (int64_t)(call->compute_gradients ? sizeof(T) : sizeof(W)),
        .slots_are_depth = true};
    grouped_run(&grouped, call, call->in[2], experts);
}
