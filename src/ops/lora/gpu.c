/* lora on a GPU: one device_gemm per adapter. No kernels, no scratch. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"
#include "ops/lora/lora.h"

GPU_OP(lora) {
    const LoraAttributes *attributes = call->attributes;
    const bf16 *y = call->in[LORA_Y], *u = call->in[LORA_U], *b = call->in[LORA_B];
    bf16 *adapted = call->out[LORA_ADAPTED];
    int64_t rows = call->in_shape[LORA_Y][0], out = call->in_shape[LORA_Y][1], width = call->in_shape[LORA_U][1];
    int64_t rank = call->in_shape[LORA_B][1];
    if (adapted != y) device_copy(call->device, adapted, y, rows * out * (int64_t)sizeof(bf16));
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm gemm = linear_gemm(shape, GEMM_BF16, u + i * rank, b + row * rank, adapted + column);
        gemm.lda = width;
        gemm.ldc = out;
        gemm.accumulate = true;
        device_gemm(call->device, &gemm);
    }
}

GPU_OP(lora_grad_input) {
    const LoraAttributes *attributes = call->attributes;
    const bf16 *d_adapted = call->in[LORA_GRAD_INPUT_D_ADAPTED], *b = call->in[LORA_GRAD_INPUT_B];
    bf16 *d_u = call->out[LORA_GRAD_INPUT_D_U];
    int64_t rows = call->in_shape[LORA_GRAD_INPUT_D_ADAPTED][0], out = call->in_shape[LORA_GRAD_INPUT_D_ADAPTED][1];
    int64_t rank = call->in_shape[LORA_GRAD_INPUT_B][1], width = call->out_shape[LORA_GRAD_INPUT_D_U][1];
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm gemm = linear_grad_input_gemm(shape, GEMM_BF16, d_adapted + column, b + row * rank, d_u + i * rank);
        gemm.lda = out;
        gemm.ldc = width;
        device_gemm(call->device, &gemm);
    }
}

GPU_OP(lora_grad_weight) {
    const LoraAttributes *attributes = call->attributes;
    const bf16 *d_adapted = call->in[LORA_GRAD_WEIGHT_D_ADAPTED], *u = call->in[LORA_GRAD_WEIGHT_U];
    char *d_b = call->out[LORA_GRAD_WEIGHT_D_B];
    int64_t rows = call->in_shape[LORA_GRAD_WEIGHT_D_ADAPTED][0], out = call->in_shape[LORA_GRAD_WEIGHT_D_ADAPTED][1];
    int64_t width = call->in_shape[LORA_GRAD_WEIGHT_U][1], rank = call->out_shape[LORA_GRAD_WEIGHT_D_B][1];
    int64_t row_bytes = rank * (int64_t)(call->compute_gradients ? sizeof(bf16) : sizeof(float));
    for (int64_t i = 0, row = 0; i < attributes->adapters; row += attributes->columns[i++].count) {
        int64_t column = attributes->columns[i].first;
        LinearShape shape = {.rows = rows, .in = rank, .out = attributes->columns[i].count};
        Gemm gemm = linear_grad_weight_gemm(shape, GEMM_BF16, d_adapted + column, u + i * rank, d_b + row * row_bytes, call->overwrite);
        gemm.output = gpu_gradient_type(call);
        gemm.lda = out;
        gemm.ldb = width;
        device_gemm(call->device, &gemm);
    }
}

#endif
