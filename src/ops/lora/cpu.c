/* The CPU kernels of lora. */
#include "backend/cpu/kernel.h"
#include "ops/lora/lora.h"

CPU_OP(lora) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], width = call->in_shape[1][1], rank = call->in_shape[2][1];
    if (call->out[0] != call->in[0]) memcpy(call->out[0], call->in[0], rows * out * sizeof(T));
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        gemm(&(Gemm){.transpose_b = true,
            .accumulate = true,
            .input = KERNEL_GEMM_COMPUTE,
            .output = KERNEL_GEMM_COMPUTE,
            .m = rows,
            .n = attributes->columns[p],
            .k = rank,
            .a = (const T *)call->in[1] + p * rank,
            .lda = width,
            .b = (const T *)call->in[2] + column * rank,
            .ldb = rank,
            .c = (T *)call->out[0] + column,
            .ldc = out});
}

CPU_OP(lora_grad_input) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], rank = call->in_shape[1][1], width = call->out_shape[0][1];
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        gemm(&(Gemm){.input = KERNEL_GEMM_COMPUTE,
            .output = KERNEL_GEMM_COMPUTE,
            .m = rows,
            .n = rank,
            .k = attributes->columns[p],
            .a = (const T *)call->in[0] + column,
            .lda = out,
            .b = (const T *)call->in[1] + column * rank,
            .ldb = rank,
            .c = (T *)call->out[0] + p * rank,
            .ldc = width});
}

CPU_OP(lora_grad_weight) {
    const LoraAttributes *attributes = call->attributes;
    int64_t rows = call->in_shape[0][0], out = call->in_shape[0][1], width = call->in_shape[1][1], rank = call->out_shape[0][1];
    int64_t row = rank * (int64_t)(call->compute_gradients ? sizeof(T) : sizeof(W));
    for (int64_t p = 0, column = 0; p < attributes->parts; column += attributes->columns[p++])
        gemm(&(Gemm){.transpose_a = true,
            .accumulate = !call->overwrite,
            .input = KERNEL_GEMM_COMPUTE,
            .output = kernel_gradient_type(call),
            .m = attributes->columns[p],
            .n = rank,
            .k = rows,
            .a = (const T *)call->in[0] + column,
            .lda = out,
            .b = (const T *)call->in[1] + p * rank,
            .ldb = width,
            .c = (char *)call->out[0] + column * row,
            .ldc = rank});
}
