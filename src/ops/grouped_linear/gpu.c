/* grouped_linear on a GPU: one launch (gpu_gemm_grouped) computes the GEMMs of all experts and
 * reads the experts' offsets on the device. No kernels, no scratch. */
#include "backend/gpu/gpu.h"

#ifndef GPU_DEVICE

#include "backend/gpu/gpu_gemm.h"
#include "backend/gpu/kernel_launch.h"
#include "ops/grouped_linear/grouped_linear.h"

GPU_OP(grouped_linear) {
    const int32_t *offset = call->in[GROUPED_LINEAR_OFFSET];
    const int64_t *w_shape = call->in_shape[GROUPED_LINEAR_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_X][0], .out = w_shape[1], .in = w_shape[2]};
    const bf16 *sum = call->in[GROUPED_LINEAR_SUM];
    bf16 *y = call->out[GROUPED_LINEAR_Y];
    GemmGrouped grouped = {
        .first = linear_gemm(shape, GEMM_BF16, call->in[GROUPED_LINEAR_X], call->in[GROUPED_LINEAR_W], y),
        .offset = offset,
        .experts = w_shape[0],
    };
    grouped.first.accumulate = sum != NULL;
    if (sum && sum != y) device_copy(call->device, y, sum, shape.rows * shape.out * (int64_t)sizeof *y);
    gpu_gemm_grouped(call->device, &grouped);
    gpu_zero_unused(call->device, y, offset, w_shape[0], shape.rows, shape.out);
}

GPU_OP(grouped_linear_grad_input) {
    const void *d_y = call->in[GROUPED_LINEAR_GRAD_INPUT_D_Y], *w = call->in[GROUPED_LINEAR_GRAD_INPUT_W];
    const int32_t *offset = call->in[GROUPED_LINEAR_GRAD_INPUT_OFFSET];
    const int64_t *w_shape = call->in_shape[GROUPED_LINEAR_GRAD_INPUT_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_GRAD_INPUT_D_Y][0], .out = w_shape[1], .in = w_shape[2]};
    bf16 *d_x = call->out[GROUPED_LINEAR_GRAD_INPUT_D_X];
    GemmGrouped grouped = {
        .first = linear_grad_input_gemm(shape, GEMM_BF16, d_y, w, d_x),
        .offset = offset,
        .experts = w_shape[0],
    };
    gpu_gemm_grouped(call->device, &grouped);
    gpu_zero_unused(call->device, d_x, offset, w_shape[0], shape.rows, shape.in);
}

GPU_OP(grouped_linear_grad_weight) {
    const void *d_y = call->in[GROUPED_LINEAR_GRAD_WEIGHT_D_Y], *x = call->in[GROUPED_LINEAR_GRAD_WEIGHT_X];
    const int64_t *w_shape = call->out_shape[GROUPED_LINEAR_GRAD_WEIGHT_D_W];
    LinearShape shape = {.rows = call->in_shape[GROUPED_LINEAR_GRAD_WEIGHT_X][0], .out = w_shape[1], .in = w_shape[2]};
    void *d_w = call->out[GROUPED_LINEAR_GRAD_WEIGHT_D_W];
    GemmGrouped grouped = {
        .first = linear_grad_weight_gemm(shape, GEMM_BF16, d_y, x, d_w, call->overwrite),
        .offset = call->in[GROUPED_LINEAR_GRAD_WEIGHT_OFFSET],
        .experts = w_shape[0],
        .slots_are_depth = true,
    };
    grouped.first.output = gpu_gradient_type(call);
    gpu_gemm_grouped(call->device, &grouped);
}

#endif
