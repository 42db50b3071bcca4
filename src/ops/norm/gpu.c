/* Norms of the residual stream's rows without a merge: the kernels of norm.h, once per width and kind. */
#include "ops/norm/gpu_rows.h"

#ifdef GPU_DEVICE

#define KERNELS(width, threads, units)                                                                                                     \
    KERNEL(rms_##width, NormArguments) { norm_rows(&a, false, MERGE_NONE, threads, units); }                                               \
    KERNEL(layer_##width, NormArguments) { norm_rows(&a, true, MERGE_NONE, threads, units); }                                              \
    KERNEL(rms_grad_##width, NormGradArguments) { norm_grad_rows(&a, false, MERGE_NONE, threads, units); }                                 \
    KERNEL(layer_grad_##width, NormGradArguments) { norm_grad_rows(&a, true, MERGE_NONE, threads, units); }
NORM_WIDTHS(KERNELS)
KERNEL(any, NormArguments) { norm_rows_any(&a); }
KERNEL(any_grad_rows, NormGradArguments) { norm_grad_rows_any(&a); }
KERNEL(any_grad_columns, NormGradArguments) { norm_grad_columns_any(&a); }

#else

#include "ops/norm/norm.h"

#define LAUNCHERS(width, threads, units)                                                                                                   \
    LAUNCHER(rms_##width, NormArguments)                                                                                             \
    LAUNCHER(layer_##width, NormArguments)                                                                                           \
    LAUNCHER(rms_grad_##width, NormGradArguments)                                                                                    \
    LAUNCHER(layer_grad_##width, NormGradArguments)
NORM_WIDTHS(LAUNCHERS)
LAUNCHER(any, NormArguments)
LAUNCHER(any_grad_rows, NormGradArguments)
LAUNCHER(any_grad_columns, NormGradArguments)

GPU_OP(norm) {
    static void (*const launch[2][NORM_WIDTH_COUNT])(Device *, LaunchShape, const NormArguments *) = {
        {launch_rms_512, launch_rms_1024, launch_rms_2048, launch_rms_4096, launch_rms_8192, launch_any},
        {launch_layer_512, launch_layer_1024, launch_layer_2048, launch_layer_4096, launch_layer_8192, launch_any},
    };
    const NormAttributes *attributes = call->attributes;
    bool layer = attributes->kind == NORM_LAYER;
    int width = norm_width(call->in_shape[0][1]);
    NormArguments arguments = {.stream = call->in[0],
        .gain = call->in[1],
        .bias = call->in[2],
        .normed = call->out[0],
        .statistics = call->out[1],
        .rows = call->in_shape[0][0],
        .columns = call->in_shape[0][1],
        .layer = layer,
        .epsilon = attributes->epsilon};
    LaunchShape shape = norm_shape(call->device, width, &arguments);
    launch[layer][width](call->device, shape, &arguments);
}

static int64_t gpu_scratch_norm_grad(const Graph *graph, const Node *node) {
    return norm_grad_scratch(graph_rows(graph, node->in[1]), graph_columns(graph, node->in[1]),
        norm_statistics(((const NormAttributes *)node->attributes)->kind));
}

GPU_OP(norm_grad, gpu_scratch_norm_grad) {
    static void (*const launch[2][NORM_ANY])(Device *, LaunchShape, const NormGradArguments *) = {
        {launch_rms_grad_512, launch_rms_grad_1024, launch_rms_grad_2048, launch_rms_grad_4096, launch_rms_grad_8192},
        {launch_layer_grad_512, launch_layer_grad_1024, launch_layer_grad_2048, launch_layer_grad_4096, launch_layer_grad_8192},
    };
    const NormAttributes *attributes = call->attributes;
    bool layer = attributes->kind == NORM_LAYER;
    int64_t rows = call->in_shape[1][0], columns = call->in_shape[1][1];
    NormGradArguments arguments = {.d_normed = call->in[0],
        .merged = call->in[1],
        .gain = call->in[2],
        .statistics = call->in[3],
        .d_stream = call->out[0],
        .partials = call->workspace,
        .rows = rows,
        .columns = columns,
        .layer = layer};
    LaunchShape shape = norm_grad_shape(&arguments);
    if (norm_width(columns) == NORM_ANY) {
        launch_any_grad_rows(call->device, (LaunchShape){.x = rows, .threads = NORM_THREADS}, &arguments);
        launch_any_grad_columns(call->device, norm_grad_columns_shape(&arguments), &arguments);
    } else launch[layer][norm_width(columns)](call->device, shape, &arguments);
    gpu_add_partial_sums(call->device, (float *[]){call->out[1], call->out[2]}, layer ? 2 : 1, call->workspace, shape.x, columns);
}

#endif
