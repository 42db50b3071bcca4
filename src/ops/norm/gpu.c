/* Norms of rows without residual add on a GPU: the kernels of gpu_rows_kernels.h, once per width and kind.
 * Scratch: the column sums of each block in the backward pass. */
#include "ops/norm/gpu_rows_kernels.h"

#ifdef GPU_DEVICE

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(rms_##width, NormArguments) { norm_rows(&a, false, RESIDUAL_NONE, threads, units, AS_BF16); }                                      \
    KERNEL(layer_##width, NormArguments) { norm_rows(&a, true, RESIDUAL_NONE, threads, units, AS_BF16); }                                     \
    KERNEL(rms_fp8_##width, NormArguments) { norm_rows(&a, false, RESIDUAL_NONE, threads, units, &a.to); }                                    \
    KERNEL(layer_fp8_##width, NormArguments) { norm_rows(&a, true, RESIDUAL_NONE, threads, units, &a.to); }                                   \
    KERNEL(rms_grad_##width, NormGradArguments) { norm_grad_rows(&a, false, RESIDUAL_NONE, threads, units, AS_BF16); }                        \
    KERNEL(layer_grad_##width, NormGradArguments) { norm_grad_rows(&a, true, RESIDUAL_NONE, threads, units, AS_BF16); }
NORM_WIDTHS(KERNELS)
KERNEL(any, NormArguments) { norm_rows_any(&a, AS_BF16); }
KERNEL(any_fp8, NormArguments) { norm_rows_any(&a, &a.to); }
KERNEL(any_grad_rows, NormGradArguments) { norm_grad_rows_any(&a); }
KERNEL(any_grad_columns, NormGradArguments) { norm_grad_columns_any(&a, AS_BF16); }

#else

#include "ops/norm/norm.h"

LAUNCHERS(rms, NormArguments, rms_512, rms_1024, rms_2048, rms_4096, rms_8192, any)
LAUNCHERS(layer, NormArguments, layer_512, layer_1024, layer_2048, layer_4096, layer_8192, any)
LAUNCHERS(rms_fp8, NormArguments, rms_fp8_512, rms_fp8_1024, rms_fp8_2048, rms_fp8_4096, rms_fp8_8192, any_fp8)
LAUNCHERS(layer_fp8, NormArguments, layer_fp8_512, layer_fp8_1024, layer_fp8_2048, layer_fp8_4096, layer_fp8_8192, any_fp8)
LAUNCHERS(rms_grad, NormGradArguments, rms_grad_512, rms_grad_1024, rms_grad_2048, rms_grad_4096, rms_grad_8192)
LAUNCHERS(layer_grad, NormGradArguments, layer_grad_512, layer_grad_1024, layer_grad_2048, layer_grad_4096, layer_grad_8192)
LAUNCHER(any_grad_rows, NormGradArguments)
LAUNCHER(any_grad_columns, NormGradArguments)

GPU_OP(norm, .quantizes = FP8_KIND(FP8_E4M3)) {
    const NormAttributes *attributes = call->attributes;
    bool layer = attributes->kind == NORM_LAYER;
    int width = norm_width(call->in_shape[NORM_X][1]);
    NormArguments arguments = {.stream = call->in[NORM_X],
        .gain = call->in[NORM_GAIN],
        .bias = call->in[NORM_BIAS],
        .normed = call->out[NORM_Y],
        .statistics = call->out[NORM_STATISTICS],
        .rows = call->in_shape[NORM_X][0],
        .columns = call->in_shape[NORM_X][1],
        .layer = layer,
        .epsilon = attributes->epsilon,
        .to = fp8_output_of(call, NORM_AMAX)};
    LaunchShape shape = norm_shape(call->device, width, &arguments);
    if (fp8_is_wanted(&arguments.to)) (layer ? launch_layer_fp8 : launch_rms_fp8)(call->device, width, shape, &arguments);
    else (layer ? launch_layer : launch_rms)(call->device, width, shape, &arguments);
}

static int64_t norm_grad_gpu_workspace(const Graph *graph, const Node *node) {
    const NormAttributes *attributes = node->attributes;
    TensorId x = node->in[NORM_GRAD_X];
    return norm_grad_scratch(graph_rows(graph, x), graph_columns(graph, x), attributes->kind == NORM_LAYER ? 2 : 1);
}

GPU_OP(norm_grad, norm_grad_gpu_workspace) {
    const NormAttributes *attributes = call->attributes;
    bool layer = attributes->kind == NORM_LAYER;
    int64_t rows = call->in_shape[NORM_GRAD_X][0], columns = call->in_shape[NORM_GRAD_X][1];
    NormGradArguments arguments = {.d_normed = call->in[NORM_GRAD_D_Y],
        .residual = call->in[NORM_GRAD_X],
        .gain = call->in[NORM_GRAD_GAIN],
        .statistics = call->in[NORM_GRAD_STATISTICS],
        .d_stream = call->out[NORM_GRAD_D_X],
        .partials = call->workspace,
        .rows = rows,
        .columns = columns,
        .layer = layer};
    LaunchShape shape = norm_grad_shape(call->device, &arguments);
    if (norm_width(columns) == NORM_ANY) {
        launch_any_grad_rows(call->device, (LaunchShape){.x = rows, .threads = NORM_THREADS}, &arguments);
        launch_any_grad_columns(call->device, norm_grad_columns_shape(call->device, &arguments), &arguments);
    } else (layer ? launch_layer_grad : launch_rms_grad)(call->device, norm_width(columns), shape, &arguments);
    float *targets[] = {call->out[NORM_GRAD_D_GAIN], call->out[NORM_GRAD_D_BIAS]};
    gpu_add_partial_sums(call->device, targets, layer ? 2 : 1, call->workspace, shape.x, columns);
}

#endif
