/* fp8_linear on a GPU: device_gemm_fp8, or one launch for all experts (gpu_gemm_grouped_fp8). No
 * kernels, no scratch. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"
#include "ops/fp8/fp8.h"

static void expect_done(const OpCall *call, bool done) {
    if (!done)
        gpu_fail(call->device, "the GPU has no FP8 GEMM for a linear layer of this model: leave out fp8.recipe, or raise fp8.min_size");
}

void fp8_multiply_on_gpu(const OpCall *call, const Gemm *gemm) { expect_done(call, device_gemm_fp8(call->device, gemm)); }

GPU_OP(fp8_linear) {
    const int32_t *offset = call->in[FP8_LINEAR_OFFSET];
    Gemm g = fp8_call_gemm(call, GEMM_BF16);
    if (!offset) {
        fp8_multiply_on_gpu(call, &g);
        return;
    }
    int64_t experts = call->in_shape[FP8_LINEAR_B][0];
    expect_done(call, gpu_gemm_grouped_fp8(call->device, &(GemmGrouped){.first = g, .offset = offset, .experts = experts}));
    gpu_zero_unused(call->device, g.c, offset, experts, g.m, g.n);
}

GPU_OP(fp8_linear_grad_weight) {
    Gemm g = fp8_call_gemm(call, gpu_gradient_type(call));
    const int32_t *begin = call->in[FP8_LINEAR_OFFSET];
    int64_t experts = call->in_shape[FP8_LINEAR_OFFSET][0] - 1;
    g.accumulate = !call->overwrite;
    if (!begin) fp8_multiply_on_gpu(call, &g);
    else
        expect_done(call,
            gpu_gemm_grouped_fp8(call->device, &(GemmGrouped){.first = g, .offset = begin, .experts = experts, .slots_are_depth = true}));
}

#endif
