/* lora, lora_groups and adapted_linear on a CPU: one GEMM per adapter on all threads, and the frozen
 * layer's GEMM. The GEMMs of all groups form one batch, listed in the workspace. */
#include "backend/cpu/kernel.h"
#include "ops/lora/lora.h"

/* y [rows, out] += u_i b_i^T, with u [rows, width] and rank columns of b. */
static void add_adapters(const LoraAttributes *attributes, T *y, const T *u, const T *b, int64_t rows, int64_t out, int64_t rank) {
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm g = linear_gemm(shape, KERNEL_GEMM_COMPUTE, u + i * rank, b + row * rank, y + column);
        g.lda = attributes->adapters * rank;
        g.ldc = out;
        g.accumulate = true;
        gemm(&g);
    }
}

CPU_OP(lora) {
    const T *y = call->in[LORA_Y];
    T *adapted = call->out[LORA_ADAPTED];
    int64_t rows = call->in_shape[LORA_Y][0], out = call->in_shape[LORA_Y][1];
    if (adapted != y) memcpy(adapted, y, rows * out * sizeof(T));
    add_adapters(call->attributes, adapted, call->in[LORA_U], call->in[LORA_B], rows, out, call->in_shape[LORA_B][1]);
}

/* A GEMM for each adapter of each group. */
static int64_t lora_groups_workspace(const Graph *graph, const Node *node) {
    const LoraAttributes *attributes = node->attributes;
    return (graph_elements(graph, node->in[LORA_GROUPS_OFFSET]) - 1) * attributes->adapters * (int64_t)sizeof(Gemm);
}

CPU_OP(lora_groups, lora_groups_workspace) {
    const LoraAttributes *attributes = call->attributes;
    const T *y = call->in[LORA_GROUPS_Y], *u = call->in[LORA_GROUPS_U], *b = call->in[LORA_GROUPS_B];
    const int32_t *offset = call->in[LORA_GROUPS_OFFSET];
    int64_t rows = call->in_shape[LORA_GROUPS_Y][0], out = call->in_shape[LORA_GROUPS_Y][1];
    int64_t width = call->in_shape[LORA_GROUPS_U][1], rank = call->in_shape[LORA_GROUPS_B][1];
    int64_t groups = call->in_shape[LORA_GROUPS_OFFSET][0] - 1, count = 0;
    T *adapted = call->out[LORA_GROUPS_ADAPTED];
    Gemm *gemms = call->workspace;
    if (adapted != y) memcpy(adapted, y, rows * out * sizeof(T));
    for (int64_t i = 0; i < attributes->adapters; i++)
        for (int64_t g = 0; g < groups; g++, count++, b += attributes->columns[i].count * rank) {
            LinearShape shape = {.rows = offset[g + 1] - offset[g], .in = rank, .out = attributes->columns[i].count};
            T *to = adapted + offset[g] * out + attributes->columns[i].first;
            gemms[count] = linear_gemm(shape, KERNEL_GEMM_COMPUTE, u + offset[g] * width + i * rank, b, to);
            gemms[count].lda = width;
            gemms[count].ldc = out;
            gemms[count].accumulate = true;
        }
    gemm_batch(gemms, count);
}

CPU_OP(lora_grad_input) {
    const LoraAttributes *attributes = call->attributes;
    const T *d_adapted = call->in[LORA_GRAD_INPUT_D_ADAPTED], *b = call->in[LORA_GRAD_INPUT_B];
    T *d_u = call->out[LORA_GRAD_INPUT_D_U];
    int64_t rows = call->in_shape[LORA_GRAD_INPUT_D_ADAPTED][0], out = call->in_shape[LORA_GRAD_INPUT_D_ADAPTED][1];
    int64_t rank = call->in_shape[LORA_GRAD_INPUT_B][1], width = call->out_shape[LORA_GRAD_INPUT_D_U][1];
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm g = linear_grad_input_gemm(shape, KERNEL_GEMM_COMPUTE, d_adapted + column, b + row * rank, d_u + i * rank);
        g.lda = out;
        g.ldc = width;
        gemm(&g);
    }
}

CPU_OP(lora_grad_weight) {
    const LoraAttributes *attributes = call->attributes;
    const T *d_adapted = call->in[LORA_GRAD_WEIGHT_D_ADAPTED], *u = call->in[LORA_GRAD_WEIGHT_U];
    char *d_b = call->out[LORA_GRAD_WEIGHT_D_B];
    int64_t rows = call->in_shape[LORA_GRAD_WEIGHT_D_ADAPTED][0], out = call->in_shape[LORA_GRAD_WEIGHT_D_ADAPTED][1];
    int64_t width = call->in_shape[LORA_GRAD_WEIGHT_U][1], rank = call->out_shape[LORA_GRAD_WEIGHT_D_B][1];
    int64_t row_bytes = rank * (int64_t)(call->compute_gradients ? sizeof(T) : sizeof(W));
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm g =
            linear_grad_weight_gemm(shape, KERNEL_GEMM_COMPUTE, d_adapted + column, u + i * rank, d_b + row * row_bytes, call->overwrite);
        g.output = kernel_gradient_type(call);
        g.lda = out;
        g.ldb = width;
        gemm(&g);
    }
}

CPU_OP(adapted_linear) {
    const AdaptedLinearAttributes *attributes = call->attributes;
    const int64_t *x_shape = call->in_shape[ADAPTED_LINEAR_X];
    LinearShape shape = {.rows = x_shape[0], .in = x_shape[1], .out = call->in_shape[ADAPTED_LINEAR_W][0]};
    T *y = call->out[ADAPTED_LINEAR_Y];
    Gemm g = linear_gemm(shape, KERNEL_GEMM_COMPUTE, call->in[ADAPTED_LINEAR_X], call->in[ADAPTED_LINEAR_W], y);
    g.bias = adapted_linear_has_bias(call) ? call->in[ADAPTED_LINEAR_BIAS] : NULL;
    gemm(&g);
    add_adapters(&attributes->lora, y, call->in[ADAPTED_LINEAR_U], call->in[ADAPTED_LINEAR_B], shape.rows, shape.out,
        call->in_shape[ADAPTED_LINEAR_B][1]);
}

CPU_OP(adapted_linear_grad_input) {
    const int64_t *w_shape = call->in_shape[ADAPTED_LINEAR_GRAD_INPUT_W], *u_shape = call->in_shape[ADAPTED_LINEAR_GRAD_INPUT_D_U];
    LinearShape narrow = {.rows = u_shape[0], .in = w_shape[1], .out = u_shape[1]}, whole = {u_shape[0], w_shape[1], w_shape[0]};
    T *d_x = call->out[ADAPTED_LINEAR_GRAD_INPUT_D_X];
    Gemm g = linear_grad_input_gemm(
        narrow, KERNEL_GEMM_COMPUTE, call->in[ADAPTED_LINEAR_GRAD_INPUT_D_U], call->in[ADAPTED_LINEAR_GRAD_INPUT_A], d_x);
    gemm(&g);
    g = linear_grad_input_gemm(
        whole, KERNEL_GEMM_COMPUTE, call->in[ADAPTED_LINEAR_GRAD_INPUT_D_Y], call->in[ADAPTED_LINEAR_GRAD_INPUT_W], d_x);
    g.accumulate = true;
    gemm(&g);
}
