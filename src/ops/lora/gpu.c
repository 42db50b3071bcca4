/* The upward half of low-rank adapters on a GPU (op/lora.c): products of device_gemm alone, one for each part of y. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/kernel_launch.h"
#include "ops/lora/lora.h"

GPU_OP(lora) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], width = call->in_shape[1][1], rank = call->in_shape[2][1];
    if (call->out[0] != call->in[0]) device_copy(call->device, call->out[0], call->in[0], rows * out * (int64_t)sizeof(bf16));
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        device_gemm(call->device, &(Gemm){.transpose_b = true,
                                      .accumulate = true,
                                      .input = GEMM_BF16,
                                      .output = GEMM_BF16,
                                      .m = rows,
                                      .n = attributes->columns[p],
                                      .k = rank,
                                      .a = (const bf16 *)call->in[1] + p * rank,
                                      .lda = width,
                                      .b = (const bf16 *)call->in[2] + column * rank,
                                      .ldb = rank,
                                      .c = (bf16 *)call->out[0] + column,
                                      .ldc = out});
}

GPU_OP(lora_grad_input) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], rank = call->in_shape[1][1], width = call->out_shape[0][1];
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        device_gemm(call->device, &(Gemm){.input = GEMM_BF16,
                                      .output = GEMM_BF16,
                                      .m = rows,
                                      .n = rank,
                                      .k = attributes->columns[p],
                                      .a = (const bf16 *)call->in[0] + column,
                                      .lda = out,
                                      .b = (const bf16 *)call->in[1] + column * rank,
                                      .ldb = rank,
                                      .c = (bf16 *)call->out[0] + p * rank,
                                      .ldc = width});
}

GPU_OP(lora_grad_weight) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], width = call->in_shape[1][1], rank = call->out_shape[0][1];
    int64_t row = rank * (int64_t)(call->compute_gradients ? sizeof(bf16) : sizeof(float));
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        device_gemm(call->device, &(Gemm){.transpose_a = true,
                                      .accumulate = !call->overwrite,
                                      .input = GEMM_BF16,
                                      .output = gpu_gradient_type(call),
                                      .m = attributes->columns[p],
                                      .n = rank,
                                      .k = rows,
                                      .a = (const bf16 *)call->in[0] + column,
                                      .lda = out,
                                      .b = (const bf16 *)call->in[1] + p * rank,
                                      .ldb = width,
                                      .c = (char *)call->out[0] + column * row,
                                      .ldc = rank});
}

#endif
