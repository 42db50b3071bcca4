/* Linear layers of experts on a GPU: one launch for the products of all experts (gemm.c), whose slots are known on the device alone. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"

GPU_OP(grouped_linear) {
    int64_t slots = call->in_shape[0][0], experts = call->in_shape[1][0], out = call->in_shape[1][1], in = call->in_shape[1][2];
    Gemm first = {.transpose_b = true,
        .input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = slots,
        .n = out,
        .k = in,
        .a = call->in[0],
        .lda = in,
        .b = call->in[1],
        .ldb = in,
        .c = call->out[0],
        .ldc = out};
    gpu_gemm_grouped(call->device, &(GemmGrouped){.first = first, .offset = call->in[2], .experts = experts});
    gpu_zero_unused(call->device, call->out[0], call->in[2], experts, slots, out);
}

GPU_OP(grouped_linear_grad_input) {
    int64_t slots = call->in_shape[0][0], experts = call->in_shape[1][0], out = call->in_shape[1][1], in = call->in_shape[1][2];
    Gemm first = {.input = GEMM_BF16,
        .output = GEMM_BF16,
        .m = slots,
        .n = in,
        .k = out,
        .a = call->in[0],
        .lda = out,
        .b = call->in[1],
        .ldb = in,
        .c = call->out[0],
        .ldc = in};
    gpu_gemm_grouped(call->device, &(GemmGrouped){.first = first, .offset = call->in[2], .experts = experts});
    gpu_zero_unused(call->device, call->out[0], call->in[2], experts, slots, in);
}

GPU_OP(grouped_linear_grad_weight) {
    int64_t slots = call->in_shape[0][0], experts = call->out_shape[0][0], out = call->out_shape[0][1], in = call->out_shape[0][2];
    Gemm first = {.transpose_a = true,
        .accumulate = !call->overwrite,
        .input = GEMM_BF16,
        .output = gpu_gradient_type(call),
        .m = out,
        .n = in,
        .k = slots,
        .a = call->in[0],
        .lda = out,
        .b = call->in[1],
        .ldb = in,
        .c = call->out[0],
        .ldc = in};
    gpu_gemm_grouped(call->device, &(GemmGrouped){.first = first, .offset = call->in[2], .experts = experts, .slots_are_depth = true});
}

#endif
