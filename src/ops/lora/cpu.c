/* lora on a CPU: one GEMM per adapter, on all threads. */
#include "backend/cpu/kernel.h"
#include "ops/lora/lora.h"

CPU_OP(lora) {
    const LoraAttributes *attributes = call->attributes;
    const T *y = call->in[LORA_Y], *u = call->in[LORA_U], *b = call->in[LORA_B];
    T *adapted = call->out[LORA_ADAPTED];
    int64_t rows = call->in_shape[LORA_Y][0], out = call->in_shape[LORA_Y][1], width = call->in_shape[LORA_U][1];
    int64_t rank = call->in_shape[LORA_B][1];
    if (adapted != y) memcpy(adapted, y, rows * out * sizeof(T));
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm g = linear_gemm(shape, KERNEL_GEMM_COMPUTE, u + i * rank, b + row * rank, adapted + column);
        g.lda = width;
        g.ldc = out;
        g.accumulate = true;
        gemm(&g);
    }
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
